"""Each watch on small tables: where it fires, where it must not, and compared with independent arithmetic."""

from __future__ import annotations

import json
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_prorl.config import ControllerAction, ControllerConfig, ControllerMode
from nemo_prorl.run_folder.validation_metrics import VALIDATION
from nemo_prorl.training.control.controller import ResetController
from nemo_prorl.training.control.series import STEP_KEYS, History, standard_error
from nemo_prorl.training.control.watches import WATCHES, Watch
from tests.training.control.controller_runs import columns, decisions, only

NAN = float("nan")
FLAT = [0.10, 0.11, 0.10, 0.09, 0.10]
TREND = {"window": 5, "patience": 2, "num_deviations": 3.0}
LEVEL = {"level_steps": 3, "patience": 2}


OF_STEPS = {
    "kl_spike": ("objective__kl_to_reference", "reset", TREND),
    "response_length": ("response__tokens_mean", "end_stage", TREND),
    "no_eos": ("response__no_eos_share", "end_stage", TREND),
    "entropy_collapse": ("objective__entropy", "stop", LEVEL),
    "entropy_runaway": ("objective__entropy", "stop", LEVEL),
}
"""Watch of a metric of every step -> (metric, action, options)."""


@pytest.mark.parametrize(
    ("watch", "values", "fires_at"),
    [
        pytest.param("kl_spike", [*FLAT, 0.30, 0.30], [7], id="two steps at three times the median"),
        pytest.param("kl_spike", [*FLAT, 0.30, 0.10, 0.30], [], id="one odd batch, twice"),
        pytest.param("kl_spike", [*FLAT, 0.19, 0.19], [], id="not twice the median"),
        pytest.param(
            "kl_spike", [0.0, *FLAT, 0.30, 0.30], [8], id="exactly 0 after a reset is no part of the trend"
        ),
        pytest.param("kl_spike", [*FLAT[:4], 0.30, 0.30], [], id="no trend yet"),
        pytest.param("kl_spike", [*FLAT, 0.30, NAN, 0.30], [8], id="NaN neither counts nor breaks the row"),
        pytest.param(
            "kl_spike", [*FLAT, 0.30, 0.30, NAN, None], [7], id="what came before a gap decides once"
        ),
        pytest.param("kl_spike", [None] * 9, [], id="kl_beta=0: nothing measured"),
        pytest.param("kl_spike", [NAN] * 9, [], id="only NaN"),
        pytest.param("kl_spike", [0.0] * 9, [], id="only zero"),
        pytest.param("kl_spike", [-0.1] * 9, [], id="an estimator that is negative"),
        pytest.param("kl_spike", [float("inf")] * 9, [], id="only infinity"),
        pytest.param("kl_spike", [0.01, 0.1, 1.0, 0.1, 0.01, 0.4, 0.4], [], id="a trend that jumps anyway"),
        pytest.param("kl_spike", [1.6**step for step in range(20)], [], id="steady exponential growth"),
        pytest.param("kl_spike", [step**2 for step in range(1, 20)], [], id="steady quadratic growth"),
        pytest.param(
            "kl_spike", [0.1, 0.1, 5.0, 0.1, 0.1, 0.3, 0.3], [7], id="an outlier in the window hides nothing"
        ),
        pytest.param("response_length", [100, 101, 99, 100, 102, 160, 170], [7], id="sudden"),
        pytest.param("response_length", [100, 101, 99, 100, 102, 140, 149], [], id="not half as long again"),
        pytest.param(
            "response_length", [100, 110, 121, 133, 146, 161, 177, 195, 214], [], id="steady growth"
        ),
        pytest.param("response_length", [170, 160, 102, 100, 99, 50, 40], [], id="shorter is no explosion"),
        pytest.param("no_eos", [0.0, 0.0, 0.0, 0.0, 0.0, 0.11, 0.2], [7], id="from none at all"),
        pytest.param("no_eos", [0.0, 0.0, 0.0, 0.0, 0.0, 0.09, 0.1], [], id="fewer than a tenth more"),
        pytest.param("no_eos", [0.5, 0.4, 0.3, 0.4, 0.5, 0.6, 0.6], [], id="within the noise"),
        pytest.param("no_eos", [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3], [], id="fewer and fewer"),
        pytest.param("entropy_collapse", [0.6, 0.5, 0.4, 0.05, 0.05], [5], id="collapse"),
        pytest.param("entropy_collapse", [0.6, 0.5, 0.4, 0.05, 0.06, 0.05], [], id="not in a row"),
        pytest.param("entropy_collapse", [0.6, 0.5, 0.4, NAN, 0.05, NAN, 0.04], [7], id="NaN does not count"),
        pytest.param("entropy_collapse", [0.0, 0.0, 0.0, 0.0, 0.0], [], id="nothing to lose"),
        pytest.param("entropy_collapse", [0.5, 0.04], [], id="the level is not known yet"),
        pytest.param("entropy_runaway", [0.6, 0.5, 0.4, 1.5, 1.6], [5], id="runaway"),
        pytest.param("entropy_runaway", [0.6, 0.5, 0.4, 1.4, 1.6], [], id="not three times"),
        pytest.param("entropy_runaway", [None, None, None, None, None], [], id="not measured"),
    ],
)
def test_watches_of_steps(watch: str, values: list[float | None], fires_at: list[int]) -> None:
    metric, action, options = OF_STEPS[watch]
    made = decisions(columns(**{metric: values}), only(watch, **options))
    assert made == [(step, action, watch) for step in fires_at]


DROP = {"patience": 2, "validation_drop_errors": 3.0}


@pytest.mark.parametrize(
    ("rewards", "num_rollouts", "fires_at"),
    [
        pytest.param([0.5, 0.4, 0.4], 1000, [3], id="lost a fifth"),
        pytest.param([0.5, 0.4, 0.5, 0.4, 0.5], 1000, [], id="never twice in a row"),
        pytest.param([0.5, 0.46, 0.46], 100_000, [], id="less than the margin"),
        pytest.param([0.5, 0.4, 0.4], 100, [], id="within three standard errors, 0.21"),
        pytest.param([0.5, 0.25, 0.25], 100, [3], id="beyond them"),
        pytest.param([0.5, 0.4, 0.4], None, [3], id="an unknown number of rollouts: the margin alone"),
        pytest.param([1.0, 0.98, 0.98], 100_000, [3], id="all right before"),
        pytest.param([0.3, 0.5, 0.45, 0.44, 0.43], 100_000, [5], id="a slow decline adds up"),
        pytest.param([0.0, 0.0, 0.0, 0.0], 100, [], id="nothing to lose"),
        pytest.param([0.5, NAN, 0.4, None, 0.4], 1000, [5], id="gaps do not count"),
        pytest.param([NAN, NAN, NAN], 1000, [], id="only NaN"),
    ],
)
def test_validation_drop(
    rewards: list[float | None], num_rollouts: float | None, fires_at: list[int]
) -> None:
    counts = [num_rollouts] * len(rewards)
    records = columns(validation__math__score=rewards, validation__math__num_rollouts=counts)
    made = decisions(records, only("validation_drop", **DROP))
    assert made == [(step, "reset", "validation_drop") for step in fires_at]


def test_without_recorded_deviations_scores_count_as_0_and_1() -> None:
    for lower in (0.46, 0.4):
        rewards = [0.5, lower, lower]
        records = columns(validation__math__score=rewards, validation__domain_mean_score=rewards)
        without = [{key: one[key] for key in one if not key.endswith("_std")} for one in records]
        config = only("validation_drop", **DROP)
        assert decisions(without, config) == decisions(records, config), lower


def test_the_domain_that_lost_the_most_standard_deviations_is_named() -> None:
    records = columns(
        validation__math__score=[0.8, 0.6, 0.6],
        validation__code__score=[20.0, 10.0, 10.0],
        validation__code__score_std=[20.0, 20.0, 15.0],
        validation__stem__score=[0.5, 0.5, 0.5],
        validation__domain_mean_score=[0.53, 0.43, 0.43],
    )
    controller = ResetController(only("validation_drop", **DROP))
    decision = [controller.observe(record) for record in records][-1]
    assert decision is not None
    assert decision.reason == (
        "validation/code/score 10.000 is 10.000 below its best, 20.000 at step 1; below 18.000 for 2 validations."
    )
    assert decision.numbers == {
        "value": 10.0,
        "best": 20.0,
        "best_step": 1.0,
        "limit": pytest.approx(18.0),
        "standard_error": 0.0,
    }


@pytest.mark.parametrize(
    ("rewards", "fires_at"),
    [
        pytest.param([0.30, 0.30, 0.30, 0.30], [4], id="flat: the first is the best"),
        pytest.param([0.30, 0.305, 0.309, 0.309], [4], id="less than min_delta altogether"),
        pytest.param([0.30, 0.305, 0.312, 0.31, 0.31], [], id="small steps add up"),
        pytest.param([0.30, 0.40, 0.39, 0.38, 0.37], [5], id="worse is a plateau, too"),
        pytest.param([0.30, 0.30, 0.30, 0.40, 0.40], [], id="just in time"),
        pytest.param([0.30, NAN, 0.30, None, 0.30, 0.30], [6], id="gaps do not count"),
        pytest.param([None] * 6, [], id="no validation at all"),
    ],
)
def test_validation_plateau(rewards: list[float | None], fires_at: list[int]) -> None:
    config = only("validation_plateau", patience=3)
    made = decisions(columns(validation__domain_mean_score=rewards), config)
    assert made == [(step, "reset", "validation_plateau") for step in fires_at]


@pytest.mark.parametrize(
    ("kl", "action", "resets"),
    [
        pytest.param(5e-6, None, False, id="still the reference"),
        pytest.param(1.4e-4, None, False, id="hardly, for 3 steps"),
        pytest.param(1.6e-4, None, True, id="it has moved"),
        pytest.param(5e-6, ControllerAction.end_stage, True, id="a stage may end"),
    ],
)
def test_no_watch_resets_a_policy_that_has_not_moved(
    kl: float, action: ControllerAction | None, resets: bool
) -> None:
    """A reset would change nothing. At 20 tokens a response, 1.5e-4 nats a token are 3e-3, 1e-3 a step."""
    config = only("validation_plateau", patience=3, action=action)
    series = {"objective__kl_to_reference": [0.5 * kl, kl, kl, kl], "response__tokens_mean": [20.0] * 4}
    records = columns(validation__domain_mean_score=[0.3] * 4, **series)
    assert bool(decisions(records, config)) is resets


def test_a_policy_has_moved_if_it_moved_since_the_last_reset() -> None:
    """The KL before a reset says nothing of the policy after it, and a resumed run decides the same."""
    kl, tokens = [1.0, 1.0, *[1e-5] * 6], [20.0] * 8
    records = columns(
        validation__domain_mean_score=[0.3] * 8, objective__kl_to_reference=kl, response__tokens_mean=tokens
    )
    config = only("validation_plateau", patience=3)
    controller = ResetController(config)
    for record in records[:2]:
        controller.observe(record)
    controller.note_reset(2)
    for record in records[2:]:
        assert controller.observe(record) is None
        controller = ResetController(config, json.loads(json.dumps(controller.state())))


def with_resets(*, patience: int = 2, **options: Any) -> ControllerConfig:
    """Returns a controller in which a plateau of two validations resets, futile resets end the stage, and no other
    signal acts."""
    config = only("futile_resets", patience=patience, **options)
    config.validation_plateau, config.patience.validation_plateau = ControllerAction.reset, 2
    return config


@pytest.mark.parametrize(
    ("rewards", "made"),
    [
        pytest.param(
            [0.3] * 7,
            [(3, "reset"), (5, "reset"), (7, "end_stage")],
            id="the ceiling: two resets bring nothing",
        ),
        pytest.param(
            [0.3] * 3 + [0.5] * 7,
            [(3, "reset"), (6, "reset"), (8, "reset"), (10, "end_stage")],
            id="a reset that helps is none of them",
        ),
        pytest.param(
            [0.5, 0.4, 0.4, 0.45, 0.45, 0.45, 0.48, 0.48, 0.48],
            [(3, "reset"), (6, "reset"), (9, "end_stage")],
            id="winning back what was lost is no gain",
        ),
        pytest.param(
            [0.3] * 3 + [0.305] * 2 + [0.311] * 6,
            [(3, "reset"), (5, "reset"), (7, "reset"), (9, "reset"), (11, "end_stage")],
            id="small gains add up",
        ),
        pytest.param(
            [0.3, 0.3, 0.3, 0.3, 0.3, 0.4, 0.5, 0.6, 0.7],
            [(3, "reset"), (5, "reset")],
            id="no plateau, no end",
        ),
    ],
)
def test_futile_resets(rewards: list[float | None], made: list[tuple[int, str]]) -> None:
    found = decisions(columns(validation__domain_mean_score=rewards), with_resets())
    assert [(step, action) for step, action, _ in found] == made
    names = {"reset": "validation_plateau", "end_stage": "futile_resets"}
    assert all(signal == names[action] for _, action, signal in found)


def test_a_reset_before_any_validation_of_its_own_is_not_futile() -> None:
    """A user asks for three resets in a row, so the policy had no time to improve."""
    controller = ResetController(with_resets())
    for record in columns(validation__domain_mean_score=[0.3, 0.3, None, None, 0.3, 0.3]):
        decision = controller.observe(record)
        if record["step"] in (2, 3, 4):
            controller.note_reset(record["step"])
    assert controller.state()["peaks"] == (0.3,)
    assert decision is None, "a plateau needs two validations after the best"


@given(
    values=st.lists(st.floats(1e-6, 1e6), min_size=8, max_size=30),
    ratio=st.floats(1.01, 4.0),
    num_deviations=st.floats(0.0, 8.0),
)
@settings(deadline=None)
def test_the_trend_is_median_and_mad_in_array_arithmetic(
    values: list[float], ratio: float, num_deviations: float
) -> None:
    """On the last 5 + 3 values. Ties within rounding may go either way."""
    logs = np.log(values)
    before, recent = logs[-8:-3], logs[-3:]
    spread = np.median(np.abs(before - np.median(before))) / NormalDist().inv_cdf(0.75)
    limit = np.median(before) + max(np.log(ratio), num_deviations * spread)
    config = only("kl_spike", window=5, patience=3, limit=ratio, num_deviations=num_deviations)
    record: dict[str, Any] = {}
    controller = ResetController(ControllerConfig())  # manual: only collects
    for record in columns(objective__kl_to_reference=values):
        controller.observe(record)
    history = controller._history
    assert history is not None
    if abs(recent.min() - limit) > 1e-4 * max(1.0, abs(limit)):
        (kl_spike,) = [watch for watch in WATCHES if watch.name == "kl_spike"]
        assert (kl_spike.judge(history, config) is not None) == (recent.min() > limit)


@pytest.mark.medium
@given(scale=st.floats(1e-6, 1e2), exponent=st.floats(0.0, 3.0), start=st.integers(1, 20))
@settings(max_examples=50, deadline=None)
def test_growth_along_a_power_of_the_step_is_no_spike_with_the_defaults(
    scale: float, exponent: float, start: int
) -> None:
    values = [scale * (start + step) ** exponent for step in range(150)]
    config = ControllerConfig(mode=ControllerMode.automatic)
    records = columns(objective__kl_to_reference=values, response__tokens_mean=values)
    assert decisions(records, config) == []


@pytest.mark.medium
@pytest.mark.parametrize(("lowest", "highest"), [(0.0, 1.0), (-1.0, 1.0), (0.0, 0.01), (50.0, 60.0)])
def test_whatever_its_scores_a_run_that_stands_still_hardly_ever_looks_like_one_that_drops(
    lowest: float, highest: float
) -> None:
    """Five domains of 60 prompts x 16 rollouts and 50 validations: at most one false alarm in 100 runs."""
    generator = np.random.default_rng(2)
    config = only("validation_drop")
    num_false = 0
    for _ in range(100):
        rewards = generator.binomial(960, [0.1, 0.25, 0.4, 0.6, 0.9], size=(50, 5)) / 960
        names = [f"validation__domain{index}__score" for index in range(5)]
        counts = {name.replace("score", "num_rollouts"): [960] * 50 for name in names}
        series = {name: [float(value) for value in rewards[:, i]] for i, name in enumerate(names)}
        records = [rescaled(record, lowest, highest) for record in columns(**series, **counts)]
        num_false += len(decisions(records, config))
    assert num_false <= 1


def rescaled(record: dict[str, Any], lowest: float, highest: float) -> dict[str, Any]:
    """Returns a record of scores of 0 and 1 as it is with other scores."""
    means = {key: lowest + (highest - lowest) * record[key] for key in record if key.endswith("score")}
    return record | means | {key: (highest - lowest) * record[key] for key in record if key.endswith("_std")}


@pytest.mark.parametrize("watch", ["validation_drop", "validation_plateau", "futile_resets"])
@pytest.mark.parametrize(("lowest", "highest"), [(-1.0, 1.0), (0.0, 0.01), (50.0, 60.0)])
def test_decisions_do_not_depend_on_the_scale_of_the_scores(
    watch: str, lowest: float, highest: float
) -> None:
    rewards = [0.3, 0.31, 0.5, 0.5, 0.49, 0.505, 0.51, 0.51, 0.44, 0.4, 0.3, 0.35, 0.36, 0.37, 0.37, 0.3, 0.2]
    records, config = two_domains(rewards, rewards, num_rollouts=2000.0), only(watch, patience=1)
    if watch == "futile_resets":
        config = with_resets(patience=1)
    made = decisions(records, config)
    assert made
    assert decisions([rescaled(record, lowest, highest) for record in records], config) == made


# The mean that stands for the whole validation


def two_domains(
    instruction: list[float], math: list[float], num_rollouts: float = 1e9
) -> list[dict[str, Any]]:
    """Returns one record per validation. Nine of ten prompts are instructions."""
    means = [(i + m) / 2 for i, m in zip(instruction, math, strict=True)]
    prompts = [0.9 * i + 0.1 * m for i, m in zip(instruction, math, strict=True)]
    counts = [num_rollouts] * len(math)
    return columns(
        validation__instruction__score=instruction,
        validation__instruction__num_rollouts=counts,
        validation__math__score=math,
        validation__math__num_rollouts=counts,
        validation__score=prompts,
        validation__num_rollouts=[2 * num_rollouts] * len(math),
        validation__domain_mean_score=means,
    )


def test_a_large_domain_does_not_hide_that_a_small_one_improves() -> None:
    records = two_domains([0.5] * 4, [0.1, 0.13, 0.16, 0.19])
    assert decisions(records, only("validation_plateau", patience=3)) == []


def test_the_standard_error_of_the_mean_over_domains() -> None:
    """For D independent means it is the root of the sum of their variances, divided by D; for the difference of two
    validations it is the root of the sum of both variances."""
    history = History(stage="main", since=0, step=0)
    for record in two_domains([0.5, 0.4], [0.3, 0.2], num_rollouts=100.0):
        history = history.extended(record, only("validation_drop"))
    first, last = history.validations("validation/domain_mean_score")
    variances = [
        (0.5 * 0.5 / 100 + 0.3 * 0.7 / 100) / 4,
        (0.4 * 0.6 / 100 + 0.2 * 0.8 / 100) / 4,
    ]
    assert [first.variance, last.variance] == pytest.approx(variances)
    assert standard_error(first, last) == pytest.approx(sum(variances) ** 0.5)


def test_resets_do_not_follow_one_another_without_end_where_each_is_followed_by_a_drop() -> None:
    """The best value is 0.5, both before the first reset and after each."""
    config = only("validation_drop", patience=1)
    config.futile_resets = ControllerAction.end_stage
    rewards = [0.5, 0.2] * 4
    found = decisions(two_domains(rewards, rewards), config)
    assert [action for _, action, _ in found][:3] == ["reset", "reset", "end_stage"]


def test_a_drop_that_is_ignored_makes_no_reset_futile() -> None:
    controller = ResetController(only("futile_resets", patience=2))
    for record in two_domains([0.5, 0.2] * 4, [0.5, 0.2] * 4):
        assert controller.observe(record) is None
        controller.note_reset(record["step"])


# Effective sample size


EFFECTIVE = "objective__effective_sample_share"


def test_few_effective_samples_warn_in_every_mode_and_once_in_a_cool_down() -> None:
    shares = [0.9, 0.4, 0.6, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.5]
    for mode in ControllerMode:
        config = only("effective_sample", patience=2, cooldown=3)
        config.mode, config.interval = mode, 1000
        assert decisions(columns(**{EFFECTIVE: shares}), config) == [
            (5, "warn", "effective_sample"),
            (8, "warn", "effective_sample"),
        ]


def test_a_warning_restarts_nothing_and_never_hides_an_action() -> None:
    """The interval counts on from the stage's start, and a reset at the same step is the decision, which names it."""
    config = only("effective_sample", patience=1, interval=4)
    controller = ResetController(config)
    records = columns(first_step=0, **{EFFECTIVE: [0.3] * 6})
    made = [decision for record in records if (decision := controller.observe(record))]
    assert [one.action.name for one in made] == ["warn"] * 4 + ["reset", "warn"]
    assert "also: effective_sample" in made[4].reason


def test_a_warning_is_remembered_over_a_restart() -> None:
    config = only("effective_sample", patience=1, cooldown=3)
    controller, made = ResetController(config), []
    for record in columns(first_step=0, **{EFFECTIVE: [0.3] * 10}):
        controller = ResetController(config, json.loads(json.dumps(controller.state())))
        made += [one.step for one in [controller.observe(record)] if one]
    assert made == [3, 6, 9]


# What every watch needs of the history


@pytest.mark.parametrize("watch", WATCHES, ids=lambda watch: watch.name)
def test_a_history_keeps_the_metric_of_every_watch_and_reaches_as_far_back_as_it_looks(watch: Watch) -> None:
    """A watch whose metric is not kept never fires."""
    assert watch.metric in {*STEP_KEYS, VALIDATION}
    config = ControllerConfig()
    setattr(config.patience, watch.name, 150)
    config.limits.window = config.limits.level_steps = 170
    history = History(stage="main", since=0, step=0)
    key = watch.metric if watch.metric != VALIDATION else "validation/math/score"
    for step in range(1, 400):
        history = history.extended({"step": step, key: 0.5}, config)
    assert len(history.series[key]) >= 320
    assert len(history.series) == 1
