"""Tests of labels in other trainers' data sets: what each means, and which are refused."""

import json
from typing import Any

import pytest

from reward.rows import BadLabel, NoAnswer, content_id, domain_and_task, opens_thought, request_of_label

TESTS = {"inputs": ["1\n"], "outputs": ["2\n"]}
PUZZLE = {"task": "chain_sum", "entry": {"question": "4 + 3 =", "answer": "7", "metadata": {}}}
RULES = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
OBJECTS = [
    ({"domain": "code", "task": TESTS}, "code", TESTS),
    ({"domain": "logic", "task": PUZZLE, "source": "x"}, "logic", PUZZLE),
    ({"domain": "logic", **PUZZLE}, "logic", PUZZLE),
    ({"domain": "stem", "answer": "B"}, "stem", {"answer": "B"}),
    (TESTS, "code", TESTS),
    ({**TESTS, "fn_name": "double"}, "code", {**TESTS, "fn_name": "double"}),
    (RULES, "instruction", RULES),
    (PUZZLE, "logic", PUZZLE),
    ({"answer": "4"}, "math", {"answer": "4"}),
    ({"answer": 4}, "math", {"answer": "4"}),
]


@pytest.mark.parametrize(
    "encode", [lambda label: label, json.dumps, lambda label: f" \n{json.dumps(label)}\n"]
)
@pytest.mark.parametrize(("label", "domain", "task"), OBJECTS)
def test_an_object_is_the_task_that_it_has(label: Any, domain: str, task: Any, encode: Any) -> None:
    before = json.dumps(label)
    assert domain_and_task(encode(label)) == (domain, task)
    assert json.dumps(label) == before


@pytest.mark.parametrize(
    "label",
    [
        "72",
        "infinity",
        "[1, 2]",
        "{1,2}",
        "{1, 2}",
        "{}",
        "(0, 1)",
        "\\frac{1}{2}",
        "null",
        "true",
        '"4"',
        "{x : x > 0}",
        "{",
    ],
)
def test_text_that_is_no_object_is_the_answer(label: str) -> None:
    assert domain_and_task(label) == ("math", {"answer": label})
    assert domain_and_task(label, "stem") == ("stem", {"answer": label})


def test_numbers_are_answers() -> None:
    for number, answer in ((72, "72"), (0.5, "0.5"), (27.0, "27")):
        assert domain_and_task(number) == ("math", {"answer": answer})


@pytest.mark.parametrize(
    "nothing", [None, "", " \n", float("nan"), float("inf"), -float("inf"), "nan", " NaN "]
)
@pytest.mark.parametrize("form", [None, {}, {"domain": "stem"}, {"domain": "math", "task": ...}])
def test_a_missing_answer_is_none_in_every_form(nothing: Any, form: dict[str, Any] | None) -> None:
    """pandas and json.dumps write NaN where an answer is missing."""
    label = nothing
    if form is not None:
        label = {**form, "task": {"answer": nothing}} if "task" in form else {**form, "answer": nothing}
    with pytest.raises(NoAnswer):
        domain_and_task(label)


@pytest.mark.parametrize(
    ("label", "default_domain", "word"),
    [
        (None, "math", "NoneType"),
        (True, "math", "bool"),
        (["4"], "math", "list"),
        ("", "math", "empty"),
        ("  ", "math", "empty"),
        ({}, "math", "no fields"),
        ({"input": ["1"], "output": ["2"]}, "math", "'input'"),
        ('{"input": ["1"], "output": ["2"]}', "math", "'input'"),
        ({"domain": "poetry", "task": {}}, "math", "poetry"),
        ({"domain": ["math"], "task": {}}, "math", "domain"),
        ("4", "poetry", "poetry"),
        ("4", "code", "code"),
        ({"answer": "4"}, "logic", "logic"),
    ],
)
def test_a_label_without_a_task_is_refused_in_a_sentence(label: Any, default_domain: str, word: str) -> None:
    with pytest.raises(BadLabel, match=word) as refusal:
        domain_and_task(label, default_domain)
    assert "\n" not in str(refusal.value)


def test_json_as_deep_as_it_likes_is_no_crash() -> None:
    assert domain_and_task('{"a":' * 100_000)[0] == "math"


def test_numbers_and_arrays_of_numpy_become_pythons_own() -> None:
    """Parquet rows contain them, and JSON cannot represent them."""
    np = pytest.importorskip("numpy")
    for number in (np.int64(4), np.array(4)):
        assert domain_and_task(number) == ("math", {"answer": "4"})
    tests = {"inputs": np.array(["1\n", "2\n"], object), "outputs": np.array([np.array([2]), np.array([4])])}
    for label in (tests, {"domain": "code", "task": tests}, {"domain": np.str_("code"), **tests}):
        domain, task = domain_and_task(label)
        assert (domain, json.loads(json.dumps(task))) == (
            "code",
            {"inputs": ["1\n", "2\n"], "outputs": [[2], [4]]},
        )
    with pytest.raises(BadLabel, match="not list"):
        domain_and_task(np.array(["4"]))


def test_a_label_that_holds_itself_is_refused_in_a_sentence() -> None:
    label: dict[str, Any] = {"answer": "4"}
    label["more"] = [label]
    with pytest.raises(BadLabel, match="cannot be written as JSON"):
        domain_and_task(label)


def test_the_request() -> None:
    request = request_of_label("\\boxed{4}", "4", in_thought=True)
    assert (request.domain, request.task, request.in_thought) == ("math", {"answer": "4"}, True)
    assert request_of_label("\\boxed{4}", "4", in_thought=True) == request
    assert request_of_label("\\boxed{4}", "4").request_id != request.request_id


def test_ids_of_content_differ_where_the_content_does() -> None:
    assert content_id("a", "b") != content_id("ab", "")
    assert content_id({"a": 1, "b": 2}) == content_id({"b": 2, "a": 1})
    assert content_id("\ud800") != content_id("?")


@pytest.mark.parametrize(
    ("prompt", "opens"),
    [
        ("<|Assistant|><think>\n", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("Begin with <think>.<|Assistant|>", False),
        ([{"role": "user", "content": "<think>"}], False),
        (None, False),
    ],
)
def test_whether_a_prompt_opens_a_thought(prompt: Any, opens: bool) -> None:
    assert opens_thought(prompt) is opens
