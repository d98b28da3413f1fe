"""Reads a run's training and validation prompts before its engines load, and counts those that are too long."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_prorl.config import ConfigError, RunConfig
from nemo_prorl.data.mix import PromptMix, Tokenizer, render
from nemo_prorl.data.own import prompt_files
from nemo_prorl.data.rows import RowFile, check_distinct, read_content
from nemo_prorl.types import Prompt

if TYPE_CHECKING:  # commands that train nothing do not wait for torch
    from nemo_prorl.distributed import Ranks

MAX_ROWS = 1000
"""Rows of a training file that are tokenized, evenly spaced: enough to know a share to within 3 points (twice the
standard error, at most), in a second or two per file."""
NOTABLE_SHARE = 0.1
"""For a file that loses more than this share, the message suggests a higher limit."""


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


def with_prompt_files(
    config: RunConfig, beat: Callable[[], object] = lambda: None, *, into: Path | None = None
) -> tuple[RunConfig, list[str]]:
    """Converts what data.train and data.validation name into prompt files. Returns the new configuration, and sentences
    on what was recognised and on what the user may not expect of it. Raises ConfigError.

    into: where converted files go, by default the run's folder. beat: is called for each of their rows."""
    data, recognised = prompt_files(
        config.data,
        Path(config.exp_manager.explicit_log_dir),
        needs_answer=config.reward.asks_service,
        into=into,
        beat=beat,
    )
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


def read_prompts(
    config: RunConfig, tokenizer: Tokenizer, ranks: Ranks
) -> tuple[PromptMix, list[Prompt], list[FileLengths]]:
    """Returns the training prompts, the validation prompts, and lengths for `left_out_prompts`. Collective: the main
    rank alone reads training files whole. Raises ConfigError on every rank for a file that cannot be used."""
    contents = ranks.on_main(lambda: {path: read_content(Path(path)) for path in config.data.train})

    def read() -> tuple[PromptMix, list[Prompt], list[FileLengths]]:
        prompts = PromptMix(
            config.data.train,
            seed=config.seed,
            tokenizer=tokenizer,
            max_prompt_tokens=config.sampler.max_prompt_tokens,
            epsilon=config.data.mix_epsilon,
            retest=config.data.mix_retest,
            with_extra=bool(config.reward.function),
            contents=contents,
        )
        return prompts, *held_out_prompts(config, tokenizer)

    return ranks.together(read)


def held_out_prompts(config: RunConfig, tokenizer: Tokenizer) -> tuple[list[Prompt], list[FileLengths]]:
    """Returns the prompts of data.validation, limited by validation.max_prompts and sampler.max_prompt_tokens, and the
    lengths for `left_out_prompts`."""
    return held_out(
        config.data.validation,
        tokenizer=tokenizer,
        max_prompts=config.validation.max_prompts,
        max_prompt_tokens=config.sampler.max_prompt_tokens,
        with_extra=bool(config.reward.function),
    )


def held_out(
    paths: Sequence[str],
    *,
    tokenizer: Tokenizer,
    max_prompts: int,
    max_prompt_tokens: int,
    with_extra: bool = False,
) -> tuple[list[Prompt], list[FileLengths]]:
    """Returns the prompts of the validation files that are not too long, and the lengths of all that were looked at:
    every prompt, or `max_prompts` of each file, evenly spaced. Raises ConfigError if nothing is left of a file.

    with_extra: prompts also carry the files' further columns."""
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


def left_out_prompts(config: RunConfig, tokenizer: Tokenizer, validation: list[FileLengths]) -> str:
    """Returns one line on the prompts that sampler.max_prompt_tokens leaves out of each file. Counts all that a
    validation takes, whose lengths are given, and a sample of each training file."""
    training = [file_lengths(path, tokenizer=tokenizer) for path in config.data.train]
    return left_out([*training, *validation], config.sampler.max_prompt_tokens)


def prompt_lengths(config: RunConfig, tokenizer: Tokenizer) -> Iterator[int]:
    """Yields the tokens of all prompts that a validation takes, and of a sample of each training file."""
    for path in config.data.train:
        yield from file_lengths(path, tokenizer=tokenizer).lengths
    for path in config.data.validation:
        most = config.validation.max_prompts or sys.maxsize
        yield from file_lengths(path, tokenizer=tokenizer, max_rows=most).lengths


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
