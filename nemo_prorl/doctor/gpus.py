"""Checks whether torch can use this node's GPUs. Run as a program, prints what torch finds, as JSON."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
from dataclasses import asdict, dataclass, field

from nemo_prorl.config import ConfigError, Device
from nemo_prorl.doctor.report import Finding, failure, not_applicable, ok, refused, warning

MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """What torch finds on a node."""

    versions: str = ""
    """Versions of torch and, with GPUs, of CUDA and the driver."""
    gpus: list[str] = field(default_factory=list)
    """Name and memory of each GPU, such as "NVIDIA H200 (140 GiB)"."""
    refusal: str = ""
    """The error with which a trainer with this configuration would stop; empty if it would start."""
    are_needed: bool = False
    """Whether vLLM was built for CUDA."""
    engine_error: str = ""
    """Why Transformer Engine cannot be imported, MISSING if it is not installed; empty if it can."""


def judge_gpus(facts: GpuFacts, *, num_allocated: int) -> list[Finding]:
    """Returns the findings about GPUs and Transformer Engine. num_allocated: GPUs of this node that Slurm has allocated
    to the job; 0 outside of Slurm."""
    if facts.refusal:
        return [refused("GPUs", ConfigError(facts.refusal))]
    if not facts.gpus and facts.are_needed:
        advice = "run doctor on a node with a GPU; to train on a CPU, install the environment for CPUs (make setup)"
        return [warning("GPUs", "none is here, and this environment's vLLM was built for CUDA", advice)]
    if not facts.gpus:
        return [not_applicable("GPUs", f"none is used, {facts.versions} computes on the CPU")]
    gpus = ok("GPUs", f"{len(facts.gpus)} x {facts.gpus[0]}, {facts.versions}")
    if len(set(facts.gpus)) > 1:
        found = f"they are of different kinds: {', '.join(facts.gpus)}"
        gpus = warning("GPUs", found, "request equal GPUs, because all wait for the slowest")
    elif len(facts.gpus) < num_allocated:
        seen = f"torch sees {len(facts.gpus)} of the {num_allocated} GPUs"
        advice = "look for a dead GPU with nvidia-smi, or start tasks with srun --gpu-bind=none"
        gpus = failure("GPUs", f"{seen} that Slurm has allocated to this job", advice)
    engine = ok("Transformer Engine", "can be imported")
    advice = "install what requirements/cuda.txt names (make setup-cuda)"
    # Megatron does without a package that is missing, but not without one that is broken.
    if facts.engine_error == MISSING:
        slow = "is not installed, so training takes about twice the time"
        engine = warning("Transformer Engine", slow, advice)
    elif facts.engine_error:
        engine = failure("Transformer Engine", f"cannot be imported ({facts.engine_error})", advice)
    return [gpus, engine]


def probe_gpus(device: Device) -> GpuFacts:
    """Returns what torch finds. Imports torch and, if there are GPUs, Transformer Engine; has to be called in a process
    of its own."""
    from nemo_prorl.engines import environment

    try:
        environment.choose_device(device)
    except ConfigError as error:
        return GpuFacts(refusal=str(error))
    if not environment.has_cuda():
        versions = f"torch {importlib.metadata.version('torch')}"
        return GpuFacts(versions=versions, are_needed=environment.samples_on_gpus_only())
    environment.prepare()
    import torch

    from nemo_prorl.engines.device import check_gpus, driver_version

    try:
        check_gpus()
    except ConfigError as error:
        return GpuFacts(refusal=str(error))
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    engine_error = ""
    try:
        importlib.import_module("transformer_engine.pytorch")
    except Exception as error:  # a broken library may raise any error
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == "transformer_engine"
        engine_error = MISSING if is_missing else " ".join(repr(error).split())[:200]
    return GpuFacts(
        versions=f"driver {driver_version()}, torch {torch.__version__} for CUDA {torch.version.cuda}",
        gpus=[f"{gpu.name} ({gpu.total_memory / 2**30:.0f} GiB)" for gpu in found],
        engine_error=engine_error,
    )


if __name__ == "__main__":
    print(json.dumps(asdict(probe_gpus(Device[sys.argv[1]]))))
