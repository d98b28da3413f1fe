"""Results in the layout of the paper's tables, its numbers beside ours: on the terminal, as Markdown, and for the
report of a run (title, columns, rows)."""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells are text already."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def tables(results: Mapping[str, BenchmarkResult], model: str) -> list[Table]:
    """Those of the paper's tables that we have a number for, then what was measured in detail."""
    made = [
        _paper_table(title, benchmarks, results, model)
        for title, benchmarks in TABLES
        if any(benchmark.name in results for benchmark in benchmarks)
    ]
    if "reasoning_gym" in results:
        made.append(_categories(results["reasoning_gym"], model))
    made += [
        _parts(result) for result in results.values() if result.by_source and result.name != "reasoning_gym"
    ]
    return [*made, details(results)]


def details(results: Mapping[str, BenchmarkResult]) -> Table:
    """One row a benchmark."""
    rows = []
    for result in results.values():
        most = max(result.pass_at_k)
        rows.append(
            (
                result.name,
                f"{result.num_prompts:,}",
                str(result.num_samples),
                "pass@1" if result.metric == "pass_at_1" else "reward",
                _percent(result.score.value),
                f"{_percent(result.score.low)} to {_percent(result.score.high)}",
                f"{_percent(result.pass_at_k[most].value)} (k={most})",
                f"{result.response_tokens['mean']:,.0f}",
                f"{result.no_eos_share:.1%}",
                _published(result.name, BASE),
                _published(result.name, PRORL),
            )
        )
    left_out = [
        f"{result.name}: {result.num_too_long} prompts too long, {result.num_missing} samples without a verdict"
        for result in results.values()
        if result.num_too_long or result.num_missing
    ]
    return Table(
        title="What was measured (percent)",
        columns=("benchmark", "prompts", "samples", "metric", "score", "95 % interval", "pass@k", "tokens", "no end",
                 "paper: base", "paper: ProRL"),
        rows=tuple(rows),
        note="; ".join(left_out),
    )  # fmt: skip


def as_text(table: Table) -> Iterator[str]:
    """Lines for a terminal: the first column to the left, numbers to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(table.columns, *table.rows, strict=True)]
    yield table.title
    for row in (table.columns, *table.rows):
        cells = [row[0].ljust(widths[0])] + [
            cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)
        ]
        yield "  " + "  ".join(cells).rstrip()
    if table.note:
        yield f"  {table.note}"


def as_markdown(table: Table) -> Iterator[str]:
    """A section with a table."""
    yield f"## {table.title}"
    yield ""
    yield f"| {' | '.join(table.columns)} |"
    yield f"|---|{'---:|' * (len(table.columns) - 1)}"
    for row in table.rows:
        yield f"| {' | '.join(row)} |"
    if table.note:
        yield ""
        yield table.note


def _paper_table(
    title: str, benchmarks: Sequence[Benchmark], results: Mapping[str, BenchmarkResult], model: str
) -> Table:
    rows = []
    for name in MODELS:
        numbers = [benchmark.published.get(name) for benchmark in benchmarks]
        if any(number is not None for number in numbers):
            rows.append(_row(name, numbers, title in WITH_AVERAGE))
    ours = [
        100 * results[benchmark.name].score.value if benchmark.name in results else None
        for benchmark in benchmarks
    ]
    heads = [benchmark.title for benchmark in benchmarks] + (["Avg"] if title in WITH_AVERAGE else [])
    return Table(
        title=f"{title} (percent; all rows but the last: the paper's)",
        columns=("Model", *heads),
        rows=(*rows, _row(model, ours, title in WITH_AVERAGE)),
    )


def _categories(result: BenchmarkResult, model: str) -> Table:
    """The mean over a category's tasks: every task has as many puzzles."""
    ours = [
        _mean(value for name, value in result.by_source.items() if name.startswith(f"{category}/"))
        for category in CATEGORIES
    ]
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
        rows=(*rows, _row(model, [*ours, 100 * result.score.value], False)),
    )


def _parts(result: BenchmarkResult) -> Table:
    return Table(
        title=f"{result.name} by part (percent)",
        columns=("part", "score"),
        rows=tuple((name, _percent(value)) for name, value in result.by_source.items()),
    )


def _row(name: str, numbers: Sequence[float | None], with_average: bool) -> tuple[str, ...]:
    """The average only of what is complete: else it would compare different things."""
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
