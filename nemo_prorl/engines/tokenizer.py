"""Loads the tokenizer of a model folder, and refuses one that does not belong to the model."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from nemo_prorl.config import ConfigError, RunConfig, one_line
from nemo_prorl.data.mix import Tokenizer
from nemo_prorl.engines.megatron.architecture import read_architecture
from nemo_prorl.engines.megatron.check import declared_stop_ids

TODAY = datetime(2024, 7, 26)
"""What chat templates are told if they ask for today's date: always the same day, because a run over midnight, its
resumes and its validations need the same prompts. It is the date that Llama 3's templates fall back to."""

_QUESTION = {"role": "user", "content": "What is 1 + 1?"}
_ANSWER = {"role": "assistant", "content": "The answer is 2."}
_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


def load_tokenizer(config: RunConfig) -> Tokenizer:
    """Returns the model's own tokenizer. Raises ConfigError when there is none, when it does not belong to the model,
    or when it has no chat template that renders a question."""
    folder = Path(config.model.path)
    tokenizer = _read_tokenizer(folder)
    if getattr(tokenizer, "chat_template", None) is None:
        raise ConfigError(
            f"the tokenizer in model.path={folder} has no chat template: add chat_template.jinja to it."
        )
    tokenizer.apply_chat_template = partial(tokenizer.apply_chat_template, strftime_now=TODAY.strftime)
    try:
        text = tokenizer.apply_chat_template([_QUESTION], tokenize=False, add_generation_prompt=True)
    except (TemplateError, TypeError, ValueError) as error:
        raise ConfigError(
            f"the chat template in model.path={folder} cannot be used ({one_line(error)[:200]}): correct "
            "chat_template.jinja, or chat_template in tokenizer_config.json."
        ) from None
    if _QUESTION["content"] not in text:
        raise ConfigError(
            f"the chat template in model.path={folder} leaves the question out: correct chat_template.jinja."
        )
    return tokenizer


def has_tokenizer(folder: Path) -> bool:
    """Returns whether the folder has a file of a tokenizer."""
    return any((folder / name).exists() for name in _FILES)


def check_tokenizer(folder: Path) -> None:
    """Raises ConfigError for a tokenizer in the folder that cannot be loaded or does not belong to the model. The
    folder may have none."""
    if has_tokenizer(folder):
        _read_tokenizer(folder)


def _read_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        encodes = bool(tokenizer.encode("1 + 1", add_special_tokens=False))
    except Exception as error:  # the library of tokenizers raises Exception itself
        raise ConfigError(
            f"the tokenizer in model.path={folder} cannot be loaded ({one_line(error)[:200]}): put the model's "
            "tokenizer files there."
        ) from error
    if not encodes:  # transformers makes an empty one where there are no files
        raise ConfigError(
            f"there is no tokenizer in model.path={folder}: put the model's tokenizer files there, such as "
            "tokenizer.json and tokenizer_config.json."
        )
    vocab_size = read_architecture(folder).vocab_size
    token, largest = max(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    if largest >= vocab_size:
        raise ConfigError(
            f"the tokenizer in model.path={folder} has token {largest} ({token!r}), but the model's vocabulary has "
            f"{vocab_size} entries (vocab_size in config.json): put the model's own tokenizer files there."
        )
    stop_ids(folder, tokenizer)
    return tokenizer


def stop_ids(folder: Path, tokenizer: Any) -> list[int]:
    """Returns the tokens that end a response: those that the folder declares, and the tokenizer's end-of-sequence
    token. Raises ConfigError if there is none."""
    declared = declared_stop_ids(folder, read_architecture(folder).vocab_size)
    ids = {*declared, tokenizer.eos_token_id} - {None}
    if not ids:
        raise ConfigError(
            f"model.path={folder} names no end-of-sequence token, so that no response would end: write eos_token_id "
            "in its generation_config.json."
        )
    return sorted(ids)


def remarks(config: RunConfig, tokenizer: Any) -> list[str]:
    """Returns sentences on what a user may not expect of the model's chat template."""
    said = []
    if "strftime_now" in str(getattr(tokenizer, "chat_template", "")):
        said.append(
            f"The chat template asks for today's date: it is always {TODAY:%d %b %Y}, so that prompts stay the same."
        )
    turns = [_QUESTION, _ANSWER]
    try:
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=False)
    except (TemplateError, TypeError, ValueError):  # such as a template that shows no answer
        return said
    _, answer, end = text.rpartition(_ANSWER["content"])
    stops = stop_ids(Path(config.model.path), tokenizer)
    # A policy that has learnt the template would not stop after an answer without such a token.
    if answer and not set(stops) & set(tokenizer.encode(end, add_special_tokens=False)):
        written = f"with {end.strip()!r}" if end.strip() else "with no token"
        said.append(
            f"Warning: the chat template ends an answer {written}, which is none of the tokens at which sampling stops "
            f"({', '.join(map(repr, tokenizer.convert_ids_to_tokens(stops)))}): responses may never end, so add the id "
            "of the token that ends a turn to eos_token_id in generation_config.json."
        )
    return said
