"""Tests of where a demo writes if its folder is not empty."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from nemo_prorl.demo import _make_room


def test_an_interrupted_demo_goes_on_and_any_other_is_put_aside(tmp_path: Path) -> None:
    out, kind = tmp_path / "demo", {"seed": 1, "smoke": False}
    _make_room(out, kind)
    (out / "metrics.jsonl").write_text("begun")
    _make_room(out, kind)
    assert (out / "metrics.jsonl").exists(), "the same demo again: it continues"
    _make_room(out, kind | {"seed": 2})
    assert not (out / "metrics.jsonl").exists()
    assert (tmp_path / "demo.1" / "metrics.jsonl").read_text() == "begun"
    (out / "summary.json").write_text("{}")
    _make_room(out, kind | {"seed": 2})
    assert (tmp_path / "demo.2" / "summary.json").exists(), "a finished demo is kept"


def test_a_full_disk_leaves_no_half_record_on_which_the_next_demo_would_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: Path, text: str, encoding: str) -> None:
        file.touch()  # as much as there was room for
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(Path, "write_text", fail)
        with pytest.raises(OSError, match="No space left"):
            _make_room(tmp_path / "demo", {"seed": 1})
    assert list((tmp_path / "demo").iterdir()) == []
    _make_room(tmp_path / "demo", {"seed": 1})
