"""Kinds of answers that are one number as it is usually written."""

from __future__ import annotations

import math
import random
from fractions import Fraction

from tests.reward.graders.math.answers import (
    Answer,
    decimal,
    forms,
    frac,
    kind,
    made,
    of_rational,
    other_digit,
    raised,
    rational,
)


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
