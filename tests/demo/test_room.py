"""Where a demo's files go when the folder is not empty."""

from __future__ import annotations

from pathlib import Path

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
