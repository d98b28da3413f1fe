"""Counts the prompts of each file that are longer than sampler.max_prompt_tokens, before a run leaves them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_prorl.config import ConfigError
from nemo_prorl.data.mix import Tokenizer, render
from nemo_prorl.data.rows import RowFile

MAX_ROWS = 1000
"""Rows of a training file that are tokenized, evenly spaced: enough to know a share to within 3 points (twice the
standard error, at most), in a second or two per file."""
NOTABLE_SHARE = 0.1
"""For a file that loses more than this share, the message suggests a higher limit (our choice)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLengths:
    """Prompt lengths of one file, of all its rows or a sample.

    Example: FileLengths(path="data/eurus/train.parquet", num_rows=24000, lengths=(311, 650, ...))
    """

    path: str
    """As the user wrote it (`RowFile.name`)."""
    num_rows: int
    """Rows that a run may draw from; `lengths` has as many entries, or fewer if only a sample was tokenized."""
    lengths: tuple[int, ...]
    """Tokens of the rendered prompts."""

    def num_longer(self, max_prompt_tokens: int) -> int:
        return sum(length > max_prompt_tokens for length in self.lengths)


def file_lengths(path: str, *, tokenizer: Tokenizer, max_rows: int = MAX_ROWS) -> FileLengths:
    """Returns the prompt lengths of at most `max_rows` rows of a file, evenly spaced."""
    file = RowFile(Path(path))
    lengths = tuple(len(render(row, tokenizer).token_ids) for _, row in file.sample(max_rows))
    return FileLengths(path=file.name, num_rows=len(file), lengths=lengths)


def left_out(files: Sequence[FileLengths], max_prompt_tokens: int) -> str:
    """Says in one line what the limit leaves out of each file, and for which files it should be raised; as a warning if
    a file loses more than half. Raises ConfigError if nothing is left of a file."""
    bound = f"sampler.max_prompt_tokens={max_prompt_tokens}"
    for file in files:
        if file.num_longer(max_prompt_tokens) == len(file.lengths):
            raise ConfigError(
                f"every prompt of {file.path} is longer than {bound} ({_loss(file, max_prompt_tokens)}): raise it (the "
                f"shortest has {min(file.lengths):,} tokens), or leave the file out."
            )
    losing = [file for file in files if file.num_longer(max_prompt_tokens)]
    if not losing:
        num_prompts = sum(len(file.lengths) for file in files)
        where = f"{len(files)} file{'s' if len(files) > 1 else ''}"
        return f"None of {num_prompts:,} prompts in {where} is longer than {bound}."
    losses = ", ".join(_loss(file, max_prompt_tokens) for file in losing)
    said = f"Prompts longer than {bound} are left out: {losses}."
    if any(file.num_longer(max_prompt_tokens) > len(file.lengths) / 2 for file in losing):
        said = f"warning: {said}"
    notable = [
        file for file in losing if file.num_longer(max_prompt_tokens) > NOTABLE_SHARE * len(file.lengths)
    ]
    if notable:
        longest = max(max(file.lengths) for file in notable)
        said += (
            f" Raise sampler.max_prompt_tokens to keep more of {', '.join(file.path for file in notable)}: the longest "
            f"has {longest:,} tokens."
        )
    return said


def _loss(file: FileLengths, max_prompt_tokens: int) -> str:
    looked_at = f"{len(file.lengths):,}"
    if len(file.lengths) < file.num_rows:
        looked_at += " rows looked at"
    return f"{file.num_longer(max_prompt_tokens):,} of {looked_at} in {file.path}"
