"""The controller's decisions: precedence, cool-down and modes; a restart changes nothing. Signals have tests of their
own."""

from __future__ import annotations

import json
import re
from dataclasses import fields
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
    EntropyCollapseConfig,
    EntropyRunawayConfig,
    FutileResetsConfig,
    KlSpikeConfig,
    NoEosConfig,
    ResponseLengthConfig,
    ValidationDropConfig,
    ValidationPlateauConfig,
)
from nemo_prorl.training.control.controller import Decision, ResetController
from nemo_prorl.training.control.signals import SIGNALS
from tests.training.control.controller_runs import columns, decisions, only

KL = "objective/kl_to_reference"
METRICS = (
    KL,
    "objective/entropy",
    "response/tokens_mean",
    "response/no_eos_share",
    "validation/domain_mean_score",
    "validation/math/score",
    "validation/math/num_rollouts",
)


def eager(**options: Any) -> ControllerConfig:
    """Returns a controller whose signals fire easily, so that random runs are full of decisions."""
    return ControllerConfig(
        mode=ControllerMode.automatic,
        validation_drop=ValidationDropConfig(patience=1, margin=0.05, num_standard_errors=0.5),
        validation_plateau=ValidationPlateauConfig(patience=4, min_delta=0.05),
        futile_resets=FutileResetsConfig(patience=1),
        kl_spike=KlSpikeConfig(patience=1, window=5, ratio=1.5, num_deviations=1.0),
        response_length=ResponseLengthConfig(patience=1, window=5, ratio=1.5, num_deviations=1.0),
        no_eos=NoEosConfig(patience=1, window=6, rise=0.2, num_deviations=1.0),
        entropy_collapse=EntropyCollapseConfig(patience=1, window=3, ratio=0.3),
        entropy_runaway=EntropyRunawayConfig(patience=1, window=2, ratio=2.0),
        **options,
    )


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


@pytest.mark.medium
@given(records=runs())
@settings(max_examples=30, deadline=None)
def test_noting_a_reset_of_its_own_changes_nothing(records: list[dict[str, Any]]) -> None:
    told, untold = ResetController(eager(cooldown=2)), ResetController(eager(cooldown=2))
    for record in records:
        decision = told.observe(record)
        assert decision == untold.observe(record)
        if decision is not None:
            told.note_reset(decision.step)
    assert told.state() == untold.state()


@pytest.mark.medium
@given(records=runs())
@settings(max_examples=20, deadline=None)
def test_manual_mode_never_decides(records: list[dict[str, Any]]) -> None:
    config = eager(cooldown=0, interval=3)
    config.mode = ControllerMode.manual
    assert decisions(records, config) == []


SPIKE = [0.1] * 5 + [0.5, 0.5]


def worst_of(*signals: str) -> ControllerConfig:
    """Returns a configuration in mode automatic in which only these signals act."""
    config = ControllerConfig(mode=ControllerMode.automatic, cooldown=0)
    sections: dict[str, Any] = {
        "kl_spike": KlSpikeConfig(window=5, patience=2),
        "no_eos": NoEosConfig(window=5, patience=2),
        "response_length": ResponseLengthConfig(window=5, patience=2),
        "entropy_runaway": EntropyRunawayConfig(window=3, patience=2),
        "validation_drop": ValidationDropConfig(patience=2),
        "validation_plateau": ValidationPlateauConfig(patience=6),
    }
    for name in SIGNALS:
        if name in signals:
            setattr(config, name, sections[name])
        else:
            getattr(config, name).action = ControllerAction.ignore
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


def test_the_action_of_a_signal_is_configuration() -> None:
    config = worst_of("kl_spike", "response_length")
    config.kl_spike.action = ControllerAction.stop
    assert decisions(ALL_AT_ONCE, config) == [(7, "stop", "kl_spike")]
    config.kl_spike.action = config.response_length.action = ControllerAction.ignore
    assert decisions(ALL_AT_ONCE, config) == []


def test_a_fixed_interval_counts_from_the_last_reset_whoever_made_it() -> None:
    config = ControllerConfig(mode=ControllerMode.interval, interval=4, cooldown=100)
    controller, made = ResetController(config), []
    for step in range(16):
        if (decision := controller.observe({"step": step, "stage": "main"})) is not None:
            made.append((decision.step, decision.signal))
        if step == 6:
            controller.note_reset(6)
    assert made == [(4, "interval"), (10, "interval"), (14, "interval")]


def test_mode_interval_does_not_look_at_signals_and_automatic_looks_at_both() -> None:
    config = worst_of("kl_spike")
    config.interval = 7
    assert decisions(columns(first_step=0, objective__kl_to_reference=[*SPIKE, 0.5]), config) == [
        (6, "reset", "kl_spike")
    ]
    config.mode = ControllerMode.interval
    assert decisions(columns(first_step=0, objective__kl_to_reference=[*SPIKE, 0.5]), config) == [
        (7, "reset", "interval")
    ]


def test_after_a_reset_the_trend_is_learned_anew_and_kl_may_rise_from_zero() -> None:
    config = only("kl_spike", window=5, patience=2, ratio=2.0, num_deviations=3.0)
    after = [0.0, 1e-6, 1e-4, 1e-3, 2e-3, 4e-3, 6e-3, 8e-3]
    assert decisions(columns(objective__kl_to_reference=SPIKE + after), config) == [(7, "reset", "kl_spike")]


def test_a_reset_by_hand_keeps_only_the_validation_of_the_weights_that_became_the_reference() -> None:
    controller = ResetController(only("validation_drop", patience=1))
    for record in columns(validation__domain_mean_score=[0.9, 0.85]):
        controller.observe(record)
    controller.note_reset(2)
    assert controller.state()["series"] == {"validation/domain_mean_score": ((2, 0.85),)}
    lower = columns(first_step=3, validation__domain_mean_score=[0.8, 0.7])
    assert [controller.observe(record) is not None for record in lower] == [False, True]  # best is 0.85 now


def test_a_new_stage_forgets_the_old_one_but_for_where_it_ended() -> None:
    config = only("entropy_collapse", window=3, patience=1, cooldown=0)
    old = columns(stage="run1", objective__entropy=[1.0, 1.0, 1.0, 1.0])
    new = columns(first_step=5, stage="run2", objective__entropy=[0.05, 0.05, 0.05, 0.05, 0.004])
    assert decisions(old + new, config) == [(9, "stop", "entropy_collapse")]
    assert decisions(old + [record | {"stage": "run1"} for record in new], config)[0][0] == 5


def test_the_entropy_of_the_stages_beginning_outlives_a_reset() -> None:
    config = only("entropy_collapse", window=3, patience=1)
    controller = ResetController(config)
    for record in columns(objective__entropy=[1.0, 1.0, 1.0, 0.2]):
        assert controller.observe(record) is None
    controller.note_reset(4)
    assert controller.observe({"step": 5, "stage": "main", "objective/entropy": 0.09}) is not None


def test_a_state_from_a_run_without_a_controller_is_a_beginning() -> None:
    config = ControllerConfig(mode=ControllerMode.interval, interval=3)
    controller = ResetController(config, {})
    controller.note_reset(500)  # nothing has been seen: nothing to forget
    made = [controller.observe({"step": 501 + index, "stage": "main"}) for index in range(4)]
    assert [decision is not None for decision in made] == [False, False, False, True]


def test_the_history_does_not_grow_with_the_steps() -> None:
    config = ControllerConfig(mode=ControllerMode.automatic)
    controller = ResetController(config)
    record = dict.fromkeys(METRICS[:4], 0.5)
    for step in range(500):
        controller.observe({"step": step, "stage": "main"} | record)
    assert {len(series) for series in controller.state()["series"].values()} == {45}
    assert len(controller.state()["entropy_level"]) == 20


def test_a_decision_as_a_record() -> None:
    decision = Decision(
        action=ControllerAction.end_stage, signal="no_eos", reason="So.", numbers={"value": 0.5}, step=3
    )
    assert decision.as_record() == {
        "action": "end_stage",
        "signal": "no_eos",
        "reason": "So.",
        "numbers": {"value": 0.5},
    }


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: ControllerConfig(mode=ControllerMode.interval),
            "write controller.interval=300, for example",
        ),
        (lambda: ControllerConfig(cooldown=-1), "controller.cooldown=-1 is out of range"),
        (lambda: KlSpikeConfig(ratio=1.0), "controller.kl_spike.ratio=1.0 is out of range"),
        (lambda: KlSpikeConfig(window=4), "controller.kl_spike.window=4 is out of range"),
        (lambda: ResponseLengthConfig(ratio=0.5), "must be greater than 1"),
        (lambda: NoEosConfig(rise=0.0), "controller.no_eos.rise=0.0 is out of range"),
        (lambda: ValidationDropConfig(margin=1.0), "must be in [0, 1)"),
        (lambda: ValidationPlateauConfig(patience=0), "must be at least 1"),
        (lambda: FutileResetsConfig(patience=0), "controller.futile_resets.patience=0 is out of range"),
        (lambda: EntropyCollapseConfig(ratio=1.0), "must be in (0, 1)"),
        (lambda: EntropyRunawayConfig(ratio=1.0), "must be greater than 1"),
    ],
)
def test_thresholds_out_of_range_are_refused(make: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make()
    assert sentence in str(refused.value)


@pytest.mark.parametrize("signal", SIGNALS)
def test_the_page_names_every_signal_with_the_defaults_of_the_options(signal: str) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "resets.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith(f"| `{signal}` |")]
    section = getattr(ControllerConfig(), signal)
    assert row.split("|")[3].split()[0] == section.action.name
    told = dict(re.findall(r"`(\w+)` = (?:log )?([\d.]+)", row))
    thresholds = {"patience", "ratio", "rise", "margin", "min_delta", "share"} & {
        field.name for field in fields(section)
    }
    assert told == {name: f"{getattr(section, name):g}" for name in thresholds}
