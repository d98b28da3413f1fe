"""Tests of acceptance cases, each from the tests of some project, and of input that hangs or executes elsewhere."""

from collections import Counter

import pytest

sympy = pytest.importorskip("sympy")
pytest.importorskip("math_verify")

from reward.graders import grade  # noqa: E402
from reward.graders.grade import InvalidTask  # noqa: E402
from reward.graders.math_answer import hedge  # noqa: E402
from reward.graders.safe_expression import is_cheap, is_harmless, parse_safely  # noqa: E402
from tests.reward.serving import Server, boxed, rows  # noqa: E402

DEVIATIONS = {
    "p003": "a decimal comma is read as a list: 1000,99 could be either",
    "h60": "a column vector is not a tuple",
    "h67": "notations of the binomial coefficient are not unified",
}
CASES = rows("math_cases.jsonl")


def score(gold: str, answer: str, **options: object) -> float:
    return grade("math", f"<think>so</think> \\boxed{{{answer}}}", {"answer": gold, **options}).score


@pytest.mark.medium
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_acceptance_case(case: dict[str, str]) -> None:
    found = int(grade("math", case["response"], {"answer": case["gold"]}).score)
    assert (found == case["expected"]) == (case["id"] not in DEVIATIONS), (case["gold"], case["answer"])


def test_at_least_97_percent_of_the_peers_cases() -> None:
    kinds = Counter(case["kind"] for case in CASES)
    counted = kinds["peer"] + kinds["policy"] + kinds["stem_peer"]
    missed = sum(case["id"] in DEVIATIONS and case["kind"] != "hedge" for case in CASES)
    assert missed / counted < 0.03


def test_every_gold_equals_itself() -> None:
    for case in CASES:
        if case["kind"] == "peer" and "boxed" not in case["gold"]:
            assert (
                grade("math", f"\\boxed{{{case['gold']}}}", {"answer": case["gold"], "guards": False}).score
                == 1
            )


@pytest.mark.parametrize(
    ("gold", "answer", "reason"),
    [
        ("5", "3 \\text{ or } 5", "or"),
        ("5", "1=2=3=4=5", "="),
        ("5", "5 \\text{ cm}=7", "="),
        ("\\frac{1}{3}", "0.333333", "decimal"),
        ("1,234", "1, 234", "list"),
        ("(1,2)", "\\{1,2\\}", "set"),
    ],
)
def test_guards_refuse_hedges_and_can_be_switched_off(gold: str, answer: str, reason: str) -> None:
    assert hedge(answer, gold) == reason
    assert score(gold, answer) == 0
    grade("math", f"\\boxed{{{answer}}}", {"answer": gold, "guards": False})


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("5", "x = 5"),
        ("2", "1+1 = 2"),
        ("\\frac{1}{2}", "\\frac{1}{2} = 0.5"),
        ("2,3", "2 \\text{ or } 3"),
        ("y=2x", "y = 2x"),
        ("[1,2] \\cup \\{0\\}", "\\{0\\} \\cup [1,2]"),
    ],
)
def test_guards_leave_honest_answers_alone(gold: str, answer: str) -> None:
    assert score(gold, answer) == 1


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("v_0 t", "v_0", 0),
        ("v_0 t", "t v_0", 1),
        ("\\frac{mg}{k} t", "\\frac{mg}{k}", 0),
        ("2\\pi r h", "2\\pi r", 0),
        ("\\cos m", "\\cos t", 0),
        ("\\exp{-t}\\cos{t}", "e^{-t}\\cos t", 1),
        ("\\sin^2{t}", "\\sin^2 t", 1),
        ("5", "5 m", 1),
        ("5", "x = 5 m", 1),
        ("1.2e5", "1.2e5 m", 1),
        ("12", "12 \\text{ sq } m", 1),
        ("\\frac52", "\\frac{5}{2} s", 1),
    ],
)
def test_a_last_letter_is_a_unit_behind_a_number_only(gold: str, answer: str, right: int) -> None:
    assert score(gold, answer) == right


@pytest.mark.parametrize(
    ("gold", "answer", "right"), [("B", "(b)", 1), ("B", "\\text{(B)}", 1), ("B", "C", 0), ("B", "ABCD", 0)]
)
def test_option_letters(gold: str, answer: str, right: int) -> None:
    assert score(gold, answer) == right


@pytest.mark.parametrize(
    "text",
    [
        "().__class__",
        "a.b",
        "'a'*9**9",
        "[x]*10**10",
        "lambda: 1",
        "open('f')",
        "x if y else z",
        "__import__",
        "f{1}",
        "a;b",
        "0x1f.real",
    ],
)
def test_nothing_but_arithmetic_reaches_sympy(text: str) -> None:
    assert not is_harmless(text)
    assert parse_safely(text) is None


@pytest.mark.parametrize(
    "name", ["exec", "eval", "open", "sympify", "lambdify", "preview", "getattr", "compile", "input", "exit"]
)
def test_names_are_symbols_unless_they_are_mathematics(name: str) -> None:
    parsed = parse_safely(f"{name}(2)")
    assert parsed is None or isinstance(parsed, sympy.Basic)  # a function symbol of that name, applied to 2


@pytest.mark.parametrize(
    "text",
    ["9**9**9**9", "9^{9^{9}}", "((9!)!)!", "10^{100000}", "1e999999", "\\int_0^1 x dx", "(" * 99 + ")" * 99],
)
def test_astronomical_arithmetic_is_refused(text: str) -> None:
    assert not is_cheap(text)


@pytest.mark.parametrize(
    "text", ["2^{10}", "x^{2^3}", "5!", "\\frac{1}{2^{100}}", "e^{-x^2}", "\\binom{10}{3}", "2^{2003}-1"]
)
def test_ordinary_arithmetic_is_not_refused(text: str) -> None:
    assert is_cheap(text)


@pytest.mark.parametrize(
    "task", [{}, {"answer": ""}, {"answer": 5}, {"answer": "x" * 6000}, {"answer": "5", "guards": 1}]
)
def test_a_task_without_a_usable_answer_is_invalid(task: dict[str, object]) -> None:
    with pytest.raises(InvalidTask):
        grade("math", "\\boxed{5}", task)


def test_missing_think_end_is_zero_only_on_demand() -> None:
    assert grade("math", "\\boxed{5}", {"answer": "5"}).score == 1
    assert grade("math", "\\boxed{5}", {"answer": "5", "require_think": True}).verdict == "no_think_end"
    assert grade("math", "<think>\\boxed{5}", {"answer": "5"}).verdict == "open_thought"


@pytest.mark.slow
def test_nothing_hangs_the_service(server: Server) -> None:
    cases = rows("math_hang_cases.jsonl")
    before = len(server.descendants())
    for case in cases:
        result = server.score(boxed(case["answer"], case["gold"]))
        assert result["score"] == 0, (case["id"], result)
    assert server.score(boxed("5", "5"))["score"] == 1
    assert abs(len(server.descendants()) - before) <= 2
