"""Tests of second opinions, which nothing may mislead, and of the peers' own verdicts, which are as they are."""

import pytest

pytest.importorskip("math_verify")

from reward.graders.grade import InvalidTask
from reward.graders.math.peers import (
    SECOND_OPINIONS,
    VERIFIERS,
    check_verifier,
    grade_alone,
    second_opinion,
    verdict,
)


@pytest.mark.parametrize(
    ("answer", "gold", "peer"),
    [
        ("x^{2}+1", "x^{2} + 1", "mathd"),
        ("3/4", "\\frac{3}{4}", "mathd"),
        ("0.5x", "\\frac{x}{2}", "sympy"),
        ("\\sqrt{8}", "2\\sqrt{2}", "sympy"),
        ("x^{2}-1", "(x-1)(x+1)", "sympy"),
        ("2^{n}\\cdot 3^{n}", "6^{n}", "sympy"),
        ("2 a b", "2 b a", "sympy"),
        ("x=5", "x=\\frac{10}{2}", "math_verify"),
        ("\\frac{a}{b}c", "\\frac{a c}{b}", "math_verify"),
        ("\\log_{2}(8)", "3", "math_verify"),
        ("e^{2x}", "e^{x}e^{x}", "math_verify"),
        ("\\binom{n}{k}", "\\frac{n!}{k!(n-k)!}", "math_verify"),
        ("\\tan(\\alpha)", "\\frac{\\sin(\\alpha)}{\\cos(\\alpha)}", "math_verify"),
    ],
)
def test_a_peer_helps_out_in_either_direction(answer: str, gold: str, peer: str) -> None:
    assert second_opinion(answer, gold) == peer
    assert second_opinion(gold, answer) in SECOND_OPINIONS


REFUSED = [
    ("5\\text{ cm}", "5"),
    ("5\\%", "5"),
    ("30^{\\circ}", "30"),
    ("2ab", "2ba"),
    ("5 cm", "5"),
    ("AB", "BA"),
    ("1,2", "2,1"),
    ("(1,2)", "(1,2)"),
    ("1\\ldots 5", "1\\ldots 5"),
    ("x=7=5", "x=5"),
    ("1<x<3", "1<x<3"),
    ("f'(x)", "f(x)"),
    ("f(x)", "x f"),
    ("7\\frac{3}{4}", "\\frac{31}{4}"),
    ("1/2x", "\\frac{x}{2}"),
    ("\\sin 2x", "x\\sin 2"),
    ("\\sum_{k=1}^{3}k", "6"),
    ("\\lim_{x\\to 0}x", "0"),
    ("101_{2}", "101_{2}"),
    ("1.07e16", "1.07e16"),
    ("9^{9^{9^{9}}}", "9^{9^{9^{9}}}"),
    ("", ""),
]


@pytest.mark.parametrize(("answer", "gold"), REFUSED)
def test_what_a_peer_could_misread_is_refused(answer: str, gold: str) -> None:
    """Though some of these are equal: the reading has to say so."""
    assert second_opinion(answer, gold) is None
    assert second_opinion(gold, answer) is None


DIFFERENT = [
    ("\\frac{x}{X}", "\\frac{X}{x}"),
    ("X", "x"),
    ("\\Delta", "\\delta"),
    ("E", "e"),
    ("x^{a}b", "x^{a b}"),
    ("x=5", "y=5"),
    ("x=5", "5"),
    ("x<5", "x=5"),
    ("\\frac{x}{x}", "1"),
    ("-32t", "-32"),
    ("7t", "7h"),
    ("\\frac{1}{2^{98}}", "\\frac{1}{2^{99}}"),
    ("1+3^{-50}", "1-3^{-50}"),
    ("\\pi+10^{-20}", "\\pi"),
    ("x+10^{-20}", "x"),
    ("x\\cdot 10^{-20}", "2x\\cdot 10^{-20}"),
    ("0.3333333", "\\frac{1}{3}"),
    ("4.00000001", "4"),
    ("12345678901234567891", "12345678901234567892"),
    ("-7\\frac{3}{4}", "-\\frac{25}{4}"),
    ("a_{1}", "a_{2}"),
    ("\\sin(x)^{2}", "\\sin(x^{2})"),
    ("\\ln(x)^{2}", "\\ln(x^{2})"),
    ("\\log_{2}(x)", "\\log_{3}(x)"),
]


@pytest.mark.parametrize(("answer", "gold"), DIFFERENT)
def test_what_a_peer_throws_away_counts(answer: str, gold: str) -> None:
    assert second_opinion(answer, gold) is None
    assert second_opinion(gold, answer) is None


@pytest.mark.parametrize("peer", VERIFIERS[1:])
@pytest.mark.parametrize(
    ("answer", "gold", "is_right"),
    [
        ("1/2", "\\frac{1}{2}", True),
        ("0.5", "\\frac12", True),
        ("(1,2)", "\\boxed{(1, 2)}", True),
        ("X", "x", True),
        ("5\\text{ m}", "5\\text{ cm}", True),
        ("2", "3", False),
        ("9^{9^{9^{9}}}", "1", False),
        ("().__class__", "1", False),
        ("(" * 99, "1", False),
    ],
)
def test_a_peers_own_verdict_has_its_holes(peer: str, answer: str, gold: str, is_right: bool) -> None:
    assert verdict(peer, f"So it is \\boxed{{{answer}}}.", gold) == is_right


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("12 degrees", "12"),
        ("7 3/4", "\\frac{31}{4}"),
        ("k = 5", "5"),
        ("50\\%", "50"),
        ("(1, 0.5)", "(1,\\frac{1}{2})"),
        ("\\frac34", "3/4"),
        ("\\sqrt3", "\\sqrt{3}"),
        ("1,000", "1000"),
    ],
)
def test_deepscaler_accepts_what_it_always_did(answer: str, gold: str) -> None:
    assert verdict("deepscaler", f"\\boxed{{{answer}}}", gold)


def test_deepscaler_wants_a_box_and_math_verify_searches_the_text() -> None:
    assert verdict("math_verify", "The answer is 5.", "5")
    assert grade_alone("The answer is 5.", {"answer": "5", "verifier": "math_verify"}).score == 1
    grade = grade_alone("The answer is 5.", {"answer": "5", "verifier": "deepscaler"})
    assert (grade.score, grade.verdict) == (0.0, "no_box")


def test_a_peers_score_says_who_decided() -> None:
    grade = grade_alone("\\boxed{0.5}", {"answer": "\\frac{1}{2}", "verifier": "deepscaler"})
    assert (grade.score, grade.verdict) == (1.0, "correct")
    assert grade.details["decided_by"] == "deepscaler"
    assert (grade.details["extracted"], grade.details["gold"]) == ("0.5", "\\frac{1}{2}")


@pytest.mark.parametrize("verifier", ["mathd", "", None, 1, [], {}, True])
def test_an_unknown_verifier_is_an_invalid_task(verifier: object) -> None:
    with pytest.raises(InvalidTask, match='"verifier" must be one of "reading", "math_verify", "deepscaler"'):
        check_verifier({"answer": "5", "verifier": verifier})


@pytest.mark.parametrize("task", [{"answer": "5"}, *({"verifier": name} for name in VERIFIERS)])
def test_known_verifiers_are_valid(task: dict[str, object]) -> None:
    check_verifier(task)
