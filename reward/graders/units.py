"""Units of measurement behind a number: `5 \\text{ m}` is not `5 \\text{ cm}`.

DeepScaleR's rules and math-verify both drop units before they compare. They have to, because units often stand only in
the gold or only in the answer. But so 5 m passes for 5 cm. `differ` says whether both sides name a unit and the two
differ; then the answer is wrong whatever the numbers. Nothing is converted: `500 cm` for `5 m` is wrong under both
verifiers.

A unit is a scale and a dimension, so `N` is `kg m/s^2`, `L` is `dm^3` and `hr` is `hour`. Only the words below are
units (C and F of temperature are read as coulomb and farad), and only behind a value without letters of its own: in
`4m + 2s` and `2\\pi r h` they are variables.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache

_DIMENSIONS = ("m", "kg", "s", "A", "K", "mol", "money")
_PREFIXES = {
    "p": 1e-12, "n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "c": 1e-2, "d": 1e-1, "k": 1e3, "M": 1e6, "G": 1e9,
    "pico": 1e-12, "nano": 1e-9, "micro": 1e-6, "milli": 1e-3, "centi": 1e-2, "deci": 1e-1, "kilo": 1e3, "mega": 1e6,
    "giga": 1e9,
}  # fmt: skip
_WITH_PREFIX = """
1 m = m meter metre            0.001 kg = g gram              1 s = s sec second
1 A = A ampere amp             1 K = K kelvin                 1 mol = mol mole
1 s^-1 = Hz hertz              1 kg m s^-2 = N newton         1 kg m^-1 s^-2 = Pa pascal
1 kg m^2 s^-2 = J joule        1 kg m^2 s^-3 = W watt         1 s A = C coulomb
1 kg m^2 s^-3 A^-1 = V volt    1 kg m^2 s^-3 A^-2 = Ω ohm     1 kg^-1 m^-2 s^4 A^2 = F farad
1 kg s^-2 A^-1 = tesla         1 kg m^2 s^-2 A^-2 = H henry   0.001 m^3 = L l liter litre
1.602176634e-19 kg m^2 s^-2 = eV electronvolt                 4.184 kg m^2 s^-2 = cal calorie
100000 kg m^-1 s^-2 = bar
"""
_WITHOUT_PREFIX = """
60 s = min minute              3600 s = h hr hour             86400 s = day
604800 s = week                2629746 s = month              31556952 s = yr year
0.0254 m = in inch             0.3048 m = ft foot feet        0.9144 m = yd yard
1609.344 m = mi mile           0.45359237 kg = lb pound       0.028349523125 kg = oz ounce
1000 kg = ton tonne            0.003785411784 m^3 = gal gallon  0.000946352946 m^3 = qt quart
0.000473176473 m^3 = pint      0.0002365882365 m^3 = cup      101325 kg m^-1 s^-2 = atm
0.44704 m s^-1 = mph           1 money = dollar              0.01 money = cent
10000 m^2 = hectare            4046.8564224 m^2 = acre
"""
_LONGEST = 150
"""Answers longer than this many characters are not searched for a unit, to keep patterns and values small."""
_SHORT_WITH_PLURAL = frozenset({"hr", "yr", "lb", "yd", "qt"})

Unit = tuple[float, tuple[int, ...]]
"""Scale in SI base units, and the exponents of `_DIMENSIONS`."""


def differ(one: str, other: str) -> bool:
    """Whether both answers end in a unit and the two are not the same."""
    first, second = unit_of(one), unit_of(other)
    if first is None or second is None:
        return False
    return first[1] != second[1] or not math.isclose(first[0], second[0], rel_tol=1e-9)


@lru_cache(maxsize=4096)
def unit_of(answer: str) -> Unit | None:
    """Returns the unit behind a value, LaTeX or plain; None if there is no value with a known unit."""
    if len(answer) > _LONGEST:
        return None
    text = plain(answer)
    if match := re.fullmatch(r"\\\$\s*([\d.,]+)", text):
        return _UNITS["dollar"]
    match = _MEASURE.fullmatch(value_of(text))
    return None if match is None or not _is_value(match["value"]) else _product(match["unit"])


def value_of(text: str) -> str:
    """Returns the right side of an equation whose left side is a name: 5 for `x = 5`; otherwise the whole text."""
    name, _, value = text.rpartition("=")
    return value.strip() if re.search(r"[-+*/^<>]|\\[dt]?frac", name) is None else text.strip()


def plain(answer: str) -> str:
    """Removes text boxes and LaTeX spaces, and spells exponents and words as the pattern expects them."""
    text = re.sub(r"\\(?:,|;|:|!| |quad\b|(?:left|right)(?![a-z]))|~", " ", answer)
    text = re.sub(
        r"\\(?:text|textrm|textbf|mathrm|mathbf|mbox|operatorname|rm|unit)\s*\{([^{}]*)\}", r" \1 ", text
    )
    text = re.sub(
        r"(?:\^\s*\{?\s*\\circ\s*\}?|°|\\degree|\bdegrees?)\s*([CF])(?:elsius|ahrenheit)?\b", r" \1", text
    )
    text = text.replace("\\mu", "µ").replace("\\Omega", "Ω").replace("\\cdot", "*").replace("·", "*")
    text = re.sub(r"\^\s*\{\s*(-?\d)\s*\}", r"^\1", text)
    text = re.sub(r"\\[dt]?frac\s*\{\s*([^{}\d]+?)\s*\}\s*\{\s*([^{}\d]+(?:\^\d)?)\s*\}", r" \1 / \2", text)
    text = re.sub(r"(?<!\\)\$|(?<=[A-Za-z])\s*\.$", "", text.strip())
    return re.sub(r"(?<![\\A-Za-z])[A-Za-z]{5,}", lambda word: word[0].lower(), text).strip()  # 5 Meters


def _is_value(text: str) -> bool:
    """Whether the text is a number or an expression of numbers: no letter outside LaTeX commands, no time of day."""
    without_commands = re.sub(r"\\[A-Za-z]+|(?<=\d)[eE](?=[-+]?\d)", "", text)
    return re.search(r"[A-Za-z:]", without_commands) is None


def _product(text: str) -> Unit:
    """Returns the unit in a text that `_MEASURE` matched; everything behind a slash or `per` divides."""
    scale, exponents, sign = 1.0, [0] * len(_DIMENSIONS), 1
    for factor in _FACTOR.finditer(text):
        sign = -1 if factor["per"] else sign
        words = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cubed": 3}
        power = sign * int(factor["exponent"] or words.get(factor["before"] or factor["after"], 1))
        unit = _UNITS[factor["name"]]
        scale *= unit[0] ** power
        exponents = [total + power * one for total, one in zip(exponents, unit[1], strict=True)]
    return scale, tuple(exponents)


def _table() -> dict[str, Unit]:
    """Returns every unit by each of its names."""
    units: dict[str, Unit] = {}
    for table, prefixes in ((_WITH_PREFIX, _PREFIXES), (_WITHOUT_PREFIX, {})):
        for entry in re.split(r"\s{2,}|\n", table.strip()):
            definition, names = entry.split(" = ")
            scale, *factors = definition.split()
            exponents = [0] * len(_DIMENSIONS)
            for factor in factors:
                dimension, _, exponent = factor.partition("^")
                exponents[_DIMENSIONS.index(dimension)] = int(exponent or 1)
            for name in names.split():
                is_word = len(name) > 3
                sizes = {prefix: size for prefix, size in prefixes.items() if (len(prefix) > 2) == is_word}
                for prefix, size in {"": 1.0, **sizes}.items():
                    units[prefix + name] = unit = (float(scale) * size, tuple(exponents))
                    if is_word or name in _SHORT_WITH_PLURAL:
                        units[f"{prefix}{name}{'es' if name == 'inch' else 's'}"] = unit
    return units


_UNITS = _table()
_NAME = "|".join(sorted(map(re.escape, _UNITS), key=len, reverse=True))
_FACTOR = re.compile(  # possessive throughout: no text makes it try the same spaces twice
    rf"(?P<per>/|\bper\b)?[\s*(]*+(?:(?P<before>square|sq|cubic)\.?\s++)?(?<![A-Za-z\\])(?P<name>{_NAME})(?![A-Za-z])"
    r"(?:\s*+\^\s*+(?P<exponent>-?\d)|\s++(?P<after>squared|cubed)\b)?"
)
_ONE = re.sub(r"\?P<\w+>", "?:", _FACTOR.pattern)
_MEASURE = re.compile(
    rf"(?P<value>.*?(?:[\d)}}\]]|\\pi))\s*+\*?\s*+(?P<unit>(?!/){_ONE}(?:\s*+{_ONE})*+\)?)", re.DOTALL
)
