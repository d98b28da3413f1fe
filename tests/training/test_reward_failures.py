"""A reward service that dies, hangs or answers garbage in mid-step, through the real client: its rollouts are dropped
and counted, or the run stops and says why. A failure is never a reward of 0.

tests/reward/test_client.py has every kind of garbage, retries, and servers that take over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from nemo_prorl.reward_sources.service import ServiceGrader
from nemo_prorl.training.sampling.grading import RewardServiceFailing
from nemo_prorl.training.sampling.rounds import Collection
from reward.client import RewardClient
from tests.reward.fake_server import HANG_UP, FakeServer, Items, fake_servers, graded
from tests.training.conftest import (
    MIXED,
    NUM_ROLLOUTS,
    make_collector,
    make_config,
    make_prompts,
    new_state,
)

pytestmark = pytest.mark.medium  # clients wait before they try again

Answer = Callable[[Items], tuple[int, Any]]


def honest(items: Items) -> tuple[int, Any]:
    scores = [item["task"]["scores"][int(item["response"])] for item in items]
    return 200, [result | {"score": score} for result, score in zip(graded(items), scores, strict=True)]


class Failing:
    """Grades the first `num_honest` batches, and answers as `failure` says from then on."""

    def __init__(self, num_honest: int, failure: Answer) -> None:
        self.num_graded = 0
        """Number of rollouts."""
        self._left, self._failure, self._lock = num_honest, failure, threading.Lock()

    def __call__(self, items: Items) -> tuple[int, Any]:
        with self._lock:
            is_honest, self._left = self._left > 0, self._left - 1
            self.num_graded += len(items) * is_honest
        return honest(items) if is_honest else self._failure(items)


def step(server: FakeServer, **config: Any) -> Collection:
    """Returns the groups of one step through the real client, with small batches and short timeouts."""
    urls, made = [server.url], make_config(prompts_per_step=6, max_rounds=1, **config)
    with RewardClient(urls=urls, request_timeout_s=3.0, max_attempts=3, batch_items=2) as client:
        client.wait_until_ready(30)
        grader = ServiceGrader(client, None)
        return make_collector(made, make_prompts(*[MIXED] * 6), grader=grader).collect(new_state())


@pytest.mark.parametrize("failure", ["dies", "is replaced by another version", "hangs"])
def test_what_a_service_left_ungraded_stops_the_run_or_is_dropped_and_counted(
    failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client waits 35 s longer for a batch than a request may take, for requests that a worker has begun; here
    0.5 s in all."""
    patient, ended = aiohttp.ClientTimeout, threading.Event()
    monkeypatch.setattr(
        aiohttp, "ClientTimeout", lambda total, **rest: patient(total=total and min(total, 0.5), **rest)
    )
    answers: dict[str, Answer] = {
        "dies": lambda items: (server.close(), (HANG_UP, None))[1],  # type: ignore[func-returns-value]
        "is replaced by another version": lambda items: (200, graded(items, version="v2")),
        "hangs": lambda items: (ended.wait(60), (HANG_UP, None))[1],
    }
    with fake_servers() as make:
        server = make(answer := Failing(3, answers[failure]))
        collection = step(server, max_failed_share=1.0, min_fill=0.0)
        for group in collection.sampled:
            assert all(member.reward == MIXED[member.rollout.sibling] for member in group.members)
            assert len(group.members) + group.num_failed == NUM_ROLLOUTS
        assert sum(group.num_failed for group in collection.sampled) == 24 - answer.num_graded
        assert all(len(set(group.rewards)) == 2 for group in collection.groups)
        if failure != "dies":  # a server that has died never gets ready again
            server.answer = answer = Failing(3, answers[failure])
            with pytest.raises(RewardServiceFailing, match=r"of 24 rollouts.*infra_error: ") as caught:
                step(server, max_failed_share=0.5)
            assert f"failed on {24 - answer.num_graded} of 24" in str(caught.value)
            assert "\n" not in str(caught.value)
        ended.set()
