"""Kinds of answers with variables: expressions, relations, intervals."""

from __future__ import annotations

import random
from collections.abc import Hashable

from tests.reward.graders.math.answers import Answer, Part, forms, kind, made, parts, table, varied

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


# ------------------------------------------------------------------------------------- expressions
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
    p, q, r, s = draw.sample("abcmnpqrstuvxyGMRV", 4)
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


# ------------------------------------------------------------------------------------- relations
@kind
def lines(draw: random.Random) -> Answer:
    m, b = draw.choice([2, 3, 4, 5, -2, -3, -7]), draw.choice([n for n in range(-9, 10) if n])
    gold = f"y = {m}x{b:+d}"
    equal = forms(
        f"{m}x{b:+d} = y | y={m}x{b:+d} | {m}x-y{b:+d}=0 | y{-b:+d} = {m}x | 2y = {2 * m}x{2 * b:+d}"
        f" | y = {b}{m:+d}x"
    )
    equal += forms(f"y{-m:+d}x = {b} | -y = {-m}x{-b:+d}")
    different = forms(
        f"y = {m}x{-b:+d} | y = {-m}x{b:+d} | x = {m}y{b:+d} | Y = {m}X{b:+d} | y = {m}x"
        f" | y > {m}x{b:+d} | y = {m}x^2{b:+d}"
    )
    different += forms(rf"y \ne {m}x{b:+d} | 2y = {m}x{b:+d} | y = {m + 10}x{b:+d}")
    return made("lines", gold, ("line", m, b), equal, different, also=[value_of({(("x", 1),): m, (): b})])


@kind
def curves(draw: random.Random) -> Answer:
    a, b, r = draw.randint(1, 9), draw.randint(1, 9), draw.randint(2, 9)
    gold = f"(x-{a})^2+(y+{b})^2={r * r}"
    equal = forms(
        f"(y+{b})^2+(x-{a})^2={r * r} | {r * r}=(x-{a})^2+(y+{b})^2 | (x-{a})^2+(y+{b})^2={r}^2"
        f" | (x-{a})^2+(y+{b})^2-{r * r}=0"
    )
    equal += [
        f"x^2-{2 * a}x+y^2+{2 * b}y+{a * a + b * b - r * r}=0"
        if a * a + b * b > r * r
        else f"({a}-x)^2+(y+{b})^2={r * r}"
    ]
    different = forms(
        f"(x+{a})^2+(y+{b})^2={r * r} | (x-{a})^2+(y-{b})^2={r * r} | (x-{a})^2+(y+{b})^2={r * r + 1}"
        f" | (x-{a})^2+(y+{b})^2=-{r * r}"
    )
    different += [
        f"(x-{a})^2-(y+{b})^2={r * r}",
        f"(x-{a})^2+(y+{b})^2<{r * r}",
        f"(X-{a})^2+(Y+{b})^2={r * r}",
        f"(x-{a})^2+(y+{b})^2={r}" if r > 1 else "",
    ]
    different += forms(f"(y-{a})^2+(x+{b})^2={r * r} | (x-{a})^2+(y+{b})^2+{r * r}=0")
    return made("curves", gold, ("circle", a, b, r), equal, different)


@kind
def without_real_roots(draw: random.Random) -> Answer:
    a, b = draw.sample(range(2, 30), 2)
    gold, equal, different = draw.choice(
        [
            (
                f"x^2+{a}=0",
                forms(f"{a}+x^2=0 | 2x^2+{2 * a}=0 | x^2=-{a}"),
                forms(f"x^2+{b}=0 | x^2-{a}=0 | x^4+{a}=0"),
            ),
            (
                f"x^2+x+{a}=0",
                forms(f"x^2+x=-{a} | 3x^2+3x+{3 * a}=0"),
                forms(f"x^2+x+{b}=0 | x^2-x+{a}=0 | x^2+{a}=0"),
            ),
            (f"x^2+y^2+{a}=0", [f"y^2+x^2=-{a}"], forms(f"x^2+y^2+{b}=0 | x^2-y^2+{a}=0")),
        ]
    )
    return made("without_real_roots", gold, gold, equal, different)


@kind
def congruences(draw: random.Random) -> Answer:
    m = draw.randint(5, 40)
    a = draw.randint(1, m - 2)
    x = draw.choice("xnk")
    gold = f"{x} \\equiv {a} \\pmod{{{m}}}"
    equal = [
        f"{a} \\pmod{{{m}}}",
        f"{x}\\equiv {a}\\ (\\text{{mod }} {m})",
        f"{x}\\equiv{a}\\pmod {m}" if m < 10 else f"{x}\\equiv{a}\\pmod{{{m}}}",
    ]
    equal += [f"{x} \\equiv {a} \\mod {m}" if m < 10 else gold, f"{x}≡{a} \\pmod{{{m}}}"]
    different = forms(
        rf"{x} \equiv {a + 1} \pmod{{{m}}} | {x} \equiv {a} \pmod{{{m + 1}}}"
        rf" | {x} \not\equiv {a} \pmod{{{m}}} | {x} \equiv {m} \pmod{{{a + m}}}"
    )
    return made("congruences", gold, ("mod", a, m), equal, different, also=[a, m])


@kind
def periodic(draw: random.Random) -> Answer:
    """Solutions that repeat, with a whole number of any name."""
    n = draw.choice([1, 2, 3, 4])
    angle = draw.choice(["", "\\frac{\\pi}{4}+", "\\frac{\\pi}{3}+", "\\frac{\\pi}{6}+", "\\frac{2\\pi}{3}+"])

    def write(times: int, start: str = angle, name: str = "n", numbers: str = "\\mathbb{Z}") -> str:
        return f"{start}{'' if times == 1 else times}{name}\\pi,\\ {name}\\in {numbers}"

    gold = write(n)
    equal = [write(n, name="k"), f"x = {write(n, name='m')}", f"x = {gold}", write(n).replace(",\\ ", ", ")]
    different = [
        write(n + 1),
        write(n, numbers="\\mathbb{N}"),
        write(n, "\\frac{\\pi}{5}+"),
        write(n, f"-{angle or '1+'}"),
    ]
    return made("periodic", gold, ("periodic", n, angle), equal, different)


def _ray(low: str, high: str, brackets: str, x: str) -> list[str]:
    """Returns an interval as inequalities."""
    below = "\\le" if brackets[0] == "[" else "<"
    above = "\\le" if brackets[1] == "]" else "<"
    down, up = (
        below.replace("\\le", "\\ge").replace("<", ">"),
        above.replace("\\le", "\\ge").replace("<", ">"),
    )
    if low == "-\\infty":
        return forms(f"{x} {above} {high} | {high} {up} {x}")
    if high == "\\infty":
        return forms(f"{x} {down} {low} | {low} {below} {x}")
    both = rf"{low} {below} {x} {above} {high} | {high} {up} {x} {down} {low}"
    return forms(rf"{both} | {x} {down} {low} \text{{ and }} {x} {above} {high}")


@kind
def intervals(draw: random.Random) -> Answer:
    low, high = sorted(parts(draw, 2), key=lambda item: item.size)
    x = draw.choice("xtnsrqpyaz")
    brackets = draw.choice(forms("() | [) | (] | []"))
    shape = draw.choice(forms("both | both | up | down"))
    lows, highs = low.tex, high.tex
    if shape == "up":
        highs, brackets = "\\infty", brackets[0] + ")"
    elif shape == "down":
        lows, brackets = "-\\infty", "(" + brackets[1]

    def write(ends: list[str], signs: str = brackets) -> str:
        return f"{signs[0]}{ends[0]}, {ends[1]}{signs[1]}"

    gold = write([lows, highs])
    inequalities = _ray(lows, highs, brackets, x)
    equal = [
        *inequalities,
        f"{x} \\in {gold}",
        f"\\{{{x} \\mid {inequalities[0]}\\}}",
        f"\\{{{x} : {inequalities[0]}\\}}",
    ]
    equal += [
        f"\\{{{x} | {inequalities[0]}\\}}",
        inequalities[0].replace("\\le", "\\leq").replace("\\ge", "\\geq"),
        gold.replace(" ", ""),
    ]
    equal += [
        inequalities[0].replace("\\le", "≤").replace("\\ge", "≥"),
        f"\\left{brackets[0]}{lows}, {highs}\\right{brackets[1]}",
    ]
    if shape == "both":
        shorter, longer = varied([low, high], draw, write)
        equal += shorter
        different = [form for form in longer if form != write([highs, highs])]
        different += [write([lows, highs], other) for other in ("()", "[)", "(]", "[]") if other != brackets]
        different += _ray(lows, highs, {"[]": "()", "()": "[]", "[)": "(]", "(]": "[)"}[brackets], x)[:1]
        different += [
            write(forms(rf"{lows} | \infty"), brackets[0] + ")"),
            f"{x} > {lows}",
            write([highs, lows]),
            f"{highs} < {x} < {lows}",
        ]
    elif shape == "up":
        different = forms(
            rf"{'(' if brackets[0] == '[' else '['}{lows}, \infty)"
            rf" | (-\infty, {lows}{')' if brackets[0] == '(' else ']'} | {x} < {lows}"
        )
        different += [f"{brackets[0]}{bad}, \\infty)" for bad in low.different[:2]] + forms(
            rf"{x} \ne {lows} | {lows}"
        )
        different.append(f"{x} = {lows}")
    else:
        different = forms(
            rf"(-\infty, {highs}{')' if brackets[1] == ']' else ']'}"
            rf" | {'(' if brackets[1] == ')' else '['}{highs}, \infty) | {x} > {highs}"
        )
        different += [f"(-\\infty, {bad}{brackets[1]}" for bad in high.different[:2]] + forms(
            rf"{x} \ne {highs} | {highs} | {x} = {highs}"
        )
    value: Hashable = (
        "interval",
        brackets,
        lows if lows == "-\\infty" else low.value,
        highs if highs == "\\infty" else high.value,
    )
    if brackets == "()" and shape == "both":
        value = ("(", low.value, high.value)
    wrong = [f"\\{{{lows}, {highs}\\}}"] if shape == "both" else []
    return made("intervals", gold, value, equal, different, wrong=wrong)


@kind
def inequalities(draw: random.Random) -> Answer:
    """A gold that is an inequality, with a variable of its own."""
    low, high = sorted(parts(draw, 2), key=lambda item: item.size)
    x = draw.choice("xtnsrqpyaz")
    brackets = draw.choice(forms("() | [) | (] | []"))
    shape = draw.choice(forms("both | up | down"))
    lows, highs = low.tex, high.tex
    if shape == "up":
        highs, brackets = "\\infty", brackets[0] + ")"
    elif shape == "down":
        lows, brackets = "-\\infty", "(" + brackets[1]
    gold, *equal = _ray(lows, highs, brackets, x)
    equal += [
        f"{brackets[0]}{lows}, {highs}{brackets[1]}",
        gold.replace("\\le", "\\leq").replace("\\ge", "\\geq"),
        f"{x} \\in {brackets[0]}{lows},{highs}{brackets[1]}",
    ]
    flipped = {"<": ">", "\\le": "\\ge", ">": "<", "\\ge": "\\le"}
    different = [" ".join(flipped.get(word, word) for word in gold.split(" "))]
    strict = {"<": "\\le", "\\le": "<", ">": "\\ge", "\\ge": ">"}
    different += [
        " ".join(strict.get(word, word) for word in gold.split(" ")),
        gold.replace(lows, "-77", 1) if shape != "down" else gold.replace(highs, "-77", 1),
    ]
    different += forms(rf"{x} = {low.tex} | {x} \ne {low.tex}")
    value: Hashable = (
        "interval",
        brackets,
        lows if lows == "-\\infty" else low.value,
        highs if highs == "\\infty" else high.value,
    )
    if brackets == "()" and shape == "both":
        value = ("(", low.value, high.value)
    return made("inequalities", gold, value, equal, different)


def _four(draw: random.Random) -> list[Part]:
    return sorted(parts(draw, 3), key=lambda item: item.size)


@kind
def unions(draw: random.Random) -> Answer:
    a, b, c = _four(draw)
    x = draw.choice("xtnsra")
    left, right = draw.choice(")]"), draw.choice("([")
    gold = f"(-\\infty, {a.tex}{left} \\cup {right}{b.tex}, \\infty)"
    first, second = _ray("-\\infty", a.tex, f"({left}", x)[0], _ray(b.tex, "\\infty", f"{right})", x)[0]
    equal = forms(
        rf"{first} \text{{ or }} {second} | {second}\text{{ or }}{first}"
        rf" | \{{{x} \mid {first} \text{{ or }} {second}\}}"
    )
    equal += forms(
        rf"{right}{b.tex}, \infty) \cup (-\infty, {a.tex}{left} | {x} \in {gold}"
        rf" | (-\infty,{a.tex}{left}∪{right}{b.tex},\infty)"
    )
    other_left, other_right = ("]" if left == ")" else ")"), ("[" if right == "(" else "(")
    different = forms(
        rf"(-\infty, {a.tex}{other_left} \cup {right}{b.tex}, \infty)"
        rf" | (-\infty, {a.tex}{left} \cup {other_right}{b.tex}, \infty)"
    )
    different += forms(
        rf"(-\infty, {a.tex}{left} | {first} | {second} | {a.tex} < {x} < {b.tex}"
        rf" | (-\infty, {a.tex}{left} \cap {right}{b.tex}, \infty)"
    )
    different += forms(
        rf"(-\infty, {a.tex}{left} \cup {right}{c.tex}, \infty) | ({a.tex}, {b.tex})"
        rf" | {right}{b.tex}, \infty)"
    )
    different.append(f"{first} \\text{{ and }} {second}")
    return made("unions", gold, ("union", left, right, a.value, b.value), equal, different)


@kind
def all_but(draw: random.Random) -> Answer:
    a, b = parts(draw, 2)
    x = draw.choice("xtn")
    gold = f"(-\\infty, {a.tex}) \\cup ({a.tex}, \\infty)"
    equal = forms(
        rf"{x} \ne {a.tex} | \mathbb{{R}} \setminus \{{{a.tex}\}} | {x} \neq {a.tex}"
        rf" | \mathbb{{R}}\setminus\{{{a.tex}\}}"
    )
    equal += [f"{x} < {a.tex} \\text{{ or }} {x} > {a.tex}"]
    different = forms(
        rf"{x} \ne {b.tex} | {x} = {a.tex} | \mathbb{{R}} | (-\infty, {a.tex}) \cup ({b.tex}, \infty)"
        rf" | \{{{a.tex}\}}"
    )
    return made("all_but", gold, ("all but", a.value), equal, different)


@kind
def cases(draw: random.Random) -> Answer:
    a, b = parts(draw, 2)
    n = draw.randint(-9, 9)

    def write(first: str, second: str, sign: str = ">", last: str = "\\le") -> str:
        return f"\\begin{{cases}} {first} & x {sign} {n} \\\\ {second} & x {last} {n} \\end{{cases}}"

    gold = write(a.tex, b.tex)
    equal = [
        write(draw.choice(a.equal), b.tex),
        gold.replace(" ", "").replace("\\le", "\\le "),
        gold.replace("\\le", "\\leq"),
    ]
    equal.append(f"\\begin{{cases}} {b.tex} & x \\le {n} \\\\ {a.tex} & x > {n} \\end{{cases}}")
    equal.append(gold.replace("& x", "& \\text{if } x"))
    different = [
        write(b.tex, a.tex),
        write(draw.choice(a.different), b.tex),
        write(a.tex, b.tex, "<", "\\ge"),
        write(a.tex, b.tex, "\\ge", "<"),
        a.tex,
    ]
    different.append(gold.replace(f"x > {n}", f"x > {n + 1}"))
    return made("cases", gold, ("cases", n, a.value, b.value), equal, different)
