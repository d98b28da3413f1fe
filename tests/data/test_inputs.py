"""Tests of what a run begins with: what the names of files tell, which held-out prompts are chosen, and the line about
prompts that are too long."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nemo_prorl.config import (
    ConfigError,
    DataConfig,
    ExpManagerConfig,
    RunConfig,
    SamplerConfig,
    ValidationConfig,
)
from nemo_prorl.data import inputs
from nemo_prorl.data.inputs import FileLengths, held_out, left_out, prompt_lengths, with_prompt_files
from nemo_prorl.data.rows import write_rows
from tests.data.conftest import FRAME_TOKENS, CharacterTokenizer, WriteFile, make_row


@pytest.mark.parametrize(
    ("validation", "words"),
    [
        ([], ["No validation: "]),
        (["held_out.jsonl"], []),
        (["link.jsonl", "held_out.jsonl"], ["link", "its validation says nothing about new problems"]),
    ],
)
def test_validation_on_nothing_or_on_training_problems_is_said(
    tmp_path: Path, validation: list[str], words: list[str]
) -> None:
    for name in ("train", "held_out"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"prompt": f"1+1 ({name})", "answer": "2"}) + "\n")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "train.jsonl")
    config = RunConfig(
        data=DataConfig(
            train={str(tmp_path / "train.jsonl"): 1.0},
            validation=[str(tmp_path / name) for name in validation],
        ),
        exp_manager=ExpManagerConfig(explicit_log_dir=str(tmp_path / "run")),
    )
    said = [text for text in with_prompt_files(config)[1] if "1 row, prompts from" not in text]
    assert len(said) == bool(words)
    assert all(word in said[0] for word in words)


def config_of(paths: list[str], max_prompts: int = 0) -> RunConfig:
    return RunConfig(
        data=DataConfig(validation=paths),
        validation=ValidationConfig(max_prompts=max_prompts),
        sampler=SamplerConfig(max_prompt_tokens=50),
    )


@pytest.mark.parametrize(
    ("max_prompts", "expected"),
    [
        (0, ["a/0#0", "a/1#0", "a/2#0", "a/4#0", "b/0#0", "b/1#0"]),
        (3, ["a/0#0", "a/2#0", "a/4#0", "b/0#0", "b/1#0"]),
        (1, ["a/0#0", "b/0#0"]),
    ],
)
def test_held_out_prompts_are_evenly_spaced_in_each_file_and_in_order(
    write_file: WriteFile, tokenizer: CharacterTokenizer, max_prompts: int, expected: list[str]
) -> None:
    config = config_of([write_file("a", [1, 1, 1, 90, 1]), write_file("b", 2)], max_prompts)
    assert [prompt.uid for prompt in held_out(config, tokenizer)] == expected


@pytest.mark.parametrize("max_prompts", [96, 100, 1000])
def test_a_part_of_a_file_that_is_sorted_by_task_has_every_task(
    tmp_path: Path, tokenizer: CharacterTokenizer, max_prompts: int
) -> None:
    """As `data build` writes Reasoning Gym's: 96 tasks, 100 problems of each."""
    rows = [make_row(f"{task}/{i}", source=f"task{task}") for task in range(96) for i in range(100)]
    write_rows(tmp_path / "all.parquet", rows)
    prompts = held_out(config_of([str(tmp_path / "all.parquet")], max_prompts), tokenizer)
    assert len({prompt.uid for prompt in prompts}) == max_prompts
    assert len({prompt.source for prompt in prompts}) == 96


def test_held_out_files_with_the_same_problem_are_one_sentence(
    write_file: WriteFile, tokenizer: CharacterTokenizer
) -> None:
    path = write_file("a", 2)
    with pytest.raises(ConfigError, match="'a/0'"):
        held_out(config_of([path, path]), tokenizer)


def test_lengths_are_those_of_a_sample_of_each_training_file_and_of_all_that_is_validated(
    write_file: WriteFile, tokenizer: CharacterTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "MAX_ROWS", 2)
    train, held = write_file("a", [3, 40, 5]), write_file("b", [3, 40, 5, 90])
    for max_prompts, expected in ((0, (3, 40, 5, 90)), (2, (3, 90))):
        config = config_of([held], max_prompts)
        config = replace(config, data=replace(config.data, train={train: 1.0}))
        assert prompt_lengths(config, tokenizer) == [
            made(train, [3 + FRAME_TOKENS, 5 + FRAME_TOKENS], 3),
            made(held, [length + FRAME_TOKENS for length in expected], 4),
        ]


def made(path: str, lengths: list[int], num_rows: int = 0, num_begun: int = 0) -> FileLengths:
    return FileLengths(
        path=path, num_rows=num_rows or len(lengths), lengths=tuple(lengths), num_begun=num_begun
    )


def test_begun_answers_are_counted_and_belong_to_the_prompt(
    tmp_path: Path, tokenizer: CharacterTokenizer
) -> None:
    asked = make_row("a").messages
    begun = [make_row(str(i), messages=(*asked, {"role": "assistant", "content": "x" * i})) for i in range(3)]
    write_rows(tmp_path / "a.parquet", begun)
    (found,) = prompt_lengths(config_of([str(tmp_path / "a.parquet")], 0), tokenizer)
    assert (found.lengths, found.num_begun) == (tuple(1 + FRAME_TOKENS + i for i in range(3)), 2)
    said = "1,002 of 1,203 prompts begin the answer."
    files = [made("a", [1] * 1200, num_begun=1000), made("b", [1, 1, 9], num_begun=2)]
    for limit in (8, 9):  # whether or not one is too long
        assert left_out(files, limit).endswith(f". {said}")


def test_the_line_when_nothing_is_left_out() -> None:
    bound = "is longer than sampler.max_prompt_tokens=7."
    assert left_out([made("a", [5, 6]), made("b", [7])], 7) == f"None of 3 prompts in 2 files {bound}"
    assert left_out([made("a", [5, 6])], 7) == f"None of 2 prompts in 1 file {bound}"


def test_the_line_names_each_losing_file_and_its_longest_prompt() -> None:
    few, many = [9] * 1 + [1] * 99, [8000] * 2 + [1] * 8
    said = left_out([made("few", few, 24_000), made("none", [1]), made("many", many)], 8)
    assert said == (
        "Prompts longer than sampler.max_prompt_tokens=8 are left out: 1 of 100 rows looked at in few (the longest has "
        "9 tokens), 2 of 10 in many (the longest has 8,000 tokens)."
    )


def test_a_file_that_loses_more_than_half_is_a_warning_and_one_that_loses_all_an_error() -> None:
    assert not left_out([made("a", [9] * 5 + [1] * 5)], 8).startswith("warning: ")
    assert left_out([made("a", [9] * 6 + [1] * 5)], 8).startswith("warning: Prompts longer than")
    with pytest.raises(
        ConfigError, match=r"every prompt of a is longer .*=8 \(2 of 2 in a\).*shortest has 9 tokens"
    ):
        left_out([made("b", [1]), made("a", [9, 10])], 8)
