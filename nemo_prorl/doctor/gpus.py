"""GPUs, driver and torch: can this node's GPUs be used? As a program: prints what torch finds, as JSON."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import sys
from dataclasses import asdict, dataclass, field

from nemo_prorl.config import ConfigError, Device
from nemo_prorl.doctor.finding import Finding, failure, not_applicable, ok, refused, warning


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """What torch finds on a node."""

    torch: str = ""
    cuda: str = ""
    """That torch was built for; empty: none."""
    driver: str = ""
    gpus: list[str] = field(default_factory=list)
    """Name and memory of each, such as "NVIDIA H200 (140 GiB)"."""
    refusal: str = ""
    """What a trainer with this configuration would say instead of starting."""
    transformer_engine: str = ""
    """Empty: it can be imported, or is not needed; else why not."""


def judge_gpus(facts: GpuFacts, *, num_allocated: int) -> list[Finding]:
    """`num_allocated`: GPUs of this node that Slurm has given to the job; 0 outside of Slurm."""
    if facts.refusal:
        return [refused("GPUs", ConfigError(facts.refusal))]
    torch = f"torch {facts.torch}"
    if not facts.gpus:
        return [not_applicable("GPUs", f"none is used: {torch} computes on the CPU")]
    found = f"{len(facts.gpus)} x {facts.gpus[0]}, driver {facts.driver}, {torch} for CUDA {facts.cuda}"
    if len(set(facts.gpus)) > 1:
        gpus = warning(
            "GPUs",
            f"of different kinds: {', '.join(facts.gpus)}",
            "ask for equal GPUs: the slowest sets the pace",
        )
    elif len(facts.gpus) < num_allocated:
        found = f"torch sees {len(facts.gpus)} of the {num_allocated} GPUs that Slurm has given to this job"
        gpus = failure(
            "GPUs", found, "look for a dead GPU with nvidia-smi, or start tasks with srun --gpu-bind=none"
        )
    else:
        gpus = ok("GPUs", found)
    return [gpus, _engine(facts)]


def _engine(facts: GpuFacts) -> Finding:
    if facts.transformer_engine:
        advice = "install it as the Dockerfile does: without it training takes about twice the time"
        return warning("Transformer Engine", facts.transformer_engine, advice)
    return ok("Transformer Engine", "can be imported")


def probe_gpus(device: Device) -> GpuFacts:
    """Imports torch, and Transformer Engine where GPUs are used; to be called in a process of its own."""
    from nemo_prorl.engines import environment

    try:
        environment.choose_device(device)
    except ConfigError as error:
        return GpuFacts(refusal=str(error))
    if not environment.has_cuda():
        return GpuFacts(torch=importlib.metadata.version("torch"))
    environment.prepare()
    import torch

    from nemo_prorl.engines.device import check_gpus, driver_version

    try:
        check_gpus()
    except ConfigError as error:
        return GpuFacts(torch=torch.__version__, refusal=str(error))
    gpus = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        gpus.append(f"{properties.name} ({properties.total_memory / 2**30:.0f} GiB)")
    return GpuFacts(
        torch=torch.__version__,
        cuda=torch.version.cuda or "",
        driver=driver_version(),
        gpus=gpus,
        transformer_engine=_why_no_transformer_engine(),
    )


def _why_no_transformer_engine() -> str:
    if importlib.util.find_spec("transformer_engine") is None:
        return "is not installed"
    try:
        importlib.import_module("transformer_engine.pytorch")
    except Exception as error:  # a library that does not load raises whatever it likes
        return f"cannot be imported ({' '.join(str(error).split())[:200]})"
    return ""


if __name__ == "__main__":
    print(json.dumps(asdict(probe_gpus(Device[sys.argv[1]]))))
