"""What is said of a run that gains nothing, solves fewer problems or drifts, how seldom of one that does not, and when
the log gets it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from nemo_prorl.report.health import checks_of
from nemo_prorl.run_folder.run import read_run
from nemo_prorl.run_folder.storage import step_files
from nemo_prorl.training.control.health import (
    CALM,
    PATIENCE,
    Alarms,
    Followed,
    PassAt,
    best_is_recent,
    keeps_solving,
)
from nemo_prorl.training.control.series import Validation, chance_of_loss, slope_in_errors
from tests.report.made_up_runs import made_up_records, write_run
from tests.training.conftest import MIXED, WRONG, make_prompt
from tests.training.scripted_run import Run

STEPS = tuple(range(0, 1001, 50))
SAME, NARROWER = (0.29, 0.29), (0.29, 0.04)
"""Entropies at first and now."""


@pytest.mark.parametrize(
    ("means", "is_recent"),
    [
        pytest.param((0.3, 0.5, 0.6, 0.7), True, id="it rises"),
        pytest.param((0.3, 0.7, 0.6, 0.6), True, id="two since"),
        pytest.param((0.3, 0.7, 0.6, 0.6, 0.6), False, id="three since"),
        pytest.param((0.3, 0.4, 0.5, 0.6, 0.7, 0.6, 0.6, 0.6), True, id="more of the run led to it"),
        pytest.param((0.7, 0.6, 0.6, 0.6), False, id="it was best before it began"),
        pytest.param((0.3, 0.7, 0.6, 0.6, 0.7), False, id="as good again"),
        pytest.param((0.109,) * 11, False, id="always the same"),
        pytest.param((0.5,), True, id="the first"),
    ],
)
def test_the_best_validation_is_recent(means: tuple[float, ...], is_recent: bool) -> None:
    validations = [Validation(10 * place, mean, 0.0002, 0.5) for place, mean in enumerate(means)]
    is_fine, text = best_is_recent(validations)
    assert is_fine is is_recent
    if means == (0.3, 0.7, 0.6, 0.6, 0.6):
        assert "was measured at step 10 of 40. None of the 3 validations since was better" in text
        assert "the last has 0.600, 5.0 standard errors less" in text
    if means == (0.109,) * 11:
        assert "0.109, was measured at step 0 of 100" in text


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
        means.append(Validation(step, float(right.mean()) / 4, 0.0, 0.5))
        solved.append(PassAt(step, 4, float((right > 0).mean()), num_prompts))
    return means, solved


def test_a_run_that_gains_a_little_has_its_best_at_the_end_and_solves_no_less() -> None:
    rng = np.random.default_rng(0)
    for means, solved in [simulated(rng, gain=0.05) for _ in range(40)]:
        assert best_is_recent(means)[0]
        assert (keeps_solving(solved, SAME) or (False, ""))[0]


def test_a_run_that_stands_still_never_seems_to_solve_less_at_any_of_its_validations() -> None:
    rng, alarms = np.random.default_rng(1), 0
    for _ in range(100):
        _, run = simulated(rng, gain=0.0, num_prompts=100)
        alarms += any(not (keeps_solving(run[:end], SAME) or (True, ""))[0] for end in range(1, len(run) + 1))
    assert alarms <= 2


def test_a_run_that_loses_problems_is_found_although_its_mean_rises() -> None:
    rng = np.random.default_rng(2)
    runs = [simulated(rng, 0.0, sharpens=True) for _ in range(20)]
    assert sum(not (keeps_solving(solved, NARROWER) or (True, ""))[0] for _, solved in runs) >= 19
    assert all(means[-1].reward > means[0].reward + 0.05 for means, _ in runs)
    _, text = keeps_solving(runs[0][1], NARROWER) or (True, "")
    assert text.startswith("The policy is collapsing (entropy 0.29 -> 0.04, pass@4 0.")
    assert "collapsing" not in (keeps_solving(runs[0][1], (0.29, 0.2)) or (True, ""))[1]


def test_a_run_that_rose_before_it_lost_problems_is_found() -> None:
    values = [*np.linspace(0.5, 0.9, 10), *np.linspace(0.9, 0.7, 10)]
    run = [PassAt(10 * place, 16, value, 500) for place, value in enumerate(values)]
    assert slope_in_errors([(one.step, one.share) for one in run], 500) > 0
    is_fine, text = keeps_solving(run, SAME) or (True, "")
    assert not is_fine
    assert "from 0.900 at step 100 to 0.700" in text


def test_three_validations_of_this_k_have_no_slope_and_one_says_nothing() -> None:
    run = [PassAt(step, 16 if step > 20 else 8, 0.9 - step / 100, 500) for step in range(0, 60, 10)]
    assert keeps_solving(run, SAME) == (True, "pass@16 is 0.400, and was 0.600 at step 30.")
    assert keeps_solving(run[:4], SAME) is None


@pytest.mark.parametrize(
    ("changed", "num_validations", "entropies", "collapses"),
    [
        pytest.param((6, 0), 5, NARROWER, True, id="6 of 16 lost"),
        pytest.param((6, 0), 9, NARROWER, False, id="one of so many comparisons is like that by chance"),
        pytest.param((6, 2), 5, NARROWER, False, id="two were gained"),
        pytest.param((0, 6), 5, NARROWER, False, id="the demo: entropy falls, and more is solved"),
        pytest.param((6, 0), 5, (0.29, 0.15), False, id="the entropy has not halved"),
        pytest.param((0, 0), 5, NARROWER, False, id="nothing changed, or no files"),
    ],
)
def test_a_small_run_that_loses_the_same_prompts_is_collapsing(
    changed: tuple[int, int], num_validations: int, entropies: tuple[float, float], collapses: bool
) -> None:
    shares = [1.0, *[0.8] * (num_validations - 2), 0.625]
    run = [PassAt(20 * place, 4, share, 16) for place, share in enumerate(shares)]
    assert (keeps_solving(run, entropies) or (False, ""))[0], "its slope does not tell"
    is_fine, text = keeps_solving(run, entropies, changed) or (True, "")
    assert is_fine is not collapses
    if collapses:
        assert text == (
            "The policy is collapsing (entropy 0.29 -> 0.04, pass@4 1.000 -> 0.625 since step 0): lower "
            "trainer.learning_rate or raise algorithm.kl_beta."
        )


def test_the_chance_of_a_loss_is_the_share_of_all_outcomes_that_lose_as_many() -> None:
    for lost, gained in [(6, 0), (8, 1), (3, 3), (0, 4), (0, 0)]:
        outcomes = list(product((0, 1), repeat=lost + gained))
        assert chance_of_loss(lost, gained) == fmean(sum(one) >= lost for one in outcomes)
    assert 0.4 < chance_of_loss(5000, 5000) < 0.6


def test_a_run_that_stands_still_seldom_seems_to_collapse_at_any_of_its_validations() -> None:
    rng, alarms = np.random.default_rng(3), 0
    for _ in range(200):
        chances = rng.beta(0.5, 1.0, 64)
        solved = rng.binomial(4, chances, (21, 64)) > 0
        run = [PassAt(step, 4, one.mean(), 64) for step, one in enumerate(solved)]
        changes = [(int((solved[0] & ~one).sum()), int((~solved[0] & one).sum())) for one in solved]
        judged = [keeps_solving(run[: end + 1], NARROWER, changes[end]) for end in range(1, 21)]
        alarms += any(one is not None and not one[0] for one in judged)
    assert alarms <= 24


@pytest.mark.parametrize(("solved", "is_fine"), [((10, 0), False), ((16, 0), True), ((10, 6), True)])
def test_the_prompts_of_the_first_and_the_newest_validation_are_compared(
    tmp_path: Path, solved: tuple[int, int], is_fine: bool
) -> None:
    """Of 22 held-out prompts the first validation solves 16; the newest solves `solved` of these and of the others."""
    made, newest = records(40), [True] * solved[0] + [False] * (16 - solved[0]) + [True] * solved[1]
    first = [True] * 16 + [False] * 6
    shares = {0: first, 20: first, 40: [*newest, *[False] * (22 - len(newest))]}
    for step, results in shares.items():
        path = step_files(tmp_path, "validations").path(step, "run1")
        path.parent.mkdir(exist_ok=True)
        table = {"uid": [f"p{index}" for index in range(22)], "pass_rate": [right / 4 for right in results]}
        parquet.write_table(pyarrow.table(table), path)
    followed = Followed("run1", {}, tmp_path)
    for record in made:
        entropy = {"objective/entropy": 0.29 if record["step"] < 10 else 0.04} if record["step"] else {}
        held_out = {}
        if record["step"] in shares:
            share = sum(shares[record["step"]]) / 22
            held_out = {"validation/pass_at_4": share, "validation/num_prompts": 22.0}
        kept = {key: value for key, value in record.items() if not key.startswith("validation/pass_at_")}
        followed.observe(kept | entropy | held_out)
    (check,) = [check for check in followed.checks() if check.title == "Pass@k"]
    assert check.is_fine is is_fine, check.text


# Movement

Steps = tuple[tuple[float, ...], float, tuple[float, ...]]
RECORDED: dict[str, Steps] = {
    "demo 2e-6": (
        (9e-7, 8.6e-6, 4.4e-5, 4.3e-5, 6.8e-5, 9.7e-5, 1.5e-4, 1.6e-4, 2.6e-4, 3.1e-4, 3.5e-4, 3.5e-4), 15.7,
        (1.012, 1.012, 1.04, 1.01, 1.013, 1.009, 1.012, 1.003, 1.008, 1.01, 1.01, 1.006),
    ),
    "stories 2e-6": (
        (7.2e-8, 6.3e-7, 1.6e-6, 2.7e-6, 3.6e-6, 5e-6, 5.5e-6, 7.8e-6, 8.4e-6, 9.9e-6, 1e-5, 1.2e-5), 81.1,
        (1.003, 1.003, 1.002, 1.002, 1.001, 1.002, 1.001, 1.001, 1.001, 1.002, 1.001, 1.001),
    ),
    "stories 1e-4": (
        (1.8e-4, 0.0016, 0.0031, 0.0058, 0.008, 0.0095, 0.011, 0.015, 0.018, 0.022, 0.024, 0.029), 82.9,
        (1.136, 1.139, 1.064, 1.066, 1.096, 1.051, 1.047, 1.08, 1.068, 1.076, 1.053, 1.053),
    ),
    "demo 5e-5": (
        (3.9e-4, 0.0014, 0.0033, 0.0043, 0.012, 0.0027, 0.022, 0.022, 0.011, 0.021, 0.017, 0.016), 17.1,
        (1.359, 1.108, 1.286, 1.028, 1.048, 1.012, 1.039, 1.021, 1.027, 1.082, 1.013, 1.014),
    ),
    "demo 1e-4": (
        (0.0023, 0.0081, 0.026, 0.025, 0.04, 0.055, 0.085, 0.095, 0.12, 0.089, 0.12, 0.096), 21.9,
        (1.628, 2.454, 1.343, 1.718, 1.694, 1.623, 1.581, 1.52, 1.787, 1.568, 1.269, 2.468),
    ),
    "SmolLM2 2e-5": (
        (0.0015, 0.011, 0.033, 0.053, 0.085, 0.12, 0.15, 0.19, 0.18, 0.23), 26.2,
        (1.872, 1.787, 1.533, 2.063, 1.487, 1.58, 1.751, 1.475, 1.652, 1.559),
    ),
    "stories 2e-6, later": ((2.1e-4,) * 60, 81.1, (1.002,) * 60),
    # One update a step, so that the ratio is 1 throughout.
    "1.5B 1e-6, on policy": ((1e-5, *[1e-4] * 11), 900.0, (1.0,) * 12),
    "held by its KL penalty": ((1e-5,) * 12, 100.0, (1.0, 1.3) * 6),
}  # fmt: skip
"""Policy and rate -> KL to the reference of the run's first steps, mean tokens of a response, largest ratios; the last
three are made up."""


def moved(steps: Steps, **more: Any) -> Records:
    kl, tokens, ratios = steps
    begin, *made = records(len(kl))
    return [begin] + [
        record
        | {"objective/kl_to_reference": of_step, "response/tokens_mean": tokens, "objective/ratio_max": ratio}
        | more
        for record, of_step, ratio in zip(made, kl, ratios, strict=True)
    ]


@pytest.mark.parametrize("name", RECORDED)
def test_a_policy_that_hardly_moves_is_said_after_ten_steps_and_no_other(name: str) -> None:
    lines = said(new_alarms(), moved(RECORDED[name]))
    hardly_moves = {
        "demo 2e-6": "largest ratio 1.04, KL 0.0003",
        "stories 2e-6": "largest ratio 1, KL 1e-05",
        "stories 2e-6, later": "largest ratio 1, KL 0.0002",
    }
    expected = []
    if seen := hardly_moves.get(name):
        step = 18 if "later" in name else 10  # 81.1 x 2.1e-4 = 0.017
        text = f"The policy has hardly moved ({seen} after {step} steps): raise trainer.learning_rate."
        expected = [(step, f"alarm after step {step}: Movement: {text}")]
    assert lines == expected


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"optimizer/learning_rate": 4e-7}, id="warm-up"),
        pytest.param({"objective/kl_to_reference": None}, id="the KL is not measured"),
    ],
)
def test_what_cannot_be_judged_is_no_lack_of_movement(more: dict[str, Any]) -> None:
    made = [
        {key: value for key, value in record.items() if value is not None}
        for record in moved(RECORDED["demo 2e-6"], **more)
    ]
    assert said(new_alarms(), made) == []


def test_a_policy_that_moves_at_last_is_said_once_more() -> None:
    slow = moved(RECORDED["demo 2e-6"])
    (_, alarm), (end, passed) = said(new_alarms(), [*slow, *records(60)[len(slow) :]])
    assert alarm.startswith("alarm after step 10: Movement: The policy has hardly moved")
    assert end == 12 + CALM
    assert passed.startswith(f"passed after step {end}: Movement: The policy moves: largest ratio 2, KL 0.")


def test_nothing_is_said_of_what_a_policy_gains_that_has_not_moved() -> None:
    """Its best validation is noise, and nothing can be taken back or reset."""
    followed = Followed("run1", {"validation.interval": 20}, Path("no such folder"))
    still = {"objective/kl_to_reference": 5e-6, "response/tokens_mean": 20.0, "objective/ratio_max": 1.01}
    for record in records(400):
        held_out = {"validation/domain_mean_score": 0.109} if "validation/score" in record else {}
        followed.observe(record | held_out | (still if record["step"] else {}))
    judged = {check.title: check for check in followed.checks()}
    assert not {"Best validation", "Pass@k"} & judged.keys()
    assert [check.title for check in judged.values() if not check.is_fine] == ["Movement"]
    assert not any("reset" in check.text for check in judged.values())


def test_the_first_warning_of_a_rate_that_is_too_high_names_it() -> None:
    """The demo's policy at 5e-3: after one step it solves nothing."""
    broken = {
        "objective/approx_kl_to_old": 2.06, "objective/kl_to_reference": 3.2, "objective/ratio_max": 243.0,
        "objective/clip_low_fraction": 0.17, "objective/entropy": 0.41,
    }  # fmt: skip
    begin, *others = records(2)
    first, second = (record | broken for record in others)
    alarms = new_alarms()
    assert said(alarms, [begin, first]) == [
        (
            1,
            "alarm after step 1: Step size: A step moves the policy by a KL of up to 2.1 nats a token: too far. Lower "
            "trainer.learning_rate.",
        )
    ]
    ((_, noise),) = said(alarms, [second | {"objective/entropy": 12.0}])
    assert noise.endswith("and had 0.41 at first: the policy turns into noise. Lower trainer.learning_rate.")


# Alarms

WASTES = {"dynamic_sampling/informative_share": 0.0}
Records = list[dict[str, Any]]


def new_alarms() -> Alarms:
    options = {"validation.interval": 20, "sampler.temperature": 1.2, "trainer.learning_rate": 2e-6}
    return Alarms("run1", options, Path("no such folder"))


def records(num_steps: int = 120, **bad: tuple[int, int]) -> Records:
    """A healthy run of one stage; `bad`: (first, last) step in which no prompt is informative."""
    made = made_up_records(["run1"], num_steps, 0, 20)
    first, last = bad.get("wastes", (0, -1))
    return [record | WASTES if first <= record["step"] <= last else record for record in made]


def said(alarms: Alarms, given: Iterable[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(int(record["step"]), line) for record in given for line in alarms.observe(record)]


def test_a_healthy_run_says_nothing() -> None:
    assert said(new_alarms(), records(300)) == []


def test_an_alarm_is_said_once_and_its_end_once() -> None:
    (begin, alarm), (end, passed) = said(new_alarms(), records(wastes=(31, 60)))
    assert 31 < begin < 50
    assert alarm.startswith(f"alarm after step {begin}: Yield of dynamic sampling: 1")
    assert "of the recent prompts are informative: most of the sampling is wasted" in alarm
    assert 60 < end < 60 + 2 * CALM
    assert passed.startswith(f"passed after step {end}: Yield of dynamic sampling: ")


def test_a_first_step_that_is_an_exception_is_no_alarm() -> None:
    first, *others = [record for record in records(40) if "reward/mean" in record]
    spike = first | {"dynamic_sampling/informative_share": 0.2}
    alarms = new_alarms()
    assert said(alarms, [records()[0], spike]) == []
    assert alarms._num_bad["Yield of dynamic sampling"] == 1 < PATIENCE
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


def test_responses_that_come_not_to_end_are_said_with_the_option() -> None:
    endless = [
        record | {"response/no_eos_share": 0.05 if record["step"] < 20 else 1.0} for record in records(40)
    ]
    ((step, line),) = said(new_alarms(), endless)
    assert 22 <= step <= 26
    assert (
        "100% of the recent responses do not end by themselves: pay them less (shaping.termination_factor=0)"
        in line
    )


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
    made = records(wastes=(31, 60))
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
    made = [json.loads(line) | WASTES for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(record) + "\n" for record in made))
    warned = [check for check in checks_of(read_run(tmp_path / "run")) if not check.is_fine]
    alarms = new_alarms()
    lines = [line for _, line in said(alarms, made)]
    assert (
        [line.split(": ")[1] for line in lines]
        == [check.title for check in warned]
        == ["Yield of dynamic sampling"]
    )


def test_a_record_that_cannot_be_judged_stops_nothing() -> None:
    alarms = new_alarms()
    (line,) = alarms.observe({"step": 3, "reward/mean": 0.5})
    assert line.startswith("the checks cannot judge the record of step 3 (KeyError: 'stage')")
    assert said(alarms, records(wastes=(1, 60))) == []


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
