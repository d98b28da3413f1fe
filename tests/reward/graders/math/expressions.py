"""Kinds of answers that are expressions with variables."""

from __future__ import annotations

import random
from collections.abc import Hashable

from tests.reward.graders.math.answers import Answer, forms, kind, made, table

LETTERS = "xyzabcpqrsnmktuvwXYRPQTVM"
"""Letters of variables, without those that are constants, units of time or hard to tell apart."""

Terms = dict[tuple[tuple[str, int], ...], int]
"""A polynomial: the factors of each term, with their exponents, and the coefficient."""


def term(factors: tuple[tuple[str, int], ...], coefficient: int, draw: random.Random | None = None) -> str:
    """Returns one term; the letters in a random order with `draw`."""
    order = list(factors)
    if draw:
        draw.shuffle(order)
    dot = draw.choice(["", "", " ", "\\cdot "]) if draw else ""
    letters = dot.join(
        letter if power == 1 else f"{letter}^{power}" if power < 10 else f"{letter}^{{{power}}}"
        for letter, power in order
    )
    if not letters:
        return f"{coefficient:+d}"
    return f"{'+' if coefficient > 0 else '-'}{'' if abs(coefficient) == 1 else abs(coefficient)}{letters}"


def written(terms: Terms, draw: random.Random | None = None) -> str:
    """Returns a polynomial in its own order, or in a random one."""
    order = list(terms.items())
    if draw:
        draw.shuffle(order)
    text = "".join(term(factors, coefficient, draw) for factors, coefficient in order)
    return text.removeprefix("+")


def value_of(terms: Terms) -> Hashable:
    """Returns a polynomial's value, whatever the order of its terms and letters."""
    return (
        "polynomial",
        frozenset((frozenset(factors), coefficient) for factors, coefficient in terms.items()),
    )


def other_case(text: str, letter: str) -> str:
    """Returns the text with one variable's letter in the other case."""
    pieces = text.split("\\")
    swapped = [pieces[0].replace(letter, letter.swapcase())]
    for piece in pieces[1:]:
        end = next((i for i, sign in enumerate(piece) if not sign.isalpha()), len(piece))
        swapped.append(piece[:end] + piece[end:].replace(letter, letter.swapcase()))
    return "\\".join(swapped)


def coefficient(draw: random.Random) -> int:
    """Returns a small number that is not zero."""
    return draw.choice([1, 1, 2, 3, 4, 5, 7, 12]) * draw.choice([1, 1, -1])


_LIKE_UNITS = ("ab", "bc", "xy", "mt", "ac", "mn", "ty", "rt", "ay")
"""Products of letters that some readers take for units, abbreviations and words."""


@kind
def last_letters(draw: random.Random) -> Answer:
    """One letter behind a number, which may look like a unit."""
    number, letter = draw.randint(2, 90), draw.choice("thsmdgxkyrn")
    other = draw.choice([name for name in "thsmdgxkyrn" if name != letter])
    between = draw.choice(["", "\\pi "])
    gold = f"{number}{between}{letter}"
    equal = [f"{number}{between}\\cdot {letter}", f"{number} {between}{letter}"]
    different = [
        f"{number}{between}{other}",
        f"{number + 1}{between}{letter}",
        f"{gold}^2",
        f"-{gold}",
    ]
    if letter + other not in ("th", "st", "nd", "rd"):
        different.append(f"{number}{between}{letter}{other}")
    return made("last_letters", gold, ("last", number, between, letter), equal, different, also=["any unit"])


@kind
def products(draw: random.Random) -> Answer:
    """One term, of two or more letters."""
    pair = draw.choice(_LIKE_UNITS) if draw.random() < 0.5 else ""
    letters = list(pair) or draw.sample(LETTERS, draw.randint(2, 4))
    factors = tuple((letter, 1 if pair else draw.choice([1, 1, 1, 2, 3])) for letter in letters)
    number = draw.randint(2, 30)
    gold = written({factors: number})
    equal = [written({factors: number}, draw) for _ in range(4)] + [f"{number}\\cdot {written({factors: 1})}"]
    if number % 2 == 0:
        equal.append(f"\\frac{{{number * 2}{written({factors: 1})}}}{{2}}")
    letter = draw.choice(letters)
    free = draw.choice([new for new in LETTERS if new not in letters])
    renamed = tuple((free if name == letter else name, power) for name, power in factors)
    raised = tuple((name, power + (name == letter)) for name, power in factors)
    different = [
        written({factors: number + 1}),
        written({renamed: number}),
        written({raised: number}),
        written({factors: -number}),
    ]
    different += [
        other_case(gold, letter),
        f"{gold}+1",
        f"{gold}{free}",
        str(number) if len(letters) > 2 else f"{gold}^2{free}",
    ]
    different += [written({factors[1:]: number})] if len(letters) > 2 else []
    if letter.swapcase() in letters:
        different.remove(other_case(gold, letter))
    if pair:
        different += [f"{number}{other}" for other in _LIKE_UNITS if set(other) != set(pair)]
        different += [f"{gold}+{free}^2", f"\\pi {pair}"]
        different += [str(number)] if pair in ("ab", "bc", "xy", "mn") else []
    return made("products", gold, value_of({factors: number}), equal, different)


@kind
def polynomials(draw: random.Random) -> Answer:
    letters = draw.sample(LETTERS, draw.choice([1, 1, 2, 3]))
    terms: Terms = {}
    while len(terms) < draw.randint(2, 4):
        chosen = sorted(draw.sample(letters, draw.randint(1, len(letters))))
        terms[tuple((letter, draw.choice([1, 2, 3])) for letter in chosen)] = coefficient(draw)
    if draw.random() < 0.6:
        terms[()] = coefficient(draw)
    gold = written(terms)
    equal = [written(terms, draw) for _ in range(4)]
    letter = draw.choice([name for factors in terms for name, _ in factors])
    key = draw.choice(list(terms))
    different = [
        written({**terms, key: terms[key] + 1}) if terms[key] != -1 else f"{gold}+{letter}^9",
        written({**terms, key: -terms[key]}),
    ]
    different += forms(
        f"-({gold}) | {gold}+77 | 2({gold}) | {written({k: v for k, v in terms.items() if k != key})}"
    )
    if letter.swapcase() not in letters:
        different.append(other_case(gold, letter))
        different.append(gold.replace(letter, "h"))
    bumped = {tuple((n, p + (n == letter)) for n, p in factors): c for factors, c in terms.items()}
    if value_of(bumped) != value_of(terms):
        different.append(written(bumped))
    wrong = forms(rf"{gold}+C | {gold} = 0 | {gold}\text{{ or }}1")
    return made("polynomials", gold, value_of(terms), equal, different, wrong=wrong)


@kind
def factored(draw: random.Random) -> Answer:
    """Products of sums, against what they expand to."""
    x = draw.choice(LETTERS)
    a, b = draw.sample([n for n in range(-9, 10) if n], 2)
    gold = f"({x}{a:+d})({x}{b:+d})"

    def expanded(first: int, second: int) -> str:
        middle = {0: "", 1: f"+{x}", -1: f"-{x}"}.get(first + second, f"{first + second:+d}{x}")
        return f"{x}^2{middle}{first * second:+d}"

    equal = forms(
        rf"({x}{b:+d})({x}{a:+d}) | {expanded(a, b)} | ({x}{a:+d}) \cdot ({x}{b:+d})"
        rf" | \left({x}{a:+d}\right)\left({x}{b:+d}\right)"
    )
    equal += [f"{x}({x}{a:+d}){b:+d}({x}{a:+d})"]
    different = [
        f"({x}{a + 1:+d})({x}{b:+d})" if a != -1 else f"({x}+10)({x}{b:+d})",
        expanded(a, b + 10),
        f"-{gold}",
        f"{gold}^2",
    ]
    different += forms(f"({x}{a:+d}) | {gold.replace(x, x.swapcase())}")
    different += [f"({x}{-a:+d})({x}{-b:+d})"] if a != -b else []
    return made("factored", gold, ("factored", x, frozenset([a, b])), equal, different)


@kind
def rational_functions(draw: random.Random) -> Answer:
    x = draw.choice(LETTERS)
    a, b = draw.sample([n for n in range(-9, 10) if n], 2)
    gold = f"\\frac{{{x}{a:+d}}}{{{x}{b:+d}}}"
    equal = forms(
        rf"1+\frac{{{a - b}}}{{{x}{b:+d}}} | ({x}{a:+d})/({x}{b:+d})"
        rf" | \frac{{2{x}{2 * a:+d}}}{{2{x}{2 * b:+d}}}"
    )
    equal += forms(
        rf"({x}{a:+d})({x}{b:+d})^{{-1}} | \frac{{-{x}{-a:+d}}}{{-{x}{-b:+d}}}"
        rf" | \frac{{{a}+{x}}}{{{b}+{x}}}"
    )
    different = forms(
        rf"\frac{{{x}{b:+d}}}{{{x}{a:+d}}} | -{gold} | \frac{{{x}{a:+d}}}{{{x.swapcase()}{b:+d}}}"
        f" | {x}{a:+d}"
    )
    different += forms(
        rf"\frac{{{x}^2{a:+d}}}{{{x}{b:+d}}} | \frac{{{x}{-a:+d}}}{{{x}{b:+d}}} | \frac{{{a}}}{{{b}}}"
        r" | \frac12"
    )
    different += [f"{x}{a:+d}/{x}{b:+d}"]
    return made("rational_functions", gold, ("rational", x, a, b), equal, different)


@kind
def fractions_of_letters(draw: random.Random) -> Answer:
    p, q, r, s = draw.sample("abmnpqrstuvxyGMRV", 4)  # no c: 3cm is a length
    n = draw.randint(2, 9)
    gold = f"\\frac{{{n}{p}{q}}}{{{r}^2}}"
    equal = forms(
        rf"\frac{{{n}{q}{p}}}{{{r}^2}} | {n}{p}{q}{r}^{{-2}} | \frac{{{n}}}{{{r}^2}}{p}{q}"
        rf" | \frac{{{p}}}{{{r}}}\cdot\frac{{{n}{q}}}{{{r}}}"
    )
    equal += forms(rf"{n}{p}{q}/{r}^2 | \frac{{{2 * n}{p}{q}}}{{2{r}^2}}")
    different = forms(
        rf"\frac{{{n}{p}{q}}}{{{r}}} | \frac{{{n}{p}{s}}}{{{r}^2}} | \frac{{{n}{p}}}{{{r}^2}}"
        rf" | \frac{{{r}^2}}{{{n}{p}{q}}}"
    )
    different += [
        f"\\frac{{{n + 1}{p}{q}}}{{{r}^2}}",
        f"{n}{p}{q}",
        other_case(gold, r) if r.swapcase() not in p + q else f"{gold}+1",
    ]
    different.append(other_case(gold, p) if p.swapcase() not in q + r else f"-{gold}")
    return made("fractions_of_letters", gold, gold, equal, different)


@kind
def letter_case(draw: random.Random) -> Answer:
    """Letters that differ only in their case, which cancel where it is dropped."""
    low = draw.choice("mnprtvxykqs")
    up = low.upper()
    n = draw.randint(2, 9)
    gold, equal, different = draw.choice(
        [
            (
                f"{n}{up}-{low}",
                forms(rf"-{low}+{n}{up} | {n}\cdot {up}-{low}"),
                forms(f"{n}{low}-{up} | {n - 1}{low} | {n - 1}{up} | {n}{up}-{up}"),
            ),
            (
                f"\\frac{{{low}}}{{{up}}}",
                forms(f"{low}/{up} | {low}{up}^{{-1}}"),
                forms(rf"1 | \frac{{{up}}}{{{low}}} | \frac{{{low}}}{{{low}}}"),
            ),
            (f"{n}\\Delta", [f"{n}\\cdot\\Delta"], [f"{n}\\delta"]),
            (f"{up}^{n}", [f"{up}^{{{n}}}"], forms(f"{low}^{n} | {up}^{n + 1} | {up}_{n} | {up}{n}")),
            (
                f"{low}_{{{n}}}",
                forms(f"{low}_{n} | {{{low}}}_{n}"),
                forms(f"{up}_{n} | {low}_{n + 1} | {low}^{n} | {low} | {n}{low}"),
            ),
            (f"{up}", forms(rf"{{{up}}} | \boxed{{{up}}}"), forms(f"2{low} | {up}^2 | {up}+1")),
            (
                f"\\frac{{{low}}}{{{up}+{low}}}",
                [f"\\frac{{{low}}}{{{low}+{up}}}"],
                forms(rf"\frac12 | \frac{{{up}}}{{{up}+{low}}}"),
            ),
        ]
    )
    return made("letter_case", gold, gold, equal, different)


_FUNCTIONS = table(r"""
\frac{1}{2}e^{-2x} == \frac{e^{-2x}}{2} | \frac{1}{2e^{2x}} | 0.5e^{-2x} != \frac12 e^{2x} |
    \frac{1}{2}e^{-x} | 2e^{-2x} | \frac12 e^{-2X}
\sin^2 x == (\sin x)^2 | 1-\cos^2 x | \sin^{2}(x) != \sin x^2 | \sin 2x | \cos^2 x | \sin^2 X | 2\sin x
\sin 2x == 2\sin x\cos x | \sin(2x) != 2\sin x | \sin^2 x | \cos 2x
x\ln x - x == -x+x\ln x | x(\ln x-1) | x\ln(x)-x != x\ln x | x\ln x+x | \ln x - x | x\log_{10} x - x
2^n 3^n == 6^n | 6^{n} | 3^n \cdot 2^n != 5^n | 6^{2n} | 6n | 2^n+3^n
\frac{n(n+1)}{2} == \frac{n^2+n}{2} | \frac12 n(n+1) | \binom{n+1}{2} != \frac{n(n-1)}{2} | \frac{n^2+1}{2}
    | n(n+1) | \frac{N(N+1)}{2}
2^{n+1}-1 == 2\cdot 2^n-1 | -1+2^{n+1} != 2^{n}-1 | 2^n+1-1 | 2^{n+1}+1 | 2^{n+1-1}
\sqrt{x^2+1} == (x^2+1)^{1/2} | \sqrt{1+x^2} != x+1 | \sqrt{x^2}+1 | \sqrt{x^2-1} | \sqrt{X^2+1} | x^2+1
x^{-1} == \frac{1}{x} | 1/x | x⁻¹ != -x | x | x^{-2} | X^{-1}
|x-1| == \left|x-1\right| | \lvert x-1\rvert | |1-x| != x-1 | 1-x | |x+1| | |x|-1
n!m == mn! | m \cdot n! != nm! | n!M | (nm)!
\frac{1}{2}mv^2 == \frac{mv^2}{2} | 0.5mv^2 | \frac12 v^2 m != \frac12 mv | \frac12 MV^2 | mv^2 | \frac12
    mV^2
2\pi\sqrt{\frac{L}{g}} == 2\pi\sqrt{L/g} | \frac{2\pi}{1}\sqrt{\frac{L}{g}} != 2\pi\sqrt{\frac{g}{L}} |
    \pi\sqrt{\frac{L}{g}} | 2\pi\frac{L}{g} | 2\pi\sqrt{\frac{L}{G}}
\epsilon_0 A == \varepsilon_0 A | A\epsilon_0 != \epsilon_0 a | \epsilon A | \epsilon_1 A
x_{max} == x_{\max} | x_{\text{max}} | x_{\mathrm{max}} != x_{min} | X_{max} | x
\ln|x|+C == C+\ln|x| | \ln\left|x\right|+C != \ln|X|+C | \ln|x| | \frac1x+C | 2\ln|x|+C
""")


@kind
def functions(draw: random.Random) -> Answer:
    gold, equal, different = draw.choice(_FUNCTIONS)
    return made("functions", gold, gold, equal, different)
