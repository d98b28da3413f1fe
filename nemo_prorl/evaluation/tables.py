"""Results in the layout of the paper's tables, with its numbers beside ours: for the terminal, and as Markdown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from nemo_prorl.algorithm.pass_at_k import mean_pass_at_k
from nemo_prorl.evaluation import catalogue
from nemo_prorl.evaluation.benchmark import Benchmark
from nemo_prorl.evaluation.results import (
    BenchmarkResult,
    BootstrapMean,
    PromptResult,
    comparable,
    estimate,
)
from nemo_prorl.run_folder import formats

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
    """Returns the paper's tables for which we have a number, one of the parts of each benchmark that has some, such as
    puzzles, and one with details."""
    made = [
        _paper_table(title, benchmarks, results, model)
        for title, benchmarks in catalogue.TABLES
        if any(benchmark.name in results for benchmark in benchmarks)
    ]
    if "reasoning_gym" in results:
        made.append(_categories(results["reasoning_gym"], model))
    for result in results.values():
        if parts := result.prompts_by_part():
            rows = tuple(_part_row(name, list(of.values()), result) for name, of in parts.items())
            columns = ("part", "prompts", "score", "95 % interval", "pass@1", f"pass@{result.boundary_k}")
            made.append(Table(title=f"{result.name} by part (percent)", columns=columns, rows=rows))
    return [*made, details(results)]


def _part_row(name: str, prompts: Sequence[PromptResult], result: BenchmarkResult) -> tuple[str, ...]:
    """Returns the row of one part of a benchmark. Its pass@k is over the prompts that have enough samples."""
    enough, ks = comparable(prompts)
    counts = [prompt.counts for prompt in enough]
    score = estimate([prompt.score(result.metric) for prompt in prompts])
    rates = (_percent(mean_pass_at_k(counts, k)) if k in ks else ABSENT for k in (1, result.boundary_k))
    return name, f"{len(prompts):,}", *_with_interval(score), *rates


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
                *_with_interval(result.score),
                f"{_percent(result.pass_at_k[k].value)} (k={k})",
                f"{result.response_tokens['mean']:,.0f}",
                f"{result.no_eos_share:.1%}",
                _published(result.name, catalogue.BASE),
                _published(result.name, catalogue.PRORL),
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
    yield table.title
    for line in formats.table([table.columns, *table.rows], "<" + ">" * (len(table.columns) - 1)):
        yield f"  {line}"
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
    with_average, rows = title in catalogue.WITH_AVERAGE, []
    for name in catalogue.MODELS:
        numbers = [benchmark.published.get(name) for benchmark in benchmarks]
        if any(number is not None for number in numbers):
            rows.append(_row(name, numbers, with_average))
    measured = [results.get(benchmark.name) for benchmark in benchmarks]
    last = _row(model, [100 * one.score.value if one else None for one in measured], with_average)
    marks = [_mark(one) if one else "" for one in measured]
    if with_average:
        marks.append(MARK if any(marks) and last[-1] != ABSENT else "")
    remarks = dict.fromkeys(one.remark for one in benchmarks if one.name in results and one.remark)
    return Table(
        title=f"{title} (percent; all rows but the last: the paper's)",
        columns=("Model", *(benchmark.title for benchmark in benchmarks), *(["Avg"] if with_average else [])),
        rows=(*rows, (model, *(cell + mark for cell, mark in zip(last[1:], marks, strict=True)))),
        notes=(*_shortfalls(filter(None, measured)), *remarks),
    )


def _categories(result: BenchmarkResult, model: str) -> Table:
    """Returns the mean over each category's tasks. If puzzles are missing every category is marked, because the result
    does not say which of them lack some."""
    benchmark = catalogue.BENCHMARKS["reasoning_gym"]
    rows = [
        _row(name, [*(of[place] for of in catalogue.CATEGORIES.values()), benchmark.published[name]], False)
        for place, name in enumerate((catalogue.BASE, catalogue.LARGER, catalogue.PRORL))
    ]
    by_task = defaultdict[str, list[float]](list)
    for prompt in result.prompts.values():
        by_task[prompt.source].append(prompt.score(result.metric))
    by_category = defaultdict[str, list[float]](list)
    for task, scores in by_task.items():
        by_category[task.partition("/")[2].partition("/")[0]].append(fmean(scores))
    ours = [100 * fmean(by_category[name]) if name in by_category else None for name in catalogue.CATEGORIES]
    last = _row(model, [*ours, 100 * result.score.value], False)
    return Table(
        title="Reasoning Gym by category (percent; all rows but the last: the paper's)",
        columns=("Model", *catalogue.CATEGORIES, "Avg"),
        rows=(*rows, (model, *(cell if cell == ABSENT else cell + _mark(result) for cell in last[1:]))),
        notes=(*_shortfalls([result]), benchmark.remark),
    )


def _mark(result: BenchmarkResult) -> str:
    return MARK if result.shortfall else ""


def _shortfalls(results: Iterable[BenchmarkResult]) -> list[str]:
    return [f"{MARK} {result.name}: {result.shortfall}" for result in results if result.shortfall]


def _row(name: str, numbers: Sequence[float | None], with_average: bool) -> tuple[str, ...]:
    """Formats a row. It averages only a complete row: otherwise averages over different sets would be compared."""
    known = [number for number in numbers if number is not None]
    average = fmean(known) if len(known) == len(numbers) else None
    return (name, *map(_number, [*numbers, average] if with_average else numbers))


def _published(name: str, model: str) -> str:
    benchmark = catalogue.BENCHMARKS.get(name)
    return _number(benchmark.published.get(model)) if benchmark else ABSENT


def _number(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.2f}"


def _with_interval(score: BootstrapMean) -> tuple[str, str]:
    return _percent(score.value), f"{_percent(score.low)} to {_percent(score.high)}"


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"
