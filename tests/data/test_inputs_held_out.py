"""Tests of held-out prompts: which ones are chosen, and the lengths of all that were read."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_prorl.config import ConfigError
from nemo_prorl.data.inputs import held_out
from nemo_prorl.data.rows import write_rows
from tests.data.conftest import FRAME_TOKENS, CharacterTokenizer, WriteFile, make_row


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
