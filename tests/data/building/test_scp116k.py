"""Tests of the agreement filter of SCP-116K, with a scripted model behind real HTTP and the real rule scorer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from nemo_prorl.config import ConfigError, DataBuildConfig
from nemo_prorl.data.building.source import Submit
from nemo_prorl.data.sources import scp116k
from tests.data.building.chat_server import Failure, chat_server
from tests.data.building.conftest import Building


def record(name: str, solution: str | None, response: str) -> dict[str, Any]:
    return {
        "domain": "Physics",
        "problem": f"Problem {name}: how far does it fall?",
        "extracted_solution": solution,
        "r1_reasoning_content": "long thoughts",
        "r1_response": response,
    }


RECORDS = [
    record("rule", "So it is 5 m.", "It falls \\boxed{5 \\text{ m}}."),
    record("judged", "The answer: the red one.", "Therefore \\boxed{\\text{red marble}}."),
    record("no box", "The answer: west.", "It goes west."),
    record("other", "So it is 5 m.", "It falls \\boxed{7}."),
    record("two minds", "So it is about 5 m.", "It falls \\boxed{5.01}."),
    record("mumbles", "So it is 6 m.", "It falls \\boxed{8}."),
    record("proof", "QED.", "\\boxed{1}"),
    record("garbled", "So it is 9 m.", "\\boxed{9}"),
    record("refused", "So it is 10 m.", "\\boxed{10}"),
    record("no solution", None, "\\boxed{1}"),
]
ANSWERS: dict[str, str | Failure] = {
    "rule": '{"answer": "5 \\\\text{ m}"}',
    "judged": 'Here you are:\n```json\n{"answer": "red"}\n```',
    "no box": '<think>{"answer": "no, east"}</think>{"answer": "west"}',
    "other": '{"answer": 5}',
    "two minds": '{"answer": "5"}',
    "mumbles": '{"answer": "6"}',
    "proof": '{"answer": null}',
    "garbled": "The answer is 9.",
    "refused": Failure(400),
}
JUDGEMENTS = {"judged": ("=", "="), "no box": ("=", "="), "other": ("!=", "!="), "two minds": ("=", "!=")}


def script(question: str, before: int) -> str | Failure:
    name = question.split("Problem ")[1].split(":")[0]
    if question.startswith("Below are a problem and its solution"):
        return ANSWERS[name]
    if name == "mumbles":
        return "I cannot say."
    book_first = question.index("\nA:\n") < question.index(book_of(name)) < question.index("\nB:\n")
    return f"Comparing... [[A=B]]? No wait. [[A{JUDGEMENTS[name][not book_first]}B]]"


def book_of(name: str) -> str:
    return {"judged": "\nred\n", "no box": "\nwest\n", "other": "\n5\n", "two minds": "\n5\n"}[name].rstrip()


@dataclass(frozen=True)
class Built:
    """A data set, its manifest, and the questions that the model was asked for it."""

    building: Building
    manifest: dict[str, Any]
    questions: list[str]


@pytest.fixture(scope="module")
def built(submit: Submit, tmp_path_factory: pytest.TempPathFactory) -> Built:
    building = Building(tmp_path_factory.mktemp("built"), submit)
    with chat_server(script) as server:
        manifest = building.run("scp116k", RECORDS, endpoint=server.url, model="judge")
        return Built(building, manifest, [body["messages"][0]["content"] for body in server.bodies])


def names(building: Building, split: str) -> list[str]:
    rows = building.rows("scp116k", split)
    return [row.messages[-1]["content"].split("Problem ")[1].split(":")[0] for row in rows]


def test_what_agrees_stays_and_what_cannot_be_decided_stands_apart(built: Built) -> None:
    building, manifest = built.building, built.manifest
    assert names(building, "train") == ["rule", "judged", "no box"]
    assert [row.task for row in building.rows("scp116k")] == [
        {"answer": "5 \\text{ m}"}, {"answer": "red"}, {"answer": "west"},
    ]  # fmt: skip
    assert manifest["dropped"] == {
        "undecided_judgement": 2, "undecided_extraction": 2, "no_solution": 1, "no_short_answer": 1, "disagrees": 1,
    }  # fmt: skip
    assert sorted(names(building, "undecided")) == ["garbled", "mumbles", "refused", "two minds"]
    assert manifest["num_rows"] == {"train": 3, "undecided": 4}
    assert manifest["num_by_judge_only"] == 2
    assert manifest["options"]["model"] == "judge"


def test_the_judge_is_spared_what_the_rules_accept_and_asked_the_rest_in_both_orders(built: Built) -> None:
    judged = [question for question in built.questions if "[[A=B]]" in question]
    assert len(built.questions) - len(judged) == 9  # one extraction for each record with a solution
    assert sorted(q.split("Problem ")[1].split(":")[0] for q in judged) == sorted(
        2 * ["judged", "no box", "other", "two minds", "mumbles"]
    )
    assert len(set(judged)) == len(judged)


def test_without_a_model_to_ask_it_is_said_at_once() -> None:
    assert scp116k.SOURCE.check_options is not None
    with pytest.raises(ConfigError, match="write endpoint=URL and model=NAME"):
        scp116k.SOURCE.check_options(DataBuildConfig(endpoint="http://127.0.0.1:1/v1"))


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ('{"answer": "4"}', "4"),
        ('{"answer": 4.5}', "4.5"),
        ('first {"answer": "3"} then {"answer": "\\\\frac{1}{2}"}', "\\frac{1}{2}"),
        ('{"answer": "x"} and so {braces}', "x"),
        ('{"answer": ["4"]}', None),
        ('{"result": "4"}', None),
        ("4", None),
        ("", None),
        (None, None),
        ('<think>{"answer": "4"}', "4"),
    ],
)
def test_replies_are_read_as_they_come(reply: str | None, answer: str | None) -> None:
    found = scp116k._json_reply(reply)
    assert (None if found is None else str(found["answer"])) == answer


def test_the_licence_is_in_the_manifest(built: Built) -> None:
    manifest = json.loads((built.building.out / "scp116k" / "manifest.json").read_text())
    assert "NC" in manifest["licence"]
