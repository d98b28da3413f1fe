"""Tests of the demo's summary and picture, on invented records."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl import demo


def validated(reward: float, pass_at_1: float, pass_at_16: float) -> dict[str, float]:
    return {
        "validation/score": reward,
        "validation/pass_at_1": pass_at_1,
        "validation/pass_at_16": pass_at_16,
    }


def step(number: int, num_resets: int = 0, stage: str = "demo1", **more: float) -> dict[str, Any]:
    return {
        "step": number,
        "stage": stage,
        "num_resets": num_resets,
        "reward/mean": 0.1 * number,
        "reward/math/mean": 0.1,
        "reward/logic/mean": 0.2,
        "objective/kl_to_reference": 0.01 * number,
        "objective/entropy": 0.5,
        "response/tokens_mean": 20.0,
        "response/tokens_p99": 40.0,
        "dynamic_sampling/kept_share": 0.7,
        "sampler/logprob_abs_diff_max": 1e-5 * number,
        "throughput/num_tokens": 100 * number,
        "time/step_s": 2.0,
        **more,
    }


def start(number: int, num_resets: int, stage: str, **more: float) -> dict[str, Any]:
    return {"step": number, "stage": stage, "num_resets": num_resets, **more}


RECORDS = [
    start(0, 0, "demo1", **validated(0.2, 0.1, 0.6)),
    step(1),
    step(2, **validated(0.3, 0.2, 0.7)),
    step(3),
    step(4, **validated(0.4, 0.3, 0.8)),
    start(4, 1, "demo2", **validated(0.41, 0.31, 0.81)),
    step(5, 1, "demo2"),
    step(6, 1, "demo2", **validated(0.7, 0.65, 0.9)),
]


def test_a_summary_is_first_against_last_and_what_lay_between() -> None:
    assert demo.summarise_run(RECORDS) == {
        "score_before": 0.2,
        "score_after": 0.7,
        "pass_at_1_before": 0.1,
        "pass_at_1_after": 0.65,
        "pass_at_16_before": 0.6,
        "pass_at_16_after": 0.9,
        "num_steps": 6,
        "num_resets": 1,
        "sampler_logprob_max_abs_diff": pytest.approx(6e-5),
        "tokens_per_s": 2100 / 12,
    }


@pytest.mark.medium
@pytest.mark.parametrize(
    "records",
    [RECORDS, [step(1)]],
    ids=["two stages", "one step without validation"],
)
def test_the_picture_is_a_png(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    demo.draw_training(tmp_path, "a run")
    header = (tmp_path / "training.png").read_bytes()[:24]
    assert header.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", header[16:24])
    assert width > 1000 < 2 * height
