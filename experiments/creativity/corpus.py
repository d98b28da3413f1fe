"""The creativity index of evaluations' responses against a corpus chosen by the user."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tqdm import tqdm

from nemo_prorl.config import ConfigError
from nemo_prorl.data import records
from nemo_prorl.data.building.overlap import words
from nemo_prorl.evaluation import journal
from experiments.creativity.index import LENGTHS, creativity_indices, mean_index

TEXT_KINDS = (".txt", ".md")
COLUMNS = ("text", "content", "problem", "question", "solution")
PIECE_CHARACTERS = 1 << 23
"""Characters per piece in which a text file is read."""

Creativity = dict[str, dict[str, float | None]]
"""Name of the benchmark or part -> name of the evaluation -> mean index of its responses; None if all are too short."""


def creativity_of(
    folders: Sequence[Path],
    keys: Sequence[str],
    names: Sequence[str],
    groups: Mapping[str, Mapping[str, str]],
    corpus: Path,
    num_samples: int,
) -> Creativity:
    """Returns the mean index of each group's responses at each evaluation; the corpus is read once.

    folders, keys, names: one entry per evaluation; `key` is the one in its results.json. groups: benchmark -> uid of a
    prompt -> the group that it belongs to. num_samples: how many responses of each prompt are used, the first ones.
    """
    where: list[tuple[str, str]] = []

    def texts() -> Iterator[str]:
        for folder, key, name in zip(folders, keys, names, strict=True):
            for benchmark, group_of in groups.items():
                known = journal.read(folder / "samples", benchmark, key, gradings={})  # so that all count as ungraded
                for (uid, sample), text in known.ungraded.items():
                    if uid in group_of and sample < num_samples:
                        where.append((group_of[uid], name))
                        yield text

    indices = creativity_indices(texts(), tqdm(documents(corpus), desc="reading the corpus", disable=None))
    found: dict[tuple[str, str], list[float | None]] = {}
    for place, index in zip(where, indices, strict=True):
        found.setdefault(place, []).append(index)
    ordered = dict.fromkeys(group for group_of in groups.values() for group in group_of.values())
    return {
        group: {name: mean_index(found.get((group, name), [])) for name in names}
        for group in ordered
        if any((group, name) in found for name in names)
    }


def documents(corpus: Path) -> Iterator[str]:
    """Yields text files in pieces, each beginning with the last words of the one before, and from records every text
    column in COLUMNS. Raises ConfigError if there is nothing to read."""
    paths = [corpus] if corpus.is_file() else sorted(path for path in corpus.rglob("*") if path.is_file())
    known = [path for path in paths if path.name.endswith((*records.KINDS, *TEXT_KINDS))]
    if not known:
        raise ConfigError(f"--corpus {corpus} holds no file of {', '.join((*TEXT_KINDS, *records.KINDS))}.")
    for path in known:
        if path.suffix in TEXT_KINDS:
            yield from _pieces(path)
            continue
        for record in records.read(path):
            yield from (text for name in COLUMNS if isinstance(text := record.values.get(name), str))


def _pieces(path: Path) -> Iterator[str]:
    """Yields a file in pieces cut at white space; a run of words across a cut is in the second piece."""
    tail = ""
    with path.open(encoding="utf-8", errors="replace") as file:
        while piece := file.read(PIECE_CHARACTERS):
            while not piece[-1].isspace() and (more := file.read(1)):
                piece += more
            yield f"{tail} {piece}" if tail else piece
            tail = " ".join(words(f"{tail} {piece[-(1 << 12) :]}")[-(LENGTHS[-1] - 1) :])
