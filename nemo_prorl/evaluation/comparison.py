"""What prolonged training did to a model, from the results of several checkpoints (ProRL, arXiv 2505.24864, section 4).

Pure functions of results. Checkpoints come in the order of training; the first is the start. Only prompts that all have
are compared.

A benchmark is sorted by its pass@k at the largest k that all checkpoints have, with `MARGIN` in between as noise:

    diminish   the last checkpoint is not above the start by more than the margin
    sustained  it is, and it is above every checkpoint between by more than the margin
    plateau    it is above the start, and not above what came between: the gain was made early

With two checkpoints nothing lies between, and a gain is called `gain`. The names are the paper's (section 4.2), which
sorts by eye; the rule is ours. `certain` says whether the paired bootstrap's 95 % intervals, too, lie on that side of
the margin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nemo_prorl.algorithm.pass_at_k import bootstrap_interval, mean_pass_at_k, pass_at_k, pass_at_k_bound
from nemo_prorl.config import ConfigError
from nemo_prorl.evaluation.results import BenchmarkResult, PromptResult

MARGIN = 0.01
"""One point of pass@k."""
NUM_BINS = 10
"""Of the distributions of pass@1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Of the last checkpoint to another, over the same prompts."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One benchmark; lists run over the checkpoints."""

    benchmark: str
    num_prompts: int
    k: int
    """The largest that all have."""
    pass_at_k: dict[int, list[float]]
    bound: dict[int, list[float]]
    """ProRL eq. 5, for k of at least 2."""
    verdict: str
    certain: bool
    gain: Difference
    """Of the largest pass@k, from the start to the last checkpoint."""
    gain_at_1: Difference
    histogram: list[list[int]]
    """Prompts by their pass@1, NUM_BINS bins from 0 to 1."""
    mean: list[float]
    variance: list[float]
    """Of pass@1 over prompts, as measured."""
    newly_solved: int
    """Prompts that no sample of the start solves, and half of the last checkpoint's or more."""


def compare(
    checkpoints: Sequence[Mapping[str, BenchmarkResult]], num_resamples: int = 1000
) -> list[Comparison]:
    """One for each benchmark that all have. Raises ConfigError when there is none, or one checkpoint only."""
    if len(checkpoints) < 2:
        raise ConfigError("compare wants at least two evaluations: write compare START ... LAST.")
    names = [name for name in checkpoints[0] if all(name in results for results in checkpoints)]
    if not names:
        raise ConfigError("the evaluations have no benchmark in common: evaluate the same ones.")
    return [_compared(name, [results[name] for results in checkpoints], num_resamples) for name in names]


def start_against_gain(comparisons: Sequence[Comparison]) -> float | None:
    """Pearson's correlation, over benchmarks, of the start's pass@k with the gain (ProRL, figure 3: negative); None for
    fewer than three benchmarks, or without any spread."""
    starts = [one.pass_at_k[one.k][0] for one in comparisons]
    gains = [one.gain.value for one in comparisons]
    if len(starts) < 3 or np.ptp(starts) == 0 or np.ptp(gains) == 0:
        return None
    return float(np.corrcoef(starts, gains)[0, 1])


def _compared(name: str, results: Sequence[BenchmarkResult], num_resamples: int) -> Comparison:
    shared = [uid for uid in results[0].prompts if all(uid in result.prompts for result in results)]
    if not shared:
        raise ConfigError(f"{name}: the evaluations have no prompt in common; evaluate the same file.")
    prompts = [[result.prompts[uid] for uid in shared] for result in results]
    largest = min(one.num_samples for listed in prompts for one in listed)
    ks = sorted({2**i for i in range(largest.bit_length())} | {largest})
    counts = [[one.counts for one in listed] for listed in prompts]
    last = prompts[-1]
    from_start = _difference(prompts[0], last, largest, num_resamples)
    between = [_difference(listed, last, largest, num_resamples) for listed in prompts[1:-1]]
    verdict, certain = sort(from_start, between)
    rates = [[one.num_correct / one.num_samples for one in listed] for listed in prompts]
    return Comparison(
        benchmark=name,
        num_prompts=len(shared),
        k=largest,
        pass_at_k={k: [mean_pass_at_k(listed, k) for listed in counts] for k in ks},
        bound={k: [pass_at_k_bound(listed, k) for listed in counts] for k in ks if k >= 2},
        verdict=verdict,
        certain=certain,
        gain=from_start,
        gain_at_1=_difference(prompts[0], last, 1, num_resamples),
        histogram=[np.histogram(listed, bins=NUM_BINS, range=(0, 1))[0].tolist() for listed in rates],
        mean=[float(np.mean(listed)) for listed in rates],
        variance=[float(np.var(listed)) for listed in rates],
        newly_solved=sum(
            before.num_correct == 0 and 2 * after.num_correct >= after.num_samples
            for before, after in zip(prompts[0], last, strict=True)
        ),
    )


def sort(from_start: Difference, between: Sequence[Difference]) -> tuple[str, bool]:
    """(diminish, plateau, sustained or gain; certain), by the rule above. `between`: of the last checkpoint to each one
    between it and the start."""
    if from_start.value <= MARGIN:
        return "diminish", from_start.high <= MARGIN
    if not between:
        return "gain", from_start.low > MARGIN
    least = min(between, key=lambda one: one.value)
    if least.value > MARGIN:
        return "sustained", from_start.low > MARGIN and least.low > MARGIN
    return "plateau", from_start.low > MARGIN and least.high <= MARGIN


def _difference(
    before: Sequence[PromptResult], after: Sequence[PromptResult], k: int, num_resamples: int
) -> Difference:
    values = [
        pass_at_k(*new.counts, k) - pass_at_k(*old.counts, k) for old, new in zip(before, after, strict=True)
    ]
    low, high = bootstrap_interval(values, num_resamples=num_resamples, seed=0)
    return Difference(value=float(np.mean(values)), low=low, high=high)
