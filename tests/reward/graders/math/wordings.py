"""Kinds of answers that are words, names, formulas, clock times and dates."""

from __future__ import annotations

import random
import re
from fractions import Fraction

from tests.reward.graders.math.answers import Answer, forms, kind, lowered, made, raised, table

_WORDS = forms(
    "Monday | Tuesday | Friday | red | green | blue | circle | square | triangle | ellipse | parabola | "
    "hyperbola | even | odd | increasing | decreasing | convergent | divergent | rectangle | cylinder | "
    "positive | negative | Alice | Bob | Einstein | Newton | hydrogen | oxygen | mitosis | meiosis | "
    "listen | silent | north | south | Saturn | Jupiter"
)


@kind
def words(draw: random.Random) -> Answer:
    word, other, third = draw.sample(_WORDS, 3)
    gold = f"\\text{{{word}}}"
    equal = forms(
        rf"{word} | \text{{{word.lower()}}} | \text{{{word.capitalize()}}} | \mathrm{{{word}}}"
        rf" | \text{{{word}.}} | \textbf{{{word}}}"
    )
    different = forms(
        rf"\text{{{other}}} | {other} | \text{{{word}ish}} | \text{{not {word}}}"
        rf" | \text{{{word[::-1]}}} | \text{{un{word}}}"
    )
    wrong = forms(
        rf"\text{{{word} or {other}}} | \text{{{word}, {third}}}"
        rf" | \text{{{word}}}\text{{ or }}\text{{{other}}}"
    )
    return made("words", gold, ("word", word.lower()), equal, different, wrong=wrong)


_PHRASES = table(r"""
\text{no solution} == \text{No solution} | \emptyset | \text{no solutions} != \text{one solution} | 0 |
    \mathbb{R} | \text{infinitely many solutions}
\text{all real numbers} == \mathbb{R} | (-\infty,\infty) | x \in \mathbb{R} != \mathbb{Z} | \text{all
    integers} | \emptyset | (0,\infty)
\text{DNE} == \text{does not exist} | \text{Does not exist.} != 0 | \infty | \text{exists}
\infty == +\infty | ∞ != -\infty | 0 | \text{DNE} | 8
\emptyset == \varnothing | \{\} | ∅ != 0 | \{0\} | \{\emptyset\} | \mathbb{R}
\text{an isosceles triangle} == \text{An isosceles triangle} | an isosceles triangle != \text{an equilateral
    triangle} | \text{a right triangle}
\text{the second player wins} == \text{The second player wins.} != \text{the first player wins} | \text{the
    second player loses}
\text{neither even nor odd} == neither even nor odd != \text{even} | \text{odd} | \text{both even and odd}
""")


@kind
def phrases(draw: random.Random) -> Answer:
    gold, equal, different = draw.choice(_PHRASES)
    return made(
        "phrases",
        gold,
        gold,
        equal,
        different,
        also=["nothing"] if "empty" in gold + equal[-1] or "no sol" in gold else [],
    )


@kind
def yes_or_no(draw: random.Random) -> Answer:
    word, other = draw.choice([("Yes", "No"), ("No", "Yes"), ("True", "False"), ("False", "True")])
    gold = f"\\text{{{word}}}"
    equal = forms(
        rf"{word} | {word.lower()} | \text{{{word.lower()}}} | \text{{{word}.}} | \textbf{{{word}}}"
        rf" | \mathrm{{{word}}}"
    )
    different = forms(
        rf"\text{{{other}}} | {other} | {other.lower()} | \text{{Maybe}}"
        rf" | \text{{{word[::-1].lower()}}}"
    )
    wrong = forms(
        rf"\text{{{word} or {other}}} | \text{{not {word.lower()}}} | \text{{{word}, {other}}}"
        rf" | \text{{{word} and {other}}}"
    )
    return made("yes_or_no", gold, ("word", word.lower()), equal, different, wrong=wrong)


@kind
def options(draw: random.Random) -> Answer:
    letter, other = draw.sample("ABCDE", 2)
    gold = draw.choice(forms(rf"{letter} | \text{{{letter}}} | ({letter}) | \text{{({letter})}}"))
    equal = forms(
        rf"{letter} | ({letter}) | \text{{{letter}}} | \text{{({letter})}} | \textbf{{({letter})}}"
        rf" | \mathrm{{{letter}}} | \textbf{{{letter}}}"
    )
    different = [
        other,
        f"({other})",
        f"\\text{{{other}}}",
        f"\\textbf{{({other})}}",
        letter + other,
        f"{letter}, {other}",
    ]
    wrong = forms(
        rf"{letter} \text{{ or }} {other} | ({letter}) ({other}) | ABCDE"
        rf" | \text{{{letter} and {other}}} | \text{{not {letter}}}"
    )
    right = forms(rf"{letter}) 12 | \text{{{letter}) }} 12 | \textbf{{({letter})}} 12")
    return made("options", gold, ("option", letter), equal, different, right=right, wrong=wrong)


@kind
def letter_lists(draw: random.Random) -> Answer:
    """Names of several upper-case letters: their order matters."""
    letters = draw.sample("ABCDEFGHKMPQRSTUVWXYZ", draw.randint(2, 4))
    gold = "".join(letters)
    equal = forms(rf"\text{{{gold}}} | \mathrm{{{gold}}} | \text{{{gold}.}}")
    swapped = gold[1] + gold[0] + gold[2:]
    different = [
        swapped,
        f"\\text{{{swapped}}}",
        gold.lower(),
        gold[:-1],
        gold + gold[0],
        gold[:-1] + "J",
        f"\\text{{{gold[:-1]}J}}",
    ]
    if len(letters) == 2:
        different.remove(gold[:-1])
    return made("letter_lists", gold, ("name", gold), equal, different)


_ROMAN = ("IV", "VI", "XL", "LX", "IX", "XI", "XC", "CX", "CM", "MC", "XIV", "XVI", "XLII", "LXII")
_TOSSES = ("HTTH", "TTHH", "HHTT", "THTH", "AaBb", "AABB", "aabb", "AAbb", "GATTACA", "GATACTA")


@kind
def spelled(draw: random.Random) -> Answer:
    """Roman numerals, tosses of a coin, genotypes: spelling is all."""
    group = draw.choice([_ROMAN, _TOSSES[:4], _TOSSES[4:8], _TOSSES[8:]])
    gold, other = draw.sample(group, 2)
    equal = forms(rf"\text{{{gold}}} | \mathrm{{{gold}}}")
    return made(
        "spelled",
        gold,
        ("name", gold),
        equal,
        [other, f"\\text{{{other}}}", gold + gold[-1], gold[:-1] + "Z"],
    )


@kind
def figures(draw: random.Random) -> Answer:
    """Angles, triangles and segments by the names of their points."""
    a, b, c = draw.sample("ABCDEFGHKMPQRST", 3)
    sign, shown = draw.choice([("\\angle ", "∠"), ("\\triangle ", "△")])
    gold = f"{sign}{a}{b}{c}"
    equal = forms(
        rf"{sign}{{{a}{b}{c}}} | {shown}{a}{b}{c} | {sign}\text{{{a}{b}{c}}}"
        rf" | {sign}\mathrm{{{a}{b}{c}}}"
    )
    different = forms(
        f"{sign}{a}{b} | {sign}{a}{b}{c.lower()} | {sign}{a}{b}J | {sign}{a.lower()}{b.lower()}{c.lower()}"
    )
    different += [f"{sign}{b}{a}{c}"] if sign[1:] == "angle " else []
    other = "\\triangle " if sign == "\\angle " else "\\angle "
    return made("figures", gold, (sign, a, b, c), equal, [*different, f"{other}{a}{b}{c}", f"{a}{b}"])


@kind
def segments(draw: random.Random) -> Answer:
    a, b, c = draw.sample("ABCDEFGHKMPQRST", 3)
    gold = f"\\overline{{{a}{b}}}"
    equal = forms(rf"{a}{b} | \text{{{a}{b}}}")
    different = forms(
        rf"\overline{{{a}{c}}} | \overline{{{a.lower()}{b.lower()}}} | {a}{c} | {a} | {a}{b}{c}"
    )
    return made("segments", gold, ("name", f"{a}{b}"), equal, different)


# ------------------------------------------------------------------------------------- clock, dates
@kind
def clocks(draw: random.Random) -> Answer:
    hour, minute = draw.randint(1, 12), draw.randint(1, 59)
    half, other = draw.choice([("p.m.", "a.m."), ("a.m.", "p.m."), ("PM", "AM"), ("AM", "PM")])
    time = f"{hour}:{minute:02d}"
    gold = draw.choice(forms(rf"{time}\text{{ {half}}} | \text{{{time} {half}}}"))
    plain = half.replace(".", "").upper()
    equal = [f"{time}\\text{{ {form}}}" for form in (plain, plain.lower(), f"{plain[0].lower()}.m.")]
    equal += forms(
        rf"\text{{{time} {plain}}} | {time} {plain} | {time}\ \text{{{half}}}"
        rf" | {time}\,\mathrm{{{plain}}}"
    )
    later = f"{hour}:{(minute + 7) % 60:02d}"
    different = forms(
        rf"{time}\text{{ {other}}} | \text{{{time} {other}}} | {later}\text{{ {half}}}"
        rf" | {hour % 12 + 1}:{minute:02d}\text{{ {half}}}"
    )
    ratio = Fraction(hour, minute)
    for times in range(1, 13):
        twin = Fraction(times) / ratio
        if times != hour and twin.denominator == 1 and twin < 60:
            different.append(f"{times}:{int(twin):02d}\\text{{ {half}}}")
    wrong = forms(
        rf"\frac{{{hour}}}{{{minute}}} | \frac{{{hour}}}{{{minute}}}\text{{ {half}}} | {hour}"
        rf" | {hour}\text{{ {half}}}"
    )
    value = ("clock", hour, minute, plain)
    return made("clocks", gold, value, equal, different, wrong=wrong, also=[("time", hour, minute)])


@kind
def times_of_day(draw: random.Random) -> Answer:
    hour, minute = draw.randint(1, 12), draw.choice([5, 10, 15, 20, 30, 40, 45, 50])
    gold = f"{hour}:{minute:02d}"
    equal = [f"\\text{{{gold}}}"]
    different = forms(
        f"{hour}:{minute + 1:02d} | {hour % 12 + 1}:{minute:02d} | {hour}:{(minute + 20) % 60:02d}"
    )
    return made(
        "times_of_day",
        gold,
        ("time", hour, minute),
        equal,
        different,
        also=[Fraction(hour, minute), ("ratio", hour, minute)],
    )


@kind
def dates(draw: random.Random) -> Answer:
    months = forms("January | March | April | May | June | August | October | December")
    month, other = draw.sample(months, 2)
    day, year = draw.randint(2, 27), draw.randint(1900, 2030)
    gold, wrong = draw.choice(
        [
            (
                f"\\text{{{month} {day}}}",
                forms(rf"\text{{{other} {day}}} | \text{{{month} {day + 1}}} | {day} | \text{{{month}}}"),
            ),
            (
                f"\\text{{{month} {day}, {year}}}",
                forms(
                    rf"\text{{{month} {day}, {year + 1}}} | \text{{{other} {day}, {year}}}"
                    rf" | \text{{{month} {day + 1}, {year}}}"
                ),
            ),
            (
                f"\\text{{{day} {month} {year}}}",
                forms(
                    rf"\text{{{day} {month} {year + 1}}} | \text{{{day + 1} {month} {year}}}"
                    rf" | \text{{{day} {other} {year}}}"
                ),
            ),
        ]
    )
    inner = gold[6:-1]
    equal = forms(
        rf"{inner} | \textbf{{{inner}}} | \text{{{inner.lower()}}}"
        rf" | \mathrm{{{inner.replace(' ', '~')}}}"
    )
    return made("dates", gold, ("date", inner), equal, wrong)


# ------------------------------------------------------------------------------------- chemistry
_FORMULAS = forms(
    "H2O | CO2 | H2SO4 | HNO3 | NaCl | CaCO3 | C6H12O6 | NH3 | CH4 | Fe2O3 | Al2O3 | KMnO4 | PCl5 | "
    "Na2CO3 | N2O4 | C2H5OH | SO3 | H3PO4 | MgCl2 | CuSO4"
)
_IONS = forms(
    "Fe3+ | Fe2+ | SO4:2- | NO3:- | NH4:+ | Cl- | Na+ | Cu2+ | PO4:3- | CO3:2- | OH- | Mg2+ | Al3+ | "
    "MnO4:- | Cr2O7:2-"
)
_CASES = (
    ("CO", "Co"),
    ("HF", "Hf"),
    ("SN", "Sn"),
    ("CS", "Cs"),
    ("HO", "Ho"),
    ("PB", "Pb"),
    ("SI", "Si"),
)


def _runs(formula: str) -> list[str]:
    """Returns a formula's runs of letters and of digits in turn."""
    runs: list[str] = []
    for sign in formula:
        if runs and runs[-1].isdigit() == sign.isdigit():
            runs[-1] += sign
        else:
            runs.append(sign)
    return runs


def _formula(formula: str, style: str = "{}") -> str:
    """Returns a formula with its digits as indices."""
    return "".join(
        f"_{run}"
        if len(run) == 1 and run.isdigit()
        else f"_{{{run}}}"
        if run.isdigit()
        else style.format(run)
        for run in _runs(formula)
    )


@kind
def formulas(draw: random.Random) -> Answer:
    if draw.random() < 0.25:
        gold, other = draw.sample(draw.choice(_CASES), 2)
        return made(
            "formulas",
            gold,
            ("formula", gold),
            forms(rf"\text{{{gold}}} | \mathrm{{{gold}}} | \ce{{{gold}}}"),
            forms(rf"{other} | \text{{{other}}} | {gold}_2"),
            also=[("name", gold)],
        )
    name, other = draw.sample(_FORMULAS, 2)
    gold = draw.choice([_formula(name), _formula(name, "\\text{{{}}}"), f"\\mathrm{{{_formula(name)}}}"])
    equal = [
        _formula(name),
        _formula(name, "\\text{{{}}}"),
        f"\\mathrm{{{_formula(name)}}}",
        f"\\ce{{{name}}}",
    ]
    equal += [
        "".join(lowered(run) if run.isdigit() else run for run in _runs(name)),
        _formula(name, "\\mathrm{{{}}}"),
    ]
    digits = [index for index, sign in enumerate(name) if sign.isdigit()]
    different = [_formula(other), f"\\ce{{{other}}}", _formula(other, "\\text{{{}}}")]
    if digits:
        index = draw.choice(digits)
        changed = name[:index] + str(int(name[index]) % 8 + 2) + name[index + 1 :]
        if changed != name:
            different += [_formula(changed), f"\\ce{{{changed}}}", _formula(changed, "\\text{{{}}}")]
    different += [_formula(name + "2" if not name[-1].isdigit() else name + "H"), f"2{_formula(name)}"]
    return made("formulas", gold, ("formula", name), equal, different)


@kind
def ions(draw: random.Random) -> Answer:
    def split(ion: str) -> tuple[str, str]:
        if ":" in ion:
            name, _, charge = ion.partition(":")
            return name, charge
        return ion.rstrip("0123456789+-"), ion[len(ion.rstrip("0123456789+-")) :]

    (name, charge), (other, other_charge) = map(split, draw.sample(_IONS, 2))

    def write(name: str, charge: str, style: str = "{}") -> str:
        return f"{_formula(name, style)}^{charge if len(charge) == 1 else '{' + charge + '}'}"

    gold = write(name, charge, draw.choice(forms(r"{} | \text{{{}}}")))
    equal = [
        write(name, charge),
        write(name, charge, "\\text{{{}}}"),
        write(name, charge, "\\mathrm{{{}}}"),
        f"\\mathrm{{{write(name, charge)}}}",
    ]
    equal += [
        "".join(lowered(run) if run.isdigit() else run for run in _runs(name)) + raised(charge),
        f"\\ce{{{name}^{charge}}}",
    ]
    turned = charge.replace("+", "?").replace("-", "+").replace("?", "-")
    more = f"{int(charge[:-1] or 1) + 1}{charge[-1]}"
    different = [
        write(name, turned),
        write(name, more),
        write(name, more, "\\text{{{}}}"),
        _formula(name),
        write(other, other_charge),
        write(other, charge),
    ]
    if name == other:
        different.remove(write(other, charge))
    return made("ions", gold, ("ion", name, charge), equal, different)


_EQUATIONS = (
    ("2 H2 + O2", "2 H2O"),
    ("N2 + 3 H2", "2 NH3"),
    ("CH4 + 2 O2", "CO2 + 2 H2O"),
    ("2 Na + Cl2", "2 NaCl"),
    ("CaCO3", "CaO + CO2"),
    ("4 Fe + 3 O2", "2 Fe2O3"),
    ("C3H8 + 5 O2", "3 CO2 + 4 H2O"),
)


def _reaction(side: str, style: str = "{}") -> str:
    return "".join(
        word if word.isdigit() else f" {word} " if word == "+" else _formula(word, style)
        for word in side.split()
    )


@kind
def reactions(draw: random.Random) -> Answer:
    left, right = draw.choice(_EQUATIONS)

    def write(left: str, right: str, arrow: str = "\\rightarrow", style: str = "{}") -> str:
        return f"{_reaction(left, style)} {arrow} {_reaction(right, style)}"

    gold = write(left, right, style=draw.choice(forms(r"{} | \text{{{}}}")))
    equal = [write(left, right, arrow) for arrow in ("\\rightarrow", "\\to", "\\longrightarrow", "→")]
    joined = [re.sub(r"\b(\d) (?=[A-Z])", r"\1", side) for side in (left, right)]
    equal += [
        write(left, right, style="\\text{{{}}}"),
        write(left, right, style="\\mathrm{{{}}}"),
        f"\\ce{{{joined[0]} -> {joined[1]}}}",
    ]
    digit = draw.choice("67")
    different = [
        write(left, right, "\\leftarrow"),
        write(right, left),
        write(f"{digit} {left.lstrip('245 ')}", right),
        write(left, f"{right} + {digit} KCl"),
    ]
    different += [
        f"\\ce{{{joined[1]} -> {joined[0]}}}",
        write(left, right.replace("2", "3") if "2" in right else f"7 {right}"),
    ]
    return made("reactions", gold, ("reaction", left), equal, different)


_COMPLEX_WORDS = table(r"""
a\to b == a \rightarrow b | a \longrightarrow b != a \leftarrow b | b \to a | a \to c | A \to B
A \rightleftharpoons B == A ⇌ B != B | A \rightleftharpoons C | a \rightleftharpoons b
\text{pH} = 7 == \mathrm{pH} = 7 | 7 != \text{pH} = 8 | \text{PH} = 7 | \text{pOH} = 7
1s^2 2s^2 2p^6 == 1s^{2}2s^{2}2p^{6} | 1s^2\,2s^2\,2p^6 != 1s^2 2s^2 2p^5 | 1s^2 2s^2 2d^6 | 1s^2 2s^2 2p^6
    3s^1
^{14}_{6}\text{C} == {}^{14}_{6}\mathrm{C} != ^{14}_{7}\text{N} | ^{12}_{6}\text{C} | ^{14}_{7}\text{C}
\text{CuSO}_4\cdot 5\text{H}_2\text{O} == CuSO_4 \cdot 5H_2O | \ce{CuSO4.5H2O} != CuSO_4 \cdot 4H_2O |
    \text{CuSO}_4 | CuSO_3 \cdot 5H_2O
""")


@kind
def other_science(draw: random.Random) -> Answer:
    gold, equal, different = draw.choice(_COMPLEX_WORDS)
    return made("other_science", gold, gold, equal, different, also=[Fraction(7)] if "pH" in gold else [])
