"""Kinds of answers that are one number, with or without a unit, or several numbers."""

from __future__ import annotations

import math
import random
from fractions import Fraction

from tests.reward.graders.math.answers import (
    Answer,
    Part,
    decimal,
    frac,
    kind,
    lowered,
    made,
    of_rational,
    other_digit,
    part,
    parts,
    raised,
    rational,
    varied,
)


# ------------------------------------------------------------------------------------- one number
@kind
def integers(draw: random.Random) -> Answer:
    length = draw.choice([1, 1, 2, 2, 3, 4, 5, 7, 12, 25])
    n = draw.choice([1, 1, -1]) * draw.randint(10 ** (length - 1), 10**length - 1)
    gold, grouped = str(n), f"{n:,}"
    equal = [f"{n}.0", f"\\frac{{{3 * n}}}{{3}}", f"x = {n}", f"\\boxed{{{n}}}", f"\\text{{{n}}}"]
    equal += [grouped, grouped.replace(",", "{,}"), grouped.replace(",", "\\,"), grouped.replace(",", ",\\!")]
    different = [other_digit(gold, draw), str(-n), str(n + 1), f"{n}{draw.randint(0, 9)}", f"{n}.5", f"{n}i"]
    different += [f"{n}x", f"{n}\\text{{ million}}", f"{n}\\text{{ dozen}}", f"{n} \\text{{ hundred}}"]
    different += [f"{a}{b}" for a, b in [(gold[:-1], "0")] if n % 10 and abs(n) > 9]
    swapped = [gold[:i] + gold[i + 1] + gold[i] + gold[i + 2 :] for i in range(1, len(gold) - 1)]
    different += [text for text in swapped[:1] if int(text) != n]
    if abs(n) > 1:
        different += [f"{gold}^2", f"\\frac{{1}}{{{n}}}", f"{n}\\pi"]
    if n > 1:
        different += [f"\\sqrt{{{n}}}", f"{n}\\sqrt{{2}}"]
    if n > 2 and length < 3:
        different.append(f"{n}!")
    wrong = [f"{n} \\text{{ or }} {n + 1}", f"{n} = {n + 1}", f"{n} \\approx {n + 1}", f"{n}, {n + 1}"]
    wrong += [f"{n} + C", f"x \\ge {n}", f"{n}\\text{{ or less}}", f"\\text{{not }}{n}", f"{n} \\ne {n + 1}"]
    wrong += [
        f"x = {n + 1} = {n}",
        f"{n}\\text{{ then }}\\frac{{7}}{{2}}",
        f"{n}\\text{{ minus }}\\sqrt{{2}}",
    ]
    right = [f"{n} \\text{{ or }} {n}.0", f"\\text{{Area}} = {n}"]
    return made("integers", gold, Fraction(n), equal, different, right=right, wrong=wrong)


@kind
def fractions(draw: random.Random) -> Answer:
    value = rational(draw, 60)
    p, q = value.numerator, value.denominator
    sign, k = "-" if p < 0 else "", draw.randint(2, 9)
    gold = frac(value)
    equal, different = of_rational(value)
    equal += [
        f"\\frac{{{k * p}}}{{{k * q}}}",
        f"{sign}{{{abs(p)} \\over {q}}}",
        f"{p} \\div {q}",
        f"x={gold}",
    ]
    equal += [f"{p} \\cdot {q}^{{-1}}", f"\\left({gold}\\right)", f"\\frac{{{-p}}}{{{-q}}}", f"({p})/({q})"]
    if abs(p) < 10 and q < 10:
        equal.append(f"{sign}\\frac{abs(p)}{q}")
    different += [
        f"{gold}x",
        f"{gold}\\pi",
        f"\\frac{{{p}}}{{{q}^2}}",
        f"\\sqrt{{{frac(abs(value))}}}",
        str(p),
    ]
    different += [f"{p}{q}", frac(value + Fraction(1, q)), f"\\frac{{{p + k * q}}}{{{q}}}", f"{gold}i"]
    wrong = [f"{gold}\\text{{ or }}1", f"{gold} = 1", f"{gold} + C"]
    return made("fractions", gold, value, equal, different, wrong=wrong)


@kind
def mixed_numbers(draw: random.Random) -> Answer:
    q = draw.randint(2, 9)
    whole, p = draw.randint(1, 30), draw.choice([p for p in range(1, q) if math.gcd(p, q) == 1])
    value, sign = whole + Fraction(p, q), draw.choice(["", "", "-"])
    if sign:
        value = -value
    gold = f"{sign}{whole}\\frac{{{p}}}{{{q}}}"
    equal = [
        frac(value),
        f"{value.numerator}/{q}",
        f"{sign}{whole}\\tfrac{{{p}}}{{{q}}}",
        f"{sign}{whole} {p}/{q}",
    ]
    if not sign:
        equal += [f"{whole}+\\frac{{{p}}}{{{q}}}", f"\\frac{{{p}}}{{{q}}}+{whole}"]
    if text := decimal(value):
        equal.append(text)
    different = [
        f"{sign}{whole + 1}\\frac{{{p}}}{{{q}}}",
        f"{sign}{whole}\\frac{{{p}}}{{{q + 1}}}",
        str(whole),
    ]
    different += [
        f"\\frac{{{whole}{p}}}{{{q}}}",
        f"\\frac{{{p}}}{{{q}}}",
        f"{sign}\\frac{{{whole * p}}}{{{q}}}",
    ]
    different += [f"{whole} \\cdot \\frac{{{p}}}{{{q}}}", f"-{gold}" if not sign else gold[1:]]
    return made("mixed_numbers", gold, value, equal, [text for text in different if text not in equal])


@kind
def decimals(draw: random.Random) -> Answer:
    places = draw.randint(1, 4)
    digits = draw.randint(1, 99999) * 10 + draw.randint(1, 9)
    value = draw.choice([1, 1, -1]) * Fraction(digits, 10**places)
    gold = decimal(value) or ""
    sign, plain = ("-" if value < 0 else ""), gold.lstrip("-")
    equal = [f"{gold}0", frac(value), f"x = {gold}", f"{gold} \\times 10^0"]
    equal += [f"{sign}{plain[1:]}"] if plain.startswith("0.") else []
    equal += [
        f"{decimal(value * 100)}\\%",
        f"{decimal(value / 10)}\\times 10^{{1}}",
        f"{value.numerator}/{value.denominator}",
    ]
    different = [
        other_digit(gold, draw),
        decimal(-value),
        decimal(value * 10),
        decimal(value / 10),
        f"{gold}{draw.randint(1, 9)}",
    ]
    different += [
        gold.replace(".", ""),
        gold[:-1] + "0" if gold[-2] != "." else f"{gold[:-1]}05",
        f"{gold}x",
        f"{gold}\\pi",
    ]
    wrong = [f"{gold}\\text{{ or }}{gold}1", f"{gold} \\approx 77", f"{gold}, 1", f"\\frac{{{gold}}}{{2}}"]
    also = [value * 100]
    different = [text for text in different if text and text.lstrip("-0.")]
    return made("decimals", gold, value, equal, different, wrong=wrong, also=also)


@kind
def scientific(draw: random.Random) -> Answer:
    digits = draw.randint(101, 999)
    mantissa, exponent = Fraction(digits, 100), draw.choice([-34, -19, -11, -6, -3, 3, 5, 8, 23])
    text = decimal(mantissa)
    gold = f"{text} \\times 10^{{{exponent}}}"
    equal = [
        f"{text}\\cdot10^{{{exponent}}}",
        f"{text}e{exponent}",
        f"{text}E{exponent}",
        f"{text}\\times10^{{{exponent}}}",
    ]
    equal += [f"{decimal(mantissa * 10)} \\times 10^{{{exponent - 1}}}", f"{text} × 10{raised(exponent)}"]
    equal += [f"{digits} \\times 10^{{{exponent - 2}}}", f"x = {gold}"]
    value = mantissa * Fraction(10) ** exponent
    if abs(exponent) <= 6:
        equal.append(decimal(value) or gold)
    different = [f"{text} \\times 10^{{{exponent + 1}}}", f"{text} \\times 10^{{{-exponent}}}", text or "0"]
    different += [
        f"{other_digit(text or '', draw)} \\times 10^{{{exponent}}}",
        f"-{gold}",
        f"10^{{{exponent}}}",
    ]
    different += [
        f"{text}\\times 2^{{{exponent}}}",
        f"{text} + 10^{{{exponent}}}",
        f"{text}1 \\times 10^{{{exponent}}}" if "." in (text or "") else gold,
    ]
    return made("scientific", gold, value, equal, different, wrong=["0", f"{gold}\\text{{ or }}1"])


@kind
def percents(draw: random.Random) -> Answer:
    value = draw.choice([Fraction(draw.randint(2, 99)), Fraction(draw.randint(11, 999), 10)])
    text = decimal(value) or ""
    gold = f"{text}\\%"
    equal = [
        f"{text}%",
        f"{text}\\text{{ percent}}",
        f"{text} \\%",
        text,
        decimal(value / 100) or gold,
        frac(value / 100),
    ]
    equal += [f"{text} percent", f"\\text{{{text}\\%}}"]
    different = [
        f"{other_digit(text, draw)}\\%",
        f"{text}^\\circ",
        f"\\${text}",
        f"-{gold}",
        f"{decimal(value * 10)}\\%",
    ]
    different += [
        f"{decimal(value / 10)}\\%",
        f"{text}\\text{{ cm}}",
        f"{decimal(value / 10)}",
        f"{text}\\text{{ apples}}",
    ]
    different += [f"{gold}\\text{{ decrease}}", f"{text}\\text{{ kg}}"][1:]
    return made("percents", gold, ("%", value), equal, different, also=[value, value / 100])


@kind
def currencies(draw: random.Random) -> Answer:
    value = draw.choice([Fraction(draw.randint(2, 9999)), Fraction(draw.randint(101, 99999), 100)])
    text = f"{value}" if value.denominator == 1 else f"{float(value):.2f}"
    grouped = f"{value.numerator:,}" if value.denominator == 1 else f"{float(value):,.2f}"
    sign, word, others = draw.choice(
        [
            ("\\$", "dollars", ["€", "£", "¥"]),
            ("€", "euros", ["\\$", "£", "¥"]),
            ("£", "pounds", ["\\$", "€", "¥"]),
        ]
    )
    gold = f"{sign}{text}"
    equal = [
        f"{sign}{grouped}",
        f"{text}\\text{{ {word}}}",
        f"{grouped}\\text{{ {word}}}",
        f"{sign} {text}",
        text,
        grouped,
    ]
    if value.denominator == 1:
        equal.append(f"{sign}{text}.00")
    words = [other for other in ("dollars", "euros", "rupees", "yen") if other != word]
    different = [
        f"{sign}{other_digit(text, draw)}",
        f"{draw.choice(others)}{text}",
        f"{text}\\text{{ {draw.choice(words)}}}",
    ]
    different += [
        f"{gold}\\text{{ million}}",
        f"{text}\\text{{ cents}}",
        f"{text}^\\circ",
        f"{text}\\%",
        f"{text}\\text{{ cm}}",
    ]
    different += [f"{gold}\\text{{ thousand}}", f"-{gold}"]
    return made("currencies", gold, (word, value), equal, different, also=[value])


# ------------------------------------------------------------------------------------- units
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
        return draw.choice([f"\\ {unit}", f"\\,{' '.join(letters)}", f"\\;\\mathrm{{{unit}}}"])
    return draw.choice(
        [
            f"\\text{{ {unit}}}",
            f"\\,\\text{{{unit}}}",
            f"\\ \\mathrm{{{unit}}}",
            f"\\mathrm{{~{unit}}}",
            f" {unit}",
        ]
        + [f"\\;\\textrm{{{unit}}}", f"~\\mathrm{{{unit}}}", f"\\,\\mathrm{{{unit}}}", f"\\textbf{{ {unit}}}"]
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
    different = [f"{other_digit(text, draw)}{_upright(unit, draw)}", f"-{gold}"]
    for other in prefixes:
        if other != prefix:
            shift = power - _PREFIXES[other][1]
            different.append(f"{text}{_upright(other + base, draw)}")
            if -6 <= shift <= 6:
                equal.append(f"{decimal(value * Fraction(10) ** shift)}{_upright(other + base, draw)}")
    for other in draw.sample([b for b in _BASES if b != base], 2):
        different.append(f"{text}{_upright(other, draw)}")
    different += [f"{text}\\%", f"{text}^\\circ", f"\\${text}", f"{text}\\text{{ apples}}"]
    if "\\" not in unit:
        different += [f"{text}\\text{{ {unit}}}^2", f"{text}\\text{{ {unit}/h}}"]
    wrong = [f"{gold}\\text{{ or }}{text}1", f"{gold} = {text}1\\text{{ {base}}}"] if "\\" not in base else []
    size = value * Fraction(10) ** power
    return made("quantities", gold, (base, size), equal, different, wrong=wrong, also=[value, size])


_DERIVED = (
    (("m/s", "\\frac{m}{s}", "m s^{-1}", "m\\cdot s^{-1}", "meters per second"), ("m/s^2", "km/h", "s/m", "m s", "m")),
    (("m/s^2", "\\frac{m}{s^2}", "m s^{-2}", "meters per second squared"), ("m/s", "m^2/s", "m s^2")),
    (("km/h", "\\frac{km}{h}", "km h^{-1}", "kilometers per hour", "km/hr"), ("m/s", "m/h", "km/s", "km h")),
    (("mph", "miles per hour", "mi/h"), ("km/h", "miles", "m/s")),
    (("g/cm^3", "\\frac{g}{cm^3}", "g cm^{-3}", "grams per cubic centimeter"), ("g/m^3", "kg/cm^3", "g/cm^2")),
    (("kg/m^3", "kg m^{-3}", "\\frac{kg}{m^3}"), ("kg/m^2", "g/m^3", "kg m^3")),
    (("mol/L", "\\frac{mol}{L}", "mol L^{-1}"), ("mmol/L", "mol/mL", "g/L")),
    (("J/mol", "J mol^{-1}", "\\frac{J}{mol}", "joules per mole"), ("kJ/mol", "J/kg", "J mol")),
    (("kJ/mol", "kJ mol^{-1}"), ("J/mol", "kJ")),
    (("N m", "N\\cdot m"), ("N/m", "kN m", "N m^2")),
    (("N/m", "N m^{-1}", "\\frac{N}{m}"), ("N m", "N/m^2", "kN/m")),
    (("W/m^2", "W m^{-2}", "\\frac{W}{m^2}"), ("W/m", "kW/m^2", "W m^2")),
    (("J/(kg K)", "J kg^{-1} K^{-1}", "\\frac{J}{kg\\cdot K}"), ("J/kg", "kJ/(kg K)")),
    (("kWh", "kW h", "kilowatt hours"), ("kW", "Wh", "MWh")),
    (("eV", "electron volts"), ("keV", "J", "V")),
    (("m^2", "square meters", "sq m"), ("m", "m^3", "cm^2", "ft^2")),
    (("cm^2", "square centimeters"), ("cm", "cm^3", "m^2", "mm^2")),
    (("cm^3", "cubic centimeters"), ("cm", "cm^2", "m^3")),
    (("ft^2", "square feet"), ("ft", "in^2", "ft^3")),
    (("ft", "feet"), ("in", "yd", "m", "ft^2")),
    (("in", "inches"), ("ft", "cm", "in^2")),
    (("lb", "pounds"), ("kg", "oz", "ton")),
    (("min", "minutes"), ("h", "s", "days")),
    (("h", "hours", "hr"), ("min", "s", "days")),
    (("days",), ("weeks", "hours", "years", "months")),
    (("ppm",), ("ppb", "%")),
    (("atm",), ("torr", "Pa", "bar", "mmHg")),
    (("K", "kelvin"), ("^\\circ C", "mol", "m")),
    (("dB", "decibels"), ("Hz", "m")),
    (("rpm",), ("Hz", "m")),
    (("nm", "nanometers"), ("Å", "mm", "pm", "Nm")),
    (("J", "joules"), ("erg", "cal", "W", "kJ")),
    (("rad/s", "rad s^{-1}", "radians per second"), ("rad", "rad/min", "s")),
)  # fmt: skip
_CONVERSIONS = (
    ("72", "km/h", "20", "m/s"), ("3", "h", "180", "min"), ("2.5", "m^2", "25000", "cm^2"), ("2", "L", "2000", "cm^3"),
    ("1.5", "kWh", "5.4", "MJ"), ("3", "ft", "36", "in"), ("2", "days", "48", "hours"), ("4", "g/cm^3", "4000", "kg/m^3"),
    ("2", "min", "120", "s"), ("3", "yd", "9", "ft"), ("7", "J", "7", "N m"), ("5", "Pa", "5", "N/m^2"),
    ("6", "W", "6", "J/s"), ("0.5", "m^3", "500", "L"), ("8", "cm", "80", "mm"), ("250", "g", "0.25", "kg"),
    ("3", "weeks", "21", "days"), ("9", "kPa", "9000", "Pa"), ("3", "V", "3", "J/C"), ("2", "N", "2", "kg m/s^2"),
)  # fmt: skip


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
        return draw.choice([f"{text}\\,\\frac{{{over[0]}}}{{{over[1]}}}", f"{text}\\ \\mathrm{{{unit}}}"])
    if unit.endswith(("^2", "^3")) and unit.count("^") == 1 and "/" not in unit and " " not in unit:
        plain, power = unit[:-2], unit[-1]
        return draw.choice(
            [
                f"{text}\\text{{ {plain}}}^{power}",
                f"{text}\\text{{ {plain}}}^{{{power}}}",
                f"{text}\\,\\mathrm{{{unit}}}",
            ]
            + [
                f"{text}\\ \\text{{{plain}}}^{power}",
                f"{text}\\text{{ {plain}}}{raised(power)}",
                f"{text} {unit}",
            ]
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
    forms, others = draw.choice(_DERIVED)
    value = _amount(draw)
    text = decimal(value) or ""
    gold = _written(text, forms[0], draw)
    equal = [text, _written(text, forms[0], draw), *(_written(text, form, draw) for form in forms)]
    different = [_written(text, other, draw) for other in others]
    different += [_written(other_digit(text, draw), draw.choice(forms), draw), f"{text}^\\circ", f"\\${text}"]
    return made("derived_units", gold, (forms[0], value), equal, different, also=[value, "any unit"])


@kind
def conversions(draw: random.Random) -> Answer:
    first, unit, second, other = draw.choice(_CONVERSIONS)
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
    unit, power = draw.choice(["cm", "m", "in", "ft", "inches", "feet", "meters", "km"]), draw.choice("23")
    gold = f"{n}{size}"
    equal = [
        f"{gold}\\text{{ {unit}}}^{power}",
        f"{gold}\\,\\text{{{unit}}}^{{{power}}}",
        f"{gold}\\text{{{unit}}}^{power}",
    ]
    equal += [
        f"{gold}\\ \\mathrm{{{unit}}}^{power}",
        f"{gold}\\mathrm{{~{unit}}}^{{{power}}}",
        f"{gold}\\text{{ {unit}}}",
    ]
    equal += [f"{gold}\\text{{ square {unit}}}", f"{gold}\\text{{ cubic units}}", f"{n}\\cdot{size}"]
    bad = [f"{n + 1}{size}", f"{n}{other}", str(n), f"{n}{size}^2", f"-{gold}"]
    different = [*bad, *(f"{text}\\text{{ {unit}}}^{power}" for text in bad[:2])]
    return made("pi_with_units", gold, (size, n), equal, different)


@kind
def temperatures(draw: random.Random) -> Answer:
    n = draw.randint(-40, 400)
    letter, name = draw.choice([("C", "Celsius"), ("F", "Fahrenheit")])
    gold = f"{n}^\\circ\\text{{{letter}}}"
    equal = [
        f"{n}\\,^\\circ\\mathrm{{{letter}}}",
        f"{n}°{letter}",
        f"{n} °{letter}",
        f"{n}^{{\\circ}} \\text{{{letter}}}",
        str(n),
    ]
    equal += [f"{n}\\text{{ degrees {name}}}", f"{n}^\\circ {letter}", f"{n}^{{\\circ}}\\mathrm{{{letter}}}"]
    other = "F" if letter == "C" else "C"
    different = [
        f"{n}^\\circ\\text{{{other}}}",
        f"{n + 1}^\\circ\\text{{{letter}}}",
        f"{n}\\text{{ K}}",
        f"{n}\\%",
        f"{n}°{other}",
    ]
    different += [f"{-n}^\\circ\\text{{{letter}}}"] if n else []
    return made("temperatures", gold, (letter, n), equal, different, also=[Fraction(n), "any unit"])


@kind
def angles(draw: random.Random) -> Answer:
    n = draw.randint(2, 359)
    gold = f"{n}^\\circ"
    equal = [
        f"{n}^{{\\circ}}",
        f"{n}°",
        f"{n}\\text{{ degrees}}",
        f"{n} ^\\circ",
        str(n),
        f"{n}.0^\\circ",
        f"x = {n}^\\circ",
    ]
    equal += [f"\\angle ABC = {n}^\\circ", f"{n} degrees"]
    different = [
        f"{n + 1}^\\circ",
        f"{n}\\text{{ rad}}",
        f"{n}\\%",
        f"\\${n}",
        f"{n}\\text{{ cm}}",
        f"-{n}^\\circ",
        f"{n}\\pi",
    ]
    different += [f"{n}^\\circ\\text{{C}}", f"\\frac{{{n}^\\circ}}{{2}}"][1:]
    return made("angles", gold, ("degrees", n), equal, different, also=[Fraction(n), "any unit"])


@kind
def degrees_minutes(draw: random.Random) -> Answer:
    n, minutes = draw.randint(2, 89), draw.randint(11, 59)
    gold = f"{n}^\\circ {minutes}'"
    equal = [
        f"{n}^\\circ{minutes}'",
        f"{n}^{{\\circ}} {minutes}^{{\\prime}}",
        f"{n}°{minutes}'",
        f"{n}^\\circ\\,{minutes}'",
    ]
    different = [
        f"{n}^\\circ {minutes - 1}'",
        f"{n + 1}^\\circ {minutes}'",
        f"{n}^\\circ",
        f"{n}^\\circ {minutes}''",
    ]
    return made(
        "degrees_minutes", gold, ("minutes", n, minutes), equal, different, wrong=[f"{n}", f"{minutes}"]
    )


_NOUNS = "apples boys books students marbles coins cars tickets players chairs".split()


@kind
def counted(draw: random.Random) -> Answer:
    n = draw.randint(2, 900)
    noun, other = draw.sample(_NOUNS, 2)
    gold = f"{n}\\text{{ {noun}}}"
    equal = [
        str(n),
        f"{n} {noun}",
        f"{n}\\,\\text{{{noun}}}",
        f"\\text{{{n} {noun}}}",
        f"{n}\\text{{ {noun}.}}",
    ]
    different = [
        f"{n + 1}\\text{{ {noun}}}",
        f"{n}\\text{{ {other}}}",
        f"{n}\\text{{ dozen {noun}}}",
        f"{n} {other}",
    ]
    different += [f"{n}\\text{{ hundred {noun}}}", f"{n}\\text{{ kg}}", f"{n}\\%", f"\\${n}"]
    wrong = [
        f"{n}\\text{{ or }}{n + 1}\\text{{ {noun}}}",
        f"{n}\\text{{ {noun} and }}{n + 1}\\text{{ {other}}}",
    ]
    return made("counted", gold, (noun, n), equal, different, wrong=wrong, also=[Fraction(n), "any unit"])


@kind
def compounds(draw: random.Random) -> Answer:
    """Two amounts: feet and inches, boys and girls, years and months."""
    a, b = draw.sample(range(2, 12), 2)
    first, second, joint = draw.choice(
        [("ft", "in", " "), ("h", "min", " "), ("hours", "minutes", " and "), ("years", "months", ", ")]
        + [
            ("boys", "girls", " and "),
            ("lb", "oz", " "),
            ("apples", "pears", " and "),
            ("feet", "inches", " "),
        ]
    )
    gold = f"{a}\\text{{ {first}{joint}}}{b}\\text{{ {second}}}"
    equal = [
        f"\\text{{{a} {first}{joint}{b} {second}}}",
        f"{a}\\,\\text{{{first}}}{joint if joint == ', ' else ''}\\text{{{joint.strip(',')}}}{b}\\,\\text{{{second}}}",
    ]
    different = [
        f"{a}\\text{{ {first}{joint}}}{b + 1}\\text{{ {second}}}",
        f"\\text{{{a} {first}{joint}{b + 3} {second}}}",
    ]
    different += [
        f"{b}\\text{{ {first}{joint}}}{a}\\text{{ {second}}}",
        f"{a + 1}\\text{{ {first}{joint}}}{b}\\text{{ {second}}}",
    ]
    wrong = [str(a), str(b), f"{a}\\text{{ {first}}}", f"{a}\\text{{ {second}{joint}}}{b}\\text{{ {first}}}"]
    return made("compounds", gold, (first, a, b), equal, different, wrong=wrong)


_OPPOSITES = [
    ("increase", "decrease"), ("profit", "loss"), ("gain", "loss"), ("BC", "AD"), ("older", "younger"), ("more", "less"),
    ("m north", "m south"), ("m east", "m west"), ("above", "below"), ("left", "right"), ("m up", "m down"),
    ("faster", "slower"),
]  # fmt: skip


@kind
def directions(draw: random.Random) -> Answer:
    """A number with a word that has an opposite."""
    n = draw.randint(2, 500)
    word, opposite = draw.choice(_OPPOSITES) if draw.random() < 0.5 else draw.choice(_OPPOSITES)[::-1]
    percent = "\\%" if word in ("increase", "decrease") else ""
    gold = f"{n}{percent}\\text{{ {word}}}"
    equal = [f"{n}{percent} {word}", f"{n}{percent}\\ \\text{{{word}}}"]
    different = [
        f"{n}{percent}\\text{{ {opposite}}}",
        f"{n}{percent} {opposite}",
        f"{n + 1}{percent}\\text{{ {word}}}",
    ]
    return made(
        "directions", gold, (word, n), equal, different, also=[Fraction(n), Fraction(n, 100), "any unit"]
    )


@kind
def number_words(draw: random.Random) -> Answer:
    n = draw.randint(2, 20)
    word, size = draw.choice(
        [("hundred", 100), ("thousand", 1000), ("million", 10**6), ("billion", 10**9), ("dozen", 12)]
    )
    gold = str(n * size)
    equal = [f"{n}\\text{{ {word}}}", f"{n} {word}", f"{n * size:,}"]
    different = [str(n), f"{n + 1}\\text{{ {word}}}", f"{n * size}\\text{{ {word}}}"]
    other = "million" if word == "thousand" else "thousand"
    different.append(f"{n}\\text{{ {other}}}")
    return made("number_words", gold, Fraction(n * size), equal, different)


# ------------------------------------------------------------------------------------- other writings of one number
@kind
def surds(draw: random.Random) -> Answer:
    a, b = draw.randint(2, 12), draw.choice([2, 3, 5, 6, 7, 10, 11, 13])
    gold = f"{a}\\sqrt{{{b}}}"
    equal = [
        f"\\sqrt{{{a * a * b}}}",
        f"\\sqrt{{{b}}}\\cdot {a}",
        f"{a}\\cdot {b}^{{1/2}}",
        f"{a}\\,\\sqrt{{{b}}}",
        f"{a}√{b}" if b < 10 else gold,
    ]
    equal += [
        f"\\frac{{{a * b}}}{{\\sqrt{{{b}}}}}",
        f"{a}\\times\\sqrt{{{b}}}",
        f"{a}\\sqrt {b}" if b < 10 else gold,
    ]
    different = [
        f"{a}+\\sqrt{{{b}}}",
        f"\\sqrt{{{a * b}}}",
        f"-{gold}",
        f"{a + 1}\\sqrt{{{b}}}",
        f"{a}\\sqrt[3]{{{b}}}",
    ]
    different += [
        f"{a * b**0.5:.6f}",
        f"{a * b**0.5:.2f}",
        f"{a}\\sqrt{{{b + 1}}}",
        str(a * b),
        f"\\sqrt[{a}]{{{b}}}",
        f"{b}\\sqrt{{{a}}}",
    ]
    if a == 2:
        different.remove(f"\\sqrt[{a}]{{{b}}}")
    if a == b:
        different.remove(f"{b}\\sqrt{{{a}}}")
    return made(
        "surds", gold, ("root", a, b), equal, [text for text in different if text != f"{a}\\sqrt{{{4 * b}}}"]
    )


@kind
def sums_of_surds(draw: random.Random) -> Answer:
    a, b, c = draw.randint(1, 9), draw.choice([2, 3, 5, 7, 11]), draw.choice([2, 3, 5, 7])
    sign = draw.choice("+-")
    gold = f"\\frac{{{a}{sign}\\sqrt{{{b}}}}}{{{c}}}"
    equal = [
        f"\\frac{{{a}}}{{{c}}}{sign}\\frac{{\\sqrt{{{b}}}}}{{{c}}}",
        f"\\frac{{1}}{{{c}}}({a}{sign}\\sqrt{{{b}}})",
    ]
    equal += [f"({a}{sign}\\sqrt{{{b}}})/{c}", f"\\frac{{{2 * a}{sign}2\\sqrt{{{b}}}}}{{{2 * c}}}"]
    equal += [
        f"\\frac{{\\sqrt{{{b}}}+{a}}}{{{c}}}" if sign == "+" else f"\\frac{{-\\sqrt{{{b}}}+{a}}}{{{c}}}"
    ]
    other = "-" if sign == "+" else "+"
    size = (a + (b**0.5 if sign == "+" else -(b**0.5))) / c
    different = [
        f"\\frac{{{a}{other}\\sqrt{{{b}}}}}{{{c}}}",
        f"\\frac{{{a + 1}{sign}\\sqrt{{{b}}}}}{{{c}}}",
        f"{size:.6f}",
    ]
    different += [
        f"{a}{sign}\\frac{{\\sqrt{{{b}}}}}{{{c}}}",
        f"\\frac{{{a}}}{{{c}}}{sign}\\sqrt{{{b}}}",
        f"\\frac{{{a}{sign}\\sqrt{{{b + 1}}}}}{{{c}}}",
    ]
    return made("sums_of_surds", gold, (sign, a, b, c), equal, different)


@kind
def powers(draw: random.Random) -> Answer:
    a, n = draw.choice([2, 3, 5, 7]), draw.randint(8, 120)
    gold = f"\\frac{{1}}{{{a}^{{{n}}}}}" if draw.random() < 0.5 else f"{a}^{{{n}}}"
    if gold.startswith("\\frac"):
        equal = [
            f"{a}^{{-{n}}}",
            f"\\left(\\frac{{1}}{{{a}}}\\right)^{{{n}}}",
            f"\\frac{{{a}}}{{{a}^{{{n + 1}}}}}",
            f"1/{a}^{{{n}}}",
        ]
        different = [
            f"\\frac{{1}}{{{a}^{{{n + 1}}}}}",
            f"{a}^{{{n}}}",
            "0",
            f"-{gold}",
            f"\\frac{{2}}{{{a}^{{{n}}}}}" if a != 2 else "1",
        ]
        different += [f"\\frac{{1}}{{{a + 1}^{{{n}}}}}", f"\\frac{{1}}{{{a}^{{{n}}}+1}}"]
        value = Fraction(1, a**n)
    else:
        equal = [
            f"{a}\\cdot {a}^{{{n - 1}}}",
            f"{a}^{{{n}}}",
            f"\\left({a}\\right)^{{{n}}}",
            f"{a}^{{{n - 2}}} \\times {a}^2",
        ]
        equal += [f"\\frac{{1}}{{{a}^{{-{n}}}}}"]
        different = [
            f"{a}^{{{n + 1}}}",
            f"{a}^{{-{n}}}",
            f"{a}^{{{n}}}+1",
            str(a * n),
            f"{a}{n}",
            f"{a + 1}^{{{n}}}",
            f"-{gold}",
        ]
        value = Fraction(a**n)
        if n < 20:
            equal.append(str(a**n))
    return made("powers", gold, value, equal, different)


@kind
def near_one(draw: random.Random) -> Answer:
    """Numbers that differ by something tiny."""
    a, n = draw.choice([2, 3, 5]), draw.randint(30, 90)
    tail = f"\\frac{{1}}{{{a}^{{{n}}}}}"
    gold, equal, different = draw.choice(
        [
            (
                f"1-{tail}",
                [f"1-{a}^{{-{n}}}", f"\\frac{{{a}^{{{n}}}-1}}{{{a}^{{{n}}}}}"],
                [f"1+{tail}", "1", f"1-\\frac{{1}}{{{a}^{{{n + 1}}}}}"],
            ),
            (
                f"\\frac12\\left(1+{tail}\\right)",
                [f"\\frac{{{a}^{{{n}}}+1}}{{2\\cdot {a}^{{{n}}}}}"],
                [f"\\frac12\\left(1-{tail}\\right)", "\\frac12"],
            ),
            (f"\\pi+{tail}", [f"{tail}+\\pi"], ["\\pi", f"\\pi-{tail}"]),
            (
                f"2-\\frac{{1}}{{{n}!}}",
                [f"-\\frac{{1}}{{{n}!}}+2"],
                ["2", f"2+\\frac{{1}}{{{n}!}}", f"2-\\frac{{1}}{{{n + 1}!}}"],
            ),
            (
                f"\\sqrt{{2}}\\times 10^{{-{n}}}",
                [f"\\frac{{\\sqrt{{2}}}}{{10^{{{n}}}}}"],
                ["0", f"\\sqrt{{3}}\\times 10^{{-{n}}}", f"\\sqrt{{2}}\\times 10^{{-{n + 1}}}"],
            ),
        ]
    )
    return made("near_one", gold, gold, equal, different)


@kind
def factorials(draw: random.Random) -> Answer:
    n = draw.randint(4, 14)
    gold = f"{n}!"
    equal = [f"{n} \\cdot {n - 1}!", f"{n} \\times ({n - 1})!", f"{n}\\cdot({n - 1})!"]
    different = [
        f"{n + 1}!",
        f"{n - 1}!",
        str(n),
        f"{n}!+1",
        f"-{n}!",
        f"{n}^2",
        f"\\frac{{1}}{{{n}!}}",
        f"{math.factorial(n) + 1}",
    ]
    right = [str(math.factorial(n)), f"{math.factorial(n):,}"]
    return made("factorials", gold, Fraction(math.factorial(n)), equal, different, right=right)


@kind
def binomials(draw: random.Random) -> Answer:
    n = draw.randint(6, 30)
    k = draw.randint(2, (n - 1) // 2)
    gold = f"\\binom{{{n}}}{{{k}}}"
    equal = [
        f"\\binom{{{n}}}{{{n - k}}}",
        f"\\dbinom{{{n}}}{{{k}}}",
        f"{{{n} \\choose {k}}}",
        f"\\frac{{{n}!}}{{{k}!\\,{n - k}!}}",
    ]
    equal.append(f"\\frac{{{n}!}}{{{k}! \\cdot ({n}-{k})!}}")
    different = [
        f"\\binom{{{n}}}{{{k - 1}}}",
        f"\\binom{{{n + 1}}}{{{k}}}",
        f"\\frac{{{n}}}{{{k}}}",
        f"{n}{k}",
        f"\\frac{{{n}!}}{{{k}!}}",
    ]
    different += [str(math.comb(n, k) + 1), f"({n},{k})"]
    return made("binomials", gold, Fraction(math.comb(n, k)), equal, different, right=[str(math.comb(n, k))])


@kind
def logarithms(draw: random.Random) -> Answer:
    a, b = draw.sample([2, 3, 5, 6, 7], 2)
    k = draw.randint(2, 4)
    gold, equal, different = draw.choice(
        [
            (
                f"\\log_{a} {b}",
                [
                    f"\\log_{{{a}}}{{{b}}}",
                    f"\\frac{{\\ln {b}}}{{\\ln {a}}}",
                    f"\\log_{{{a}}}({b})",
                    f"\\frac{{1}}{{\\log_{b} {a}}}",
                ],
                [
                    f"\\log_{b} {a}",
                    f"\\log_{a} {b + 1}",
                    f"\\ln {b}",
                    f"\\log_{{{a + 1}}} {b}",
                    f"{math.log(b, a):.6f}",
                    f"-\\log_{a} {b}",
                ],
            ),
            (
                f"\\ln {b**k}",
                [f"{k}\\ln {b}", f"{k} \\ln({b})", f"\\log_e {b**k}", f"\\ln({b}^{k})"],
                [
                    f"\\ln {b}",
                    f"\\ln {b**k + 1}",
                    f"{k + 1}\\ln {b}",
                    f"\\log_{{10}} {b**k}",
                    f"{math.log(b**k):.6f}",
                    f"\\ln^{k} {b}",
                ],
            ),
            (
                f"\\ln\\frac{{{a}}}{{{b}}}",
                [
                    f"\\ln {a}-\\ln {b}",
                    f"-\\ln\\frac{{{b}}}{{{a}}}",
                    f"\\ln\\left(\\frac{{{a}}}{{{b}}}\\right)",
                ],
                [
                    f"\\ln\\frac{{{b}}}{{{a}}}",
                    f"\\frac{{\\ln {a}}}{{\\ln {b}}}",
                    f"\\ln {a * b}",
                    f"\\ln {a}",
                ],
            ),
            (
                f"{k}+\\ln {b}",
                [f"\\ln {b}+{k}", f"{k}+\\ln({b})", f"\\ln({b}e^{k})"],
                [f"{k}\\ln {b}", f"{k}-\\ln {b}", f"{k + 1}+\\ln {b}"],
            ),
        ]
    )
    return made("logarithms", gold, gold, equal, different)


_SPECIAL = (
    ("\\tan 15^\\circ", ["2-\\sqrt{3}", "\\tan\\frac{\\pi}{12}"], ["2+\\sqrt{3}", "\\tan 15", "\\tan 75^\\circ"]),
    ("\\sin 15^\\circ", ["\\frac{\\sqrt{6}-\\sqrt{2}}{4}", "\\cos 75^\\circ"], ["\\frac{\\sqrt{6}+\\sqrt{2}}{4}", "\\cos 15^\\circ"]),
    ("\\cos 36^\\circ", ["\\frac{1+\\sqrt{5}}{4}", "\\sin 54^\\circ"], ["\\frac{1-\\sqrt{5}}{4}", "\\sin 36^\\circ"]),
    ("\\sin\\frac{\\pi}{7}", ["\\sin\\frac{6\\pi}{7}", "\\sin\\left(\\frac{\\pi}{7}\\right)"], ["\\cos\\frac{\\pi}{7}", "\\sin\\frac{2\\pi}{7}"]),
    ("\\arctan 2", ["\\tan^{-1} 2", "\\arctan(2)"], ["\\arctan \\frac12", "\\tan 2", "\\frac{1}{\\tan 2}", "\\arctan 3"]),
    ("\\arcsin\\frac13", ["\\sin^{-1}\\frac{1}{3}", "\\arcsin\\left(\\frac13\\right)"], ["\\arccos\\frac13", "\\arcsin\\frac23"]),
    ("\\frac{\\sqrt{3}}{2}", ["\\sin 60^\\circ", "\\cos\\frac{\\pi}{6}", "\\frac{3}{2\\sqrt{3}}"], ["\\frac{\\sqrt{2}}{2}", "\\frac{3}{2}", "-\\frac{\\sqrt{3}}{2}"]),
    ("\\sqrt{2+\\sqrt{3}}", ["\\frac{\\sqrt{6}+\\sqrt{2}}{2}"], ["\\sqrt{2-\\sqrt{3}}", "\\sqrt{2}+\\sqrt{3}", "\\sqrt{3+\\sqrt{2}}"]),
    ("e^{-2}", ["\\frac{1}{e^2}", "\\exp(-2)"], ["e^2", "-e^2", "e^{-3}", "0.135335"]),
    ("\\frac{\\pi^2}{6}", ["\\frac{1}{6}\\pi^2", "\\pi^2/6"], ["\\frac{\\pi}{6}", "\\frac{\\pi^2}{8}", "1.644934", "\\frac{6}{\\pi^2}"]),
)  # fmt: skip


@kind
def trigonometry(draw: random.Random) -> Answer:
    if draw.random() < 0.5:
        gold, equal, different = draw.choice(_SPECIAL)
        return made("trigonometry", gold, gold, equal, different)
    n = draw.choice([20, 25, 35, 40, 50, 65, 70, 80])
    gold = f"\\sin {n}^\\circ"
    equal = [
        f"\\cos {90 - n}^\\circ",
        f"\\sin {180 - n}^\\circ",
        f"\\sin({n}^\\circ)",
        f"\\sin{{{n}^{{\\circ}}}}",
    ]
    different = [
        f"\\cos {n}^\\circ",
        f"\\sin {n + 1}^\\circ",
        f"\\sin {n}",
        f"-\\sin {n}^\\circ",
        f"\\tan {n}^\\circ",
    ]
    different.append(f"\\sin^2 {n}^\\circ")
    return made("trigonometry", gold, gold, equal, different)


@kind
def complex_numbers(draw: random.Random) -> Answer:
    a, b = draw.sample([n for n in range(-12, 13) if abs(n) > 1], 2)
    gold = f"{a}{b:+d}i"
    equal = [
        f"{b}i{a:+d}",
        f"{a} {'+' if b > 0 else '-'} {abs(b)}i",
        f"{a}{'+' if b > 0 else '-'}i\\cdot {abs(b)}",
        f"z = {gold}",
    ]
    equal += [f"{a}{b:+d}\\cdot i", f"{a}+({b})i", f"\\left({a}{b:+d}i\\right)"]
    different = [
        f"{a}{-b:+d}i",
        f"{-a}{b:+d}i",
        f"{b}{a:+d}i",
        str(a),
        f"{b}i",
        f"{a}{b:+d}",
        f"{a}{b + 1:+d}i",
        f"({a},{b})",
    ]
    return made("complex_numbers", gold, ("i", a, b), equal, different)


_POLAR = (("\\frac{\\pi}{3}", "\\frac12", "\\frac{\\sqrt3}{2}", (1, 3)), ("\\frac{\\pi}{4}", "\\frac{\\sqrt2}{2}", "\\frac{\\sqrt2}{2}", (1, 4)),
          ("\\frac{\\pi}{6}", "\\frac{\\sqrt3}{2}", "\\frac12", (1, 6)), ("\\frac{2\\pi}{3}", "-\\frac12", "\\frac{\\sqrt3}{2}", (2, 3)))  # fmt: skip


@kind
def polar(draw: random.Random) -> Answer:
    r = draw.randint(2, 9)
    angle, cosine, sine, turns = draw.choice(_POLAR)
    other = draw.choice([item[0] for item in _POLAR if item[0] != angle])
    gold = f"{r}e^{{{angle}i}}"
    equal = [
        f"{r}e^{{i{angle}}}",
        f"{r}\\left(\\cos {angle}+i\\sin {angle}\\right)",
        f"{r}\\left({cosine}+{sine}i\\right)",
    ]
    equal += [
        f"{r}e^{{{angle.replace('frac{', 'frac{i')}}}",
        f"{r}\\left(\\cos\\left({angle}\\right)+i\\sin\\left({angle}\\right)\\right)",
    ]
    different = [
        f"{r}e^{{-{angle}i}}",
        f"{r + 1}e^{{{angle}i}}",
        f"{r}e^{{{other}i}}",
        f"{r}e^{{{angle}}}",
        f"-{gold}",
        str(r),
    ]
    different.append(f"{r}\\left({cosine}-{sine}i\\right)")
    return made("polar", gold, ("polar", r, turns), equal, different)


@kind
def repeating_decimals(draw: random.Random) -> Answer:
    length = draw.choice([1, 2, 3])
    digits = "".join(draw.choices("0123456789", k=length))
    lead = draw.choice(["", "", str(draw.randint(1, 9))])
    while len(set(digits)) == 1 and (length > 1 or digits in "09" or digits == lead):
        digits = "".join(draw.choices("0123456789", k=length))
    if lead and lead == digits[-1]:
        lead = ""
    value = Fraction(int(lead or "0"), 10 ** len(lead)) + Fraction(
        int(digits), (10**length - 1) * 10 ** len(lead)
    )
    gold = f"0.{lead}\\overline{{{digits}}}"
    equal = [frac(value), f"0.{lead}\\overline{{{digits * 2}}}", f"{value.numerator}/{value.denominator}"]
    shown = f"0.{lead}{digits}"
    different = [
        shown,
        f"0.{lead}{(digits * 9)[:9]}",
        f"0.{lead}\\overline{{{other_digit(digits, draw)}}}",
        f"-{gold}",
        f"1.{lead}\\overline{{{digits}}}",
    ]
    if len(set(digits)) > 1:
        different.append(f"0.{lead}\\overline{{{digits[::-1]}}}" if digits != digits[::-1] else shown)
    return made("repeating_decimals", gold, value, equal, different)


@kind
def base_numerals(draw: random.Random) -> Answer:
    base, word = draw.choice([(2, "two"), (3, "three"), (5, "five"), (8, "eight")])
    digits = [draw.randrange(1, base), *(draw.randrange(base) for _ in range(draw.randint(2, 5)))]
    text = "".join(map(str, digits))
    gold = f"{text}_{base}"
    equal = [
        f"({text})_{base}",
        f"{text}_{{{base}}}",
        f"{text}_{{\\text{{{word}}}}}",
        f"({text})_{{{base}}}",
        f"{text}{lowered(base)}",
    ]
    different = [
        f"{text}_{base + 1}",
        f"{text}0_{base}",
        f"1{text}_{base}",
        f"{text}{base}",
        f"{text[1:]}1_{base}" if text[1:] + "1" != text else f"{text}1_{base}",
    ]
    different = [form for form in different if form.lstrip("0")[0] != "_" and form not in (f"0{gold}",)]
    return made("base_numerals", gold, ("base", base, text), equal, different, wrong=[f"{text}1"])


# ------------------------------------------------------------------------------------- several numbers
@kind
def plus_or_minus(draw: random.Random) -> Answer:
    item = part(draw)
    while item.size <= 0:
        item = part(draw)
    tex = item.tex
    if draw.random() < 0.5:
        gold = f"\\pm {tex}"
        equal = [
            f"{tex}, -{tex}",
            f"-{tex},{tex}",
            f"±{tex}",
            f"{tex} \\text{{ or }} -{tex}",
            f"\\pm{draw.choice(item.equal)}",
        ]
        equal += [f"{tex} \\text{{ and }} -{tex}", f"\\{{{tex}, -{tex}\\}}"]
        different = [tex, f"-{tex}", f"\\pm {draw.choice(item.different)}", f"{tex}, {tex}"]
        different = [form for form in different if not form.startswith("\\pm -")]
        return made("plus_or_minus", gold, ("pm", item.value), equal, different)
    a, b = draw.randint(1, 9), draw.choice([2, 3, 5, 7])
    gold = f"{a}\\pm\\sqrt{{{b}}}"
    equal = [
        f"{a}+\\sqrt{{{b}}}, {a}-\\sqrt{{{b}}}",
        f"{a} ± \\sqrt{{{b}}}",
        f"\\{{{a}-\\sqrt{{{b}}}, {a}+\\sqrt{{{b}}}\\}}",
    ]
    equal += [f"{a}-\\sqrt{{{b}}} \\text{{ or }} {a}+\\sqrt{{{b}}}", f"x = {gold}"]
    different = [
        f"{a}+\\sqrt{{{b}}}",
        f"{a}-\\sqrt{{{b}}}",
        f"{a + 1}\\pm\\sqrt{{{b}}}",
        f"{a}\\pm\\sqrt{{{b + 1}}}",
        f"\\pm{a}\\sqrt{{{b}}}",
    ]
    different.append(f"\\pm {a}+\\sqrt{{{b}}}")
    return made("plus_or_minus", gold, ("pm", a, b), equal, different)


def _short(draw: random.Random, number: int) -> list[Part]:
    """Returns parts without numbers of three digits, which would look like thousands behind a comma."""
    while True:
        found = parts(draw, number)
        if not any(len(item.tex.lstrip("-")) == 3 and item.tex.lstrip("-").isdigit() for item in found):
            return found


@kind
def lists(draw: random.Random) -> Answer:
    found = _short(draw, draw.randint(2, 4))
    tex = [item.tex for item in found]
    gold = ", ".join(tex)
    mixed = draw.sample(tex, len(tex))
    equal, different = varied(found, draw, ", ".join)
    equal += [
        ", ".join(mixed),
        ", ".join(tex[:-1]) + f" \\text{{ and }} {tex[-1]}",
        f"\\{{{', '.join(mixed)}\\}}",
    ]
    equal += (
        [" \\text{ or } ".join(tex), "; ".join(tex), " \\text{ and } ".join(tex)] if len(tex) == 2 else []
    )
    different += [", ".join(tex[1:]), tex[0], f"{gold}, 77", f"{gold}, -77"]
    return made("lists", gold, ("set", frozenset(item.value for item in found)), equal, different)


@kind
def sets(draw: random.Random) -> Answer:
    found = _short(draw, draw.randint(2, 4))
    tex = [item.tex for item in found]

    def write(texts: list[str]) -> str:
        return f"\\{{{', '.join(texts)}\\}}"

    gold = write(tex)
    equal, different = varied(found, draw, write)
    equal += [
        write(draw.sample(tex, len(tex))),
        f"\\left\\{{{','.join(tex)}\\right\\}}",
        f"\\{{ {' , '.join(tex)} \\}}",
        f"\\lbrace {', '.join(tex)} \\rbrace",
    ]
    different += [write(tex[1:]), write([*tex, "77"]), write(["77", *tex[1:]])]
    different += [f"({', '.join(tex)})"]
    different += [f"[{tex[0]}, {tex[1]}]"] if len(tex) == 2 else []
    return made("sets", gold, ("set", frozenset(item.value for item in found)), equal, different)


@kind
def tuples(draw: random.Random) -> Answer:
    found = parts(draw, draw.randint(2, 4))
    tex = [item.tex for item in found]

    def write(texts: list[str]) -> str:
        return f"({', '.join(texts)})"

    gold = write(tex)
    equal, different = varied(found, draw, write)
    equal += [f"({','.join(tex)})", f"\\left({', '.join(tex)}\\right)", "(" + ",\\, ".join(tex) + ")"]
    different += [
        write(tex[::-1]),
        write(tex[1:]) if len(tex) > 2 else tex[0],
        write([*tex, "7"]),
        f"\\{{{', '.join(tex)}\\}}",
    ]
    different += [write([tex[1], tex[0], *tex[2:]])]
    if len(tex) == 2:
        different += [f"[{tex[0]}, {tex[1]}]", f"[{tex[0]}, {tex[1]})", f"({tex[0]}, {tex[1]}]"]
    value = ("(", *(item.value for item in found))
    return made("tuples", gold, value, equal, different)


@kind
def points(draw: random.Random) -> Answer:
    """Several pairs of coordinates, in any order."""
    found = [parts(draw, 2, exact=False) for _ in range(2)]
    if found[0][0].tex == found[1][0].tex:
        found[1] = found[1][::-1]
    tex = [f"({a.tex}, {b.tex})" for a, b in found]
    gold = ", ".join(tex)
    equal = [
        ", ".join(tex[::-1]),
        " \\text{ and } ".join(tex),
        f"\\{{{', '.join(tex)}\\}}",
        gold.replace(" ", ""),
    ]
    different = [tex[0], f"{tex[0]}, (77, 1)", f"{gold}, (77, 1)"]
    if found[0][0].value != found[0][1].value:
        swapped = f"({found[0][1].tex}, {found[0][0].tex})"
        different.append(f"{swapped}, {tex[1]}")
    value = frozenset((a.value, b.value) for a, b in found)
    return made(
        "points",
        gold,
        ("points", value),
        equal,
        [text for text in different if text not in equal] if len(value) == 2 else [],
    )


@kind
def solutions(draw: random.Random) -> Answer:
    """Named values: x = 1, y = 2."""
    a, b = parts(draw, 2, exact=False)
    first, second = draw.choice([("x", "y"), ("a", "b"), ("m", "n"), ("p", "q")])
    gold = f"{first} = {a.tex}, {second} = {b.tex}"
    equal = [
        f"{first}={a.tex} \\text{{ and }} {second}={b.tex}",
        f"{second} = {b.tex}, {first} = {a.tex}",
        f"{first}={a.tex},\\ {second}={b.tex}",
    ]
    equal += [f"{first} = {draw.choice(a.equal)}, {second} = {b.tex}"]
    different = [
        f"{first} = {b.tex}, {second} = {a.tex}",
        f"{first} = {a.tex}, {second} = {draw.choice(b.different)}",
        f"{first} = {a.tex}",
    ]
    different += [
        f"{first} = {draw.choice(a.different)}, {second} = {b.tex}",
        f"{second} = {a.tex}, {first} = {b.tex}",
    ]
    value = ("named", first, a.value, b.value)
    return made(
        "solutions",
        gold,
        value,
        equal,
        different,
        also=[("(", a.value, b.value), ("set", frozenset([a.value, b.value]))],
    )


@kind
def ratios(draw: random.Random) -> Answer:
    terms = draw.sample([2, 3, 5, 7, 9, 11, 13], draw.choice([2, 2, 3]))
    gold, k = ":".join(map(str, terms)), draw.randint(2, 5)
    equal = [
        " : ".join(map(str, terms)),
        " \\colon ".join(map(str, terms)),
        ":".join(str(k * term) for term in terms),
    ]
    equal += [f"{terms[0]} \\text{{ to }} {terms[1]}"] if len(terms) == 2 else []
    different = [
        ":".join(map(str, terms[::-1])),
        ":".join(map(str, [terms[0] + 1, *terms[1:]])),
        f"{gold}:1",
        str(terms[0]),
    ]
    return made("ratios", gold, ("ratio", *terms), equal, different, also=[Fraction(terms[0], terms[1])])


@kind
def matrices(draw: random.Random) -> Answer:
    height, width = draw.randint(2, 3), draw.randint(1, 3)
    cells = parts(draw, height * width)
    rows = [cells[index * width : (index + 1) * width] for index in range(height)]

    def write(texts: list[str], name: str = "pmatrix") -> str:
        body = " \\\\ ".join(" & ".join(texts[i * width : (i + 1) * width]) for i in range(height))
        return f"\\begin{{{name}}} {body} \\end{{{name}}}"

    tex = [cell.tex for cell in cells]
    gold = write(tex)
    equal, different = varied(cells, draw, write)
    body = write(tex)[len("\\begin{pmatrix}") : -len("\\end{pmatrix}")]
    equal += [
        write(tex, "bmatrix"),
        f"\\left(\\begin{{array}}{{{'c' * width}}}{body}\\end{{array}}\\right)",
        gold.replace(" ", ""),
    ]
    equal += [
        f"\\left[\\begin{{array}}{{{'r' * width}}}{body}\\end{{array}}\\right]",
        f"\\left(\\begin{{matrix}}{body}\\end{{matrix}}\\right)",
    ]
    different += [write([*tex[width:], *tex[:width]]), write(tex[::-1])]
    if height == width:
        across = [rows[j][i].tex for i in range(height) for j in range(height)]
        different += [write(across), write(tex, "vmatrix")]
    value = ("matrix", *(tuple(cell.value for cell in row) for row in rows))
    return made("matrices", gold, value, equal, different)


@kind
def vectors(draw: random.Random) -> Answer:
    a, b, c = draw.sample([n for n in range(-9, 10) if abs(n) > 1], 3)
    i, j, k = draw.choice(
        [
            ("\\hat{i}", "\\hat{j}", "\\hat{k}"),
            ("\\mathbf{i}", "\\mathbf{j}", "\\mathbf{k}"),
            ("\\vec{i}", "\\vec{j}", "\\vec{k}"),
        ]
    )

    def with_units(a: int, b: int, c: int) -> str:
        return f"{a}{i}{b:+d}{j}{c:+d}{k}"

    gold = with_units(a, b, c)
    equal = [
        f"({a},{b},{c})",
        f"\\langle {a},{b},{c}\\rangle",
        f"{a}\\mathbf{{i}}{b:+d}\\mathbf{{j}}{c:+d}\\mathbf{{k}}",
        f"{b}{j}{a:+d}{i}{c:+d}{k}",
    ]
    equal += [f"{a}\\hat i{b:+d}\\hat j{c:+d}\\hat k"]
    different = [
        with_units(a, b, -c),
        with_units(b, a, c),
        f"({a},{c},{b})",
        f"\\langle {b},{a},{c}\\rangle",
        with_units(a + 1, b, c),
        f"{a}{i}{b:+d}{j}",
    ]
    return made("vectors", gold, ("(", Fraction(a), Fraction(b), Fraction(c)), equal, different)


@kind
def chains(draw: random.Random) -> Answer:
    name, n = draw.choice("xynkmt"), draw.randint(3, 60)
    gold = f"{name} = {n}"
    a = draw.randint(1, n - 1)
    equal = [str(n), f"{name}={n}", f"{name} = {n}.0"]
    right = [f"{name} = {a}+{n - a} = {n}", f"{name} = \\frac{{{2 * n}}}{{2}} = {n}"]
    other = draw.choice([letter for letter in "xynkmt" if letter != name])
    different = [
        f"{name} = {n + 1}",
        f"{name} = -{n}",
        f"{name} > {n}",
        f"{name} \\ne {n}",
        f"{name} \\le {n}",
        f"{name}^2 = {n}",
    ]
    wrong = [
        f"{name} = {n + 2} = {n}",
        f"{name} = {n} = {n + 2}",
        f"{name} = {n}, {other} = 7",
        f"{n} \\approx {n + 2}",
        f"{n} \\equiv {n + 2}",
    ]
    wrong += [f"{name} = {n} \\text{{ or }} {name} = {n + 1}", f"{name} = {a} + {n - a + 1} = {n}"]
    return made("chains", gold, ("is", n), equal, different, right=right, wrong=wrong, also=[Fraction(n)])


_PENDING = (
    ("1", ["\\lim_{x\\to 0}\\frac{\\sin x}{x}", "\\sin^2 x+\\cos^2 x", "\\frac{T}{t}", "\\cosh^2 x-\\sinh^2 x", "x^0", "\\int_0^1 1\\,dx"]),
    ("e", ["\\lim_{n\\to\\infty}\\left(1+\\frac1n\\right)^n", "\\sum_{n=0}^{\\infty}\\frac{1}{n!}"]),
    ("120", ["\\prod_{k=1}^{5} k", "\\int_0^{120} 1\\,dx", "\\operatorname{lcm}(40,60)", "\\max(7,120)"]),
    ("36", ["\\operatorname{lcm}(12,18)", "\\sum_{k=1}^{8} k", "\\text{lcm}(12,18)", "\\lfloor 36.5\\rfloor"]),
    ("6", ["\\gcd(12,18)", "\\min(6,7)", "\\gcd(18, 24)", "\\left|\\{1,2,3,4,5,6\\}\\right|", "13 \\bmod 7"]),
    ("3", ["\\lfloor\\pi\\rfloor", "\\lceil 2.5\\rceil", "\\sum_{k=1}^{2}k", "\\max\\{1,2,3\\}", "\\lim_{x\\to3}x"]),
    ("-2", ["\\begin{vmatrix}1&2\\\\3&4\\end{vmatrix}", "\\det\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\min(-2,5)"]),
    ("2x", ["\\frac{d}{dx}x^2", "\\frac{\\partial}{\\partial x}x^2", "(x^2)'", "\\lim_{h\\to0}\\frac{(x+h)^2-x^2}{h}"]),
    ("\\frac{1}{3}", ["\\int_0^1 x^2\\,dx", "\\lim_{n\\to\\infty}\\frac{n}{3n+1}", "\\sum_{n=1}^{\\infty}\\frac{1}{4^n}"]),
    ("\\begin{pmatrix}19&22\\\\43&50\\end{pmatrix}",
     ["\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}\\begin{pmatrix}5&6\\\\7&8\\end{pmatrix}"]),
)  # fmt: skip


@kind
def pending(draw: random.Random) -> Answer:
    """Answers that still hold what the question asked to work out, and golds that may hold it."""
    if draw.random() < 0.6:
        gold, wrong = draw.choice(_PENDING)
        return made(
            "pending",
            gold,
            gold,
            wrong=wrong,
            also=[Fraction(gold)] if gold.lstrip("-").isdigit() else [gold],
        )
    n = draw.randint(2, 9)
    gold = f"\\sum_{{k=1}}^{{n}} \\frac{{{n}}}{{k}}"
    equal = [f"\\sum_{{k=1}}^n\\frac{{{n}}}{{k}}", f"\\sum_{{k=1}}^{{n}} {n}/k"]
    different = [
        f"\\sum_{{k=1}}^{{n}} \\frac{{{n + 1}}}{{k}}",
        f"\\sum_{{k=0}}^{{n}} \\frac{{{n}}}{{k+2}}",
        f"\\prod_{{k=1}}^{{n}} \\frac{{{n}}}{{k}}",
        f"\\frac{{{n}}}{{k}}",
    ]
    return made("pending", gold, gold, equal, different)
