"""TensorBoard, Weights & Biases, MLflow and NeMo's loggers, each fed by a thread of its own.

Training never waits for a logger, and none can stop it: what cannot be delivered is tried again, with one warning in
the log, and metrics.jsonl has every record anyway. A resumed run continues its run at Weights & Biases and at MLflow
(logger_runs.py), and sends what it repeats again, because it may differ. See docs/monitoring.md.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import posixpath
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nemo_prorl.config import ConfigError, ExpManagerConfig, RunConfig
from nemo_prorl.run_folder.logger_runs import FINISH_S, LOGGERS_FILE, Marks, with_ids
from nemo_prorl.run_folder.nemo_toolkit import nemo_loggers, wants_nemo
from nemo_prorl.run_folder.origin import flatten

PAUSES_S = (5.0, 30.0, 120.0, 600.0)
"""Between tries after the first failure, the second and so on; the last one stays."""
CLOSE_S = 60.0
"""How long the end of a run waits for its loggers, all together."""
PAUSE_S = 4.0
"""The same for a run that is paused or interrupted: its time may be up, and its next start delivers the rest."""
MAX_MLFLOW_VALUE = 6000
"""Characters of a parameter that MLflow keeps."""
MLFLOW_BATCH = 100
"""Parameters that MLflow takes at once."""
MAX_MLFLOW_NAME = 240
"""Characters of a name that we send to MLflow, which refuses more than 250; the rest is for `changed.`."""


def check_loggers(config: ExpManagerConfig) -> None:
    """Raises ConfigError if a logger needs a package, or an API key, that is missing."""
    for package in ("wandb", "mlflow"):
        if getattr(config, f"create_{package}_logger") and importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"exp_manager.create_{package}_logger=true needs the package {package}: install it "
                f"(pip install {package}), or write false."
            )
    mode = config.wandb_logger_kwargs.get("mode") or os.environ.get("WANDB_MODE", "online")
    is_online = mode == "online" and not config.wandb_logger_kwargs.get("offline")
    if not config.create_wandb_logger or not is_online:
        return
    import wandb

    try:  # without a prompt, and without asking the server, which may be down at the start
        if "prompt" in inspect.signature(wandb.login).parameters:
            has_key = bool(wandb.login(prompt=False, verify=False))
        else:
            has_key = bool(wandb.api.api_key)
    except Exception:  # a missing key raises nothing, and whatever is wrong with one must not stop the run
        has_key = True
    if not has_key:
        raise ConfigError(
            "exp_manager.create_wandb_logger=true finds no API key of Weights & Biases: run `wandb login`, set "
            "WANDB_API_KEY, or write 'exp_manager.wandb_logger_kwargs={offline: true}'."
        )


class Feeds:
    """All loggers of a run. Only the main rank has them."""

    def __init__(
        self,
        config: RunConfig,
        *,
        first_step: int,
        past: Sequence[Mapping[str, Any]],
        say: Callable[[str], None],
    ) -> None:
        """`past`: the records that lead up to `first_step`, empty for a run that begins. Raises ConfigError for
        options that a logger refuses."""
        exp_manager = config.exp_manager
        marks = Marks(Path(exp_manager.explicit_log_dir) / LOGGERS_FILE, is_new=not past)
        exp_manager = with_ids(exp_manager, marks)
        make = nemo_loggers if wants_nemo(exp_manager) else lightning_loggers
        kinds = {
            "WandbLogger": _WandbFeed,
            "MLFlowLogger": _MlflowFeed,
            "TensorBoardLogger": _TensorBoardFeed,
        }
        self._feeds = [
            kinds.get(type(logger).__name__, _Feed)(logger, config=config, marks=marks, past=past, say=say)
            for logger in make(exp_manager, first_step=first_step)
        ]

    def log(self, record: Mapping[str, Any]) -> None:
        """Takes the next record of metrics.jsonl; returns at once."""
        for feed in self._feeds:
            feed.put(record)

    def close(self, status: str, *, is_pause: bool = False) -> None:
        """Delivers what is left and tells every logger "success" or "failed", for at most CLOSE_S, or PAUSE_S."""
        limit_s = PAUSE_S if is_pause else CLOSE_S
        end = time.monotonic() + limit_s
        for feed in self._feeds:
            feed.close(status)
        for feed in self._feeds:
            feed.wait(end, limit_s)


def lightning_loggers(config: ExpManagerConfig, *, first_step: int) -> list[Any]:
    """Returns the loggers that exp_manager asks for. TensorBoard's hides what was recorded from `first_step` on.
    Raises ConfigError for arguments that one refuses, or if a package is missing."""
    folder, mlflow = config.explicit_log_dir, dict(config.mlflow_logger_kwargs)
    if not {"tracking_uri", "save_dir"} & mlflow.keys() and "MLFLOW_TRACKING_URI" not in os.environ:
        # A database in the run's folder: a requeued job finds its run whatever its working folder is.
        Path(folder).resolve().mkdir(parents=True, exist_ok=True)
        mlflow["tracking_uri"] = f"sqlite:///{Path(folder).resolve() / 'mlflow.db'}"
    wanted = {
        "create_tensorboard_logger": (
            "TensorBoardLogger",
            # Without a version Lightning would create a new folder each time the run is resumed.
            {"save_dir": folder, "name": "tensorboard", "version": "", "purge_step": first_step},
        ),
        "create_wandb_logger": ("WandbLogger", {"save_dir": folder, **config.wandb_logger_kwargs}),
        "create_mlflow_logger": ("MLFlowLogger", mlflow),
    }
    loggers: list[Any] = []
    for switch, (class_name, arguments) in wanted.items():
        if not getattr(config, switch):
            continue
        import lightning.pytorch.loggers as available

        try:
            loggers.append(getattr(available, class_name)(**arguments))
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"exp_manager.{switch}=true needs a package that is not installed ({error}): install it, or write "
                f"exp_manager.{switch}=false."
            ) from error
        except Exception as error:  # nothing is sent yet: it can only be the arguments
            options = switch.replace("create_", "exp_manager.") + "_kwargs"
            raise ConfigError(
                f"{class_name} refuses {options} ({_one_line(error)}): mend or remove them, or write "
                f"exp_manager.{switch}=false."
            ) from error
    return loggers


class _Feed:
    """Delivers records to one of Lightning's loggers, in their order."""

    name = ""
    """In RUN/loggers.json; empty for a logger that cannot continue its run, and gets new records only."""

    def __init__(
        self,
        logger: Any,
        *,
        config: RunConfig,
        marks: Marks,
        past: Sequence[Mapping[str, Any]],
        say: Callable[[str], None],
    ) -> None:
        self._logger, self._config, self._marks, self._tell = logger, config, marks, say
        self._title = type(logger).__name__.removesuffix("Logger")
        self._num_marked, self._num_rows = marks.num_records(self.name), marks.num_rows(self.name)
        """Records that it had when this process began, and rows: with those that later processes repeated."""
        self._num_sent = min(self._num_marked, len(past)) if self.name else len(past)
        """Records that it has and that are still true, which are not sent again."""
        if self.name:
            marks.note(self.name, num_records=self._num_sent)
        self._num_put = len(past)
        self._queue = deque(enumerate(past))
        self._run_id = ""
        """The logger's name for the run, known once it is open."""
        self._has_refused = False
        self._changed = threading.Condition()
        self._status = ""
        """How the run has ended, once it has."""
        self._thread = threading.Thread(target=self._run, name=f"logger {self._title}", daemon=True)
        self._thread.start()

    def put(self, record: Mapping[str, Any]) -> None:
        with self._changed:
            self._queue.append((self._num_put, record))
            self._num_put += 1
            self._changed.notify()

    def close(self, status: str) -> None:
        with self._changed:
            self._status = status
            self._changed.notify()

    def wait(self, end: float, limit_s: float) -> None:
        """Waits until `end` (of time.monotonic), `limit_s` after the run's end."""
        self._thread.join(max(0.0, end - time.monotonic()))
        if self._thread.is_alive():
            self._say(f"warning: {self._title} did not end within {limit_s:g} s. {self._what_is_missing()}")

    def _say(self, text: str) -> None:
        with suppress(OSError):  # such as a full disk, which must not end the thread
            self._tell(text)

    def _run(self) -> None:
        num_failures, is_open, is_done = 0, False, False
        while not is_done:
            try:
                if not is_open:
                    self._open()
                    is_open = True
                is_done = self._deliver()
                if num_failures:
                    self._say(f"{self._title} works again and has every record")
                num_failures = 0
            except Exception as error:  # whatever it is, training goes on
                if not num_failures:
                    self._say(f"warning: {self._title} fails, and is tried again: {_one_line(error)}")
                num_failures += 1
                is_done = self._pause(num_failures)
        if num_failures:
            self._say(f"warning: {self._title} still fails. {self._what_is_missing()}")

    def _deliver(self) -> bool:
        """Sends what is there, and waits for more if nothing is. Returns whether the run has ended."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._queue or self._status))
            status = self._status  # read before the queue, so that no record can come after it
        while self._queue:
            index, record = self._queue[0]
            if index >= self._num_sent:
                self._send_or_skip(record)
                self._num_rows += 1
                if self.name:
                    self._marks.note(
                        self.name, id=self._run_id, num_records=index + 1, num_rows=self._num_rows
                    )
            self._queue.popleft()
        if status:
            self._end(status)
        return bool(status)

    def _send_or_skip(self, record: Mapping[str, Any]) -> None:
        """Skips a record that the logger refuses, because it would refuse it each time and never get the next one."""
        numbers = {key: value for key, value in record.items() if isinstance(value, int | float)}
        try:
            self._send(int(record["step"]), numbers)
        except Exception as error:
            if not _is_refusal(error):
                raise
            self._refused(f"the record of step {record['step']}", error)

    def _refused(self, what: str, error: Exception) -> None:
        if not self._has_refused:
            self._say(f"warning: {self._title} refuses {what}, and may refuse more: {_one_line(error)}")
        self._has_refused = True

    def _pause(self, num_failures: int) -> bool:
        """Waits before the next try, and returns whether there is none. The end of the run cuts the wait short, and
        comes before one more try, even if the first failure comes after it."""
        with self._changed:
            had_ended = bool(self._status)
            if had_ended and num_failures > 1:
                return True
            seconds = PAUSES_S[min(num_failures, len(PAUSES_S)) - 1]
            self._changed.wait_for(lambda: bool(self._status) and not had_ended, seconds)
            return False

    def _what_is_missing(self) -> str:
        num_missing = sum(index >= self._num_sent for index, _ in list(self._queue))
        if not num_missing:
            return "It has every record."
        later = "; the next start of this run delivers them" if self.name else ""
        return f"It lacks {num_missing} records, which metrics.jsonl has{later}."

    def _open(self) -> None:
        """Tells it the options."""
        self._logger.log_hyperparams(_options(self._config))

    def _send(self, step: int, numbers: dict[str, float]) -> None:
        self._logger.log_metrics(numbers, step=step)

    def _end(self, status: str) -> None:
        self._logger.finalize(status)


class _TensorBoardFeed(_Feed):
    def _open(self) -> None:
        """The options for its tab HPARAMS, compared by the metrics that are there anyway, and as a text."""
        from torch.utils.tensorboard.summary import hparams

        options = _options(self._config)
        self._logger.log_hyperparams(options, metrics={})  # it would invent a metric of its own
        self._logger.save()
        flat = {
            name: value if isinstance(value, bool | int | float | str) else json.dumps(value)
            for name, value in flatten(options)
        }
        writer = self._logger.experiment
        for summary in hparams(flat, dict.fromkeys(("reward/mean", "validation/score"), 0.0)):
            writer._get_file_writer().add_summary(summary)
        rows = "\n".join(f"| {name} | {value} |" for name, value in flat.items())
        writer.add_text("options", f"| option | value |\n|---|---|\n{rows}", self._num_put)

    def _send(self, step: int, numbers: dict[str, float]) -> None:
        """Flushed, because a killed process would lose what its checkpoint counts as told."""
        self._logger.log_metrics(numbers, step=step)
        self._logger.experiment.flush()


class _WandbFeed(_Feed):
    name = "wandb"

    def _open(self) -> None:
        """What a process before has handed to W&B may not have been uploaded: the server says how many rows it has."""
        self._logger.log_hyperparams(_options(self._config))
        run = self._logger.experiment
        self._run_id = str(run.id)
        if not run.offline:
            num_lost = max(0, self._marks.num_rows(self.name) - int(run.starting_step))
            self._num_sent = max(0, min(self._num_sent, self._num_marked - num_lost))
            self._num_rows = int(run.starting_step)

    def _send(self, step: int, numbers: dict[str, float]) -> None:
        """Numbers the rows as W&B's own steps, which must not go back. A repeated step is a new row."""
        row = {**numbers, "trainer/global_step": step}
        self._logger.experiment.log(row, step=self._num_rows, commit=True)

    def _end(self, status: str) -> None:
        self._logger.finalize(status)
        try:
            self._logger.experiment.finish(exit_code=int(status != "success"))
        except TimeoutError:
            self._say(
                f"warning: {self._title} has not taken everything within {FINISH_S:g} s. {self._what_is_missing()}"
            )

    def _what_is_missing(self) -> str:
        """W&B's own process has what is no longer in the queue, but perhaps not the server."""
        files = Path(self._logger.save_dir or ".") / "wandb" / "run-*"
        return (
            f"What it lacks is in metrics.jsonl and {files}: `wandb sync {files}` sends the latter, and the next start "
            "of this run sends everything."
        )


class _MlflowFeed(_Feed):
    name = "mlflow"

    def _open(self) -> None:
        """Its parameters cannot change: of a later stage, or a resume with other options, those that differ become tags
        named changed.OPTION."""
        from mlflow.entities import Param, RunTag

        client, run_id = self._logger.experiment, str(self._logger.run_id)
        self._run_id = run_id
        self._marks.note(self.name, id=run_id)
        client.update_run(run_id, status="RUNNING")
        known = client.get_run(run_id).data.params
        flat = flatten(_options(self._config))
        options = {_mlflow_name(name): str(value)[:MAX_MLFLOW_VALUE] or "''" for name, value in flat}
        fresh = [Param(name, value) for name, value in options.items() if name not in known]
        differing = {name: value for name, value in options.items() if value != known.get(name, value)}
        changed = [RunTag(f"changed.{name}", value) for name, value in differing.items()]
        try:
            for start in range(0, max(len(fresh), len(changed)), MLFLOW_BATCH):
                part = slice(start, start + MLFLOW_BATCH)
                client.log_batch(run_id, params=fresh[part], tags=changed[part])
        except Exception as error:
            if not _is_refusal(error):
                raise
            self._refused("an option of the run", error)

    def _send(self, step: int, numbers: dict[str, float]) -> None:
        self._logger.log_metrics({_mlflow_name(name): value for name, value in numbers.items()}, step=step)


def _mlflow_name(name: str) -> str:
    """Returns the name as MLflow takes it: no characters but letters, digits and _/.- and space, and no path that could
    be written differently, such as a//b."""
    name = re.sub(r"[^\w/.\- ]", "_", name)[:MAX_MLFLOW_NAME]
    return name if name == posixpath.normpath(name) and name[0] not in "./" else name.replace("/", "_")


def _is_refusal(error: Exception) -> bool:
    """Whether it is about what was sent, so that it would come again each time, and no outage."""
    is_about_value = isinstance(error, ValueError | TypeError)
    is_outage = isinstance(error, OSError | json.JSONDecodeError)  # the latter: a page of a proxy
    return getattr(error, "error_code", "") == "INVALID_PARAMETER_VALUE" or (is_about_value and not is_outage)


def _options(config: RunConfig) -> dict[str, Any]:
    from nemo_prorl.config.compose import to_dict  # loads Hydra

    return to_dict(config)


def _one_line(error: Exception) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 300 else f"{text[:300]} ..."
