"""Compares evaluations of checkpoints: pass@k curves, gains and losses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nemo_prorl.commands.ending import show
from nemo_prorl.commands.parsing import Parser
from nemo_prorl.config import ConfigError
from nemo_prorl.run_folder.storage import check_writable, replace_text

EPILOG = """\
Each DIR was written by `evaluate suite=NAME out=DIR`. Give them in the order of training, the base model first. \
docs/evaluation.md says how benchmarks are classified."""


def main(arguments: Sequence[str]) -> int:
    """Writes the comparison as text, JSON and pictures, prints the text, and returns exit code 0."""
    given = _parser().parse_args(arguments)
    folders: list[Path] = given.evaluations
    names = _names(given.names, folders)
    from nemo_prorl.evaluation import comparison, figures, results

    check_writable(f"--out {given.out}", given.out)
    read = [results.read(folder) for folder in folders]
    checkpoints = [found for _, found in read]
    remarks = comparison.measurement_differences(names, [header for header, _ in read])
    by_source, left_out = given.by == "source", list[str]()
    comparisons = comparison.compare(checkpoints, by_source=by_source, say=left_out.append)
    given.out.mkdir(parents=True, exist_ok=True)
    pictures = figures.draw(comparisons, names, given.out, remarks)
    lines = [
        *remarks,
        *([""] if remarks else []),
        *comparison.comparison_lines(comparisons, names),
        *left_out,
    ]
    content: dict[str, Any] = {"names": names, "by": given.by, "remarks": remarks, "left_out": left_out}
    content["correlation_of_start_and_gain"] = told = comparison.start_against_gain(comparisons)
    if told is not None:
        lines.append(f"start against gain, over {len(comparisons)} of these: correlation {told:.2f}")
    content["benchmarks"] = [asdict(one) for one in comparisons]
    replace_text(given.out / "comparison.json", json.dumps(content, indent=1) + "\n")
    replace_text(given.out / "comparison.txt", "\n".join(lines) + "\n")
    show([*lines, f"in {given.out}: comparison.txt, comparison.json, {', '.join(p.name for p in pictures)}"])
    return 0


def _parser() -> Parser:
    parser = Parser("compare", __doc__, EPILOG)
    parser.path("evaluations", "DIR", "folder of an evaluation", nargs="+")
    parser.option("--names", "A,B", "names of the evaluations (default: those of their folders)")
    parser.add_argument(
        "--by",
        choices=("benchmark", "source"),
        default="benchmark",
        help="source: each part of a benchmark separately, such as each task of Reasoning Gym",
    )
    parser.path("--out", "DIR", "folder for text, JSON and pictures", default=Path("comparison"))
    return parser


def _names(given: str | None, folders: Sequence[Path]) -> list[str]:
    names = given.split(",") if given else [folder.resolve().name for folder in folders]
    if len(names) != len(folders):
        raise ConfigError(
            f"--names has {len(names)} names for {len(folders)} evaluations: write one name for each."
        )
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ConfigError(
            f"several evaluations are called {repeated[0]}: give each a name of its own with --names."
        )
    return names
