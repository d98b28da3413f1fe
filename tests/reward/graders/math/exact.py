"""Kinds of answers that are one number, in writings that are not digits alone."""

from __future__ import annotations

import math
import random
from fractions import Fraction

from tests.reward.graders.math.answers import (
    Answer,
    forms,
    frac,
    kind,
    lowered,
    made,
    other_digit,
    table,
)


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
