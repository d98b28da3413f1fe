"""Tests of what a caller can get wrong in a request: each mistake is a sentence, with the id where it can be found."""

import json
from typing import Any

import pytest

from reward.protocol import ScoreRequest
from reward.requests import InvalidRequest, decode_line, request_of

GOOD = {"request_id": "p", "domain": "math", "response": "\\boxed{4}", "task": {"answer": "4"}}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"domain": "poetry"}, "unknown domain 'poetry'; there are math"),
        ({"domain": []}, "unknown domain"),
        ({"domain": None}, "names no domain; there are math"),
        ({"request_id": ""}, "request_id"),
        ({"request_id": 5}, "request_id"),
        ({"request_id": "p" * 501}, "request_id"),
        ({"response": None}, "response"),
        ({"in_thought": "yes"}, "in_thought"),
        ({"in_thought": 1}, "in_thought"),
        ({"in_thought": None}, "in_thought"),
        ({"task": []}, "task"),
        ({"deadline_ms": -1}, "deadline_ms"),
        ({"deadline_ms": "soon"}, "deadline_ms"),
        ({"deadline_ms": 10**400}, "deadline_ms"),
        ({"deadline_ms": 1e300}, "deadline_ms"),
        ({"deadline_ms": True}, "deadline_ms"),
    ],
)
def test_a_request_of_another_form_is_invalid(change: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidRequest, match=word) as caught:
        request_of({**GOOD, **change})
    assert caught.value.request_id in ("", "p", "p" * 501)


@pytest.mark.parametrize("body", [None, [], 5, "x"])
def test_what_is_no_object_is_no_request(body: Any) -> None:
    with pytest.raises(InvalidRequest, match="JSON object"):
        request_of(body)


def test_a_good_request() -> None:
    line = bytearray(json.dumps({**GOOD, "in_thought": True, "deadline_ms": 5, "unknown": 1}).encode())
    assert request_of(decode_line(line)) == ScoreRequest(**GOOD, in_thought=True, deadline_ms=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "poison", [b"[" * 3_000 + b"]" * 3_000, b"9" * 5_000, b"NaN", b"1e999", b'"\xff"', b"}"]
)
def test_a_line_that_is_not_json_keeps_its_id(poison: bytes) -> None:
    found = decode_line(bytearray(b'{"request_id": "p", "task": {"answer": ' + poison + b"}}"))
    assert isinstance(found, InvalidRequest)
    assert found.request_id == "p"
    with pytest.raises(InvalidRequest, match="not JSON"):
        request_of(found)


@pytest.mark.parametrize("line", [b"{", b"[}", b"\xff", b"[" * 100_000, b'{"request_id": "\\u12"'])
def test_a_line_of_which_nothing_can_be_read(line: bytes) -> None:
    found = decode_line(bytearray(line))
    assert isinstance(found, InvalidRequest)
    assert found.request_id == ""
