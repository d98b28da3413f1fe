"""What math-verify and DeepScaleR's rules say: second opinions where our reading declines, and scores of their own.

`second_opinion` asks them about one expression at a time. Both misread much (a last letter as a unit, `x^{a}b` as
`x^{ab}`, X as x), so `_Spelling` first writes the expression in a form that can only be read in one way, or refuses it.
`verdict` is what a peer alone says of a response, with its own extraction, tolerances and holes.

Sources: huggingface/Math-Verify 0.9.0 and latex2sympy2_extended 1.11.0 (Apache-2.0), reward.graders.math.deepscaler.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import (
    ConversionConfig,
    NormalizationConfig,
    latex2sympy,
    normalize_latex,
)
from math_verify import parse, verify

from reward.extract import last_box
from reward.graders.grade import Grade, require
from reward.graders.math import deepscaler
from reward.graders.math.limits import MAX_CHARACTERS, is_cheap, is_shallow

for _name in ("math_verify", "math_verify.parser", "math_verify.grader", "math_verify.utils"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)  # it logs model text

VERIFIERS = ("reading", "math_verify", "deepscaler")
SECOND_OPINIONS = ("mathd", "sympy", "math_verify")


# ------------------------------------------------------------------------------- a peer's own score
def check_verifier(task: Mapping[str, Any]) -> None:
    """Raises InvalidTask unless the task's "verifier", if it has one, is known."""
    known = ", ".join(f'"{name}"' for name in VERIFIERS)
    require(task.get("verifier", "reading") in VERIFIERS, f'the task\'s "verifier" must be one of {known}')


def grade_alone(text: str, task: Mapping[str, Any]) -> Grade:
    """Grades an answer as the task's "verifier", one of the peers, does alone."""
    gold, box, peer = task["answer"], last_box(text), task["verifier"]
    details = {"gold": gold[:500], "rule": "a peer's own verdict", "decided_by": peer}
    if box is None and peer == "deepscaler":
        return Grade(score=0.0, verdict="no_box", details=details)
    is_right = verdict(peer, text, gold)
    details["extracted"] = (text[-500:] if box is None else box)[:500]
    return Grade(score=float(is_right), verdict="correct" if is_right else "wrong", details=details)


def verdict(name: str, text: str, gold: str) -> bool:
    """Whether a peer alone ("math_verify" or "deepscaler") takes the text after the reasoning for right. math-verify
    searches all of it, as in its README; DeepScaleR's rules get the last box."""
    box = last_box(text)
    if name == "deepscaler":
        is_short = box is not None and len(box) <= MAX_CHARACTERS and is_shallow(box)
        return is_short and deepscaler.equal(str(box), _content(gold)) is not None
    if box is not None and not is_cheap(box):
        return False
    try:
        golds = parse(f"\\boxed{{{_content(gold)}}}", parsing_timeout=None)
        return bool(verify(golds, parse(text, parsing_timeout=None), timeout_seconds=None))
    except Exception:  # sympy raises what it likes on odd input; trainers count it as wrong
        return False


def _content(gold: str) -> str:
    box = last_box(gold)
    return (gold if box is None else box).strip()


# ------------------------------------------------------------------------------- second opinions
def second_opinion(answer: str, gold: str) -> str | None:
    """Name of the peer that takes two canonical texts for equal, or None. Refused are texts with words, units, lists,
    several relations, or letters that differ in case alone, and pairs that do not have the same letters."""
    ours, golds = _right_side(answer), _right_side(gold)
    if ours is None or golds is None or ours[0] != golds[0]:
        return None
    try:
        one, other = _Spelling(ours[1]), _Spelling(golds[1])
    except _Refused:
        return None
    letters = one.letters
    if letters != other.letters or len({letter.lower() for letter in letters}) < len(letters):
        return None
    if not (is_cheap(one.text) and is_cheap(other.text)):
        return None
    if (rule := deepscaler.equal(one.text, other.text)) is not None:
        return rule
    return "math_verify" if _math_verify(one.text, other.text) else None


class _Refused(ValueError):
    """A peer could misread the expression."""


_RELATION = re.compile(r"\\(?:le|ge|ne)(?![A-Za-z])|[=<>]")
_GREEK = (
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|chi|psi|omega|Gamma|Delta|"
    "Theta|Lambda|Xi|Sigma|Phi|Psi|Omega|ell"
)
_FUNCTIONS = "(?:arc)?(?:sin|cos|tan)|cot|sec|csc|sinh|cosh|tanh|ln|log"
_TOKEN = re.compile(
    rf"(?P<function>\\(?:{_FUNCTIONS})(?![A-Za-z])(?:_\{{\w+\}}|\^\{{\d+\}})?)"
    rf"|(?P<letter>(?:[A-Za-z]|\\(?:{_GREEK})(?![A-Za-z]))(?:_\{{\w\}})?)|(?P<constant>\\pi(?![A-Za-z]))"
    r"|(?P<number>\d+(?:\.\d+)?)|(?P<build>\\(?:frac|binom|sqrt)(?![A-Za-z])(?:\[\d+\])?)"
    r"|(?P<sign>\\(?:cdot|times|div)(?![A-Za-z])|[-+*/])|(?P<script>\^\{|\{)|(?P<open>\()|(?P<close>[)}])"
    r"|(?P<factorial>!)|(?P<space>\s+)",
    re.ASCII,
)
_ENDS = ("letter", "constant", "number", "close", "factorial")
_STARTS = ("letter", "constant", "number", "open", "build", "function")
_ARGUMENT = re.compile(r"\s*(?:\(|(?:[A-Za-z]|\d+|\\[A-Za-z]+)\s*(?:$|[-+)}]))")


def _right_side(text: str) -> tuple[str, str] | None:
    """Returns what stands up to the relation (nothing if there is none), and what stands behind it."""
    if len(text) > MAX_CHARACTERS or len(signs := _RELATION.findall(text)) > 1 or re.search("[,;:]", text):
        return None
    left, sign, right = text.partition(signs[0]) if signs else ("", "", text)
    return re.sub(r"\s", "", left) + sign, right


class _Spelling:
    """An expression with every product written out and every decimal as a fraction. Raises _Refused.

    text: Example: _Spelling("0.5x^{2}y").text == "\\\\frac{5}{10}\\\\cdot x^{2}\\\\cdot y"
    """

    def __init__(self, text: str) -> None:
        self.letters: set[str] = set()
        before, place, divides, written = "", 0, False, []
        while place < len(text):
            token = _TOKEN.match(text, place)
            if token is None:
                raise _Refused
            kind, word, rest = str(token.lastgroup), token[0], text[token.end() :]
            if kind != "space":
                if before in _ENDS and kind in _STARTS:
                    is_run = before == kind == "letter" and not text[place - 1].isspace()
                    is_mixed = before == "number" and re.match(r"\\frac\{\s*\d", text[place:])
                    is_applied = before in ("letter", "close") and re.match(r"\(\w*\)", text[place:])
                    if kind == "number" or is_run or is_mixed or is_applied or divides:
                        raise _Refused
                    written.append("\\cdot ")
                if kind == "function" and not _ARGUMENT.match(rest):
                    raise _Refused
                if kind == "letter" and word not in ("e", "i"):
                    self.letters.add(word)
                if kind in ("sign", "open", "close", "script"):
                    divides = word == "/"
                if kind == "number" and "." in word:
                    whole, part = word.split(".")
                    word = f"\\frac{{{int(whole + part)}}}{{{10 ** len(part)}}}"
                before = kind
            written.append(word)
            place = token.end()
        self.text = "".join(written).strip()
        if not self.text:
            raise _Refused


def _math_verify(answer: str, gold: str) -> bool:
    """Whether math-verify reads both, and their difference vanishes: its last resort, but exactly. Its `verify` also
    rounds, and takes 1e-15 for 0."""
    one, other = read_by_math_verify(answer), read_by_math_verify(gold)
    try:
        return one is not None and other is not None and _is_zero(one - other)
    except Exception:  # sympy raises what it likes on odd input
        return False


@lru_cache(maxsize=4096)
def read_by_math_verify(text: str) -> sympy.Expr | None:
    """Returns the expression that math-verify's parser reads, without its rules for units and small letters."""
    normal = NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none"
    )
    conversion = ConversionConfig(lowercase_symbols=False)
    try:
        value = latex2sympy(
            normalize_latex(text, normal),
            is_real=None,
            normalization_config=None,
            conversion_config=conversion,
        )
    except Exception:  # parsers of free text can raise anything
        return None
    return value if isinstance(value, sympy.Expr) else None


def _is_zero(difference: sympy.Expr) -> bool:
    if not difference.is_number:
        return bool(sympy.simplify(difference) == 0)
    parts = sympy.N(difference, 20, maxn=1_000).as_real_imag()
    return all(part == 0 or (part.is_Float and part._prec == 1) for part in parts)
