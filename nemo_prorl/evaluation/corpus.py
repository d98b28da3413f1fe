"""The creativity index of evaluations' responses against a corpus that the user names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from nemo_prorl.config import ConfigError
from nemo_prorl.data.building.progress import watched
from nemo_prorl.evaluation import journal, records
from nemo_prorl.evaluation.creativity import creativity_indices, mean_index

TEXT_KINDS = (".txt", ".md")
COLUMNS = ("text", "content", "problem", "question", "solution")


def creativity_of(
    folders: Sequence[Path],
    keys: Sequence[str],
    names: Sequence[str],
    benchmarks: Sequence[str],
    corpus: Path,
) -> dict[str, dict[str, float | None]]:
    """Benchmark -> name of the evaluation -> mean index of all its responses. The corpus is read once."""
    where: list[tuple[str, str]] = []
    texts: list[str] = []
    for folder, key, name in zip(folders, keys, names, strict=True):
        for benchmark in benchmarks:
            for _, text in journal.responses(folder / "samples", benchmark, key):
                where.append((benchmark, name))
                texts.append(text)
    indices = creativity_indices(texts, watched(documents(corpus), "reading the corpus", None))
    return {
        benchmark: {
            name: mean_index(
                [index for index, place in zip(indices, where, strict=True) if place == (benchmark, name)]
            )
            for name in names
        }
        for benchmark in benchmarks
    }


def documents(corpus: Path) -> Iterator[str]:
    """Text files whole; of records every column of COLUMNS that is text. Raises ConfigError when there is none."""
    paths = [corpus] if corpus.is_file() else sorted(path for path in corpus.rglob("*") if path.is_file())
    known = [path for path in paths if path.name.endswith((*records.KINDS, *TEXT_KINDS))]
    if not known:
        raise ConfigError(f"--corpus {corpus} holds no file of {', '.join((*TEXT_KINDS, *records.KINDS))}.")
    for path in known:
        if path.suffix in TEXT_KINDS:
            yield path.read_text(encoding="utf-8", errors="replace")
            continue
        for record in records.read(path):
            yield from (text for name in COLUMNS if isinstance(text := record.values.get(name), str))
