"""Creativity index: how little of a text occurs verbatim in a corpus (Lu et al. 2024, arXiv 2410.04265).

The L-uniqueness of a text is the share of its words that are in no run of L or more words of the corpus. The index is
the sum of the L-uniqueness for L from 5 to 12: 8 if no run of 5 words or more is found, 0 if all words are covered. A
word is in a run of L or more exactly if it is in one of L, so runs of each length L are looked up.

The paper's DJ Search also counts runs that are nearly the same by their embeddings. That is not implemented: only
verbatim runs count, so the index is an upper bound of the paper's. ProRL uses DOLMA as the corpus; a smaller one finds
less, so only numbers from the same corpus are comparable. Words are those of the decontamination
(data/building/overlap.py).

The corpus is read once and never kept. Memory holds only the runs of the texts, as sorted 64-bit hashes behind a bit
filter. Nearly every run of the corpus is rejected by the filter, and a run of L + 1 words is looked up only if its
first L words were found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from nemo_prorl.data.building.overlap import words

Hashes = NDArray[np.uint64]

LENGTHS = range(5, 13)
BATCH_WORDS = 1 << 20
"""Words of the corpus that are looked up at a time."""
_FACTOR = np.uint64(0x9E3779B97F4A7C17)
_BETWEEN_TEXTS = np.array([0x243F6A8885A308D3], dtype=np.uint64)
_BETWEEN_DOCUMENTS = np.array([0x13198A2E03707345], dtype=np.uint64)
"""The hash of a word that does not occur in text: a run across a boundary contains it, so it is never found."""
_SLOTS_A_RUN = 16


def creativity_indices(texts: Iterable[str], corpus: Iterable[str]) -> list[float | None]:
    """Returns one index per text, None for a text of fewer than 12 words. Reads both iterables once, texts first."""
    hashed = [_word_hashes(text) for text in texts]
    lengths = [len(one) for one in hashed]
    if not hashed:
        return []
    joined = _joined(hashed, _BETWEEN_TEXTS)
    del hashed
    runs = Runs(joined)
    for batch in _batches(corpus):
        runs.look_up(batch)
    unique = np.zeros((len(LENGTHS), len(lengths)))
    starts = np.cumsum([0, *(length + 1 for length in lengths)])
    for place, length in enumerate(LENGTHS):
        covered = np.concatenate([[0], np.cumsum(runs.covered(joined, length))])
        for number, (start, size) in enumerate(zip(starts, lengths, strict=False)):
            if size:
                unique[place, number] = 1.0 - (covered[start + size] - covered[start]) / size
    return [
        float(total) if size >= LENGTHS[-1] else None
        for total, size in zip(unique.sum(axis=0), lengths, strict=True)
    ]


def mean_index(indices: Sequence[float | None]) -> float | None:
    """Mean over the texts that are long enough; None without any."""
    known = [index for index in indices if index is not None]
    return fmean(known) if known else None


class Runs:
    """All runs of 5 to 12 words of some texts, and which of them a corpus contains.

    Two different runs share a 64-bit hash about once in 10^19 pairs. By calculation, memory is about 85 bytes per word
    of the texts (eight sorted hashes, eight flags, the word's own hash, the filter), plus what sorting needs.
    """

    def __init__(self, text_words: Hashes) -> None:
        """text_words: hashes of all texts' words, with _BETWEEN_TEXTS between two texts. Shape (words,)."""
        self._known = {length: np.unique(_run_hashes(text_words, length)) for length in LENGTHS}
        self._found = {length: np.zeros(len(known), dtype=bool) for length, known in self._known.items()}
        shortest = self._known[LENGTHS[0]]
        slot_bits = max(10, int(_SLOTS_A_RUN * len(shortest)).bit_length())
        self._shift = np.uint64(64 - slot_bits)
        self._filter = np.zeros(1 << (slot_bits - 3), dtype=np.uint8)
        slots = shortest >> self._shift
        np.bitwise_or.at(self._filter, slots >> np.uint64(3), _bit(slots))

    def look_up(self, corpus_words: Hashes) -> None:
        """Marks the runs that occur in these words of the corpus, shape (words,)."""
        runs = _run_hashes(corpus_words, LENGTHS[0])
        slots = runs >> self._shift
        at = np.flatnonzero(self._filter[slots >> np.uint64(3)] & _bit(slots))
        runs = runs[at]
        for length in LENGTHS:
            if length > LENGTHS[0]:
                inside = at + length <= len(corpus_words)
                at = at[inside]
                runs = runs[inside] * _FACTOR + corpus_words[at + length - 1]
            known = self._known[length]
            if not len(at) or not len(known):
                return
            place = np.minimum(np.searchsorted(known, runs), len(known) - 1)
            hit = known[place] == runs
            self._found[length][place[hit]] = True
            at, runs = at[hit], runs[hit]

    def covered(self, text_words: Hashes, length: int) -> NDArray[np.bool_]:
        """Returns for each word whether it is in a run of `length` words that the corpus contains. Shape (words,)."""
        runs = _run_hashes(text_words, length)
        hit = self._found[length][np.searchsorted(self._known[length], runs)]
        steps = np.zeros(len(text_words) + 1, dtype=np.int32)
        starts = np.flatnonzero(hit)
        steps[starts] += 1
        steps[starts + length] -= 1
        covered: NDArray[np.bool_] = np.cumsum(steps[:-1]) > 0
        return covered


def _word_hashes(text: str) -> Hashes:
    """Returns a 64-bit hash per word, valid in this process only."""
    found = words(text)
    return np.fromiter(map(hash, found), dtype=np.int64, count=len(found)).view(np.uint64)


def _run_hashes(hashes: Hashes, length: int) -> Hashes:
    """Hashes every run of `length` words: a polynomial in _FACTOR modulo 2^64. Shape (words - length + 1,), or (0,)."""
    count = max(0, len(hashes) - length + 1)
    total = np.zeros(count, dtype=np.uint64)
    for offset in range(length if count else 0):
        total *= _FACTOR
        total += hashes[offset : offset + count]
    return total


def _bit(slots: Hashes) -> NDArray[np.uint8]:
    bits: NDArray[np.uint8] = np.left_shift(1, (slots & np.uint64(7)).astype(np.uint8), dtype=np.uint8)
    return bits


def _joined(parts: Sequence[Hashes], between: Hashes) -> Hashes:
    """Concatenates the parts, each followed by `between`."""
    return np.concatenate(list(chain.from_iterable((part, between) for part in parts)))


def _batches(corpus: Iterable[str]) -> Iterator[Hashes]:
    """Yields the documents' words, many short documents at a time, for efficient numpy operations."""
    waiting: list[Hashes] = []
    num_words = 0
    for document in corpus:
        waiting.append(_word_hashes(document))
        num_words += len(waiting[-1])
        if num_words >= BATCH_WORDS:
            yield _joined(waiting, _BETWEEN_DOCUMENTS)
            waiting, num_words = [], 0
    if waiting:
        yield _joined(waiting, _BETWEEN_DOCUMENTS)
