"""Parses requests: everything that a caller can get wrong is told in a sentence."""

from __future__ import annotations

import re
from typing import Any

from reward import frames
from reward.graders.registry import domains
from reward.protocol import MAX_ID_CHARACTERS, ScoreRequest

_MAX_DEADLINE_MS = 2**53
"""JSON libraries of all languages read integers exactly up to here (RFC 8259, section 6)."""
_BAD_ID = f'"request_id" must be a text of 1 to {MAX_ID_CHARACTERS} characters'
_FIRST_ID = re.compile(rb'\s*\{\s*"request_id"\s*:\s*("(?:[^"\\]|\\.)*+")')
"""The id of a request that cannot be decoded, if the request begins with it as our client writes it."""


class InvalidRequest(ValueError):
    """A request that does not have the protocol's form; the message says what is wrong."""

    def __init__(self, sentence: str, request_id: str = "") -> None:
        super().__init__(sentence)
        self.request_id = request_id


def decode_line(line: bytearray) -> Any:
    """Decodes one line of a batch. Returns an InvalidRequest for a line that is not JSON, with its id if it can be
    found."""
    try:
        return frames.decode(line)
    except ValueError as error:
        sentence = f"the line is not JSON that can be read: {error}"
    try:
        found = _FIRST_ID.match(line)
        return InvalidRequest(sentence, frames.decode(found[1]) if found else "")
    except ValueError:
        return InvalidRequest(sentence)


def request_of(body: Any) -> ScoreRequest:
    """Parses the request in a JSON body. Raises InvalidRequest."""
    if isinstance(body, InvalidRequest):
        raise body
    if not isinstance(body, dict):
        raise InvalidRequest("a request must be a JSON object")
    request_id = body.get("request_id")
    if not isinstance(request_id, str):
        raise InvalidRequest(_BAD_ID)
    if not 0 < len(request_id) <= MAX_ID_CHARACTERS:
        raise InvalidRequest(_BAD_ID, request_id)
    domain, response, task, deadline_ms = (
        body.get(key) for key in ("domain", "response", "task", "deadline_ms")
    )
    if domain is None:
        raise InvalidRequest(f"the request names no domain; there are {', '.join(domains())}", request_id)
    if not isinstance(domain, str) or domain not in domains():
        raise InvalidRequest(
            f"unknown domain {str(domain)[:80]!r}; there are {', '.join(domains())}", request_id
        )
    if not isinstance(response, str):
        raise InvalidRequest('"response" must be a text', request_id)
    in_thought = body.get("in_thought", False)
    if not isinstance(in_thought, bool):
        raise InvalidRequest('"in_thought" must be true or false', request_id)
    if not isinstance(task, dict):
        raise InvalidRequest('"task" must be an object', request_id)
    is_whole = type(deadline_ms) is int
    if deadline_ms is not None and not (is_whole and 0 <= deadline_ms <= _MAX_DEADLINE_MS):
        raise InvalidRequest(
            '"deadline_ms" must be a whole number of milliseconds from 0 to 2^53', request_id
        )
    return ScoreRequest(
        request_id=request_id,
        domain=domain,
        response=response,
        in_thought=in_thought,
        task=task,
        deadline_ms=deadline_ms,
    )
