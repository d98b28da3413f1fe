"""A tokenizer with one token per character, and prompt files with prompts of given lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.data.rows import Row, write_rows

WriteFile = Callable[..., str]


class CharacterTokenizer:
    """A tokenizer with one token per character, whose template marks the speakers and the end of an answer."""

    chat_template = "built in"
    eos_token_id = ord("\n")

    def apply_chat_template(self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool) -> str:
        assert not tokenize
        ends = {"assistant": "\n"}
        text = "".join(f"<{m['role'][0]}>{m['content']}{ends.get(m['role'], '')}" for m in conversation)
        return text + ("<a>" if add_generation_prompt else "")

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [ord(character) for character in text]


FRAME_TOKENS = len("<u>" + "<a>")
"""Number of tokens that the template adds to a question."""


def make_row(uid: str, question: str = "?", **changes: Any) -> Row:
    fields: dict[str, Any] = {
        "uid": uid,
        "domain": "math",
        "source": "test",
        "split": "train",
        "messages": ({"role": "user", "content": question},),
        "task": {"answer": "4"},
    }
    return Row(**(fields | changes))


@pytest.fixture
def tokenizer() -> CharacterTokenizer:
    return CharacterTokenizer()


@pytest.fixture
def write_file(tmp_path: Path) -> WriteFile:
    """Writes a file: write_file("a", 7) has rows a/0 ... a/6. Given lengths, it has one row with a question of each
    length in tokens."""

    def write(name: str, rows: int | Sequence[int]) -> str:
        lengths = [1] * rows if isinstance(rows, int) else rows
        path = tmp_path / f"{name}.parquet"
        write_rows(path, [make_row(f"{name}/{i}", "x" * length) for i, length in enumerate(lengths)])
        return str(path)

    return write
