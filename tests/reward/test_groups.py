"""Tests of requests that go to a worker together: they get the same answers as one by one, whatever one of them
does."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("langdetect", reason="needs the reward environment")

from reward import frames, groups, worker
from reward.answers import Answer, Crashed, Grade, Late, NoReply, NotSent, Reply, Retry, TimedOut
from reward.groups import Groups
from reward.pool import Pool
from reward.protocol import GradeStatus, ScoreRequest
from reward.service import Service

Replies = Callable[[list[Any]], Reply | NotSent]


def together(message: Any) -> Grade:
    return Grade(score=1.0, verdict="together", details={"of": message})


def alone(message: Any) -> Grade:
    return Grade(score=1.0, verdict="alone", details={"of": message})


class FakePool:
    """Answers a message with itself. `replies`: the answers to successive groups; None is a complete answer."""

    def __init__(self, *replies: Replies | None) -> None:
        self.replies = list(replies)
        self.groups: list[list[Any]] = []
        self.deadlines: list[float | None] = []
        """The deadlines of the groups, in order."""
        self.alone: list[Any] = []

    async def run(self, message: Any, deadline: float | None = None) -> Answer:
        self.alone.append(message)
        return alone(message)

    async def ask(self, data: bytes, deadline: float | None, cpu_s: float, **_counts: int) -> Reply | NotSent:
        group = json.loads(data[frames.LENGTH.size :])["group"]
        self.groups.append(group)
        self.deadlines.append(deadline)
        reply = self.replies.pop(0) if self.replies else None
        return Reply(tuple(map(together, group))) if reply is None else reply(group)


def run_together(
    pool: FakePool, messages: list[Any], deadlines: Sequence[float | None] | None = None
) -> list[Answer]:
    async def all_of_them() -> list[Answer]:
        groups = Groups(pool)  # type: ignore[arg-type]
        until = [None] * len(messages) if deadlines is None else deadlines
        return await asyncio.wait_for(asyncio.gather(*map(groups.run, messages, until)), 10)

    return asyncio.run(all_of_them())


def test_answers_come_in_order_and_groups_are_small() -> None:
    messages = [{"number": number} for number in range(40)]
    pool = FakePool()
    assert run_together(pool, messages) == [together(message) for message in messages]
    assert [len(group) for group in pool.groups] == [16, 16, 8]


def test_long_requests_make_groups_of_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_MAX_BYTES", 1000)
    messages = [{"text": "x" * size} for size in (400, 400, 400, 2000, 10)]
    pool = FakePool()
    run_together(pool, messages)
    assert pool.groups == [messages[:2]]
    assert (
        pool.alone == messages[2:]
    )  # the third would fit with the fourth, but that one is longer than a group


def test_what_a_worker_did_not_get_to_goes_again_and_what_it_could_not_import_for_alone() -> None:
    messages = [{"number": number} for number in range(5)]
    pool = FakePool(lambda group: Reply((together(group[0]), Retry("no module"))))
    found = run_together(pool, messages)
    assert found == [together(messages[0]), alone(messages[1]), *map(together, messages[2:])]
    assert pool.groups == [messages, messages[2:]]


@pytest.mark.parametrize(
    "reply", [TimedOut(), Crashed(11), NoReply("the worker died"), Late(), Reply((together(0),) * 50)]
)
def test_each_member_of_a_group_that_fails_is_tried_alone(reply: Reply | NotSent) -> None:
    messages = [{"number": number} for number in range(3)]
    pool = FakePool(lambda group: reply)
    assert run_together(pool, messages) == [alone(message) for message in messages]


@pytest.mark.parametrize(("given_s", "latest_s"), [((60.0, 0.0, 90.0), 90.0), ((60.0, 0.0, None), None)])
def test_a_group_waits_as_long_as_its_most_patient_member_and_leaves_late_ones_behind(
    given_s: tuple[float | None, ...], latest_s: float | None
) -> None:
    """The pool gets a late one alone, and reports that it is late or grades it if a worker is idle."""
    now, pool = time.monotonic(), FakePool()
    messages = [{"number": number} for number in range(3)]
    until = [None if seconds is None else now + seconds for seconds in given_s]
    found = run_together(pool, messages, until)
    assert pool.deadlines == [None if latest_s is None else now + latest_s]
    assert found == [together(messages[0]), alone(messages[1]), together(messages[2])]


def test_one_that_json_cannot_carry_costs_the_others_nothing() -> None:
    messages: list[Any] = [{"number": 1}, {"number": float("nan")}, {"number": 2}]
    pool = FakePool()
    run_together(pool, messages)
    assert pool.groups == [[messages[0], messages[2]]]
    assert pool.alone == [messages[1]]


def test_a_worker_stops_a_group_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    request = {"domain": "logic", "response": "<answer>7</answer>", "in_thought": False, "task": CHAIN_SUM}
    monkeypatch.setattr(worker, "_GROUP_S", -1.0)
    assert len(worker._answers([request] * 3)) == 1
    monkeypatch.setattr(worker, "_GROUP_S", 60.0)
    assert [answer.score for answer in worker._answers([request] * 3) if isinstance(answer, Grade)] == [
        1.0
    ] * 3


# ------------------------------------------------------------------------------------- in a real worker
CHAIN_SUM = {"task": "chain_sum", "entry": {"question": "4 + 3 =", "answer": "7", "metadata": {}}}
ENDLESS = {"instruction_id_list": ["keywords:existence"], "kwargs": [{"keywords": ["(a+)+$"]}]}


def test_only_the_one_that_computes_without_end_pays_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its group loses the worker, but the others are graded as if they had come alone."""
    monkeypatch.setattr(groups, "_CPU_S", 0.3)
    puzzles = [
        ScoreRequest(
            request_id=f"{number}", domain="logic", response=f"<answer>{number}</answer>", task=CHAIN_SUM
        )
        for number in range(12)
    ]
    endless = ScoreRequest(request_id="endless", domain="instruction", response="a" * 40 + "b", task=ENDLESS)
    invalid = ScoreRequest(request_id="invalid", domain="logic", response="", task={"task": "no such puzzle"})
    requests = [*puzzles[:5], endless, invalid, *puzzles[5:]]

    async def main() -> None:
        service = Service(None, num_workers=1, version="test", only=("logic", "instruction"))
        await service.open()
        pool = service.pools["rules"]
        assert isinstance(pool, Pool)
        pool.options = replace(pool.options, cpu_s=0.5)
        results = await asyncio.gather(*map(service.score, requests))
        depth = pool.depth
        await service.close()
        assert [result.request_id for result in results] == [request.request_id for request in requests]
        found = {result.request_id: result for result in results}
        assert all(found[str(number)].status is GradeStatus.graded for number in range(12))
        assert [number for number in range(12) if found[str(number)].verdict == "correct"] == [7]
        assert (found["endless"].score, found["endless"].verdict) == (0.0, "timeout")
        assert found["invalid"].status is GradeStatus.invalid_request
        assert depth == 0

    asyncio.run(main())
