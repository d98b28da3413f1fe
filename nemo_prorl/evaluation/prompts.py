"""Turns the benchmarks' files into rows and prompts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from nemo_prorl.config import ConfigError, EvaluationConfig
from nemo_prorl.data import records
from nemo_prorl.data.building.source import Record
from nemo_prorl.data.mix import Tokenizer, render
from nemo_prorl.data.rows import Row, evenly_spaced
from nemo_prorl.evaluation.benchmark import Benchmark
from nemo_prorl.types import Prompt

DATES = EvaluationConfig().livecodebench_dates
"""The window of dates for which num_problems of LiveCodeBench is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A benchmark, its problems, and where they were read from."""

    benchmark: Benchmark
    rows: tuple[Row, ...]
    """The problems to ask."""
    num_found: int
    """Different problems in the files, before validation.max_prompts and evaluation.puzzles."""
    files: tuple[str, ...] = ()
    """Relative to evaluation.data_dir; empty if the problems are generated here."""
    num_expected: int = 0
    """How many problems the benchmark has (Benchmark.num_problems, or num_found if that is close enough); 0: not
    known."""
    notes: tuple[str, ...] = ()
    """As in Problems."""
    other_dates: str = ""
    """The window that was asked for, if evaluation.livecodebench_dates is not the default, for which num_problems is
    counted and the published numbers probably hold."""

    def shortfall(self, num_problems: int) -> str:
        """Says how so many of these problems deviate from the published benchmark; empty if they do not."""
        if self.other_dates:
            return f"{num_problems:,} problems of {self.other_dates}, another window of dates than {DATES}"
        if self.num_expected in (0, num_problems):
            return ""
        return f"{num_problems:,} problems instead of {self.num_expected:,} ({self.benchmark.counted_by})"


def load(
    benchmarks: Sequence[Benchmark],
    data_dir: Path,
    max_prompts: int = 0,
    *,
    dates: str = DATES,
    puzzles: Sequence[str] = (),
) -> tuple[list[Loaded], list[Benchmark]]:
    """Returns (the loaded benchmarks, those whose files are missing), each in the given order.

    max_prompts: problems of each benchmark, evenly spaced; 0: all. dates and puzzles: as in EvaluationConfig.
    Raises ConfigError for a malformed file.
    """
    loaded, missing = [], []
    for benchmark in benchmarks:
        paths = find(benchmark, data_dir)
        found: Iterable[Record]
        if paths:
            found = chain.from_iterable(map(records.read, paths))
        elif benchmark.generate is not None:
            found = benchmark.generate()
        else:
            missing.append(benchmark)
            continue
        problems = benchmark.problems(found, dates if benchmark.date_column else "")
        rows = problems.rows
        if puzzles and benchmark.has_puzzles:
            there = {row.task["task"] for row in rows}
            if absent := [task for task in puzzles if task not in there]:
                raise ConfigError(
                    f"evaluation.puzzles={absent[0]} is in no file of {benchmark.name}: write names such as "
                    f"{', '.join(sorted(there)[:3])}."
                )
            rows = tuple(row for row in rows if row.task["task"] in puzzles)
        num_found, num_expected = len(problems.rows), benchmark.num_problems
        if abs(num_found - num_expected) <= benchmark.num_may_differ:
            num_expected = num_found
        other_window = bool(benchmark.date_column) and dates != DATES
        loaded.append(
            Loaded(
                benchmark=benchmark,
                rows=tuple(rows[place] for place in evenly_spaced(len(rows), max_prompts or len(rows))),
                num_found=num_found,
                files=tuple(
                    str(path.relative_to(data_dir if path.is_relative_to(data_dir) else data_dir.parent))
                    for path in paths
                ),
                num_expected=0 if other_window else num_expected,
                notes=problems.notes,
                other_dates=(dates or "any date") if other_window else "",
            )
        )
    return loaded, missing


def find(benchmark: Benchmark, data_dir: Path) -> list[Path]:
    """Returns all files that match the first pattern with a match, by name. Leaves out files with `train` in their name
    if there are others."""
    for pattern in benchmark.files:
        folder = data_dir.parent if pattern.startswith("../") else data_dir
        matches = folder.glob(pattern.removeprefix("../"))
        found = sorted(path for path in matches if path.is_file() and path.name.endswith(records.KINDS))
        if found:
            return [path for path in found if "train" not in path.name.lower()] or found
    return []


def accounts(loaded: Sequence[Loaded]) -> Iterator[str]:
    """Yields a line for each benchmark: how many problems, from which files, and deviations from the published
    benchmark."""
    for one in loaded:
        line = f"{one.benchmark.name}: {one.num_found:,} problems of {', '.join(one.files) or 'our making'}"
        line += "".join(f"; {note}" for note in one.notes)
        if len(one.rows) < one.num_found:
            line += f"; {len(one.rows):,} of them are asked"
        if shortfall := one.shortfall(one.num_found):
            line += (
                f". These are {shortfall}, so its score does not compare with published ones: look at the files and at "
                f"evaluation.livecodebench_dates, or get them from {one.benchmark.where}"
            )
        yield line + "."


def rendered(loaded: Loaded, tokenizer: Tokenizer, max_prompt_tokens: int) -> tuple[list[Prompt], int]:
    """Returns the prompts that fit, and how many do not."""
    prompts = [render(row, tokenizer) for row in loaded.rows]
    fitting = [prompt for prompt in prompts if len(prompt.token_ids) <= max_prompt_tokens]
    return fitting, len(prompts) - len(fitting)
