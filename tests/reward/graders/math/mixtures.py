"""Kinds of answers that are made of others: lists of quantities and of words, systems, nested tuples."""

from __future__ import annotations

import random
from fractions import Fraction

from tests.reward.graders.math.answers import (
    Answer,
    forms,
    frac,
    kind,
    made,
    other_digit,
    part,
    parts,
    rational,
    varied,
)


@kind
def named_quantities(draw: random.Random) -> Answer:
    n = draw.randint(2, 400)
    name, unit, other, larger = draw.choice(
        [
            ("v", "m/s", "km/h", ""),
            ("d", "cm", "m", "mm"),
            ("m", "kg", "g", ""),
            ("E", "J", "kJ", ""),
            ("t", "s", "min", "ms"),
        ]
    )
    gold = rf"{name} = {n}\text{{ {unit}}}"
    equal = forms(
        rf"{n}\text{{ {unit}}} | {name} = {n} \, \text{{{unit}}}"
        rf" | {name} = {n} \ \mathrm{{{unit}}} | {name} = {n}"
    )
    equal += [str(n)] + ([rf"{name} = {n * 10}\text{{ mm}}"] if larger == "mm" else [])
    different = forms(
        rf"{name} = {n}\text{{ {other}}} | {name} = {n + 1}\text{{ {unit}}}"
        rf" | {n}\text{{ {other}}} | {name} > {n}\text{{ {unit}}}"
    )
    wrong = forms(
        rf"{name} = {n + 1} = {n}\text{{ {unit}}} | {name} = {n}\text{{ {unit} or }} {n + 1}\text{{ {unit}}}"
    )
    return made(
        "named_quantities",
        gold,
        (name, unit, n),
        equal,
        different,
        wrong=wrong,
        also=[Fraction(n), "any unit"],
    )


@kind
def lists_of_quantities(draw: random.Random) -> Answer:
    a, b = draw.sample(range(2, 99), 2)
    unit, other = draw.choice([("cm", "mm"), ("kg", "g"), ("m", "km"), ("hours", "minutes"), ("J", "kJ")])
    gold = rf"{a}\text{{ {unit}}}, {b}\text{{ {unit}}}"
    equal = forms(
        rf"{b}\text{{ {unit}}}, {a}\text{{ {unit}}}"
        rf" | {a} \,\text{{{unit}}} \text{{ and }} {b} \,\text{{{unit}}}"
        rf" | {a}\ \mathrm{{{unit}}}, {b}\ \mathrm{{{unit}}}"
    )
    different = forms(
        rf"{a}\text{{ {unit}}}, {b}\text{{ {other}}}"
        rf" | {a}\text{{ {unit}}}, {b + 100}\text{{ {unit}}} | {a}\text{{ {unit}}}"
    )
    different.append(rf"{a}\text{{ {other}}}, {b}\text{{ {unit}}}")
    return made(
        "lists_of_quantities",
        gold,
        (unit, frozenset([a, b])),
        equal,
        different,
        also=[("set", frozenset([Fraction(a), Fraction(b)]))],
    )


@kind
def lists_of_percents(draw: random.Random) -> Answer:
    a, b = draw.sample(range(11, 99), 2)
    gold = rf"{a}\%, {b}\%"
    equal = forms(rf"{b}\%, {a}\% | {a}\% \text{{ and }} {b}\%")
    different = forms(rf"{a}\%, {b + 1}\% | {a}\% | {a}^\circ, {b}^\circ | {a}\%, {b}\%, 7\%")
    return made("lists_of_percents", gold, ("%", frozenset([a, b])), equal, different)


@kind
def lists_of_words(draw: random.Random) -> Answer:
    a, b, c = draw.sample(forms("red | green | blue | yellow | black | white"), 3)
    gold = rf"\text{{{a}}}, \text{{{b}}}"
    equal = forms(
        rf"\text{{{b}}}, \text{{{a}}} | \text{{{a}, {b}}} | \text{{{a} and {b}}}"
        rf" | \text{{{a}}} \text{{ and }} \text{{{b}}}"
    )
    different = forms(
        rf"\text{{{a}}}, \text{{{c}}} | \text{{{a}}} | \text{{{a}}}, \text{{{b}}}, \text{{{c}}}"
        rf" | \text{{{c}}}, \text{{{b}}}"
    )
    return made("lists_of_words", gold, ("words", frozenset([a, b])), equal, different)


@kind
def systems(draw: random.Random) -> Answer:
    """Values of two letters, one below the other."""
    a, b = parts(draw, 2, exact=False)
    first, second = draw.choice([("x", "y"), ("a", "b"), ("p", "q")])

    def write(texts: list[str]) -> str:
        return rf"\begin{{cases}} {first} = {texts[0]} \\ {second} = {texts[1]} \end{{cases}}"

    gold = write([a.tex, b.tex])
    equal, different = varied([a, b], draw, write)
    equal.append(rf"\begin{{aligned}} {first} &= {a.tex} \\ {second} &= {b.tex} \end{{aligned}}")
    equal.append(f"{first} = {a.tex}, {second} = {b.tex}")
    different += [write([b.tex, a.tex]), f"{first} = {a.tex}", f"{first} = {b.tex}, {second} = {a.tex}"]
    value = ("named", first, a.value, b.value)
    return made(
        "systems",
        gold,
        value,
        equal,
        different,
        also=[("(", a.value, b.value), ("set", frozenset([a.value, b.value]))],
    )


@kind
def definitions(draw: random.Random) -> Answer:
    a, b = draw.randint(2, 12), draw.randint(1, 12)
    name, x = draw.choice("fgh"), draw.choice("xtn")
    gold = f"{name}({x}) = {a}{x}^2 + {b}"
    equal = forms(f"{a}{x}^2 + {b} | {name}({x}) = {b} + {a}{x}^2 | {name}({x})={a}{x}^{{2}}+{b}")
    different = forms(
        f"{name}({x}) = {a}{x}^2 - {b} | {a + 1}{x}^2 + {b} | {name}({x}) = {a}{x}^3 + {b}"
        f" | {a}{x}^2 | {name}({x}) = {a}{x.upper()}^2 + {b}"
    )
    wrong = forms(f"{name}({x}) = {a}{x}^2 = {a}{x}^2 + {b} | {name}({x}) = {a}{x}^2 + {b}, {name}(0) = 7")
    return made(
        "definitions", gold, (name, x, a, b), equal, different, wrong=wrong, also=[("square", x, a, b)]
    )


@kind
def ordinals(draw: random.Random) -> Answer:
    n = draw.randint(4, 19)
    gold = str(n)
    equal = forms(rf"{n}^{{\text{{th}}}} | {n}\text{{th}} | {n}^{{th}} | {n}^{{\mathrm{{th}}}}")
    different = forms(rf"{n + 1}^{{\text{{th}}}} | {n}^{{t}} | {n}\text{{ten}} | {n}^{{{n}}}")[:2]
    return made("ordinals", gold, Fraction(n), equal, different)


@kind
def nested(draw: random.Random) -> Answer:
    """Sets and lists of tuples, and tuples of sets."""
    a, b, c = draw.sample(range(1, 30), 3)
    gold, equal, different = draw.choice(
        [
            (rf"\{{({a}, {b}), ({b}, {c})\}}", forms(rf"\{{({b}, {c}), ({a}, {b})\}} | ({a}, {b}), ({b}, {c})"),
             forms(rf"\{{({b}, {a}), ({b}, {c})\}} | \{{({a}, {b})\}} | \{{({a}, {b}), ({c}, {b})\}}"
                   rf" | \{{{a}, {b}, {c}\}}")),
            (rf"(\{{{a}, {b}\}}, {c})", forms(rf"(\{{{b}, {a}\}}, {c}) | (\{{{a},{b}\}},{c})"),
             forms(rf"({c}, \{{{a}, {b}\}}) | (\{{{a}, {c}\}}, {b}) | ({a}, {b}, {c})")),
            (rf"({a}, {b}, {c}), ({c}, {b}, {a})", [rf"({c}, {b}, {a}), ({a}, {b}, {c})"],
             forms(rf"({a}, {b}, {c}) | ({a}, {c}, {b}), ({c}, {b}, {a}) | ({a}, {b}, {c}, {c}, {b}, {a})")),
        ]
    )  # fmt: skip
    return made("nested", gold, ("nested", gold), equal, different)


@kind
def intervals_of_percents(draw: random.Random) -> Answer:
    a, b = sorted(draw.sample(range(11, 99), 2))
    gold = rf"[{a}\%, {b}\%]"
    equal = forms(rf"[{a}\%,{b}\%] | {a}\% \le x \le {b}\%")
    different = forms(rf"[{a}\%, {b + 1}\%] | ({a}\%, {b}\%) | [{b}\%, {a}\%] | {a}\%")
    return made("intervals_of_percents", gold, ("[]", a, b), equal, different)


@kind
def mixed_equations(draw: random.Random) -> Answer:
    """A name for a fraction, a root or a constant, with or without brackets."""
    value = rational(draw)
    name = draw.choice(forms(r"a_n | \theta | S | P(A) | x_1 | \lambda | k | a_{10} | f(2) | \angle A | AB"))
    gold = frac(value)
    equal = forms(rf"{name} = {gold} | {name}={gold} | {name} = {value.numerator}/{value.denominator}")
    different = forms(rf"{name} = {frac(value + 1)} | {name} > {gold} | {name} = -{gold} | {name} \ne {gold}")
    different = [form.replace("--", "") for form in different]
    wrong = forms(
        rf"{name} = {frac(value + 1)} = {gold} | {name} = {gold} = {frac(value + 1)}"
        rf" | {name} = {gold} \text{{ or }} {name} = 77"
    )
    return made("mixed_equations", gold, value, equal, different, wrong=wrong)


@kind
def roots_of_fractions(draw: random.Random) -> Answer:
    p, q = draw.sample([2, 3, 5, 7, 11], 2)
    gold = rf"\sqrt{{\frac{{{p}}}{{{q}}}}}"
    equal = forms(
        rf"\frac{{\sqrt{{{p}}}}}{{\sqrt{{{q}}}}} | \frac{{\sqrt{{{p * q}}}}}{{{q}}}"
        rf" | \sqrt{{{p}/{q}}} | \left(\frac{{{p}}}{{{q}}}\right)^{{1/2}}"
    )
    different = forms(
        rf"\sqrt{{\frac{{{q}}}{{{p}}}}} | \frac{{\sqrt{{{p}}}}}{{{q}}}"
        rf" | \frac{{{p}}}{{\sqrt{{{q}}}}} | \sqrt{{{p}}}/{q} | \frac{{{p}}}{{{q}}}"
        rf" | \sqrt{{{p * q}}}"
    )
    different.append(f"{(p / q) ** 0.5:.6f}")
    return made("roots_of_fractions", gold, ("root", Fraction(p, q)), equal, different)


@kind
def approximations(draw: random.Random) -> Answer:
    text = f"{draw.randint(1, 99)}.{draw.randint(1, 9)}{draw.randint(1, 9)}"
    equal = forms(rf"\approx {text} | x \approx {text} | \sim {text}")
    different = forms(
        rf"\approx {other_digit(text, draw)} | x \approx {other_digit(text, draw)}"
        rf" | {other_digit(text, draw)}"
    )
    return made(
        "approximations", text, Fraction(text), right=equal, different=different, also=[Fraction(text) * 100]
    )


@kind
def sums_of_parts(draw: random.Random) -> Answer:
    """A constant plus a multiple of another, in either order."""
    item, n = part(draw), draw.randint(2, 50)
    while not isinstance(item.value, tuple):
        item = part(draw)
    gold = f"{n}+{item.tex}"
    equal = [f"{item.tex}+{n}", f"{n} + {draw.choice(item.equal)}", f"{n}-(-{item.tex})"]
    different = [
        f"{n}-{item.tex}",
        f"{n + 1}+{item.tex}",
        f"{n}+{item.different[1]}",
        f"{n}{item.tex}",
        f"-{n}+{item.tex}",
    ]
    return made("sums_of_parts", gold, ("sum", n, item.value), equal, different)
