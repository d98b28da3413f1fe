"""What the kinds of generated answers are made of.

Every kind is a function of a module that `generator` names. It draws a gold and knows its value; its forms are equal
because of how they were made (a scaled fraction, another order of a set), and its neighbours differ for the same reason
(one digit, one letter's case, another prefix).

What is debatable is left out: 60 degrees and \\pi/3, 8 and 3 modulo 5, 18:30 and 6:30 p.m., a column and a tuple,
a numeral of base two without its base, a rounded gold.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A gold with its value, and other answers to it.

    equal, different: also meant the other way round, as golds. right, wrong: only as answers. also: other values that
    it may be equal to, such as its number without the unit.

    Example: Answer(kind="percents", gold="20\\\\%", value=("%", 20), equal=("0.2",), different=("21\\\\%",),
    also=frozenset({Fraction(1, 5), Fraction(20)}))
    """

    kind: str
    gold: str
    value: Hashable
    equal: tuple[str, ...] = ()
    different: tuple[str, ...] = ()
    right: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    also: frozenset[Hashable] = field(default_factory=frozenset)

    def agrees(self, other: Answer) -> bool:
        """Whether the values may be equal, under some rule."""
        return bool(({self.value} | self.also) & ({other.value} | other.also))


_ROUNDED = re.compile(r"\d\.\d{6}(?!\d)")
Maker = Callable[[random.Random], Answer]
KINDS: dict[str, Maker] = {}


def kind(maker: Maker) -> Maker:
    """Registers a function that draws answers of one kind, under its name."""
    KINDS[maker.__name__] = maker
    return maker


def made(
    name: str,
    gold: str,
    value: Hashable,
    equal: Iterable[str] = (),
    different: Iterable[str] = (),
    *,
    right: Iterable[str] = (),
    wrong: Iterable[str] = (),
    also: Iterable[Hashable] = (),
) -> Answer:
    """Returns an answer without repeated forms. A number rounded to six decimals is no gold for what it stands for."""
    different = list(different)
    wrong = [*wrong, *filter(_ROUNDED.search, different)]
    different = [form for form in different if not _ROUNDED.search(form)]
    return Answer(
        kind=name,
        gold=gold,
        value=value,
        equal=_once(equal, {gold}),
        different=_once(different, {gold}),
        right=_once(right, {gold}),
        wrong=_once(wrong, {gold}),
        also=frozenset(also),
    )


def forms(text: str) -> list[str]:
    """Returns the forms between bars."""
    return text.split(" | ")


def table(text: str) -> list[tuple[str, list[str], list[str]]]:
    """Returns golds with their equal forms and neighbours, from rows of `gold == form | form != form | form`."""
    rows = re.split(r"\n(?! )", text.strip("\n"))
    split = [re.split(" +(?:==|!=) +", re.sub(r"\n +", " ", row)) for row in rows]
    return [(gold, forms(equal), forms(different)) for gold, equal, different in split]


def _once(forms: Iterable[str], without: set[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(form for form in forms if form not in without))


_RAISED = str.maketrans("0123456789-+n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ")
_LOWERED = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def raised(text: object) -> str:
    """Returns a number in superscripts of Unicode."""
    return str(text).translate(_RAISED)


def lowered(text: object) -> str:
    """Returns a number in subscripts of Unicode."""
    return str(text).translate(_LOWERED)


# ------------------------------------------------------------------------------------- numbers as parts
@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A real number within an answer. size: about how large it is."""

    tex: str
    value: Hashable
    size: float
    equal: tuple[str, ...]
    different: tuple[str, ...]


def frac(value: Fraction) -> str:
    """Returns a rational number in LaTeX."""
    if value.denominator == 1:
        return str(value.numerator)
    sign = "-" if value < 0 else ""
    return f"{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def decimal(value: Fraction) -> str | None:
    """Returns a rational number as a decimal that ends, or None."""
    for places in range(13):
        if (value * 10**places).denominator == 1:
            digits = str(abs(int(value * 10**places))).rjust(places + 1, "0")
            sign = "-" if value < 0 else ""
            return f"{sign}{digits[:-places]}.{digits[-places:]}" if places else f"{sign}{digits}"
    return None


def rational(draw: random.Random, most: int = 20) -> Fraction:
    """Returns a fraction that is no whole number."""
    while True:
        value = Fraction(draw.randint(-most, most), draw.randint(2, 12))
        if value.denominator > 1:
            return value


def of_rational(value: Fraction) -> tuple[list[str], list[str]]:
    """Returns forms of a rational number, and of its neighbours."""
    p, q = value.numerator, value.denominator
    if q == 1:
        equal = [f"{p}.0", f"\\frac{{{2 * p}}}{{2}}"]
        return equal, [str(p + 1), str(p - 1), str(p + 10), str(-p) if p else "10", f"{p}.5"]
    sign = "-" if p < 0 else ""
    equal = [
        f"{p}/{q}",
        f"\\frac{{{p}}}{{{q}}}",
        f"\\frac{{{2 * p}}}{{{2 * q}}}",
        f"{sign}\\dfrac{{{abs(p)}}}{{{q}}}",
    ]
    different = [frac(-value), frac(value + 1), frac(Fraction(p + q, q + 1)) if p != q * q else "0"]
    different += [frac(1 / value)] if abs(p) != q else []
    if (text := decimal(value)) is not None:
        equal.append(text)
        different.append(text + "1")
    else:
        different += [f"{float(value):.6f}", f"{float(value) * 10:.6f}"]
    return equal, [form for form in different if form != frac(value)]


def part(draw: random.Random, exact: bool = True) -> Part:
    """Returns a whole number, a fraction, a decimal or, if `exact`, a multiple of a root or of pi."""
    choice = draw.randrange(7 if exact else 5)
    if choice <= 2:
        value = Fraction(draw.randint(-20, 20))
    elif choice == 3:
        value = rational(draw)
    elif choice == 4:
        value = Fraction(draw.randint(-999, 999), 100)
    else:
        times = draw.choice([1, 2, 3, 5])
        if choice == 5:
            root = draw.choice([2, 3, 5, 7])
            tex = f"{'' if times == 1 else times}\\sqrt{{{root}}}"
            equal = (
                f"\\sqrt{{{times * times * root}}}",
                f"{times}\\cdot\\sqrt{{{root}}}",
                f"{times}\\sqrt{root}",
            )
            wrong = (f"-{tex}", f"{times + 1}\\sqrt{{{root}}}", f"{times * root**0.5:.6f}", str(times * root))
            return Part(
                tex=tex, value=("root", times, root), size=times * root**0.5, equal=equal, different=wrong
            )
        low = draw.choice([q for q in (2, 3, 4, 6, 7) if times % q])
        value = Fraction(times, low)
        tex = f"\\frac{{{'' if value.numerator == 1 else value.numerator}\\pi}}{{{value.denominator}}}"
        equal = (f"\\frac{{{value.numerator}}}{{{value.denominator}}}\\pi", tex.replace("\\frac", "\\dfrac"))
        wrong = (f"-{tex}", tex.replace("\\pi", ""), f"{float(value) * 3.14159265:.6f}", f"{frac(value)}")
        wrong = tuple(form for form in wrong if form != "\\frac{}{2}" and "{}" not in form)
        return Part(tex=tex, value=("pi", value), size=float(value) * 3.14159, equal=equal, different=wrong)
    equal, different = of_rational(value)
    text = decimal(value) if choice == 4 else None
    return Part(
        tex=text or frac(value),
        value=value,
        size=float(value),
        equal=(*equal, frac(value)),
        different=tuple(different),
    )


def parts(draw: random.Random, number: int, exact: bool = True) -> list[Part]:
    """Returns numbers, no two of which are equal or nearly so."""
    found: list[Part] = []
    while len(found) < number:
        new = part(draw, exact)
        if all(abs(new.size - old.size) > 0.05 for old in found):
            found.append(new)
    return found


def varied(
    found: list[Part], draw: random.Random, write: Callable[[list[str]], str]
) -> tuple[list[str], list[str]]:
    """Returns what `write` makes of the parts with one in another form, and with one that is another number."""
    equal, different = [], []
    texts = [item.tex for item in found]
    for _ in range(2):
        index = draw.randrange(len(found))
        for forms, result in ((found[index].equal, equal), (found[index].different, different)):
            result.append(write([*texts[:index], draw.choice(forms), *texts[index + 1 :]]))
    return equal, different


def other_digit(text: str, draw: random.Random) -> str:
    """Returns the text with another digit at one place, not zero."""
    places = [index for index, sign in enumerate(text) if sign.isdigit()]
    index = draw.choice(places)
    digit = draw.choice([digit for digit in "123456789" if digit != text[index]])
    return text[:index] + digit + text[index + 1 :]
