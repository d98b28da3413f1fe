"""Kinds of answers that are one number, with or without a unit, or several numbers."""

from __future__ import annotations

import math
import random
from fractions import Fraction

from tests.reward.graders.math.answers import (
    Answer,
    Part,
    decimal,
    forms,
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
    table,
    varied,
)


# ------------------------------------------------------------------------------------- one number
@kind
def integers(draw: random.Random) -> Answer:
    length = draw.choice([1, 1, 2, 2, 3, 4, 5, 7, 12, 25])
    n = draw.choice([1, 1, -1]) * draw.randint(10 ** (length - 1), 10**length - 1)
    gold, grouped = str(n), f"{n:,}"
    equal = forms(rf"{n}.0 | \frac{{{3 * n}}}{{3}} | x = {n} | \boxed{{{n}}} | \text{{{n}}}")
    equal += [grouped, grouped.replace(",", "{,}"), grouped.replace(",", "\\,"), grouped.replace(",", ",\\!")]
    different = forms(f"{other_digit(gold, draw)} | {-n} | {n + 1} | {n}{draw.randint(0, 9)} | {n}.5 | {n}i")
    different += forms(rf"{n}x | {n}\text{{ million}} | {n}\text{{ dozen}} | {n} \text{{ hundred}}")
    different += [f"{a}{b}" for a, b in [(gold[:-1], "0")] if n % 10 and abs(n) > 9]
    swapped = [gold[:i] + gold[i + 1] + gold[i] + gold[i + 2 :] for i in range(1, len(gold) - 1)]
    different += [text for text in swapped[:1] if int(text) != n]
    if abs(n) > 1:
        different += forms(rf"{gold}^2 | \frac{{1}}{{{n}}} | {n}\pi")
    if n > 1:
        different += forms(rf"\sqrt{{{n}}} | {n}\sqrt{{2}}")
    if n > 2 and length < 3:
        different.append(f"{n}!")
    wrong = forms(rf"{n} \text{{ or }} {n + 1} | {n} = {n + 1} | {n} \approx {n + 1} | {n}, {n + 1}")
    wrong += forms(rf"{n} + C | x \ge {n} | {n}\text{{ or less}} | \text{{not }}{n}")
    wrong += forms(rf"x = {n + 1} = {n} | {n}\text{{ then }}\frac{{7}}{{2}} | {n}\text{{ minus }}\sqrt{{2}}")
    right = forms(rf"{n} \text{{ or }} {n}.0 | \text{{Area}} = {n}")
    return made("integers", gold, Fraction(n), equal, different, right=right, wrong=wrong)


@kind
def fractions(draw: random.Random) -> Answer:
    value = rational(draw, 60)
    p, q = value.numerator, value.denominator
    sign, k = "-" if p < 0 else "", draw.randint(2, 9)
    gold = frac(value)
    equal, different = of_rational(value)
    equal += forms(rf"\frac{{{k * p}}}{{{k * q}}} | {sign}{{{abs(p)} \over {q}}} | {p} \div {q} | x={gold}")
    equal += forms(rf"{p} \cdot {q}^{{-1}} | \left({gold}\right) | \frac{{{-p}}}{{{-q}}} | ({p})/({q})")
    if abs(p) < 10 and q < 10:
        equal.append(f"{sign}\\frac{abs(p)}{q}")
    different += forms(rf"{gold}x | {gold}\pi | \frac{{{p}}}{{{q}^2}} | \sqrt{{{frac(abs(value))}}} | {p}")
    different += forms(rf"{p}{q} | {frac(value + Fraction(1, q))} | \frac{{{p + k * q}}}{{{q}}} | {gold}i")
    wrong = forms(rf"{gold}\text{{ or }}1 | {gold} = 1 | {gold} + C")
    if decimal(value) is None:
        wrong += forms(rf"{float(value):.6f}\text{{ cm}} | x = {float(value):.6f} | \${float(value):.6f}")
    return made("fractions", gold, value, equal, different, wrong=wrong)


@kind
def mixed_numbers(draw: random.Random) -> Answer:
    q = draw.randint(2, 9)
    whole, p = draw.randint(1, 30), draw.choice([p for p in range(1, q) if math.gcd(p, q) == 1])
    value, sign = whole + Fraction(p, q), draw.choice(["", "", "-"])
    if sign:
        value = -value
    gold = f"{sign}{whole}\\frac{{{p}}}{{{q}}}"
    equal = forms(
        rf"{frac(value)} | {value.numerator}/{q} | {sign}{whole}\tfrac{{{p}}}{{{q}}}"
        f" | {sign}{whole} {p}/{q}"
    )
    if not sign:
        equal += forms(rf"{whole}+\frac{{{p}}}{{{q}}} | \frac{{{p}}}{{{q}}}+{whole}")
    if text := decimal(value):
        equal.append(text)
    different = forms(
        rf"{sign}{whole + 1}\frac{{{p}}}{{{q}}} | {sign}{whole}\frac{{{p}}}{{{q + 1}}} | {whole}"
    )
    different += forms(
        rf"\frac{{{whole}{p}}}{{{q}}} | \frac{{{p}}}{{{q}}} | {sign}\frac{{{whole * p}}}{{{q}}}"
    )
    different += [f"{whole} \\cdot \\frac{{{p}}}{{{q}}}", f"-{gold}" if not sign else gold[1:]]
    return made("mixed_numbers", gold, value, equal, [text for text in different if text not in equal])


@kind
def decimals(draw: random.Random) -> Answer:
    places = draw.randint(1, 4)
    digits = draw.randint(1, 99999) * 10 + draw.randint(1, 9)
    value = draw.choice([1, 1, -1]) * Fraction(digits, 10**places)
    gold = decimal(value) or ""
    sign, plain = ("-" if value < 0 else ""), gold.lstrip("-")
    equal = forms(rf"{gold}0 | {frac(value)} | x = {gold} | {gold} \times 10^0")
    equal += [f"{sign}{plain[1:]}"] if plain.startswith("0.") else []
    equal += forms(
        rf"{decimal(value * 100)}\% | {decimal(value / 10)}\times 10^{{1}}"
        f" | {value.numerator}/{value.denominator}"
    )
    different = forms(
        f"{other_digit(gold, draw)} | {decimal(-value)} | {decimal(value * 10)}"
        f" | {decimal(value / 10)} | {gold}{draw.randint(1, 9)}"
    )
    different += [
        gold.replace(".", ""),
        gold[:-1] + "0" if gold[-2] != "." else f"{gold[:-1]}05",
        f"{gold}x",
        f"{gold}\\pi",
    ]
    wrong = forms(rf"{gold}\text{{ or }}{gold}1 | {gold} \approx 77 | {gold}, 1 | \frac{{{gold}}}{{2}}")
    also = [value * 100]
    different = [text for text in different if text and text.lstrip("-0.")]
    return made("decimals", gold, value, equal, different, wrong=wrong, also=also)


@kind
def scientific(draw: random.Random) -> Answer:
    digits = draw.randint(101, 999)
    mantissa, exponent = Fraction(digits, 100), draw.choice([-34, -19, -11, -6, -3, 3, 5, 8, 23])
    text = decimal(mantissa)
    gold = f"{text} \\times 10^{{{exponent}}}"
    equal = forms(
        rf"{text}\cdot10^{{{exponent}}} | {text}e{exponent} | {text}E{exponent}"
        rf" | {text}\times10^{{{exponent}}}"
    )
    equal += forms(rf"{decimal(mantissa * 10)} \times 10^{{{exponent - 1}}} | {text} × 10{raised(exponent)}")
    equal += forms(rf"{digits} \times 10^{{{exponent - 2}}} | x = {gold}")
    value = mantissa * Fraction(10) ** exponent
    if abs(exponent) <= 6:
        equal.append(decimal(value) or gold)
    different = [f"{text} \\times 10^{{{exponent + 1}}}", f"{text} \\times 10^{{{-exponent}}}", text or "0"]
    different += forms(
        rf"{other_digit(text or '', draw)} \times 10^{{{exponent}}} | -{gold} | 10^{{{exponent}}}"
    )
    different += [
        f"{text}\\times 2^{{{exponent}}}",
        f"{text} + 10^{{{exponent}}}",
        f"{text}1 \\times 10^{{{exponent}}}" if "." in (text or "") else gold,
    ]
    return made("scientific", gold, value, equal, different, wrong=forms(rf"0 | {gold}\text{{ or }}1"))


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
    equal += forms(rf"{text} percent | \text{{{text}\%}}")
    different = forms(
        rf"{other_digit(text, draw)}\% | {text}^\circ | \${text} | -{gold} | {decimal(value * 10)}\%"
    )
    different += forms(
        rf"{decimal(value / 10)}\% | {text}\text{{ cm}} | {decimal(value / 10)} | {text}\text{{ kg}}"
    )
    return made("percents", gold, ("%", value), equal, different, also=[value, value / 100])


@kind
def currencies(draw: random.Random) -> Answer:
    value = draw.choice([Fraction(draw.randint(2, 9999)), Fraction(draw.randint(101, 99999), 100)])
    text = f"{value}" if value.denominator == 1 else f"{float(value):.2f}"
    grouped = f"{value.numerator:,}" if value.denominator == 1 else f"{float(value):,.2f}"
    sign, word, others = draw.choice(
        [
            ("\\$", "dollars", forms("€ | £ | ¥")),
            ("€", "euros", forms(r"\$ | £ | ¥")),
            ("£", "pounds", forms(r"\$ | € | ¥")),
        ]
    )
    gold = f"{sign}{text}"
    equal = forms(
        rf"{sign}{grouped} | {text}\text{{ {word}}} | {grouped}\text{{ {word}}} | {sign} {text}"
        f" | {text} | {grouped}"
    )
    if value.denominator == 1:
        equal.append(f"{sign}{text}.00")
    words = [other for other in ("dollars", "euros", "rupees", "yen") if other != word]
    different = forms(
        f"{sign}{other_digit(text, draw)} | {draw.choice(others)}{text}"
        rf" | {text}\text{{ {draw.choice(words)}}}"
    )
    different += forms(
        rf"{gold}\text{{ million}} | {text}\text{{ cents}} | {text}^\circ | {text}\%"
        rf" | {text}\text{{ cm}}"
    )
    different += forms(rf"{gold}\text{{ thousand}} | -{gold}")
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
    different = forms(
        rf"{a}+\sqrt{{{b}}} | \sqrt{{{a * b}}} | -{gold} | {a + 1}\sqrt{{{b}}} | {a}\sqrt[3]{{{b}}}"
    )
    different += forms(
        rf"{a * b**0.5:.6f} | {a}\sqrt{{{b + 1}}} | {a * b} | \sqrt[{a}]{{{b}}}"
        rf" | {b}\sqrt{{{a}}}"
    )
    if a == b:
        different.remove(f"{b}\\sqrt{{{a}}}")
    return made("surds", gold, ("root", a, b), equal, different)


@kind
def sums_of_surds(draw: random.Random) -> Answer:
    a, b, c = draw.randint(1, 9), draw.choice([2, 3, 5, 7, 11]), draw.choice([2, 3, 5, 7])
    sign = draw.choice("+-")
    gold = f"\\frac{{{a}{sign}\\sqrt{{{b}}}}}{{{c}}}"
    equal = forms(
        rf"\frac{{{a}}}{{{c}}}{sign}\frac{{\sqrt{{{b}}}}}{{{c}}}"
        rf" | \frac{{1}}{{{c}}}({a}{sign}\sqrt{{{b}}})"
    )
    equal += forms(rf"({a}{sign}\sqrt{{{b}}})/{c} | \frac{{{2 * a}{sign}2\sqrt{{{b}}}}}{{{2 * c}}}")
    equal += [
        f"\\frac{{\\sqrt{{{b}}}+{a}}}{{{c}}}" if sign == "+" else f"\\frac{{-\\sqrt{{{b}}}+{a}}}{{{c}}}"
    ]
    other = "-" if sign == "+" else "+"
    size = (a + (b**0.5 if sign == "+" else -(b**0.5))) / c
    different = forms(
        rf"\frac{{{a}{other}\sqrt{{{b}}}}}{{{c}}} | \frac{{{a + 1}{sign}\sqrt{{{b}}}}}{{{c}}}"
        f" | {size:.6f}"
    )
    different += forms(
        rf"{a}{sign}\frac{{\sqrt{{{b}}}}}{{{c}}} | \frac{{{a}}}{{{c}}}{sign}\sqrt{{{b}}}"
        rf" | \frac{{{a}{sign}\sqrt{{{b + 1}}}}}{{{c}}}"
    )
    return made("sums_of_surds", gold, (sign, a, b, c), equal, different)


@kind
def powers(draw: random.Random) -> Answer:
    a, n = draw.choice([2, 3, 5, 7]), draw.randint(8, 120)
    gold = f"\\frac{{1}}{{{a}^{{{n}}}}}" if draw.random() < 0.5 else f"{a}^{{{n}}}"
    if gold.startswith("\\frac"):
        equal = forms(
            rf"{a}^{{-{n}}} | \left(\frac{{1}}{{{a}}}\right)^{{{n}}} | \frac{{{a}}}{{{a}^{{{n + 1}}}}}"
            f" | 1/{a}^{{{n}}}"
        )
        different = [
            f"\\frac{{1}}{{{a}^{{{n + 1}}}}}",
            f"{a}^{{{n}}}",
            "0",
            f"-{gold}",
            f"\\frac{{2}}{{{a}^{{{n}}}}}" if a != 2 else "1",
        ]
        different += forms(rf"\frac{{1}}{{{a + 1}^{{{n}}}}} | \frac{{1}}{{{a}^{{{n}}}+1}}")
        value = Fraction(1, a**n)
    else:
        equal = forms(
            rf"{a}\cdot {a}^{{{n - 1}}} | {a}^{{{n}}} | \left({a}\right)^{{{n}}}"
            rf" | {a}^{{{n - 2}}} \times {a}^2"
        )
        equal += [f"\\frac{{1}}{{{a}^{{-{n}}}}}"]
        different = forms(
            f"{a}^{{{n + 1}}} | {a}^{{-{n}}} | {a}^{{{n}}}+1 | {a * n} | {a}{n} | {a + 1}^{{{n}}} | -{gold}"
        )
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
                forms(rf"1-{a}^{{-{n}}} | \frac{{{a}^{{{n}}}-1}}{{{a}^{{{n}}}}}"),
                forms(rf"1+{tail} | 1 | 1-\frac{{1}}{{{a}^{{{n + 1}}}}}"),
            ),
            (
                f"\\frac12\\left(1+{tail}\\right)",
                [f"\\frac{{{a}^{{{n}}}+1}}{{2\\cdot {a}^{{{n}}}}}"],
                forms(rf"\frac12\left(1-{tail}\right) | \frac12"),
            ),
            (f"\\pi+{tail}", [f"{tail}+\\pi"], forms(rf"\pi | \pi-{tail}")),
            (
                f"2-\\frac{{1}}{{{n}!}}",
                [f"-\\frac{{1}}{{{n}!}}+2"],
                forms(rf"2 | 2+\frac{{1}}{{{n}!}} | 2-\frac{{1}}{{{n + 1}!}}"),
            ),
            (
                f"\\sqrt{{2}}\\times 10^{{-{n}}}",
                [f"\\frac{{\\sqrt{{2}}}}{{10^{{{n}}}}}"],
                forms(rf"0 | \sqrt{{3}}\times 10^{{-{n}}} | \sqrt{{2}}\times 10^{{-{n + 1}}}"),
            ),
        ]
    )
    return made("near_one", gold, gold, equal, different)


@kind
def factorials(draw: random.Random) -> Answer:
    n = draw.randint(4, 14)
    gold = f"{n}!"
    equal = forms(rf"{n} \cdot {n - 1}! | {n} \times ({n - 1})! | {n}\cdot({n - 1})!")
    different = forms(
        rf"{n + 1}! | {n - 1}! | {n} | {n}!+1 | -{n}! | {n}^2 | \frac{{1}}{{{n}!}}"
        f" | {math.factorial(n) + 1}"
    )
    right = forms(f"{math.factorial(n)} | {math.factorial(n):,}")
    return made("factorials", gold, Fraction(math.factorial(n)), equal, different, right=right)


@kind
def binomials(draw: random.Random) -> Answer:
    n = draw.randint(6, 30)
    k = draw.randint(2, (n - 1) // 2)
    gold = f"\\binom{{{n}}}{{{k}}}"
    equal = forms(
        rf"\binom{{{n}}}{{{n - k}}} | \dbinom{{{n}}}{{{k}}} | {{{n} \choose {k}}}"
        rf" | \frac{{{n}!}}{{{k}!\,{n - k}!}}"
    )
    equal.append(f"\\frac{{{n}!}}{{{k}! \\cdot ({n}-{k})!}}")
    different = forms(
        rf"\binom{{{n}}}{{{k - 1}}} | \binom{{{n + 1}}}{{{k}}} | \frac{{{n}}}{{{k}}} | {n}{k}"
        rf" | \frac{{{n}!}}{{{k}!}}"
    )
    different += forms(f"{math.comb(n, k) + 1} | ({n},{k})")
    return made("binomials", gold, Fraction(math.comb(n, k)), equal, different, right=[str(math.comb(n, k))])


@kind
def logarithms(draw: random.Random) -> Answer:
    a, b = draw.sample([2, 3, 5, 6, 7], 2)
    k = draw.randint(2, 4)
    gold, equal, different = draw.choice(
        [
            (
                f"\\log_{a} {b}",
                forms(
                    rf"\log_{{{a}}}{{{b}}} | \frac{{\ln {b}}}{{\ln {a}}} | \log_{{{a}}}({b})"
                    rf" | \frac{{1}}{{\log_{b} {a}}}"
                ),
                forms(
                    rf"\log_{b} {a} | \log_{a} {b + 1} | \ln {b} | \log_{{{a + 1}}} {b}"
                    rf" | {math.log(b, a):.6f}"
                    rf" | -\log_{a} {b}"
                ),
            ),
            (
                f"\\ln {b**k}",
                forms(rf"{k}\ln {b} | {k} \ln({b}) | \log_e {b**k} | \ln({b}^{k})"),
                forms(
                    rf"\ln {b} | \ln {b**k + 1} | {k + 1}\ln {b} | \log_{{10}} {b**k} | {math.log(b**k):.6f}"
                    rf" | \ln^{k} {b}"
                ),
            ),
            (
                f"\\ln\\frac{{{a}}}{{{b}}}",
                forms(rf"\ln {a}-\ln {b} | -\ln\frac{{{b}}}{{{a}}} | \ln\left(\frac{{{a}}}{{{b}}}\right)"),
                forms(rf"\ln\frac{{{b}}}{{{a}}} | \frac{{\ln {a}}}{{\ln {b}}} | \ln {a * b} | \ln {a}"),
            ),
            (
                f"{k}+\\ln {b}",
                forms(rf"\ln {b}+{k} | {k}+\ln({b}) | \ln({b}e^{k})"),
                forms(rf"{k}\ln {b} | {k}-\ln {b} | {k + 1}+\ln {b}"),
            ),
        ]
    )
    return made("logarithms", gold, gold, equal, different)


_SPECIAL = table(r"""
\tan 15^\circ == 2-\sqrt{3} | \tan\frac{\pi}{12} != 2+\sqrt{3} | \tan 15 | \tan 75^\circ
\sin 15^\circ == \frac{\sqrt{6}-\sqrt{2}}{4} | \cos 75^\circ != \frac{\sqrt{6}+\sqrt{2}}{4} | \cos 15^\circ
\cos 36^\circ == \frac{1+\sqrt{5}}{4} | \sin 54^\circ != \frac{1-\sqrt{5}}{4} | \sin 36^\circ
\sin\frac{\pi}{7} == \sin\frac{6\pi}{7} | \sin\left(\frac{\pi}{7}\right) != \cos\frac{\pi}{7} |
    \sin\frac{2\pi}{7}
\arctan 2 == \tan^{-1} 2 | \arctan(2) != \arctan \frac12 | \tan 2 | \frac{1}{\tan 2} | \arctan 3
\arcsin\frac13 == \sin^{-1}\frac{1}{3} | \arcsin\left(\frac13\right) != \arccos\frac13 | \arcsin\frac23
\frac{\sqrt{3}}{2} == \sin 60^\circ | \cos\frac{\pi}{6} | \frac{3}{2\sqrt{3}} != \frac{\sqrt{2}}{2} |
    \frac{3}{2} | -\frac{\sqrt{3}}{2}
\sqrt{2+\sqrt{3}} == \frac{\sqrt{6}+\sqrt{2}}{2} != \sqrt{2-\sqrt{3}} | \sqrt{2}+\sqrt{3} |
    \sqrt{3+\sqrt{2}}
e^{-2} == \frac{1}{e^2} | \exp(-2) != e^2 | -e^2 | e^{-3} | 0.135335
\frac{\pi^2}{6} == \frac{1}{6}\pi^2 | \pi^2/6 != \frac{\pi}{6} | \frac{\pi^2}{8} | 1.644934 |
    \frac{6}{\pi^2}
""")


@kind
def trigonometry(draw: random.Random) -> Answer:
    if draw.random() < 0.5:
        gold, equal, different = draw.choice(_SPECIAL)
        return made("trigonometry", gold, gold, equal, different)
    n = draw.choice([20, 25, 35, 40, 50, 65, 70, 80])
    gold = f"\\sin {n}^\\circ"
    equal = forms(rf"\cos {90 - n}^\circ | \sin {180 - n}^\circ | \sin({n}^\circ) | \sin{{{n}^{{\circ}}}}")
    different = forms(rf"\cos {n}^\circ | \sin {n + 1}^\circ | \sin {n} | -\sin {n}^\circ | \tan {n}^\circ")
    different.append(f"\\sin^2 {n}^\\circ")
    return made("trigonometry", gold, gold, equal, different)


@kind
def complex_numbers(draw: random.Random) -> Answer:
    a, b = draw.sample([n for n in range(-12, 13) if abs(n) > 1], 2)
    gold = f"{a}{b:+d}i"
    equal = forms(
        f"{b}i{a:+d} | {a} {'+' if b > 0 else '-'} {abs(b)}i"
        rf" | {a}{'+' if b > 0 else '-'}i\cdot {abs(b)} | z = {gold}"
    )
    equal += forms(rf"{a}{b:+d}\cdot i | {a}+({b})i | \left({a}{b:+d}i\right)")
    different = forms(
        f"{a}{-b:+d}i | {-a}{b:+d}i | {b}{a:+d}i | {a} | {b}i | {a}{b:+d} | {a}{b + 1:+d}i | ({a},{b})"
    )
    return made("complex_numbers", gold, ("i", a, b), equal, different)


_POLAR = (
    (r"\frac{\pi}{3}", r"\frac12", r"\frac{\sqrt3}{2}", (1, 3)),
    (r"\frac{\pi}{4}", r"\frac{\sqrt2}{2}", r"\frac{\sqrt2}{2}", (1, 4)),
    (r"\frac{\pi}{6}", r"\frac{\sqrt3}{2}", r"\frac12", (1, 6)),
    (r"\frac{2\pi}{3}", r"-\frac12", r"\frac{\sqrt3}{2}", (2, 3)),
)
"""Angles with their cosine and sine."""


@kind
def polar(draw: random.Random) -> Answer:
    r = draw.randint(2, 9)
    angle, cosine, sine, turns = draw.choice(_POLAR)
    other = draw.choice([item[0] for item in _POLAR if item[0] != angle])
    gold = f"{r}e^{{{angle}i}}"
    equal = forms(
        rf"{r}e^{{i{angle}}} | {r}\left(\cos {angle}+i\sin {angle}\right)"
        rf" | {r}\left({cosine}+{sine}i\right)"
    )
    equal += forms(
        f"{r}e^{{{angle.replace('frac{', 'frac{i')}}}"
        rf" | {r}\left(\cos\left({angle}\right)+i\sin\left({angle}\right)\right)"
    )
    different = forms(
        f"{r}e^{{-{angle}i}} | {r + 1}e^{{{angle}i}} | {r}e^{{{other}i}} | {r}e^{{{angle}}} | -{gold} | {r}"
    )
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
    equal = forms(
        rf"{frac(value)} | 0.{lead}\overline{{{digits * 2}}} | {value.numerator}/{value.denominator}"
    )
    shown = f"0.{lead}{digits}"
    different = forms(
        rf"0.{lead}\overline{{{other_digit(digits, draw)}}} | -{gold} | 1.{lead}\overline{{{digits}}}"
    )
    if digits != digits[::-1]:
        different.append(f"0.{lead}\\overline{{{digits[::-1]}}}")
    wrong = [shown, f"0.{lead}{(digits * 9)[:9]}"]
    return made("repeating_decimals", gold, value, equal, different, wrong=wrong)


@kind
def base_numerals(draw: random.Random) -> Answer:
    base, word = draw.choice([(2, "two"), (3, "three"), (5, "five"), (8, "eight")])
    digits = [draw.randrange(1, base), *(draw.randrange(base) for _ in range(draw.randint(2, 5)))]
    text = "".join(map(str, digits))
    gold = f"{text}_{base}"
    equal = forms(
        rf"({text})_{base} | {text}_{{{base}}} | {text}_{{\text{{{word}}}}} | ({text})_{{{base}}}"
        f" | {text}{lowered(base)}"
    )
    different = [
        f"{text}_{base + 1}",
        f"{text}0_{base}",
        f"1{text}_{base}",
        f"{text}{base}",
        f"{text[1:]}1_{base}" if text[1:] + "1" != text else f"{text}1_{base}",
    ]
    different = [form for form in different if form.lstrip("0")[0] != "_" and form not in (f"0{gold}",)]
    return made(
        "base_numerals",
        gold,
        ("base", base, text),
        equal,
        different,
        wrong=[f"{text}1"],
        also=[Fraction(text), Fraction(int(text, base))],
    )


# ------------------------------------------------------------------------------------- several numbers
@kind
def plus_or_minus(draw: random.Random) -> Answer:
    item = part(draw)
    while item.size <= 0:
        item = part(draw)
    tex = item.tex
    if draw.random() < 0.5:
        gold = f"\\pm {tex}"
        equal = forms(
            rf"{tex}, -{tex} | -{tex},{tex} | ±{tex}"
            rf" | \pm{draw.choice(item.equal)}"
        )
        equal += forms(rf"{tex} \text{{ and }} -{tex} | \{{{tex}, -{tex}\}}")
        different = forms(rf"{tex} | -{tex} | \pm {draw.choice(item.different)} | {tex}, {tex}")
        different = [form for form in different if not form.startswith("\\pm -")]
        right = [f"{tex} \\text{{ or }} -{tex}"]
        return made("plus_or_minus", gold, ("pm", item.value), equal, different, right=right)
    a, b = draw.randint(1, 9), draw.choice([2, 3, 5, 7])
    gold = f"{a}\\pm\\sqrt{{{b}}}"
    equal = forms(
        rf"{a}+\sqrt{{{b}}}, {a}-\sqrt{{{b}}} | {a} ± \sqrt{{{b}}}"
        rf" | \{{{a}-\sqrt{{{b}}}, {a}+\sqrt{{{b}}}\}}"
    )
    equal.append(f"x = {gold}")
    right = [rf"{a}-\sqrt{{{b}}} \text{{ or }} {a}+\sqrt{{{b}}}"]
    different = forms(
        rf"{a}+\sqrt{{{b}}} | {a}-\sqrt{{{b}}} | {a + 1}\pm\sqrt{{{b}}} | {a}\pm\sqrt{{{b + 1}}}"
        rf" | \pm{a}\sqrt{{{b}}}"
    )
    different.append(f"\\pm {a}+\\sqrt{{{b}}}")
    return made("plus_or_minus", gold, ("pm", a, b), equal, different, right=right)


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
    equal += ["; ".join(tex), " \\text{ and } ".join(tex)] if len(tex) == 2 else []
    different += [", ".join(tex[1:]), tex[0], f"{gold}, 77", f"{gold}, -77"]
    right = [" \\text{ or } ".join(tex)]
    return made(
        "lists", gold, ("set", frozenset(item.value for item in found)), equal, different, right=right
    )


@kind
def sets(draw: random.Random) -> Answer:
    found = _short(draw, draw.randint(2, 4))
    tex = [item.tex for item in found]

    def write(texts: list[str]) -> str:
        return f"\\{{{', '.join(texts)}\\}}"

    gold = write(tex)
    equal, different = varied(found, draw, write)
    equal += forms(
        rf"{write(draw.sample(tex, len(tex)))} | \left\{{{','.join(tex)}\right\}}"
        rf" | \{{ {' , '.join(tex)} \}} | \lbrace {', '.join(tex)} \rbrace"
    )
    different += [write(tex[1:]), write([*tex, "77"]), write(["77", *tex[1:]])]
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
    different += [write(tex[::-1]), write(tex[1:]) if len(tex) > 2 else tex[0], write([*tex, "7"])]
    different += [write([tex[1], tex[0], *tex[2:]])]
    if len(tex) == 2:
        different += forms(f"[{tex[0]}, {tex[1]}] | [{tex[0]}, {tex[1]}) | ({tex[0]}, {tex[1]}]")
    value = ("(", *(item.value for item in found))
    return made("tuples", gold, value, equal, different, wrong=[f"\\{{{', '.join(tex)}\\}}"])


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
    different = forms(f"{tex[0]} | {tex[0]}, (77, 1) | {gold}, (77, 1)")
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
    equal = forms(
        rf"{first}={a.tex} \text{{ and }} {second}={b.tex} | {second} = {b.tex}, {first} = {a.tex}"
        rf" | {first}={a.tex},\ {second}={b.tex}"
    )
    equal += [f"{first} = {draw.choice(a.equal)}, {second} = {b.tex}"]
    different = forms(
        f"{first} = {b.tex}, {second} = {a.tex}"
        f" | {first} = {a.tex}, {second} = {draw.choice(b.different)} | {first} = {a.tex}"
    )
    different += forms(
        f"{first} = {draw.choice(a.different)}, {second} = {b.tex} | {second} = {a.tex}, {first} = {b.tex}"
    )
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
    k = draw.randint(2, 5)
    if len(terms) == 2:  # two digits behind one colon are a time of day
        terms, k = draw.choice(
            [([2, 3], 3), ([3, 4], 2), ([5, 3], 2), ([7, 2], 4), ([11, 3], 3), ([9, 2], 4), ([13, 4], 2)]
        )
    gold = ":".join(map(str, terms))
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
    equal += forms(
        rf"\left[\begin{{array}}{{{'r' * width}}}{body}\end{{array}}\right]"
        rf" | \left(\begin{{matrix}}{body}\end{{matrix}}\right)"
    )
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
    equal = forms(
        rf"({a},{b},{c}) | \langle {a},{b},{c}\rangle"
        rf" | {a}\mathbf{{i}}{b:+d}\mathbf{{j}}{c:+d}\mathbf{{k}} | {b}{j}{a:+d}{i}{c:+d}{k}"
    )
    equal += [f"{a}\\hat i{b:+d}\\hat j{c:+d}\\hat k"]
    different = forms(
        rf"{with_units(a, b, -c)} | {with_units(b, a, c)} | ({a},{c},{b}) | \langle {b},{a},{c}\rangle"
        f" | {with_units(a + 1, b, c)} | {a}{i}{b:+d}{j}"
    )
    return made("vectors", gold, ("(", Fraction(a), Fraction(b), Fraction(c)), equal, different)


@kind
def chains(draw: random.Random) -> Answer:
    name, n = draw.choice("xynkmt"), draw.randint(3, 60)
    gold = f"{name} = {n}"
    a = draw.randint(1, n - 1)
    equal = forms(f"{n} | {name}={n} | {name} = {n}.0")
    right = forms(rf"{name} = {a}+{n - a} = {n} | {name} = \frac{{{2 * n}}}{{2}} = {n}")
    other = draw.choice([letter for letter in "xynkmt" if letter != name])
    different = forms(
        rf"{name} = {n + 1} | {name} = -{n} | {name} > {n} | {name} \ne {n} | {name} \le {n}"
        f" | {name}^2 = {n}"
    )
    wrong = forms(
        f"{name} = {n + 2} = {n} | {name} = {n} = {n + 2} | {name} = {n}, {other} = 7"
        rf" | {n} \approx {n + 2} | {n} \equiv {n + 2}"
    )
    wrong += forms(rf"{name} = {n} \text{{ or }} {name} = {n + 1} | {name} = {a} + {n - a + 1} = {n}")
    return made("chains", gold, ("is", n), equal, different, right=right, wrong=wrong, also=[Fraction(n)])


_PENDING = table(r"""
1 == 1 != \lim_{x\to 0}\frac{\sin x}{x} | \sin^2 x+\cos^2 x | \frac{T}{t} | \cosh^2 x-\sinh^2 x | x^0 |
    \int_0^1 1\,dx
e == e != \lim_{n\to\infty}\left(1+\frac1n\right)^n | \sum_{n=0}^{\infty}\frac{1}{n!}
120 == 120 != \prod_{k=1}^{5} k | \int_0^{120} 1\,dx | \operatorname{lcm}(40,60) | \max(7,120)
36 == 36 != \operatorname{lcm}(12,18) | \sum_{k=1}^{8} k | \text{lcm}(12,18) | \lfloor 36.5\rfloor
6 == 6 != \gcd(12,18) | \min(6,7) | \gcd(18, 24) | \left|\{1,2,3,4,5,6\}\right| | 13 \bmod 7
3 == 3 != \lfloor\pi\rfloor | \lceil 2.5\rceil | \sum_{k=1}^{2}k | \max\{1,2,3\} | \lim_{x\to3}x
-2 == -2 != \begin{vmatrix}1&2\\3&4\end{vmatrix} | \det\begin{pmatrix}1&2\\3&4\end{pmatrix} | \min(-2,5)
2x == 2x != \frac{d}{dx}x^2 | \frac{\partial}{\partial x}x^2 | (x^2)' | \lim_{h\to0}\frac{(x+h)^2-x^2}{h}
\frac{1}{3} == \frac{1}{3} != \int_0^1 x^2\,dx | \lim_{n\to\infty}\frac{n}{3n+1} |
    \sum_{n=1}^{\infty}\frac{1}{4^n}
\begin{pmatrix}19&22\\43&50\end{pmatrix} == \begin{pmatrix}19&22\\43&50\end{pmatrix}  !=
    \begin{pmatrix}1&2\\3&4\end{pmatrix}\begin{pmatrix}5&6\\7&8\end{pmatrix}
""")
"""What a question may ask for, and what is not worked out yet."""


@kind
def pending(draw: random.Random) -> Answer:
    """Answers that still hold what the question asked to work out, and golds that may hold it."""
    if draw.random() < 0.6:
        gold, _, wrong = draw.choice(_PENDING)
        return made(
            "pending",
            gold,
            gold,
            wrong=wrong,
            also=[Fraction(gold)] if gold.lstrip("-").isdigit() else [Fraction(1, 3)],
        )
    n = draw.randint(2, 9)
    gold = f"\\sum_{{k=1}}^{{n}} \\frac{{{n}}}{{k}}"
    equal = forms(rf"\sum_{{k=1}}^n\frac{{{n}}}{{k}} | \sum_{{k=1}}^{{n}} {n}/k")
    different = forms(
        rf"\sum_{{k=1}}^{{n}} \frac{{{n + 1}}}{{k}} | \sum_{{k=0}}^{{n}} \frac{{{n}}}{{k+2}}"
        rf" | \prod_{{k=1}}^{{n}} \frac{{{n}}}{{k}} | \frac{{{n}}}{{k}}"
    )
    return made("pending", gold, gold, equal, different)
