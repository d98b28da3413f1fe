"""From the benchmarks' files to rows and prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_prorl.data.mix import Tokenizer, render
from nemo_prorl.data.rows import Row, write_rows
from nemo_prorl.evaluation import records
from nemo_prorl.evaluation.benchmark import Benchmark
from nemo_prorl.types import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A benchmark and its problems."""

    benchmark: Benchmark
    rows: tuple[Row, ...]


def load(
    benchmarks: Sequence[Benchmark], data_dir: Path, max_prompts: int = 0
) -> tuple[list[Loaded], list[Benchmark]]:
    """(those whose files are there, those whose files are missing), each in the given order; `max_prompts` of each, 0:
    all. Raises ConfigError for a file that is there and is not what it should be."""
    loaded, missing = [], []
    for benchmark in benchmarks:
        path = find(benchmark, data_dir)
        if path is None and benchmark.generate is None:
            missing.append(benchmark)
            continue
        found = records.read(path) if path else benchmark.generate() if benchmark.generate else ()
        rows = benchmark.rows(found)
        loaded.append(Loaded(benchmark=benchmark, rows=tuple(rows[: max_prompts or None])))
    return loaded, missing


def find(benchmark: Benchmark, data_dir: Path) -> Path | None:
    """The file of the first pattern that has one; of several, the first by name."""
    for pattern in benchmark.files:
        folder = data_dir.parent if pattern.startswith("../") else data_dir
        matches = folder.glob(pattern.removeprefix("../"))
        found = sorted(path for path in matches if path.is_file() and path.name.endswith(records.KINDS))
        if found:
            return found[0]
    return None


def rendered(loaded: Loaded, tokenizer: Tokenizer, max_prompt_tokens: int) -> tuple[list[Prompt], int]:
    """The prompts that fit, and how many do not."""
    prompts = [render(row, tokenizer) for row in loaded.rows]
    fitting = [prompt for prompt in prompts if len(prompt.token_ids) <= max_prompt_tokens]
    return fitting, len(prompts) - len(fitting)


def write_prompts(loaded: Sequence[Loaded], folder: Path) -> list[Path]:
    """One prompt file a benchmark, FOLDER/NAME.parquet: what data.validation of a training run takes."""
    written = []
    for one in loaded:
        path = folder / f"{one.benchmark.name}.parquet"
        write_rows(path, one.rows)
        written.append(path)
    return written
