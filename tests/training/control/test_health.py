"""What is said of a run that gains nothing, solves fewer problems or drifts, how seldom of one that does not, and when
the log gets it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nemo_prorl.report.health import checks_of
from nemo_prorl.run_folder.run import read_run
from nemo_prorl.training.control.health import CALM, PATIENCE, Alarms, PassAt, best_is_recent, keeps_solving
from nemo_prorl.training.control.series import Validation, slope_in_errors
from tests.report.made_up_runs import made_up_records, write_run
from tests.training.conftest import MIXED, WRONG, make_prompt
from tests.training.scripted_run import Run

STEPS = tuple(range(0, 1001, 50))


@pytest.mark.parametrize(
    ("means", "is_recent"),
    [
        pytest.param((0.3, 0.5, 0.6, 0.7), True, id="it rises"),
        pytest.param((0.3, 0.7, 0.6, 0.6), True, id="two since"),
        pytest.param((0.3, 0.7, 0.6, 0.6, 0.6), False, id="three since"),
        pytest.param((0.3, 0.4, 0.5, 0.6, 0.7, 0.6, 0.6, 0.6), True, id="more of the run led to it"),
        pytest.param((0.7, 0.6, 0.6, 0.6), False, id="it was best before it began"),
        pytest.param((0.3, 0.7, 0.6, 0.6, 0.7), True, id="as good again"),
        pytest.param((0.5,), True, id="the first"),
    ],
)
def test_the_best_validation_is_recent(means: tuple[float, ...], is_recent: bool) -> None:
    validations = [Validation(10 * place, mean, 0.0002) for place, mean in enumerate(means)]
    is_fine, text = best_is_recent(validations)
    assert is_fine is is_recent
    if means == (0.3, 0.7, 0.6, 0.6, 0.6):
        assert "was measured at step 10 of 40. None of the 3 validations since was better" in text
        assert "the last has 0.600, 5.0 standard errors less" in text


def simulated(
    rng: np.random.Generator, gain: float, *, sharpens: bool = False, num_prompts: int = 400
) -> tuple[list[Validation], list[PassAt]]:
    """Returns a run of 4 rollouts each whose mean reward rises by `gain`. If it sharpens, prompts that it solved in at
    least 3 of 10 rollouts come to be solved in all, and the others in none."""
    chances, means, solved = rng.beta(0.5, 1.0, num_prompts), [], []
    for step in STEPS:
        share = step / STEPS[-1]
        now = np.clip(chances + gain * share, 0, 1)
        if sharpens:
            now = (1 - share) * now + share * (chances > 0.3)
        right = rng.binomial(4, now)
        means.append(Validation(step, float(right.mean()) / 4, 0.0))
        solved.append(PassAt(step, 4, float((right > 0).mean()), num_prompts))
    return means, solved


def test_a_run_that_gains_a_little_has_its_best_at_the_end_and_solves_no_less() -> None:
    rng = np.random.default_rng(0)
    for means, solved in [simulated(rng, gain=0.05) for _ in range(40)]:
        assert best_is_recent(means)[0]
        assert (keeps_solving(solved, 0.0) or (False, ""))[0]


def test_a_run_that_stands_still_never_seems_to_solve_less_at_any_of_its_validations() -> None:
    rng, alarms = np.random.default_rng(1), 0
    for _ in range(100):
        _, run = simulated(rng, gain=0.0, num_prompts=100)
        judged = [keeps_solving(run[:end], 0.0) for end in range(len(run) + 1)]
        assert judged[:4] == [None] * 4
        alarms += any(one is not None and not one[0] for one in judged)
    assert alarms <= 2


def test_a_run_that_loses_problems_is_found_although_its_mean_rises() -> None:
    rng = np.random.default_rng(2)
    runs = [simulated(rng, 0.0, sharpens=True) for _ in range(20)]
    assert sum(not (keeps_solving(solved, -0.81) or (True, ""))[0] for _, solved in runs) >= 19
    assert all(means[-1].reward > means[0].reward + 0.05 for means, _ in runs)
    _, text = keeps_solving(runs[0][1], -0.81) or (True, "")
    assert "while the entropy fell by 81%" in text
    assert "entropy fell" not in (keeps_solving(runs[0][1], -0.2) or (True, ""))[1]


def test_a_run_that_rose_before_it_lost_problems_is_found() -> None:
    values = [*np.linspace(0.5, 0.9, 10), *np.linspace(0.9, 0.7, 10)]
    run = [PassAt(10 * place, 16, value, 500) for place, value in enumerate(values)]
    assert slope_in_errors([(one.step, one.share) for one in run], 500) > 0
    is_fine, text = keeps_solving(run, 0.0) or (True, "")
    assert not is_fine
    assert "from 0.900 at step 100 to 0.700" in text


def test_three_validations_of_this_k_cannot_be_judged() -> None:
    run = [PassAt(step, 16 if step > 20 else 8, 0.9 - step / 100, 500) for step in range(0, 60, 10)]
    assert keeps_solving(run, 0.0) is None


# Alarms

CLIPS = {"objective/clip_high_fraction": 0.3}
Records = list[dict[str, Any]]


def new_alarms() -> Alarms:
    return Alarms("run1", {"validation.interval": 20, "sampler.temperature": 1.2})


def records(num_steps: int = 120, **bad: tuple[int, int]) -> Records:
    """A healthy run of one stage; `bad`: (first, last) step in which it clips too much."""
    made = made_up_records(["run1"], num_steps, 0, 20)
    first, last = bad.get("clips", (0, -1))
    return [record | CLIPS if first <= record["step"] <= last else record for record in made]


def said(alarms: Alarms, given: Iterable[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(int(record["step"]), line) for record in given for line in alarms.observe(record)]


def test_a_healthy_run_says_nothing() -> None:
    assert said(new_alarms(), records(300)) == []


def test_an_alarm_is_said_once_and_its_end_once() -> None:
    (begin, alarm), (end, passed) = said(new_alarms(), records(clips=(31, 60)))
    assert 31 < begin < 50
    assert alarm.startswith(f"alarm after step {begin}: Clipping: 1")
    assert "of the recent tokens are clipped: the updates of a step are too large" in alarm
    assert 60 < end < 60 + 2 * CALM
    assert passed.startswith(f"passed after step {end}: Clipping: ")


def test_a_first_step_that_is_an_exception_is_no_alarm() -> None:
    first, *others = [record for record in records(40) if "reward/mean" in record]
    spike = first | {"objective/clip_high_fraction": 0.15}
    alarms = new_alarms()
    assert said(alarms, [records()[0], spike]) == []
    assert alarms._num_bad["Clipping"] == 1 < PATIENCE
    assert said(alarms, others) == []


def test_noise_is_said_after_the_first_step() -> None:
    noise = [record | {"objective/entropy": 5.5, "reward/pass_rate": 0.04} for record in records(10)]
    ((step, line),) = said(new_alarms(), noise)
    assert step == 1
    assert line.startswith(
        "alarm after step 1: Temperature: Rollouts have 5.5 nats of entropy a token at temperature 1.2, and"
    )
    assert "4% are right" in line
    assert line.endswith("Lower sampler.temperature, such as to 0.8.")


def test_a_value_that_wavers_about_its_threshold_is_one_alarm() -> None:
    made = [
        record | {"dynamic_sampling/informative_share": 0.2 if record["step"] % 8 < 5 else 0.33}
        for record in records(400)
    ]
    lines = said(new_alarms(), made)
    assert [line.split(":")[1] for _, line in lines] == [" Yield of dynamic sampling"]


@pytest.mark.medium
@pytest.mark.parametrize("resumed_at", [1, 20, 33, 34, 35, 45, 61, 75, 99, 119])
def test_a_resumed_run_says_what_an_uninterrupted_one_says(resumed_at: int) -> None:
    made = records(clips=(31, 60))
    whole = said(new_alarms(), made)
    alarms = new_alarms()
    before = said(alarms, made[:resumed_at])
    alarms = new_alarms()
    said(alarms, made[:resumed_at])  # what Telemetry reads from the file when a run goes on
    assert before + said(alarms, made[resumed_at:]) == whole


def test_the_report_agrees_with_what_was_said(tmp_path: Path) -> None:
    """The same functions judge the same records: what stands in the log stands on the page."""
    write_run(tmp_path / "run", num_stages=1, is_done=False)
    path = tmp_path / "run" / "metrics.jsonl"
    made = [json.loads(line) | CLIPS for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(record) + "\n" for record in made))
    warned = [check for check in checks_of(read_run(tmp_path / "run")) if not check.is_fine]
    alarms = new_alarms()
    lines = [line for _, line in said(alarms, made)]
    assert [line.split(": ")[1] for line in lines] == [check.title for check in warned] == ["Clipping"]


def test_a_record_that_cannot_be_judged_stops_nothing() -> None:
    alarms = new_alarms()
    (line,) = alarms.observe({"step": 3, "reward/mean": 0.5})
    assert line.startswith("the checks cannot judge the record of step 3 (KeyError: 'stage')")
    assert said(alarms, records(clips=(1, 60))) == []


@pytest.mark.medium
def test_in_a_run_it_is_in_the_log_and_stays_said_through_a_resume(tmp_path: Path) -> None:
    """The loop, scripted engines, real checkpoints: most prompts are all wrong, so most of the sampling is wasted."""
    prompts = [make_prompt(f"p{index}", MIXED if index % 8 == 0 else WRONG) for index in range(2000)]
    run = Run(tmp_path, prompts=prompts, num_steps=8, every=4, max_rounds=100)
    run.fit()
    assert alarms_in(tmp_path) == ["Yield of dynamic sampling"]
    resumed = run.resume(num_steps=14)
    assert resumed.state.step == 8
    resumed.fit()
    assert [record["step"] for record in run.records if "reward/mean" in record] == [*range(1, 15)]
    assert alarms_in(tmp_path) == ["Yield of dynamic sampling"], "once, not again by the next process"


def alarms_in(folder: Path) -> list[str]:
    lines = (folder / "run.log").read_text().splitlines()
    return [line.split(": ")[1] for line in lines if " alarm after step " in line]
