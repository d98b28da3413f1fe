"""What doctor writes for programs and shows to people."""

from __future__ import annotations

import json
from pathlib import Path

from nemo_prorl.doctor.report import (
    MARGIN,
    Finding,
    NodeReport,
    failure,
    nodes_table,
    not_applicable,
    ok,
    read_report,
    refused,
    summary,
    table,
    wait_for_reports,
    warning,
    write_report,
)
from nemo_prorl.run_folder.terminal import folded

BAD = failure("run folder", "/runs: " + "no room " * 30, "make room")
GOOD = ok("GPUs", "8 x H100")
MISTAKE = refused("start", ValueError("data.train is empty: write it."), is_mistake=True)


def report(node: str, *findings: Finding, is_complete: bool = True) -> NodeReport:
    return NodeReport(node=node, findings=list(findings), is_complete=is_complete)


def test_a_table_fits_the_terminal_and_gives_advice_below_what_fails() -> None:
    lines = [part for line in table([GOOD, BAD]) for part in folded(line, 80).split("\n")]
    assert max(map(len, lines)) <= 80
    assert {line[:MARGIN].strip() for line in lines[2:]} == {""}
    assert lines[0].split() == ["GPUs", "ok", "8", "x", "H100"]
    assert lines[-1].strip() == "-> make room"


def test_launchers_find_the_verdict_and_the_sentence_on_lines_of_their_own(tmp_path: Path) -> None:
    for findings, verdict, sentence in (
        ([GOOD], "ok", ""),
        ([GOOD, failure("clocks", 'no "time"', "look")], "failure", 'clocks: no \\"time\\": look'),
        ([BAD, MISTAKE], "mistake", "start: data.train is empty: write it."),
    ):
        write_report(tmp_path, report("x", *findings))
        lines = (tmp_path / "x.json").read_text().splitlines()
        assert f' "verdict": "{verdict}",' in lines
        assert f' "sentence": "{sentence}",' in lines
        json.loads("\n".join(lines))


def test_reports_are_read_back_and_a_node_that_does_not_answer_is_named(tmp_path: Path) -> None:
    written = report("a", GOOD, BAD)
    write_report(tmp_path, written)
    assert read_report(tmp_path, "a") == written
    write_report(tmp_path, report("b", GOOD, is_complete=False))
    found = wait_for_reports(tmp_path, ["a", "b", "c"], timeout_s=0.0, complete=True)
    assert [node for node, item in found.items() if item is None] == ["b", "c"]
    assert "c: did not answer" in nodes_table(found)
    found = wait_for_reports(tmp_path, ["a", "b"], timeout_s=0.0, complete=False)
    assert None not in found.values()


def test_other_nodes_are_shown_by_what_they_have_of_their_own() -> None:
    common = warning("processes", "few", "more")
    reports = {"a": report("a", GOOD, common), "b": report("b", GOOD, common), "c": report("c", common, BAD)}
    lines = nodes_table(reports)
    assert "b: the same" in lines
    assert lines.index("c:") > lines.index("b: the same")
    assert sum(line.startswith("processes") for line in lines) == 1
    assert any(line.startswith("run folder") for line in lines)
    assert nodes_table({"a": None}) == ["a: did not answer"]


def test_the_last_line_counts() -> None:
    skipped = not_applicable("start", "no model")
    assert summary([GOOD]) == "Every check is fine."
    assert summary([skipped, GOOD]) == "Every check is fine; not checked: start."
    found = summary([BAD, BAD, warning("x", "y", "z")])
    assert found == "2 failures and 1 warning; every other check is fine."
