"""Tests that the demo's picture can be drawn, also of a run that has hardly begun."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.demo import picture
from tests.demo.test_levels import SAMPLES, a_summary

VALIDATED = {"validation/pass_at_1": 0.25}
TWO_STAGES: list[dict[str, Any]] = [
    {"step": 0, "stage": "demo1", **VALIDATED},
    {"step": 1, "stage": "demo1", "reward/pass_rate": 0.25, **VALIDATED},
    {"step": 1, "stage": "demo2", **VALIDATED},
    {"step": 2, "stage": "demo2", "reward/pass_rate": 0.5, **VALIDATED},
]


@pytest.mark.medium
@pytest.mark.parametrize("records", [TWO_STAGES, [{"step": 1, "stage": "demo1", "reward/pass_rate": 0.5}]])
def test_the_picture_is_a_png_of_twice_the_width_of_a_page(
    tmp_path: Path, records: list[dict[str, Any]]
) -> None:
    picture.draw(tmp_path / "demo.png", records, a_summary()["levels"], k=SAMPLES)
    header = (tmp_path / "demo.png").read_bytes()[:24]
    assert header.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", header[16:24])[0] == 2 * 830
