"""W&B and MLflow, as far as fakes of them can show it: keys, time limits, refusals, and which run is continued."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from nemo_prorl.config import ConfigError, ExpManagerConfig
from nemo_prorl.run_folder import loggers
from nemo_prorl.run_folder.logger_runs import FINISH_S, LOGGERS_FILE, Marks, with_ids
from nemo_prorl.run_folder.loggers import CLOSE_S, PAUSE_S, check_loggers
from nemo_prorl.run_folder.telemetry import RunLog, Telemetry
from nemo_prorl.training.deadline import SPARE_S
from nemo_prorl.types import RunState
from tests.run_folder.test_loggers import Server, config, record, said, train

WANDB = {"create_wandb_logger": True}
MLFLOW = {"create_mlflow_logger": True}


class WandbLogger(Server):
    """On a server that keeps the rows of a run by their number, and ignores those that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[int, tuple[int, float]] = {}
        self.offline, self.id, self.save_dir = False, "x", "runs/mine"
        self.finish: Callable[..., None] = lambda exit_code: None

    @property
    def experiment(self) -> WandbLogger:
        return self

    @property
    def starting_step(self) -> int:
        return 0 if self.offline else max(self.rows, default=-1) + 1

    def log(self, numbers: dict[str, float], step: int, commit: bool) -> None:
        if self.is_down():
            raise ConnectionError("no route to host")
        self.told.append((step, numbers["loss"]))
        self.rows.setdefault(step, (int(numbers["trainer/global_step"]), numbers["loss"]))


class MLFlowLogger(Server):
    """Refuses what MLflow refuses."""

    run_id = "r"

    def __init__(self) -> None:
        super().__init__()
        self.params: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.metrics: list[dict[str, float]] = []
        self.latest: dict[int, float] = {}

    @property
    def experiment(self) -> MLFlowLogger:
        return self

    def update_run(self, run_id: str, status: str) -> None:
        pass

    def get_run(self, run_id: str) -> Any:
        return SimpleNamespace(data=SimpleNamespace(params=dict(self.params)))

    def log_batch(self, run_id: str, params: Any = (), tags: Any = ()) -> None:
        self.params |= dict(params)
        self.tags |= dict(tags)

    def log_metrics(self, numbers: dict[str, float], step: int) -> None:
        if numbers["loss"] == 13:
            error = RuntimeError("not this")
            error.error_code = "INVALID_PARAMETER_VALUE"  # type: ignore[attr-defined]
            raise error
        if self.is_down():
            raise ConnectionError("no route to host")
        self.metrics.append(numbers)
        self.latest[step] = numbers["loss"]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    monkeypatch.setattr(loggers, "PAUSES_S", (0.05, 0.1))
    entities = ModuleType("mlflow.entities")
    entities.Param = entities.RunTag = lambda name, value: (name, value)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", ModuleType("mlflow"))
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)

    def use(made: Any) -> Any:
        monkeypatch.setattr(loggers, "lightning_loggers", lambda *_, **__: [made])
        return made

    return use


def fake_wandb(monkeypatch: pytest.MonkeyPatch, **contents: Any) -> None:
    module = ModuleType("wandb")
    module.__spec__ = ModuleSpec("wandb", None)
    module.__dict__.update(contents)
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_MODE", raising=False)


@pytest.mark.parametrize("is_logged_in", [True, False])
def test_a_key_is_looked_for_without_the_server(monkeypatch: pytest.MonkeyPatch, is_logged_in: bool) -> None:
    def login(prompt: bool = True, verify: bool = True) -> bool:
        if verify:
            raise ConnectionError("no route to host")
        return is_logged_in and not prompt

    fake_wandb(monkeypatch, login=login)
    if is_logged_in:
        check_loggers(ExpManagerConfig(create_wandb_logger=True))
    else:
        with pytest.raises(ConfigError, match="no API key of Weights & Biases"):
            check_loggers(ExpManagerConfig(create_wandb_logger=True))


def test_a_key_that_wandb_dislikes_does_not_stop_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def login(prompt: bool = True, verify: bool = True) -> bool:
        raise ValueError("the key has 39 characters")

    fake_wandb(monkeypatch, login=login)
    check_loggers(ExpManagerConfig(create_wandb_logger=True))


@pytest.mark.parametrize("has_limit", [True, False])
def test_wandbs_own_process_ends_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_limit: bool
) -> None:
    finish = {"finish_timeout": 0.0, "finish_timeout_raises": False} if has_limit else {}
    settings = SimpleNamespace(init_timeout=90.0, **finish)
    fake_wandb(monkeypatch, Settings=lambda: settings)
    options = ExpManagerConfig(create_wandb_logger=True, wandb_logger_kwargs={"settings": {"quiet": True}})
    made = with_ids(options, Marks(tmp_path / LOGGERS_FILE, is_new=True))
    limits = {"finish_timeout": FINISH_S, "finish_timeout_raises": True} if has_limit else {}
    assert made.wandb_logger_kwargs["settings"] == {"quiet": True, "init_timeout": FINISH_S} | limits
    assert FINISH_S < CLOSE_S
    assert PAUSE_S < SPARE_S


def test_what_wandb_has_not_uploaded_in_time_can_be_sent_by_hand(tmp_path: Path, use: Any) -> None:
    def finish(exit_code: int) -> None:
        raise TimeoutError

    use(WandbLogger()).finish = finish
    train(tmp_path, 0, 2, **WANDB)
    (warning,) = [line for line in said(tmp_path) if line.startswith("warning")]
    assert "has not taken everything within 30 s" in warning
    assert "`wandb sync runs/mine/wandb/run-*`" in warning


@pytest.mark.parametrize(
    ("offline", "rows", "steps"),
    [(False, [3, 4, 5, 6, 7, 8], [3, 4, 5, 6, 7, 8]), (True, [6, 7, 8, 9], [5, 6, 7, 8])],
)
def test_what_wandb_has_not_uploaded_is_sent_again(
    tmp_path: Path, use: Any, offline: bool, rows: list[int], steps: list[int]
) -> None:
    """The first process has handed over 6 records, of which 3 were uploaded; the second goes on after step 4."""
    made = use(WandbLogger())
    made.offline = offline
    train(tmp_path, 0, 5, **WANDB)
    made.rows = {} if offline else {step: (step, 1.0) for step in range(3)}
    train(tmp_path, 5, 8, loss=2.0, **WANDB)
    found = {row: value for row, value in made.rows.items() if row >= rows[0]}
    assert found == {row: (step, 1.0 if step < 5 else 2.0) for row, step in zip(rows, steps, strict=True)}


@pytest.mark.parametrize("options", [WANDB, MLFLOW])
@pytest.mark.parametrize("is_down", [False, True])
def test_what_a_resumed_run_and_the_next_stage_record_arrives(
    tmp_path: Path, use: Any, options: dict[str, Any], is_down: bool
) -> None:
    """Killed after step 30 with a checkpoint of step 19, resumed on another path to step 25, and the next stage. The
    logger may be down during the whole of the resumed process."""
    made = use(WandbLogger() if options is WANDB else MLFlowLogger())
    train(tmp_path, 0, 30, **options)
    made.is_down = lambda: is_down
    train(tmp_path, 20, 25, loss=2.0, **options)
    made.is_down = lambda: False
    train(tmp_path, 26, 39, loss=3.0, stage="second", **options)
    latest = dict(made.rows.values()) if options is WANDB else made.latest
    assert latest == {step: 1.0 if step < 20 else 2.0 if step < 26 else 3.0 for step in range(40)}


@pytest.mark.parametrize(
    ("options", "change", "continues"),
    [
        (WANDB, {"wandb_logger_kwargs": {"project": "p"}}, True),
        (WANDB, {"wandb_logger_kwargs": {"project": "q"}}, False),
        (WANDB, {"wandb_logger_kwargs": {"project": "p", "id": "mine"}}, False),
        (WANDB, {"wandb_logger_kwargs": {"project": "p", "name": "other"}}, True),
        (MLFLOW, {"mlflow_logger_kwargs": {}}, True),
        (MLFLOW, {"mlflow_logger_kwargs": {"tracking_uri": "http://user:secret@host"}}, False),
        (MLFLOW, {"mlflow_logger_kwargs": {"run_id": "other"}}, False),
    ],
)
def test_a_run_elsewhere_gets_everything(
    tmp_path: Path, options: dict[str, Any], change: dict[str, Any], continues: bool
) -> None:
    name = "wandb" if options is WANDB else "mlflow"
    file = tmp_path / LOGGERS_FILE
    before = ExpManagerConfig(**options, wandb_logger_kwargs={"project": "p"})
    marks = Marks(file, is_new=True)
    with_ids(before, marks)
    marks.note(name, id="first", num_records=7)
    marks = Marks(file, is_new=False)
    made = with_ids(ExpManagerConfig(**options, **change), marks)
    assert marks.num_records(name) == (7 if continues else 0)
    arguments = getattr(made, f"{name}_logger_kwargs")
    assert (arguments.get("id" if name == "wandb" else "run_id") == "first") is continues
    marks.note(name, id="second", num_records=0)
    assert "secret" not in file.read_text()


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("trainer.learning_rate", "trainer.learning_rate"),
        ("data.train.OWNER/NAME", "data.train.OWNER/NAME"),
        ("data.train.a//b.jsonl", "data.train.a__b.jsonl"),
        ("data.train./x/../y", "data.train._x_.._y"),
        ("../x", ".._x"),
        ("reward/math (hard)/mean", "reward/math _hard_/mean"),
        ("x" * 239 + "/y", "x" * 239 + "_"),
    ],
)
def test_names_as_mlflow_takes_them(name: str, sent: str) -> None:
    assert loggers._mlflow_name(name) == sent


def test_what_mlflow_refuses_does_not_hold_up_the_rest(tmp_path: Path, use: Any) -> None:
    made = use(MLFlowLogger())
    with Telemetry(
        config(tmp_path, **MLFLOW), log=RunLog(tmp_path, speaks=True), state=RunState(stage="main")
    ) as log:
        for step, loss in enumerate((1.0, 13.0, 13.0, 2.0)):
            log.step(record(step, loss=loss, **{"x/a:b": 3.0}), stage_step=step)
    assert [(row["loss"], row["x/a_b"]) for row in made.metrics] == [(1.0, 3.0), (2.0, 3.0)]
    (warning,) = [line for line in said(tmp_path) if line.startswith("warning")]
    assert warning.startswith("warning: MLFlow refuses the record of step 1, and may refuse more")
    assert made.ended == ["success"]


@pytest.mark.medium
@pytest.mark.parametrize("ends", ["pause", "ctrl-c", "done"])
def test_loggers_that_hang_share_one_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """A pause waits less, because the time of the job is up."""
    monkeypatch.setattr(loggers, "CLOSE_S", 1.5)
    monkeypatch.setattr(loggers, "PAUSE_S", 0.3)
    made, free = [Server() for _ in range(4)], threading.Event()
    for server in made:
        server.is_down = lambda: not free.wait(30)
    monkeypatch.setattr(loggers, "lightning_loggers", lambda *_, **__: made)
    began = 0.0
    try:
        with Telemetry(
            config(tmp_path), log=RunLog(tmp_path, speaks=True), state=RunState(stage="main")
        ) as log:
            log.step(record(0, loss=1.0), stage_step=0)
            log.is_paused = ends == "pause"
            began = time.monotonic()
            if ends == "ctrl-c":
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    took_s = time.monotonic() - began
    free.set()
    limit_s = 1.5 if ends == "done" else 0.3
    assert limit_s <= took_s < 3 * limit_s + 0.5
    assert sum(f"did not end within {limit_s:g} s" in line for line in said(tmp_path)) == 4


def test_a_full_disk_does_not_end_a_loggers_thread(
    tmp_path: Path, use: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = use(Server())
    downs = iter([True])
    made.is_down = lambda: next(downs, False)
    log = RunLog(tmp_path, speaks=True)

    def no_room(text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log, "say", no_room)
    feeds = loggers.Feeds(config(tmp_path), first_step=0, past=[], say=log.say)
    for step in range(3):
        feeds.log(record(step, loss=1.0))
    limit = time.monotonic() + 10
    while len(made.told) < 3 and time.monotonic() < limit:
        time.sleep(0.01)
    feeds.close("success")
    assert made.told == [(step, 1.0) for step in range(3)]
    assert made.ended == ["success"]


def test_a_record_that_comes_just_before_the_end_is_not_left_out(tmp_path: Path, use: Any) -> None:
    """It and the end come just after the thread has found its queue empty."""
    made = use(Server())
    feeds = loggers.Feeds(config(tmp_path), first_step=0, past=[], say=lambda text: None)
    (feed,) = feeds._feeds

    class Queue(deque[Any]):
        def __bool__(self) -> bool:
            if len(self):
                return True
            if made.told and not feed._status:
                feed.put(record(1, loss=1.0))
                feed.close("success")
            return False

    feed._queue = Queue()
    feeds.log(record(0, loss=1.0))
    feed._thread.join(10)
    assert [step for step, _ in made.told] == [0, 1]
    assert made.ended == ["success"]
