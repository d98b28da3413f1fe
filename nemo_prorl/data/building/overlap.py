"""Finds duplicates, and overlap with evaluation sets by n-grams of words. Pure functions of text.

The unit is GPT-3's (arXiv 2005.14165, appendix C): 13-grams (runs of 13 words) that a row and an evaluation problem
share. Words are lower-case runs of letters or of digits; punctuation, white space and LaTeX commands do not count,
because the same problem is typeset in many ways. A problem of 8 to 12 words is one run; a shorter one only matches as a
whole. As in GPT-3 and in NeMo Curator (`max_matches`), a run in more than ten rows or problems does not count.

GPT-3 drops a row at the first shared run. In competition mathematics that would drop unrelated problems for a common
phrase ("m and n are relatively prime positive integers find m n"). So here a row is dropped if it contains at least
half of a problem's runs; rows with a fifth to a half are listed in the report for people to judge.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

NGRAM_WORDS = 13
MIN_WORDS = 8
MAX_DOCUMENTS = 10
MIN_SHARE, NEAR_SHARE = 0.5, 0.2

_COMMAND = re.compile(r"\\[A-Za-z]+")
_WORD = re.compile(r"[぀-ヿ㐀-鿿]|[^\W\d_぀-ヿ㐀-鿿]+|\d+")
"""Chinese and Japanese are written without spaces: each character is a word."""


def identity(question: str) -> str:
    """Returns a text that is equal for questions which differ only in white space, letter case or LaTeX spaces."""
    return " ".join(re.sub(r"\\[,;!: ]|\\left\b|\\right\b|~", " ", question).casefold().split())


def words(text: str) -> list[str]:
    """Returns the words for n-grams. LaTeX commands are no words: `\\frac{3}{4}` is `3/4`, `\\text{and}` is `and`."""
    return _WORD.findall(_COMMAND.sub(" ", text).lower())


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A row that shares words with an evaluation problem."""

    uid: str
    origin: str
    evaluation: str
    """File and index of the evaluation problem."""
    shared: str
    """The first shared run of words."""
    share: float
    """Fraction of the evaluation problem's runs that the row contains; 1: all of them."""
    question: str
    problem: str

    @property
    def is_overlap(self) -> bool:
        """Returns whether the row has to be dropped because of this match."""
        return self.share >= MIN_SHARE


class EvaluationIndex:
    """An index of the runs of words in evaluation problems."""

    def __init__(self, problems: Iterable[tuple[str, str]]) -> None:
        """problems: (file and index, text), such as ("aime24.jsonl:3", "Let $x$ ...")."""
        self.problems = list(problems)
        self._where: dict[int, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        self._equal: dict[str, int] = {}
        self._num_runs: list[int] = []
        for number, (_, text) in enumerate(self.problems):
            found = words(text)
            self._equal.setdefault(identity(text), number)
            length = min(len(found), NGRAM_WORDS)
            runs = set(_runs(found, length)) if length >= MIN_WORDS else set()
            self._num_runs.append(len(runs))
            for run in runs:
                self._where[length][run].add(number)

    def matches(self, questions: Sequence[tuple[str, str, str]], *, templated: bool = False) -> list[Match]:
        """Returns the closest match of each row that has one, in the rows' order. A row is (uid, origin, question).

        `templated`: only equal questions match.
        """
        # The runs of each question that occur in evaluation problems, with those problems.
        hits: list[dict[str, set[int]]] = [{} for _ in questions]
        for hit, (_, _, question) in zip(hits, questions, strict=True):
            of_question = [] if templated else words(question)
            for length, where in self._where.items():
                hit.update((run, where[run]) for run in _runs(of_question, length) if run in where)
        rows_with = Counter(run for hit in hits for run in hit)
        found = []
        for (uid, origin, question), hit in zip(questions, hits, strict=True):
            whole = identity(question)
            if whole in self._equal:
                number, shared, share = self._equal[whole], whole[:200], 1.0
            else:
                telling = {
                    run: where
                    for run, where in hit.items()
                    if len(where) <= MAX_DOCUMENTS and rows_with[run] <= MAX_DOCUMENTS
                }
                counts = Counter(number for where in telling.values() for number in where)
                if not counts:
                    continue
                number = min(counts, key=lambda n: (-counts[n] / self._num_runs[n], n))
                shared = next(run for run, where in telling.items() if number in where)
                share = counts[number] / self._num_runs[number]
            place, problem = self.problems[number]
            found.append(
                Match(
                    uid=uid,
                    origin=origin,
                    evaluation=place,
                    shared=shared,
                    share=round(share, 3),
                    question=question[:300],
                    problem=problem[:300],
                )
            )
        return found


def report(name: str, index: EvaluationIndex, matches: Sequence[Match], num_rows: int) -> dict[str, Any]:
    """Returns the overlap report as JSON-serialisable data."""
    problems = Counter(place.rpartition(":")[0] for place, _ in index.problems)
    overlaps = [match for match in matches if match.is_overlap]
    rows, touched = Counter[str](), defaultdict[str, set[str]](set)
    for match in overlaps:
        file = match.evaluation.rpartition(":")[0]
        rows[file] += 1
        touched[file].add(match.evaluation)
    return {
        "source": name,
        "rule": {
            "ngram_words": NGRAM_WORDS,
            "min_words": MIN_WORDS,
            "max_documents": MAX_DOCUMENTS,
            "min_share": MIN_SHARE,
            "normalisation": "lower case; words are runs of letters or of digits; LaTeX commands are no words",
            "after": "GPT-3, arXiv 2005.14165, appendix C; the share is our own",
        },
        "num_rows": num_rows,
        "num_matched_rows": len(overlaps),
        "evaluation": {
            file: {
                "num_problems": count,
                "num_matched_problems": len(touched[file]),
                "num_matched_rows": rows[file],
            }
            for file, count in sorted(problems.items())
        },
        "matches": [asdict(match) for match in overlaps],
        "near": [asdict(match) for match in matches if NEAR_SHARE <= match.share < MIN_SHARE],
    }


def _runs(found: Sequence[str], length: int) -> Iterator[str]:
    return (" ".join(found[start : start + length]) for start in range(len(found) - length + 1))
