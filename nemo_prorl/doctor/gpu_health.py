"""Checks for errors of the GPUs' memory and hardware in nvidia-smi and the kernel's log."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from nemo_prorl.doctor.finding import Finding, failure, not_applicable, ok, warning

TIMEOUT_S = 30.0
"""Time limit of nvidia-smi, which hangs when a GPU has fallen off the bus."""
ECC_QUERY = "--query-gpu=pci.bus_id,ecc.errors.uncorrected.volatile.total"
ROWS_QUERY = "--query-remapped-rows=gpu_bus_id,remapped_rows.pending,remapped_rows.failure"
KERNEL_LOGS = (("dmesg",), ("journalctl", "--dmesg", "--quiet", "--no-pager"))
"""Commands that print the kernel's log since the machine started. Many systems allow them to root only."""
HARDWARE_XIDS = {
    48: "an uncorrectable memory error",
    64: "a bad row that could not be replaced",
    74: "an NVLink error",
    79: "it fell off the bus",
    95: "an uncontained memory error",
    119: "its system processor did not answer",
    120: "its system processor failed",
}
"""Xid numbers of hardware errors, rather than of programs ("XID Errors", docs.nvidia.com/deploy/xid-errors)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFacts:
    """Reported errors of the GPUs of this node. GPUs are named by PCI address, such as "00000000:1B:00.0"."""

    uncorrected: dict[str, int] | None = None
    """GPU -> uncorrected ECC errors since its last reset; None if nvidia-smi does not work."""
    pending: Sequence[str] = ()
    """GPUs that will replace a bad row of their memory at their next reset."""
    unrepairable: Sequence[str] = ()
    """GPUs that failed to replace a bad row."""
    xids: Sequence[tuple[str, int]] | None = None
    """GPU and Xid number of each hardware error in the kernel's log; None if the log could not be read."""


def judge_gpu_health(facts: HealthFacts) -> Finding:
    """Returns a failure for a GPU that needs a reset or a replacement, and a warning for errors that have left it
    working."""
    name = "GPU health"
    if facts.uncorrected is None and facts.xids is None:
        return not_applicable(name, "not checked: neither nvidia-smi nor the kernel's log can be read here")
    if facts.unrepairable:
        found = f"GPU {', '.join(facts.unrepairable)} could not replace a bad row of memory"
        return failure(name, found, "leave this node out, and have the GPU replaced")
    if facts.pending:
        found = f"GPU {', '.join(facts.pending)} replaces a bad row of memory only after a reset"
        return failure(name, found, "leave this node out until the administrator has reset the GPU")
    errors = {bus: count for bus, count in (facts.uncorrected or {}).items() if count}
    seen = [f"{bus} had {count} uncorrected ECC error(s)" for bus, count in errors.items()]
    for (bus, number), count in Counter(facts.xids or ()).items():
        seen.append(f"{bus} reported Xid {number} {count} time(s) ({HARDWARE_XIDS[number]})")
    if seen:
        return warning(name, "; ".join(seen), "watch this node: such errors end runs, and often come again")
    skipped = [] if facts.uncorrected is not None else ["ECC errors, because nvidia-smi does not work"]
    skipped += [] if facts.xids is not None else ["Xid errors, because only root can read the kernel's log"]
    return ok(name, "no error is reported" + (f" (not checked: {'; '.join(skipped)})" if skipped else ""))


def read_gpu_health() -> HealthFacts:
    """Returns what nvidia-smi and the kernel's log report. A source that is missing or forbidden is no error."""
    rows = parse_remapped_rows(_output(("nvidia-smi", ROWS_QUERY, "--format=csv,noheader")) or "")
    ecc = _output(("nvidia-smi", ECC_QUERY, "--format=csv,noheader"))
    log = next((text for command in KERNEL_LOGS if (text := _output(command)) is not None), None)
    return HealthFacts(
        uncorrected=None if ecc is None else parse_ecc_errors(ecc),
        pending=tuple(bus for bus, is_pending, _ in rows if is_pending),
        unrepairable=tuple(bus for bus, _, has_failed in rows if has_failed),
        xids=None if log is None else parse_xids(log),
    )


def parse_ecc_errors(text: str) -> dict[str, int]:
    """Returns GPU -> errors from the output of ECC_QUERY. GPUs without ECC, marked "[N/A]", have 0 errors."""
    return {bus: int(count) if count.isdigit() else 0 for bus, count in _cells(text, 2)}


def parse_remapped_rows(text: str) -> list[tuple[str, bool, bool]]:
    """Returns (GPU, whether a row waits for a reset, whether a replacement failed) from the output of ROWS_QUERY."""
    yes = ("yes", "1")  # depending on the driver
    return [(bus, pending.lower() in yes, failed.lower() in yes) for bus, pending, failed in _cells(text, 3)]


def parse_xids(text: str) -> list[tuple[str, int]]:
    """Returns (GPU, Xid number) of every hardware error in the kernel's log."""
    found = re.findall(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)", text)
    return [(bus, int(number)) for bus, number in found if int(number) in HARDWARE_XIDS]


def _cells(text: str, num_columns: int) -> list[list[str]]:
    """Returns the rows of a table of nvidia-smi that have so many columns; others are messages."""
    rows = [[cell.strip() for cell in line.split(", ")] for line in text.splitlines()]
    return [row for row in rows if len(row) == num_columns]


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
