"""Reads a batch with an item that cannot be decoded: that item alone is refused, the others are graded.

Python's decoder rejects a whole body because of one thing that it does not accept: a number that is not finite, an
integer of more than 4,300 digits, brackets nested beyond the recursion limit, a byte that is not UTF-8. `items_of` then
finds where each item begins and ends without parsing it, and decodes each on its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from reward import frames

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BRACKETS_OR_STRING = re.compile(rb'([\[{]+)|([\]}]+)|"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_PLAIN = re.compile(rb"[^\s,:\[\]{}\"]+")
_SPACE = re.compile(rb"\s*")
_SHAPE = "the body is not a JSON object with a list of items"


class Invalid(ValueError):
    """A request that does not have the protocol's form; the message says what is wrong."""

    def __init__(self, sentence: str, request_id: str = "") -> None:
        super().__init__(sentence)
        self.request_id = request_id


def items_of(data: bytes, max_items: int) -> list[Any]:
    """Returns the decoded items of the body `{"items": [...]}`, with an Invalid in place of each one that cannot be
    decoded. Reads at most one item beyond `max_items`. Raises ValueError if the body does not have this form.

    A body of millions of brackets takes seconds, so do not call this in an event loop."""
    begins = next(
        (begin for key, begin, _ in _members(data, _skip(data, 0), b"{") if key == b'"items"'), None
    )
    if begins is None:
        raise ValueError(_SHAPE)
    items: list[Any] = []
    for _, begin, end in _members(data, begins, b"["):
        items.append(_item(data[begin:end]))
        if len(items) > max_items:
            break
    return items


def _item(data: bytes) -> Any:
    try:
        return frames.decode(data)
    except ValueError as error:
        return Invalid(f"the request is not JSON that can be read: {error}", _request_id(data))


def _request_id(data: bytes) -> str:
    """Returns the id of a request that cannot be decoded as a whole; empty if it has no text as its id."""
    try:
        for key, begin, end in _members(data, 0, b"{"):
            if key == b'"request_id"':
                found = frames.decode(data[begin:end])
                return found if isinstance(found, str) else ""
    except ValueError:
        pass
    return ""


def _members(data: bytes, at: int, opening: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yields (key, begin, end) for each value of the object (`{`) or list (`[`) at an offset; keys of a list are empty.
    Raises ValueError where the punctuation is not JSON."""
    if data[at : at + 1] != opening:
        raise ValueError(_SHAPE)
    at = _skip(data, at + 1)
    if data[at : at + 1] in (b"}", b"]"):
        return
    while True:
        key = b""
        if opening == b"{":
            end = _end(data, at)
            key, at = data[at:end], _skip(data, end)
            if data[at : at + 1] != b":":
                raise ValueError(_SHAPE)
            at = _skip(data, at + 1)
        end = _end(data, at)
        yield key, at, end
        at = _skip(data, end)
        if data[at : at + 1] != b",":
            break
        at = _skip(data, at + 1)
    if data[at : at + 1] != (b"}" if opening == b"{" else b"]"):
        raise ValueError(_SHAPE)


def _skip(data: bytes, at: int) -> int:
    """Returns the offset behind white space."""
    space = _SPACE.match(data, at)
    return at if space is None else space.end()


def _end(data: bytes, at: int) -> int:
    """Returns the offset behind the value that begins at `at`. Raises ValueError if there is none or it does not
    end."""
    if data[at : at + 1] not in (b"{", b"["):
        value = (_STRING if data[at : at + 1] == b'"' else _PLAIN).match(data, at)
        if value is None:
            raise ValueError(_SHAPE)
        return value.end()
    depth = 0
    for token in _BRACKETS_OR_STRING.finditer(data, at):
        opened, closed = token.group(1, 2)
        if opened:
            depth += len(opened)
        elif closed:
            if len(closed) >= depth:
                return token.start() + depth
            depth -= len(closed)
    raise ValueError(_SHAPE)
