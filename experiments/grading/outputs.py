"""Reads outputs that others recorded and graded, as requests with their expected results. tests/real uses it as well.

The folder (not part of this repository) holds:

    ifeval_outputs.jsonl        responses with the official IFEval evaluator's verdicts, strict and loose
    math_outputs.jsonl          outputs of Qwen models on five sets, with gold and 0 or 1
    code_reference.jsonl        solutions with tests, and altered ones with the number of tests that they pass
    deepscaler/math.json, deepscaler/aime.json    golds
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from reward.client import RewardClient
from reward.protocol import GradeStatus, ScoreRequest, ScoreResult

FILES = (
    "ifeval_outputs.jsonl",
    "math_outputs.jsonl",
    "code_reference.jsonl",
    "deepscaler/math.json",
    "deepscaler/aime.json",
)
NUM_PAIRS = 2_000
SEED = 0
REASONS = {
    "ifeval_loose/ifeval_1122": "the rule counts `#`; the official evaluator counts a random letter instead",
    "altered/lc_train_438": "walks through a set of strings: 0 tests under 23 of 24 hash seeds, 1 under the other",
}
"""part/id -> why a row deviates. Deviating rows that are missing here have not been examined."""
RIGHT_AFTER_ALL = frozenset(
    f"rc_minerva_math_{number}"
    for number in (2, 7, 28, 30, 64, 68, 73, 80, 105, 108, 124, 132, 150, 165, 174, 220, 237)
) | {"rc_gpqa_63"}
"""Ids of rows that were wrongly recorded as wrong. The graders of that time could read neither a gold such as 1.07e16
if the answer had another notation, nor an option with its text, such as `(A) A = NaHSO3, B = HCl`. Of 64, a rounded
gold, the answer is the exact number, and in 220 the denominator is made real."""


class MissingData(Exception):
    """The folder does not exist or lacks a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One request and its expected result: a score, or for instructions whether each rule is kept.

    Example: Case(part="stem", name="gpqa_7", request=ScoreRequest(...), expected=1.0)
    """

    part: str
    name: str
    request: ScoreRequest
    expected: float | tuple[bool, ...]

    @property
    def reason(self) -> str:
        """The known reason for a deviation of this case, or an empty string."""
        return REASONS.get(f"{self.part}/{self.name}", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The actual result of a case, and the seconds until it arrived."""

    case: Case
    result: ScoreResult
    seconds: float

    @property
    def got(self) -> float | tuple[bool, ...] | None:
        """The result in the form of the expected one; None if it was not graded."""
        if self.result.status is not GradeStatus.graded:
            return None
        if isinstance(self.case.expected, tuple):
            return tuple(self.result.details["followed"])
        return self.result.score

    @property
    def agrees(self) -> bool:
        if isinstance(self.case.expected, tuple) or self.got is None or isinstance(self.got, tuple):
            return self.got == self.case.expected
        return abs(self.got - self.case.expected) < 1e-9


# ------------------------------------------------------------------------------------- the files
def check_folder(folder: Path) -> None:
    """Raises MissingData if the folder or a file of it does not exist."""
    if not folder.is_dir():
        raise MissingData(f"there is no folder {folder}: name the one with the recorded outputs")
    if missing := [name for name in FILES if not (folder / name).is_file()]:
        raise MissingData(f"{folder} lacks {', '.join(missing)}")


def all_cases(folder: Path) -> list[Case]:
    """Returns all cases, shuffled with a fixed seed, so that the domains are mixed. Raises MissingData."""
    check_folder(folder)
    makers = (instruction_cases, math_cases, gold_cases, pair_cases, code_cases)
    cases = [case for make in makers for case in make(folder)]
    random.Random(SEED).shuffle(cases)
    return cases


def instruction_cases(folder: Path) -> Iterator[Case]:
    """Yields the parts ifeval_strict and ifeval_loose, with each response once per mode."""
    for row in _rows(folder / "ifeval_outputs.jsonl"):
        for mode in ("strict", "loose"):
            task = {"instruction_id_list": row["instruction_id_list"], "kwargs": row["kwargs"], "mode": mode}
            yield _case(
                f"ifeval_{mode}", row["id"], "instruction", row["response"], task, tuple(map(bool, row[mode]))
            )


def math_cases(folder: Path) -> Iterator[Case]:
    """Yields the parts math and stem."""
    for row in _rows(folder / "math_outputs.jsonl"):
        task = {"answer": row["gold"]}
        expected = 1.0 if row["id"] in RIGHT_AFTER_ALL else float(row["expected"])
        yield _case(row["domain"], row["id"], row["domain"], row["response"], task, expected)


def golds(folder: Path) -> list[tuple[str, str]]:
    """Returns (id, answer) of every training row that has an answer (two have none; the data builder drops them)."""
    rows = {name: json.loads((folder / f"deepscaler/{name}.json").read_text()) for name in ("math", "aime")}
    return [
        (f"{name}_{number}", str(row["answer"]))
        for name, part in rows.items()
        for number, row in enumerate(part)
        if str(row["answer"]).strip()
    ]


def gold_cases(folder: Path) -> Iterator[Case]:
    """Yields the part golds: each gold answer in a box, which must be right for itself."""
    for name, gold in golds(folder):
        yield _case("golds", name, "math", f"\\boxed{{{gold}}}", {"answer": gold}, 1.0)


def pair_cases(folder: Path) -> Iterator[Case]:
    """Yields the part pairs: random gold answers that differ in writing, expected to be wrong for each other. Pairs
    that are equal in value deviate rightly, so every deviation needs a look."""
    draw, answers = random.Random(SEED), golds(folder)
    number = 0
    while number < NUM_PAIRS:
        (_, answer), (_, gold) = draw.sample(answers, 2)
        if answer.split() != gold.split():
            yield _case("pairs", f"pair_{number}", "math", f"\\boxed{{{answer}}}", {"answer": gold}, 0.0)
            number += 1


def code_cases(folder: Path) -> Iterator[Case]:
    """Yields the parts references and altered."""
    for row in _rows(folder / "code_reference.jsonl"):
        task = {key: row[key] for key in ("inputs", "outputs", "fn_name") if key in row}
        yield _case("references", row["id"], "code", _fenced(row["solution"]), task, 1.0)
        if wrong := row.get("wrong"):
            fraction = wrong["passed"] / len(row["inputs"])
            yield _case("altered", row["id"], "code", _fenced(wrong["source"]), task, fraction)


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _case(
    part: str, name: str, domain: str, response: str, task: dict[str, Any], expected: float | tuple[bool, ...]
) -> Case:
    request = ScoreRequest(request_id=f"{part}/{name}", domain=domain, response=response, task=task)
    return Case(part=part, name=name, request=request, expected=expected)


def _fenced(source: str) -> str:
    return f"```python\n{source}\n```"


# ------------------------------------------------------------------------------------- through the service
def grade_all(
    client: RewardClient, cases: Sequence[Case], in_flight: int, on_done: Callable[[], None] = lambda: None
) -> list[Outcome]:
    """Grades the cases, `in_flight` at a time, and returns the outcomes in the same order. Calls `on_done` after each
    case."""
    slots, outcomes = threading.Semaphore(in_flight), dict[int, Outcome]()

    def send(index: int, case: Case) -> None:
        started = time.perf_counter()

        def finish(future: Any) -> None:
            seconds = time.perf_counter() - started
            outcomes[index] = Outcome(case=case, result=future.result(), seconds=seconds)
            on_done()
            slots.release()

        client.submit(case.request).add_done_callback(finish)

    for index, case in enumerate(cases):
        slots.acquire()
        send(index, case)
    for _ in range(in_flight):
        slots.acquire()
    return [outcomes[index] for index in range(len(cases))]


def plain_value(text: str) -> Fraction | str:
    """Returns an answer's value, parsed without any library, to compare golds independently of the graders: the number
    if it is a whole number, decimal, fraction or ratio (ignoring percent and degree signs), else the text without
    spaces and braces."""
    plain = re.sub(
        r"\\(?:text|mathrm|mbox)\s*\{[^{}]*\}|\\[!,;: %$]|\\left|\\right|\^\{?\\circ\}?|[$%]", "", text
    )
    plain = re.sub(r"\\[dt]?frac\s*\{?(-?\d+)\}?\s*\{?(\d+)\}?", r"\1/\2", plain)
    plain = re.sub(r"(?<=\d),(?=\d{3}(?!\d))|\s", "", plain)
    try:
        return Fraction(plain.replace(":", "/"))
    except (ValueError, ZeroDivisionError):
        return plain.replace("{", "").replace("}", "")
