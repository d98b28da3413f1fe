"""Batches with malformed items: an item that cannot be decoded does not affect the others."""

import json
import random

import pytest

from reward import frames
from reward.bodies import Invalid, items_of

DEEP = b"[" * 50_000 + b"]" * 50_000
POISONS = {
    "nests too deep": DEEP,
    "a long whole number": b"9" * 5_000,
    "NaN": b"NaN",
    "infinite": b"1e999",
    "minus infinity": b"-Infinity",
    "not UTF-8": b'"\xff"',
    "deep objects": b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
    "other brackets": b"[}",
    "half an escape": b'"\\u12"',
}


def poisoned(value: bytes, name: str) -> bytes:
    return b'{"request_id": "%s", "task": {"answer": %s}}' % (name.encode(), value)


@pytest.mark.parametrize("name", POISONS)
def test_only_the_poisoned_item_is_refused_and_it_keeps_its_id(name: str) -> None:
    good = [b'{"request_id": "a]}", "response": "\\"}{"}', b"[1, 2]", b"null", b'"x,y"', b"-1.5e3"]
    body = b'{"version": 2, "items": [' + b" ,\n".join([*good, poisoned(POISONS[name], name), *good]) + b"]}"
    items = items_of(body, 256)
    expected = [json.loads(item) for item in good]
    assert items[: len(good)] == expected
    assert items[len(good) + 1 :] == expected
    bad = items[len(good)]
    assert isinstance(bad, Invalid)
    assert bad.request_id == name


@pytest.mark.parametrize(
    "body",
    [b"", b"[1]", b'{"items": 5}', b'{"items": [1', b'{"items": [1}', b'{"items": [1 2]}', b'{"items" [1]}',
     b'{"other": [1]}', b'{"items": [1,]}', b"{'items': []}", b"[" * 100_000, b'{"items": ["a]}', b"\xff"],
)  # fmt: skip
def test_what_is_no_batch_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError, match="list of items"):
        items_of(body, 256)


def test_it_stops_reading_after_the_allowed_number() -> None:
    assert len(items_of(b'{"items": [' + b"1," * 10_000 + b"1]}", 256)) == 257


def random_value(chance: random.Random, depth: int) -> object:
    kind = chance.randrange(8 if depth else 5)
    if kind == 0:
        return chance.choice([None, True, False])
    if kind == 1:
        return chance.choice([0, -7, 2**80, 1.5, -2e-9])
    if kind < 5:
        return "".join(chance.choices('ab\\"[]{},: \n\u00e9\ud800', k=chance.randrange(6)))
    values = [random_value(chance, depth - 1) for _ in range(chance.randrange(4))]
    return (
        values if kind < 7 else {f"{index}{chance.choice('[]{}')}": each for index, each in enumerate(values)}
    )


def test_items_are_what_a_decoder_of_the_whole_body_reads() -> None:
    chance = random.Random(0)
    for _ in range(1_000):
        whole = {
            "a{": random_value(chance, 3),
            "items": [random_value(chance, 4) for _ in range(chance.randrange(5))],
        }
        body = json.dumps(whole, indent=chance.choice([None, 1]), ensure_ascii=chance.random() < 0.5)
        data = body.encode("utf-8", "surrogatepass")
        assert items_of(data, 256) == frames.decode(data)["items"]
