"""Mathematics and STEM: a boxed answer is right if DeepScaleR's rules or math-verify accept it.

Only the last \\boxed{} counts; both sides are boxed again before math-verify parses them, because bare strings make
it drop radicals and relations. Rules run from cheap to dear and stop at the first that accepts.

Guards (on by default, off with task {"guards": false}) refuse what only looks like an answer, see `hedge`, and a
number in another unit than the gold's, see `units`, and one near zero that is not the gold, see `near_zero`.

Sources: DeepScaleR (reward.graders.deepscaler), huggingface/Math-Verify 0.9.0 (Apache-2.0).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from latex2sympy2_extended.latex2sympy2 import NormalizationConfig
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

from reward.extract import joined_boxes, last_box
from reward.graders import deepscaler, near_zero, notation, units, wording
from reward.graders.grade import Grade, require
from reward.graders.safe_expression import is_cheap, is_shallow

for _name in ("math_verify", "math_verify.parser", "math_verify.grader", "math_verify.utils"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)  # it logs model text

_EXTRACTION = (
    LatexExtractionConfig(
        boxed_match_priority=0,
        normalization_config=NormalizationConfig(
            basic_latex=True, units=True, malformed_operators=True, nits=True, boxed="all", equations=False
        ),
    ),
    ExprExtractionConfig(),
)
_INTEGER = re.compile(r"[+-]?\d{1,300}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?\d*\.\d+", re.ASCII)
_E_NOTATION = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([+-]?\d{1,3})(?![\w.])", re.ASCII)
_OR = re.compile(r"\bor\b|\\lor\b|\\vee\b")
_LAST_LETTER = re.compile(r"(?P<before>.*[\d}\s])(?P<letter>[a-z])\s*", re.DOTALL)
_FUNCTION_LAST = re.compile(r"\\(?:(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|log|ln|exp)(?:\^\{?-?\d+\}?)?\s*$")
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
"""Forms that the parser is taught before workers are forked: it builds its tables as it meets them."""


def check(task: Mapping[str, Any]) -> None:
    """Raises InvalidTask unless the task can be graded."""
    answer = task.get("answer")
    require(isinstance(answer, str) and bool(answer.strip()), 'the task needs "answer", a non-empty string')
    require(len(str(answer)) <= _MAX_GOLD, f'the task\'s "answer" is longer than {_MAX_GOLD} characters')
    require(isinstance(task.get("guards", True), bool), 'the task\'s "guards" must be true or false')


def grade(text: str, task: Mapping[str, Any]) -> Grade:
    """1 if the last box equals task["answer"], else 0; `details` say what was extracted and which rule accepted it."""
    gold = _unboxed(task["answer"])
    answer = last_box(text)
    if answer is None:
        return Grade(score=0.0, verdict="no_box", details={"gold": gold})
    details: dict[str, Any] = {"extracted": answer[:500], "gold": gold[:500]}
    if not is_shallow(answer):
        return Grade(score=0.0, verdict="too_deep", details=details)
    answer, gold = notation.plain(answer), notation.plain(gold)
    if task.get("guards", True) and (reason := hedge(answer, gold)):
        return Grade(score=0.0, verdict="hedge", details={**details, "guard": reason})
    rule = accepted_by(answer, gold, list(map(notation.plain, joined_boxes(text))))
    if rule is None:
        return Grade(score=0.0, verdict="wrong", details=details)
    for guard, differ in _GUARDS.items():
        if task.get("guards", True) and differ(answer, gold):
            return Grade(score=0.0, verdict="wrong", details={**details, "guard": guard})
    return Grade(score=1.0, verdict="correct", details={**details, "accepted_by": rule})


def accepted_by(answer: str, gold: str, joined: list[str] | None = None) -> str | None:
    """Name of the first rule under which the answer equals the gold, or None."""
    if not answer.strip():
        return None
    if _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(gold):
        return "integer" if int(answer) == int(gold) else None
    if (option := wording.option(gold)) and wording.chosen(answer) == option:
        return "option"
    if option and not gold.islower():  # e and n are numbers too
        return None
    if (rows := notation.parts(gold)) is not None:
        return "parts" if _same_rows(notation.parts(answer), rows) else None
    if (words := wording.words(gold)) is not None and wording.words(answer) == words:
        return "words"
    # to both verifiers words are products of letters, so that `listen` would be `silent`
    if words is not None and len(words) > 4 and " and " not in words:
        return None
    if (formula := wording.formula(gold)) is not None and wording.formula(answer) == formula:
        return "formula"
    if rule := deepscaler.equal(answer, gold):
        return rule
    candidates = [answer] if joined is None or len(joined) < 2 else [answer, ", ".join(joined)]
    for candidate in candidates:
        parsed = _parsed(candidate) if is_cheap(candidate) else []
        if parsed and verify(list(_parsed_gold(gold)), parsed, timeout_seconds=None):
            return "math_verify"
    return None


def hedge(answer: str, gold: str) -> str | None:
    """Why the box holds more than one guess, or None.

    `or`: alternatives where the gold names one value. `=`: each side that is not a bare name (`x =`, `f(x) =`) must
    itself be right, so that a chain of guesses is not read by its last member. `decimal`: a rounded decimal where
    the gold is exact (a fraction, a root, a constant); twelve right digits pass. `list`: two numbers (`1, 234`) where
    the gold is one. `set`: braces where the gold is ordered.
    """
    if _OR.search(answer) and not re.search(r"\bor\b|\band\b|,|;|\\pm|\\lor|\\vee|\\cup|\\\{", gold):
        return "or"
    if "=" in answer and "=" not in gold:
        sides = [side for side in re.split(r"(?<![<>!:])=", answer) if side.strip()]
        values = [side for side in sides if not _names_something(side)] if len(sides) > 1 else []
        if len(values) > 1 and not all(accepted_by(side.strip(), gold) for side in values):
            return "="
    if _DECIMAL.fullmatch(answer.strip("$ ")) and re.search(r"\\pi|\\sqrt|\\[dt]?frac|^e$|/", gold):
        exact, decimal = _exact_value(gold), _exact_value(answer.strip("$ "))
        if (
            exact is not None
            and decimal is not None
            and abs(exact - decimal).evalf() > 1e-12 * abs(exact).evalf()
        ):
            return "decimal"
    if re.search(r"\d\s*,\s+\d", answer) and re.fullmatch(r"\d{1,3}(,\d{3})+|\d+", gold):
        return "list"
    if answer.startswith("\\{") and "\\cup" not in answer and gold.startswith(("(", "[")):
        return "set"
    return None


def _names_something(side: str) -> bool:
    """Whether a side of an equation names what the other side gives the value of: it holds a letter of its own."""
    without_text = re.sub(r"\\(?:text|mathrm|textbf|mbox)\s*\{[^{}]*\}", "", side)
    return (
        re.search(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", without_text)) is not None
        or re.search(
            r"\\(?:angle|alpha|beta|gamma|delta|epsilon|theta|lambda|mu|sigma|phi|omega|Delta|triangle|ell)",
            without_text,
        )
        is not None
    )


def _exact_value(text: str) -> Any | None:
    """The number as an exact sympy value (a decimal as a fraction), None if it is no number."""
    import sympy

    if _DECIMAL.fullmatch(text):
        return sympy.Rational(text)
    for value in _parsed_gold(text):
        if isinstance(value, sympy.Basic) and value.is_number:
            return sympy.nsimplify(value, rational=True) if value.is_Float else value
    return None


def _same_rows(ours: list[tuple[str, ...]] | None, golds: list[tuple[str, ...]]) -> bool:
    """Whether each row of the gold has one of its own in the answer, cell by cell."""
    if ours is None or len(ours) != len(golds) or len(golds) > _MAX_ROWS:
        return False
    left = list(ours)
    for gold in golds:
        same = (row for row in left if len(row) == len(gold) and all(map(_same_cell, row, gold)))
        if (found := next(same, None)) is None:
            return False
        left.remove(found)
    return True


def _same_cell(answer: str, gold: str) -> bool:
    if answer.count("=") == gold.count("=") == 1:  # `x = 1` is not `y = 1` in a system
        (left, answer), (left_gold, gold) = answer.split("="), gold.split("=")
        if left.strip() != left_gold.strip():
            return False
    return answer == gold or accepted_by(answer, gold) is not None


def _unboxed(gold: str) -> str:
    content = last_box(gold)
    return (gold if content is None else content).strip()


@lru_cache(maxsize=4096)
def _parsed_gold(gold: str) -> tuple[Any, ...]:
    return tuple(_parsed(gold))


def warm_up() -> None:
    """Builds the LaTeX parser's tables and imports what sympy imports late."""
    for form in re.split(r";|\n", _TYPICAL):
        if form.strip():
            accepted_by(form.strip() + " + z", form.strip())


def _parsed(answer: str) -> list[Any]:
    """What math-verify reads in a box with this content."""
    text = re.sub(r"\\exp\s*\{", "e^{", answer)  # it reads \exp(x) and e^{x}, not \exp{x}
    text = _E_NOTATION.sub(r"\1\\times 10^{\2}", text)  # it takes 1.07e16 for a product with Euler's number
    boxed = f"\\boxed{{{_with_last_variable(text)}}}"
    return list(parse(boxed, list(_EXTRACTION), parsing_timeout=None))


def _with_last_variable(answer: str) -> str:
    """math-verify drops a last `t`, `m`, `h` and the like as a unit, also where it is a variable: `v_0 t` would equal
    `v_0`. Behind a function or an expression with variables of one letter it gets braces, and stays."""
    match = _LAST_LETTER.fullmatch(answer)
    if match is None:
        return answer
    before = re.sub(
        r"\d[eE][-+]?\d|\\(?:text|mathrm|mbox)\s*\{[^{}]*\}", "", match["before"].rpartition("=")[2]
    )
    without_commands = re.sub(r"\\[A-Za-z]+", " ", before)
    if _FUNCTION_LAST.search(before) or re.search(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])", without_commands):
        return f"{match['before']}{{{match['letter']}}}"
    return answer
