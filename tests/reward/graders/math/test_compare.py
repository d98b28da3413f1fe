"""Tests of what is equal to what, by type, and of what only looks the same."""

import pytest

from reward.graders import grade


def score(gold: str, answer: str, domain: str = "math", **options: object) -> float:
    return grade(domain, f"\\boxed{{{answer}}}", {"answer": gold, **options}).score


CASES = "\\begin{cases}%s\\end{cases}"


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\frac{1}{3}", r"0.\overline{3}"),
        (r"0.1\overline{6}", r"\frac{1}{6}"),
        (r"-\frac{4}{3}", r"-1.\bar{3}"),
        (r"\frac{1}{3}", r"0.\dot{3}"),
        ("-3", "−3"),
        (r"2\sqrt{3}", "2√3"),
        (r"\sqrt{x+1}", "√(x+1)"),
        (r"2\pi", "2π"),
        (r"3\times 10^{12}", "3×10¹²"),
        (r"30^\circ", "30°"),
        (r"[1,2]\cup[3,4]", "[1,2]∪[3,4]"),
        ("1000000", r"1\,000\,000"),
        ("6", "6,"),
        (r"-2\frac{3}{4}", r"-\frac{11}{4}"),
        (r"x^2+y^2=4", r"x^2+y^2-4=0"),
        ("e", "e^1"),
        ("i", r"i"),
        ("2:3:4", "2 : 3 : 4"),
        ("S_1:S=7:32", "7:32"),
        (CASES % r"x & x>0\\-x & x\le 0", CASES % r"-x, & \text{if } x\le 0\\x, & \text{if } x>0"),
        (r"25^\circ \text{C}", "25"),
        (r"25^\circ \text{C}", r"25\text{ C}"),
        ("f'(x)", "f'(x)"),
        ("2x", "f'(x) = 2x"),
        ("5", r"\bar{x} = 5"),
        ("25", r"\|v\|^2 = 25"),
        ("101_2", "101_{2}"),
    ],
)
def test_the_same_in_another_notation(gold: str, answer: str) -> None:
    assert score(gold, answer) == 1


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"0.\overline{3}", "0.3"),
        (r"-2\frac{3}{4}", r"-\frac{5}{4}"),
        ("(100,200)", "100200"),
        ("2:3:4", "2:4:3"),
        ("101_2", "101_3"),
        (r"3:45 \text{ p.m.}", r"3:45 \text{ a.m.}"),
        ("f'(x)", "f(x)"),
        ("z", r"\overline{z}"),
        (r"\det A", "A"),
        (r"\neg p", "p"),
        ("A^T", "A"),
        (r"25^\circ \text{C}", r"25^\circ \text{F}"),
        (CASES % r"x & x>0\\-x & x<0", CASES % r"x & x>0\\x & x<0"),
        (CASES % r"x=1\\y=2", CASES % r"x=2\\y=1"),
        (CASES % r"x & x>0\\-x & x<0", "x"),
        (r"\frac{1}{10^{20}}", r"\frac{1}{10^{21}}"),
        (r"x=1 \text{ or } x=2", "1"),
        (r"x=1 \text{ or } x=2", r"x=1 \text{ or } x=3"),
    ],
)
def test_what_only_looks_the_same(gold: str, answer: str) -> None:
    assert score(gold, answer) == 0
    assert score(answer, gold) == 0


@pytest.mark.medium
@pytest.mark.parametrize("link", ["to", "or", "/", "if", "but maybe", "and", "vs"])
@pytest.mark.parametrize("form", ["%s\\text{ %s }%s", "x=%s\\text{ %s }x=%s", "%s %s %s", "\\text{%s %s %s}"])
def test_two_guesses_are_never_right_for_both(form: str, link: str) -> None:
    answer = form % ("3", link, "7")
    assert score("3", answer) + score("7", answer) <= 1


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (r"5 \times 10^{-19}", r"2 \times 10^{-19}"),
        (r"2.89 \times 10^{-19} \text{ J}", "2.88e-19"),
        (r"E = 2.89 \cdot 10^{-19}", r"2.88 \times 10^{-19} \mathrm{~J}"),
        ("2.89e-19", "2.88e-19"),
        ("0.00000000289", "0.00000000288"),
        ("10^{-8}", "10^{-9}"),
        ("0.0000123", "0.000012"),
        ("0.0000000001", "0"),
    ],
)
def test_small_numbers_differ(answer: str, gold: str) -> None:
    assert score(gold, answer) == 0
    assert score(answer, gold) == 0


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (r"1.07 \times 10^{16}", "1.07e16"),
        (r"1.07 \cdot 10^{16} \text{ m}", "1.07e16"),
        ("1.07e16", r"1.07 \times 10^{16}"),
        (r"2.88 \times 10^{-19}", "2.88e-19"),
        (r"28.8 \times 10^{-20}", "2.88e-19"),
        ("6.7e-4", "0.00067"),
        (r"C = 10^{-8} \text{ F}", "1e-8"),
        ("-0.5", r"-\frac{1}{2}"),
        ("0", "0"),
        (".05", "0.05"),
        (r"5\%", r"0.05"),
    ],
)
def test_the_same_number_in_another_form(answer: str, gold: str) -> None:
    assert score(gold, answer) == 1
    assert score(answer, gold) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"5\text{ cm}", "5 m"),
        (r"5\text{ cm}", r"5\text{ cm}^2"),
        (r"5\text{ square inches}", r"5\text{ inches}"),
        (r"5 \mathrm{~m/s}", r"5 \mathrm{~km/h}"),
        (r"\frac{5}{2}\text{ hours}", r"\frac{5}{2}\text{ minutes}"),
        (r"\$5", r"5\text{ cents}"),
        (r"3.2 \times 10^{-19} \mathrm{~J}", r"3.2 \times 10^{-19} \mathrm{~eV}"),
        (r"2\sqrt{3}\text{ m}", r"x = 2\sqrt{3}\text{ mm}"),
        ("5 mW", "5 MW"),
        (r"5 \frac{\text{m}}{\text{s}}", r"5 \frac{\text{m}}{\text{s}^2}"),
    ],
)
def test_different_units(one: str, other: str) -> None:
    assert score(one, other) == score(other, one) == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"5\text{ cm}", r"5\text{ centimeters}"),
        (r"5\text{ cm}", r"5 \mathrm{~cm}."),
        (r"5\text{ cm}^2", r"5\text{ square centimeters}"),
        (r"5\text{ cm}^2", r"5\text{ cm squared}"),
        (r"10\text{ N}", r"10 \text{ kg m/s}^2"),
        (r"5 \mathrm{~m} \mathrm{~s}^{-2}", r"5\frac{\text{m}}{\text{s}^{2}}"),
        (r"10\text{ J/(kg K)}", r"10 \text{ J} \cdot \text{kg}^{-1} \cdot \text{K}^{-1}"),
        (r"1\text{ L}", r"1\text{ dm}^3"),
        (r"\$5", r"5\text{ dollars}"),
        ("3 hr", "3 Hours"),
        ("5 ms^{-1}", "5 m/s"),
    ],
)
def test_the_same_unit_by_another_name(one: str, other: str) -> None:
    assert score(one, other) == score(other, one) == 1


@pytest.mark.parametrize(
    ("answer", "gold"),
    [(r"5\text{ cm}", "5"), ("5", r"5\text{ cm}"), (r"5\text{ centimeters}", r"5\text{ cm}")],
)
def test_a_missing_unit_is_never_wrong(answer: str, gold: str) -> None:
    assert score(gold, answer) == 1


@pytest.mark.parametrize(
    "answer",
    ["B", "b", "(B)", "B.", "$B$", "{B}", r"\(B\)", r"\text{B}", r"\textbf{(B) }", "Option B", r"\text{option (B)}",
     "**B**", "(B) 5 cm", r"\text{B. ionic bond}", r"\textbf{(B)}\ 5", r"B: \frac{1}{2}"],
)  # fmt: skip
def test_an_option_in_any_dress(answer: str) -> None:
    assert score("B", answer, "stem") == 1
    assert score("C", answer, "stem") == 0


@pytest.mark.parametrize(
    "answer",
    [
        "A, B",
        "AB",
        "A or B",
        "B)",
        "-B",
        "2B",
        "B'",
        "B = 5",
        "(B) 5, (C) 6",
        "B. x, A. y",
        r"\text{A and B}",
        "not B",
        "",
    ],
)
def test_what_is_not_the_one_option(answer: str) -> None:
    assert score("B", answer, "stem") == 0


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("mitochondria", r"\text{The mitochondria.}", 1),
        ("covalent bond", "Covalent  Bond", 1),
        ("red and blue", "blue and red", 1),
        ("minute", "hour", 0),
        (r"\text{hour}", r"\text{day}", 0),
        ("per second", "per minute", 0),
        ("daylight", "light", 0),
        ("listen", "silent", 0),
        ("Newton's third law", "Newton's second law", 0),
        ("5 minutes", "5", 1),
        ("H_2O", "H2O", 1),
        ("H_2O", r"\ce{H2O}", 1),
        (r"\text{C}_6\text{H}_{12}\text{O}_6", "C_6H_{12}O_6", 1),
        ("H_2O", "H_2O_2", 0),
        ("Fe^{3+}", "Fe^{2+}", 0),
        ("1s^{2}2s^{2}2p^{6}", "1s^2 2s^2 2p^6", 1),
        ("1s^{2}2s^{2}2p^{6}", "1s^22s^22p^6", 1),
        ("1s^{2}2s^{2}2p^{6}", "1s² 2s² 2p⁶", 1),
        ("1s^{2}2s^{2}2p^{6}", "1s^22s^22p^5", 0),
        ("1s^{22}s^{22}p^{6}", "1s^22s^22p^6", 0),
        ("[Ar]3d^{10}4s^{2}", r"\text{[Ar] }3d^{10}4s^2", 1),
        (r"2H_2 + O_2 \rightarrow 2H_2O", r"\ce{2H2 + O2 -> 2H2O}", 1),
        (r"2H_2 + O_2 \rightarrow 2H_2O", r"\ce{2H2 + O2 -> H2O2}", 0),
        ("[Co(NH_3)_6]^{3+}", r"[\text{Co(NH}_3)_6]^{3+}", 1),
        ("sp^3", r"\text{sp}^3", 1),
        ("sp^3", r"\text{sp}^2", 0),
        ("A → B", r"\text{A → B}", 1),
        ("5 hours 30 minutes", r"5\text{ hours } 30\text{ minutes}", 1),
        (r"5\text{ hours } 30\text{ minutes}", "5 hours 30 minutes", 1),
        ("n", "n", 1),
        ("n", "m", 0),
    ],
)
def test_words_and_formulas(gold: str, answer: str, right: int) -> None:
    assert score(gold, answer, "stem") == right
