"""Finds the fenced code blocks of a response. Pure functions of text, in linear time.

A fence is a run of three or more backticks. Beyond CommonMark, the parser accepts four habits of language models:

- A fence may follow text on its line: `Here is the code: ```python`, and `print(x)```` at the end of a program.
- Python has no backticks. So in a block labelled Python, or without a label, a run of backticks ends the block anywhere
  except inside a string or comment of the program.
- A fence labelled Python begins a block, even if an earlier block was never closed.
- The last block may be left unclosed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_OPENING = re.compile(
    r"^[ \t]*+(?P<line>```++)[ \t]*+(?P<info>[^\n`]*+)$"
    r"|^[^\n`]*+(?P<bare>```++)[ \t\r]*+$"
    r"|(?<!`)(?P<labelled>```++)(?P<label>[^\n`]++)$",
    re.MULTILINE,
)
"""A fence at the start of a line with any text behind it, or after other text with nothing or a label behind it.
`_opening` accepts only Python's labels there."""
_PYTHON = re.compile(r"[{. \t]*(?:python|py|pypy)[\d.]*(?![\w-])", re.IGNORECASE)
_LANGUAGE = re.compile(r"[\w.+#{}-]*")
_FENCE_IN_PROGRAM = re.compile(
    r'"""(?:[^"\\]|\\[\s\S]?+|"(?!""))*+(?:"""|\Z)'
    r"|'''(?:[^'\\]|\\[\s\S]?+|'(?!''))*+(?:'''|\Z)"
    r'|"(?:[^"\\\n]|\\[\s\S])*+"?'
    r"|'(?:[^'\\\n]|\\[\s\S])*+'?"
    r"|\#[^\n]*+"
    r"|(?P<fence>```++)[ \t]*+(?P<info>[^\n`]*+)"
)
"""Strings, comments, and fences outside of them. A string that is never closed ends with its line, or with the text if
it has three quotes. Searching for its end from every quotation mark would take quadratic time."""
_FENCE_IN_TEXT = re.compile(r"(?<!`)(?P<fence>```++)[ \t]*+(?P<info>[^\n`]*+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """The text between two fences."""

    label: str
    """The text behind the opening fence: usually a language, or nothing."""
    body: str
    is_closed: bool

    @property
    def is_python(self) -> bool:
        """Whether the label names Python: `python`, `Python3`, `py`, `{.python}`, `python title="a.py"`."""
        return _is_python(self.label)


def code_blocks(text: str) -> list[Block]:
    """Returns all blocks that are not empty, in order."""
    blocks: list[Block] = []
    position = 0
    while opening := _opening(text, position):
        fence, label = opening
        start = min(len(text), fence.end() + 1)
        run = fence["line"] or fence["bare"] or fence["labelled"]
        end, position, is_closed = _end(text, start, run, label)
        body = text[start:end].rstrip(" \t").lstrip("\ufeff")  # a byte order mark
        if body.strip():
            # A block in a list is indented as a whole: every line loses the first one's indentation.
            margin = re.match(r"(?:[ \t]*\n)*([ \t]*)", body)
            if margin and margin[1]:
                body = re.sub(f"^{margin[1]}", "", body, flags=re.MULTILINE)
            blocks.append(Block(label, body, is_closed))
    return blocks


def by_preference(blocks: list[Block]) -> list[int]:
    """Returns the indices of the blocks, the likeliest program first: blocks labelled Python, then those without a
    label, then other labels; among equals closed blocks before an unclosed one, then later blocks before earlier
    ones."""
    return sorted(
        range(len(blocks)),
        key=lambda i: (blocks[i].is_python, not blocks[i].label, blocks[i].is_closed, i),
        reverse=True,
    )


def _opening(text: str, position: int) -> tuple[re.Match[str], str] | None:
    """Returns the first opening fence from a position on, and its label."""
    for fence in _OPENING.finditer(text, position):
        label = (fence["info"] or fence["label"] or "").strip()
        if fence["labelled"] is None or _is_python(label):
            return fence, label
    return None


def _end(text: str, start: int, opening: str, label: str) -> tuple[int, int, bool]:
    """Returns where a block's body ends, where to continue reading, and whether a fence closes it."""
    is_program = not label or _is_python(label)
    fences = _FENCE_IN_PROGRAM if is_program else _FENCE_IN_TEXT
    for fence in fences.finditer(text, start):
        if fence["fence"] is None:  # a string or a comment
            continue
        info = fence["info"].strip()
        if _is_python(info) or (is_program and info and _LANGUAGE.fullmatch(info)):
            return fence.start("fence"), fence.start("fence"), True
        if len(fence["fence"]) >= len(opening) and (is_program or not info):
            return fence.start("fence"), fence.end("fence"), True
    return len(text), len(text), False


def _is_python(label: str) -> bool:
    return _PYTHON.match(label) is not None
