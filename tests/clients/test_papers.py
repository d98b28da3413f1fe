"""Tests of the papers' verifiers, holes included: DeepScaleR's rules, math-verify, and either of them."""

import pytest

pytest.importorskip(
    "math_verify",
    reason='math-verify is not installed here: `make test-clients`, or pip install "./reward[papers]"',
)

from reward.graders import grade
from reward.graders.papers import accepts


@pytest.mark.parametrize("verifier", ["papers", "deepscaler", "math_verify"])
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
def test_all_of_them_agree(verifier: str, answer: str, gold: str, is_right: bool) -> None:
    assert accepts(verifier, f"So it is \\boxed{{{answer}}}.", gold) == is_right


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
    assert accepts("deepscaler", f"\\boxed{{{answer}}}", gold)


def test_the_papers_rule_is_either_of_the_two() -> None:
    decimal = ("\\boxed{0.333333}", "\\frac{1}{3}")
    mixed = ("\\boxed{0.5\\text{ hours}}", "\\frac{1}{2}\\text{ minutes}")
    found = {
        verifier: [accepts(verifier, *case) for case in (decimal, mixed)]
        for verifier in ("math_verify", "deepscaler", "papers")
    }
    assert found["papers"] == [one or other for one, other in zip(*list(found.values())[:2], strict=True)]
    assert [accepts(verifier, *decimal) for verifier in ("math_verify", "deepscaler")] == [True, False]


def test_deepscaler_wants_a_box_and_math_verify_searches_the_text() -> None:
    task = {"answer": "5"}
    found = {
        name: grade("math", "The answer is 5.", task | {"verifier": name})
        for name in ("deepscaler", "math_verify", "papers")
    }
    assert {name: one.verdict for name, one in found.items()} == {
        "deepscaler": "no_box",
        "math_verify": "correct",
        "papers": "correct",
    }


def test_details_name_the_verifier() -> None:
    found = grade("stem", "\\boxed{0.5}", {"answer": "\\frac{1}{2}", "verifier": "deepscaler"})
    assert found.details == {"extracted": "0.5", "gold": "\\frac{1}{2}", "verifier": "deepscaler"}
