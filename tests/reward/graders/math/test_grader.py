"""Tests of acceptance cases, each from the tests of some project, and of input that hangs or executes elsewhere."""

import sys
from collections import Counter

import pytest

from reward.graders import grade
from reward.graders.grade import InvalidTask
from tests.reward.serving import Server, boxed, rows

DEVIATIONS = {
    "p003": "a decimal comma is read as a list: 1000,99 could be either",
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
            assert grade("math", f"\\boxed{{{case['gold']}}}", {"answer": case["gold"]}).score == 1


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("5", "3 \\text{ or } 5"),
        ("5", "1=2=3=4=5"),
        ("5", "5 \\text{ cm}=7"),
        ("\\frac{1}{3}", "0.333333"),
        ("1,234", "1, 234"),
        ("(1,2)", "\\{1,2\\}"),
    ],
)
def test_a_box_that_hedges_is_wrong(gold: str, answer: str) -> None:
    assert score(gold, answer) == 0


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
def test_an_honest_answer_is_no_hedge(gold: str, answer: str) -> None:
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
    "task",
    [
        {},
        {"answer": ""},
        {"answer": 5},
        {"answer": "x" * 6000},
        {"answer": "5", "evaluated": 1},
        {"answer": "5", "verifier": "ours"},
    ],
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


@pytest.mark.parametrize("case", rows("math_notations.jsonl"), ids=lambda case: case["answer"])
def test_notations(case: dict[str, str]) -> None:
    assert score(case["gold"], case["answer"]) == (case["verdict"] == "right")


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("56088", r"123\times456", 0),
        ("56088", "56088", 1),
        ("56088", "56,088", 1),
        ("1024", "2^{10}", 0),
        ("-5", "-5", 1),
        ("5", "7-2", 0),
        (r"\frac{1}{2}", "0.5", 1),
        ("3000", r"3\times10^{3}", 1),
        ("12", r"12\text{ cm}^2", 1),
        ("x+1", "1+x", 1),
    ],
)
def test_arithmetic_must_be_carried_out_on_demand(gold: str, answer: str, right: int) -> None:
    assert score(gold, answer, evaluated=True) == right


def test_details_say_types_rule_and_judge() -> None:
    found = grade("math", "\\boxed{x = 0.5}", {"answer": "\\frac12"})
    assert {
        "answer_type": "relation",
        "gold_type": "number",
    }.items() <= found.details.items()
    assert found.details["rule"] == "value of a chain"
    assert "5 12" in grade("math", "\\boxed{5 12}", {"answer": "5"}).details["extracted"]


def test_boxes_one_after_another_are_a_list() -> None:
    text = "so $x=\\boxed{1}$ and $\\boxed{2}$"
    assert grade("math", text, {"answer": "1,2"}).score == 1
    assert grade("math", text, {"answer": "1"}).score == 0


@pytest.mark.parametrize("verifier", ["mathd", "", None, 1, [], {}, True])
def test_an_unknown_verifier_is_an_invalid_task(verifier: object) -> None:
    known = '"verifier" must be one of "reading", "papers", "deepscaler", "math_verify"'
    with pytest.raises(InvalidTask, match=known):
        score("5", "5", verifier=verifier)
    assert score("5", "5", verifier="reading") == 1


def test_the_papers_verifiers_are_refused_where_they_are_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "reward.graders.math.papers", raising=False)
    monkeypatch.setitem(sys.modules, "math_verify", None)
    for verifier in ("papers", "deepscaler", "math_verify"):
        with pytest.raises(InvalidTask, match=r"needs math_verify: .*pip install .*papers") as caught:
            score("5", "5", verifier=verifier)
        assert "\n" not in str(caught.value)
    assert score("5", "5") == 1
