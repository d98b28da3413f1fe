"""Tests of what a run begins with: what the names of files tell, which held-out prompts are chosen, and the line about
prompts that are too long."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_prorl.config import ConfigError, DataConfig, ExpManagerConfig, RunConfig
from nemo_prorl.data.inputs import FileLengths, file_lengths, held_out, left_out, with_prompt_files
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


@pytest.mark.parametrize(
    ("max_prompts", "expected"),
    [
        (0, ["a/0#0", "a/1#0", "a/2#0", "a/4#0", "b/0#0", "b/1#0"]),
        (3, ["a/0#0", "a/2#0", "a/4#0", "b/0#0", "b/1#0"]),
        (2, ["a/0#0", "a/4#0", "b/0#0", "b/1#0"]),
        (1, ["a/0#0", "b/0#0"]),
    ],
)
def test_held_out_prompts_are_evenly_spaced_in_each_file_and_in_order(
    write_file: WriteFile, tokenizer: CharacterTokenizer, max_prompts: int, expected: list[str]
) -> None:
    paths = [write_file("a", [1, 1, 1, 90, 1]), write_file("b", 2)]
    prompts, _ = held_out(paths, tokenizer=tokenizer, max_prompts=max_prompts, max_prompt_tokens=50)
    assert [prompt.uid for prompt in prompts] == expected


@pytest.mark.parametrize("max_prompts", [96, 100, 1000])
def test_a_part_of_a_file_that_is_sorted_by_task_has_every_task(
    tmp_path: Path, tokenizer: CharacterTokenizer, max_prompts: int
) -> None:
    """As `data build` writes Reasoning Gym's: 96 tasks, 100 problems of each."""
    rows = [make_row(f"{task}/{i}", source=f"task{task}") for task in range(96) for i in range(100)]
    write_rows(tmp_path / "all.parquet", rows)
    prompts, _ = held_out(
        [str(tmp_path / "all.parquet")], tokenizer=tokenizer, max_prompts=max_prompts, max_prompt_tokens=50
    )
    assert len({prompt.uid for prompt in prompts}) == max_prompts
    assert len({prompt.source for prompt in prompts}) == 96


def test_held_out_files_with_the_same_problem_are_one_sentence(
    write_file: WriteFile, tokenizer: CharacterTokenizer
) -> None:
    path = write_file("a", 2)
    with pytest.raises(ConfigError, match="'a/0'"):
        held_out([path, path], tokenizer=tokenizer, max_prompts=0, max_prompt_tokens=50)


@pytest.mark.parametrize(
    ("max_prompts", "expected"), [(0, (3, 40, 5, 90)), (2, (3, 90)), (7, (3, 40, 5, 90))]
)
def test_the_lengths_are_those_of_all_that_were_looked_at(
    write_file: WriteFile, tokenizer: CharacterTokenizer, max_prompts: int, expected: tuple[int, ...]
) -> None:
    path = write_file("a", [3, 40, 5, 90])
    prompts, (found,) = held_out([path], tokenizer=tokenizer, max_prompts=max_prompts, max_prompt_tokens=41)
    assert (found.path, found.num_rows) == (path, len(expected))
    assert found.lengths == tuple(length + FRAME_TOKENS for length in expected)
    assert len(prompts) == len(expected) - found.num_longer(41)


def made(path: str, lengths: list[int], num_rows: int = 0) -> FileLengths:
    return FileLengths(path=path, num_rows=num_rows or len(lengths), lengths=tuple(lengths))


@pytest.mark.parametrize("num_rows", [1, 2, 9, 10, 11, 25, 1000])
def test_a_sample_is_spread_over_the_file_and_no_row_counts_twice(
    write_file: WriteFile, tokenizer: CharacterTokenizer, num_rows: int
) -> None:
    """Files are often sorted by task, so a sample of the first rows would miss a task with long prompts."""
    found = file_lengths(write_file("a", list(range(1, num_rows + 1))), tokenizer=tokenizer, max_rows=10)
    rows = [length - FRAME_TOKENS for length in found.lengths]
    assert found.num_rows == num_rows
    assert len(set(rows)) == len(rows) == min(10, num_rows)
    assert (rows[0], rows[-1]) == (1, num_rows)


def test_the_line_when_nothing_is_left_out() -> None:
    said = left_out([made("a", [5, 6]), made("b", [7])], 7)
    assert said == "None of 3 prompts in 2 files is longer than sampler.max_prompt_tokens=7."


def test_one_file_is_no_plural() -> None:
    assert left_out([made("a", [5, 6])], 7).startswith("None of 2 prompts in 1 file is longer")


def test_the_line_names_each_losing_file_and_the_bound_to_raise() -> None:
    few, many = [9] * 1 + [1] * 99, [8000] * 2 + [1] * 8
    said = left_out([made("few", few, 24_000), made("none", [1]), made("many", many)], 8)
    assert said == (
        "Prompts longer than sampler.max_prompt_tokens=8 are left out: 1 of 100 rows looked at in few, 2 of 10 in "
        "many. Raise sampler.max_prompt_tokens to keep more of many: the longest has 8,000 tokens."
    )


def test_a_file_that_loses_more_than_half_is_a_warning_and_one_that_loses_all_an_error() -> None:
    assert not left_out([made("a", [9] * 5 + [1] * 5)], 8).startswith("warning: ")
    assert left_out([made("a", [9] * 6 + [1] * 5)], 8).startswith("warning: Prompts longer than")
    with pytest.raises(
        ConfigError, match=r"every prompt of a is longer .*=8 \(2 of 2 in a\).*shortest has 9 tokens"
    ):
        left_out([made("b", [1]), made("a", [9, 10])], 8)


def test_a_tenth_is_not_yet_worth_a_warning() -> None:
    assert "Raise" not in left_out([made("a", [9] + [1] * 9)], 8)
    assert "Raise" in left_out([made("a", [9, 9] + [1] * 9)], 8)
