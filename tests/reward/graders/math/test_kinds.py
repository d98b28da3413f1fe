"""Tests of kinds of answers, each with random members: a gold, answers that equal it, and near misses that do not."""

from __future__ import annotations

import calendar
import math
import random
import time
from collections.abc import Callable
from fractions import Fraction

import pytest

from reward.graders import grade

Case = tuple[str, list[str], list[str]]
"""A gold, answers that are right, and answers that are wrong."""
KINDS: dict[str, Callable[[random.Random], Case]] = {}
SMALL = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TEENS = ("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def kind(case: Callable[[random.Random], Case]) -> Callable[[random.Random], Case]:
    """Adds a kind under the name of its function."""
    KINDS[case.__name__] = case
    return case


def text(words: str) -> str:
    return f"\\text{{{words}}}"


@pytest.mark.parametrize("name", KINDS)
def test_random_members(name: str) -> None:
    draw = random.Random(name)
    for _ in range(8):
        gold, right, wrong = KINDS[name](draw)
        for answers, score in (([gold, *right], 1), (wrong, 0)):
            for answer in answers:
                response = answer if "\\boxed" in answer else f"\\boxed{{{answer}}}"
                found = grade("math", response, {"answer": gold})
                assert found.score == score, (gold, answer, found.details)


# ------------------------------------------------------------------------------------- points of comparison
@kind
def alternating_current(draw: random.Random) -> Case:
    size, hertz = draw.randint(2, 400), 50 * draw.randint(1, 8)
    gold = f"{size}\\sin({2 * hertz}\\pi t)"
    return gold, [f"\\sin({2 * hertz}\\pi t)\\cdot {size}", f"-{size}\\sin(-{2 * hertz}\\pi t)"], [
        "0",
        f"{size + 1}\\sin({2 * hertz}\\pi t)", f"{size}\\sin({6 * hertz}\\pi t)", f"{size}\\cos({2 * hertz}\\pi t)",
    ]  # fmt: skip


@kind
def sums_of_floors(draw: random.Random) -> Case:
    base = draw.choice([3, 5, 7])
    terms = [f"\\lfloor\\frac{{n}}{{{base**power}}}\\rfloor" for power in (1, 2, 3, 4)]
    return "+".join(terms), ["+".join(terms[::-1])], ["+".join(terms[:3]), "+".join(terms[1:])]


@kind
def bends_far_away(draw: random.Random) -> Case:
    place = draw.randint(20, 9_000)
    gold = f"\\sqrt{{x^2-{2 * place}x+{place**2}}}"
    return gold, [f"|x-{place}|", f"|{place}-x|"], [f"{place}-x", f"x-{place}", f"|x-{place + 1}|"]


@kind
def powers_of_a_negative_base(draw: random.Random) -> Case:
    a = draw.randint(2, 9)
    return f"(-1)^n\\frac{{x^n}}{{{a}n}}", [f"\\frac{{(-x)^n}}{{{a}n}}"], [f"\\frac{{x^n}}{{{a}n}}"]


# ------------------------------------------------------------------------------------- what is spelled
@kind
def scores_ranges_and_dates(draw: random.Random) -> Case:
    low = draw.randint(1, 9)
    high = low + draw.randint(1, 9)
    gold = draw.choice([f"{low}-{high}", f"{low}\\text{{ to }}{high}"])
    return gold, [f"{low}-{high}", f"{low}\\text{{ to }}{high}", f"{low}–{high}"], [
        str(low - high), f"{low + 1}-{high + 1}", f"{high}-{low}",
    ]  # fmt: skip


@kind
def dates_of_digits(draw: random.Random) -> Case:
    year, month, day = draw.randint(1900, 2030), draw.randint(1, 11), draw.randint(13, 28)
    written = f"{calendar.month_name[month]} {day}, {year}"
    return f"{year}-{month:02}-{day}", [written, text(written)], [
        f"{year}-{month + 1:02}-{day}", str(year - month - day), f"{year}-{month:02}-{day - 1}",
    ]  # fmt: skip


@kind
def sizes_and_codes(draw: random.Random) -> Case:
    a, b = draw.sample(range(2, 10), 2)
    gold, right, wrong = draw.choice([
        (f"{a}\\times {b}", f"{a} \\text{{ by }} {b}", [str(a * b), f"{b}\\times {a}"]),
        (f"0{a}{b}1", text(f"0{a}{b}1"), [f"{a}{b}1", f"0{b}{a}1"]),
        (f"{a}/{b}/1", f"{a}/{b}/1", [f"{a}/1/{b}", f"\\frac{{{a}}}{{{b}}}"]),
        ("A-C-B", text("A-C-B"), ["A-B-C", "C-A-B"]),
    ])  # fmt: skip
    return gold, [right], wrong


@kind
def decimals_that_repeat(draw: random.Random) -> Case:
    a, b = draw.randint(0, 9), draw.randint(1, 8)
    value = Fraction(10 * a + b - a, 90)
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}", [f"0.{a}({b})"], [
        f"0.{a}{b}", f"0.{a}({b + 1})",
    ]  # fmt: skip


@kind
def numbers_in_words(draw: random.Random) -> Case:
    tens, one = draw.randrange(8), draw.randrange(9)
    value = 100 * (one + 1) + 10 * (tens + 2) + one + 1
    words = f"{SMALL[one]} hundred {draw.choice(['', 'and '])}{TENS[tens]}-{SMALL[one]}"
    halves = f"{SMALL[one]} and a half"
    if draw.random() < 0.5:
        return str(value), [text(words), text(words.capitalize())], [text(f"minus {words}"), text(halves)]
    return str(one + 1.5), [text(halves)], [text(words), text(SMALL[one]), f"{one + 1}\\text{{ and a half}}"]


@kind
def words_that_change_a_number(draw: random.Random) -> Case:
    a = draw.randint(2, 9)
    word = draw.choice(
        ["doubled", "halved", "tripled", "lakh", "crore", "quadrillion", "octillion", "myriad"]
    )
    part = draw.choice([*TEENS, *(ten[:-1] + "ie" for ten in TENS)])
    return str(a), [f"{a}\\text{{ apples}}"], [f"{a}\\text{{ {word}}}", f"{a}\\text{{ {part}ths}}"]


@kind
def parts_in_words(draw: random.Random) -> Case:
    a, place = draw.randint(2, 9), draw.randrange(7)
    part = f"{TEENS[place]}ths"
    return f"\\frac{{{a}}}{{{13 + place}}}", [f"{a}\\text{{ {part}}}", text(f"{SMALL[a - 1]} {part}")], [
        f"{a}", f"{a}\\text{{ {TENS[place][:-1]}ieths}}",
    ]  # fmt: skip


@kind
def times_of_day(draw: random.Random) -> Case:
    hour = draw.choice([2, 4, 6, 8])
    return f"{hour}:30", [f"{hour}:30"], [f"{hour // 2}:15", f"{hour - 1}:90", f"{2 * hour}:60"]


# ------------------------------------------------------------------------------------- letters
@kind
def propositions(draw: random.Random) -> Case:
    p, q, r = draw.sample("pqrs", 3)
    negated = f"\\neg(\\neg {r}\\land(\\neg {p}\\lor\\neg {q}))"
    return f"({p}\\land {q})\\lor {r}", [f"{r}\\lor ({q}\\land {p})", negated], [
        f"({p}\\lor {q})\\land {r}", f"{p}\\land {q}\\land {r}", f"({p}\\land \\neg {q})\\lor {r}",
    ]  # fmt: skip


@kind
def implications(draw: random.Random) -> Case:
    p, q = draw.sample("pqrs", 2)
    return (
        f"{p}\\to {q}",
        [f"\\neg {p}\\lor {q}", f"\\neg {q}\\to\\neg {p}"],
        [f"{q}\\to {p}", f"{p}\\lor {q}"],
    )


@kind
def constants(draw: random.Random) -> Case:
    a, other = draw.randint(2, 9), draw.choice("kKcD")
    if draw.random() < 0.5:
        return f"x^{a}+C", [f"x^{a}+{other}"], [f"x^{a}", f"x^{a}+2"]
    return f"{a}x+c", [f"c+{a}x"], [f"{a}x+C", f"{a}x+k"]


@kind
def pairs_with_names(draw: random.Random) -> Case:
    a, b = draw.sample(range(1, 9), 2)
    return (
        f"({a},{b})",
        [f"y={b}, x={a}", f"m={a}, b={b}", f"u={a}, c={b}"],
        [f"m={b}, b={a}", f"x={b}, y={a}"],
    )


@kind
def several_boxes(draw: random.Random) -> Case:
    a, b = draw.sample(range(1, 99), 2)
    joined = f"$\\boxed{{{a}}}$ and $\\boxed{{{b}}}$"
    if draw.random() < 0.5:
        return (
            f"{a}, {b}",
            [joined, f"$x=\\boxed{{{b}}}$, $y=\\boxed{{{a}}}$"],
            [f"not $\\boxed{{{a}}}$, but $\\boxed{{{b}}}$"],
        )
    return (
        str(b),
        [f"\\boxed{{{a}}} is wrong.\n\n\\boxed{{{b}}}"],
        [joined, f"\\boxed{{{a}}} or \\boxed{{{b}}}"],
    )


@kind
def names_that_change_a_number(draw: random.Random) -> Case:
    a = draw.randint(2, 9)
    return str(a), [f"\\text{{the answer}}={a}"], [
        f"\\text{{{word} of the answer}}={a}" for word in ("ten percent", "square", "one third", "half")
    ]  # fmt: skip


# ------------------------------------------------------------------------------------- names, chains and labels
@kind
def names_in_front(draw: random.Random) -> Case:
    a, b = draw.sample(range(2, 99), 2)
    names = [
        "e",
        "i",
        "\\sigma^2",
        "R^2",
        "P(X\\ge 2)",
        "\\Pr(A)",
        "|\\vec v|",
        "(f\\circ g)(2)",
        "E^\\circ_{cell}",
    ]
    gold = draw.choice([str(a), f"\\frac{{{a}}}{{{a + 1}}}"])
    return gold, [f"{name}={gold}" for name in [*names, "\\int_0^1 x\\,dx"]], [
        f"{draw.choice(names)}={b}", f"x^2={gold}", f"2x={gold}", f"x(x+1)={gold}", f"e={b}={gold}",
    ]  # fmt: skip


@kind
def labels_in_front(draw: random.Random) -> Case:
    a, b = draw.sample(range(2, 99), 2)
    leads = ["\\text{The area is }", "\\text{Total: }", "\\text{Answer}: ", "\\Rightarrow ", "\\therefore "]
    return str(a), [f"{draw.choice(leads)}{a}", f"\\text{{There are }}{a}\\text{{ ways}}"], [
        f"{draw.choice(leads)}{b}", f"\\text{{The answer is not }}{a}", f"\\text{{less than: }}{a}",
        f"\\text{{Half of it is }}{a}",
    ]  # fmt: skip


@kind
def roundings_behind_an_exact_value(draw: random.Random) -> Case:
    a = draw.choice([2, 3, 5, 6, 7])
    value = f"{a**0.5:.1f}"
    return value, [f"\\sqrt{{{a}}}\\approx {value}", f"x=\\sqrt{{{a}}}\\approx {value}"], [
        f"\\sqrt{{{a + 4}}}\\approx {value}", f"\\sqrt{{{a}}}\\approx {a}", f"\\sqrt{{{a}}}={value}",
    ]  # fmt: skip


@kind
def formulas_before_the_value(draw: random.Random) -> Case:
    a, b = draw.sample(range(2, 30), 2)
    return f"{a**2}\\pi", [f"A=\\pi r^2={a**2}\\pi", f"A=\\pi r^2=\\pi\\cdot {a}^2={a**2}\\pi"], [
        f"A=\\pi r^2={b}\\pi={a**2}\\pi", f"A={a**2}\\pi=\\pi r^2", f"A=2A={a**2}\\pi",
    ]  # fmt: skip


# ------------------------------------------------------------------------------------- sets
@kind
def intervals(draw: random.Random) -> Case:
    a = draw.randint(-9, 9)
    b, c = a + draw.randint(2, 9), a + 1
    return f"({a},{c})\\cup({c},{b})", [
        f"]{a},{c}[\\cup]{c},{b}[",
        f"({a},{c}) U ({c},{b})", f"({a},{b})\\setminus\\{{{c}\\}}", f"{a}<x<{b}, x\\ne {c}",
    ], [
        f"({a},{b})", f"[{a},{c}[\\cup]{c},{b}[",
        f"({a},{b})\\setminus\\{{{c + 1}\\}}", f"{a}<x<{b}, x\\ne {a}",
    ]  # fmt: skip


@kind
def absolute_values_between_bounds(draw: random.Random) -> Case:
    a, center = draw.randint(1, 5), draw.randint(-9, 9)
    b = a + draw.randint(1, 5)
    low, high = center - b, center + b
    gold = f"({low},{center - a}]\\cup[{center + a},{high})"
    return gold, [f"{a}\\le|x-{center}|<{b}".replace("--", "+"), f"{b}>|{center}-x|\\ge {a}"], [
        f"{a}\\le|x-{center}|\\le {b}", f"|x-{center}|<{b}", f"{a}\\le|2x-{center}|<{b}",
    ]  # fmt: skip


@kind
def points_beside_intervals(draw: random.Random) -> Case:
    a, b = sorted(draw.sample(range(1, 50), 2))
    return f"\\{{0\\}}\\cup[{a},{b}]", [f"x=0\\text{{ or }}{a}\\le x\\le {b}"], [
        f"x=1\\text{{ or }}{a}\\le x\\le {b}", f"{a}\\le x\\le {b}", f"x=0, {a}\\le x\\le {b}",
    ]  # fmt: skip


@kind
def members_that_are_repeated(draw: random.Random) -> Case:
    a, b = draw.sample(range(1, 50), 2)
    return (
        f"{a}, {b}",
        [f"{a}, {b}, {a}", f"\\{{{b}, {b}, {a}\\}}", f"x\\in\\{{{a},{b}\\}}"],
        [f"{a}, {a}", f"{a}, {b}, 51"],
    )


@kind
def pairs_of_named_values(draw: random.Random) -> Case:
    a, b, c, d = draw.sample(range(1, 50), 4)
    return f"({a},{b}),({c},{d})", [f"p={c},q={d};p={a},q={b}"], [f"p={a},q={d};p={c},q={b}", f"p={a},q={b}"]


@kind
def families_of_whole_numbers(draw: random.Random) -> Case:
    a, shift = draw.randint(2, 9), draw.randint(-4, 4)
    return f"{a}k+1, k\\in\\mathbb{{Z}}", [f"{a}n+{1 + shift * a}, n\\in\\mathbb{{Z}}".replace("+-", "-")], [
        f"{a}n+{2 + shift * a}, n\\in\\mathbb{{Z}}".replace("+-", "-"), f"{2 * a}k+1, k\\in\\mathbb{{Z}}",
        f"{a}k+1, k\\in\\mathbb{{N}}",
    ]  # fmt: skip


# ------------------------------------------------------------------------------------- numbers and units
@kind
def decimal_commas(draw: random.Random) -> Case:
    a, b = draw.randint(1, 999), draw.randint(11, 99)
    return f"{a}.{b}", [f"{a}{{,}}{b}", f"{a},{b}"], [f"{a}, {b}", f"{a}{{,}}{b}1", f"{b},{a}"]


@kind
def thousands_with_points(draw: random.Random) -> Case:
    a, b, c = draw.randint(1, 999), draw.randint(100, 999), draw.randint(100, 999)
    return f"{a}{b}{c}", [f"{a}.{b}.{c}"], [f"{a}.{b}", f"{a}.{c}.{b}1"]


@kind
def binomials_beside_powers(draw: random.Random) -> Case:
    n = draw.randint(20, 60)
    k = draw.randint(2, n - 2)
    right = [f"\\binom{{{n}}}{{{k}}}\\cdot 2^{{{n}}}", f"{{}}_{{{n}}}C_{{{k}}}\\cdot 2^{{{n}}}"]
    return str(math.comb(n, k) * 2**n), right, [
        f"\\frac{{\\binom{{{n}}}{{{k}}}}}{{2^{{{n}}}}}",
        f"\\binom{{{n}}}{{{k}}}\\cdot 2^{{{n - 1}}}", f"\\binom{{{n}}}{{{k}}}2{n}",
    ]  # fmt: skip


@kind
def letters_of_functions_as_factors(draw: random.Random) -> Case:
    a = draw.randint(2, 9)
    if draw.random() < 0.5:
        return f"f\\left({a}+\\frac{{v}}{{c}}\\right)", [f"{a}f+\\frac{{fv}}{{c}}", f"\\frac{{f({a}c+v)}}{{c}}"], [
            f"f\\left({a}-\\frac{{v}}{{c}}\\right)", f"{a}f+\\frac{{v}}{{c}}",
        ]  # fmt: skip
    return f"f(x+{a})", [f"f({a}+x)"], [f"fx+{a}f", f"f(x)+{a}"]


@kind
def what_is_counted(draw: random.Random) -> Case:
    a = draw.randint(2, 99)
    if draw.random() < 0.5:
        others = "arrangements", "possible outcomes", "different ways", "combinations"
        return (
            f"{a}\\text{{ ways}}",
            [f"{a}\\text{{ {other}}}" for other in others],
            [f"{a}\\text{{ apples}}"],
        )
    return (
        f"{a}\\text{{ red marbles}}",
        [f"{a}\\text{{ marbles}}"],
        [f"{a}\\text{{ blue marbles}}", f"{a}\\text{{ red balls}}"],
    )


@kind
def money(draw: random.Random) -> Case:
    a, b = draw.sample(range(11, 99), 2)
    return f"\\${a}.{b}", [f"{a}\\text{{ dollars and }}{b}\\text{{ cents}}", f"\\text{{USD }}{a}.{b}", f"{a}{b}¢"], [
        f"{b}\\text{{ dollars and }}{a}\\text{{ cents}}", f"\\text{{Rs. }}{a}.{b}",
        f"{a}\\text{{ dollars and }}0.{b}\\text{{ dollars}}",
    ]  # fmt: skip


@kind
def unusual_characters(draw: random.Random) -> Case:
    a = draw.randint(1, 9)
    wide, italic = chr(0xFF10 + a), chr(0x1D465)
    return f"\\frac{{{a}}}{{8}}", [f"{wide}/8", f"{a}⁄8"], [f"{chr(0xFF11 + a % 9)}/8", f"{italic}/8", "⅝⅝"]


@kind
def digits_in_another_base(draw: random.Random) -> Case:
    a = draw.randint(2, 9)
    return f"{a}F_{{16}}", [f"0x{a}F", f"{a}f_{{16}}", text(f"{a}F in base 16")], [f"0x{a}E", f"{a}F_{{17}}"]


@kind
def temperatures(draw: random.Random) -> Case:
    a = 5 * draw.randint(-20, 60)
    return f"{a}^\\circ\\text{{C}}", [f"{a * 9 // 5 + 32}^\\circ\\text{{F}}", f"{a + 273}.15\\text{{ K}}", f"{a}℃"], [
        f"{a + 32}^\\circ\\text{{F}}", f"{a}.5\\text{{ K}}", f"{a + 1}℃",
    ]  # fmt: skip


@kind
def isotopes(draw: random.Random) -> Case:
    mass, number = draw.randint(12, 240), draw.randint(1, 90)
    return f"{{}}^{{{mass}}}_{{{number}}}\\text{{C}}", [
        f"{{}}^{{{mass}}}\\text{{C}}", f"{{}}_{{{number}}}^{{{mass}}}\\text{{C}}", text(f"carbon-{mass}"),
    ], [text(f"C-{mass + 1}"), text(f"iodine-{mass}"), f"{{}}^{{{mass}}}\\text{{Co}}"]  # fmt: skip


@kind
def conditions_of_the_answer(draw: random.Random) -> Case:
    a = draw.randint(1, 9)
    if draw.random() < 0.5:
        return (
            f"x^2+{a}",
            [f"x^2+{a}, x\\in\\mathbb{{R}}", f"x^2+{a}, x\\ne {a}"],
            [f"x^2+{a}, x<{a}", f"x^2+{a}, x>0"],
        )
    return (
        f"\\sqrt{{x-{a}}}",
        [f"\\sqrt{{x-{a}}}, x\\ge {a}"],
        [f"\\sqrt{{x-{a}}}, x<{a}", f"\\sqrt{{x-{a}}}, x>{99 * a}"],
    )


@kind
def names_with_an_index(draw: random.Random) -> Case:
    a, b = draw.sample(range(1, 50), 2)
    return f"x={a}\\text{{ or }}x={b}", [f"x_1={b}, x_2={a}"], [f"y_1={b}, y_2={a}", f"x_1={a}, x_2={a + b}"]


def test_what_takes_long_is_not_computed() -> None:
    nested = "\\log_2(" * 12 + "x" + ")" * 12
    for answer in (nested, "x+" * 150_000 + "x", "\\cup".join(f"({2 * a},{2 * a + 1})" for a in range(127))):
        start = time.process_time()
        assert grade("math", f"\\boxed{{{answer}}}", {"answer": "(0,1)"}).score == 0
        assert time.process_time() - start < 1
