"""Compares evaluations of checkpoints: pass@k curves, what was gained or lost, and how the distributions moved."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_prorl.commands.output import show
from nemo_prorl.commands.parsing import Parser
from nemo_prorl.config import ConfigError

if TYPE_CHECKING:
    from nemo_prorl.evaluation.comparison import Comparison

EPILOG = """Folders are those that `evaluate suite=NAME out=DIR` has written, in the order of training: the start first.
docs/evaluation.md says by which rule benchmarks are sorted."""


def main(arguments: Sequence[str]) -> int:
    """Exit code."""
    parser = Parser("compare", __doc__, EPILOG)
    parser.add_argument("evaluations", nargs="+", type=Path, metavar="DIR", help="folder of an evaluation")
    parser.add_argument("--names", metavar="A,B", help="what to call them (default: the folders' names)")
    parser.add_argument(
        "--out", type=Path, default=Path("comparison"), metavar="DIR", help="for text, JSON, pictures"
    )
    parser.add_argument(
        "--corpus",
        type=Path,
        metavar="PATH",
        help="text, JSON Lines or Parquet files: adds the creativity index",
    )
    given = parser.parse_args(arguments)
    folders: list[Path] = given.evaluations
    names = given.names.split(",") if given.names else [folder.resolve().name for folder in folders]
    if len(names) != len(folders):
        raise ConfigError(f"--names has {len(names)} names for {len(folders)} evaluations: give one each.")
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ConfigError(
            f"several evaluations are called {repeated[0]}: give each a name of its own with --names."
        )
    from nemo_prorl.compose import check_writable
    from nemo_prorl.evaluation import results
    from nemo_prorl.evaluation.comparison import compare, start_against_gain
    from nemo_prorl.evaluation.figures import draw

    check_writable(f"--out {given.out}", given.out)
    read = [results.read(folder) for folder in folders]
    comparisons = compare([found for _, found in read])
    creativity = {}
    if given.corpus is not None:
        from nemo_prorl.evaluation.corpus import creativity_of

        keys = [header["key"] for header, _ in read]
        creativity = creativity_of(folders, keys, names, [one.benchmark for one in comparisons], given.corpus)
    pictures = draw(comparisons, names, given.out)
    correlation = start_against_gain(comparisons)
    content = {
        "names": names,
        "correlation_of_start_and_gain": correlation,
        "creativity_index": creativity,
        "benchmarks": [asdict(one) for one in comparisons],
    }
    (given.out / "comparison.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    lines = list(_lines(comparisons, names))
    if correlation is not None:
        lines.append(f"start against gain, over {len(comparisons)} benchmarks: correlation {correlation:.2f}")
    for benchmark, indices in creativity.items():
        told = ", ".join(f"{name} {'–' if i is None else f'{i:.3f}'}" for name, i in indices.items())
        lines.append(f"creativity index of {benchmark} (0 to 8): {told}")
    (given.out / "comparison.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    show([*lines, f"in {given.out}: comparison.txt, comparison.json, {', '.join(p.name for p in pictures)}"])
    return 0


def _lines(comparisons: Sequence[Comparison], names: Sequence[str]) -> Iterator[str]:
    for one in comparisons:
        sure = "" if one.certain else ", not certain"
        yield f"{one.benchmark}: {one.verdict}{sure} ({one.num_prompts} prompts)"
        yield (
            f"  pass@{one.k} {one.gain.value:+.4f} ({one.gain.low:+.4f} to {one.gain.high:+.4f}), "
            f"pass@1 {one.gain_at_1.value:+.4f} ({one.gain_at_1.low:+.4f} to {one.gain_at_1.high:+.4f}); "
            f"{one.newly_solved} prompts newly solved"
        )
        width = max(map(len, names))
        yield (
            f"  {'':<{width}} " + "".join(f"{f'@{k}':>8}" for k in one.pass_at_k) + f"{'bound':>9}{'var':>8}"
        )
        for place, name in enumerate(names):
            values = "".join(f"{values[place]:8.4f}" for values in one.pass_at_k.values())
            bound = f"{one.bound[one.k][place]:9.4f}" if one.k in one.bound else f"{'–':>9}"
            yield f"  {name:<{width}} {values}{bound}{one.variance[place]:8.4f}"
        yield ""
