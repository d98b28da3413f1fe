"""Reads a run's folder without disturbing the run. A live run is read like a finished one."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import yaml

from nemo_prorl.config import ConfigError
from nemo_prorl.report.difficulty import difficulty_metrics
from nemo_prorl.report.texts import Conversation, read_conversations
from nemo_prorl.run_folder.checkpoints import STATE_FILE, newest_folder
from nemo_prorl.run_folder.origin import flatten
from nemo_prorl.run_folder.starts import Start, read_starts
from nemo_prorl.run_folder.telemetry import read_records
from nemo_prorl.run_folder.validation_metrics import PROMPT_MEAN

Record = Mapping[str, Any]
_Found = TypeVar("_Found")

PHASES = {
    "time/sampling_s": "sampling",
    "grading/exposed_s": "waiting for grading",
    "time/old_logprobs_s": "old log-probabilities",
    "time/reference_logprobs_s": "reference log-probabilities",
    "time/exchange_s": "exchange between ranks",
    "time/updates_s": "updates",
    "time/refit_s": "weights to the sampler",
}
"""Phases within time/step_s; they do not overlap."""
OUTSIDE_STEP = {"time/validation_s": "validation", "time/save_s": "checkpoint"}
"""Time that the loop spends between steps."""
LOOP_TIMES = ("time/step_s", *OUTSIDE_STEP)
"""All time of the loop: in steps and between them."""
OTHER = "time/other_s"
OTHER_MEANING = "Seconds of time/step_s outside the measured phases; computed by the report."

RESUME = re.compile(r"^(\S+Z) stage (\S+) goes on after step (\d+)$", re.MULTILINE)
"""The line that a run writes to run.log when it is resumed."""
RUNNING_S = 900.0
"""A run is alive if its newest sign of life is younger than this; a long step gives several."""


class NoRecords(ConfigError):
    """A metrics.jsonl with lines of which none is a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """An evaluation: RUN/evaluation/NAME.json with title, columns, rows and optionally a note."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class Run:
    """One folder. It equals only itself, so that what is computed from its many records can be cached."""

    name: str
    folder: Path
    records: tuple[Record, ...]
    """Lines of metrics.jsonl in order, extended by time/other_s and the difficulty metrics."""
    num_unread_lines: int
    """Damaged lines of metrics.jsonl, without a last one that is still being written."""
    configs: Mapping[str, Mapping[str, Any]]
    """Stage -> every option by its full name, in the order of the stages."""
    outcomes: Mapping[str, str]
    """Finished stage -> why it ended."""
    failures: Mapping[str, str]
    """Failed stage -> reason."""
    resumes: tuple[tuple[str, str, int], ...]
    """UTC, stage and step of each resume by another process, from run.log, oldest first."""
    sign_of_life_s: float
    """Age of the newest heartbeat or metrics line, in seconds."""
    provenance: Mapping[str, Any]
    """The versions that wrote the newest checkpoint."""
    starts: tuple[Start, ...]
    """Its processes, the oldest first."""
    unread_files: tuple[str, ...]
    """Damaged files on prompts and responses, relative to the folder."""
    tables: tuple[Table, ...]
    unread_tables: tuple[str, ...]
    """Files in the evaluation folder that are not tables."""
    conversations: tuple[Conversation, ...]
    """A sample of what the policy wrote at its validations."""

    @property
    def steps(self) -> list[Record]:
        """Returns the records of training steps, without the validation before the first."""
        return [record for record in self.records if "reward/mean" in record]

    @property
    def validations(self) -> list[Record]:
        return [record for record in self.records if PROMPT_MEAN in record]

    @property
    def last(self) -> Record:
        return self.records[-1]

    @property
    def metrics(self) -> frozenset[str]:
        """Returns the names of all recorded metrics."""
        return _metrics_of(self)

    @property
    def status(self) -> str:
        """failed, finished, running or stopped. Finished: the stage that began last is done."""
        stage = self.last["stage"]
        if stage in self.failures:
            return "failed"
        if stage in self.outcomes:
            return "finished"
        return "running" if self.sign_of_life_s < RUNNING_S else "stopped"


def read_run(folder: Path, name: str = "", *, with_prompts: bool = True) -> Run:
    """Reads a run. `with_prompts`: also what is recorded of single prompts, that is their difficulty and the texts of
    responses, which takes longest to read. Raises ConfigError if the folder is not a run's, or the run has not written
    its first line yet."""
    metrics = folder / "metrics.jsonl"
    if not metrics.is_file():
        raise ConfigError(
            f"RUN_DIR={folder} holds no metrics.jsonl: write the folder of a run, its "
            "exp_manager.explicit_log_dir, such as runs/demo."
        )
    records, num_unread_lines = read_records(metrics)
    if not records and num_unread_lines:
        raise NoRecords(f"{metrics} is not that of a run: none of its lines holds a step and a stage.")
    if not records:
        raise ConfigError(f"{metrics} has no whole line yet: wait for the run's first step.")
    stages = list(dict.fromkeys(record["stage"] for record in records))
    difficulty, no_difficulty = difficulty_metrics(folder) if with_prompts else ({}, [])
    conversations, no_samples = read_conversations(folder) if with_prompts else ((), [])
    tables, unread = _read_tables(folder / "evaluation")
    return Run(
        name=name or folder.resolve().name,
        folder=folder,
        records=tuple(_completed(record, difficulty) for record in records),
        num_unread_lines=num_unread_lines,
        unread_files=(
            *(f"difficulty/{name}" for name in no_difficulty),
            *(f"samples/{name}" for name in no_samples),
        ),
        configs=dict(_read_configs(folder, stages)),
        outcomes={path.stem: read_json(path).get("outcome", "") for path in folder.glob("stages/*.done")},
        failures={path.stem: read_json(path).get("reason", "") for path in folder.glob("stages/*.failed")},
        resumes=_read_resumes(folder / "run.log"),
        sign_of_life_s=_sign_of_life_s(folder),
        provenance=_read_provenance(folder),
        tables=tables,
        unread_tables=unread,
        starts=tuple(read_starts(folder)),
        conversations=conversations,
    )


def once_a_run(function: Callable[[Run], _Found]) -> Callable[[Run], _Found]:
    """Decorator: keeps the result for as long as somebody keeps the run, which a live report reads again and again."""
    found: WeakKeyDictionary[Run, _Found] = WeakKeyDictionary()

    @wraps(function)
    def kept(run: Run) -> _Found:
        if run not in found:
            found[run] = function(run)
        return found[run]

    return kept


@once_a_run
def _metrics_of(run: Run) -> frozenset[str]:
    return frozenset(key for record in run.records for key in record)


def _completed(record: Record, difficulty: Mapping[int, Mapping[str, float]]) -> Record:
    """Adds computed metrics to a step: its difficulty metrics and the time that no phase explains."""
    completed = dict(record)
    if "reward/mean" not in record:
        return completed
    completed |= difficulty.get(record["step"], {})
    if "time/step_s" in record:
        known = sum(record.get(phase, 0.0) for phase in PHASES)
        completed[OTHER] = max(0.0, record["time/step_s"] - known)
    return completed


def _read_configs(folder: Path, stages: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the options from stages/NAME.yaml, and for a run of one stage from resolved.yaml. Skips files that are not
    YAML."""
    for stage in stages:
        candidates = [folder / "stages" / f"{stage}.yaml"]
        candidates += [folder / "resolved.yaml"] if len(stages) == 1 else []
        for path in candidates:
            try:
                tree = yaml.safe_load(path.read_text(encoding="utf-8"))
            except (OSError, ValueError, yaml.YAMLError):
                continue
            if isinstance(tree, dict):
                yield stage, {key: value for key, value in flatten(tree) if key != "defaults"}
                break


def _read_provenance(folder: Path) -> dict[str, Any]:
    """Returns the versions that wrote the newest checkpoint. Does not read its state, which may be from another
    version."""
    checkpoint = newest_folder(folder)
    provenance = read_json(checkpoint / STATE_FILE).get("provenance") if checkpoint else None
    return provenance if isinstance(provenance, dict) else {}


def _read_resumes(log: Path) -> tuple[tuple[str, str, int], ...]:
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    return tuple((time_, stage, int(step)) for time_, stage, step in RESUME.findall(text))


def _sign_of_life_s(folder: Path) -> float:
    files = [path for path in (folder / "metrics.jsonl", folder / "heartbeat.json") if path.exists()]
    return max(0.0, time.time() - max(path.stat().st_mtime for path in files))


def _read_tables(folder: Path) -> tuple[tuple[Table, ...], tuple[str, ...]]:
    tables, unread = [], []
    for path in sorted(folder.glob("*.json")):
        data = read_json(path)
        try:
            columns = tuple(str(column) for column in data["columns"])
            rows = tuple(tuple(row) for row in data["rows"])
            if any(len(row) != len(columns) for row in rows):
                raise ValueError("a row of another length than the header")
        except (KeyError, TypeError, ValueError):
            unread.append(path.name)
            continue
        title, note = data.get("title", path.stem), data.get("note", "")
        tables.append(Table(title=title, columns=columns, rows=rows, note=note))
    return tuple(tables), tuple(unread)


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object; empty if the file is being replaced at this moment, or is something else."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
