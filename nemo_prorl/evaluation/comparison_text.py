"""Comparisons as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nemo_prorl.evaluation.comparison import Comparison, common_k, samples_each
from nemo_prorl.evaluation.corpus import Creativity
from nemo_prorl.evaluation.tables import ABSENT, MARK

KINDS = ("diminish", "plateau", "sustained", "gain")


def comparison_lines(comparisons: Sequence[Comparison], names: Sequence[str]) -> Iterator[str]:
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


def size_lines(
    series: str, unit: str, sizes: Sequence[tuple[int, Comparison]], names: Sequence[str]
) -> Iterator[str]:
    """Yields pass@1 and pass@k by problem size, two rows per checkpoint, for a k that all sizes have."""
    of_sizes = [one for _, one in sizes]
    width, k = max(map(len, names)), common_k(of_sizes)
    yield ""
    yield f"{series} by {unit} ({samples_each(of_sizes)} each)"
    yield f"  {'':<{width + 9}}" + "".join(f"{size:>8}" for size, _ in sizes)
    for place, name in enumerate(names):
        for of in (1, k):
            values = "".join(f"{one.pass_at_k[of][place]:8.4f}" for _, one in sizes)
            yield f"  {name:<{width}} {f'pass@{of}':<8}{values}"


def creativity_lines(creativity: Creativity) -> Iterator[str]:
    """Yields one line for each benchmark or part."""
    for name, indices in creativity.items():
        told = ", ".join(f"{of} {ABSENT if i is None else f'{i:.3f}'}" for of, i in indices.items())
        yield f"creativity index of {name} (0 to 8): {told}"
