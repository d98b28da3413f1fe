"""Reads the arguments of instructions. Each reader returns the checked value, or raises InvalidTask."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from reward.graders.grade import InvalidTask, require


def _count(value: Any, where: str) -> int:
    if isinstance(value, float) and value.is_integer():  # parquet rows with nulls turn counts into floats
        value = int(value)
    require(isinstance(value, int) and not isinstance(value, bool) and value >= 0, f"{where} must be a count")
    return int(value)


def _text(value: Any, where: str) -> str:
    require(isinstance(value, str) and bool(value.strip()), f"{where} must be a text")
    return str(value).strip()


def _keyword(value: Any, where: str) -> str:
    """Returns a keyword unchanged: keywords are regular expressions, as in the original."""
    _text(value, where)
    try:
        re.compile(value)
    except re.error as error:
        raise InvalidTask(f"{where} is not a usable keyword: {error}") from error
    return str(value)


def _pattern(value: Any, where: str) -> str:
    return _keyword(_text(value, where), where)


def _letter(value: Any, where: str) -> str:
    require(isinstance(value, str) and len(value.strip()) == 1, f"{where} must be one character")
    return str(value).strip().lower()


def _relation(value: Any, where: str) -> str:
    require(
        value in ("less than", "at least"),
        f"{where} must be 'less than' or 'at least', not {str(value)[:40]!r}",
    )
    return str(value)


def _each(kind: Callable[[Any, str], str]) -> Callable[[Any, str], list[str]]:
    def convert(value: Any, where: str) -> list[str]:
        require(isinstance(value, list) and bool(value), f"{where} must be a list of texts")
        return [kind(item, where) for item in value]

    return convert


KINDS: dict[str, Callable[[Any, str], Any]] = {
    "count": _count,
    "text": _text,
    "pattern": _pattern,
    "patterns": _each(_keyword),  # the original strips single arguments, not those in a list
    "letter": _letter,
    "relation": _relation,
}
"""Kind -> its reader, which takes the value and where it stands."""
PLAIN_KINDS = KINDS | {"pattern": _text, "patterns": _each(_text)}
"""The same, with keywords that are plain text: C++, 3.14, $5."""
