"""Where the numbers of a run go: one line a step on disk, the loggers that were asked for, one line for the eye."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.config import ConfigError, ExpManagerConfig
from nemo_prorl.training.telemetry import MetricsFile, Telemetry, read_metrics


def record(step: int, stage: str = "main", **numbers: float) -> dict[str, Any]:
    return {"step": step, "stage": stage, "num_resets": 0, **numbers}


def telemetry(folder: Path, *, num_steps: int = 10, **options: Any) -> Telemetry:
    return Telemetry(ExpManagerConfig(explicit_log_dir=str(folder), **options), num_steps=num_steps)


def steps(path: Path) -> list[tuple[str, int]]:
    return [(line["stage"], line["step"]) for line in read_metrics(path)]


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    return tmp_path / "run" / "metrics.jsonl"


def test_each_step_is_one_line_that_a_reader_sees_at_once(metrics: Path) -> None:
    log = telemetry(metrics.parent)
    for step in range(4):
        log.step(record(step, **{"reward/mean": 0.25}), stage_step=step)
        lines = metrics.read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == list(range(step + 1))
    log.close()


def test_a_number_that_is_none_is_refused(metrics: Path) -> None:
    """JSON has no NaN: other readers would fail on the whole file."""
    with pytest.raises(ValueError, match="JSON"):
        MetricsFile(metrics).append(record(0, loss=float("nan")))


@pytest.mark.parametrize("cut", [1, 2, 10, 25])
def test_a_last_line_that_a_crash_cut_off_is_left_out(metrics: Path, cut: int) -> None:
    file = MetricsFile(metrics)
    for step in range(3):
        file.append(record(step))
    metrics.write_text(metrics.read_text()[:-cut])
    whole = 3 if cut == 1 else 2  # with its line break alone cut off a record is still whole
    assert steps(metrics) == [("main", step) for step in range(whole)]


def test_after_a_crash_in_mid_line_a_resumed_run_writes_whole_lines(metrics: Path) -> None:
    file = MetricsFile(metrics)
    for step in range(3):
        file.append(record(step))
    metrics.write_text(metrics.read_text()[:-1])
    file.rewind(2, "main", stage_step=2)
    file.append(record(3))
    assert steps(metrics) == [("main", step) for step in range(4)]


REWINDS = [
    ("resume in the first stage", 2, "a", 2, [("a", 0), ("a", 1), ("a", 2)]),
    ("first stage from its beginning", 0, "a", 0, []),
    ("second stage from its beginning", 4, "b", 0, [("a", 0), ("a", 1), ("a", 2), ("a", 4)]),
    (
        "resume in the second stage",
        5,
        "b",
        1,
        [("a", 0), ("a", 1), ("a", 2), ("a", 4), ("b", 4), ("b", 5)],
    ),
    (
        "nothing to do again",
        6,
        "b",
        2,
        [("a", 0), ("a", 1), ("a", 2), ("a", 4), ("b", 4), ("b", 5), ("b", 6)],
    ),
]


@pytest.mark.parametrize(
    ("step", "stage", "stage_step", "left"), [case[1:] for case in REWINDS], ids=[case[0] for case in REWINDS]
)
def test_a_resumed_run_drops_what_it_does_again(
    metrics: Path, step: int, stage: str, stage_step: int, left: list[tuple[str, int]]
) -> None:
    """The second stage begins with a record of its own at the last step of the first."""
    log = telemetry(metrics.parent)
    for name, number in [("a", 0), ("a", 1), ("a", 2), ("a", 4), ("b", 4), ("b", 5), ("b", 6)]:
        log.step(record(number, name), stage_step=number)
    log.rewind(step, stage, stage_step=stage_step)
    assert steps(metrics) == left
    assert [path.name for path in metrics.parent.iterdir()] == ["metrics.jsonl"]


def test_rewinding_a_new_run_is_no_work(metrics: Path) -> None:
    telemetry(metrics.parent).rewind(0, "main", stage_step=0)
    assert not metrics.exists()


@pytest.mark.parametrize(
    ("switch", "package"), [("create_wandb_logger", "wandb"), ("create_mlflow_logger", "mlflow")]
)
def test_a_logger_without_its_package_is_one_sentence(tmp_path: Path, switch: str, package: str) -> None:
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed")
    with pytest.raises(ConfigError, match=rf"exp_manager\.{switch}=true.*{package}") as caught:
        telemetry(tmp_path, **{switch: True})
    assert "\n" not in str(caught.value)


def test_tensorboard_gets_every_number(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = telemetry(tmp_path, create_tensorboard_logger=True)
    for step in (1, 2):
        log.step(record(step, **{"reward/mean": step / 4, "objective/entropy": 0.5}), stage_step=step)
    log.close()
    (events,) = (tmp_path / "tensorboard").rglob("events*")
    accumulator = EventAccumulator(str(events.parent)).Reload()
    assert {"reward/mean", "objective/entropy", "num_resets"} <= set(accumulator.Tags()["scalars"])
    assert [(event.step, event.value) for event in accumulator.Scalars("reward/mean")] == [
        (1, 0.25),
        (2, 0.5),
    ]


NUMBERS = {
    "reward/mean": 0.12345,
    "reward/pass_rate": 0.5,
    "objective/kl_to_reference": 0.00123,
    "objective/entropy": 0.98765,
    "response/tokens_mean": 33.333,
    "dynamic_sampling/informative_share": 0.625,
    "throughput/tokens_per_s": 1234.5,
    "time/step_s": 7.25,
}


def test_a_step_is_one_line_for_the_eye(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = telemetry(tmp_path, num_steps=40)
    log.step(record(7, **NUMBERS), stage_step=7)
    printed = capsys.readouterr()
    assert printed.out == "", "standard output belongs to results"
    title, line = printed.err.splitlines()
    assert line.split()[:9] == [
        "7/40", "0.123", "0.500", "0.0012", "0.988", "33.3", "62%", "1234", "7.2",
    ]  # fmt: skip
    assert line.split()[9].endswith("s")
    assert title.split() == ["step", *(column for column, _, _ in Telemetry.COLUMNS), "left"]
    for column, value in zip(("reward", "tok/s", "left"), ("0.123", "1234", line.split()[9]), strict=True):
        assert title.index(column) + len(column) == line.index(value) + len(value), f"{column} is aligned"


def test_the_title_comes_back_every_twenty_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = telemetry(tmp_path, num_steps=60)
    for step in range(1, 46):
        log.step(record(step, **NUMBERS), stage_step=step)
    lines = capsys.readouterr().err.splitlines()
    assert [index for index, line in enumerate(lines) if "entropy" in line] == [0, 21, 42]


def test_a_step_without_some_numbers_is_shown_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry(tmp_path).step(record(1, **{"reward/mean": 0.5}), stage_step=1)
    assert "nan" in capsys.readouterr().err


def test_validation_has_a_line_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = {
        "validation/reward": 0.5,
        "validation/pass_at_1": 0.25,
        "validation/math/reward": 0.75,
        "validation/logic/reward": 0.25,
    }
    telemetry(tmp_path).step(record(20, **numbers), stage_step=20)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.strip() == "held out at step 20: reward 0.500 (logic 0.250, math 0.750)"


def test_the_record_before_the_first_step_of_a_run_without_held_out_prompts_is_silent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry(tmp_path).step(record(0), stage_step=0)
    assert capsys.readouterr().err == ""
