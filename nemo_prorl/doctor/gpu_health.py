"""Errors of the GPUs' memory and hardware, as nvidia-smi and the kernel's log report them."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from nemo_prorl.doctor.finding import Finding, failure, not_applicable, ok, warning

TIMEOUT_S = 30.0
"""For nvidia-smi, which hangs when a GPU has fallen off the bus."""
ECC_QUERY = (
    "nvidia-smi",
    "--query-gpu=pci.bus_id,ecc.errors.uncorrected.volatile.total",
    "--format=csv,noheader",
)
ROWS_QUERY = (
    "nvidia-smi",
    "--query-remapped-rows=gpu_bus_id,remapped_rows.pending,remapped_rows.failure",
    "--format=csv,noheader",
)
KERNEL_LOGS = (("dmesg",), ("journalctl", "--dmesg", "--quiet", "--no-pager"))
"""Commands that show the kernel's log since the machine started. Many systems allow them to root only."""
HARDWARE_XIDS = {
    48: "an uncorrectable memory error",
    64: "a bad row that could not be replaced",
    74: "an NVLink error",
    79: "it fell off the bus",
    95: "an uncontained memory error",
    119: "its system processor did not answer",
    120: "its system processor failed",
}
"""Xid numbers that point at the GPU rather than at a program ("XID Errors", docs.nvidia.com/deploy/xid-errors)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFacts:
    """What was found about the GPUs of this node, each by its PCI address, such as "00000000:1B:00.0"."""

    uncorrected: dict[str, int] | None = None
    """Uncorrected ECC errors of each GPU since its last reset; None if nvidia-smi could not be asked."""
    pending: Sequence[str] = ()
    """GPUs that replace a bad row of their memory at their next reset."""
    unrepairable: Sequence[str] = ()
    """GPUs that could not replace a bad row."""
    xids: Sequence[tuple[str, int]] | None = None
    """GPU and number of each hardware error in the kernel's log; None if the log could not be read."""


def judge_gpu_health(facts: HealthFacts) -> Finding:
    """Fails for a GPU that needs a reset or a replacement. Earlier errors, after which the GPU goes on, are a
    warning."""
    name = "GPU health"
    if facts.uncorrected is None and facts.xids is None:
        return not_applicable(name, "not checked: neither nvidia-smi nor the kernel's log can be read here")
    if facts.unrepairable:
        found = f"{_listed(facts.unrepairable)} could not replace a bad row of memory"
        return failure(name, found, "leave this node out, and have the GPU replaced")
    if facts.pending:
        found = f"{_listed(facts.pending)} replaces a bad row of memory only after a reset"
        return failure(name, found, "leave this node out until the administrator has reset the GPU")
    seen = [
        f"{bus} had {count} uncorrected ECC error(s)"
        for bus, count in (facts.uncorrected or {}).items()
        if count
    ]
    for (bus, number), count in Counter(facts.xids or ()).items():
        seen.append(f"{bus} reported Xid {number} {count} time(s) ({HARDWARE_XIDS[number]})")
    if seen:
        return warning(name, "; ".join(seen), "watch this node: such errors end runs, and often come again")
    left_out = [] if facts.uncorrected is not None else ["ECC errors: no answer from nvidia-smi"]
    left_out += [] if facts.xids is not None else ["Xid: the kernel's log is for root only"]
    return ok(name, "no error is reported" + (f" (not checked: {'; '.join(left_out)})" if left_out else ""))


def _listed(gpus: Sequence[str]) -> str:
    return f"GPU {', '.join(gpus)}"


def read_gpu_health() -> HealthFacts:
    """Asks nvidia-smi and the kernel. What is missing or forbidden here is left out, and is no error."""
    rows = parse_remapped_rows(_output(ROWS_QUERY) or "")
    ecc = _output(ECC_QUERY)
    logs = (text for command in KERNEL_LOGS if (text := _output(command)) is not None)
    log = next(logs, None)
    return HealthFacts(
        uncorrected=None if ecc is None else parse_ecc_errors(ecc),
        pending=tuple(bus for bus, is_pending, _ in rows if is_pending),
        unrepairable=tuple(bus for bus, _, has_failed in rows if has_failed),
        xids=None if log is None else parse_xids(log),
    )


def parse_ecc_errors(text: str) -> dict[str, int]:
    """Reads what ECC_QUERY prints. GPUs without ECC, which say "[N/A]", have 0 errors."""
    pairs = (line.split(", ") for line in text.splitlines() if line.count(", ") == 1)
    return {bus.strip(): int(count) if count.strip().isdigit() else 0 for bus, count in pairs}


def parse_remapped_rows(text: str) -> list[tuple[str, bool, bool]]:
    """Reads what ROWS_QUERY prints: (GPU, whether a row waits for a reset, whether a replacement has failed)."""
    lines = (line.split(", ") for line in text.splitlines() if line.count(", ") == 2)
    return [(bus.strip(), _is_yes(pending), _is_yes(failed)) for bus, pending, failed in lines]


def parse_xids(text: str) -> list[tuple[str, int]]:
    """Reads (GPU, number) of every hardware error from the kernel's log."""
    found = re.findall(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)", text)
    return [(bus, int(number)) for bus, number in found if int(number) in HARDWARE_XIDS]


def _is_yes(word: str) -> bool:
    """nvidia-smi writes Yes or 1, depending on the driver."""
    return word.strip().lower() in ("yes", "1")


def _output(command: Sequence[str]) -> str | None:
    """What a command prints; None if it is not here, fails, or hangs."""
    pipe, discard = subprocess.PIPE, subprocess.DEVNULL
    try:
        process = subprocess.Popen(command, stdout=pipe, stderr=discard, text=True, errors="replace")
    except OSError:
        return None
    try:
        said, _ = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()  # not waited for: a process that hangs in the driver cannot be killed
        return None
    return said if process.returncode == 0 else None
