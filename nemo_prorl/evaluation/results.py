"""From samples to numbers: what results.json holds, and `compare` reads."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nemo_prorl.algorithm.pass_at_k import bootstrap_interval, pass_at_k
from nemo_prorl.config import ConfigError
from nemo_prorl.evaluation.benchmark import Benchmark, Metric
from nemo_prorl.evaluation.journal import Known, Sample
from nemo_prorl.storage import replace_text
from nemo_prorl.training.evaluation import CORRECT
from nemo_prorl.types import Finish

RESULTS = "results.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over prompts, and the 95 % interval of the bootstrap over prompts."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptResult:
    """Example: PromptResult(source="reasoning_gym/logic/zebra_puzzles", num_samples=16, num_correct=3, reward=0.25)"""

    source: str
    num_samples: int
    num_correct: int
    reward: float

    @property
    def counts(self) -> tuple[int, int]:
        return self.num_samples, self.num_correct


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkResult:
    """All that is said of one benchmark. Shares and scores are from 0 to 1."""

    name: str
    metric: Metric
    score: Estimate
    """What the paper reports: pass@1 or the mean reward."""
    pass_at_k: dict[int, Estimate]
    reward: float
    num_prompts: int
    """Problems that the numbers are of."""
    num_expected: int = 0
    """Problems that the benchmark has (Benchmark.num_problems); 0: not known. Another number is marked in tables."""
    files: list[str] = field(default_factory=list)
    """What the problems were read from, relative to evaluation.data_dir."""
    num_duplicates: int = 0
    """Records of these files that ask what an earlier one asks."""
    num_too_long: int
    """Prompts left out because they exceed sampler.max_prompt_tokens; they count nowhere."""
    num_samples: int
    num_missing: int
    """Samples without a verdict."""
    response_tokens: dict[str, float]
    """mean, p50, p99"""
    no_eos_share: float
    by_source: dict[str, float]
    """Score of each part that the benchmark has, such as a puzzle's name."""
    prompts: dict[str, PromptResult] = field(repr=False)

    @property
    def shortfall(self) -> str:
        """What has to be said beside its numbers when they are not of the benchmark as published; else empty."""
        if self.num_expected in (0, self.num_prompts):
            return ""
        return f"{self.name}: {self.num_prompts:,} problems instead of {self.num_expected:,}"

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> BenchmarkResult:
        """Raises KeyError, TypeError or ValueError if it is not one."""
        return BenchmarkResult(
            **{
                **data,
                "metric": Metric(data["metric"]),
                "score": Estimate(**data["score"]),
                "pass_at_k": {int(k): Estimate(**one) for k, one in data["pass_at_k"].items()},
                "prompts": {uid: PromptResult(**one) for uid, one in data["prompts"].items()},
            }
        )


def summarise(
    benchmark: Benchmark,
    known: Known,
    sources: Mapping[str, str],
    *,
    num_samples: int,
    num_too_long: int,
    num_resamples: int,
    num_expected: int = 0,
    files: Sequence[str] = (),
    num_duplicates: int = 0,
) -> BenchmarkResult:
    """The numbers of one benchmark from its samples.

    sources: of every prompt, by uid. num_samples: asked for of each prompt. num_expected, files, num_duplicates: see
    BenchmarkResult. Raises ConfigError when nothing was graded.
    """
    by_prompt: dict[str, list[Sample]] = defaultdict(list)
    for (uid, _), sample in sorted(known.samples.items()):  # one order, whichever rank wrote what
        by_prompt[uid].append(sample)
    prompts = {
        uid: _prompt_result(sources[uid], graded)
        for uid in sources
        if (graded := [sample for sample in by_prompt[uid] if sample.score is not None])
    }
    if not prompts:
        raise ConfigError(
            f"{benchmark.name}: no prompt was graded ({num_too_long} are longer than sampler.max_prompt_tokens)."
        )
    tokens = [sample.num_tokens for sample in known.samples.values()]
    return BenchmarkResult(
        name=benchmark.name,
        metric=benchmark.metric,
        score=_estimate([_score(result, benchmark.metric) for result in prompts.values()], num_resamples),
        pass_at_k=pass_at_k_curve(list(prompts.values()), num_resamples),
        reward=float(np.mean([result.reward for result in prompts.values()])),
        num_prompts=len(prompts),
        num_expected=num_expected,
        files=list(files),
        num_duplicates=num_duplicates,
        num_too_long=num_too_long,
        num_samples=num_samples,
        num_missing=num_samples * len(sources) - sum(result.num_samples for result in prompts.values()),
        response_tokens={
            "mean": float(np.mean(tokens)),
            "p50": float(np.quantile(tokens, 0.5)),
            "p99": float(np.quantile(tokens, 0.99)),
        },
        no_eos_share=float(np.mean([one.finish == Finish.length.value for one in known.samples.values()])),
        by_source=_by_source(prompts, benchmark.metric),
        prompts=prompts,
    )


def pass_at_k_curve(prompts: Sequence[PromptResult], num_resamples: int) -> dict[int, Estimate]:
    """k = 1, 2, 4 ... up to the samples that every prompt has; the number of samples itself closes the row."""
    most = min(result.num_samples for result in prompts)
    ks = sorted({2**i for i in range(most.bit_length())} | {most})
    return {k: _estimate([pass_at_k(*result.counts, k) for result in prompts], num_resamples) for k in ks}


def write(path: Path, header: Mapping[str, Any], results: Sequence[BenchmarkResult]) -> None:
    """Whole or not at all. `header` is what stands before the benchmarks."""
    content = {**header, "benchmarks": {result.name: asdict(result) for result in results}}
    replace_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read(folder: Path) -> tuple[dict[str, Any], dict[str, BenchmarkResult]]:
    """(header, results by benchmark) of an evaluation's folder. Raises ConfigError when it is none."""
    path = folder / RESULTS
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        results = {name: BenchmarkResult.from_json(one) for name, one in content.pop("benchmarks").items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{folder} is no folder of a finished evaluation ({type(error).__name__} at {RESULTS}): write the "
            "evaluation.out of `evaluate suite=NAME`."
        ) from None
    return content, results


def _prompt_result(source: str, graded: Sequence[Sample]) -> PromptResult:
    scores = [sample.score for sample in graded if sample.score is not None]
    return PromptResult(
        source=source,
        num_samples=len(scores),
        num_correct=sum(score >= CORRECT for score in scores),
        reward=float(np.mean(scores)),
    )


def _score(result: PromptResult, metric: Metric) -> float:
    return result.reward if metric is Metric.reward else result.num_correct / result.num_samples


def _estimate(values: list[float], num_resamples: int) -> Estimate:
    low, high = bootstrap_interval(values, num_resamples=num_resamples, seed=0)
    return Estimate(value=float(np.mean(values)), low=low, high=high)


def _by_source(prompts: Mapping[str, PromptResult], metric: Metric) -> dict[str, float]:
    parts: dict[str, list[float]] = defaultdict(list)
    for result in prompts.values():
        parts[result.source.partition("/")[2]].append(_score(result, metric))
    parts.pop("", None)
    return {name: float(np.mean(values)) for name, values in sorted(parts.items())}
