"""Tests of kinds of answers, each with random members: a gold, answers that equal it, and near misses that do not."""

from __future__ import annotations

import calendar
import random
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
