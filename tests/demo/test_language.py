"""Tests of the prompts and the summary of `demo-llm`, without the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.data.rows import Row, RowFile, write_rows
from nemo_prorl.demo import language, solved
from nemo_prorl.demo.language_tasks import (
    HELD_OUT_TOPICS,
    KINDS,
    NUM_HELD_OUT,
    RULES,
    TRAIN_TOPICS,
    calculations,
    instructions,
)
from reward.client import RewardClient
from reward.protocol import ScoreRequest

KEEPS = {
    "punctuation:no_comma": "A bright quiet sea.",
    "detectable_format:title": "<<The sea>> It is blue.",
    "detectable_content:postscript": "It is blue.\nP.S. And deep.",
    "detectable_format:number_highlighted_sections": "The *blue sea* is *very deep*.",
    "detectable_content:number_placeholders": "Dear [name], come to [place].",
    "detectable_format:number_bullet_lists": "* It is blue.\n* It is deep.",
    "length_constraints:number_words": "It is blue.",
    "startend:end_checker": "It is blue. The end.",
    "keywords:existence": "The quiet sea is bright.",
    "keywords:forbidden_words": "Waves break.",
    "keywords:frequency": "A bright day by a bright sea.",
    "keywords:letter_frequency": "Wet winds with wild white waves.",
}
"""A response that keeps the first wording of each rule."""


def scores(service: str, answered: list[tuple[str, Mapping[str, Any], str]]) -> list[float | None]:
    """Grades (domain, task, response)s."""
    with RewardClient(urls=[service]) as client:
        futures = [
            client.submit(ScoreRequest(request_id=str(number), domain=domain, response=text, task=dict(task)))
            for number, (domain, task, text) in enumerate(answered)
        ]
        return [future.result().score for future in futures]


def prompts(rows: list[Row]) -> set[str]:
    return {row.messages[-1]["content"] for row in rows}


def test_each_rule_can_be_kept_and_broken(service: str) -> None:
    assert {wordings[0]["name"] for wordings in RULES} == KEEPS.keys()
    answered = []
    for rule in (wordings[0] for wordings in RULES):
        task = {"instruction_id_list": [rule["name"]], "kwargs": [rule["arguments"]], "strict": True}
        answered += [("instruction", task, KEEPS[rule["name"]]), ("instruction", task, "-, the and " * 20)]
    assert scores(service, answered) == [1.0, 0.0] * len(RULES)


def test_held_out_instructions_are_distinct_and_share_no_topic_with_training() -> None:
    assert not set(TRAIN_TOPICS) & set(HELD_OUT_TOPICS)
    for num_rules in (1, 2):
        train = list(instructions(TRAIN_TOPICS, num_rules, count=300, split="train"))
        held_out = list(instructions(HELD_OUT_TOPICS, num_rules, count=NUM_HELD_OUT, split="held_out"))
        assert (len(prompts(train)), len(prompts(held_out))) == (300, NUM_HELD_OUT)
        assert not {topic for topic in TRAIN_TOPICS for text in prompts(held_out) if f" {topic}." in text}
        assert {len(row.task["instruction_id_list"]) for row in train} == {1 + num_rules}
        for row in held_out:
            (named,) = row.task["kwargs"][0]["keywords"]
            assert f" {named}. " in row.messages[0]["content"]
        assert held_out == list(
            instructions(HELD_OUT_TOPICS, num_rules, count=NUM_HELD_OUT, split="held_out")
        )


def test_held_out_calculations_are_no_training_ones_and_their_answers_are_right(service: str) -> None:
    train, held_out = calculations()
    assert len(held_out) == NUM_HELD_OUT
    assert not prompts(train) & prompts(held_out)
    shown = {message["content"] for message in train[0].messages[:-1]}
    assert not shown & prompts([*train, *held_out])
    values = [eval(row.messages[-1]["content"].removesuffix("=")) for row in held_out]
    boxed = [
        ("math", row.task, f"It is \\boxed{{{value + off}}}")
        for off in (0, 1)
        for row, value in zip(held_out, values, strict=True)
    ]
    assert scores(service, boxed) == [1.0] * NUM_HELD_OUT + [0.0] * NUM_HELD_OUT


def test_the_summary_names_each_kind_and_shows_responses_that_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(language, "BASE", tmp_path)
    rows = [
        *instructions(HELD_OUT_TOPICS, 1, count=2, split="held_out"),
        *instructions(HELD_OUT_TOPICS, 2, count=2, split="held_out"),
        *calculations()[1][:2],
    ]
    write_rows(tmp_path / "data/measured.parquet", rows)
    for when, right in (("before", 0), ("after", 1)):
        samples = [
            {
                "uid": f"{row.uid}#0",
                "sibling": n,
                "score": float(right * n == 0 and right),
                "response": f"{when}\n" * 40,
            }
            for row in RowFile(tmp_path / "data/measured.parquet")
            for n in range(2)
        ]
        (tmp_path / f"{when}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in samples))
    before, after = (solved.count(tmp_path / f"{when}.jsonl") for when in ("before", "after"))
    records = [{"step": 0, "stage": "main", "validation/pass_at_1": 0.1}]
    summary = language.show(tmp_path, records, before, after, 2)
    assert list(summary["kinds"]) == list(KINDS)
    assert summary["newly_solved"] == 6
    assert (tmp_path / "demo.png").stat().st_size > 10_000
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "changed by +0.50 (95 % interval over problems: +0.50 to +0.50)" in " ".join(shown.split())
    assert shown.count("  before: ") == shown.count("   after: ") == 3
