"""Units of measurement: what a text such as `kg m/s^2`, `miles per hour` or `°C` says.

A unit is a scale and a dimension, so `N` is `kg m/s^2`, `L` is `dm^3` and 500 cm are 5 m. Symbols keep their case (mW
is not MW, M is not m); words do not (Meters). Currencies, percent, angles, bits and counted nouns are dimensions of
their own. So are °C and °F, except in products: one kelvin more is one degree Celsius more.
"""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from importlib.resources import files

from reward.graders.math import words
from reward.graders.math.commands import names

_LONGEST = 100
"""Texts longer than this many characters are no unit."""
_NAMES = json.loads(files("reward").joinpath("data/unit_names.json").read_text(encoding="utf-8"))
_SIZES: dict[str, int] = _NAMES["sizes"]
_SYMBOL_PREFIXES = tuple(prefix for prefix in _SIZES if len(prefix) < 3 and prefix not in "PE")
_WORD_PREFIXES = tuple(prefix for prefix in _SIZES if len(prefix) > 2)

_TABLE = files("reward").joinpath("data/units.txt").read_text(encoding="utf-8")
_JOINED: dict[str, str] = _NAMES["joined"]
"""Symbols written without a space between them, where they are no unit of their own."""
_BARE = names(" ".join(_NAMES["bare"]))
"""Symbols that nobody writes for a product of variables; nm, mg, ms, pm, cd, in and mi are left out."""
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
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
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3}


_ALSO_MEANT = {"C": "celsius", "F": "fahrenheit", "pound": "pound", "pounds": "pound"}
"""Dimensions that these names of an answer have too: 25 C for 25 °C, 5 pounds for £5."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit: its name as written (not compared), its scale in SI base units, and the exponents of its dimensions.

    Example: parse("km/h") -> Unit("km/h", Fraction(5, 18), (("m", 1), ("s", -1)))
    """

    name: str = field(compare=False)
    scale: Fraction
    dimension: tuple[tuple[str, int], ...]


def factor(one: Unit, other: Unit) -> Fraction | None:
    """Returns how many of the gold's unit the answer's is: 100 for m and cm; None if they do not measure the same."""
    meant = _ALSO_MEANT.get(one.name.lower() if len(one.name) > 1 else one.name)
    if meant is not None and other.dimension == ((meant, 1),):
        return 1 / other.scale
    match one.dimension, other.dimension:
        case ((str(ours), 1),), ((str(golds), 1),) if ours.startswith("noun:") and golds.startswith("noun:"):
            short, long = sorted((ours[5:], golds[5:]), key=len)  # marbles, red marbles
            return Fraction(1) if f" {long}".endswith(f" {short}") else None
    optional = _optional(one, other) | _optional(other, one)
    if {*one.dimension} - optional != {*other.dimension} - optional:
        return None
    return one.scale / other.scale


def _optional(unit: Unit, other: Unit) -> set[tuple[str, int]]:
    """Returns the dimensions of a unit that need not stand in the other: what is counted (mol of electrons, mol), and
    the radian of an angular speed (rad/s, 1/s; but not Hz)."""
    others = {name.partition(":")[0] for name, _ in other.dimension}
    if re.search("hz|hertz", other.name, re.IGNORECASE):
        others.add("angle")
    optional = {"noun"} - others | ({"radian"} if others.isdisjoint(("radian", "angle")) else set())
    return {
        item
        for item in unit.dimension
        if item[0].partition(":")[0] in optional
        and len(unit.dimension) > 1
        and (item[1] > 0 or item[0] == "radian")
    }


def counted(stem: str) -> Unit:
    """Returns the unit of things that are counted: `apple` in 20 apples."""
    return Unit(stem, Fraction(1), ((f"noun:{stem}", 1),))


def known(name: str) -> Unit:
    """Returns the unit of a name that the table has."""
    return _SYMBOLS.get(name) or _WORDS[name]


def is_bare_symbol(text: str) -> bool:
    """Whether letters behind a number in mathematics are a unit and no product of variables."""
    return text in _BARE or (
        len(text) > 3 and text.isalpha() and (text.islower() or text[1:].islower()) and text.lower() in _WORDS
    )


@lru_cache(maxsize=4096)
def parse(text: str) -> Unit | None:
    """Returns the unit that the whole text names; None if it is anything else."""
    name = " ".join(text.split())
    if not name or len(name) > _LONGEST:
        return None
    normal = _normal(name)
    found = _product(normal) or _with_nouns(normal)
    return None if found is None else Unit(name, found.scale, found.dimension)


def _normal(text: str) -> str:
    """Spells signs, exponents and words of several parts as the table does."""
    text = re.sub(r"[⁻⁺]?+[⁰¹²³⁴⁵⁶⁷⁸⁹]++", lambda found: "^" + found[0].translate(_SUPERSCRIPTS), text)
    text = unicodedata.normalize("NFKC", text.replace("º", "°").replace("˚", "°")).replace("−", "-")
    text = re.sub(r"\s*+(?:\^|\*\*)\s*+(?:[{(]\s*+([-+]?\d)\s*+[)}])?", r"^\1", text)
    text = _TEMPERATURE.sub(lambda found: f" {_SCALES[str(found.lastgroup)]} ", text)
    text = re.sub(r"(?<=[^\W\d_])-(?=[^\W\d_])|(?<=[^\W_])\.(?!\d)", " ", text)
    text = _PHRASE.sub(
        lambda found: re.sub(r"\s+", "_", found[0].lower()), re.sub(r"\b(years?) old$", r"\1", text)
    )
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
        elif word > 1 and name.lower() not in ("squared", "cubed"):
            before, needs_name = word, True
        elif name in ")*·⋅×" or word > 1:
            if needs_name or (name == ")" and not opened):
                return None
            if word > 1:
                factors[-1] = (factors[-1][0], factors[-1][1] * word)
            elif name == ")":
                is_over = opened.pop() != sign  # (m/s) may stand alone, but nothing may follow
            else:
                needs_name = True
        elif new := _factors(name, found):
            factors += [(unit, sign * before * power) for unit, power in new]
            before, needs_name = 1, False
        else:
            return None
    return None if needs_name or opened else _multiplied(factors)


def _with_nouns(text: str) -> Unit | None:
    """Returns a unit with counted nouns in it: `people per km^2`, `dollars per apple`, `mol of electrons`, `g NaCl`."""
    over, slash, under = text.partition("/")
    if "/" in under:
        return None
    top = _product(over) or _of_something(over) or (_only_noun(over) if slash else None)
    bottom = (_product(under) or _of_something(under) or _only_noun(under)) if slash else None
    if (top is None and over.strip()) or (bottom is None and slash) or not (top or bottom):
        return None
    return _multiplied([(unit, power) for unit, power in ((top, 1), (bottom, -1)) if unit])


def _of_something(text: str) -> Unit | None:
    name, of, thing = text.partition(" of ")
    if not of:
        name, _, thing = text.rpartition(" ")
    unit = _product(name)
    stem = (of and words.noun(thing)) or words.formula(thing)
    return _multiplied([(unit, 1), (counted(stem), 1)]) if unit and stem else None


def _only_noun(text: str) -> Unit | None:
    stem = words.noun(text)
    return counted(stem) if stem else None


def _factors(name: str, found: re.Match[str]) -> list[tuple[Unit, int]]:
    """Returns the units in one token with their exponents; nothing if it is no unit."""
    power = int(found["power"] or 1)
    if found["power"] and not found["mark"] and power > 0 and name not in _LENGTHS:
        return []
    is_usual = name.islower() or name.isupper() or name[1:].islower() or "_" in name or name in _MIXED
    unit = _SYMBOLS.get(name) or (_WORDS.get(name.lower()) if is_usual else None)
    if name in _JOINED and (unit is None or power < 0):  # nobody means `per millisecond` by ms^-1
        first, *others = (_SYMBOLS[part] for part in reversed(_JOINED[name].split()))
        return [(first, power), *((other, 1) for other in others)]
    return [(unit, power)] if unit else []


def _multiplied(factors: list[tuple[Unit, int]]) -> Unit:
    scale = Fraction(1)
    dimensions: dict[str, int] = {}
    for unit, power in factors:
        scale *= unit.scale**power
        for name, exponent in unit.dimension:
            dimensions[name] = dimensions.get(name, 0) + exponent * power
    is_compound = (
        sum(exponent != 0 and not name.startswith("noun:") for name, exponent in dimensions.items()) > 1
    )
    for name, size in (("celsius", Fraction(1)), ("fahrenheit", Fraction(5, 9))):
        if (power := dimensions.get(name, 0)) and (is_compound or power != 1):
            scale *= size**power
            dimensions["K"] = dimensions.get("K", 0) + dimensions.pop(name)
    return Unit("", scale, tuple(sorted(item for item in dimensions.items() if item[1])))


_MIXED: set[str] = set()
"""Words that are written in both cases: mmHg."""


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
                _MIXED.update({prefix + name} if name != name.lower() else ())
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
            base = Unit("", Fraction(1), ((part.removeprefix("!"), 1),))
            factors.append(((None if part[0] == "!" else _product(part)) or base, sign))
    return _scaled(_multiplied(factors), scale)


def _scaled(unit: Unit, scale: Fraction) -> Unit:
    return Unit("", unit.scale * scale, unit.dimension)


_SYMBOLS: dict[str, Unit] = {}
_WORDS: dict[str, Unit] = {}
_fill()
_PHRASE = re.compile(
    r"(?i)(?<![^\W_])(?:"
    + "|".join(sorted((name.replace("_", r"\s++") for name in _WORDS if "_" in name), key=len, reverse=True))
    + r")(?![^\W_])"
)
