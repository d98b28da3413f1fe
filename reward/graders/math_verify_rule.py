"""math-verify's parser and comparison, applied to the whole of a box or not at all.

math-verify looks for an answer in free text: if it cannot parse a box, it takes the last number in it. Here it gets a
box that has already been read (reward.graders.visible), and a box that it cannot parse completely counts as unreadable.

Source: huggingface/Math-Verify 0.9.0 (Apache-2.0), normalisation and grammar of latex2sympy2_extended 1.11.0.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any

from latex2sympy2_extended.latex2sympy2 import (
    ConversionConfig,
    NormalizationConfig,
    latex2sympy,
    normalize_latex,
)
from math_verify import verify
from math_verify.parser import get_last_eq, should_treat_as_complex

from reward.graders import exact
from reward.graders.units import unit_of

for _name in ("math_verify", "math_verify.parser", "math_verify.grader", "math_verify.utils"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)  # it logs model text

_NORMALIZATION = NormalizationConfig(
    basic_latex=True, units=True, malformed_operators=True, nits=True, boxed="none", equations=False
)
_CONVERSION = ConversionConfig(lowercase_symbols=False)
"""theirs reads `X` as `x`, so that X - x is 0."""
_E_NOTATION = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([+-]?\d{1,3})(?![\w.])", re.ASCII)
_LAST_LETTER = re.compile(r"(?P<before>.*[\d}\s])(?P<letter>[a-z])\s*", re.DOTALL)
_FUNCTION_LAST = re.compile(r"\\(?:(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|log|ln|exp)(?:\^\{?-?\d+\}?)?\s*$")
_SQUARED_UNIT = re.compile(r"(?<=[\d}\s])\s*([a-z]{2,})\^\{\d\}\s*$")
_PRODUCT = re.compile(r"(?<=[\d)])\s*\((?=[-+]?\d)")
_MISREAD = re.compile(r"\\[lcv]dots|\^\\circ\s*\d")
"""math-verify drops dots, so that 1, \\ldots, 5 would be 1 and 5, and adds minutes to degrees."""


def equal(answer: str, gold: str, keep_units: bool = False) -> bool:
    """Whether math-verify can read both, and reads them as equal: in the same letters, and exact numbers exactly."""
    ours, golds = value(answer, keep_units), value(gold, keep_units)
    if not ours or not verify(list(golds), list(ours), timeout_seconds=None):
        return False
    if any(map(exact.differ, ours, golds)):
        return False
    # It compares names of several letters in lower case: a_n is not A_n.
    letters, gold_letters = _letters(ours), _letters(golds)
    return letters == gold_letters or letters.lower() != gold_letters.lower()


def _letters(values: tuple[Any, ...]) -> str:
    """Returns all characters of the variables' names, sorted without regard to case."""
    names = "".join(symbol.name for value in values for symbol in value.free_symbols)
    return "".join(sorted(sorted(names), key=str.lower))


@lru_cache(maxsize=4096)
def value(text: str, keep_units: bool = False) -> tuple[Any, ...]:
    """Returns the sympy object that math-verify reads, in a tuple of one; an empty tuple if it cannot read all of the
    text.

    It reads the last side of a chain of equations, and of an equation with an unknown left side. With `keep_units`,
    what it would drop as a unit stays as a product of variables."""
    if _MISREAD.search(text):
        return ()
    text = re.sub(r"\\exp\s*\{", "e^{", text)  # it reads \exp(x) and e^{x}, not \exp{x}
    text = _E_NOTATION.sub(r"\1\\times 10^{\2}", text)  # it takes 1.07e16 for a product with Euler's number
    text = _PRODUCT.sub(r"\\cdot (", text)  # it takes 5(12) for a mixed number
    text = _SQUARED_UNIT.sub(_without_unit, text)
    text = _with_units(text) if keep_units else _with_last_variable(text)
    for part in (text, text.rpartition("=")[2]):
        try:
            return (_parse(normalize_latex(part, _NORMALIZATION)),)
        except Exception:  # parsers of free text can raise anything
            if "=" not in text or re.search(r"[,;]|[<>!]=", text):
                break
    return ()


def _parse(text: str) -> Any:
    """math-verify's `parse_latex_cached`, with our conversion. Raises what the parser raises."""
    try:
        is_real = not should_treat_as_complex(text)
        return latex2sympy(text, is_real=is_real, normalization_config=None, conversion_config=_CONVERSION)
    except Exception:
        last = get_last_eq(text)
        if last == text:
            raise
        return _parse(last)


def _without_unit(match: re.Match[str]) -> str:
    return match[0] if unit_of(f"1 {match[1]}") is None else ""


def _with_units(text: str) -> str:
    unwrapped = re.sub(r"\\text\{\s*([^{}]*?)\s*\}", r" {\1}", text)
    return re.sub(r"(?<=[\d}\s])([A-Za-z])\s*$", r"{\1}", unwrapped)


def _with_last_variable(answer: str) -> str:
    """Protects a last variable. math-verify drops a final `t`, `m`, `h` and the like as a unit, so that `v_0 t` would
    equal `v_0`. Behind a function, or an expression with one-letter variables, braces keep it."""
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
