"""Reads a run's training prompts and validation prompts, before its engines load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_prorl.config import RunConfig
from nemo_prorl.data.held_out import held_out
from nemo_prorl.data.mix import PromptMix, Tokenizer
from nemo_prorl.data.own import prompt_files
from nemo_prorl.data.rows import read_content
from nemo_prorl.data.too_long import FileLengths, file_lengths, left_out
from nemo_prorl.types import Prompt

if TYPE_CHECKING:  # commands that train nothing do not wait for torch
    from nemo_prorl.distributed import Ranks


def with_prompt_files(
    config: RunConfig, beat: Callable[[], object] = lambda: None, *, into: Path | None = None
) -> tuple[RunConfig, list[str]]:
    """(the configuration with prompt files for what data.train and data.validation name, sentences on what was
    recognised in files that had to be converted, on a lack of validation, and on validation files that are trained on).
    Converted files are kept in the run's folder, or in `into`; `beat` is called for each of their rows. Raises
    ConfigError."""
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
    """(what is trained on, what is validated on, lengths for `left_out_prompts`). Collective: the main rank alone reads
    training files whole. Raises ConfigError for files that cannot be used, on every rank."""
    contents = ranks.on_main(lambda: {path: read_content(Path(path)) for path in config.data.train})

    def read() -> tuple[PromptMix, list[Prompt], list[FileLengths]]:
        prompts = PromptMix(
            config.data.train,
            seed=config.seed,
            tokenizer=tokenizer,
            max_prompt_tokens=config.sampler.max_prompt_tokens,
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


def left_out_prompts(config: RunConfig, tokenizer: Tokenizer, validation: list[FileLengths]) -> str:
    """One line on the prompts that sampler.max_prompt_tokens leaves out of each file: counted in all that a validation
    takes (`validation`: of those), and in a sample of each training file."""
    training = [file_lengths(path, tokenizer=tokenizer) for path in config.data.train]
    return left_out([*training, *validation], config.sampler.max_prompt_tokens)
