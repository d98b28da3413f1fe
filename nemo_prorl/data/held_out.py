"""Reads the held-out prompts from validation files, with the lengths of each file's prompts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nemo_prorl.config import ConfigError
from nemo_prorl.data.mix import Tokenizer, render
from nemo_prorl.data.rows import RowFile, check_distinct
from nemo_prorl.data.too_long import FileLengths
from nemo_prorl.types import Prompt


def held_out(
    paths: Sequence[str],
    *,
    tokenizer: Tokenizer,
    max_prompts: int,
    max_prompt_tokens: int,
    with_extra: bool = False,
) -> tuple[list[Prompt], list[FileLengths]]:
    """Returns (prompts, lengths): all prompts of the validation files, or `max_prompts` of each, evenly spaced, without
    those that are too long; and the lengths of all that were looked at, including those. with_extra: prompts also carry
    the files' further columns.

    Raises ConfigError if nothing is left of a file.
    """
    prompts: list[Prompt] = []
    lengths: list[FileLengths] = []
    files = [RowFile(Path(path), with_extra=with_extra) for path in paths]
    if files:
        check_distinct(files)
    for file in files:
        rendered = [render(row, tokenizer) for _, row in file.sample(max_prompts or len(file))]
        fitting = [prompt for prompt in rendered if len(prompt.token_ids) <= max_prompt_tokens]
        if not fitting:
            raise ConfigError(
                f"every prompt taken from {file.name} is longer than sampler.max_prompt_tokens={max_prompt_tokens}: "
                "raise it."
            )
        prompts += fitting
        of_file = tuple(len(prompt.token_ids) for prompt in rendered)
        lengths.append(FileLengths(path=file.name, num_rows=len(rendered), lengths=of_file))
    return prompts, lengths
