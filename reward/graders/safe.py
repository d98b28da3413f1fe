"""Makes expressions that a model wrote safe for sympy. The only place that calls sympy's `parse_expr`.

`parse_expr` is `eval`: `().__class__` reaches the interpreter, and `9**9**9**9` never ends. Two gates protect it.
`is_harmless` admits only numbers, operators, brackets and names that are resolved in a table of mathematical functions
(no strings, attributes, subscripts or keywords), so that only arithmetic can be evaluated. `is_cheap` refuses
arithmetic that looks astronomically large, in LaTeX and Python spellings alike. What passes may still be slow; the
worker's CPU limit ends it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import sympy
from sympy.parsing import sympy_parser

MAX_CHARACTERS = 2000
MAX_DEPTH = 60
MAX_DIGITS = 400
MAX_EXPONENT = 10_000
MAX_FACTORIAL = 3_000

_FUNCTION_NAMES = (
    "sqrt cbrt root sin cos tan cot sec csc asin acos atan acot asec acsc sinh cosh tanh coth asinh acosh atanh exp "
    "log ln Abs abs sign floor ceiling factorial binomial gcd lcm Mod Min Max re im conjugate arg erf gamma"
)
_CONSTANTS = ("pi", "E", "I", "oo")
_MATHEMATICS = frozenset((*_FUNCTION_NAMES.split(), *_CONSTANTS))
_PARSER_NAMES = ("Symbol", "Integer", "Float", "Rational", "Function", "factorial", "factorial2")
NAMES: dict[str, Any] = {
    name: getattr(sympy, name)
    for name in (*_FUNCTION_NAMES.split(), *_CONSTANTS, *_PARSER_NAMES)
    if hasattr(sympy, name)
} | {"abs": sympy.Abs, "__builtins__": {}}

_HARMLESS = re.compile(
    r"(?:[A-Za-z]+[0-9_]*|\d+\.?\d*(?:[eE][+-]?\d{1,3})?(?![\w.])|\.\d+|\d|[-+*/^()!,=<>%\s])*+", re.ASCII
)
_VARIABLES = frozenset("abcdefghijklmnopqrstuvwxyzABCDFGHJKLMPRTUVWXYZ")  # sympy has functions N, O, Q and S
_KEYWORDS = re.compile(
    r"\b(?:lambda|if|else|for|in|is|not|and|or|import|from|yield|await|async|class|def|del|exec|eval|open|print|global|"
    r"nonlocal|return|while|with|try|raise|assert|pass|break|continue|except|finally|as)\b"
)


# ------------------------------------------------------------------------------------- size
def is_cheap(expression: str) -> bool:
    """Whether evaluating it looks affordable.

    Refused: more than 2,000 characters, nesting beyond 60, a number of more than 400 digits, a power in the
    exponent of a power in an exponent, an integer exponent beyond 10,000 in size, a factorial of a factorial or of a
    number beyond 3,000, an exponent of ten beyond 999, an integral, a sum or product beside a power of
    numbers or a number of six digits.
    """
    text = expression.replace("**", "^").replace("{,}", "").replace("\\,", "").replace("\\!", "")
    if len(text) > MAX_CHARACTERS or re.search(rf"\d{{{MAX_DIGITS}}}", text):
        return False
    if not is_shallow(text) or re.search(r"\d[eE][+-]?\d{4,}", text):
        return False
    exponents = [_exponent(text, match.end()) for match in re.finditer(r"\^", text)]
    if any(exponent.count("^") >= 2 for exponent in exponents):
        return False
    for exponent in exponents:
        numbers = [int(digits) for digits in re.findall(r"\d{1,400}", exponent)]
        if any(number > MAX_EXPONENT for number in numbers):
            return False
        towers = re.findall(r"(\d{1,400})[)}\s]*\^[({\s]*(\d{1,400})", exponent)
        if any(int(power) * math.log10(int(base) or 1) > math.log10(MAX_EXPONENT) for base, power in towers):
            return False
    if (
        "\\int" in text
        or text.count("factorial") > 1
        or re.search(r"!\s*[)\]}]+\s*!|!!!|\^[^!]*[)}]\s*!", text)
    ):
        return False
    if any(int(digits) > MAX_FACTORIAL for digits in re.findall(r"(\d{1,400})\s*[)}]*\s*!", text)):
        return False
    if re.search(r"\\(?:sum|prod)|binomial|factorial|gamma", text):
        return not re.search(r"\d{6}|\d\^\{?\d", text)
    return True


def is_shallow(text: str) -> bool:
    """Whether brackets nest no deeper than 60: parsers recurse."""
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest <= MAX_DEPTH


def _exponent(text: str, start: int) -> str:
    """Returns the exponent that begins at `start`: a bracketed group with what follows it as a power, or one
    operand."""
    position = start
    while position < len(text) and text[position] in " -+":
        position += 1
    if position < len(text) and text[position] in "({":
        depth, end = 0, position
        while end < len(text):
            depth += (text[end] in "({[") - (text[end] in ")}]")
            end += 1
            if depth == 0:
                break
    else:
        end = position
        while end < len(text) and (text[end].isalnum() or text[end] in "._"):
            end += 1
    if end < len(text) and text[end] == "^":  # right associative: a^b^c is a^(b^c)
        return text[position : end + 1] + _exponent(text, end + 1)
    return text[position:end]


# ------------------------------------------------------------------------------------- names
def is_harmless(expression: str) -> bool:
    """Whether the text consists of arithmetic and names alone: nothing that could reach the interpreter."""
    return (
        len(expression) <= MAX_CHARACTERS
        and "__" not in expression
        and _HARMLESS.fullmatch(expression) is not None
        and _KEYWORDS.search(expression) is None
    )


def has_known_names(expression: str) -> bool:
    """Whether every name is a mathematical function, a constant or a one-letter variable. Needed where other code
    resolves the names: with all of sympy and the builtins, `integrate(x, x)` answers its own question, and
    `getattr(chr, chr(95) + ...)` reaches the interpreter."""
    names = re.findall(r"[^\W\d]\w*", expression)
    return all(name in _VARIABLES or name in _MATHEMATICS for name in names)


def parse_safely(
    expression: str,
    transformations: Sequence[Callable[..., Any]] = sympy_parser.standard_transformations,
) -> Any | None:
    """Returns the sympy expression, or None if it is refused or does not parse."""
    if not is_harmless(expression) or not is_cheap(expression):
        return None
    try:
        return sympy_parser.parse_expr(
            expression, local_dict={}, global_dict=dict(NAMES), transformations=tuple(transformations)
        )
    except Exception:  # parsers of free text raise SyntaxError, TypeError, ZeroDivisionError, ...
        return None
