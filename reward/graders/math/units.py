"""Units of measurement: what a text such as `kg m/s^2`, `miles per hour` or `°C` says.

A unit is a scale and a dimension, so `N` is `kg m/s^2`, `L` is `dm^3` and 500 cm are 5 m. Symbols keep their case (mW
is not MW, M is not m); words do not (Meters). Currencies, percent, angles, bits and counted nouns are dimensions of
their own. So are °C and °F.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from importlib.resources import files

from reward.graders.math import words
from reward.graders.math.commands import names

_LONGEST = 100
"""Texts longer than this many characters are no unit."""
_SIZES = {
    "f": -15, "p": -12, "n": -9, "u": -6, "μ": -6, "m": -3, "c": -2, "d": -1, "da": 1, "h": 2, "k": 3, "K": 3, "M": 6,
    "G": 9, "T": 12, "P": 15, "E": 18,
    "yocto": -24, "zepto": -21, "atto": -18, "femto": -15, "pico": -12, "nano": -9, "micro": -6, "milli": -3,
    "centi": -2, "deci": -1, "deca": 1, "deka": 1, "hecto": 2, "kilo": 3, "mega": 6, "giga": 9, "tera": 12, "peta": 15,
    "exa": 18,
}  # fmt: skip
_SYMBOL_PREFIXES = tuple(prefix for prefix in _SIZES if len(prefix) < 3 and prefix not in "PE")
_WORD_PREFIXES = tuple(prefix for prefix in _SIZES if len(prefix) > 2)

_TABLE = files("reward").joinpath("data/units.txt").read_text(encoding="utf-8")
BARE = names(
    "cm mm km kg lbs Hz kHz MHz GHz Pa kPa MPa eV keV MeV GeV kJ MJ kW MW kV mL kcal dB kB KB MB GB TB kN MN mol mmol "
    "ft yd lb oz"
)
"""Symbols that nobody writes for a product of variables; nm, mg, ms, pm, cd, in and mi are left out."""
_TEMPERATURE = re.compile(
    r"(?:°|\b(?i:deg(?:rees?)?))\s*+(?:(?P<C>C\b|(?i:celsius|centigrade)\b)|(?P<F>F\b|(?i:fahrenheit)\b)"
    r"|(?P<K>K\b|(?i:kelvins?)\b))"
)
_SCALES = {"C": "celsius", "F": "fahrenheit", "K": "kelvin"}
_LETTERS = r"[^\W\d_]+(?:_[^\W\d_]+)*+[%$]?"
_FACTOR = re.compile(  # possessive throughout: no text makes it try the same characters twice
    rf"\s*+(?:(?P<name>{_LETTERS}|[%‰°\"$€£¥₹₩₽₱฿₺¢]|''?|′′?)(?:\s*+(?P<mark>\^?)(?P<power>[-+]?\d)(?!\d))?"
    r"|(?P<sign>[*·⋅×/()]))\s*+"
)
_LENGTHS = names("m cm mm km dm nm in ft yd mi s")
"""Symbols whose power may stand without `^`: cm2."""
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit: its scale in SI base units, and the exponents of its dimensions.

    Example: parse("km/h") -> Unit(Fraction(5, 18), (("m", 1), ("s", -1)))
    """

    scale: Fraction
    dimension: tuple[tuple[str, int], ...]


def counted(stem: str) -> Unit:
    """Returns the unit of things that are counted: `apple` in 20 apples."""
    return Unit(Fraction(1), ((f"noun:{stem}", 1),))


@lru_cache(maxsize=4096)
def parse(text: str) -> Unit | None:
    """Returns the unit that the whole text names; None if it is anything else."""
    name = " ".join(text.split())
    if not name or len(name) > _LONGEST:
        return None
    normal = _normal(name)
    return _product(normal) or _with_nouns(normal)


def _normal(text: str) -> str:
    """Spells signs, exponents and words of several parts as the table does."""
    text = unicodedata.normalize("NFKC", text.replace("º", "°").replace("˚", "°")).replace("−", "-")
    text = re.sub(r"\s*+(?:\^|\*\*)\s*+(?:[{(]\s*+([-+]?\d)\s*+[)}])?", r"^\1", text)
    text = _TEMPERATURE.sub(lambda found: f" {_SCALES[str(found.lastgroup)]} ", text)
    text = re.sub(r"(?<=[^\W\d_])-(?=[^\W\d_])|(?<=[^\W_])\.(?!\d)", " ", text)
    text = _PHRASE.sub(lambda found: re.sub(r"\s+", "_", found[0].lower()), text)
    return re.sub(r"^1\s*+/", "/", re.sub(r"\b(?i:per)\b", "/", text.strip()))


def _product(text: str) -> Unit | None:
    """Returns the product of the units in the text; everything behind a slash divides."""
    factors: list[tuple[Unit, int]] = []
    opened: list[int] = []
    sign, before, at = 1, 1, 0
    needs_name, is_over = True, False
    while at < len(text):
        found = _FACTOR.match(text, at)
        if found is None or is_over:
            return None
        at = found.end()
        name = found["name"] or found["sign"]
        word = _POWERS.get(name.lower(), 1)
        if name == "(":
            opened.append(sign)
        elif name == "/":
            if (needs_name and factors) or before > 1 or (sign < 0 and opened):
                return None
            sign, needs_name = -1, True
        elif word > 1:
            before, needs_name = word, True
        elif name in ")*·⋅×":
            if needs_name or (name == ")" and not opened):
                return None
            if name == ")":
                is_over = opened.pop() != sign  # (m/s) may stand alone, but nothing may follow
            else:
                needs_name = True
        elif new := _named_unit(name, found):
            factors.append((new[0], sign * before * new[1]))
            before, needs_name = 1, False
        else:
            return None
    return None if needs_name or opened else _multiplied(factors)


def _with_nouns(text: str) -> Unit | None:
    """Returns a unit with a counted noun in it: `people per km^2`, `dollars per apple`, `per person`."""
    over, slash, under = text.partition("/")
    if not slash or "/" in under:
        return None
    factors: list[tuple[Unit, int]] = []
    for side, power in ((over, 1), (under, -1)):
        stem = words.noun(side)
        unit = _product(side) or (counted(stem) if stem else None)
        if unit is not None:
            factors.append((unit, power))
        elif side.strip() or power < 0:
            return None
    return _multiplied(factors)


def _named_unit(name: str, found: re.Match[str]) -> tuple[Unit, int] | None:
    """Returns the unit of one token with its exponent; None if it is no unit."""
    power = int(found["power"] or 1)
    if found["power"] and not found["mark"] and power > 0 and name not in _LENGTHS:
        return None
    is_usual = name.islower() or name.isupper() or name[1:].islower() or "_" in name
    unit = _SYMBOLS.get(name) or (_WORDS.get(name.lower()) if is_usual else None)
    return (unit, power) if unit else None


def _multiplied(factors: list[tuple[Unit, int]]) -> Unit:
    scale = Fraction(1)
    dimensions: dict[str, int] = {}
    for unit, power in factors:
        scale *= unit.scale**power
        for name, exponent in unit.dimension:
            dimensions[name] = dimensions.get(name, 0) + exponent * power
    return Unit(scale, tuple(sorted(item for item in dimensions.items() if item[1])))


def _fill() -> None:
    """Fills the dictionaries of symbols and words from the table."""
    own: set[str] = set()
    for line in _TABLE.splitlines():
        if line.startswith("#"):
            continue
        definition, _, names = line.partition(" = ")
        unit = _defined(definition)
        own_symbols, _, own_words = names.partition(";")
        for entry in own_symbols.split():
            name, star, letters = entry.partition("*")
            own.add(name)
            _SYMBOLS[name] = unit
            prefixes = (*_SYMBOL_PREFIXES, *letters[:-1]) if letters[-1:] in ("", "+") else tuple(letters)
            for prefix in prefixes if star else ():
                if prefix + name not in own:  # cd is no centiday
                    _SYMBOLS[prefix + name] = _scaled(unit, Fraction(10) ** _SIZES[prefix])
        for entry in own_words.split():
            name, star, _ = entry.partition("*")
            for prefix in ("", *_WORD_PREFIXES) if star else ("",):
                size = _scaled(unit, Fraction(10) ** _SIZES[prefix]) if prefix else unit
                end = "es" if name.endswith(("s", "x", "ch")) else "s"
                _WORDS.update(dict.fromkeys((prefix + name.lower(), prefix + name.lower() + end), size))
                if name.endswith("y"):
                    _WORDS[f"{prefix}{name[:-1]}ies"] = size


def _defined(definition: str) -> Unit:
    """Returns the unit of a definition such as `0.001 m^3` or `1852 m / 3600 s`."""
    scale, factors, sign = Fraction(1), [], 1
    for part in definition.split():
        if part == "/":
            sign = -1
        elif part[0].isdigit():
            scale *= Fraction(part) ** sign
        else:
            base = Unit(Fraction(1), ((part.removeprefix("!"), 1),))
            factors.append(((None if part[0] == "!" else _product(part)) or base, sign))
    return _scaled(_multiplied(factors), scale)


def _scaled(unit: Unit, scale: Fraction) -> Unit:
    return Unit(unit.scale * scale, unit.dimension)


_SYMBOLS: dict[str, Unit] = {}
_WORDS: dict[str, Unit] = {}
_fill()
_PHRASE = re.compile(
    r"(?i)(?<![^\W_])(?:"
    + "|".join(sorted((name.replace("_", r"\s++") for name in _WORDS if "_" in name), key=len, reverse=True))
    + r")(?![^\W_])"
)
