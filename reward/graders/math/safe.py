"""Makes expressions that a model wrote safe for sympy. The only place that calls sympy's `parse_expr`.

`parse_expr` is `eval`: `().__class__` reaches the interpreter, and `9**9**9**9` never ends. Two gates protect it.
`is_harmless` admits only numbers, operators, brackets and names that are resolved in a table of mathematical functions
(no strings, attributes, subscripts or keywords), so that only arithmetic can be evaluated. `limits.is_cheap` refuses
arithmetic that looks astronomically large.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import sympy
from sympy.parsing import sympy_parser

from reward.graders.math.limits import MAX_CHARACTERS, is_cheap

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
    r"(?:[A-Za-z]+[0-9_]*|\d+\.?\d*(?:[eE][+-]?\d{1,3})?(?![\w.])|\.\d+|\d|[-+*/^()!,=<>%\s])*", re.ASCII
)
_VARIABLES = frozenset("abcdefghijklmnopqrstuvwxyzABCDFGHJKLMPRTUVWXYZ")  # sympy has functions N, O, Q and S
_KEYWORDS = re.compile(
    r"\b(?:lambda|if|else|for|in|is|not|and|or|import|from|yield|await|async|class|def|del|exec|eval|open|print|global|"
    r"nonlocal|return|while|with|try|raise|assert|pass|break|continue|except|finally|as)\b"
)


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
    names: dict[str, Any] | None = None,
) -> Any | None:
    """Returns the sympy expression, or None if it is refused or does not parse. `names` adds to the table of
    functions."""
    if not is_harmless(expression) or not is_cheap(expression):
        return None
    try:
        return sympy_parser.parse_expr(
            expression,
            local_dict=dict(names or {}),
            global_dict=dict(NAMES),
            transformations=tuple(transformations),
        )
    except Exception:  # parsers of free text raise SyntaxError, TypeError, ZeroDivisionError, ...
        return None
