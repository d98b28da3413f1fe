"""The markers of a stage that is done or has failed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_prorl.run_folder.markers import done_marker, is_done, mark_done, mark_failed, why_failed


def test_a_stage_is_done_when_it_says_so(tmp_path: Path) -> None:
    assert not is_done(tmp_path, "a")
    mark_done(tmp_path, "a", outcome="saturated", checkpoint="step-00000007-a")
    assert is_done(tmp_path, "a")
    assert not is_done(tmp_path, "b")
    assert json.loads(done_marker(tmp_path, "a").read_text()) == {
        "outcome": "saturated",
        "checkpoint": "step-00000007-a",
    }
    assert [path.name for path in (tmp_path / "stages").iterdir()] == ["a.done"]


def test_a_failed_stage_says_why(tmp_path: Path) -> None:
    assert why_failed(tmp_path, "a") == ""
    mark_failed(tmp_path, "a", reason="Update 7 has loss nan.")
    assert why_failed(tmp_path, "a") == "Update 7 has loss nan."
    assert [path.name for path in (tmp_path / "stages").iterdir()] == ["a.failed"]


@pytest.mark.parametrize("text", ["", "\0\0", "[1]", "{}"])
def test_a_damaged_marker_of_failure_is_one_still(tmp_path: Path, text: str) -> None:
    mark_failed(tmp_path, "a", reason="Update 7 has loss nan.")
    (tmp_path / "stages" / "a.failed").write_text(text)
    assert why_failed(tmp_path, "a").endswith("a.failed does not say why")
