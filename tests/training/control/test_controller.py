"""The controller's decisions: precedence, cool-down and modes; a restart changes nothing. Signals have tests of their
own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_prorl.config import (
    ConfigError,
    ControllerAction,
    ControllerConfig,
    ControllerMode,
    WatchLimitsConfig,
    WatchPatienceConfig,
)
from nemo_prorl.training.control.controller import ResetController
from tests.training.control.controller_runs import NAMES, columns, decisions, only, watched

KL = "objective/kl_to_reference"
METRICS = (
    KL,
    "objective/entropy",
    "response/tokens_mean",
    "response/no_eos_share",
    "validation/domain_mean_score",
    "validation/math/score",
    "validation/math/score_std",
    "validation/math/num_rollouts",
)


def eager(**options: Any) -> ControllerConfig:
    """Returns a controller whose watches fire easily, so that random runs are full of decisions."""
    patience = WatchPatienceConfig(**dict.fromkeys(NAMES, 1) | {"validation_plateau": 4})
    limits = WatchLimitsConfig(
        window=5, level_steps=3, num_deviations=1.0, validation_drop_errors=0.5, entropy_collapse=0.3,
        entropy_runaway=2.0, no_eos=0.2, response_length=1.5, kl_spike=1.5, validation_drop=0.05,
        validation_plateau=0.05,
    )  # fmt: skip
    return ControllerConfig(mode=ControllerMode.automatic, patience=patience, limits=limits, **options)


numbers = st.one_of(
    st.none(),
    st.floats(0.0, 1.0),
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(0, 2000),
    st.sampled_from([0.0, 0.5, 0.05, 1e-300, 1e300, True, "0.5"]),
)


@st.composite
def runs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draws records as a run of one or two stages might write them, with missing and nonsensical values."""
    length = draw(st.integers(1, 60))
    change = draw(st.integers(0, 60))
    records = []
    for step in range(length):
        record: dict[str, Any] = {"step": step, "stage": "first" if step < change else "second"}
        for metric in METRICS:
            if draw(st.integers(0, 3)):  # three of four records have it
                record[metric] = draw(numbers)
        records.append(record)
    return records


@pytest.mark.medium
@given(records=runs(), cooldown=st.integers(0, 8), interval=st.sampled_from([0, 7]))
@settings(max_examples=60, deadline=None)
def test_a_restart_between_any_two_records_changes_nothing(
    records: list[dict[str, Any]], cooldown: int, interval: int
) -> None:
    config = eager(cooldown=cooldown, interval=interval)
    uninterrupted, state = ResetController(config), None
    for record in records:
        restarted = ResetController(config, state)
        assert restarted.observe(record) == uninterrupted.observe(record)
        state = json.loads(json.dumps(restarted.state(), allow_nan=False))
    assert state == json.loads(json.dumps(uninterrupted.state()))


@pytest.mark.medium
@given(records=runs(), cooldown=st.integers(0, 12))
@settings(max_examples=60, deadline=None)
def test_no_signal_counts_in_the_cool_down_of_a_decision_or_a_stage(
    records: list[dict[str, Any]], cooldown: int
) -> None:
    controller = ResetController(eager(cooldown=cooldown))
    stage, since, last_step = "", 0, 0
    for record in records:
        if record["stage"] != stage:
            since, stage = last_step, record["stage"]
        decision, last_step = controller.observe(record), record["step"]
        if decision is not None:
            assert decision.step == record["step"] >= since + cooldown
            since = decision.step


@pytest.mark.medium
@given(records=runs())
@settings(max_examples=40, deadline=None)
def test_a_decision_can_always_be_written_down(records: list[dict[str, Any]]) -> None:
    """It has only finite numbers, of metrics in this very record, and a sentence."""
    controller = ResetController(eager(cooldown=0))
    for record in records:
        if decision := controller.observe(record):
            assert json.loads(json.dumps(decision.as_record(), allow_nan=False)) == decision.as_record()
            assert decision.numbers
            assert decision.reason.endswith(".")
            assert decision.action is not ControllerAction.ignore
            assert decision.numbers["value"] in [
                v for v in record.values() if isinstance(v, int | float)
            ] or (
                decision.numbers["value"] == pytest.approx(max(0.0, float(record[KL])))
                if decision.signal == "kl_spike"
                else decision.numbers["value"] == pytest.approx(float(record["response/tokens_mean"]))
            )


SPIKE = [0.1] * 5 + [0.5, 0.5]


def worst_of(*names: str) -> ControllerConfig:
    """Returns a configuration in mode automatic in which only these watches act."""
    patience = WatchPatienceConfig(**dict.fromkeys(NAMES, 2) | {"validation_plateau": 6})
    limits = WatchLimitsConfig(window=5, level_steps=3)
    config = ControllerConfig(mode=ControllerMode.automatic, cooldown=0, patience=patience, limits=limits)
    for name in set(NAMES) - set(names):
        setattr(config, name, ControllerAction.ignore)
    return config


ALL_AT_ONCE = columns(
    objective__kl_to_reference=SPIKE,
    objective__entropy=SPIKE,
    response__tokens_mean=SPIKE,
    response__no_eos_share=SPIKE,
    validation__domain_mean_score=[0.9, 0.9, 0.9, 0.9, 0.9, 0.5, 0.5],
)


@pytest.mark.parametrize(
    ("signals", "expected", "also"),
    [
        (["kl_spike", "validation_plateau", "validation_drop"], ("reset", "validation_drop"), True),
        (["kl_spike", "validation_plateau"], ("reset", "kl_spike"), True),
        (["kl_spike", "response_length"], ("end_stage", "response_length"), True),
        (["no_eos", "response_length", "kl_spike"], ("end_stage", "no_eos"), True),
        (["entropy_runaway", "no_eos", "kl_spike"], ("stop", "entropy_runaway"), True),
        (["kl_spike"], ("reset", "kl_spike"), False),
    ],
)
def test_the_most_severe_action_wins_and_the_others_are_mentioned(
    signals: list[str], expected: tuple[str, str], also: bool
) -> None:
    controller = ResetController(worst_of(*signals))
    decision = [controller.observe(record) for record in ALL_AT_ONCE][-1]
    assert decision is not None
    assert (decision.action.name, decision.signal) == expected
    mentioned = {name for name in signals if name != expected[1] and name in decision.reason}
    assert mentioned == set(signals) - {expected[1]}
    assert ("(also: " in decision.reason) == also


def test_a_fixed_interval_counts_from_the_last_reset_whoever_made_it() -> None:
    config = ControllerConfig(mode=ControllerMode.interval, interval=4, cooldown=100)
    controller, made = ResetController(config), []
    for step in range(16):
        if (decision := controller.observe({"step": step, "stage": "main"})) is not None:
            made.append((decision.step, decision.signal))
        if step == 6:
            controller.note_reset(6)
    assert made == [(4, "interval"), (10, "interval"), (14, "interval")]


def test_mode_interval_does_not_look_at_signals_automatic_looks_at_both_and_manual_at_nothing() -> None:
    config = worst_of("kl_spike")
    config.interval = 7
    records = columns(first_step=0, objective__kl_to_reference=[*SPIKE, 0.5])
    assert decisions(records, config) == [(6, "reset", "kl_spike")]
    config.mode = ControllerMode.interval
    assert decisions(records, config) == [(7, "reset", "interval")]
    config.mode = ControllerMode.manual
    assert decisions(records, config) == []


def test_after_a_reset_the_trend_is_learned_anew_and_kl_may_rise_from_zero() -> None:
    config = only("kl_spike", window=5, patience=2, num_deviations=3.0)
    after = [0.0, 1e-6, 1e-4, 1e-3, 2e-3, 4e-3, 6e-3, 8e-3]
    assert decisions(columns(objective__kl_to_reference=SPIKE + after), config) == [(7, "reset", "kl_spike")]


def test_a_reset_by_hand_keeps_only_the_validation_of_the_weights_that_became_the_reference() -> None:
    controller = ResetController(only("validation_drop", patience=1))
    for record in columns(validation__domain_mean_score=[0.9, 0.85], objective__kl_to_reference=[0.1, 0.2]):
        controller.observe(record)
    controller.note_reset(2)
    assert controller.state()["series"] == {
        "validation/domain_mean_score": ((2, 0.85),),
        "validation/score_std": ((2, pytest.approx(0.357, abs=1e-3)),),
    }
    lower = columns(first_step=3, validation__domain_mean_score=[0.82, 0.7])
    assert [controller.observe(record) is not None for record in lower] == [False, True]  # best is 0.85 now


def test_a_new_stage_forgets_the_old_one_but_for_where_it_ended() -> None:
    config = only("entropy_collapse", level_steps=3, patience=1)
    old = columns(stage="run1", objective__entropy=[1.0, 1.0, 1.0, 1.0])
    new = columns(first_step=5, stage="run2", objective__entropy=[0.05, 0.05, 0.05, 0.05, 0.004])
    assert decisions(old + new, config) == [(9, "stop", "entropy_collapse")]
    assert decisions(old + [record | {"stage": "run1"} for record in new], config)[0][0] == 5


def test_the_entropy_of_the_stages_beginning_outlives_a_reset() -> None:
    config = only("entropy_collapse", level_steps=3, patience=1)
    controller = ResetController(config)
    for record in columns(objective__entropy=[1.0, 1.0, 1.0, 0.2]):
        assert controller.observe(record) is None
    controller.note_reset(4)
    assert controller.observe({"step": 5, "stage": "main", "objective/entropy": 0.09}) is not None


def test_the_history_does_not_grow_with_the_steps() -> None:
    config = ControllerConfig(mode=ControllerMode.automatic)
    controller = ResetController(config)
    record = dict.fromkeys(METRICS[:4], 0.5)
    for step in range(500):
        controller.observe({"step": step, "stage": "main"} | record)
    assert {len(series) for series in controller.state()["series"].values()} == {60}
    assert len(controller.state()["entropy_level"]) == 20


# What it would have decided on a run that really made other decisions

WATCHED = {"window": 5, "patience": 2, "num_deviations": 3.0}


@pytest.mark.parametrize(("reset_at", "expected"), [(None, [8]), (6, [])])
def test_a_reset_that_really_happened_starts_the_history_afresh(
    reset_at: int | None, expected: list[int]
) -> None:
    records = columns(objective__kl_to_reference=[0.1] * 6 + [0.5, 0.5, 0.1, 0.1])
    for record in records:
        record["num_resets"] = int(reset_at is not None and record["step"] >= reset_at)
    assert [decision.step for decision in watched(records, only("kl_spike", **WATCHED))] == expected


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: ControllerConfig(mode=ControllerMode.interval),
            "write controller.interval=300, for example",
        ),
        (lambda: ControllerConfig(cooldown=-1), "controller.cooldown=-1 is out of range"),
        (lambda: ControllerConfig(sampler_mismatch=ControllerAction.reset), "stop or ignore"),
        (lambda: ControllerConfig(canary_tokens=0), "controller.canary_tokens=0"),
        (
            lambda: ControllerConfig(reset_reference=False, reset_optimizer=False),
            "leaves a reset nothing to do: write true for one",
        ),
        (lambda: WatchPatienceConfig(futile_resets=0), "controller.patience.futile_resets=0 is out of range"),
        (lambda: WatchLimitsConfig(kl_spike=1.0), "controller.limits.kl_spike=1.0 is out of range"),
        (lambda: WatchLimitsConfig(window=4), "controller.limits.window=4 is out of range"),
        (lambda: WatchLimitsConfig(no_eos=0.0), "controller.limits.no_eos=0.0 is out of range"),
        (lambda: WatchLimitsConfig(validation_drop=-0.1), "controller.limits.validation_drop=-0.1 is out"),
        (lambda: WatchLimitsConfig(effective_sample=1.0), "must be in (0, 1)"),
        (lambda: WatchLimitsConfig(max_nats=1e-4), "at least controller.limits.min_nats=0.001"),
    ],
)
def test_numbers_out_of_range_are_refused(make: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make()
    assert sentence in str(refused.value)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_names_every_watch_with_the_defaults_of_the_options(name: str) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "resets.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
    patience, limit, action = (cell.split() for cell in row.split("|")[3:6])
    config = ControllerConfig()
    assert (int(patience[0]), action[0]) == (getattr(config.patience, name), getattr(config, name).name)
    assert [float(number) for number in limit] == [
        value for value in [getattr(config.limits, name, None)] if value
    ]
