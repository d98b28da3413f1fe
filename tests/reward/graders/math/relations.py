"""Kinds of answers that relate two sides: equations, congruences, inequalities, intervals, cases."""

from __future__ import annotations

import random
from collections.abc import Hashable

from tests.reward.graders.math.answers import Answer, Part, forms, kind, made, parts, varied
from tests.reward.graders.math.expressions import value_of


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
