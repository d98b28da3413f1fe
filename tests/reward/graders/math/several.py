"""Kinds of answers that are several numbers, or what is still to be worked out."""

from __future__ import annotations

import random
from fractions import Fraction

from tests.reward.graders.math.answers import (
    Answer,
    Part,
    forms,
    kind,
    made,
    part,
    parts,
    table,
    varied,
)


@kind
def plus_or_minus(draw: random.Random) -> Answer:
    item = part(draw)
    while item.size <= 0:
        item = part(draw)
    tex = item.tex
    if draw.random() < 0.5:
        gold = f"\\pm {tex}"
        equal = forms(
            rf"{tex}, -{tex} | -{tex},{tex} | ±{tex}"
            rf" | \pm{draw.choice(item.equal)}"
        )
        equal += forms(rf"{tex} \text{{ and }} -{tex} | \{{{tex}, -{tex}\}}")
        different = forms(rf"{tex} | -{tex} | \pm {draw.choice(item.different)} | {tex}, {tex}")
        different = [form for form in different if not form.startswith("\\pm -")]
        right = [f"{tex} \\text{{ or }} -{tex}"]
        return made("plus_or_minus", gold, ("pm", item.value), equal, different, right=right)
    a, b = draw.randint(1, 9), draw.choice([2, 3, 5, 7])
    gold = f"{a}\\pm\\sqrt{{{b}}}"
    equal = forms(
        rf"{a}+\sqrt{{{b}}}, {a}-\sqrt{{{b}}} | {a} ± \sqrt{{{b}}}"
        rf" | \{{{a}-\sqrt{{{b}}}, {a}+\sqrt{{{b}}}\}}"
    )
    equal.append(f"x = {gold}")
    right = [rf"{a}-\sqrt{{{b}}} \text{{ or }} {a}+\sqrt{{{b}}}"]
    different = forms(
        rf"{a}+\sqrt{{{b}}} | {a}-\sqrt{{{b}}} | {a + 1}\pm\sqrt{{{b}}} | {a}\pm\sqrt{{{b + 1}}}"
        rf" | \pm{a}\sqrt{{{b}}}"
    )
    different.append(f"\\pm {a}+\\sqrt{{{b}}}")
    return made("plus_or_minus", gold, ("pm", a, b), equal, different, right=right)


def _short(draw: random.Random, number: int) -> list[Part]:
    """Returns parts without numbers of three digits, which would look like thousands behind a comma."""
    while True:
        found = parts(draw, number)
        if not any(len(item.tex.lstrip("-")) == 3 and item.tex.lstrip("-").isdigit() for item in found):
            return found


@kind
def lists(draw: random.Random) -> Answer:
    found = _short(draw, draw.randint(2, 4))
    tex = [item.tex for item in found]
    gold = ", ".join(tex)
    mixed = draw.sample(tex, len(tex))
    equal, different = varied(found, draw, ", ".join)
    equal += [
        ", ".join(mixed),
        ", ".join(tex[:-1]) + f" \\text{{ and }} {tex[-1]}",
        f"\\{{{', '.join(mixed)}\\}}",
    ]
    equal += ["; ".join(tex), " \\text{ and } ".join(tex)] if len(tex) == 2 else []
    different += [", ".join(tex[1:]), tex[0], f"{gold}, 77", f"{gold}, -77"]
    right = [" \\text{ or } ".join(tex)]
    return made(
        "lists", gold, ("set", frozenset(item.value for item in found)), equal, different, right=right
    )


@kind
def sets(draw: random.Random) -> Answer:
    found = _short(draw, draw.randint(2, 4))
    tex = [item.tex for item in found]

    def write(texts: list[str]) -> str:
        return f"\\{{{', '.join(texts)}\\}}"

    gold = write(tex)
    equal, different = varied(found, draw, write)
    equal += forms(
        rf"{write(draw.sample(tex, len(tex)))} | \left\{{{','.join(tex)}\right\}}"
        rf" | \{{ {' , '.join(tex)} \}} | \lbrace {', '.join(tex)} \rbrace"
    )
    different += [write(tex[1:]), write([*tex, "77"]), write(["77", *tex[1:]])]
    return made("sets", gold, ("set", frozenset(item.value for item in found)), equal, different)


@kind
def tuples(draw: random.Random) -> Answer:
    found = parts(draw, draw.randint(2, 4))
    tex = [item.tex for item in found]

    def write(texts: list[str]) -> str:
        return f"({', '.join(texts)})"

    gold = write(tex)
    equal, different = varied(found, draw, write)
    equal += [f"({','.join(tex)})", f"\\left({', '.join(tex)}\\right)", "(" + ",\\, ".join(tex) + ")"]
    different += [write(tex[::-1]), write(tex[1:]) if len(tex) > 2 else tex[0], write([*tex, "7"])]
    different += [write([tex[1], tex[0], *tex[2:]])]
    if len(tex) == 2:
        different += forms(f"[{tex[0]}, {tex[1]}] | [{tex[0]}, {tex[1]}) | ({tex[0]}, {tex[1]}]")
    value = ("(", *(item.value for item in found))
    return made("tuples", gold, value, equal, different, wrong=[f"\\{{{', '.join(tex)}\\}}"])


@kind
def points(draw: random.Random) -> Answer:
    """Several pairs of coordinates, in any order."""
    found = [parts(draw, 2, exact=False) for _ in range(2)]
    if found[0][0].tex == found[1][0].tex:
        found[1] = found[1][::-1]
    tex = [f"({a.tex}, {b.tex})" for a, b in found]
    gold = ", ".join(tex)
    equal = [
        ", ".join(tex[::-1]),
        " \\text{ and } ".join(tex),
        f"\\{{{', '.join(tex)}\\}}",
        gold.replace(" ", ""),
    ]
    different = forms(f"{tex[0]} | {tex[0]}, (77, 1) | {gold}, (77, 1)")
    if found[0][0].value != found[0][1].value:
        swapped = f"({found[0][1].tex}, {found[0][0].tex})"
        different.append(f"{swapped}, {tex[1]}")
    value = frozenset((a.value, b.value) for a, b in found)
    return made(
        "points",
        gold,
        ("points", value),
        equal,
        [text for text in different if text not in equal] if len(value) == 2 else [],
    )


@kind
def solutions(draw: random.Random) -> Answer:
    """Named values: x = 1, y = 2."""
    a, b = parts(draw, 2, exact=False)
    first, second = draw.choice([("x", "y"), ("a", "b"), ("m", "n"), ("p", "q")])
    gold = f"{first} = {a.tex}, {second} = {b.tex}"
    equal = forms(
        rf"{first}={a.tex} \text{{ and }} {second}={b.tex} | {second} = {b.tex}, {first} = {a.tex}"
        rf" | {first}={a.tex},\ {second}={b.tex}"
    )
    equal += [f"{first} = {draw.choice(a.equal)}, {second} = {b.tex}"]
    different = forms(
        f"{first} = {b.tex}, {second} = {a.tex}"
        f" | {first} = {a.tex}, {second} = {draw.choice(b.different)} | {first} = {a.tex}"
    )
    different += forms(
        f"{first} = {draw.choice(a.different)}, {second} = {b.tex} | {second} = {a.tex}, {first} = {b.tex}"
    )
    value = ("named", first, a.value, b.value)
    return made(
        "solutions",
        gold,
        value,
        equal,
        different,
        also=[("(", a.value, b.value), ("set", frozenset([a.value, b.value]))],
    )


@kind
def ratios(draw: random.Random) -> Answer:
    terms = draw.sample([2, 3, 5, 7, 9, 11, 13], draw.choice([2, 2, 3]))
    k = draw.randint(2, 5)
    if len(terms) == 2:  # two digits behind one colon are a time of day
        terms, k = draw.choice(
            [([2, 3], 3), ([3, 4], 2), ([5, 3], 2), ([7, 2], 4), ([11, 3], 3), ([9, 2], 4), ([13, 4], 2)]
        )
    gold = ":".join(map(str, terms))
    equal = [
        " : ".join(map(str, terms)),
        " \\colon ".join(map(str, terms)),
        ":".join(str(k * term) for term in terms),
    ]
    equal += [f"{terms[0]} \\text{{ to }} {terms[1]}"] if len(terms) == 2 else []
    different = [
        ":".join(map(str, terms[::-1])),
        ":".join(map(str, [terms[0] + 1, *terms[1:]])),
        f"{gold}:1",
        str(terms[0]),
    ]
    return made("ratios", gold, ("ratio", *terms), equal, different, also=[Fraction(terms[0], terms[1])])


@kind
def matrices(draw: random.Random) -> Answer:
    height, width = draw.randint(2, 3), draw.randint(1, 3)
    cells = parts(draw, height * width)
    rows = [cells[index * width : (index + 1) * width] for index in range(height)]

    def write(texts: list[str], name: str = "pmatrix") -> str:
        body = " \\\\ ".join(" & ".join(texts[i * width : (i + 1) * width]) for i in range(height))
        return f"\\begin{{{name}}} {body} \\end{{{name}}}"

    tex = [cell.tex for cell in cells]
    gold = write(tex)
    equal, different = varied(cells, draw, write)
    body = write(tex)[len("\\begin{pmatrix}") : -len("\\end{pmatrix}")]
    equal += [
        write(tex, "bmatrix"),
        f"\\left(\\begin{{array}}{{{'c' * width}}}{body}\\end{{array}}\\right)",
        gold.replace(" ", ""),
    ]
    equal += forms(
        rf"\left[\begin{{array}}{{{'r' * width}}}{body}\end{{array}}\right]"
        rf" | \left(\begin{{matrix}}{body}\end{{matrix}}\right)"
    )
    different += [write([*tex[width:], *tex[:width]]), write(tex[::-1])]
    if height == width:
        across = [rows[j][i].tex for i in range(height) for j in range(height)]
        different += [write(across), write(tex, "vmatrix")]
    value = ("matrix", *(tuple(cell.value for cell in row) for row in rows))
    return made("matrices", gold, value, equal, different)


@kind
def vectors(draw: random.Random) -> Answer:
    a, b, c = draw.sample([n for n in range(-9, 10) if abs(n) > 1], 3)
    i, j, k = draw.choice(
        [
            ("\\hat{i}", "\\hat{j}", "\\hat{k}"),
            ("\\mathbf{i}", "\\mathbf{j}", "\\mathbf{k}"),
            ("\\vec{i}", "\\vec{j}", "\\vec{k}"),
        ]
    )

    def with_units(a: int, b: int, c: int) -> str:
        return f"{a}{i}{b:+d}{j}{c:+d}{k}"

    gold = with_units(a, b, c)
    equal = forms(
        rf"({a},{b},{c}) | \langle {a},{b},{c}\rangle"
        rf" | {a}\mathbf{{i}}{b:+d}\mathbf{{j}}{c:+d}\mathbf{{k}} | {b}{j}{a:+d}{i}{c:+d}{k}"
    )
    equal += [f"{a}\\hat i{b:+d}\\hat j{c:+d}\\hat k"]
    different = forms(
        rf"{with_units(a, b, -c)} | {with_units(b, a, c)} | ({a},{c},{b}) | \langle {b},{a},{c}\rangle"
        f" | {with_units(a + 1, b, c)} | {a}{i}{b:+d}{j}"
    )
    return made("vectors", gold, ("(", Fraction(a), Fraction(b), Fraction(c)), equal, different)


@kind
def chains(draw: random.Random) -> Answer:
    name, n = draw.choice("xynkmt"), draw.randint(3, 60)
    gold = f"{name} = {n}"
    a = draw.randint(1, n - 1)
    equal = forms(f"{n} | {name}={n} | {name} = {n}.0")
    right = forms(rf"{name} = {a}+{n - a} = {n} | {name} = \frac{{{2 * n}}}{{2}} = {n}")
    other = draw.choice([letter for letter in "xynkmt" if letter != name])
    different = forms(
        rf"{name} = {n + 1} | {name} = -{n} | {name} > {n} | {name} \ne {n} | {name} \le {n}"
        f" | {name}^2 = {n}"
    )
    wrong = forms(
        f"{name} = {n + 2} = {n} | {name} = {n} = {n + 2} | {name} = {n}, {other} = 7"
        rf" | {n} \approx {n + 2} | {n} \equiv {n + 2}"
    )
    wrong += forms(rf"{name} = {n} \text{{ or }} {name} = {n + 1} | {name} = {a} + {n - a + 1} = {n}")
    return made("chains", gold, ("is", n), equal, different, right=right, wrong=wrong, also=[Fraction(n)])


_PENDING = table(r"""
1 == 1 != \lim_{x\to 0}\frac{\sin x}{x} | \sin^2 x+\cos^2 x | \frac{T}{t} | \cosh^2 x-\sinh^2 x | x^0 |
    \int_0^1 1\,dx
e == e != \lim_{n\to\infty}\left(1+\frac1n\right)^n | \sum_{n=0}^{\infty}\frac{1}{n!}
120 == 120 != \prod_{k=1}^{5} k | \int_0^{120} 1\,dx | \operatorname{lcm}(40,60) | \max(7,120)
36 == 36 != \operatorname{lcm}(12,18) | \sum_{k=1}^{8} k | \text{lcm}(12,18) | \lfloor 36.5\rfloor
6 == 6 != \gcd(12,18) | \min(6,7) | \gcd(18, 24) | \left|\{1,2,3,4,5,6\}\right| | 13 \bmod 7
3 == 3 != \lfloor\pi\rfloor | \lceil 2.5\rceil | \sum_{k=1}^{2}k | \max\{1,2,3\} | \lim_{x\to3}x
-2 == -2 != \begin{vmatrix}1&2\\3&4\end{vmatrix} | \det\begin{pmatrix}1&2\\3&4\end{pmatrix} | \min(-2,5)
2x == 2x != \frac{d}{dx}x^2 | \frac{\partial}{\partial x}x^2 | (x^2)' | \lim_{h\to0}\frac{(x+h)^2-x^2}{h}
\frac{1}{3} == \frac{1}{3} != \int_0^1 x^2\,dx | \lim_{n\to\infty}\frac{n}{3n+1} |
    \sum_{n=1}^{\infty}\frac{1}{4^n}
\begin{pmatrix}19&22\\43&50\end{pmatrix} == \begin{pmatrix}19&22\\43&50\end{pmatrix}  !=
    \begin{pmatrix}1&2\\3&4\end{pmatrix}\begin{pmatrix}5&6\\7&8\end{pmatrix}
""")
"""What a question may ask for, and what is not worked out yet."""


@kind
def pending(draw: random.Random) -> Answer:
    """Answers that still hold what the question asked to work out, and golds that may hold it."""
    if draw.random() < 0.6:
        gold, _, wrong = draw.choice(_PENDING)
        return made(
            "pending",
            gold,
            gold,
            wrong=wrong,
            also=[Fraction(gold)] if gold.lstrip("-").isdigit() else [Fraction(1, 3)],
        )
    n = draw.randint(2, 9)
    gold = f"\\sum_{{k=1}}^{{n}} \\frac{{{n}}}{{k}}"
    equal = forms(rf"\sum_{{k=1}}^n\frac{{{n}}}{{k}} | \sum_{{k=1}}^{{n}} {n}/k")
    different = forms(
        rf"\sum_{{k=1}}^{{n}} \frac{{{n + 1}}}{{k}} | \sum_{{k=0}}^{{n}} \frac{{{n}}}{{k+2}}"
        rf" | \prod_{{k=1}}^{{n}} \frac{{{n}}}{{k}} | \frac{{{n}}}{{k}}"
    )
    return made("pending", gold, gold, equal, different)
