"""Tests of each source on records in its real schema: the prompt, the task, and why a record is dropped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import pytest

from nemo_prorl.config import ConfigError, Credit, DataBuildConfig
from nemo_prorl.data.building.source import ORDER, Candidate, NoRow, Record, get, sources
from nemo_prorl.data.sources import reasoning_gym
from reward.protocol import DOMAINS
from tests.data.building.conftest import code_record, instruction_record, math_record

BOX = " Let's think step by step and output the final answer within \\boxed{}."
STDIN = {"inputs": ["1\n"], "outputs": ["2\n"]}


def candidate(name: str, values: Mapping[str, Any]) -> Candidate:
    return get(name).candidate(Record(values=values, split="train", origin="rows.jsonl:0"))


def test_the_five_sources_of_the_paper_come_first_in_its_order() -> None:
    assert tuple(sources()) == ORDER
    assert {source.domain for source in sources().values()} == set(DOMAINS)
    with pytest.raises(ConfigError, match="deepscalr is not a source: write one of deepscaler"):
        get("deepscalr")


@pytest.mark.parametrize("answer", ["12", 12])
def test_mathematics_ends_with_the_papers_words(answer: object) -> None:
    made = candidate("deepscaler", math_record(" What is $3\\cdot4$?\n", answer, difficulty=5.0))
    assert made.row.messages == ({"role": "user", "content": "What is $3\\cdot4$?" + BOX},)
    assert (made.row.domain, made.row.source, made.row.task) == ("math", "deepscaler", {"answer": "12"})
    assert made.problem.gold == "\\boxed{12}"


def test_code_keeps_its_request_for_backticks_and_loses_the_system_turn() -> None:
    made = candidate("eurus", code_record("Double the number.", STDIN))
    (turn,) = made.row.messages
    assert turn["content"].startswith("Double the number.\n\nWrite Python code")
    assert turn["content"].endswith("```python\nYour code\n```\nat the end.")
    assert made.problem.question == "Double the number."
    assert (made.row.source, made.row.task, made.problem.gold) == ("eurus/codeforces", STDIN, None)


def test_code_that_does_not_ask_for_backticks_is_made_to() -> None:
    record = code_record("x", STDIN | {"fn_name": "double"}, solution="def double(x): return 2 * x")
    record["prompt"] = [{"role": "user", "content": "Double the number."}]
    made = candidate("eurus", record)
    assert "```python" in made.row.messages[0]["content"]
    assert made.row.task["fn_name"] == "double"
    assert made.problem.gold == "```python\ndef double(x): return 2 * x\n```"


def test_instructions_keep_falsy_arguments_and_lose_nulls() -> None:
    record = instruction_record("Write. No commas.", {"punctuation:no_comma": {}, "x:y": {"num_words": 0}})
    made = candidate("llama_nemotron_if", record)
    assert made.row.messages == ({"role": "user", "content": "Write. No commas."},)
    assert made.row.task == {
        "instruction_id_list": ["punctuation:no_comma", "x:y"],
        "kwargs": [{}, {"num_words": 0}],
        "strict": True,
    }


def test_science_has_no_answer_before_its_solution_was_read() -> None:
    for response, solution in (("r1_response", "extracted_solution"), ("qwq_solution", "matched_solution")):
        record = {
            "domain": "Physics",
            "problem": "How far?",
            solution: "It is 5 m.",
            response: "<think>\\boxed{7}</think> So \\boxed{5\\text{ m}}.",
        }
        made = candidate("scp116k", record)
        assert made.row.messages[0]["content"] == "How far?" + BOX
        assert made.row.source == "scp116k/Physics"
        assert made.problem.extra == {"solution": "It is 5 m.", "response": "\\boxed{5\\text{ m}}"}


def test_a_puzzle_carries_its_entry_and_asks_for_answer_tags() -> None:
    entry = {"question": "1+1?", "answer": "2", "metadata": {"difficulty": {}}}
    made = candidate("reasoning_gym", {"task": "chain_sum", "entry": entry, "train_credit": {}})
    assert made.row.messages[0]["content"].startswith("1+1?\n\n")
    assert "<answer>" in made.row.messages[0]["content"]
    assert made.row.task == {"task": "chain_sum", "entry": entry}
    assert (made.row.source, made.problem.gold) == ("reasoning_gym/chain_sum", "<answer>2</answer>")


@pytest.mark.parametrize(
    ("credit", "asked"), [(Credit.training, {}), (Credit.corrected, {"credit": "corrected"})]
)
def test_puzzles_that_measure_get_the_librarys_partial_credit_and_others_on_request(
    credit: Credit, asked: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [(0, {"question": "1+1?", "answer": "2", "metadata": {}})]
    monkeypatch.setattr(reasoning_gym, "tasks", lambda: ("chain_sum",))
    monkeypatch.setattr(reasoning_gym, "_workers", nullcontext)
    monkeypatch.setattr(reasoning_gym, "_different_entries", lambda *_: iter(made * 2))
    options = DataBuildConfig(rows=1, held_out=1, credit=credit)
    tasks = {record.split: reasoning_gym.convert(record).task for record in reasoning_gym.generate(options)}
    puzzle = {"task": "chain_sum", "entry": made[0][1]}
    assert tasks["train"] == puzzle | asked
    assert tasks["validation"] == puzzle | {"credit": "corrected"}
    assert tasks["out_of_distribution"]["credit"] == "corrected"


MASKED = {"question": "We add [MASK] to both sides.", "options": ["one", "  two\n", "three"], "answer": "b"}


def test_a_masked_step_is_asked_for_by_the_letter_of_its_option() -> None:
    """The schema is that of public programs that read the data set; its card has the licence, CC-BY-NC-4.0."""
    made = get("goosereason").candidate(Record(values=MASKED, split="train", origin="code-train.jsonl:7"))
    asked = "We add [MASK] to both sides.\n\nA. one\nB.   two\nC. three\n\n"
    asked += "The final answer is the letter of the right option."
    assert made.row.messages == ({"role": "user", "content": asked + BOX},)
    assert (made.row.domain, made.row.source, made.row.task) == ("stem", "goosereason/code", {"answer": "B"})
    assert made.problem.gold == "\\boxed{B}"
    many = [f"option {number}" for number in range(9)]
    assert candidate("goosereason", MASKED | {"options": many, "answer": "I"}).row.task == {"answer": "I"}
    assert candidate("goosereason", MASKED | {"options": json.dumps(many)}).row.task == {"answer": "B"}


SCIENCE = {"problem": "p", "r1_response": "r", "extracted_solution": "s"}
WITHOUT_TURN = code_record("x", STDIN) | {"prompt": [{"role": "system", "content": "s"}]}


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("deepscaler", math_record("", "4"), "no_problem"),
        ("deepscaler", math_record("2+2?", None), "no_answer"),
        ("deepscaler", math_record("2+2?", "  "), "no_answer"),
        ("deepscaler", math_record("2+2?", True), "no_answer"),
        ("eurus", code_record("x", STDIN, ability="math"), "not_code"),
        ("eurus", code_record("x", "not json"), "tests_not_json"),
        ("eurus", code_record("x", {"inputs": ["1"]}), "no_tests"),
        ("eurus", code_record("x", "[]"), "no_tests"),
        ("eurus", WITHOUT_TURN, "no_problem"),
        ("scp116k", SCIENCE | {"extracted_solution": None}, "no_solution"),
        ("scp116k", SCIENCE | {"extracted_solution": " "}, "no_solution"),
        ("scp116k", SCIENCE | {"r1_response": None}, "no_response"),
        ("scp116k", SCIENCE | {"problem": None}, "no_problem"),
        ("llama_nemotron_if", instruction_record("x", {}), "no_instructions"),
        ("llama_nemotron_if", instruction_record("x", {}) | {"args": None}, "no_instructions"),
        ("llama_nemotron_if", instruction_record("", {"punctuation:no_comma": {}}), "not_one_user_turn"),
        ("goosereason", MASKED | {"question": " "}, "no_problem"),
        ("goosereason", MASKED | {"answer": None}, "no_answer"),
        ("goosereason", MASKED | {"answer": "D"}, "answer_not_an_option"),
        ("goosereason", MASKED | {"answer": "@"}, "answer_not_an_option"),
        ("goosereason", MASKED | {"answer": "two"}, "answer_not_an_option"),
        ("goosereason", MASKED | {"options": None}, "options_not_different_texts"),
        ("goosereason", MASKED | {"options": ["two"]}, "options_not_different_texts"),
        ("goosereason", MASKED | {"options": ["one", "two", "two "]}, "options_not_different_texts"),
        ("goosereason", MASKED | {"options": ["one", "two", None]}, "options_not_different_texts"),
        ("reasoning_gym", {"task": "t", "entry": None, "reason": "entry_not_json"}, "entry_not_json"),
    ],
)
def test_what_makes_no_row_says_why(name: str, values: Mapping[str, Any], reason: str) -> None:
    with pytest.raises(NoRow, match=f"^{reason}$"):
        candidate(name, values)


def test_a_uid_is_what_is_asked() -> None:
    one = candidate("deepscaler", math_record("2+2?", "4"))
    assert one.row.uid == candidate("deepscaler", math_record("2+2?", "four", type="Algebra")).row.uid
    assert one.row.uid != candidate("deepscaler", math_record("2+3?", "4")).row.uid
    assert one.row.uid.startswith("deepscaler/")
    assert json.dumps(one.row.task) == '{"answer": "4"}'
