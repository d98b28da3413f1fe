"""Numbers near zero: `5 \\times 10^{-19}` is not `2 \\times 10^{-19}`.

math-verify rounds both numbers to six decimals, and DeepScaleR's sympy rule ignores small differences as rounding
errors. So below a millionth, any number would equal any other. `differ` compares two such numbers relative to their
size, as closely as six decimals compare 0.1. It handles only plain numbers, with or without a unit.
"""

from __future__ import annotations

import math
import re

from reward.graders.units import plain, unit_of, value_of

_NEAR = 0.1
_RELATIVE = 1e-5
_NUMBER = re.compile(
    r"(?P<sign>[+-]?)\s*(?:10\s*\^\s*\{?\s*(?P<alone>[+-]?\d{1,3})\s*\}?|(?P<digits>\d{1,50}\.?\d{0,50}|\.\d{1,50})"
    r"\s*(?:[eE](?P<e>[+-]?\d{1,3})|(?:\\times|\*|×)\s*10\s*\^\s*\{?\s*(?P<ten>[+-]?\d{1,3})\s*\}?)?)(?![\d.])",
    re.ASCII,
)

_FRACTION = re.compile(r"([+-]?)\s*\\[dt]?frac\s*\{([^{}]*(?:\{[^{}]*\})?)\}\s*\{([^{}]*(?:\{[^{}]*\})?)\}")


def differ(answer: str, gold: str) -> bool:
    """Whether both are numbers, at least one is nearer to zero than 0.1, and they differ."""
    one, other = number_of(answer), number_of(gold)
    if one is None or other is None or min(abs(one), abs(other)) >= _NEAR:
        return False
    return not math.isclose(one, other, rel_tol=_RELATIVE)


def number_of(answer: str) -> float | None:
    """Returns the value of a number, alone or with a known unit behind it; None for anything else.

    Example: number_of("2.88 \\\\times 10^{-19} \\\\text{ J}") -> 2.88e-19
    """
    text = value_of(plain(answer))
    if fraction := _FRACTION.fullmatch(text):
        above, below = number_of(fraction[2]), number_of(fraction[3])
        return float(f"{fraction[1]}1") * above / below if above is not None and below else None
    match = _NUMBER.match(text)
    if match is None or (text[match.end() :].strip() and unit_of(answer) is None):
        return None
    digits = match["digits"] or "1"
    exponent = match["e"] or match["ten"] or match["alone"] or "0"
    return float(f"{match['sign']}{digits}e{exponent}")
