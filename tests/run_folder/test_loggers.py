"""Loggers get every record once, with the options, in one run however often it is resumed; and none stops training."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
import time
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from nemo_prorl.config import ConfigError, ExpManagerConfig, RunConfig, TrainerConfig
from nemo_prorl.run_folder import loggers
from nemo_prorl.run_folder.loggers import (
    CLOSE_S,
    FINISH_S,
    PAUSE_S,
    WANDB_FILE,
    check_loggers,
    with_wandb_run,
)
from nemo_prorl.run_folder.metrics_file import read_metrics
from nemo_prorl.run_folder.telemetry import RunLog, Telemetry
from nemo_prorl.training.deadline import SPARE_S
from nemo_prorl.types import RunState

WANDB = {"create_wandb_logger": True}
OFFLINE = {**WANDB, "wandb_logger_kwargs": {"offline": True, "project": "p"}}


def config(folder: Path, **options: Any) -> RunConfig:
    return RunConfig(
        exp_manager=ExpManagerConfig(explicit_log_dir=str(folder), **options),
        trainer=TrainerConfig(learning_rate=3e-4),
    )


def train(
    folder: Path, first: int, last: int, *, loss: float = 1.0, stage: str = "main", **options: Any
) -> None:
    """A process that goes on from the checkpoint of step `first` - 1, and does the steps up to `last`."""
    made = config(folder, **options)
    made.stage.name = stage
    state = RunState(stage=stage, step=max(first - 1, 0), num_records=first)
    with Telemetry(made, log=RunLog(folder, speaks=True), state=state) as log:
        for step in range(first, last + 1):
            record = {"step": step, "stage": stage, "num_resets": 0, "loss": loss}
            log.step(record, stage_step=step)


def warnings(folder: Path) -> list[str]:
    log = folder / "run.log"
    lines = log.read_text().splitlines() if log.exists() else []
    return [line.split(" ", 1)[1] for line in lines if "warning:" in line]


class FakeLogger:
    """One of Lightning's loggers, which can be down."""

    def __init__(self) -> None:
        self.is_down: Callable[[], bool] = lambda: False
        self.told: list[tuple[int, float]] = []
        self.ended: list[str] = []
        self.options: dict[str, Any] = {}

    def log_hyperparams(self, options: dict[str, Any]) -> None:
        self.options = options

    def log_metrics(self, numbers: dict[str, float], step: int) -> None:
        if self.is_down():
            raise ConnectionError("no route\nto host")
        self.told.append((step, numbers["loss"]))

    def save(self) -> None:
        pass

    def finalize(self, status: str) -> None:
        self.ended.append(status)


class WandbLogger(FakeLogger):
    @property
    def experiment(self) -> Any:
        return SimpleNamespace(finish=lambda exit_code: self.ended.append(f"code {exit_code}"))


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    return lambda *made: monkeypatch.setattr(loggers, "lightning_loggers", lambda *_, **__: list(made))


@pytest.mark.parametrize("fails", [False, True])
def test_loggers_get_options_and_records_and_hear_how_the_run_ended(
    tmp_path: Path, use: Any, fails: bool
) -> None:
    made, wandb = FakeLogger(), WandbLogger()
    use(made, wandb)
    state = RunState(stage="main")
    try:
        with Telemetry(config(tmp_path, **WANDB), log=RunLog(tmp_path, speaks=True), state=state) as log:
            log.step({"step": 0, "stage": "main", "loss": 1.0}, stage_step=0)
            if fails:
                raise RuntimeError("lost")
    except RuntimeError:
        pass
    status = "failed" if fails else "success"
    assert (made.told, made.ended) == ([(0, 1.0)], [status])
    assert (wandb.told, wandb.ended) == ([(0, 1.0)], [status, f"code {int(fails)}"])
    assert made.options["trainer"]["learning_rate"] == 3e-4
    assert made.options["algorithm"]["clip_high"] == RunConfig().algorithm.clip_high


def test_a_logger_that_fails_is_said_once_and_stops_neither_training_nor_others(
    tmp_path: Path, use: Any
) -> None:
    broken, other = FakeLogger(), FakeLogger()
    downs = iter([False, False, True])
    broken.is_down = lambda: next(downs, False)
    use(broken, other)
    train(tmp_path, 0, 9)
    assert [len(broken.told), len(other.told), len(read_metrics(tmp_path / "metrics.jsonl"))] == [2, 10, 10]
    assert warnings(tmp_path) == [
        "warning: Fake fails and gets nothing more from this process; metrics.jsonl has every record (no route to "
        "host)"
    ]


@pytest.mark.medium
@pytest.mark.parametrize("ends", ["pause", "ctrl-c", "done"])
def test_loggers_that_hang_hold_up_no_step_and_share_one_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Any, ends: str
) -> None:
    """A pause waits less, because the time of the job is up."""
    monkeypatch.setattr(loggers, "CLOSE_S", 1.5)
    monkeypatch.setattr(loggers, "PAUSE_S", 0.3)
    made, free = [FakeLogger() for _ in range(4)], threading.Event()
    for logger in made:
        logger.is_down = lambda: not free.wait(30)
    use(*made)
    began, steps_s = time.monotonic(), 0.0
    try:
        with Telemetry(
            config(tmp_path), log=RunLog(tmp_path, speaks=True), state=RunState(stage="main")
        ) as log:
            for step in range(50):
                log.step({"step": step, "stage": "main", "loss": 1.0}, stage_step=step)
            log.is_paused = ends == "pause"
            steps_s, began = time.monotonic() - began, time.monotonic()
            if ends == "ctrl-c":
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    took_s = time.monotonic() - began
    free.set()
    limit_s = 1.5 if ends == "done" else 0.3
    assert steps_s < 10
    assert limit_s <= took_s < 3 * limit_s + 0.5
    assert sum(f"did not end within {limit_s:g} s" in line for line in warnings(tmp_path)) == 4


def test_a_resumed_run_goes_on_in_its_run_at_wandb_and_doubles_no_step(tmp_path: Path, use: Any) -> None:
    """Killed after step 30 with a checkpoint of step 19, resumed to step 35 (W&B fails at 33), and the next stage."""
    made = [WandbLogger() for _ in range(3)]
    made[1].is_down = lambda: len(made[1].told) == 2
    for logger, (first, last, loss) in zip(made, [(0, 30, 1.0), (20, 35, 2.0), (36, 39, 3.0)], strict=True):
        use(logger)
        train(tmp_path, first, last, loss=loss, stage="second" if loss == 3.0 else "main", **WANDB)
    rows = [row for logger in made for row in logger.told]
    assert rows == [(step, 1.0 if step < 31 else 2.0 if step < 36 else 3.0) for step in range(40)]


def test_the_id_of_the_run_at_wandb(tmp_path: Path, use: Any) -> None:
    def run_id() -> str:
        return str(json.loads((tmp_path / WANDB_FILE).read_text())["id"])

    given = {**WANDB, "wandb_logger_kwargs": {"id": "mine"}}
    ids, told = [], []
    for first, last, options in ((0, 2, WANDB), (3, 4, WANDB), (5, 6, given), (0, 2, WANDB), (0, 1, given)):
        logger = WandbLogger()
        use(logger)
        train(tmp_path, first, last, **options)
        ids.append(run_id())
        told.append([step for step, _ in logger.told])
    assert (ids[1], ids[2], ids[4]) == (ids[0], "mine", "mine")
    assert ids[3] not in ids[:3], "a run that begins anew in the folder is a new one there"
    assert told == [[0, 1, 2], [3, 4], list(range(7)), [0, 1, 2], [0, 1]], "another run there gets everything"


def test_a_logger_that_is_switched_on_later(tmp_path: Path, use: Any) -> None:
    """W&B gets the steps before; others, such as TensorBoard, cannot say what they have."""
    train(tmp_path, 0, 4)
    made = [WandbLogger(), FakeLogger()]
    use(*made)
    train(tmp_path, 5, 6, **WANDB)
    assert [[step for step, _ in logger.told] for logger in made] == [list(range(7)), [5, 6]]


@pytest.mark.parametrize(("num_records", "step"), [(5, 5), (3, 2), (1, 0), (0, 0)])
def test_tensorboard_gets_every_number_and_forgets_what_a_resumed_run_does_again(
    tmp_path: Path, num_records: int, step: int
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tmp_path, 0, 4, create_tensorboard_logger=True)
    train(tmp_path, num_records, 4, loss=2.0, create_tensorboard_logger=True)
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()  # all event files of a folder as one
    expected = [(number, 1.0 if number < num_records else 2.0) for number in range(5)]
    assert [(event.step, event.value) for event in found.Scalars("loss")] == expected
    assert "learning_rate: 0.0003" in (tmp_path / "tensorboard" / "hparams.yaml").read_text()


def fake_wandb(monkeypatch: pytest.MonkeyPatch, **contents: Any) -> None:
    module = ModuleType("wandb")
    module.__spec__ = ModuleSpec("wandb", None)
    module.__dict__.update(contents)
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_MODE", raising=False)


@pytest.mark.parametrize("answer", [True, False, ValueError("the key has 39 characters")])
def test_a_key_is_looked_for_without_the_server(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    def login(prompt: bool = True, verify: bool = True) -> bool:
        if isinstance(answer, Exception):
            raise answer
        if verify:
            raise ConnectionError("no route to host")
        return bool(answer) and not prompt

    fake_wandb(monkeypatch, login=login)
    if answer:
        check_loggers(ExpManagerConfig(**WANDB))
        return
    with pytest.raises(ConfigError, match="no API key of Weights & Biases: run `wandb login`"):
        check_loggers(ExpManagerConfig(**WANDB))
    check_loggers(ExpManagerConfig(**OFFLINE))
    monkeypatch.setenv("WANDB_MODE", "offline")
    check_loggers(ExpManagerConfig(**WANDB))


@pytest.mark.parametrize(
    "known", [["init_timeout"], ["init_timeout", "finish_timeout", "finish_timeout_raises"]]
)
def test_wandbs_own_process_ends_in_time(monkeypatch: pytest.MonkeyPatch, known: list[str]) -> None:
    fake_wandb(monkeypatch, Settings=lambda: SimpleNamespace(**dict.fromkeys(known)))
    made = with_wandb_run(ExpManagerConfig(**WANDB, wandb_logger_kwargs={"settings": {"quiet": True}}), {})
    limits = {"init_timeout": FINISH_S, "finish_timeout": FINISH_S, "finish_timeout_raises": True}
    assert made.wandb_logger_kwargs["settings"] == {"quiet": True} | {name: limits[name] for name in known}
    assert FINISH_S < CLOSE_S
    assert PAUSE_S < SPARE_S


def test_wandb_without_its_package_is_one_sentence(tmp_path: Path) -> None:
    if importlib.util.find_spec("wandb"):
        pytest.skip("wandb is installed")
    with pytest.raises(ConfigError, match="create_wandb_logger=true needs the package wandb"):
        check_loggers(ExpManagerConfig(**WANDB))
    with pytest.raises(ConfigError, match="Lightning refuses the loggers of exp_manager") as caught:
        train(tmp_path, 0, 1, **WANDB)
    assert "\n" not in str(caught.value)
