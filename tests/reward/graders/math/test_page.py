"""Tests of what a box shows, in one spelling, and of what makes it unreadable."""

import pytest

from reward.graders.math import commands
from reward.graders.math.nodes import Unreadable, show
from reward.graders.math.page import CHARACTERS, read


@pytest.mark.parametrize(
    ("box", "shown"),
    [
        (r"\dfrac12", r"\frac{1}{2}"),
        (r"{7 \over 2}", r"\frac{7}{2}"),
        (r"\frac\pi2", r"\frac{\pi}{2}"),
        (r"\left(1,\;2\right)", "(1, 2)"),
        (r"\mathbf{12}", "12"),
        (r"\text{12 cm}", r"12 \text{cm}"),
        (r"\mbox{cm}", r"\text{cm}"),
        (r"\textcolor{red}{5}", "5"),
        (r"{\color{blue} 5}", "5"),
        (r"$5$", "5"),
        (r"\(5\)", "5"),
        ("$5", r"\$5"),
        ("1,234", "1,234"),
        ("1, 234", "1, 234"),
        ("(1,234)", "(1,234)"),
        ("10 000", "10 000"),
        (r"32,\! 349", "32349"),
        ("7 3/4", r"7\frac{3}{4}"),
        (r"x=1 \quad y=2", "x=1 y=2"),
        ("50%", r"50\%"),
        ("2^10", "2^{10}"),
        ("x_1", "x_{1}"),
        (r"x \not= 5", r"x\ne5"),
        ("12.", "12"),
        ("**17**", "17"),
        (r"\begin{aligned} x &= 1 \\ y &= 2 \end{aligned}", "x=1,y=2"),
        (r"\left(\begin{array}{c} 1 \\[4pt] 2 \end{array}\right)", r"(\begin{array}1 \\ 2\end{array})"),
        ("Schrödinger", "Schrödinger"),
    ],
)
def test_what_a_box_shows(box: str, shown: str) -> None:
    assert show(read(box)) == shown
    assert show(read(shown)) == shown


@pytest.mark.parametrize(
    "box",
    [r"5 \\ 12", "5 & 12", "5{", "5}", r"\frac{1}", r"\sqrt", "x^2^3", "5@12", "5 #1",
     r"\begin{pmatrix}1", r"\begin{verbatim}5\end{verbatim}", "аnswer", "5" + "{" * 100 + "}" * 100],
)  # fmt: skip
def test_what_cannot_be_read(box: str) -> None:
    with pytest.raises(Unreadable):
        read(box)


def test_commands_with_a_sign_of_their_own_in_unicode_have_it() -> None:
    twins = {latex.strip("\\ ") for latex in CHARACTERS.values()}
    shown = {commands.SYNONYMS.get(name, name) for name in twins}
    without = commands.LETTERS | commands.SIGNS | commands.RELATIONS
    without -= {"varphi", "imath", "jmath", "bot", "mid", "bmod"}  # read as another command, or as ASCII
    assert without - shown == set()
    for character in CHARACTERS:
        read(character if character.isspace() or character in "’‘′" else f"{character} ")
