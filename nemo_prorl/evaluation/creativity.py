"""Creativity index: how little of a text stands word for word in a corpus (Lu et al. 2024, arXiv 2410.04265).

The L-uniqueness of a text is the share of its words that lie in no run of L or more words of the corpus. The index is
the sum of the L-uniqueness for L from 5 to 12: 8 when nothing of 5 words or more is to be found, 0 when all of it is.
A word lies in a run of L or more exactly if it lies in one of L, so runs of each length L are looked up.

The paper's DJ Search also counts runs that are nearly the same by their embeddings; here only verbatim ones count, so
the index is an upper bound of its near-verbatim form. ProRL takes DOLMA as the corpus; a smaller one finds less, so
only numbers of one corpus compare. Words are those of the decontamination (nemo_prorl/data/building/overlap.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from nemo_prorl.data.building.overlap import words

LENGTHS = range(5, 13)


def creativity_indices(texts: Sequence[str], corpus: Iterable[str]) -> list[float | None]:
    """One index a text, None for one of fewer than 12 words. The corpus is read once; what is kept in memory grows with
    the texts only."""
    tokens = [words(text) for text in texts]
    found: dict[int, dict[int, bool]] = {
        length: {run: False for listed in tokens for run in _runs(listed, length)} for length in LENGTHS
    }
    for document in corpus:
        listed = words(document)
        for length in LENGTHS:
            known = found[length]
            for run in _runs(listed, length):
                if run in known:
                    known[run] = True
    return [
        sum(_uniqueness(listed, length, found[length]) for length in LENGTHS)
        if len(listed) >= LENGTHS[-1]
        else None
        for listed in tokens
    ]


def mean_index(indices: Sequence[float | None]) -> float | None:
    """Over the texts that are long enough; None without one."""
    known = [index for index in indices if index is not None]
    return fmean(known) if known else None


def _uniqueness(listed: Sequence[str], length: int, found: dict[int, bool]) -> float:
    covered = [False] * len(listed)
    for start, run in enumerate(_runs(listed, length)):
        if found[run]:
            covered[start : start + length] = [True] * length
    return covered.count(False) / len(listed)


def _runs(listed: Sequence[str], length: int) -> Iterable[int]:
    """64-bit hashes, of this process only: two different runs agree about once in 10^9 texts of 10^5 words."""
    return (hash(tuple(listed[start : start + length])) for start in range(len(listed) - length + 1))
