"""Shows how prolonged training changed a model, from results of several checkpoints (ProRL, arXiv 2505.24864, section
4).

Pure functions of results. Checkpoints come in the order of training; the first is the start. A comparison covers a
benchmark, or one part of it, such as a puzzle, and only prompts that all checkpoints have.

Each is classified by its pass@k at half of the samples (`boundary_k`: pass@128 of 256, as in the paper). Differences up
to `MARGIN` count as noise:

    diminish   the last checkpoint is not above the start by more than the margin
    sustained  it is, and it is above every checkpoint in between by more than the margin
    plateau    it is above the start, but not above a checkpoint in between: the gain was made early

With two checkpoints there is nothing in between, and a gain is called `gain`. The names are the paper's (section 4.2),
which classifies by eye; the rule is ours. `certain` says whether the paired bootstrap's 95 % intervals lie on the same
side of the margin too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nemo_prorl.algorithm.pass_at_k import boundary_k, mean_pass_at_k, measured_ks, pass_at_k, pass_at_k_bound
from nemo_prorl.config import ConfigError
from nemo_prorl.evaluation.results import (
    PROMPTS_OF,
    BenchmarkResult,
    BootstrapMean,
    PromptResult,
    estimate,
)
from nemo_prorl.evaluation.tables import ABSENT, MARK

MARGIN = 0.01
"""One point of pass@k."""

Prompts = Mapping[str, PromptResult]
"""Results keyed by the prompt's uid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkComparison:
    """One benchmark, or one part of it; lists have one entry per checkpoint."""

    name: str
    """The benchmark's name, with the part behind a slash: reasoning_gym/logic/zebra_puzzles."""
    num_prompts: int
    shortfall: str
    """As in BenchmarkResult, of the first checkpoint that has one; empty for a part."""
    num_short: int
    """Prompts of all checkpoints that are left out because a checkpoint has fewer than k graded samples of them."""
    num_samples: int
    """n: the most samples that a prompt has, at the checkpoint where this is lowest."""
    k: int
    """The k of the class and the gain: half of n."""
    pass_at_k: dict[int, list[float]]
    bound: dict[int, list[float]]
    """The bound of ProRL eq. 5, for k of at least 2."""
    verdict: str
    certain: bool
    gain: BootstrapMean
    """The gain in pass@k from the start to the last checkpoint."""
    gain_at_1: BootstrapMean
    variance: list[float]
    """Variance of pass@1 over prompts, as measured."""
    newly_solved: int
    """Prompts that no sample of the start solves, but at least half of the last checkpoint's samples."""


def compare(
    checkpoints: Sequence[Mapping[str, BenchmarkResult]],
    *,
    by_source: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> list[BenchmarkComparison]:
    """Returns a comparison for each benchmark that all checkpoints have; by_source: one for each part of it, if it has
    parts. `say` gets a message for what is left out, and why. Raises ConfigError if nothing can be compared, or for
    fewer than two checkpoints."""
    if len(checkpoints) < 2:
        raise ConfigError("compare wants at least two evaluations: write compare START ... LAST.")
    names = [name for name in checkpoints[0] if all(name in results for results in checkpoints)]
    if not names:
        raise ConfigError("the evaluations have no benchmark in common: evaluate the same ones.")
    found, reasons = list[BenchmarkComparison](), list[str]()
    for name in names:
        results = [checkpoint[name] for checkpoint in checkpoints]
        parts = parts_of(results) if by_source else {}
        # Of a part it is not known how many problems it should have.
        shortfall = "" if parts else next((one.shortfall for one in results if one.shortfall), "")
        for one, prompts in (parts or {name: [result.prompts for result in results]}).items():
            try:
                found.append(_compared(one, prompts, shortfall))
            except _NotComparable as reason:
                reasons.append(f"{one} is left out: {reason}")
    if not found:
        raise ConfigError("; ".join(reasons) + ". Evaluate the same files with every checkpoint.")
    for text in reasons:
        say(text)
    return found


def measurement_differences(names: Sequence[str], headers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns sentences on what the evaluations do not have in common besides the policy, from `measured` in their
    headers: sampling, graders, prompts. Empty if they measure the same."""
    measured = {name: header.get("measured") for name, header in zip(names, headers, strict=True)}
    told = {name: of for name, of in measured.items() if of}
    settings, benchmarks = list[str](), list[str]()
    for key in next(iter(told.values()), {}):
        values = [of.get(key) for of in told.values()]
        if None in values or len(set(values)) == 1:
            continue
        if key.startswith(PROMPTS_OF):
            benchmarks.append(key.removeprefix(PROMPTS_OF))
        else:
            settings.append(f"{key} {', '.join(f'{of[key]} ({name})' for name, of in told.items())}")
    said = []
    if settings:
        said.append(
            "The evaluations do not measure the same, so not every difference is the policies': "
            f"{'; '.join(settings)}."
        )
    if benchmarks:
        said.append(
            f"The problems of {', '.join(benchmarks)}, their text, right answers or tests differ; only questions that "
            "all have are compared."
        )
    if unknown := [name for name, of in measured.items() if not of]:
        said.append(
            f"What {', '.join(unknown)} measured is not recorded, so it is unknown whether it compares."
        )
    return said


class _NotComparable(Exception):
    """The results have too little in common; the message says why."""


def parts_of(results: Sequence[BenchmarkResult]) -> dict[str, list[Prompts]]:
    """Returns BENCHMARK/PART -> its prompts at each checkpoint, none if a checkpoint lacks the part; empty unless every
    checkpoint has several parts."""
    name, parts = results[0].name, [result.prompts_by_part() for result in results]
    if not all(parts):
        return {}
    return {
        f"{name}/{part}": [of.get(part, {}) for of in parts]
        for part in dict.fromkeys(part for of in parts for part in of)
    }


def start_against_gain(comparisons: Sequence[BenchmarkComparison]) -> float | None:
    """`correlation` of the start's pass@k with the gain (ProRL, figure 3: negative)."""
    starts = [one.pass_at_k[one.k][0] for one in comparisons]
    return correlation(starts, [one.gain.value for one in comparisons])


def correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Pearson's correlation; None for fewer than three points, or if one of the two has no variance."""
    if len(first) < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(np.corrcoef(first, second)[0, 1])


def classify_gain(from_start: BootstrapMean, between: Sequence[BootstrapMean]) -> tuple[str, bool]:
    """Returns (diminish, plateau, sustained or gain; certain), by the rule above. `between`: the differences of the
    last checkpoint to each one between it and the start."""
    if from_start.value <= MARGIN:
        return "diminish", from_start.high <= MARGIN
    if not between:
        return "gain", from_start.low > MARGIN
    least = min(between, key=lambda one: one.value)
    if least.value > MARGIN:
        return "sustained", from_start.low > MARGIN and least.low > MARGIN
    return "plateau", from_start.low > MARGIN and least.high <= MARGIN


def _compared(name: str, results: Sequence[Prompts], shortfall: str) -> BenchmarkComparison:
    """Compares one benchmark or part. Raises _NotComparable."""
    shared = [uid for uid in results[0] if all(uid in prompts for prompts in results)]
    if not shared:
        raise _NotComparable("the evaluations have no prompt of it in common")
    num_samples = min(max(prompts[uid].num_samples for uid in shared) for prompts in results)
    k = boundary_k(num_samples)
    kept = [uid for uid in shared if all(prompts[uid].num_samples >= k for prompts in results)]
    if not kept:
        raise _NotComparable(f"no prompt of it has {k} graded samples in every evaluation")
    prompts = [[of[uid] for uid in kept] for of in results]
    counts = [[one.counts for one in listed] for listed in prompts]
    ks = measured_ks(num_samples, min(one.num_samples for listed in prompts for one in listed))
    last = prompts[-1]
    from_start = _difference(prompts[0], last, k)
    between = [_difference(listed, last, k) for listed in prompts[1:-1]]
    verdict, certain = classify_gain(from_start, between)
    return BenchmarkComparison(
        name=name,
        num_prompts=len(kept),
        shortfall=shortfall,
        num_short=len(shared) - len(kept),
        num_samples=num_samples,
        k=k,
        pass_at_k={k: [mean_pass_at_k(listed, k) for listed in counts] for k in ks},
        bound={k: [pass_at_k_bound(listed, k) for listed in counts] for k in ks if k >= 2},
        verdict=verdict,
        certain=certain,
        gain=from_start,
        gain_at_1=_difference(prompts[0], last, 1),
        variance=[float(np.var([one.pass_at_1 for one in listed])) for listed in prompts],
        newly_solved=sum(
            before.num_correct == 0 and 2 * after.num_correct >= after.num_samples
            for before, after in zip(prompts[0], last, strict=True)
        ),
    )


def _difference(before: Sequence[PromptResult], after: Sequence[PromptResult], k: int) -> BootstrapMean:
    pairs = zip(before, after, strict=True)
    values = [pass_at_k(*new.counts, k) - pass_at_k(*old.counts, k) for old, new in pairs]
    return estimate(values)


KINDS = ("diminish", "plateau", "sustained", "gain")


def comparison_lines(comparisons: Sequence[BenchmarkComparison], names: Sequence[str]) -> Iterator[str]:
    """Yields a block of lines for each comparison, then a list of names by class."""
    width = max(map(len, names))
    for one in comparisons:
        sure = "" if one.certain else ", not certain"
        mark = f" {MARK} {one.shortfall}" if one.shortfall else ""
        yield f"{one.name}: {one.verdict}{sure} ({one.num_prompts:,} prompts, {one.num_samples} samples each){mark}"
        if one.num_short:
            yield f"  {one.num_short} prompts are left out: they have fewer than {one.k} graded samples"
        yield (
            f"  pass@{one.k} {one.gain.value:+.4f} ({one.gain.low:+.4f} to {one.gain.high:+.4f}), "
            f"pass@1 {one.gain_at_1.value:+.4f} ({one.gain_at_1.low:+.4f} to {one.gain_at_1.high:+.4f}); "
            f"{one.newly_solved} prompts newly solved"
        )
        heads = "".join(f"{f'@{k}':>8}" for k in one.pass_at_k)
        yield f"  {'':<{width}} {heads}{f'bound@{one.k}':>11}{'var':>8}"
        for place, name in enumerate(names):
            values = "".join(f"{values[place]:8.4f}" for values in one.pass_at_k.values())
            bound = f"{one.bound[one.k][place]:11.4f}" if one.k in one.bound else f"{ABSENT:>11}"
            yield f"  {name:<{width}} {values}{bound}{one.variance[place]:8.4f}"
        yield ""
    for kind in KINDS:
        if found := [one.name for one in comparisons if one.verdict == kind]:
            yield f"{kind} ({len(found)} of {len(comparisons)}): {', '.join(found)}"
