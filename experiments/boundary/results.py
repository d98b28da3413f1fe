"""What the benchmark measured, as one JSON file: tables and figures need nothing else.

results.json beside this file is such a file, so other runs can be compared with the recorded ones, and the record can grow.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from experiments.boundary import distance, measure
from experiments.boundary.arms import ARMS
from benchmarks.runs import ROLLOUTS, with_rollouts
from nemo_prorl.demo import build
from nemo_prorl.demo.solved import Counts
from nemo_prorl.demo.tasks import level_of
from experiments.creativity.index import creativity_indices, mean_index
from nemo_prorl.run_folder.metrics_file import read_metrics

METRICS = {
    "reward/pass_rate": "right training rollouts",
    "objective/kl_to_reference": "KL to the reference (nats a token)",
    "objective/entropy": "entropy (nats a token)",
}
"""Metric of a training run -> title of its chart."""
WINDOW = 15
"""Steps over which the training pass rate of a level is averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The course of one run of RL."""

    minutes: float
    """Time spent in steps, without start-up."""
    rollouts: int
    """Sampled for training, whether they were trained on or not."""
    resets: Sequence[int]
    """Steps after which it was reset."""
    curves: Mapping[str, Sequence[float]]
    """Metric -> values, a value a step."""
    level_rates: Mapping[str, Sequence[tuple[float, float]]]
    """Name of a level -> (step, pass rate of its training prompts), averaged over WINDOW steps around the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One seed of an arm."""

    checkpoints: Sequence[Counts]
    """Those that were measured: the last one, and perhaps the end of each stage before it."""
    distances: Mapping[str, Mapping[str, float]]
    """Task -> kl_to_base and entropy of the last checkpoint (`distance.distances`)."""
    creativity: float | None
    """Mean creativity index of the last checkpoint's right samples against all samples of the base: how little of them
    the base ever writes (experiments.creativity.index); 8 if no run of 5 numbers or words occurs; None if it was
    not measured."""
    training: Training | None = None
    """None for the control."""

    @property
    def end(self) -> Counts:
        """Returns the counts of the last checkpoint."""
        return self.checkpoints[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Everything that was measured from one base policy."""

    policy: str
    """SHA-256 of the base policy's weights."""
    base: Mapping[float, Counts]
    """Temperature -> counts."""
    runs: Mapping[str, Mapping[int, Run]]
    """Arm -> seed -> run."""
    date: str = field(default_factory=lambda: str(datetime.date.today()))

    @property
    def start(self) -> Counts:
        """Returns the base policy's counts at the temperature at which all runs are measured."""
        return self.base[measure.TEMPERATURE]

    @property
    def k(self) -> int:
        """Returns the samples a problem of the runs: the largest k of pass@k."""
        return next(
            total for of in self.runs.values() for run in of.values() for total, _ in run.end.values()
        )

    def beside(self, recorded: Results) -> Results:
        """Returns the recorded results with these runs added. Raises ValueError if the recorded runs began from another
        base policy."""
        if recorded.policy != self.policy:
            raise ValueError("they began from another base policy")
        arms = [arm for arm in measure.ALL_ARMS if arm in self.runs or arm in recorded.runs]
        runs = {
            arm: dict(sorted((dict(recorded.runs.get(arm, {})) | dict(self.runs.get(arm, {}))).items()))
            for arm in arms
        }
        return Results(policy=self.policy, base={**self.base, **recorded.base}, runs=runs)


def policy_digest(folder: Path) -> str:
    """Returns the SHA-256 of the base policy's weights."""
    weights = build.policy_folder(folder) / "model.safetensors"
    return hashlib.sha256(weights.read_bytes()).hexdigest()


def gather(out: Path, base: Mapping[float, Counts]) -> Results:
    """Returns the results of the finished runs in the benchmark's folder. base: temperature -> counts."""
    return Results(
        policy=policy_digest(out / "base"),
        base=base,
        runs={
            arm: {seed: _run(out, arm, seed, checkpoints) for seed, checkpoints in of.items()}
            for arm, of in measure.finished(out).items()
        },
    )


def _run(out: Path, arm: str, seed: int, checkpoints: Sequence[Counts]) -> Run:
    last = measure.last_number(arm)
    samples = read_metrics(out / f"measured/{measure.measured_name(arm, seed, last)}.jsonl")
    texts = [str(one["response"]) for one in samples if one["score"] == 1.0]
    corpus = read_metrics(out / f"measured/{measure.base_name()}.jsonl")
    return Run(
        checkpoints=checkpoints,
        distances=distance.of_run(out, arm, seed, last),
        creativity=mean_index(creativity_indices(texts, (str(one["response"]) for one in corpus))),
        training=training_of(out / f"{arm}-{seed}") if arm in ARMS else None,
    )


def training_of(folder: Path) -> Training:
    """Reads the course of a run from its folder."""
    records = [one for one in with_rollouts(read_metrics(folder / "metrics.jsonl")) if "reward/mean" in one]
    resets = [
        before["step"] for before, after in pairwise(records) if after["num_resets"] > before["num_resets"]
    ]
    return Training(
        minutes=sum(one["time/step_s"] for one in records) / 60,
        rollouts=int(records[-1][ROLLOUTS]),
        resets=resets,
        curves={metric: [one[metric] for one in records] for metric in METRICS},
        level_rates=_level_rates(folder),
    )


def _level_rates(folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Reads the pass rates of training prompts from a run's difficulty files."""
    found = defaultdict[str, dict[int, list[float]]](lambda: defaultdict(list))
    for file in sorted((folder / "difficulty").glob("step-*.parquet")):
        for row in pq.read_table(file, columns=["step", "source", "pass_rate"]).to_pylist():
            found[row["source"]][row["step"] // WINDOW].append(row["pass_rate"])
    return {
        level: [((window + 0.5) * WINDOW, statistics.fmean(rates)) for window, rates in sorted(of.items())]
        for level, of in sorted(found.items(), key=lambda one: level_of(one[0]))
    }


def to_json(results: Results) -> str:
    """Returns the text of a file that `from_json` reads, with a line for each list of numbers."""
    problems = list(results.start)

    def counts(of: Counts) -> dict[str, Any]:
        return {"samples": of[problems[0]][0], "right": [of[problem][1] for problem in problems]}

    def run(one: Run) -> dict[str, Any]:
        training = one.training and {
            "minutes": round(one.training.minutes, 1),
            "rollouts": one.training.rollouts,
            "resets": list(one.training.resets),
            "curves": {name: _rounded(values) for name, values in one.training.curves.items()},
            "level_rates": {name: [*map(_rounded, of)] for name, of in one.training.level_rates.items()},
        }
        return {
            "checkpoints": [counts(of) for of in one.checkpoints],
            "distances": {
                task: {name: round(value, 4) for name, value in of.items()}
                for task, of in one.distances.items()
            },
            "creativity": None if one.creativity is None else round(one.creativity, 3),
            "training": training,
        }

    whole = {
        "date": results.date,
        "policy": results.policy,
        "problems": problems,
        "base": {str(temperature): counts(of) for temperature, of in results.base.items()},
        "runs": {arm: {str(seed): run(one) for seed, one in of.items()} for arm, of in results.runs.items()},
    }
    return _indented(whole) + "\n"


def from_json(text: str) -> Results:
    """Reads what `to_json` wrote."""
    whole = json.loads(text)
    problems = whole["problems"]

    def counts(of: Mapping[str, Any]) -> Counts:
        return {problem: (of["samples"], right) for problem, right in zip(problems, of["right"], strict=True)}

    def run(one: Mapping[str, Any]) -> Run:
        return Run(
            checkpoints=[counts(of) for of in one["checkpoints"]],
            distances=one["distances"],
            creativity=one["creativity"],
            training=one["training"] and Training(**one["training"]),
        )

    return Results(
        policy=whole["policy"],
        base={float(temperature): counts(of) for temperature, of in whole["base"].items()},
        runs={arm: {int(seed): run(one) for seed, one in of.items()} for arm, of in whole["runs"].items()},
        date=whole["date"],
    )


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in values]


def _indented(value: object, indent: str = "") -> str:
    """Returns JSON with a line for each entry of an object, but one line for a list of numbers or texts."""
    if isinstance(value, dict) and value:
        inner = indent + " "
        lines = [f"{inner}{json.dumps(key)}: {_indented(one, inner)}" for key, one in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(one, dict) for one in value):
        return "[" + ", ".join(_indented(one, indent) for one in value) + "]"
    return json.dumps(value)
