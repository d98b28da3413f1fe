"""Mathematics and STEM: the last \\boxed{} of a response against the gold, each read once and compared once.

A task is {"answer": gold}; "evaluated": true asks for arithmetic that is carried out; "verifier" names a verifier of
the papers that grades instead (reward.graders.papers). `details` say both types and the rule that decided.
"""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from types import ModuleType
from typing import Any, cast

from reward.extract import joined_boxes, last_box
from reward.graders.grade import Grade, InvalidTask, require
from reward.graders.math.compare import compare
from reward.graders.math.nodes import Unreadable
from reward.graders.math.reading import Reading, read
from reward.graders.math.relations import named
from reward.graders.math.rules import Rule
from reward.graders.math.spelled import without_upright
from reward.graders.math.values import Number, Quantity, Relation, Several, Text, Value, first_meaning
from reward.graders.safe import is_shallow

VERIFIERS = ("reading", "papers", "deepscaler", "math_verify")
"""What a task's "verifier" may name: this module's own comparison (the default), or one of the papers'."""
_MAX_GOLD = 5_000
_LONGEST_SHOWN = 500
_TYPICAL = files("reward").joinpath("data/typical_answers.txt").read_text(encoding="utf-8").splitlines()
"""Answers that are graded before workers are forked, so that sympy has imported by then what it imports late."""


_DIGITS = r"\d[\d, ]*(?:\.\d+)?|\.\d+"
_EVALUATED = re.compile(
    rf"\(?-?(?:\\\$|[€£¥₹])?(?:(?:{_DIGITS})(?:\\times10\^\{{-?\d+\}}|[eE]-?\d+)?|\d*\\frac\{{(\d+)\}}\{{(\d+)\}}|(\d+)/(\d+))\)?"
    r"(?:\\%|\^\\circ|\s*\\text\{(?!times|plus|minus|divided|over|choose).*)?"
)


def check(task: Mapping[str, Any]) -> None:
    """Raises InvalidTask unless the task can be graded."""
    answer = task.get("answer")
    require(isinstance(answer, str) and bool(answer.strip()), 'the task needs "answer", a non-empty string')
    require(len(str(answer)) <= _MAX_GOLD, f'the task\'s "answer" is longer than {_MAX_GOLD} characters')
    require(isinstance(task.get("evaluated", False), bool), 'the task\'s "evaluated" must be true or false')
    known = ", ".join(f'"{name}"' for name in VERIFIERS)
    verifier = task.get("verifier", "reading")
    require(verifier in VERIFIERS, f'the task\'s "verifier" must be one of {known}')
    if verifier != "reading":
        _papers()


def _papers() -> ModuleType:
    """Returns the module of the papers' verifiers. Raises InvalidTask where the extra is not installed."""
    try:
        return import_module("reward.graders.papers")
    except ModuleNotFoundError as error:
        raise InvalidTask(
            f"the task's \"verifier\", one of the papers', needs {error.name}: start the service in an environment "
            'made with pip install "./reward[server,papers]"'
        ) from error


def grade(text: str, task: Mapping[str, Any]) -> Grade:
    """1 if the last box equals task["answer"], else 0; `details` say why."""
    if task.get("verifier", "reading") != "reading":
        return cast(Grade, _papers().grade(text, task))
    gold_text = last_box(task["answer"])
    gold_text = (task["answer"] if gold_text is None else gold_text).strip()
    box = joined_boxes(text)
    if box is None:
        return Grade(score=0.0, verdict="no_box", details={"gold": gold_text[:_LONGEST_SHOWN]})
    details: dict[str, Any] = {"extracted": box[:_LONGEST_SHOWN], "gold": gold_text[:_LONGEST_SHOWN]}
    if not is_shallow(box):
        return Grade(score=0.0, verdict="too_deep", details=details)
    verdict, findings = judge(box, gold_text, task.get("evaluated", False))
    return Grade(score=float(verdict == "correct"), verdict=verdict, details=details | findings)


def judge(answer: str, gold: str, evaluated: bool = False) -> tuple[str, dict[str, Any]]:
    """Returns the verdict on an answer (correct, wrong or unreadable), and the types and the rule behind it.
    `evaluated`: arithmetic must be carried out."""
    gold_reading = _gold(gold)
    try:
        reading = read(answer)
    except Unreadable as error:
        if without_upright(answer) == without_upright(gold):
            return "correct", {"rule": Rule.SAME_TEXT.value}
        return "unreadable", {"reason": str(error)}
    is_left = evaluated and not _is_evaluated(reading.shown, first_meaning(gold_reading.value))
    rule = Rule.NOT_EVALUATED if is_left else compare(reading, gold_reading)
    details = {"answer_type": reading.type, "gold_type": gold_reading.type, "rule": rule.value}
    if reading.reason and rule in (Rule.NO_RULE, Rule.NOT_COMPUTED):
        return "unreadable", details | {"reason": reading.reason}
    return "correct" if rule.accepts else "wrong", details


def _is_evaluated(shown: str, gold: Value) -> bool:
    """Whether a page shows no arithmetic where the gold has rational numbers: each part is a number, perhaps with a
    unit."""
    gold = (named(gold) if isinstance(gold, Relation) else gold) or gold
    golds = gold.items if isinstance(gold, Several) else (gold.size if isinstance(gold, Quantity) else gold,)
    if not all(isinstance(one, Number) and one.value.is_Rational for one in golds):
        return True
    if len(golds) == 1:
        parts = [shown.rpartition("=")[2]]
    else:
        body = re.sub(r"^(?:\\\{|[(\[])|(?:\\\}|[)\]])$", "", shown)
        parts = re.split(r", |,(?!\d{3}(?!\d))|\\text\{and\}", body)
    for part in parts:
        match = _EVALUATED.fullmatch(part.strip())
        numbers = [int(number) for number in match.groups() if number] if match else [0, 0]
        if numbers and (math.gcd(*numbers) != 1 or numbers[-1] == 1):
            return False
    return True


def _gold(gold: str) -> Reading:
    try:
        return read(gold)
    except Unreadable as error:
        return Reading(Text("page", gold), gold, str(error))


def warm_up() -> None:
    """Grades typical answers, for which sympy and Python import more than at their start."""
    if sys.version_info >= (3, 12):
        import_module("_pylong")  # with it Python writes and reads integers of thousands of digits
    for form, following in itertools.pairwise(_TYPICAL):
        for gold in (f"{form} + z", following):
            judge(form, gold)
    if find_spec("math_verify") is not None:
        _papers().accepts("math_verify", "\\boxed{x)}", "x")  # no expression, for which antlr imports more
