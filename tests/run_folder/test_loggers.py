"""Loggers get every record once, with the options, in one run however often it is resumed; and none stops training."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.config import ConfigError, ExpManagerConfig, RunConfig, TrainerConfig
from nemo_prorl.run_folder import loggers
from nemo_prorl.run_folder.loggers import LOGGERS_FILE, check_loggers
from nemo_prorl.run_folder.metrics_file import read_metrics
from nemo_prorl.run_folder.telemetry import RunLog, Telemetry
from nemo_prorl.types import RunState

OFFLINE = {"create_wandb_logger": True, "wandb_logger_kwargs": {"offline": True, "project": "p"}}
MLFLOW = {"create_mlflow_logger": True}


def record(step: int, stage: str = "main", **numbers: float) -> dict[str, Any]:
    return {"step": step, "stage": stage, "num_resets": 0, **numbers}


def config(folder: Path, **options: Any) -> RunConfig:
    return RunConfig(
        exp_manager=ExpManagerConfig(explicit_log_dir=str(folder), **options),
        trainer=TrainerConfig(learning_rate=3e-4),
    )


def train(
    folder: Path,
    first: int,
    last: int,
    *,
    loss: float = 1.0,
    stage: str = "main",
    lr: float = 3e-4,
    **options: Any,
) -> None:
    """A process that goes on from the checkpoint of step `first` - 1, and does the steps up to `last`."""
    made = config(folder, **options)
    made.stage.name, made.trainer.learning_rate = stage, lr
    state = RunState(stage=stage, step=max(first - 1, 0), num_records=first)
    with Telemetry(made, log=RunLog(folder, speaks=True), state=state) as log:
        for step in range(first, last + 1):
            log.step(record(step, stage, loss=loss), stage_step=step)


def said(folder: Path) -> list[str]:
    log = folder / "run.log"
    return [line.split(" ", 1)[1] for line in log.read_text().splitlines()] if log.exists() else []


class Server:
    """A logger that can be down; what it was told, and by which process."""

    name = "server"

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

    def finalize(self, status: str) -> None:
        if self.is_down():
            raise ConnectionError("no route to host")
        self.ended.append(status)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()
    monkeypatch.setattr(loggers, "lightning_loggers", lambda *_, **__: [made])
    monkeypatch.setattr(loggers, "PAUSES_S", (0.05, 0.1))
    return made


@pytest.mark.parametrize("fails", [False, True])
def test_loggers_get_options_and_records_and_hear_how_the_run_ended(
    tmp_path: Path, fails: bool, server: Server
) -> None:
    def run() -> None:
        with Telemetry(
            config(tmp_path), log=RunLog(tmp_path, speaks=True), state=RunState(stage="main")
        ) as log:
            log.step(record(0, loss=1.0), stage_step=0)
            if fails:
                raise RuntimeError("lost")

    if fails:
        with pytest.raises(RuntimeError, match="lost"):
            run()
    else:
        run()
    assert (server.told, server.ended) == ([(0, 1.0)], ["failed" if fails else "success"])
    assert server.options["trainer"]["learning_rate"] == 3e-4
    assert server.options["algorithm"]["clip_high"] == RunConfig().algorithm.clip_high


def test_a_logger_that_is_down_for_a_while_gets_everything_later(tmp_path: Path, server: Server) -> None:
    downs = iter([False, False, True])
    server.is_down = lambda: next(downs, False)
    train(tmp_path, 0, 9)
    assert server.told == [(step, 1.0) for step in range(10)]
    warnings = [line for line in said(tmp_path) if "Server" in line]
    assert warnings == [
        "warning: Server fails, and is tried again: ConnectionError: no route to host",
        "Server works again and has every record",
    ]
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 10


@pytest.mark.parametrize("num_answered", [0, 1, 9, 10])
def test_a_logger_that_first_fails_as_the_run_ends_is_tried_again(
    tmp_path: Path, server: Server, num_answered: int
) -> None:
    """The last number: it has every record, and only the end is left to tell."""
    has_ended = threading.Event()
    downs = iter([False] * num_answered + [True])
    server.is_down = lambda: has_ended.wait(10) and next(downs, False)
    feeds = loggers.Feeds(config(tmp_path), first_step=0, past=[], say=lambda _: None)
    for step in range(10):
        feeds.log(record(step, loss=1.0))
    (feed,) = feeds._feeds
    feed.close("success")
    has_ended.set()
    feed.wait(time.monotonic() + 30, 30)
    assert (server.told, server.ended) == ([(step, 1.0) for step in range(10)], ["success"])


def test_a_logger_that_stays_down_stops_nothing(tmp_path: Path, server: Server) -> None:
    server.is_down = lambda: True
    train(tmp_path, 0, 9)
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 10
    assert said(tmp_path)[-1] == "warning: Server still fails. It lacks 10 records, which metrics.jsonl has."


def test_a_logger_that_hangs_holds_up_neither_a_step_nor_the_end(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loggers, "CLOSE_S", 0.2)
    free = threading.Event()
    server.is_down = lambda: not free.wait(60)
    began = time.monotonic()
    train(tmp_path, 0, 50)
    assert time.monotonic() - began < 20
    assert said(tmp_path)[-1].startswith("warning: Server did not end within 0.2 s. It lacks 51 records")
    free.set()


def test_arguments_that_a_logger_refuses_are_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    with pytest.raises(ConfigError, match=r"refuses exp_manager\.mlflow_logger_kwargs \(.*'nonsense'"):
        train(tmp_path, 0, 1, **MLFLOW, mlflow_logger_kwargs={"nonsense": 1})


def events(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder / "tensorboard")).Reload()


def test_tensorboard_gets_the_options(tmp_path: Path) -> None:
    train(tmp_path, 0, 2, create_tensorboard_logger=True)
    found = events(tmp_path)
    assert sorted(found.Tags()["scalars"]) == ["loss", "num_resets", "step"], "no metric that nobody measured"
    (text,) = found.Tensors("options/text_summary")
    assert "| trainer.learning_rate | 0.0003 |" in text.tensor_proto.string_val[0].decode()
    from tensorboard.plugins.hparams import plugin_data_pb2

    content = found.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    start = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info
    assert start.hparams["trainer.learning_rate"].number_value == 3e-4
    assert start.hparams["stage.name"].string_value == "main"


def wandb_records(content: bytes) -> Iterator[bytes]:
    """W&B's file is LevelDB's log: blocks of 32 KiB with parts (checksum, length, type) of records, after 7 bytes."""
    position, record = 7, b""
    while position + 7 <= len(content):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        length, kind = struct.unpack("<HB", content[position + 4 : position + 7])
        record += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # the whole of a record, or its last part
            yield record
            record = b""


def is_exit(data: bytes) -> bool:
    from wandb.proto import wandb_internal_pb2

    return bool(wandb_internal_pb2.Record.FromString(data).HasField("exit"))


def history(folder: Path) -> tuple[set[str], list[dict[str, Any]], dict[str, Any]]:
    """What W&B has in the order in which `wandb sync` would send it: ids, rows, configuration."""
    from wandb.proto import wandb_internal_pb2

    ids, rows, options = set(), [], {}
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        limit = time.monotonic() + 60
        while not any(is_exit(data) for data in wandb_records(file.read_bytes())):
            assert time.monotonic() < limit, "W&B's own process writes on a moment after its run has finished"
            time.sleep(0.2)
        for data in wandb_records(file.read_bytes()):
            message = wandb_internal_pb2.Record.FromString(data)
            if message.HasField("run"):
                ids.add(message.run.run_id)
                options |= {item.key: json.loads(item.value_json) for item in message.run.config.update}
            if message.HasField("config"):
                options |= {item.key: json.loads(item.value_json) for item in message.config.update}
            if message.HasField("history"):
                items = message.history.item
                rows.append({item.key or item.nested_key[0]: json.loads(item.value_json) for item in items})
    return ids, rows, options


@pytest.mark.slow
def test_wandb_offline_is_one_run_with_the_repeated_steps_after_the_first(tmp_path: Path) -> None:
    """Killed after step 5 with a checkpoint of step 2, resumed, and paused; options of another stage come on top."""
    pytest.importorskip("wandb")
    train(tmp_path, 0, 5, **OFFLINE)
    time.sleep(1.1)  # W&B names its folders by the second
    train(tmp_path, 3, 8, loss=2.0, stage="second", lr=1e-5, **OFFLINE)
    ids, rows, options = history(tmp_path)
    assert ids == {json.loads((tmp_path / LOGGERS_FILE).read_text())["wandb"]["id"]}
    assert [(row["trainer/global_step"], row["loss"]) for row in rows] == [
        *((step, 1.0) for step in range(6)),
        *((step, 2.0) for step in range(3, 9)),
    ]
    assert [row["_step"] for row in rows] == list(range(12)), "W&B refuses rows whose own step goes back"
    assert options["trainer"]["learning_rate"] == 1e-5
    assert options["stage"]["name"] == "second"


@pytest.mark.slow
def test_mlflow_is_one_run_with_both_values_of_repeated_steps(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    pytest.importorskip("sqlalchemy")
    store = {"tracking_uri": f"sqlite:///{tmp_path}/store.db", "experiment_name": "mine"}
    for first, last, loss, lr in ((0, 5, 1.0, 3e-4), (3, 8, 2.0, 1e-5)):
        train(tmp_path, first, last, loss=loss, lr=lr, **MLFLOW, mlflow_logger_kwargs=store)
    client = MlflowClient(store["tracking_uri"])
    (experiment,) = [found for found in client.search_experiments() if found.name == "mine"]
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_id == json.loads((tmp_path / LOGGERS_FILE).read_text())["mlflow"]["id"]
    assert run.info.status == "FINISHED"
    found = sorted((value.step, value.value) for value in client.get_metric_history(run.info.run_id, "loss"))
    assert found == sorted([*((step, 1.0) for step in range(6)), *((step, 2.0) for step in range(3, 9))])
    assert run.data.metrics["loss"] == 2.0
    assert run.data.params["trainer.learning_rate"] == "0.0003"
    assert run.data.tags["changed.trainer.learning_rate"] == "1e-05"
    assert len(run.data.params) > 100


@pytest.mark.slow
def test_a_run_that_begins_anew_in_the_folder_is_a_new_one_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    ids = set()
    for _ in range(2):
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)  # MLflow sets it for its process
        train(tmp_path, 0, 2, **MLFLOW)
        ids.add(json.loads((tmp_path / LOGGERS_FILE).read_text())["mlflow"]["id"])
    assert len(ids) == 2
    assert (tmp_path / "mlflow.db").is_file(), "in the run's own folder, unless another place is named"


@pytest.mark.slow
def test_a_logger_that_is_switched_on_later_gets_the_steps_before(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    train(tmp_path, 0, 4)
    train(tmp_path, 5, 6, **OFFLINE)
    assert [row["trainer/global_step"] for row in history(tmp_path)[1]] == list(range(7))


def test_wandb_without_a_key_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    with pytest.raises(ConfigError, match="no API key of Weights & Biases: run `wandb login`"):
        check_loggers(ExpManagerConfig(create_wandb_logger=True))
    check_loggers(ExpManagerConfig(**OFFLINE))
    monkeypatch.setenv("WANDB_MODE", "offline")
    check_loggers(ExpManagerConfig(create_wandb_logger=True))
