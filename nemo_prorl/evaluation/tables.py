"""Results in the layout of the paper's tables, with its numbers beside ours: for the terminal, as Markdown, and for a
run's report (title, columns, rows)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from nemo_prorl.evaluation.benchmark import Benchmark
from nemo_prorl.evaluation.catalogue import (
    BASE,
    BENCHMARKS,
    CATEGORIES,
    LARGER,
    MODELS,
    PRORL,
    TABLES,
    WITH_AVERAGE,
)
from nemo_prorl.evaluation.results import BenchmarkResult

ABSENT = "–"
MARK = "†"
"""Follows a number that does not cover all problems of its benchmark; a note below the table gives their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table; cells are text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    """Sentences without a full stop."""


def tables(results: Mapping[str, BenchmarkResult], model: str) -> list[Table]:
    """Returns the paper's tables for which we have a number, then a table with details."""
    made = [
        _paper_table(title, benchmarks, results, model)
        for title, benchmarks in TABLES
        if any(benchmark.name in results for benchmark in benchmarks)
    ]
    if "reasoning_gym" in results:
        made.append(_categories(results["reasoning_gym"], model))
    made += [_parts(result) for result in results.values() if result.prompts_by_part()]
    return [*made, details(results)]


def details(results: Mapping[str, BenchmarkResult]) -> Table:
    """Returns a table with one row per benchmark."""
    rows = []
    for result in results.values():
        k = result.boundary_k
        rows.append(
            (
                result.name,
                f"{result.num_prompts:,}{_mark(result)}",
                str(result.num_samples),
                "pass@1" if result.metric == "pass_at_1" else "reward",
                _percent(result.score.value),
                f"{_percent(result.score.low)} to {_percent(result.score.high)}",
                f"{_percent(result.pass_at_k[k].value)} (k={k})",
                f"{result.response_tokens['mean']:,.0f}",
                f"{result.no_eos_share:.1%}",
                _published(result.name, BASE),
                _published(result.name, PRORL),
            )
        )
    left_out = [
        f"{result.name}: {result.num_too_long} prompts are too long, {result.num_missing} samples were not graded"
        for result in results.values()
        if result.num_too_long or result.num_missing
    ]
    left_out += [
        f"{result.name}: pass@k is without {result.num_short} prompts with less than half of their samples"
        for result in results.values()
        if result.num_short
    ]
    return Table(
        title="What was measured (percent)",
        columns=("benchmark", "prompts", "samples", "metric", "score", "95 % interval", "pass@k", "tokens", "no end",
                 "paper: base", "paper: ProRL"),
        rows=tuple(rows),
        notes=(*_shortfalls(results.values()), *left_out),
    )  # fmt: skip


def as_text(table: Table) -> Iterator[str]:
    """Yields lines for a terminal: the first column left-aligned, numbers right-aligned."""
    widths = [max(len(cell) for cell in column) for column in zip(table.columns, *table.rows, strict=True)]
    yield table.title
    for row in (table.columns, *table.rows):
        cells = [row[0].ljust(widths[0])] + [
            cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)
        ]
        yield "  " + "  ".join(cells).rstrip()
    for note in table.notes:
        yield f"  {note}."


def as_markdown(table: Table) -> Iterator[str]:
    """Yields a Markdown section with the table."""
    yield f"## {table.title}"
    yield ""
    yield f"| {' | '.join(table.columns)} |"
    yield f"|---|{'---:|' * (len(table.columns) - 1)}"
    for row in table.rows:
        yield f"| {' | '.join(row)} |"
    for note in table.notes:
        yield ""
        yield f"{note}."


def _paper_table(
    title: str, benchmarks: Sequence[Benchmark], results: Mapping[str, BenchmarkResult], model: str
) -> Table:
    rows = []
    for name in MODELS:
        numbers = [benchmark.published.get(name) for benchmark in benchmarks]
        if any(number is not None for number in numbers):
            rows.append(_row(name, numbers, title in WITH_AVERAGE))
    measured = [results[benchmark.name] for benchmark in benchmarks if benchmark.name in results]
    ours = [
        100 * results[benchmark.name].score.value if benchmark.name in results else None
        for benchmark in benchmarks
    ]
    last = _row(model, ours, title in WITH_AVERAGE)
    marks = [_mark(results[one.name]) if one.name in results else "" for one in benchmarks]
    if title in WITH_AVERAGE:
        marks.append(MARK if any(marks) and last[-1] != ABSENT else "")
    heads = [benchmark.title for benchmark in benchmarks] + (["Avg"] if title in WITH_AVERAGE else [])
    return Table(
        title=f"{title} (percent; all rows but the last: the paper's)",
        columns=("Model", *heads),
        rows=(*rows, (model, *(cell + mark for cell, mark in zip(last[1:], marks, strict=True)))),
        notes=(
            *_shortfalls(measured),
            *dict.fromkeys(one.remark for one in benchmarks if one.name in results and one.remark),
        ),
    )


def _categories(result: BenchmarkResult, model: str) -> Table:
    """Returns the mean over each category's tasks. If puzzles are missing every category is marked, because the result
    does not say which of them lack some."""
    by_task = defaultdict[str, list[float]](list)
    for prompt in result.prompts.values():
        by_task[prompt.source].append(prompt.score(result.metric))
    ours = [
        _mean(fmean(scores) for task, scores in by_task.items() if task.split("/")[1:2] == [category])
        for category in CATEGORIES
    ]
    cells = _row(model, ours, False)[1:]
    published = {
        name: [
            *(numbers[place] for numbers in CATEGORIES.values()),
            BENCHMARKS["reasoning_gym"].published[name],
        ]
        for place, name in enumerate((BASE, LARGER, PRORL))
    }
    rows = [_row(name, numbers, False) for name, numbers in published.items()]
    return Table(
        title="Reasoning Gym by category (percent; all rows but the last: the paper's)",
        columns=("Model", *CATEGORIES, "Avg"),
        rows=(
            *rows,
            (
                model,
                *(cell if cell == ABSENT else cell + _mark(result) for cell in cells),
                f"{_percent(result.score.value)}{_mark(result)}",
            ),
        ),
        notes=(*_shortfalls([result]), BENCHMARKS["reasoning_gym"].remark),
    )


def _parts(result: BenchmarkResult) -> Table:
    """Returns score and pass@k of each part, such as a puzzle."""
    k, rows = result.boundary_k, []
    for name, part in result.parts().items():
        rows.append(
            (
                name,
                f"{part.num_prompts:,}",
                _percent(part.score.value),
                f"{_percent(part.score.low)} to {_percent(part.score.high)}",
                _percent(part.pass_at_k[1]),
                _percent(part.pass_at_k[k]) if k in part.pass_at_k else ABSENT,
            )
        )
    return Table(
        title=f"{result.name} by part (percent)",
        columns=("part", "prompts", "score", "95 % interval", "pass@1", f"pass@{k}"),
        rows=tuple(rows),
    )


def _mark(result: BenchmarkResult) -> str:
    return MARK if result.shortfall else ""


def _shortfalls(results: Iterable[BenchmarkResult]) -> list[str]:
    return [f"{MARK} {result.shortfall}" for result in results if result.shortfall]


def _row(name: str, numbers: Sequence[float | None], with_average: bool) -> tuple[str, ...]:
    """Formats a row. It averages only a complete row: otherwise averages over different sets would be compared."""
    known = [number for number in numbers if number is not None]
    average = fmean(known) if len(known) == len(numbers) else None
    return (name, *map(_number, [*numbers, average] if with_average else numbers))


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return 100 * fmean(listed) if listed else None


def _published(name: str, model: str) -> str:
    return _number(BENCHMARKS[name].published.get(model)) if name in BENCHMARKS else ABSENT


def _number(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.2f}"


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"
