"""Reads a run's folder without disturbing the run. A live run is read like a finished one."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import yaml

from nemo_prorl.config import ConfigError
from nemo_prorl.report.texts import Conversation, read_conversations
from nemo_prorl.run_folder.checkpoints import STATE_FILE, newest_folder
from nemo_prorl.run_folder.difficulty import difficulty_files, read_difficulty
from nemo_prorl.run_folder.metrics_file import read_records
from nemo_prorl.run_folder.origin import flatten
from nemo_prorl.run_folder.records import REMEASURED, read_remeasured
from nemo_prorl.run_folder.starts import Start, read_starts
from nemo_prorl.run_folder.storage import read_json
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

BANDS = {
    "difficulty/num_never": "no rollout",
    "difficulty/num_seldom": "up to 1/4",
    "difficulty/num_sometimes": "up to 3/4",
    "difficulty/num_mostly": "over 3/4",
    "difficulty/num_always": "every rollout",
}
"""Metric -> the range of pass rates that it counts."""
NOW, BEFORE = "difficulty/revisited_pass_rate", "difficulty/previous_pass_rate"
"""Mean over a step's prompts that were sampled before: at this visit, and at the previous one."""

RESUME = re.compile(r"^(\S+Z) stage (\S+) goes on after step (\d+)$", re.MULTILINE)
"""The line that a run writes to run.log when it is resumed."""
ENDINGS = {
    "steps": "all its steps",
    "saturated": "too few prompts left to learn from",
    "end_stage": "by its controller",
}
"""Outcome in a done marker (`training.stages.Outcome`) -> the same for people."""
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


def once_a_run(function: Callable[[Run], _Found]) -> Callable[[Run], _Found]:
    """Decorator: keeps the result for as long as somebody keeps the run, which a live report reads again and again."""
    found: WeakKeyDictionary[Run, _Found] = WeakKeyDictionary()

    @wraps(function)
    def kept(run: Run) -> _Found:
        if run not in found:
            found[run] = function(run)
        return found[run]

    return kept


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class Run:
    """One folder. It equals only itself, so that what is computed from its many records can be cached."""

    name: str
    folder: Path
    records: tuple[Record, ...]
    """Lines of metrics.jsonl in order, extended by time/other_s and the metrics of RUN/difficulty/ and
    RUN/remeasured/."""
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
    @once_a_run
    def metrics(self) -> frozenset[str]:
        return frozenset(key for record in self.records for key in record)

    @property
    def status(self) -> str:
        """failed, finished, running or stopped. Finished: the stage that began last is done."""
        stage = self.last["stage"]
        if stage in self.failures:
            return "failed"
        if stage in self.outcomes:
            return "finished"
        if self.starts and self.starts[-1].end:
            return "stopped"
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
    added = defaultdict(dict, difficulty)
    for step, metric, value in read_remeasured(folder):
        added[step][f"{REMEASURED}/{metric.replace('/', '.')}"] = value
    conversations, no_samples = read_conversations(folder) if with_prompts else ((), [])
    tables, unread = _read_tables(folder / "evaluation")
    log = folder / "run.log"
    resumes = RESUME.findall(log.read_text(encoding="utf-8", errors="replace")) if log.is_file() else []
    # The versions that wrote the newest checkpoint. Its state is not read: it may be from another version.
    checkpoint = newest_folder(folder)
    provenance = read_json(checkpoint / STATE_FILE).get("provenance") if checkpoint else None
    signs_of_life = [path for path in (metrics, folder / "heartbeat.json") if path.exists()]
    return Run(
        name=name or folder.resolve().name,
        folder=folder,
        records=tuple(_completed(record, added) for record in records),
        num_unread_lines=num_unread_lines,
        unread_files=(
            *(f"difficulty/{name}" for name in no_difficulty),
            *(f"samples/{name}" for name in no_samples),
        ),
        configs=dict(_read_configs(folder, stages)),
        outcomes={path.stem: _ending(path) for path in folder.glob("stages/*.done")},
        failures={path.stem: read_json(path).get("reason", "") for path in folder.glob("stages/*.failed")},
        resumes=tuple((when, stage, int(step)) for when, stage, step in resumes),
        sign_of_life_s=max(0.0, time.time() - max(path.stat().st_mtime for path in signs_of_life)),
        provenance=provenance if isinstance(provenance, dict) else {},
        tables=tables,
        unread_tables=unread,
        starts=tuple(read_starts(folder)),
        conversations=conversations,
    )


def _completed(record: Record, added: Mapping[int, Mapping[str, float]]) -> Record:
    """Adds to a step the metrics of other files, and the time that no phase explains."""
    completed = dict(record)
    if "reward/mean" not in record:
        return completed
    completed |= added.get(record["step"], {})
    if "time/step_s" in record:
        known = sum(record.get(phase, 0.0) for phase in PHASES)
        completed[OTHER] = max(0.0, record["time/step_s"] - known)
    return completed


def difficulty_metrics(run_dir: Path) -> tuple[dict[int, dict[str, float]], list[str]]:
    """Returns (the metrics by step, names of files that cannot be read); both empty for a run without difficulty
    files."""
    if not difficulty_files(run_dir).all():
        return {}, []
    table, damaged = read_difficulty(run_dir)
    if not table.num_rows:
        return {}, damaged
    steps, rates = table["step"].to_numpy(), table["pass_rate"].to_numpy()
    prompts = table["uid"].combine_chunks().dictionary_encode().indices.to_numpy()
    numbers, position = np.unique(steps, return_inverse=True)
    bands = np.select([rates == 0, rates <= 0.25, rates <= 0.75, rates < 1], [0, 1, 2, 3], default=4)
    counts = np.zeros((len(numbers), len(BANDS)))
    np.add.at(counts, (position, bands), 1)
    rows = (dict(zip(BANDS, map(float, row), strict=True)) for row in counts)
    found = dict(zip(map(int, numbers), rows, strict=True))
    order = np.argsort(prompts, kind="stable")  # the table is ordered by step
    again = np.flatnonzero(prompts[order][1:] == prompts[order][:-1]) + 1
    now, before = order[again], order[again - 1]
    num_again = np.bincount(position[now], minlength=len(numbers))
    for metric, visits in ((NOW, now), (BEFORE, before)):
        sums = np.bincount(position[now], weights=rates[visits], minlength=len(numbers))
        for index in np.flatnonzero(num_again):
            found[int(numbers[index])][metric] = float(sums[index] / num_again[index])
    return found, damaged


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


def _ending(marker: Path) -> str:
    outcome = str(read_json(marker).get("outcome", "for an unknown reason"))
    return ENDINGS.get(outcome, outcome)
