"""Tests of `replay`: what the controller would have done on recorded runs, what really happened, and the command."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl import __main__ as cli
from nemo_prorl.config import ControllerAction, ControllerConfig, ControllerMode
from nemo_prorl.training.control.controller import ResetController
from nemo_prorl.training.control.replay import describe, replay
from nemo_prorl.training.control.signals import KL, SIGNALS
from tests.training.control.controller_runs import columns, only

SPIKE = {"window": 5, "patience": 2, "ratio": 2.0, "num_deviations": 3.0}
OPTIONS = [f"controller.kl_spike.{name}={value}" for name, value in SPIKE.items()] + ["controller.cooldown=0"]
CALM, WILD = [0.1] * 5, [0.5, 0.5]


def kl_run(values: Sequence[float], *, first_step: int = 1, **more: Any) -> list[dict[str, Any]]:
    records = columns(first_step=first_step, objective__kl_to_reference=values)
    return [record | {"num_resets": 0} | more for record in records]


def write(path: Path, records: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def test_it_decides_as_the_run_would_have() -> None:
    """A controller that is informed of the same resets, as in a closed loop, decides at the same steps."""
    records = kl_run([*CALM, *WILD, *CALM, *WILD])
    config = only("kl_spike", **SPIKE)
    controller = ResetController(config)
    live = [decision for record in records if (decision := controller.observe(record))]
    assert replay(records, config).decisions == live
    assert [decision.step for decision in live] == [7, 14]


@pytest.mark.parametrize(("reset_at", "expected"), [(None, [8]), (6, [])])
def test_a_reset_that_really_happened_starts_the_history_afresh(
    reset_at: int | None, expected: list[int]
) -> None:
    records = kl_run([*CALM, 0.1, *WILD, 0.1, 0.1])
    for record in records:
        record["num_resets"] = int(reset_at is not None and record["step"] >= reset_at)
    made = replay(records, only("kl_spike", **SPIKE)).decisions
    assert [decision.step for decision in made] == expected


def test_a_remix_that_really_happened_is_not_made_again() -> None:
    """By another signal than the one that would remix now, so that only the record tells of it."""
    records = kl_run([*CALM, 0.1, *CALM, *WILD])
    config = only("kl_spike", action=ControllerAction.remix, **SPIKE)
    assert [(d.step, d.action) for d in replay(records, config).decisions] == [(13, ControllerAction.remix)]
    records[5]["controller"] = {
        "action": "remix",
        "signal": "validation_plateau",
        "reason": "",
        "numbers": {},
    }
    assert [(d.step, d.action) for d in replay(records, config).decisions] == [(13, ControllerAction.reset)]


def test_what_happened_is_told_once_each() -> None:
    records = [
        {"step": 0, "stage": "run1", "num_resets": 0},
        {"step": 1, "stage": "run1", "num_resets": 0},
        {
            "step": 2,
            "stage": "run1",
            "num_resets": 1,
            "controller": {"action": "reset", "signal": "kl_spike", "reason": "A spike.", "numbers": {}},
        },
        {"step": 3, "stage": "run1", "num_resets": 2},
        {"step": 3, "stage": "run2", "num_resets": 3},
    ]
    events = replay(records, ControllerConfig()).events
    assert [(event.step, event.text) for event in events] == [
        (2, "reset: A spike."),
        (2, "the policy becomes the reference, by the controller"),
        (3, "the policy becomes the reference, asked for by hand"),
        (3, "run2 begins"),
        (3, "the policy becomes the reference, at the start of the stage"),
    ]


def test_the_text_says_what_could_not_be_judged_and_that_the_loop_is_open() -> None:
    config = ControllerConfig(mode=ControllerMode.automatic)
    text = describe(replay(kl_run(CALM), config), config)
    assert "What the controller would have done:\n  nothing" in text
    assert "What happened:\n  no reset, one stage" in text
    unjudged = text.partition("never judged: ")[2]
    assert "kl_spike" not in unjudged
    assert all(signal in unjudged for signal in SIGNALS if signal != "kl_spike")
    assert "Open loop: the recorded run went on" in text


def test_as_a_command_on_a_file_and_on_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "metrics.jsonl", kl_run([*CALM, *WILD]))
    said = []
    for what in (tmp_path / "metrics.jsonl", tmp_path):
        assert cli.main(["replay", str(what), *OPTIONS]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert "step     7  reset      kl_spike" in said[0]


def test_mode_interval_is_replayed_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "metrics.jsonl", kl_run([*CALM, *WILD]))
    options = [*OPTIONS, "controller.mode=interval", "controller.interval=3"]
    assert cli.main(["replay", str(tmp_path), *options]) == 0
    said = capsys.readouterr().out
    assert said.count("interval\n") == 2
    assert "kl_spike" not in said.partition("What the controller")[2].partition("Never measured")[0]


def test_a_run_is_judged_by_the_configured_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Instructions, which are nine of ten prompts, improve and math falls as much, so only the mean over domains does
    not change."""
    records = [
        {
            "step": step,
            "stage": "run1",
            "validation/domain_mean_score": 0.4,
            "validation/score": 0.9 * (0.3 + 0.02 * step) + 0.1 * (0.5 - 0.02 * step),
            "validation/instruction/score": 0.3 + 0.02 * step,
            "validation/math/score": 0.5 - 0.02 * step,
        }
        for step in range(5)
    ]
    metrics = write(tmp_path / "metrics.jsonl", records)
    options = [
        *OPTIONS,
        "controller.validation_plateau.patience=4",
        "controller.validation_drop.action=ignore",
    ]
    assert cli.main(["replay", str(metrics), *options]) == 0
    assert "validation/domain_mean_score 0.400 has not exceeded its best" in capsys.readouterr().out
    assert cli.main(["replay", str(metrics), *options, "controller.validation_mean=prompts"]) == 0
    assert "has not exceeded" not in capsys.readouterr().out


def test_what_a_reset_went_back_to_counts_as_measured() -> None:
    """After step 4 the run went back to step 1, which had 0.6, so 0.45 at step 6 is a drop again. Compared with 0.3 of
    the discarded policy it would be the best so far."""
    rewards = {1: 0.6, 2: 0.6, 4: 0.3, 5: 0.45, 6: 0.45}
    records: list[dict[str, Any]] = [
        {
            "step": step,
            "stage": "run1",
            "num_resets": int(step >= 4),
            "validation/score": reward,
            "validation/math/score": reward,
        }
        for step, reward in rewards.items()
    ]
    config = only("validation_drop", patience=2)
    assert not replay(records, config).decisions
    decision = {"action": "reset", "signal": "request", "reason": "a user asked for it.", "numbers": {}}
    records[2] |= {"went_back_to_step": 1, "controller": decision}
    assert [decision.step for decision in replay(records, config).decisions] == [6]


@pytest.mark.medium
def test_the_picture_is_drawn_whatever_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = [
        {"step": 0, "stage": "run1"},
        {"step": 1, "stage": "run1", KL: float("nan"), "validation/score": 0.5},
        {"step": 2, "stage": "run2", KL: 0.0, "num_resets": 1},
    ]
    for number, records in enumerate((kl_run([*CALM, *WILD]), broken, broken[:1])):
        metrics, picture = write(tmp_path / f"{number}.jsonl", records), tmp_path / f"{number}.png"
        assert cli.main(["replay", str(metrics), "--plot", str(picture), *OPTIONS]) == 0
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert f"wrote {picture}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "options", "sentence"),
    [
        (None, [], "does not exist: write the metrics.jsonl of a run"),
        ("", [], "holds no record"),
        ("hello\n", [], "holds no record"),
        ('{"step": 1, "stage": "a"}\n{"loss": 1}\n', [], "line 2 of METRICS="),
        ("[1, 2]\n", [], "line 1 of METRICS="),
        (
            '{"step": 1, "stage": "a"}\n',
            ["controller.kl_spik.ratio=3"],
            "did you mean controller.kl_spike.ratio?",
        ),
        (
            '{"step": 1, "stage": "a"}\n',
            ["controller.kl_spike.ratio=1"],
            "controller.kl_spike.ratio=1.0 is out of",
        ),
        ('{"step": 1, "stage": "a"}\n', ["--plot", "/no/such/folder/a.png"], "a folder that does not exist"),
        ('{"step": 1, "stage": "a"}\n', ["--plot", "/proc/a.png"], "--plot /proc/a.png cannot be written"),
        ('{"step": 1, "stage": "a"}\n', ["--plot", "a.xyz"], "--plot a.xyz must end in .png"),
    ],
)
def test_a_mistake_is_one_sentence(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: str | None,
    options: list[str],
    sentence: str,
) -> None:
    path = tmp_path / "metrics.jsonl"
    if content is not None:
        path.write_text(content)
    assert cli.main(["replay", str(path), *options]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
