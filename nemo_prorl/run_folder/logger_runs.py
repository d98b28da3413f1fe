"""RUN/loggers.json: the runs at Weights & Biases and MLflow that a run folder continues, and what they have."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from nemo_prorl.config import ExpManagerConfig
from nemo_prorl.run_folder.storage import replace_text

LOGGERS_FILE = "loggers.json"
FINISH_S = 30.0
"""How long W&B's own process may upload after the end of a run; Python's exit waits for it, by default forever."""


class Marks:
    """RUN/loggers.json: logger -> {"id", "num_records", "num_rows", "to"}. Threads share it."""

    def __init__(self, path: Path, *, is_new: bool) -> None:
        """`is_new`: the run begins, so what the file says belongs to a run that was there before."""
        self._path, self._lock = path, threading.Lock()
        self._entries: dict[str, dict[str, Any]] = {}
        if is_new:
            path.unlink(missing_ok=True)
        else:
            with suppress(OSError, ValueError):
                self._entries = dict(json.loads(path.read_text(encoding="utf-8")))

    def set_destination(self, name: str, given_id: str, *places: object) -> None:
        """Forgets the logger's entry if it is of another run there (`given_id`, unless empty) or of other `places`,
        such as the server. The file has only their hash, because the address of a server may contain a password."""
        to = hashlib.sha256(json.dumps(places, default=str).encode()).hexdigest()[:16]
        entry = self._entries.get(name, {})
        is_same = entry.get("to", to) == to and given_id in ("", entry.get("id", given_id))
        self._entries[name] = {**(entry if is_same else {}), "to": to}

    def id(self, name: str) -> str:
        return str(self._entries.get(name, {}).get("id", ""))

    def num_records(self, name: str) -> int:
        """Returns how many of the run's records it has."""
        return int(self._entries.get(name, {}).get("num_records", 0))

    def num_rows(self, name: str) -> int:
        """Returns how many records it was sent by all processes, with those that were repeated after a resume."""
        return int(self._entries.get(name, {}).get("num_rows", 0))

    def note(self, name: str, **values: str | int) -> None:
        with self._lock:
            self._entries.setdefault(name, {}).update(values)
            with suppress(OSError):  # without it, records may be delivered twice
                replace_text(self._path, json.dumps(self._entries) + "\n")


def with_ids(config: ExpManagerConfig, marks: Marks) -> ExpManagerConfig:
    """Adds the ids of the runs to continue, or of a new one at Weights & Biases; MLflow gives its own. Also limits how
    long W&B waits at the end."""
    wandb, mlflow = dict(config.wandb_logger_kwargs), dict(config.mlflow_logger_kwargs)
    environment = os.environ.get
    if config.create_wandb_logger:
        given = str(wandb.get("id") or wandb.get("version") or "")
        project = wandb.get("project") or environment("WANDB_PROJECT")
        entity = wandb.get("entity") or environment("WANDB_ENTITY")
        marks.set_destination("wandb", given, project, entity, environment("WANDB_BASE_URL"))
        run_id = given or marks.id("wandb") or secrets.token_hex(4)
        wandb |= {"id": run_id}
        if settings := _time_limits() | dict(wandb.get("settings") or {}):
            wandb |= {"settings": settings}
        marks.note("wandb", id=run_id)
    if config.create_mlflow_logger:
        # Without an address it is the database in the run's folder, which may be moved.
        place = mlflow.get("tracking_uri") or mlflow.get("save_dir") or environment("MLFLOW_TRACKING_URI")
        marks.set_destination("mlflow", str(mlflow.get("run_id") or ""), place)
        if marks.id("mlflow"):
            mlflow["run_id"] = marks.id("mlflow")
    return replace(config, wandb_logger_kwargs=wandb, mlflow_logger_kwargs=mlflow)


def _time_limits() -> dict[str, Any]:
    """Returns W&B's settings for FINISH_S, as far as the installed version has them. Python's exit also waits for a run
    that is just being created."""
    wanted = {"init_timeout": FINISH_S, "finish_timeout": FINISH_S, "finish_timeout_raises": True}
    try:
        import wandb
    except ImportError:
        return {}
    known = wandb.Settings()
    return {name: value for name, value in wanted.items() if hasattr(known, name)}
