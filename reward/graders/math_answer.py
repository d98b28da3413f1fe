"""Mathematics and STEM: a boxed answer is right if DeepScaleR's rules or math-verify accept it.

Only the last \\boxed{} counts. Both sides are boxed again before math-verify parses them, because it drops radicals and
relations from bare strings. Rules run from cheap to expensive and stop at the first that accepts.

Guards (on by default, off with task {"guards": false}) refuse answers that hedge (see `hedge`), that have another unit
than the gold (see `units`), and numbers near zero that differ from the gold (see `near_zero`).

Sources: DeepScaleR (reward.graders.deepscaler), huggingface/Math-Verify 0.9.0 (Apache-2.0).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from importlib import import_module
from typing import Any

from reward.extract import joined_boxes, last_box
from reward.graders import (
    agreement,
    deepscaler,
    intervals,
    math_verify_rule,
    near_zero,
    notation,
    units,
    visible,
    wording,
)
from reward.graders.grade import Grade, require
from reward.graders.safe_expression import is_cheap, is_shallow

_INTEGER = re.compile(r"[+-]?\d{1,300}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?\d*\.\d+", re.ASCII)
_OR = re.compile(r"\bor\b|\\lor\b")
_ALTERNATIVES = re.compile(r"\\text\{\s*\(?or\s*\}|(?<![A-Za-z\\])or(?![A-Za-z])|\\lor\b")
_DROPPED = re.compile(r"\\%|'|_")
_GUARDS = {"unit": units.differ, "near zero": near_zero.differ, "notation": notation.differ}
_MAX_GOLD = 5_000
_MAX_ROWS = 10
_TYPICAL = r"""
42; -7; 3.14; 1,234; 50\%; \$5; 5\text{ cm}; 120^\circ; 1.2\times 10^{-3}; 10!; \frac{1}{2}; -\frac{3}{4}
\dfrac{x+1}{x-1}; \sqrt{2}; 2\sqrt{3}; \sqrt[3]{5}; \frac{\sqrt{2}}{2}; 3+4i; 2-\sqrt{5}; \pi; 2\pi r
\frac{\pi}{6}; e^{-x}; x^2; x^{n+1}; x^2+3x-4; 2x(x-1)(x+2); \frac{x^2-1}{2y}; a_n; 2^{n}-1; \log_2 3; \ln 2
\sin x; \cos^2\theta; \tan(\alpha); |x-1|; \binom{5}{2}; (1,2); (1,2,3); [0,1]; (0,1]; (-\infty,3); [2,\infty)
(1,2)\cup(3,4); \{1,2,3\}; 1,2,3; \emptyset; x=5; y=2x+1; x^2+y^2=4; x<3; x\ge 2; 1\le x<4; x=1,x=2; x\in[0,1]
x\ne 0; \text{yes}; \lfloor x\rfloor; \infty; \begin{pmatrix}1&2\\3&4\end{pmatrix}
\begin{bmatrix}1\\2\end{bmatrix}; \sum_{k=1}^{n}k; \frac{n(n+1)}{2}; \pm 3; \mathbb{R}
"""
"""Expressions parsed before workers are forked, because the parser builds its tables lazily."""
_LATE = """
abc assumptions.handlers.calculus assumptions.handlers.common assumptions.handlers.matrices assumptions.handlers.ntheory
assumptions.handlers.order assumptions.handlers.sets assumptions.lra_satask assumptions.predicates.matrices
assumptions.predicates.sets assumptions.satask assumptions.wrapper combinatorics.coset_table combinatorics.fp_groups
combinatorics.galois combinatorics.homomorphisms concrete.delta discrete.recurrences integrals.heurisch
integrals.manualintegrate integrals.risch logic.algorithms.dpll logic.algorithms.dpll2 logic.algorithms.lra_theory
matrices.expressions.applyfunc polys.dispersion polys.distributedmodules polys.domains.old_fractionfield
polys.domains.old_polynomialring polys.domains.quotientring polys.numberfields.resolvent_lookup sets.handlers.add
sets.handlers.functions sets.handlers.mul sets.handlers.power sets.setexpr tensor.array.array_derivatives
tensor.array.expressions tensor.tensor
"""
"""The modules of sympy that its functions import when they are called, except those that print, plot or generate code:
found by reading the imports within functions of all modules that a worker has loaded."""


def check(task: Mapping[str, Any]) -> None:
    """Raises InvalidTask unless the task can be graded."""
    answer = task.get("answer")
    require(isinstance(answer, str) and bool(answer.strip()), 'the task needs "answer", a non-empty string')
    require(len(str(answer)) <= _MAX_GOLD, f'the task\'s "answer" is longer than {_MAX_GOLD} characters')
    require(isinstance(task.get("guards", True), bool), 'the task\'s "guards" must be true or false')


def grade(text: str, task: Mapping[str, Any]) -> Grade:
    """1 if the last box equals task["answer"], else 0; `details` has the extracted answer and the rule that accepted
    it."""
    gold = _unbox(task["answer"])
    box = last_box(text)
    if box is None:
        return Grade(score=0.0, verdict="no_box", details={"gold": gold})
    details: dict[str, Any] = {"extracted": box[:500], "gold": gold[:500]}
    if not is_shallow(box):
        return Grade(score=0.0, verdict="too_deep", details=details)
    if (electrons := wording.configuration(notation.plain(box))) is not None:
        is_right = electrons == wording.configuration(notation.plain(gold))
        return Grade(score=float(is_right), verdict="correct" if is_right else "wrong", details=details)
    is_same_text = wording.same_text(box, gold)
    try:
        answer = _show(box)
    except visible.Unreadable as error:
        if is_same_text:
            return Grade(score=1.0, verdict="correct", details={**details, "accepted_by": "same text"})
        return Grade(score=0.0, verdict="unreadable", details={**details, "reason": str(error)})
    gold = _shown_gold(gold)
    answer = wording.without_label(answer, gold)
    verdict, findings = _judge(answer, gold, task.get("guards", True), _shown_run(text))
    if verdict == "ambiguous" and is_same_text:
        verdict, findings = "correct", {"accepted_by": "same text"}
    return Grade(score=float(verdict == "correct"), verdict=verdict, details={**details, **findings})


def _judge(answer: str, gold: str, guards: bool, joined: str | None = None) -> tuple[str, dict[str, Any]]:
    """Returns the verdict on a box's content, with the rule that accepted it or the guard that refused it."""
    if guards and (reason := hedge(answer, gold)):
        forms = _ALTERNATIVES.split(answer) if reason == "or" else []
        if 1 < len(forms) <= _MAX_ROWS and all(_is_right(form, gold) for form in forms):
            return "correct", {"accepted_by": "every form"}
        return "hedge", {"guard": reason}
    rule = accepted_by(answer, gold, joined, guards)
    if rule is None:
        return "wrong", {}
    for guard, differ in _GUARDS.items():
        if guards and differ(answer, gold):
            return "wrong", {"guard": guard}
    if agreement.is_ambiguous(answer, gold, rule):
        return "ambiguous", {"accepted_by": rule}
    return "correct", {"accepted_by": rule}


def _is_right(form: str, gold: str) -> bool:
    """Whether one of several alternatives joined by `or` is right. In `(or 0.75)` a bracket remains and is ignored."""
    form = form.strip()
    form = form.removesuffix(")") if form.count(")") > form.count("(") else form
    return _judge(form, gold, True)[0] == "correct"


def accepted_by(answer: str, gold: str, joined: str | None = None, guards: bool = True) -> str | None:
    """Name of the first rule under which the answer equals the gold, or None. `joined`: the answer together with the
    boxes joined to it. `guards`: whether guards also apply to each part of an answer that is compared in parts."""
    if not answer.strip():
        return None
    if _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(gold):
        return "integer" if int(answer) == int(gold) else None
    if (option := wording.option(gold)) and wording.chosen(answer) == option:
        return "option"
    if option and not gold.islower():  # e and n are numbers too
        return None
    if (rows := notation.parts(gold)) is not None:
        return "parts" if _same_rows(notation.parts(answer), rows, guards) else None
    if (is_same := _same_intervals(answer, gold, guards)) is not None:
        return "interval" if is_same else None
    if (words := wording.words(gold)) is not None and wording.words(answer) == words:
        return "words"
    # Both verifiers read words as products of letters, so that `listen` would be `silent`.
    if words is not None and len(words) > 4 and " and " not in words:
        return None
    if (formula := wording.formula(gold)) is not None and wording.formula(answer) == formula:
        return "formula"
    if rule := deepscaler.equal(answer, gold):
        return rule
    if is_cheap(answer) and math_verify_rule.equal(answer, gold):
        return "math_verify"
    if joined is not None and is_cheap(joined) and math_verify_rule.equal(joined, gold):
        return "joined"
    return None


def hedge(answer: str, gold: str) -> str | None:
    """Returns the reason why the box holds more than one guess, or None.

    `or`: alternatives where the gold names one value. `=`: each side of a chain of equations, except bare names (`x =`,
    `f(x) =`), must itself be right; the verifiers read only the last. `decimal`: a rounded decimal where the gold is
    exact (a fraction, a root, a constant); twelve right digits pass. `list`: two numbers (`1, 234`) where the gold is
    one. `set`: braces where the gold is ordered.
    """
    if _OR.search(answer) and not re.search(r"\bor\b|\band\b|,|;|\\pm|\\lor|\\cup|\\\{", gold):
        return "or"
    if "=" in answer and "=" not in gold:
        sides = [side for side in re.split(r"(?<![<>!:])=", answer) if side.strip()]
        values = [side for side in sides if not _names_something(side)] if len(sides) > 1 else []
        if len(values) > 1 and not all(accepted_by(side.strip(), gold) for side in values):
            return "="
    if _DECIMAL.fullmatch(answer.strip("$ ")) and re.search(r"\\pi|\\sqrt|\\frac|^e$|/", gold):
        exact, decimal = _exact_value(gold), _exact_value(answer.strip("$ "))
        if (
            exact is not None
            and decimal is not None
            and abs(exact - decimal).evalf() > 1e-12 * abs(exact).evalf()
        ):
            return "decimal"
    if re.search(r"\d\s*,\s+\d", answer) and re.fullmatch(r"\d{1,3}(,\d{3})+|\d+", gold):
        return "list"
    if (
        answer.startswith("\\{")
        and not re.search(r"\\cup|[(\[]|\\mid|:", answer)
        and intervals.parts(answer) is None  # \{x | 0<x<1\}
        and gold.startswith(("(", "["))
    ):
        return "set"
    return None


def _names_something(side: str) -> bool:
    """Whether a side of an equation names the value on the other side: it holds a letter of its own."""
    if re.fullmatch(r"\s*\\text\{[^{}\d]+\}\s*", side):  # \text{Area}
        return True
    without_text = re.sub(r"\\text\s*\{[^{}]*\}", "", side)
    return (
        re.search(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", without_text)) is not None
        or re.search(
            r"\\(?:angle|alpha|beta|gamma|delta|epsilon|theta|lambda|mu|sigma|phi|omega|Delta|triangle|ell)",
            without_text,
        )
        is not None
    )


def _exact_value(text: str) -> Any | None:
    """Returns the number as an exact sympy value (a decimal as a fraction); None if it is no number."""
    import sympy

    if _DECIMAL.fullmatch(text):
        return sympy.Rational(text)
    for value in math_verify_rule.value(text):
        if isinstance(value, sympy.Basic) and value.is_number:
            return sympy.nsimplify(value, rational=True) if value.is_Float else value
    return None


def _same_rows(
    ours: Sequence[tuple[str, ...]] | None, golds: Sequence[tuple[str, ...]], guards: bool
) -> bool:
    """Whether each row of the gold matches a different row of the answer, cell by cell."""
    if ours is None or len(ours) != len(golds) or len(golds) > _MAX_ROWS:
        return False
    left, same_cell = list(ours), partial(_same_cell, guards=guards)
    for gold in golds:
        same = (row for row in left if len(row) == len(gold) and all(map(same_cell, row, gold)))
        if (found := next(same, None)) is None:
            return False
        left.remove(found)
    return True


def _same_intervals(answer: str, gold: str, guards: bool) -> bool | None:
    """Whether the inequality on one side describes the intervals on the other; None for any other pair."""
    ours, golds = intervals.parts(answer), intervals.parts(gold)
    if ours is None or golds is None or ours[0] == golds[0]:
        return None
    return _same_rows(ours[1], golds[1], guards)


def _same_cell(answer: str, gold: str, guards: bool) -> bool:
    """Whether one part of an answer, such as an end of an interval, is right under the rules for a whole answer.

    The verifiers drop percent signs, indices and primes. In a part both sides must have the same ones.
    """
    if _DROPPED.findall(answer) != _DROPPED.findall(gold):
        return False
    if answer.count("=") == gold.count("=") == 1:  # `x = 1` is not `y = 1` in a system
        (left, answer), (left_gold, gold) = answer.split("="), gold.split("=")
        if left.strip() != left_gold.strip():
            return False
    return answer == gold or _judge(answer, gold, guards)[0] == "correct"


def _unbox(gold: str) -> str:
    content = last_box(gold)
    return (gold if content is None else content).strip()


def _show(box: str) -> str:
    """Returns the content of a box as text, in the spelling that the verifiers get. Raises Unreadable."""
    return wording.as_mathematics(visible.read(notation.plain(box)))


@lru_cache(maxsize=4096)
def _shown_gold(gold: str) -> str:
    """Returns the content of a gold, in the same spelling. An unreadable gold stays as it is: golds hide no second
    guess."""
    try:
        return _show(gold)
    except visible.Unreadable:
        return notation.plain(gold)


def _shown_run(text: str) -> str | None:
    """Returns the last box and those joined to it, as one list; None if it stands alone or one is unreadable."""
    boxes = joined_boxes(text)
    try:
        return ", ".join(map(_show, boxes)) if len(boxes) > 1 else None
    except visible.Unreadable:
        return None


def warm_up() -> None:
    """Builds the LaTeX parser's tables and imports what sympy and Python import late."""
    for name in _LATE.split():
        import_module(f"sympy.{name}")
    if sys.version_info >= (3, 12):
        import_module("_pylong")  # with it Python writes and reads integers of thousands of digits
    for form in re.split(r";|\n", _TYPICAL):
        if form.strip():
            accepted_by(form.strip() + " + z", form.strip())
