"""Tests of where a demo writes if its folder is not empty, and of what it says and sums up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.demo import language, puzzles, run
from nemo_prorl.demo.run import _make_room


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


def step(number: int, num_resets: int = 0, **more: float) -> dict[str, Any]:
    return {
        "step": number,
        "num_resets": num_resets,
        "reward/mean": 0.1 * number,
        "sampler/logprob_abs_diff_max": 1e-5 * number,
        "throughput/num_tokens": 100 * number,
        "time/step_s": 2.0,
        **more,
    }


def test_a_summary_of_the_run_is_first_against_last_and_what_lay_between() -> None:
    score = "validation/score"
    records = [
        {"step": 0, "num_resets": 0, score: 0.2},
        step(1),
        step(2, **{score: 0.3}),
        {"step": 2, "num_resets": 1, score: 0.31},
        step(3, 1, **{score: 0.7}),
    ]
    assert run.summarise_run(records) == {
        "score_before": 0.2,
        "score_after": 0.7,
        "num_steps": 3,
        "num_resets": 1,
        "sampler_logprob_max_abs_diff": pytest.approx(3e-5),
        "tokens_per_s": 600 / 6,
    }


@pytest.mark.parametrize("smoke", [False, True])
def test_the_plans_say_how_long_it_takes_at_80_columns(smoke: bool) -> None:
    for plan in (puzzles.plan(smoke=smoke), language.plan(smoke=smoke, num_steps=100)):
        lines = plan.splitlines()
        assert any("minutes" in line for line in lines)
        assert max(map(len, lines)) <= 80
