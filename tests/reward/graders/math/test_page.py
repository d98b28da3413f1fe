"""Tests that a box has one reading, and that nothing in it is hidden."""

import pytest

from reward.graders import grade
from reward.graders.math import commands
from reward.graders.math.page import Unreadable, read, show


def score(gold: str, answer: str, domain: str = "math", **options: object) -> float:
    return grade(domain, f"\\boxed{{{answer}}}", {"answer": gold, **options}).score


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"(0,\frac{1}{2})", "0<x<0.5"),
        (r"(0,\frac{\pi}{2})", r"0<x<\frac\pi2"),
        (r"(2,\sqrt{12})", r"2<x<2\sqrt{3}"),
        (r"\frac12:3:4", "1/2:3:4"),
        (r"[50\%,60\%]", r"50\% \le x \le 60\%"),
        ("(3,5)", r"\{x | 3<x<5\}"),
    ],
)
def test_parts_that_are_written_in_another_way_are_right(gold: str, answer: str) -> None:
    assert score(gold, answer) == 1


@pytest.mark.parametrize(
    "hiding",
    [
        r"\label{\to V}", r"\hspace{. V}", r"\vphantom{V}", r"\hphantom{\to V}", r"\phantom{=V}", r"\color{\to V}",
        r"\xrightarrow{V}", r"\cite{V}", r"\footnote{V}", r"\input{V}", r"\tag{V}", r"\cancel{V}", r"\not{V}",
        r"\stackrel{V}{=}", r"\overset{V}{=}", r"\substack{V}", r"\underbrace{}_{V}", r"\href{V}{}", r"\rule{V}{0pt}",
        r"\kern V", r"\def\a{V}", r"\begin{comment}V\end{comment}", "\u200b V", r"\verb|V|", r"\raisebox{0pt}{V}",
    ],
)  # fmt: skip
def test_what_is_not_shown_makes_a_box_unreadable(hiding: str) -> None:
    for gold in ("630", "12"):
        found = grade("math", "\\boxed{630" + hiding.replace("V", "12") + "}", {"answer": gold})
        assert (found.score, found.verdict) == (0, "unreadable")
        assert found.details["reason"]


@pytest.mark.parametrize(
    ("box", "gold"),
    [
        (r"\frac{\pi}{2}", r"\frac{1}{2\pi}"),
        (r"\frac{1}{2+3}", r"\frac{7}{2}"),
        (r"\binom{5}{2}", "52"),
        (r"\sqrt[3]{8}", r"\sqrt{8}"),
        ("101_2", "1012"),
        ("1012", "101_2"),
        ("5 12", "17"),
        ("5 12", "512"),
        (r"5 \ne 12", "17"),
        (r"5 \land 12", "17"),
        (r"5\quad 12", "17"),
        ("5(12)", "17"),
        ("7 3/4", r"\frac{73}{4}"),
        ("7 3/4", r"\frac{5}{2}"),
        ("2^{1+1}", "3"),
        (r"\overline{12}", "12"),
        (r"1, \ldots, 5", "1,5"),
        (r"5^\circ 12'", "17"),
        (r"\gcd(5,12)", "(5,12)"),
        (r"3\text{i}", "3"),
        (r"3\text{x}", "3"),
        ("63_0", "630"),
    ],
)
def test_what_one_of_the_readers_alone_misread(box: str, gold: str) -> None:
    assert score(gold, box) == 0


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
        ("7 3/4", "7 3/4"),
        (r"x=1 \quad y=2", "x=1y=2"),
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


def test_an_answer_that_is_written_as_an_unreadable_gold_is_right() -> None:
    gold = r"\begin{pmatrix} 1 & \phantom -1 \end{pmatrix}"
    assert score(gold, gold) == 1
    assert score(gold, r"\phantom{1}") == 0


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("12", r"12 \text{ cm}^2"),
        ("12", "12 cm^2"),
        ("25", r"25\,^{\circ}\mathrm{C}"),
        ("300", r"300\mathrm{~K}"),
        ("5x^2", r"5\text{x}^2"),
        ("AB", r"\overline{AB}"),
        (r"30^\circ 15'", r"30^\circ15'"),
        (r"\frac{\sqrt{2}}{2}", "2^{-1/2}"),
        ("12", r"12 \quad \text{(mod 13)}"),
        ("12", r"\approx 12"),
        (r"\frac{1}{\sqrt{2}}c", r"\frac{c}{\sqrt{2}}"),
    ],
)
def test_what_readers_read_apart_and_is_right_all_the_same(gold: str, answer: str) -> None:
    assert score(gold, answer) == 1


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("v_{max}", r"v_\text{max}"),
        (r"v_\text{max}", "v_{max}"),
        ("v_{max}", r"v_{\mathrm{max}}"),
        (r"\rho_{max}", r"\rho_{\text{max}}"),
        (r"\frac{1}{2}mv_{rms}^2", r"\frac12mv_{\text{rms}}^2"),
        ("k_B T", r"k_{\text{B}} T"),
        ("k_B T", r"k_\mathrm{B} T"),
    ],
)
def test_an_index_is_the_same_upright(gold: str, answer: str) -> None:
    assert score(gold, answer) == 1
    assert score("v_{min}", answer) == 0


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("12", "a) 12"), ("12", "1) 12"), ("12", "i) 12"), ("12", r"\sim 12"), ("3", r"\simeq 3"), ("12", ": 12"),
        ("12", r"\pounds 12"), (r"\binom{n}{k}", r"{n \choose k}"), ("2500000", r"\frac52\text{ million}"),
        ("5", r"5\text{厘米}"), ("12", r"12 \text{元}"), ("5", "5厘米"), (r"5\text{ cm}", r"5\text{厘米}"),
        (r"A \rightleftharpoons B", "A ⇌ B"), (r"\frac{\hbar\omega}{2}", "ħω/2"), (r"a\to b", r"a \longrightarrow b"),
    ],
)  # fmt: skip
def test_what_models_write_instead(gold: str, answer: str) -> None:
    assert score(gold, answer) == 1


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("1", "1) 12"),
        ("12a", "a) 12"),
        (r"5\text{ m}", r"5\text{厘米}"),
        ("5", r"5\text{或}6"),
        ("5", r"5\text{ million}"),
    ],
)
def test_what_is_read_as_something_else(gold: str, answer: str) -> None:
    assert score(gold, answer) == 0


def test_commands_with_a_sign_of_their_own_in_unicode_have_it() -> None:
    twins = {latex.strip("\\ ") for latex in commands.CHARACTERS.values()}
    shown = {commands.SYNONYMS.get(name, name) for name in twins}
    without = commands.LETTERS | commands.SIGNS | commands.RELATIONS
    without -= {"varphi", "imath", "jmath", "bot", "mid", "bmod"}  # read as another command, or as ASCII
    assert without - shown == set()
    for character in commands.CHARACTERS:
        read(character if character.isspace() or character in "’‘′" else f"{character} ")
