"""Tests of the line about prompts that are too long, with their number per file."""

import pytest

from nemo_prorl.config import ConfigError
from nemo_prorl.data.inputs import FileLengths, file_lengths, left_out
from tests.data.conftest import FRAME_TOKENS, CharacterTokenizer, WriteFile


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
