"""Tests of the layouts in which people store problems: each becomes the right row, or is refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nemo_prorl.config import ConfigError
from nemo_prorl.data.layouts import BadRecord, ColumnLayout, final_answer, recognise, row_of
from nemo_prorl.data.rows import Row

ASKED = ({"role": "user", "content": "2 + 2?"},)
SYSTEM = {"role": "system", "content": "Be brief."}
VERL = {
    "data_source": "openai/gsm8k",
    "prompt": [SYSTEM, *ASKED],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "4"},
    "extra_info": {"split": "test", "index": 7},
}


def converted(values: dict[str, Any], *, needs_answer: bool = True) -> Row:
    layout = recognise(values, needs_answer=needs_answer)
    return row_of(values, layout, uid="mine/0", source="mine", split="train", needs_answer=needs_answer)


@pytest.mark.parametrize(
    "values",
    [
        {"prompt": "2 + 2?", "answer": "4"},
        {"problem": "2 + 2?", "answer": 4},
        {"question": "2 + 2?", "answer": "Two and two make four.\n#### 4"},
        {"messages": list(ASKED), "ground_truth": "4"},
        {"prompt": json.dumps(list(ASKED)), "solution": "4"},
        {"problem": "2 + 2?", "solution": r"We add: $2 + 2 = \boxed{4}$."},
        {"problem": "2 + 2?", "solution": "a long way to it", "answer": "4"},
        {"prompt": [{"role": "user", "content": [{"type": "text", "text": "2 + 2?"}]}], "answer": "4"},
        {"prompt": list(ASKED), "reward_model": {"ground_truth": "4", "style": "rule"}},
        {"prompt": list(ASKED), "reward_model": json.dumps({"ground_truth": "4"})},
        {"prompt": "2 + 2?", "task": {"answer": "4", "verifier": None}},
        {"prompt": "2 + 2?", "task": '{"answer": "4"}'},
        {"prompt": "2 + 2?", "task": {"answer": "4"}, "answer": "5"},
        {"prompt": "2 + 2?", "task": "algebra", "answer": "4"},
        {"prompt": "2 + 2?", "task": None, "answer": "4"},
        {"prompt": "2 + 2?", "answer": 4.0, "images": None, "videos": []},
        {"prompt": "2 + 2?", "task": {"answer": 4.0}},
        {"messages": [*ASKED, {"role": "assistant", "content": "5"}], "problem": "2 + 2?", "answer": "4"},
        {
            "messages": json.dumps([*ASKED, {"role": "assistant", "content": "4"}]),
            "problem": "2 + 2?",
            "solution": r"\boxed{4}",
        },
    ],
)
def test_every_layout_of_a_problem_is_the_same_row(values: dict[str, Any]) -> None:
    assert converted(values) == Row(
        uid="mine/0", domain="math", source="mine", split="train", messages=ASKED, task={"answer": "4"}
    )


def test_a_conversation_may_end_with_the_beginning_of_the_answer() -> None:
    begun = {"role": "assistant", "content": " Two and\n"}
    for column in ("messages", "prompt"):
        assert converted({column: [*ASKED, begun], "answer": "4"}).messages == (*ASKED, begun)


def test_verls_own_columns_say_source_split_and_the_system_turn() -> None:
    row = converted(VERL)
    assert (row.source, row.split, row.domain, row.task) == ("openai/gsm8k", "test", "math", {"answer": "4"})
    assert row.messages == (SYSTEM, *ASKED)


def test_verls_code_is_graded_as_code() -> None:
    tests = {"inputs": ["1\n"], "outputs": ["2\n"]}
    label = {"style": "rule", "ground_truth": json.dumps(tests)}
    row = converted(VERL | {"ability": "code", "reward_model": label})
    assert (row.domain, row.task) == ("code", tests)


@pytest.mark.parametrize(
    ("values", "domain", "task"),
    [
        ({"domain": "stem", "answer": "B"}, "stem", {"answer": "B"}),
        ({"ability": "stem", "answer": "B"}, "stem", {"answer": "B"}),
        ({"domain": "logic", "task": {"task": "t", "entry": {}}}, "logic", {"task": "t", "entry": {}}),
        ({"domain": "of_a_plugin", "answer": "{1}"}, "of_a_plugin", {"answer": "{1}"}),
        ({"domain": "of_a_plugin", "answer": {"a": 1, "b": None}}, "of_a_plugin", {"a": 1}),
        ({"answer": {"domain": "stem", "answer": "C"}}, "stem", {"answer": "C"}),
    ],
)
def test_the_domain_is_the_columns_or_the_labels(
    values: dict[str, Any], domain: str, task: dict[str, Any]
) -> None:
    row = converted({"prompt": "2 + 2?", **values})
    assert (row.domain, row.task) == (domain, task)


def test_own_columns_win_over_what_is_made_up() -> None:
    row = converted({"prompt": "?", "answer": "4", "uid": "x/7", "source": "book", "split": "dev"})
    assert (row.uid, row.source, row.split) == ("x/7", "book", "dev")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("4", "4"),
        (" 4 ", "4"),
        ("so\n#### 1,234", "1,234"),
        ("#### ", "####"),
        ("#### Step 1\nWe add, so \\boxed{4}.\n\n#### Check\nIt fits.\n", "4"),
        ("#### Step 1\nWe add, so 4.\n#### 4\n", "4"),
        ("so \\boxed{3} apples\n#### 4", "4"),
        ("so\n#### The answer is \\boxed{4}.", "4"),
        (r"\boxed{1}, but no: \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} and \boxed{2}", "1, 2"),
        ("first \\boxed{1}.\n\nThen \\boxed{2}.", "2"),
        (r"\boxed{never closed", r"\boxed{never closed"),
    ],
)
def test_the_answer_is_at_the_end_of_the_working(text: str, answer: str) -> None:
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("columns", "lacks"),
    [
        (["text", "answer"], "no prompt is recognised among the columns answer, text"),
        (["prompt", "completion"], "no answer is recognised among the columns completion, prompt"),
        ([], "no prompt"),
        (["question", " answer"], "among the columns ' answer', question"),
    ],
)
def test_an_unknown_layout_lists_its_columns_and_the_known_ones(columns: list[str], lacks: str) -> None:
    with pytest.raises(ConfigError, match=lacks) as caught:
        recognise(dict.fromkeys(columns), needs_answer=True)
    for known in ("messages, prompt, problem or question", "ground_truth", "verl"):
        assert known in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"prompt": None, "answer": "4"}, "has no prompt"),
        ({"prompt": " ", "answer": "4"}, "has an empty prompt"),
        ({"messages": [], "answer": "4"}, "has no messages"),
        ({"messages": [{"role": "user", "content": None}], "answer": "4"}, "without a role and a content"),
        ({"messages": ["hello"], "answer": "4"}, "without a role and a content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "image": "x"}]}], "answer": "4"},
            "without a role and a content",
        ),
        ({"messages": [{"role": "assistant", "content": "4"}], "answer": "4"}, "has an empty messages"),
        (
            {"messages": [*ASKED, {"role": "assistant", "content": r"2 + 2 = \boxed{4}"}], "answer": 4},
            "has the right answer at the end of messages",
        ),
        (
            {"prompt": [*ASKED, {"role": "assistant", "content": "Add.\n#### 4"}], "answer": "4"},
            "before the answer",
        ),
        ({"prompt": "?", "answer": None}, "has no answer"),
        ({"prompt": "?", "answer": ""}, "has no answer"),
        ({"prompt": "?", "answer": float("nan")}, "has no answer"),
        ({"prompt": "?", "answer": float("inf")}, "has no answer"),
        ({"prompt": "?", "answer": "nan"}, "has no answer"),
        ({"prompt": "?", "answer": {"answer": float("nan")}}, "has no answer"),
        ({"prompt": "?", "reward_model": {"ground_truth": float("nan")}}, "has no reward_model"),
        ({"prompt": "?", "task": {"answer": float("nan")}}, "has no task"),
        ({"prompt": "?", "answer": "4", "uid": {"id": 1}}, "has a uid that is no text"),
        ({"prompt": "?", "answer": "4", "images": [{"bytes": None, "path": "a.png"}]}, "has images, which"),
        ({"prompt": "?", "answer": "4", "image_2": b"PNG"}, "has image_2, which the model would not see"),
        ({"prompt": "?", "solution": "We add them. So the answer is 4."}, "neither in"),
        ({"prompt": "?", "solution": "2 + 2 = 4\n4 + 1 = 5"}, "neither in .* nor after ####"),
        ({"prompt": "?", "solution": "一加一。答案是二。"}, "neither in"),
        ({"prompt": "?", "answer": True}, "has a label in answer that is no task"),
        ({"prompt": "?", "answer": ["4"]}, "is no task"),
        ({"prompt": "?", "task": "[1]"}, "a task that is not a JSON object"),
        ({"prompt": "?", "task": "{"}, "a task that is not a JSON object"),
        ({"prompt": "?", "reward_model": {"style": "rule"}}, "a reward_model without ground_truth"),
        ({"prompt": "?", "task": {"cpu_s": float("nan")}}, "JSON in UTF-8 cannot hold"),
        ({"prompt": "half a character: \ud83d", "answer": "4"}, "JSON in UTF-8 cannot hold"),
    ],
)
def test_a_record_that_makes_no_row_says_why(values: dict[str, Any], why: str) -> None:
    with pytest.raises(BadRecord, match=why):
        converted(values)


def test_a_reward_function_needs_no_answer() -> None:
    assert recognise({"prompt": "?", "topic": "rain"}, needs_answer=False) == ColumnLayout(
        prompt="prompt", label=""
    )
    row = converted({"prompt": "Write about it.", "topic": "rain"}, needs_answer=False)
    assert (row.domain, row.task) == ("math", {})
    row = converted({"prompt": "?", "answer": ["a", "b"], "domain": "poems"}, needs_answer=False)
    assert (row.domain, row.task) == ("poems", {"answer": "['a', 'b']"})


@pytest.mark.parametrize(
    "answer",
    [
        "4",
        "3.5 m. per s",
        r"\begin{pmatrix} 1 \\" + "\n2" + r"\end{pmatrix}",
        "St. Louis",
        "x = 1. y = 2",
        "in 1900",
    ],
)
def test_a_short_solution_is_an_answer(answer: str) -> None:
    assert converted({"prompt": "?", "solution": answer}).task == {"answer": answer}


def test_a_whole_number_is_a_uid() -> None:
    assert converted({"prompt": "?", "answer": "4", "uid": 7}).uid == "7"
