"""A run's folder as one object, which everything that asks about a run uses: status, report, forecast, verify and fork.

It reads a file when it is first asked for what the file says, keeps that, and writes nothing: a live run is read like a
finished one. Imports no torch.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from nemo_prorl.config import ConfigError
from nemo_prorl.run_folder.checkpoints import STATE_FILE, newest_folder
from nemo_prorl.run_folder.difficulty import difficulty_metrics
from nemo_prorl.run_folder.events import Event, EventKind, differences, events_in
from nemo_prorl.run_folder.metrics_file import METRICS_FILE, read_records
from nemo_prorl.run_folder.origin import flatten
from nemo_prorl.run_folder.records import REMEASURED, Digests, read_digests, read_remeasured
from nemo_prorl.run_folder.slurm_jobs import HoldingJob, Submission, read_folder_job, read_submissions
from nemo_prorl.run_folder.starts import Start, read_starts
from nemo_prorl.run_folder.storage import ENGINES_FILE, read_json, read_yaml
from nemo_prorl.run_folder.validation_metrics import PROMPT_MEAN, SCORE

Record = Mapping[str, Any]
"""A line of metrics.jsonl: step, stage, and metrics by name."""

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
"""The rest of a step, which no run records: `full_records` computes it."""

HEARTBEAT_FILE = "heartbeat.json"
RUNNING_S = 900.0
"""A run is alive if its newest sign of life is younger than this; a long step gives several."""
RESUME = re.compile(r"^(\S+Z) stage (\S+) goes on after step (\d+)$", re.MULTILINE)
"""The line that a run writes to run.log when it is resumed."""
ENDINGS = {
    "target": "held-out reward of validation.stop_at reached",
    "steps": "all its steps",
    "saturated": "too few prompts left to learn from",
    "end_stage": "by its controller",
}
"""Outcome in a done marker (`training.stages.Outcome`) -> the same for people."""

MOST_SHOWN = 6
"""Options that an event names; of more it says only how many differ."""


class RunFolder:
    """What the files of a run say now; a new object sees what the run writes later. Files that are absent or damaged
    say nothing; only what needs the newest record raises without one."""

    def __init__(self, folder: Path, name: str = "") -> None:
        """name: what pages call the run; by default the folder's name."""
        self.folder, self.name = folder, name or folder.resolve().name

    @cached_property
    def _metrics(self) -> tuple[list[Record], int, str]:
        """Records, the number of damaged lines, and why the file is not a run's."""
        path = self.folder / METRICS_FILE
        try:
            records, num_damaged = read_records(path)
        except FileNotFoundError:
            return [], 0, ""
        except OSError as error:
            return [], 0, f"{path} cannot be read: {error.strerror}."
        is_foreign = num_damaged and not records
        reason = f"{path} is not that of a run: none of its lines holds a step and a stage."
        return list(records), num_damaged, reason if is_foreign else ""

    @property
    def records(self) -> list[Record]:
        """Returns the lines of metrics.jsonl in order."""
        return self._metrics[0]

    @property
    def num_unread_lines(self) -> int:
        """Returns how many lines of metrics.jsonl are damaged, without a last one that is still being written."""
        return self._metrics[1]

    @property
    def why_foreign(self) -> str:
        """Returns why metrics.jsonl is not that of a run; empty if it is, or if there is none yet."""
        return self._metrics[2]

    @cached_property
    def steps(self) -> list[Record]:
        """The records of training steps, without the validation before the first."""
        return [record for record in self.records if "reward/mean" in record]

    @cached_property
    def validations(self) -> list[Record]:
        return [record for record in self.records if PROMPT_MEAN in record]

    @property
    def last(self) -> Record:
        """Returns the newest record. Raises IndexError if there is none."""
        return self.records[-1]

    @cached_property
    def full_records(self) -> list[Record]:
        """The records, with what other files say of their steps: time/other_s, and the metrics of RUN/difficulty,
        RUN/remeasured and, by SUITE.BENCHMARK, scores of RUN/validations/SUITE (`evaluate --follow`)."""
        added = defaultdict[int, dict[str, float]](dict, difficulty_metrics(self.folder))
        for step, metric, value in read_remeasured(self.folder):
            added[step][f"{REMEASURED}/{metric.replace('/', '.')}"] = value
        for path in sorted(self.folder.glob(f"validations/*/{METRICS_FILE}")):
            for line in read_records(path)[0]:
                for key in (key for key in line if key.endswith(SCORE)):
                    added[line["step"]][f"followed/{key.removesuffix(SCORE).replace('/', '.')}"] = line[key]
        return [_completed(record, added) if "reward/mean" in record else record for record in self.records]

    @cached_property
    def metric_names(self) -> frozenset[str]:
        return frozenset(key for record in self.full_records for key in record)

    @cached_property
    def stages(self) -> list[str]:
        """The stages that have a record, in their order."""
        return list(dict.fromkeys(str(record["stage"]) for record in self.records))

    @cached_property
    def configs(self) -> dict[str, dict[str, Any]]:
        """Stage -> every option by its full name, of stages whose file can be read."""
        return dict(self._read_configs())

    def _read_configs(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for stage in self.stages:
            candidates = [self.folder / "stages" / f"{stage}.yaml"]
            candidates += [self.folder / "resolved.yaml"] if len(self.stages) == 1 else []
            for path in candidates:
                if tree := read_yaml(path):
                    yield stage, {key: value for key, value in flatten(tree) if key != "defaults"}
                    break

    @property
    def options(self) -> dict[str, Any]:
        """Returns the options of the newest record's stage; empty if they cannot be read."""
        return self.configs.get(str(self.last["stage"]), {})

    @cached_property
    def outcomes(self) -> dict[str, str]:
        """Finished stage -> why it ended."""
        found = {}
        for path in sorted(self.folder.glob("stages/*.done")):
            outcome = str(read_json(path).get("outcome", "for an unknown reason"))
            found[path.stem] = ENDINGS.get(outcome, outcome)
        return found

    @cached_property
    def failures(self) -> dict[str, str]:
        """Failed stage -> reason."""
        paths = sorted(self.folder.glob("stages/*.failed"))
        return {path.stem: str(read_json(path).get("reason", "")) for path in paths}

    @cached_property
    def starts(self) -> list[Start]:
        """The processes that have trained here, the oldest first."""
        return read_starts(self.folder)

    @property
    def num_ranks(self) -> int:
        return self.starts[-1].num_ranks if self.starts else 1

    @property
    def on_gpus(self) -> bool:
        return bool(self.starts) and self.starts[-1].on_gpus

    @property
    def stage_hours(self) -> dict[str, float]:
        """Returns stage -> hours of wall time times ranks (GPU hours if `on_gpus`), in the stages' order."""
        hours: dict[str, float] = defaultdict(float)
        for start in self.starts:
            hours[start.stage] += (start.seen - start.began) / 3600 * start.num_ranks
        return dict(hours)

    @cached_property
    def folder_job(self) -> HoldingJob | None:
        """The Slurm job that holds the folder, or held it last."""
        return read_folder_job(self.folder)

    @cached_property
    def submissions(self) -> dict[str, Submission]:
        """Stage -> the newest job that `submit` knows."""
        return read_submissions(self.folder)

    @cached_property
    def heartbeat(self) -> dict[str, Any]:
        """Returns what the newest process does, as `phase`, and since when, as `time`; empty before its first phase."""
        return read_json(self.folder / HEARTBEAT_FILE)

    @cached_property
    def engines(self) -> dict[str, Any]:
        """Returns what the newest process computes with; empty before its engines are ready."""
        return read_json(self.folder / ENGINES_FILE)

    def recent_step_s(self, num_steps: int) -> float:
        """Returns the mean duration of the newest steps, with their share of validations and saves; 0 if it is not
        recorded."""
        return fmean([loop_s(record) for record in self.steps[-num_steps:]] or [0.0])

    @cached_property
    def newest_checkpoint(self) -> Path | None:
        """The folder of the newest complete checkpoint, by names alone."""
        return newest_folder(self.folder)

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """Returns the versions that wrote the newest checkpoint; empty without one."""
        newest = self.newest_checkpoint
        return read_json(newest / STATE_FILE).get("provenance", {}) if newest else {}

    @cached_property
    def digests(self) -> Digests:
        """The hashes of the steps and what they were computed with, for `verify`."""
        return read_digests(self.folder)

    @cached_property
    def events(self) -> list[Event]:
        """What happened, in order: what the records say, how stages ended and which options the next one changes, and
        the resumes that run.log has."""
        events, previous = [], ""
        for event in events_in(self.records):
            if event.kind is EventKind.stage:
                event, previous = (
                    replace(event, text=event.text + self._since(previous, event.stage)),
                    event.stage,
                )
            events.append(event)
        log = self.folder / "run.log"
        resumes = RESUME.findall(log.read_text(encoding="utf-8", errors="replace")) if log.is_file() else []
        for when, stage, step in resumes:
            text = f"went on from its checkpoint, {when}"
            events.append(Event(int(step), stage, EventKind.resume, text))
        events.sort(key=lambda event: event.step)
        step, stage = int(self.last["step"]), str(self.last["stage"])
        if outcome := self.outcomes.get(stage):
            events.append(Event(step, stage, EventKind.end, f"{stage} ended ({outcome})"))
        if stage in self.failures:
            events.append(Event(step, stage, EventKind.failure, self.failures[stage] or "no reason recorded"))
        return events

    def _since(self, previous: str, stage: str) -> str:
        """Returns how the stage before ended and which options differ; nothing for the first stage."""
        text = f" after {previous} ended ({self.outcomes[previous]})" if previous in self.outcomes else ""
        changed = differences(self.configs.get(previous, {}), self.configs.get(stage, {}))
        if not changed or previous not in self.configs or stage not in self.configs:
            return text
        if len(changed) > MOST_SHOWN:
            return f"{text}; {len(changed)} options differ"
        said = (f"{name} {before} → {after}" for name, (before, after) in changed.items())
        return f"{text}: {', '.join(said)}"

    @cached_property
    def resets(self) -> list[Event]:
        """Returns the events after which the policy became the reference."""
        return [event for event in self.events if event.kind is EventKind.reset]

    @cached_property
    def stage_spans(self) -> list[tuple[int, int, str]]:
        """Returns (step before its first, last step, name) of each stage that has completed a step."""
        starts = [event for event in self.events if event.kind is EventKind.stage]
        ends = [event.step for event in starts[1:]] + [int(self.last["step"])]
        spans = zip(starts, ends, strict=True)
        return [(start.step, end, start.stage) for start, end in spans if end > start.step]


def read_run(folder: Path, name: str = "") -> RunFolder:
    """Returns a run that has recorded something. Raises ConfigError if the folder is not a run's, or the run has not
    written its first line yet."""
    run, path = RunFolder(folder, name), folder / METRICS_FILE
    if run.records:
        return run
    if run.why_foreign:
        raise ConfigError(run.why_foreign)
    if path.is_file():
        raise ConfigError(f"{path} has no whole line yet: wait for the run's first step.")
    raise ConfigError(
        f"RUN_DIR={folder} holds no {METRICS_FILE}: write the folder of a run, its "
        "exp_manager.explicit_log_dir, such as runs/demo."
    )


def loop_s(record: Record) -> float:
    """Returns the seconds of a step, and of the validation and the save after it."""
    return sum(float(record.get(key, 0.0)) for key in LOOP_TIMES)


def _completed(record: Record, added: Mapping[int, Mapping[str, float]]) -> Record:
    """Returns a step's record with metrics of other files, and the time that no phase explains."""
    completed = {**record, **added.get(record["step"], {})}
    if "time/step_s" in record:
        known = sum(record.get(phase, 0.0) for phase in PHASES)
        completed[OTHER] = max(0.0, record["time/step_s"] - known)
    return completed
