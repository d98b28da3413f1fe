"""Units of measurement: what a text such as `kg m/s^2`, `miles per hour` or `°C` says.

A unit is a scale and a dimension, so `N` is `kg m/s^2`, `L` is `dm^3` and 500 cm are 5 m. Symbols keep their case (mW
is not MW, M is not m); words do not (Meters). Currencies, percent, angles, bits and counted nouns are dimensions of
their own. So are °C and °F, except in products: one kelvin more is one degree Celsius more.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

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

# Each line: a definition by lines above (`!` makes a dimension) = symbols ; words. `*` takes prefixes: every usual one,
# or those that follow it (`+`: both). Words have plurals and any case; `_` in them is a space or a hyphen.
_TABLE = """
!m = m* ; meter* metre*
0.001 !kg = g*PE+ ; gram* gramme* gm
!s = s* sec*mnuμ ; second* sec
!A = A* ; ampere* amp*
!K = K* ; kelvin*
!mol = mol* mols ; mole*
!cd = cd* ; candela*
!sr = sr ; steradian
!angle = ° ; degree deg
1/60 angle = ' ′ ; arcminute arcmin arc_minute minute_of_arc minutes_of_arc
1/3600 angle = '' ′′ " ; arcsecond arcsec arc_second second_of_arc seconds_of_arc
360 angle = ; revolution rev
!radian = rad*mμu ; radian* rad
!celsius = ; celsius centigrade
!fahrenheit = ; fahrenheit
0.01 !fraction = % wt% vol% mol% ; percent percentage per_cent pct percentage_point percent_point
0.001 fraction = ‰ ; permille per_mille
0.000001 fraction = ; ppm part_per_million parts_per_million
0.000000001 fraction = ; ppb part_per_billion parts_per_billion
!bit = b*kKMGTPE bit*kKMGTPE ; bit*
8 bit = B*kKMGTPE ; byte*
1 bit / s = bps*kKMGT
1024 B = KiB ; kibibyte
1048576 B = MiB ; mebibyte
1073741824 B = GiB ; gibibyte
1099511627776 B = TiB ; tebibyte
!decibel = ; decibel dB
s^-1 = Hz*PE+ hz ; hertz*
kg m s^-2 = N* ; newton*
N m^-2 = Pa* ; pascal*
N m = J*PE+ ; joule*
J s^-1 = W*PE+ ; watt*
A s = C* ; coulomb*
W A^-1 = V* ; volt*
V A^-1 = Ω* ohm*kM ; ohm*
A V^-1 = S* ; siemens*
C V^-1 = F* ; farad*
V s = Wb* ; weber*
Wb m^-2 = T* ; tesla*
0.0001 T = ; gauss*
Wb A^-1 = H* ; henry*
cd sr = lm* ; lumen*
lm m^-2 = lx* ; lux*
mol s^-1 = kat* ; katal*
s^-1 = Bq* ; becquerel*
37000000000 Bq = Ci* ; curie*
J kg^-1 = Gy* ; gray*
!Sv = Sv* ; sievert*
0.01 Sv = mrem ; rem*
0.001 m^3 = L* l* ; liter* litre*
mol L^-1 = M*fpnμum ; molar*
mol kg^-1 = ; molal*
1.602176634e-19 J = eV*PE+ ; electronvolt* electron_volt*
4.184 J = cal*kK ; calorie*
3600 J = Wh* Whr* ; watt_hour watthour
3600000 J = ; kwh kilowatt_hour kilowatthour
3600000000 J = ; megawatt_hour
1e-7 J = ; erg*
1e-5 N = dyn ; dyne*
1e-10 m = Å ; angstrom ångström
1e-6 m = ; micron
1e-15 m = ; fermi
100000 Pa = bar*mkμ ; bar*
101325 Pa = ; atm atmosphere
20265/152 Pa = mTorr ; torr mmHg mm_hg mm_of_hg millimeter_of_mercury millimeters_of_mercury
2533125/1900 Pa = ; cmhg cm_hg cm_of_mercury
1.66053906660e-27 kg = u amu Da*kM ; dalton* atomic_mass_unit
60 s = ; minute min
3600 s = h ; hour hr
86400 s = d ; day
604800 s = ; week wk
2629746 s = ; month
31556952 s = yr*kMG ; year yr
315569520 s = ; decade
3155695200 s = ; century
31556952000 s = ; millennium millennia
0.0254 m = in ; inch
0.3048 m = ; foot feet ft
0.9144 m = ; yard yd
1609.344 m = mi ; mile
1852 m = ; nautical_mile nmi
1.8288 m = ; fathom
201.168 m = ; furlong
1000 m = KM Km kms
0.01 m = CM cms
9460730472580800 m = ly*kMG lyr ; light_year lightyear
299792458 m = ; light_second
149597870700 m = au AU ; astronomical_unit
30856775814913673 m = pc*kMG ; parsec*
0.45359237 kg = lbm ; pound lb
0.028349523125 kg = ; ounce oz
6.35029318 kg = ; stone
14.59390294 kg = ; slug
0.0002 kg = ct ; carat karat
907.18474 kg = ; short_ton us_ton
1000 kg = t*kMG ; ton tonne* metric_ton
1 kg = Kg KG kgs Kgs ; kilo
100 kg = ; quintal
4.4482216152605 N = lbf ; pound_force
1.3558179483314004 J = ; foot_pound ft_lb ft_lbf
9.80665 N = kgf ; kilogram_force
6894.757293168 Pa = ; psi pound_per_square_inch pounds_per_square_inch
0.003785411784 m^3 = ; gallon gal
0.000946352946 m^3 = ; quart qt
0.000473176473 m^3 = pt ; pint
0.0002365882365 m^3 = ; cup
0.0000295735295625 m^3 = ; fluid_ounce fl_oz
0.00001478676478125 m^3 = ; tablespoon tbsp
0.00000492892159375 m^3 = ; teaspoon tsp
0.158987294928 m^3 = ; barrel bbl
0.03523907016688 m^3 = ; bushel
0.000001 m^3 = cc
1609.344 m / 3600 s = ; mph
1000 m / 3600 s = ; kmh kph kmph
1852 m / 3600 s = kn kt kts ; knot
360 angle / s = ; rps
360 angle / 60 s = ; rpm
745.69987158227022 W = ; hp horsepower
1055.05585262 J = ; btu british_thermal_unit
10000 m^2 = ha ; hectare
4046.8564224 m^2 = ; acre
0.1 Pa s = cP ; poise*
3.33564095e-30 C m = D ; debye*
!dollar = $ US$ ; dollar us_dollar u_s_dollar usd buck
0.01 dollar = ¢ ; cent
!euro = € ; euro eur
!pound = £ ; pound_sterling pounds_sterling british_pound gbp
0.01 £ = ; pence
!yen = ¥ ; yen jpy
!rupee = ₹ Rs ; rupee inr
0.01 rupee = ; paise paisa
!yuan = 元 ; yuan cny rmb
!won = ₩ ; won krw
!ruble = ₽ ; ruble rouble rub
!franc = ; franc chf
!peso = ₱ ; peso
!krona = ; krona kronor krone kroner
!baht = ฿ ; baht
!lira = ₺ ; lira
!rand = ; rand
!dinar = ; dinar
!dirham = ; dirham
!ringgit = ; ringgit
!shilling = ; shilling
!noun:unit = ; unit
"""
_JOINED = {
    "Nm": "N m", "kNm": "kN m", "Ns": "N s", "Js": "J s", "Jkg": "J kg", "kJkg": "kJ kg", "Jmol": "J mol",
    "kJmol": "kJ mol", "Pas": "Pa s", "kgm": "kg m", "kgms": "kg m s", "Wm": "W m", "Vm": "V m", "Vs": "V s",
    "As": "A s", "Ah": "A h", "mAh": "mA h", "Am": "A m", "Cm": "C m", "Tm": "T m", "Ωm": "Ω m", "ms": "m s",
    "kmh": "km h", "gmol": "g mol", "gcm": "g cm", "molL": "mol L",
}  # fmt: skip
"""Symbols written without a space between them, where they are no unit of their own."""
_BARE = names(
    "cm mm km kg lbs Hz kHz MHz GHz Pa kPa MPa eV keV MeV GeV kJ MJ kW MW kV mL kcal dB kB KB MB GB TB kN MN mol mmol "
    "ft yd lb oz"
)
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
"""Dimensions that these names have too: 25 C for 25 °C, 5 pounds for £5."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit: its name as written (not compared), its scale in SI base units, and the exponents of its dimensions.

    Example: parse("km/h") -> Unit("km/h", Fraction(5, 18), (("m", 1), ("s", -1)))
    """

    name: str = field(compare=False)
    scale: Fraction
    dimension: tuple[tuple[str, int], ...]


def factor(one: Unit, other: Unit) -> Fraction | None:
    """Returns how many of the other unit one is: 100 for m and cm; None if they do not measure the same."""
    for first, second in ((one, other), (other, one)):
        meant = _ALSO_MEANT.get(first.name.lower() if len(first.name) > 1 else first.name)
        if meant is not None and second.dimension == ((meant, 1),):
            return 1 / second.scale if first is one else second.scale
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
    for line in _TABLE.strip().splitlines():
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
