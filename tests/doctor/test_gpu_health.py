"""ECC errors, remapped rows and Xid: lines as nvidia-smi and the driver write them, and tools that are not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_prorl.doctor import gpu_health
from nemo_prorl.doctor.finding import Severity
from nemo_prorl.doctor.gpu_health import (
    HealthFacts,
    judge_gpu_health,
    parse_ecc_errors,
    parse_remapped_rows,
    parse_xids,
    read_gpu_health,
)

ECC = "00000000:1B:00.0, 0\n00000000:43:00.0, 2\n00000000:52:00.0, [N/A]\n"
ROWS = "00000000:1B:00.0, 0, 0\n00000000:43:00.0, 1, 0\n00000000:52:00.0, No, Yes\n00000000:61:00.0, [N/A], [N/A]\n"
KERNEL = """\
[    4.1] nvidia: loading out-of-tree module taints kernel.
[  812.3] NVRM: Xid (PCI:0000:1b:00): 31, pid=79749, name=python, Ch 0000000a, intr 00000000. MMU Fault
[  913.9] NVRM: Xid (PCI:0000:43:00): 48, pid='<unknown>', name=<unknown>, DBE (double bit error)
[  914.0] NVRM: Xid (PCI:0000:43:00): 48, pid='<unknown>', name=<unknown>, DBE (double bit error)
[ 1020.5] NVRM: Xid (PCI:0000:52:00): 79, pid=1122, GPU has fallen off the bus.
"""


def test_errors_are_read_and_what_a_gpu_does_not_count_is_none() -> None:
    assert parse_ecc_errors(ECC) == {"00000000:1B:00.0": 0, "00000000:43:00.0": 2, "00000000:52:00.0": 0}
    assert parse_remapped_rows(ROWS)[1:3] == [
        ("00000000:43:00.0", True, False),
        ("00000000:52:00.0", False, True),
    ]
    assert parse_remapped_rows(ROWS)[3] == ("00000000:61:00.0", False, False)
    assert parse_xids(KERNEL) == [("0000:43:00", 48), ("0000:43:00", 48), ("0000:52:00", 79)], (
        "31 is a program's mistake"
    )


@pytest.mark.parametrize("text", ["", "Unable to determine the device handle for GPU", "a\nb, c, d, e\n\x00"])
def test_other_words_are_no_errors(text: str) -> None:
    assert parse_ecc_errors(text) == {}
    assert parse_remapped_rows(text) == []
    assert parse_xids(text) == []


@pytest.mark.parametrize(
    ("facts", "status", "words"),
    [
        (HealthFacts(uncorrected={"a": 0}, xids=[]), Severity.ok, "no error is reported"),
        (HealthFacts(uncorrected={"a": 0}), Severity.ok, "not checked: Xid"),
        (HealthFacts(xids=[]), Severity.ok, "not checked: ECC errors"),
        (HealthFacts(), Severity.not_applicable, "not checked"),
        (HealthFacts(uncorrected={"a": 0, "b": 3}), Severity.warning, "b had 3 uncorrected"),
        (
            HealthFacts(xids=[("b", 79)] * 2),
            Severity.warning,
            "b reported Xid 79 2 time(s) (it fell off the bus)",
        ),
        (HealthFacts(uncorrected={}, pending=["b"]), Severity.failure, "GPU b replaces a bad row"),
        (HealthFacts(uncorrected={}, pending=["b"], unrepairable=["c"]), Severity.failure, "GPU c could not"),
    ],
)
def test_what_needs_hands_fails_and_what_is_over_is_a_warning(
    facts: HealthFacts, status: Severity, words: str
) -> None:
    finding = judge_gpu_health(facts)
    assert finding.status is status
    assert words in finding.found
    assert bool(finding.advice) == (status in (Severity.warning, Severity.failure))


def tool(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/bash\n{script}\n")
    (folder / name).chmod(0o755)


def test_tools_that_are_not_there_fail_or_hang_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setattr(gpu_health, "KERNEL_LOGS", (("no-such-dmesg",), ("forbidden",)))
    monkeypatch.setattr(gpu_health, "TIMEOUT_S", 0.3)
    tool(tmp_path, "forbidden", "echo 'read kernel buffer failed: Operation not permitted' >&2; exit 1")
    assert read_gpu_health() == HealthFacts()
    tool(tmp_path, "nvidia-smi", "exec sleep 60")
    assert read_gpu_health() == HealthFacts()
    tool(tmp_path, "nvidia-smi", "echo 'Field \"x\" is not a valid field to query.'; exit 2")
    assert read_gpu_health() == HealthFacts()


def test_the_first_log_that_can_be_read_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    tool(tmp_path, "dmesg", "exit 1")
    tool(tmp_path, "journalctl", f"cat <<'EOT'\n{KERNEL}EOT")
    tool(tmp_path, "nvidia-smi", f"[[ $1 == *remapped* ]] && echo -n '{ROWS}' || echo -n '{ECC}'")
    facts = read_gpu_health()
    assert facts.uncorrected == parse_ecc_errors(ECC)
    assert (facts.pending, facts.unrepairable) == (("00000000:43:00.0",), ("00000000:52:00.0",))
    assert facts.xids == parse_xids(KERNEL)
