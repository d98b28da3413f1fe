"""Kinds of answers that are a number with a unit, a currency's name, a noun or a direction."""

from __future__ import annotations

import random
from fractions import Fraction

from tests.reward.graders.math.answers import (
    Answer,
    decimal,
    forms,
    kind,
    made,
    other_digit,
    raised,
    table,
)

_PREFIXES = {
    "p": ("pico", -12), "n": ("nano", -9), "\\mu ": ("micro", -6), "m": ("milli", -3), "c": ("centi", -2), "": ("", 0),
    "h": ("hecto", 2), "k": ("kilo", 3), "M": ("mega", 6), "G": ("giga", 9), "T": ("tera", 12),
}  # fmt: skip
_BASES = {
    "m": ("meters", "p n m c k"), "g": ("grams", "m k"), "s": ("seconds", "p n m"), "L": ("liters", "m"),
    "Hz": ("hertz", "k M G"), "N": ("newtons", "m k M"), "Pa": ("pascals", "h k M G"), "J": ("joules", "m k M G"),
    "W": ("watts", "m k M G T"), "V": ("volts", "m k"), "A": ("amperes", "m n"), "T": ("teslas", "m n"),
    "C": ("coulombs", "m n p"), "F": ("farads", "n p"), "H": ("henries", "m"), "mol": ("moles", "m n k"),
    "eV": ("electron volts", "k M G T"), "B": ("bytes", "k M G T"), "\\Omega": ("ohms", "k M"), "Wb": ("webers", "m"),
    "Gy": ("grays", "m"), "Bq": ("becquerels", "k M"),
}  # fmt: skip


def _upright(unit: str, draw: random.Random) -> str:
    """Returns the unit behind a number, in a random typography."""
    if "\\" in unit:
        letters = [
            f"\\text{{{text}}}" if text and not text.startswith("\\") else text for text in unit.split(" ")
        ]
        return draw.choice(forms(rf"\ {unit} | \,{' '.join(letters)} | \;\mathrm{{{unit}}}"))
    spaced = [f"\\text{{ {unit}}}", f" {unit}", f"\\textbf{{ {unit}}}"]
    return draw.choice(
        [
            *spaced,
            *forms(rf"\,\text{{{unit}}} | \ \mathrm{{{unit}}} | \mathrm{{~{unit}}} | ~\textrm{{{unit}}}"),
        ]
    )


def _amount(draw: random.Random) -> Fraction:
    return draw.choice([Fraction(draw.randint(2, 980)), Fraction(draw.randint(11, 999), 10)])


@kind
def quantities(draw: random.Random) -> Answer:
    """Units with prefixes."""
    base = draw.choice(list(_BASES))
    name, allowed = _BASES[base]
    prefixes = ["", *allowed.split()]
    if base in ("m", "s", "F", "C", "V"):
        prefixes.append("\\mu ")
    prefix = draw.choice(prefixes)
    value = _amount(draw)
    text = decimal(value) or ""
    unit, power = prefix + base, _PREFIXES[prefix][1]
    gold = f"{text}\\text{{ {unit}}}" if "\\" not in unit else f"{text}\\ {unit.strip()}"
    if "\\" in unit and base != "\\Omega":
        gold = f"{text}\\ {prefix}\\text{{{base}}}"
    equal = [text, *(f"{text}{_upright(unit.strip(), draw)}" for _ in range(3)), f"x = {gold}"]
    equal.append(f"{text}\\text{{ {_PREFIXES[prefix][0]}{name}}}")
    different = forms(f"{other_digit(text, draw)}{_upright(unit, draw)} | -{gold}")
    also = [value]
    for other in prefixes:
        if other != prefix:
            shift = power - _PREFIXES[other][1]
            different.append(f"{text}{_upright(other + base, draw)}")
            if -6 <= shift <= 6:
                also.append(value * Fraction(10) ** shift)
                equal.append(f"{decimal(also[-1])}{_upright(other + base, draw)}")
    for other in draw.sample([b for b in _BASES if b != base], 2):
        different.append(f"{text}{_upright(other, draw)}")
    different += forms(rf"{text}\% | {text}^\circ | \${text}")
    if "\\" not in unit:
        different += forms(rf"{text}\text{{ {unit}}}^2 | {text}\text{{ {unit}/h}}")
    wrong = (
        forms(rf"{gold}\text{{ or }}{text}1 | {gold} = {text}1\text{{ {base}}}") if "\\" not in base else []
    )
    size = value * Fraction(10) ** power
    return made("quantities", gold, (base, size), equal, different, wrong=wrong, also=also)


_DERIVED = table(r"""
m/s == \frac{m}{s} | m s^{-1} | m\cdot s^{-1} | meters per second != m/s^2 | km/h | s/m | m s | m
m/s^2 == \frac{m}{s^2} | m s^{-2} | meters per second squared != m/s | m^2/s | m s^2
km/h == \frac{km}{h} | km h^{-1} | kilometers per hour | km/hr != m/s | m/h | km/s | km h
mph == miles per hour | mi/h != km/h | miles | m/s
g/cm^3 == \frac{g}{cm^3} | g cm^{-3} | grams per cubic centimeter != g/m^3 | kg/cm^3 | g/cm^2
kg/m^3 == kg m^{-3} | \frac{kg}{m^3} != kg/m^2 | g/m^3 | kg m^3
mol/L == \frac{mol}{L} | mol L^{-1} != mmol/L | mol/mL | g/L
J/mol == J mol^{-1} | \frac{J}{mol} | joules per mole != kJ/mol | J/kg | J mol
kJ/mol == kJ mol^{-1} != J/mol | kJ
N m == N\cdot m != N/m | kN m | N m^2
N/m == N m^{-1} | \frac{N}{m} != N m | N/m^2 | kN/m
W/m^2 == W m^{-2} | \frac{W}{m^2} != W/m | kW/m^2 | W m^2
J/(kg K) == J kg^{-1} K^{-1} | \frac{J}{kg\cdot K} != J/kg | kJ/(kg K)
kWh == kW h | kilowatt hours != kW | Wh | MWh
eV == electron volts != keV | J | V
m^2 == square meters | sq m != m | m^3 | cm^2 | ft^2
cm^2 == square centimeters != cm | cm^3 | m^2 | mm^2
cm^3 == cubic centimeters != cm | cm^2 | m^3
ft^2 == square feet != ft | in^2 | ft^3
ft == feet != in | yd | m | ft^2
in == inches != ft | cm | in^2
lb == pounds != kg | oz | ton
min == minutes != h | s | days
h == hours | hr != min | s | days
days == days != weeks | hours | years | months
ppm == ppm != ppb | %
atm == atm != torr | Pa | bar | mmHg
K == kelvin != ^\circ C | mol | m
dB == decibels != Hz | m
rpm == rpm != Hz | m
nm == nanometers != Å | mm | pm | Nm
J == joules != erg | cal | W | kJ
rad/s == rad s^{-1} | radians per second != rad | rad/min | s
""")
"""Units, their other names, and units that are not the same."""
_CONVERSIONS = forms(
    "72 km/h = 20 m/s | 3 h = 180 min | 2.5 m^2 = 25000 cm^2 | 2 L = 2000 cm^3 | 1.5 kWh = 5.4 MJ | 3 ft "
    "= 36 in | 2 days = 48 hours | 4 g/cm^3 = 4000 kg/m^3 | 2 min = 120 s | 3 yd = 9 ft | 5 Pa = 5 N/m^2 "
    "| 6 W = 6 J/s | 0.5 m^3 = 500 L | 8 cm = 80 mm | 250 g = 0.25 kg | 3 weeks = 21 days | 9 kPa = 9000 "
    "Pa | 3 V = 3 J/C | 2 N = 2 kg m/s^2"
)


def _written(text: str, unit: str, draw: random.Random) -> str:
    """Returns a number with a unit that may hold powers and fractions."""
    if unit.startswith("^"):
        return f"{text}{unit.replace('C', '')}\\text{{C}}"
    if unit == "%":
        return f"{text}\\%"
    if "\\frac" in unit:
        inner = unit[6:-1].split("}{")
        over = [
            f"\\text{{{piece}}}" if "^" not in piece else f"\\text{{{piece[:-2]}}}{piece[-2:]}"
            for piece in inner
        ]
        if any("\\" in piece for piece in inner):
            return f"{text}\\,\\mathrm{{{unit}}}"
        return draw.choice(forms(rf"{text}\,\frac{{{over[0]}}}{{{over[1]}}} | {text}\ \mathrm{{{unit}}}"))
    if unit.endswith(("^2", "^3")) and unit.count("^") == 1 and "/" not in unit and " " not in unit:
        plain, power = unit[:-2], unit[-1]
        return draw.choice(
            forms(
                rf"{text}\text{{ {plain}}}^{power} | {text}\text{{ {plain}}}^{{{power}}}"
                rf" | {text}\,\mathrm{{{unit}}}"
            )
            + forms(
                rf"{text}\ \text{{{plain}}}^{power} | {text}\text{{ {plain}}}{raised(power)} | {text} {unit}"
            )
        )
    if "^" in unit or "\\cdot" in unit:
        space = draw.choice(["~", "\\,", "\\ "])
        return f"{text}{space}\\mathrm{{{unit.replace(' ', space)}}}"
    return draw.choice(
        [
            f"{text}\\text{{ {unit}}}",
            f"{text}\\,\\text{{{unit}}}",
            f"{text} {unit}" if "/" not in unit else f"{text}\\ \\mathrm{{{unit}}}",
        ]
    )


@kind
def derived_units(draw: random.Random) -> Answer:
    unit, names, others = draw.choice(_DERIVED)
    value = _amount(draw)
    text = decimal(value) or ""
    gold = _written(text, unit, draw)
    equal = [text, _written(text, unit, draw), *(_written(text, form, draw) for form in [unit, *names])]
    different = [_written(text, other, draw) for other in others]
    different += forms(
        rf"{_written(other_digit(text, draw), draw.choice([unit, *names]), draw)} | {text}^\circ | \${text}"
    )
    return made("derived_units", gold, (unit, value), equal, different, also=[value, "any unit"])


@kind
def conversions(draw: random.Random) -> Answer:
    (first, unit), (second, other) = (side.split(" ", 1) for side in draw.choice(_CONVERSIONS).split(" = "))
    if draw.random() < 0.5:
        first, unit, second, other = second, other, first, unit
    gold = _written(first, unit, draw)
    equal = [_written(second, other, draw), _written(first, unit, draw)]
    different = [_written(other_digit(second, draw), other, draw), _written(second + "1", other, draw)]
    if first != second:
        different += [_written(second, unit, draw), _written(first, other, draw)]
    numbers = [Fraction(first), Fraction(second)]
    return made("conversions", gold, (unit, first), equal, different, also=[*numbers, "any unit"])


@kind
def pi_with_units(draw: random.Random) -> Answer:
    """Powers of units directly behind a constant or a root."""
    n = draw.randint(2, 99)
    size, other = draw.choice([("\\pi", "\\sqrt{3}"), ("\\sqrt{2}", "\\pi"), ("\\sqrt{5}", "\\sqrt{7}")])
    unit, power = draw.choice(forms("cm | m | in | ft | inches | feet | meters | km")), draw.choice("23")
    gold = f"{n}{size}"
    equal = forms(
        rf"{gold}\text{{ {unit}}}^{power} | {gold}\,\text{{{unit}}}^{{{power}}}"
        rf" | {gold}\text{{{unit}}}^{power}"
    )
    equal += forms(
        rf"{gold}\ \mathrm{{{unit}}}^{power} | {gold}\mathrm{{~{unit}}}^{{{power}}}"
        rf" | {gold}\text{{ {unit}}}"
    )
    equal += forms(rf"{gold}\text{{ square {unit}}} | {gold}\text{{ cubic units}} | {n}\cdot{size}")
    bad = forms(f"{n + 1}{size} | {n}{other} | {n} | {n}{size}^2 | -{gold}")
    different = [*bad, *(f"{text}\\text{{ {unit}}}^{power}" for text in bad[:2])]
    return made("pi_with_units", gold, (size, n), equal, different)


@kind
def temperatures(draw: random.Random) -> Answer:
    n = draw.randint(-39, 400)  # -40 degrees are the same in both
    letter, name = draw.choice([("C", "Celsius"), ("F", "Fahrenheit")])
    gold = f"{n}^\\circ\\text{{{letter}}}"
    equal = forms(
        rf"{n}\,^\circ\mathrm{{{letter}}} | {n}°{letter} | {n} °{letter}"
        rf" | {n}^{{\circ}} \text{{{letter}}} | {n}"
    )
    equal += forms(rf"{n}\text{{ degrees {name}}} | {n}^\circ {letter} | {n}^{{\circ}}\mathrm{{{letter}}}")
    other = "F" if letter == "C" else "C"
    different = forms(
        rf"{n}^\circ\text{{{other}}} | {n + 1}^\circ\text{{{letter}}} | {n}\text{{ K}} | {n}\%"
        f" | {n}°{other}"
    )
    different += [f"{-n}^\\circ\\text{{{letter}}}"] if n else []
    return made("temperatures", gold, (letter, n), equal, different, also=[Fraction(n), "any unit"])


@kind
def angles(draw: random.Random) -> Answer:
    n = draw.randint(2, 359)
    gold = f"{n}^\\circ"
    equal = forms(
        rf"{n}^{{\circ}} | {n}° | {n}\text{{ degrees}} | {n} ^\circ | {n} | {n}.0^\circ"
        rf" | x = {n}^\circ"
    )
    equal += forms(rf"\angle ABC = {n}^\circ | {n} degrees")
    different = forms(
        rf"{n + 1}^\circ | {n}\text{{ rad}} | {n}\% | \${n} | {n}\text{{ cm}} | -{n}^\circ | {n}\pi"
    )
    different.append(f"\\frac{{{n}^\\circ}}{{2}}")
    return made("angles", gold, ("degrees", n), equal, different, also=[Fraction(n), "any unit"])


@kind
def degrees_minutes(draw: random.Random) -> Answer:
    n, minutes = draw.randint(2, 89), draw.randint(11, 59)
    gold = f"{n}^\\circ {minutes}'"
    equal = forms(
        rf"{n}^\circ{minutes}' | {n}^{{\circ}} {minutes}^{{\prime}} | {n}°{minutes}'"
        rf" | {n}^\circ\,{minutes}'"
    )
    different = forms(
        rf"{n}^\circ {minutes - 1}' | {n + 1}^\circ {minutes}' | {n}^\circ | {n}^\circ {minutes}''"
    )
    return made(
        "degrees_minutes", gold, ("minutes", n, minutes), equal, different, wrong=[str(n), str(minutes)]
    )


_NOUNS = forms("apples | boys | books | students | marbles | coins | cars | tickets | players | chairs")


@kind
def counted(draw: random.Random) -> Answer:
    n = draw.randint(2, 900)
    noun, other = draw.sample(_NOUNS, 2)
    gold = f"{n}\\text{{ {noun}}}"
    equal = forms(rf"{n} | {n} {noun} | {n}\,\text{{{noun}}} | \text{{{n} {noun}}} | {n}\text{{ {noun}.}}")
    different = forms(
        rf"{n + 1}\text{{ {noun}}} | {n}\text{{ {other}}} | {n}\text{{ dozen {noun}}} | {n} {other}"
    )
    different += forms(rf"{n}\text{{ hundred {noun}}} | {n}\%")
    wrong = forms(
        rf"{n}\text{{ or }}{n + 1}\text{{ {noun}}} | {n}\text{{ {noun} and }}{n + 1}\text{{ {other}}}"
    )
    return made("counted", gold, (noun, n), equal, different, wrong=wrong, also=[Fraction(n), "any unit"])


_COMPOUNDS = (
    ("ft", "in", " "), ("h", "min", " "), ("hours", "minutes", " and "), ("years", "months", ", "),
    ("boys", "girls", " and "), ("lb", "oz", " "), ("apples", "pears", " and "), ("feet", "inches", " "),
)  # fmt: skip


@kind
def compounds(draw: random.Random) -> Answer:
    """Two amounts: feet and inches, boys and girls, years and months."""
    a, b = draw.sample(range(2, 12), 2)
    first, second, joint = draw.choice(_COMPOUNDS)
    gold = f"{a}\\text{{ {first}{joint}}}{b}\\text{{ {second}}}"
    equal = forms(
        rf"\text{{{a} {first}{joint}{b} {second}}}"
        rf" | {a}\,\text{{{first}}}{joint if joint == ', ' else ''}\text{{{joint.strip(',')}}}{b}\,\text{{{second}}}"
    )
    different = forms(
        rf"{a}\text{{ {first}{joint}}}{b + 1}\text{{ {second}}}"
        rf" | \text{{{a} {first}{joint}{b + 3} {second}}}"
    )
    different += forms(
        rf"{b}\text{{ {first}{joint}}}{a}\text{{ {second}}}"
        rf" | {a + 1}\text{{ {first}{joint}}}{b}\text{{ {second}}}"
    )
    wrong = forms(
        rf"{a} | {b} | {a}\text{{ {first}}}" rf" | {a}\text{{ {second}{joint}}}{b}\text{{ {first}}}"
    )
    return made("compounds", gold, (first, a, b), equal, different, wrong=wrong)


_OPPOSITES = [
    ("increase", "decrease"), ("profit", "loss"), ("gain", "loss"), ("BC", "AD"), ("older", "younger"),
    ("more", "less"), ("m north", "m south"), ("m east", "m west"), ("above", "below"), ("left", "right"),
    ("m up", "m down"), ("faster", "slower"),
]  # fmt: skip


@kind
def directions(draw: random.Random) -> Answer:
    """A number with a word that has an opposite."""
    n = draw.randint(2, 500)
    word, opposite = draw.choice(_OPPOSITES) if draw.random() < 0.5 else draw.choice(_OPPOSITES)[::-1]
    percent = "\\%" if word in ("increase", "decrease") else ""
    gold = f"{n}{percent}\\text{{ {word}}}"
    equal = forms(rf"{n}{percent} {word} | {n}{percent}\ \text{{{word}}}")
    different = forms(
        rf"{n}{percent}\text{{ {opposite}}} | {n}{percent} {opposite}" rf" | {n + 1}{percent}\text{{ {word}}}"
    )
    return made(
        "directions",
        gold,
        (word, n),
        equal,
        different,
        also=[Fraction(n), Fraction(n, 100), "any unit"],
    )


@kind
def number_words(draw: random.Random) -> Answer:
    n = draw.randint(2, 20)
    word, size = draw.choice(
        [("hundred", 100), ("thousand", 1000), ("million", 10**6), ("billion", 10**9), ("dozen", 12)]
    )
    gold = str(n * size)
    equal = forms(rf"{n}\text{{ {word}}} | {n} {word} | {n * size:,}")
    different = forms(rf"{n} | {n + 1}\text{{ {word}}} | {n * size}\text{{ {word}}}")
    other = "million" if word == "thousand" else "thousand"
    different.append(f"{n}\\text{{ {other}}}")
    return made("number_words", gold, Fraction(n * size), equal, different)
