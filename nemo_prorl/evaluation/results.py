"""Computes results from samples: the content of results.json, which `compare` reads."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nemo_prorl.algorithm.pass_at_k import (
    bootstrap_interval,
    boundary_k,
    measured_ks,
    pass_at_k,
)
from nemo_prorl.config import ConfigError
from nemo_prorl.evaluation.benchmark import ScoreMetric
from nemo_prorl.evaluation.journal import Known
from nemo_prorl.evaluation.prompts import Loaded
from nemo_prorl.run_folder.storage import replace_text
from nemo_prorl.types import CORRECT, Finish

RESULTS = "results.json"
NUM_RESAMPLES = 1000
"""How often the prompts are resampled for a bootstrap interval."""
PROMPTS_OF = "prompts of "
"""In the header's `measured`, the prefix of a benchmark's name: its prompts with their tasks, as a hash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapMean:
    """The mean over prompts of a score, or of a difference of two, with the 95 % interval of the bootstrap over
    prompts."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptResult:
    """The samples of one prompt, counted.

    Example: PromptResult(source="reasoning_gym/logic/zebra_puzzles", num_samples=16, num_correct=3, reward=0.25)"""

    source: str
    num_samples: int
    num_correct: int
    reward: float

    @property
    def pass_at_1(self) -> float:
        return self.num_correct / self.num_samples

    def score(self, metric: ScoreMetric) -> float:
        """Returns the prompt's contribution to the benchmark's score."""
        return self.reward if metric is ScoreMetric.reward else self.pass_at_1

    @property
    def counts(self) -> tuple[int, int]:
        return self.num_samples, self.num_correct


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkResult:
    """All results of one benchmark. Shares and scores are from 0 to 1."""

    name: str
    metric: ScoreMetric
    score: BootstrapMean
    """The paper's metric: pass@1 or the mean reward."""
    pass_at_k: dict[int, BootstrapMean]
    """Over the prompts with at least half as many samples as the prompt that has the most."""
    num_short: int = 0
    """Prompts with fewer samples, because the service failed to grade some; they count in the score."""
    reward: float
    num_prompts: int
    """Problems in the results."""
    shortfall: str = ""
    """A note if these are not all problems of the benchmark as published, and nothing else; tables mark it."""
    files: list[str] = field(default_factory=list)
    """The files that the problems were read from, relative to evaluation.data_dir."""
    num_too_long: int
    """Prompts left out because they exceed sampler.max_prompt_tokens; they count nowhere."""
    num_samples: int
    num_missing: int
    """Samples that were not graded."""
    response_tokens: dict[str, float]
    """mean, p50, p99"""
    no_eos_share: float
    prompts: dict[str, PromptResult] = field(repr=False)

    @property
    def boundary_k(self) -> int:
        return boundary_k(max(prompt.num_samples for prompt in self.prompts.values()))

    def prompts_by_part(self) -> dict[str, dict[str, PromptResult]]:
        """Returns part, such as `logic/zebra_puzzles` -> its prompts by uid; empty if the benchmark has no parts."""
        found: dict[str, dict[str, PromptResult]] = defaultdict(dict)
        for uid, prompt in self.prompts.items():
            found[prompt.source.partition("/")[2]][uid] = prompt
        return dict(sorted(found.items())) if len(found) > 1 else {}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> BenchmarkResult:
        """Parses a result. Raises KeyError, TypeError or ValueError if it is not one."""
        return BenchmarkResult(
            **{
                **data,
                "metric": ScoreMetric(data["metric"]),
                "score": BootstrapMean(**data["score"]),
                "pass_at_k": {int(k): BootstrapMean(**one) for k, one in data["pass_at_k"].items()},
                "prompts": {uid: PromptResult(**one) for uid, one in data["prompts"].items()},
            }
        )


def summarise(
    loaded: Loaded,
    known: Known,
    sources: Mapping[str, str],
    *,
    num_samples: int,
    num_too_long: int,
) -> BenchmarkResult:
    """Computes the results of one benchmark from its samples.

    sources: of every prompt, by uid. num_samples: the number requested for each prompt. Raises ConfigError if nothing
    was graded.
    """
    benchmark, scores = loaded.benchmark, defaultdict[str, list[float]](list)
    for (uid, _), sample in sorted(known.samples.items()):  # an order that does not depend on the ranks
        if sample.score is not None:
            scores[uid].append(sample.score)
    prompts = {
        uid: PromptResult(
            source=source,
            num_samples=len(scores[uid]),
            num_correct=sum(score >= CORRECT for score in scores[uid]),
            reward=float(np.mean(scores[uid])),
        )
        for uid, source in sources.items()
        if uid in scores
    }
    if not prompts:
        raise ConfigError(
            f"{benchmark.name}: no prompt was graded ({num_too_long} are longer than sampler.max_prompt_tokens)."
        )
    tokens = [sample.num_tokens for sample in known.samples.values()]
    enough, ks = comparable(list(prompts.values()))
    return BenchmarkResult(
        name=benchmark.name,
        metric=benchmark.metric,
        score=estimate([result.score(benchmark.metric) for result in prompts.values()]),
        pass_at_k={k: estimate([pass_at_k(*one.counts, k) for one in enough]) for k in ks},
        num_short=len(prompts) - len(enough),
        reward=float(np.mean([result.reward for result in prompts.values()])),
        num_prompts=len(prompts),
        shortfall=loaded.shortfall(len(prompts)),
        files=list(loaded.files),
        num_too_long=num_too_long,
        num_samples=num_samples,
        num_missing=num_samples * len(sources) - sum(result.num_samples for result in prompts.values()),
        response_tokens={
            "mean": float(np.mean(tokens)),
            "p50": float(np.quantile(tokens, 0.5)),
            "p99": float(np.quantile(tokens, 0.99)),
        },
        no_eos_share=float(np.mean([one.finish == Finish.length.value for one in known.samples.values()])),
        prompts=prompts,
    )


def comparable(prompts: Sequence[PromptResult]) -> tuple[list[PromptResult], list[int]]:
    """Returns (the prompts of a pass@k curve, its ks): those with at least half as many samples as the prompt that has
    the most, so that one missing sample does not lower k for all."""
    num_samples = max(result.num_samples for result in prompts)
    enough = [result for result in prompts if result.num_samples >= boundary_k(num_samples)]
    return enough, measured_ks(num_samples, min(result.num_samples for result in enough))


def estimate(values: Sequence[float]) -> BootstrapMean:
    """Returns the mean of `values`, one per prompt, and its interval."""
    low, high = bootstrap_interval(values, num_resamples=NUM_RESAMPLES, seed=0)
    return BootstrapMean(value=float(np.mean(values)), low=low, high=high)


def write(path: Path, header: Mapping[str, Any], results: Sequence[BenchmarkResult]) -> None:
    """Writes the results atomically. `header` comes before the benchmarks."""
    content = {**header, "benchmarks": {result.name: asdict(result) for result in results}}
    replace_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read(folder: Path) -> tuple[dict[str, Any], dict[str, BenchmarkResult]]:
    """Returns (header, results by benchmark) of an evaluation's folder. Raises ConfigError if it is not one."""
    path = folder / RESULTS
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        results = {name: BenchmarkResult.from_json(one) for name, one in content.pop("benchmarks").items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = "is not there" if isinstance(error, FileNotFoundError) else "cannot be read"
        raise ConfigError(
            f"{folder} is not the folder of a finished evaluation, because {RESULTS} {why}: write the folder that "
            "`evaluate suite=NAME out=FOLDER` has filled."
        ) from None
    return content, results
