"""Checks whether torch can use this node's GPUs, and whether they report errors of their hardware. Run as a program,
prints what torch finds, as JSON."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

from nemo_prorl.config import ConfigError, Device
from nemo_prorl.doctor.report import Finding, failure, not_applicable, ok, refused, warning

MISSING = "missing"
TIMEOUT_S = 30.0
"""Time limit of nvidia-smi, which hangs when a GPU has fallen off the bus."""


_ROWS = "--query-remapped-rows=gpu_bus_id,remapped_rows.failure,remapped_rows.pending"
_ECC = "--query-gpu=pci.bus_id,ecc.errors.uncorrected.volatile.total"
_HEAT = (
    "--query-gpu=pci.bus_id,clocks_event_reasons.hw_thermal_slowdown,clocks_event_reasons.sw_thermal_slowdown"
)
SYMPTOMS = (
    (_ROWS, failure, "has a bad row of memory", "leave this node out until the GPU is reset or replaced"),
    (_ECC, warning, "had uncorrected memory errors (ECC)", "watch this node: such errors end runs"),
    (
        _HEAT,
        warning,
        "is too hot and has lowered its clock",
        "have its cooling looked at: all ranks wait for it",
    ),
)
"""What nvidia-smi is asked, and what a number above 0, "Yes" or "Active" in its answer means; the worst first. A field
that a driver does not know makes its query fail, which is no symptom."""
KERNEL_LOGS = (("dmesg",), ("journalctl", "--dmesg", "--quiet", "--no-pager"))
"""Commands that print the kernel's log since the machine started. Many systems allow them to root only."""
HARDWARE_XIDS = (48, 64, 74, 79, 95, 119, 120)
"""Numbers of hardware errors, rather than of programs: of memory, NVLink, the system processor, and a GPU that fell off
the bus ("XID Errors", docs.nvidia.com/deploy/xid-errors)."""


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


def judge_gpu_health(answers: Sequence[str | None], kernel_log: str | None) -> Finding:
    """Returns the worst symptom, and what else was seen. answers: what nvidia-smi printed for each of SYMPTOMS, None
    where it failed. kernel_log: None if it cannot be read."""
    name = "GPU health"
    seen = [
        kind(name, f"GPU {', '.join(gpus)} {found}", advice)
        for (_, kind, found, advice), answer in zip(SYMPTOMS, answers, strict=True)
        if (gpus := _affected(answer or ""))
    ]
    xids = re.findall(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)", kernel_log or "")
    if errors := sorted({f"{bus}: {number}" for bus, number in xids if int(number) in HARDWARE_XIDS}):
        found = f"the kernel's log has hardware errors (Xid) of GPU {', '.join(errors)}"
        seen.append(warning(name, found, "look the numbers up in NVIDIA's XID Errors, and watch this node"))
    if seen:
        return replace(seen[0], found="; ".join(item.found for item in seen))
    silent = [] if any(answer is not None for answer in answers) else ["nvidia-smi does not work"]
    silent += [] if kernel_log is not None else ["only root can read the kernel's log"]
    if len(silent) == 2:
        return not_applicable(name, f"not checked: {' and '.join(silent)}")
    return ok(name, "no error is reported" + (f", but {silent[0]}" if silent else ""))


def read_gpu_health() -> tuple[list[str | None], str | None]:
    """Returns the arguments of `judge_gpu_health` for this node."""
    answers = [_output(("nvidia-smi", query, "--format=csv,noheader")) for query, *_ in SYMPTOMS]
    return answers, next((text for command in KERNEL_LOGS if (text := _output(command)) is not None), None)


def _affected(answer: str) -> list[str]:
    """Returns the PCI addresses of the GPUs with a symptom. Other words, such as "[N/A]", are none."""
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.splitlines()]
    return [
        bus
        for bus, *cells in rows
        if any(re.fullmatch("0*[1-9][0-9]*|yes|active", cell, re.I) for cell in cells)
    ]


def _output(command: Sequence[str]) -> str | None:
    """Returns what a command prints; None if it does not exist, fails, or hangs."""
    pipe, discard = subprocess.PIPE, subprocess.DEVNULL
    try:
        process = subprocess.Popen(command, stdout=pipe, stderr=discard, text=True, errors="replace")
    except OSError:
        return None
    try:
        text, _ = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()  # without waiting: a process that hangs in the driver cannot be killed
        return None
    return text if process.returncode == 0 else None


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
