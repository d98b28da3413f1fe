"""TensorBoard, Weights & Biases and NeMo's loggers, as Lightning makes them (docs/monitoring.md).

Each has a thread of its own, so that training never waits for it. One that fails is left alone for the rest of the
process: metrics.jsonl has every record, and W&B gets what it lacks at the next start.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from nemo_prorl.config import ConfigError, ExpManagerConfig, RunConfig, one_line
from nemo_prorl.run_folder.nemo_toolkit import nemo_loggers, wants_nemo
from nemo_prorl.run_folder.storage import read_json, replace_text

WANDB_FILE = "wandb.json"
"""File in a run's folder: {"id": of its run at W&B, "num_records": how many records of the run it was handed}."""
FINISH_S = 30.0
"""How long W&B's own process may upload after the end of a run; Python's exit waits for it, by default forever."""
CLOSE_S = 60.0
"""How long the end of a run waits for its loggers, all together."""
PAUSE_S = 4.0
"""The same for a run that is paused or interrupted, whose time may be up."""


def check_loggers(config: ExpManagerConfig) -> None:
    """Raises ConfigError if a logger needs a package, or an API key, that is missing."""
    if config.create_wandb_logger and importlib.util.find_spec("wandb") is None:
        raise ConfigError(
            "exp_manager.create_wandb_logger=true needs the package wandb: install it (pip install wandb), or write "
            "false."
        )
    mode = config.wandb_logger_kwargs.get("mode") or os.environ.get("WANDB_MODE", "online")
    is_online = mode == "online" and not config.wandb_logger_kwargs.get("offline")
    if not config.create_wandb_logger or not is_online:
        return
    import wandb

    try:  # without a prompt, and without asking the server, which may be down at the start
        has_key = bool(wandb.login(prompt=False, verify=False))
    except Exception:  # a missing key raises nothing, and whatever is wrong with one must not stop the run
        has_key = True
    if not has_key:
        raise ConfigError(
            "exp_manager.create_wandb_logger=true finds no API key of Weights & Biases: run `wandb login`, set "
            "WANDB_API_KEY, or write 'exp_manager.wandb_logger_kwargs={offline: true}'."
        )


class Loggers:
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
        from nemo_prorl.config.compose import to_dict  # loads Hydra

        exp_manager, self._say, options = config.exp_manager, say, to_dict(config)
        file = Path(exp_manager.explicit_log_dir) / WANDB_FILE
        if not past:  # what the file says belongs to a run that was there before
            file.unlink(missing_ok=True)
        known = read_json(file)
        if exp_manager.create_wandb_logger:
            exp_manager = with_wandb_run(exp_manager, known)
        run_id = exp_manager.wandb_logger_kwargs.get("id", "")
        make = nemo_loggers if wants_nemo(exp_manager) else lightning_loggers
        self._feeds = []
        for logger in make(exp_manager, first_step=first_step):
            if type(logger).__name__ == "WandbLogger":
                num_told = int(known["num_records"]) if known.get("id") == run_id else 0
                feed = _Feed(logger, options, say, num_told=num_told, file=file, run_id=run_id)
            else:
                feed = _Feed(logger, options, say, num_told=len(past))
            self._feeds.append(feed)
        for record in past:
            self.log(record)

    def log(self, record: Mapping[str, Any]) -> None:
        """Takes the next record of metrics.jsonl; returns at once."""
        for feed in self._feeds:
            feed.queue.put(record)

    def close(self, status: str, *, is_pause: bool = False) -> None:
        """Tells every logger "success" or "failed", and waits for all together at most CLOSE_S, or PAUSE_S."""
        limit_s = PAUSE_S if is_pause else CLOSE_S
        end = time.monotonic() + limit_s
        for feed in self._feeds:
            feed.queue.put(status)
        for feed in self._feeds:
            feed.thread.join(max(0.0, end - time.monotonic()))
            if feed.thread.is_alive():
                self._say(
                    f"warning: {feed.title} did not end within {limit_s:g} s; metrics.jsonl has every record"
                )


class _Feed:
    """Hands the records of a run to one logger, in their order. W&B cannot delete rows, so it does not get again what a
    resumed run repeats: a file says how many records it has."""

    def __init__(
        self,
        logger: Any,
        options: dict[str, Any],
        say: Callable[[str], None],
        *,
        num_told: int,
        file: Path | None = None,
        run_id: str = "",
    ) -> None:
        """num_told: how many of the records the logger has already. file: WANDB_FILE, for W&B's run `run_id` alone."""
        self._logger, self._options, self._say, self._num_told = logger, options, say, num_told
        self._file, self._run_id = file, run_id
        self.title = type(logger).__name__.removesuffix("Logger")
        self.queue: SimpleQueue[Mapping[str, Any] | str] = SimpleQueue()
        """Records, and at last the word for how the run has ended."""
        self.thread = threading.Thread(target=self._run, name=f"logger {self.title}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._logger.log_hyperparams(self._options)
            for index in count():
                if isinstance(record := self.queue.get(), str):
                    break
                if index >= self._num_told:
                    numbers = {key: value for key, value in record.items() if isinstance(value, int | float)}
                    self._logger.log_metrics(numbers, step=int(record["step"]))
                    self._logger.save()  # TensorBoard's: a killed process would lose what it has not flushed
                    if self._file:
                        told = {"id": self._run_id, "num_records": index + 1}
                        replace_text(self._file, json.dumps(told) + "\n")
            self._logger.finalize(record)
            if self._file:
                self._logger.experiment.finish(exit_code=int(record != "success"))
        except Exception as error:  # whatever it is, training goes on
            with suppress(OSError):  # such as a full disk
                self._say(
                    f"warning: {self.title} fails and gets nothing more from this process; metrics.jsonl has every "
                    f"record ({one_line(error)})"
                )


def with_wandb_run(config: ExpManagerConfig, known: Mapping[str, Any]) -> ExpManagerConfig:
    """Returns the options with the id of W&B's run: the user's, that of the run's earlier processes (`known`, the
    content of WANDB_FILE), or a new one. Also limits how long W&B waits for its server, at the start and at the end."""
    given = dict(config.wandb_logger_kwargs)
    run_id = str(given.get("id") or given.get("version") or known.get("id") or secrets.token_hex(4))
    limits: dict[str, Any] = {
        "init_timeout": FINISH_S,
        "finish_timeout": FINISH_S,
        "finish_timeout_raises": True,
    }
    with suppress(ImportError):  # the logger says so itself
        import wandb

        settings = wandb.Settings()  # an old version has not all of them
        limits = {name: value for name, value in limits.items() if hasattr(settings, name)}
    return replace(
        config,
        wandb_logger_kwargs={
            **given,
            "id": run_id,
            "settings": {**limits, **dict(given.get("settings") or {})},
        },
    )


def lightning_loggers(config: ExpManagerConfig, *, first_step: int) -> list[Any]:
    """Returns the loggers that exp_manager asks for. TensorBoard's hides what was recorded from `first_step` on.
    Raises ConfigError for arguments that one refuses, or if a package is missing."""
    loggers: list[Any] = []
    folder = config.explicit_log_dir
    try:
        if config.create_tensorboard_logger:
            from lightning.pytorch.loggers import TensorBoardLogger

            # Without a version Lightning would create a new folder each time the run is resumed.
            tensorboard = TensorBoardLogger(folder, name="tensorboard", version="", purge_step=first_step)
            loggers.append(tensorboard)
        if config.create_wandb_logger:
            from lightning.pytorch.loggers import WandbLogger

            loggers.append(WandbLogger(**{"save_dir": folder, **config.wandb_logger_kwargs}))
    except Exception as error:  # nothing is sent yet: a package is missing, or it is the arguments
        raise ConfigError(
            f"Lightning refuses the loggers of exp_manager ({one_line(error)}): install what is missing, mend "
            "exp_manager.wandb_logger_kwargs, or write false for create_tensorboard_logger and create_wandb_logger."
        ) from error
    return loggers
