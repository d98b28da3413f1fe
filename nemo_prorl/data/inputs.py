"""Reads a run's training and validation prompts before its engines load, and counts those that are too long."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_prorl.config import ConfigError, RunConfig
from nemo_prorl.data.mix import PromptMix, Tokenizer, render
from nemo_prorl.data.own import Conversion
from nemo_prorl.data.rows import RowFile, check_distinct, read_content
from nemo_prorl.types import Prompt

if TYPE_CHECKING:  # commands that train nothing do not wait for torch
    from nemo_prorl.distributed import Ranks

MAX_ROWS = 1000
"""Rows of a training file that are tokenized, evenly spaced: enough to know a share to within 3 points (twice the
standard error, at most), in a second or two per file."""


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
    num_begun: int = 0
    """How many of these begin the answer."""


def with_prompt_files(
    config: RunConfig, beat: Callable[[], object] = lambda: None, *, into: Path | None = None
) -> tuple[RunConfig, list[str]]:
    """Converts what data.train and data.validation name into prompt files. Returns the new configuration, and sentences
    on what was recognised and on what the user may not expect of it. Raises ConfigError.

    into: where converted files go, by default the run's folder. beat: is called for each of their rows."""
    folder, needs_answer = Path(config.exp_manager.explicit_log_dir), config.reward.asks_service
    conversion = Conversion(folder=folder, needs_answer=needs_answer, into=into, beat=beat)
    data, recognised = conversion.files(config.data)
    if not data.validation:
        recognised.append(
            "No validation: 'data.validation=[held_out.jsonl]' would measure the policy on problems that it is not "
            "trained on."
        )
    trained = {Path(name).resolve() for name in config.data.train}
    recognised += [
        f"{name} is in data.train and in data.validation: its validation says nothing about new problems."
        for name in config.data.validation
        if Path(name).is_file() and Path(name).resolve() in trained
    ]
    return replace(config, data=data), recognised


def prompt_lengths(config: RunConfig, tokenizer: Tokenizer) -> list[FileLengths]:
    """Returns the lengths of a sample of each training file, and of all prompts that a validation takes."""
    files = [(path, MAX_ROWS) for path in config.data.train]
    files += [(path, config.validation.max_prompts or sys.maxsize) for path in config.data.validation]
    found = []
    for file, most in ((RowFile(Path(path)), most) for path, most in files):
        prompts = [render(row, tokenizer) for _, row in file.sample(most)]
        lengths = tuple(len(prompt.token_ids) for prompt in prompts)
        num_begun = sum(bool(prompt.begun) for prompt in prompts)
        found.append(FileLengths(path=file.name, num_rows=len(file), lengths=lengths, num_begun=num_begun))
    return found


def read_prompts(config: RunConfig, tokenizer: Tokenizer, ranks: Ranks) -> tuple[PromptMix, list[Prompt]]:
    """Returns the training prompts and `held_out`. Collective: the main rank alone reads training files whole. Raises
    ConfigError on every rank for a file that cannot be used."""
    contents = ranks.on_main(lambda: {path: read_content(Path(path)) for path in config.data.train})

    def read() -> tuple[PromptMix, list[Prompt]]:
        prompts = PromptMix(
            config.data.train,
            seed=config.seed,
            tokenizer=tokenizer,
            max_prompt_tokens=config.sampler.max_prompt_tokens,
            with_extra=bool(config.reward.function),
            contents=contents,
        )
        return prompts, held_out(config, tokenizer)

    return ranks.together(read)


def held_out(config: RunConfig, tokenizer: Tokenizer) -> list[Prompt]:
    """Returns the prompts of data.validation that are not too long: of each file all, or validation.max_prompts, evenly
    spaced. Raises ConfigError for files that cannot be used."""
    files = [RowFile(Path(path), with_extra=bool(config.reward.function)) for path in config.data.validation]
    if files:
        check_distinct(files)
    most, limit = config.validation.max_prompts or sys.maxsize, config.sampler.max_prompt_tokens
    rendered = (render(row, tokenizer) for file in files for _, row in file.sample(most))
    return [prompt for prompt in rendered if len(prompt.token_ids) <= limit]


def left_out(files: Sequence[FileLengths], max_prompt_tokens: int) -> str:
    """Says in one line what the limit leaves out of each file, as a warning if a file loses more than half, and how
    many prompts begin the answer. Raises ConfigError if nothing is left of a file."""
    bound = f"sampler.max_prompt_tokens={max_prompt_tokens}"
    losses, is_warning = list[str](), False
    for file in files:
        lost, looked_at = sum(length > max_prompt_tokens for length in file.lengths), len(file.lengths)
        rows = " rows looked at" if looked_at < file.num_rows else ""
        loss = f"{lost:,} of {looked_at:,}{rows} in {file.path}"
        if lost == looked_at:
            raise ConfigError(
                f"every prompt of {file.path} is longer than {bound} ({loss}): raise it (the shortest has "
                f"{min(file.lengths):,} tokens), or leave the file out."
            )
        if lost:
            losses.append(f"{loss} (the longest has {max(file.lengths):,} tokens)")
        is_warning |= lost > looked_at / 2
    num_prompts = sum(len(file.lengths) for file in files)
    num_begun = sum(file.num_begun for file in files)
    begun = f" {num_begun:,} of {num_prompts:,} prompts begin the answer." if num_begun else ""
    if losses:
        return (
            f"{'warning: ' * is_warning}Prompts longer than {bound} are left out: {', '.join(losses)}.{begun}"
        )
    where = f"{len(files)} file{'s' if len(files) > 1 else ''}"
    return f"None of {num_prompts:,} prompts in {where} is longer than {bound}.{begun}"
