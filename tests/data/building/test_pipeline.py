"""Tests of building prompt files with the real reward service: which records are kept, why others are dropped, and that
a rebuild gives the same bytes."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.config import ConfigError
from nemo_prorl.data.building import pipeline
from nemo_prorl.data.building.source import get
from nemo_prorl.data.building.verify import GradingFailed
from reward.protocol import GradeStatus, ScoreRequest, ScoreResult
from tests.data.building.conftest import Building, code_record, instruction_record, math_record

SUMS = [math_record(f"What is {a} + 10?", str(a + 10)) for a in range(20)]
LONG = (
    "Every morning Aya goes for a nine kilometre long walk and stops at a coffee shop afterwards for a while"
)


def questions(building: Building, name: str, split: str = "train") -> list[str]:
    return [row.messages[-1]["content"] for row in building.rows(name, split)]


def test_rows_prove_themselves_or_are_dropped_with_the_reason(building: Building) -> None:
    manifest = building.run(
        "deepscaler",
        [
            math_record("Half?", "\\frac{1}{2}"),
            math_record("Long?", "x" * 6000),  # the service takes no such gold
            math_record("Nothing?", None),
            math_record("Hedge?", "\\left( -\\infty, 2 \\right]"),
        ],
    )
    assert manifest["num_rows"] == {"train": 2}
    assert manifest["dropped"] == {"no_answer": 1, "task_invalid": 1}
    assert "5000" in manifest["examples_of_dropped"]["task_invalid"][0]["detail"]
    assert manifest["num_proved_by_gold"] == 2
    assert manifest["num_by_judge_only"] == 0
    assert re.fullmatch(r"\d+\.\d+\.\d+\+[0-9a-f]{12}", manifest["versions"]["reward_service"])


def test_code_is_run_where_a_solution_is_known_and_its_tests_are_read_where_not(building: Building) -> None:
    tests = {"inputs": ["1\n", "4\n"], "outputs": ["2\n", "8\n"]}
    manifest = building.run(
        "eurus",
        [
            code_record("Right.", tests, solution="print(2 * int(input()))"),
            code_record("Wrong.", tests, solution="print(2 + int(input()))"),
            code_record("Unknown.", tests),
            code_record("Uneven.", {"inputs": ["1"], "outputs": []}),
            code_record("Not JSON.", {"inputs": ["x=1"], "outputs": ["2"], "fn_name": "f"}),
        ],
    )
    assert [text.partition("\n")[0] for text in questions(building, "eurus")] == ["Right.", "Unknown."]
    assert manifest["dropped"] == {"task_invalid": 2, "gold_wrong": 1}
    assert manifest["num_proved_by_gold"] == 1


def test_instructions_must_be_known_and_their_arguments_there(building: Building) -> None:
    manifest = building.run(
        "llama_nemotron_if",
        [
            instruction_record("No commas.", {"punctuation:no_comma": {}}),
            instruction_record("Unknown.", {"punctuation:no_colon": {}}),
            instruction_record("Words.", {"length_constraints:number_words": {"relation": "at least"}}),
            instruction_record(
                "Zero.", {"length_constraints:number_words": {"relation": "at least", "num_words": 0}}
            ),
        ],
    )
    assert questions(building, "llama_nemotron_if") == ["No commas.", "Zero."]
    assert manifest["dropped"] == {"task_invalid": 2}


def test_duplicates_go_and_a_contradiction_is_named(building: Building) -> None:
    manifest = building.run(
        "deepscaler",
        [
            math_record("What is $\\frac{1}{2}+x$?", "3"),
            math_record("what is  $\\frac{1}{2}+x$?", "3"),  # white space, case
            math_record("What is $\\dfrac 12+x$?", "3"),  # other words: 12 is not 1 2
            math_record("What is \\( \\dfrac{1}{2} + x \\)?", "3"),  # the same words and answer
            math_record(
                "What is \\( \\dfrac{1}{2} - x \\)?", "5"
            ),  # the same words, another answer: another problem
            math_record("What is $\\frac{1}{2}+x$?", "7"),
        ],
    )
    assert [row.task["answer"] for row in building.rows("deepscaler")] == ["3", "3", "5"]
    assert manifest["dropped"] == {"duplicate": 2, "duplicate_with_other_answer": 1}


def test_the_validation_split_keeps_what_both_have(building: Building) -> None:
    tests = {"inputs": ["1"], "outputs": ["2"]}
    building.file("eurus/train.jsonl", [code_record(f"Problem {i}.", tests) for i in range(4)])
    building.file("eurus/validation.jsonl", [code_record(f"Problem {i}.", tests) for i in (2, 9)])
    manifest = building.run("eurus", source=str(building.folder / "eurus"))
    assert manifest["num_rows"] == {"train": 3, "validation": 2}
    assert {row.split for row in building.rows("eurus", "validation")} == {"validation"}


def test_what_an_earlier_source_has_a_later_one_does_not_get(building: Building) -> None:
    building.run("deepscaler", [math_record("Write a poem.", "4")])
    text = questions(building, "deepscaler")[0]
    records = [instruction_record(t, {"punctuation:no_comma": {}}) for t in (text, "Another.")]
    manifest = building.run("llama_nemotron_if", records)
    assert manifest["dropped"] == {"duplicate_of_deepscaler": 1}
    hashes = json.loads((building.out / "deepscaler" / "manifest.json").read_text())["content_hash"]
    assert manifest["compared_with"] == {"deepscaler": hashes}
    again = building.run("deepscaler", [math_record("Write a poem.", "4")])
    assert again["dropped"] == {}  # the earlier one keeps it, however often it is built


def test_rows_that_overlap_an_evaluation_set_are_dropped_and_listed(building: Building) -> None:
    evaluation = building.file("eval/bench.jsonl", [{"question": "unrelated"}, {"question": LONG}])
    manifest = building.run(
        "deepscaler", [*SUMS[:3], math_record(f"{LONG}. When?", "4")], against=[evaluation]
    )
    assert manifest["dropped"] == {"evaluation_overlap": 1}
    found = json.loads((building.out / "deepscaler" / "overlap.json").read_text())
    assert [(match["evaluation"], match["origin"]) for match in found["matches"]] == [
        ("bench.jsonl:1", "records.jsonl:3")
    ]
    assert manifest["overlap"]["evaluation"]["bench.jsonl"]["num_matched_rows"] == 1


@pytest.mark.parametrize(
    "values",
    [
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": LONG}]},
        {"id": 1, "problem": LONG, "question": "other"},
        {"task_id": "HumanEval/0", "prompt": LONG},
        {"Question": LONG, "Correct Answer": "4"},
    ],
)
def test_evaluation_sets_of_any_schema_are_read(building: Building, values: dict[str, Any]) -> None:
    path = building.file("eval.jsonl", [values])
    assert [text for _, text in pipeline.evaluation_problems([path])] == [LONG]


def test_an_evaluation_file_without_questions_is_one_sentence(building: Building) -> None:
    path = building.file("eval.jsonl", [{"answer": "4"}])
    with pytest.raises(ConfigError, match=r"eval\.jsonl has none of the columns"):
        building.run("deepscaler", SUMS, against=[path])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != "manifest.json"}


def test_the_same_source_gives_the_same_bytes_and_leaves_nothing_beside(building: Building) -> None:
    first = building.run("deepscaler", SUMS, rows=8, held_out=4)
    before = contents(building.out / "deepscaler")
    second = building.run("deepscaler", SUMS, rows=8, held_out=4)
    assert contents(building.out / "deepscaler") == before
    assert first | {"seconds": 0} == second | {"seconds": 0}
    other = building.run("deepscaler", SUMS, rows=8, held_out=4, seed=2)
    assert other["content_hash"] != first["content_hash"]
    assert os.listdir(building.out) == ["deepscaler"]


def test_choices_keep_the_sources_order_and_split_it(building: Building) -> None:
    building.run("deepscaler", SUMS, rows=8, held_out=4)
    train, held_out = building.rows("deepscaler"), building.rows("deepscaler", "validation")
    assert (len(train), len(held_out)) == (8, 4)
    assert not {row.uid for row in train} & {row.uid for row in held_out}
    answers = [int(row.task["answer"]) for row in train]
    assert answers == sorted(answers)
    assert answers != list(range(10, 18))


def test_the_papers_number_of_rows_is_kept_unless_another_is_asked_for(
    building: Building, monkeypatch: pytest.MonkeyPatch
) -> None:
    like_the_papers = replace(get("deepscaler"), paper_rows=6)
    monkeypatch.setattr("tests.data.building.conftest.get", lambda name: like_the_papers)
    manifest = building.run("deepscaler", SUMS)
    assert (manifest["num_rows"]["train"], manifest["options"]["rows"]) == (6, 6)
    assert manifest["num_chosen_from"] == len(SUMS)
    assert building.run("deepscaler", SUMS, rows=0)["num_rows"]["train"] == len(SUMS)
    assert building.run("deepscaler", SUMS, rows=3)["num_rows"]["train"] == 3
    assert building.run("deepscaler", SUMS[:4])["num_rows"]["train"] == 4, "fewer pass: all of them"


def test_a_limit_reads_no_further(building: Building) -> None:
    assert building.run("deepscaler", SUMS, limit=5)["num_read"] == 5


def test_when_nothing_is_left_the_reasons_are_said(building: Building) -> None:
    with pytest.raises(ConfigError, match=r"none of 2 records became a row \(no_answer 2\)"):
        building.run("deepscaler", [math_record("a", None), math_record("b", None)])
    assert not (building.out / "deepscaler").exists()


def test_a_service_that_fails_stops_the_build_and_the_old_set_stays(building: Building) -> None:
    building.run("deepscaler", SUMS[:2])
    before = contents(building.out / "deepscaler")
    working = building.submit

    def failing(request: ScoreRequest) -> Any:
        future = working(request)
        future.result()
        failed = ScoreResult(
            request_id=request.request_id,
            status=GradeStatus.infra_error,
            score=None,
            verdict="worker_failed",
            details={"reason": "out of memory"},
        )
        future.result = lambda timeout=None: failed  # type: ignore[method-assign]
        return future

    building.submit = failing
    with pytest.raises(GradingFailed, match="out of memory"):
        building.run("deepscaler", SUMS)
    assert contents(building.out / "deepscaler") == before
    assert os.listdir(building.out) == ["deepscaler"]
