"""The fenced code blocks of a response. Pure functions of text, in linear time.

A fence is a run of three or more backticks or tildes. Beyond CommonMark, four things that language models write are
read:

- A fence may follow text on its line: `Here is the code: ```python`, and `print(x)```` at the end of a program.
- Backticks are no Python. In a block that is labelled Python or not labelled at all, a run of backticks ends the block
  wherever it stands, unless it stands in a string or in a comment of the program.
- A fence that is labelled Python begins a block, even where another block was never closed.
- The last block may be left unclosed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_OPENING = re.compile(
    r"^[ \t]*+(?P<line>```++|~~~++)[ \t]*+(?P<info>[^\n`]*+)$"
    r"|^[^\n`]*+(?P<bare>```++)[ \t\r]*+$"
    r"|(?<!`)(?P<labelled>```++)[ \t]*+(?P<label>[\w.+#{}-]++)[ \t\r]*+$",
    re.MULTILINE,
)
"""At the start of a line with any text behind it, or after other text with nothing or a language behind it."""
_PYTHON = re.compile(r"[{.\s]*(?:python|py|pypy)[\d.]*(?![\w-])", re.IGNORECASE)
_LANGUAGE = re.compile(r"[\w.+#{}-]*")
_STRING_OR_COMMENT = (
    r'"""(?:[^"\\]|\\[\s\S]|"(?!""))*+(?:"""|\Z)'
    r"|'''(?:[^'\\]|\\[\s\S]|'(?!''))*+(?:'''|\Z)"
    r'|"(?:[^"\\\n]|\\[\s\S])*+"?'
    r"|'(?:[^'\\\n]|\\[\s\S])*+'?"
    r"|\#[^\n]*+"
)
"""A string that is never closed ends with its line, or with the text if it has three quotes; looking for its end from
every quotation mark would take quadratic time."""
_FENCE_IN_PROGRAM = re.compile(rf"{_STRING_OR_COMMENT}|(?P<fence>```++)[ \t]*+(?P<info>[^\n`]*+)")
_TILDES_IN_PROGRAM = re.compile(
    rf"{_STRING_OR_COMMENT}|^[ \t]*+(?P<fence>~~~++)[ \t\r]*+(?P<info>)$", re.MULTILINE
)
_FENCE_IN_TEXT = re.compile(r"(?<!`)(?P<fence>```++)[ \t]*+(?P<info>[^\n`]*+)$", re.MULTILINE)
_TILDES_IN_TEXT = re.compile(r"^[ \t]*+(?P<fence>~~~++)[ \t\r]*+(?P<info>)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """The text between two fences."""

    label: str
    """What stands behind the opening fence: a language, as a rule, or nothing."""
    body: str
    is_closed: bool

    @property
    def is_python(self) -> bool:
        """Whether the label names Python: `python`, `Python3`, `py`, `{.python}`, `python title="a.py"`."""
        return _is_python(self.label)


def code_blocks(text: str) -> list[Block]:
    """All blocks that hold anything, in order."""
    blocks: list[Block] = []
    position = 0
    while opening := _opening(text, position):
        fence, label = opening
        start = min(len(text), fence.end() + 1)
        end, position, is_closed = _end(
            text, start, fence["line"] or fence["bare"] or fence["labelled"], label
        )
        body = text[start:end].rstrip(" \t")
        if body.strip():
            blocks.append(Block(label, _unindented(body), is_closed))
    return blocks


def by_preference(blocks: list[Block]) -> list[int]:
    """Indices of the blocks, the likeliest to be the answer's program first: a block labelled Python before one without
    a label, and that before one with another label; then a closed block before an unclosed one; then the later one."""
    return sorted(
        range(len(blocks)),
        key=lambda i: (blocks[i].is_python, not blocks[i].label, blocks[i].is_closed, i),
        reverse=True,
    )


def _opening(text: str, position: int) -> tuple[re.Match[str], str] | None:
    """The first opening fence from a position on, and its label."""
    for fence in _OPENING.finditer(text, position):
        label = (fence["info"] or fence["label"] or "").strip()
        if fence["labelled"] is None or _is_python(label):
            return fence, label
    return None


def _end(text: str, start: int, opening: str, label: str) -> tuple[int, int, bool]:
    """Where a block's body ends, where to read on, and whether a fence closes it."""
    is_program = not label or _is_python(label)
    if opening[0] == "~":
        fences = _TILDES_IN_PROGRAM if is_program else _TILDES_IN_TEXT
    else:
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


def _unindented(body: str) -> str:
    """Without the indentation of its first line, which a block in a list has in front of every line."""
    margin = re.match(r"(?:[ \t]*\n)*([ \t]*)", body)
    assert margin is not None
    return re.sub(f"^{margin[1]}", "", body, flags=re.MULTILINE) if margin[1] else body
