"""Tests of a pool: what happens if a worker hangs, dies, answers nonsense or cannot be started. The workers are
processes of a few lines that do what the response says."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence

import pytest

from reward.graders.grade import Grade
from reward.pool import Link, Pool, PoolOptions
from reward.protocol import GradeStatus, ScoreRequest, ScoreResult
from reward.service import Service
from tests.reward.serving import ROOT, alive, wait_until

WORKER = f"""
import os, struct, sys, time
sys.path.insert(0, {str(ROOT)!r})
from reward import frames
from reward.answers import Grade, Invalid, Reply, Retry
fd = int(sys.argv[1])
def answered(word, task, num_together):
    if word == "stall":
        time.sleep(1000)
    while word == "spin":
        pass
    if word == "exit":
        os._exit(70)
    if word == "exit once" and not os.path.exists(task["answer"]):
        open(task["answer"], "w").close()
        os._exit(70)
    if word == "nonsense":
        os.write(fd, b"\\0\\0\\0\\1?")
    if word == "flood":
        os.write(fd, struct.pack("!I", 1 << 30))
    if word.startswith("signal "):
        os.kill(os.getpid(), int(word.split()[1]))
        time.sleep(1000)
    if word == "nap":
        time.sleep(0.5)
    answers = {{"retry": Retry("the machine is too loaded"), "invalid": Invalid("no such task")}}
    return answers.get(word, Grade(score=1.0, verdict="correct", details={{"together": num_together}}))
while (message := frames.read(fd)) is not None:
    requests, answers = message["requests"], []
    for request in requests:
        answers.append(answered(request["response"], request["task"], len(requests)))
        if request["response"] == "last":
            break
    if requests[0]["response"] == "too many":
        answers.append(answers[0])
    frames.write(fd, Reply(tuple(answers), spent_s=time.process_time()).to_frame())
"""


class Scripted:
    """Implements Worker with such a process."""

    def __init__(self, processes: list[subprocess.Popen[bytes]]) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-S", "-c", WORKER, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
        self.pid = self._process.pid
        processes.append(self._process)

    def end(self) -> int:
        self.socket.close()
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        return max(-self._process.wait(), 0)


Use = Callable[[Service, list[subprocess.Popen[bytes]]], Awaitable[None]]


def with_service(use: Use, wall_s: float = 60.0, queue: int = 64, group: int = 1) -> None:
    """Runs a coroutine with a service whose only pool has one such worker, and checks that no process remains."""
    processes: list[subprocess.Popen[bytes]] = []

    async def body() -> None:
        service = Service(None, num_workers=1, version="test")
        options = PoolOptions(workers=1, cpu_s=0.5, wall_s=wall_s, queue=queue, group=group)
        service.pools = {"math": Pool("math", options, lambda: Scripted(processes), service.metrics)}
        await service.open()
        try:
            async with asyncio.timeout(60):
                await use(service, processes)
        finally:
            await service.close()

    asyncio.run(body())
    assert wait_until(lambda: not alive([process.pid for process in processes]), 60)


def ask(response: str, deadline_ms: int | None = None, answer: str = "5") -> ScoreRequest:
    return ScoreRequest(
        request_id="r", domain="math", response=response, task={"answer": answer}, deadline_ms=deadline_ms
    )


def outcome(result: ScoreResult) -> tuple[GradeStatus, float | None, str]:
    return result.status, result.score, result.verdict


NOT_GRADED = (GradeStatus.infra_error, None, "worker_failed")


@pytest.mark.parametrize(
    ("response", "expected", "num_workers"),
    [
        ("spin", (GradeStatus.graded, 0.0, "timeout"), 2),
        (f"signal {int(signal.SIGSEGV)}", (GradeStatus.graded, 0.0, "crashed"), 2),
        ("invalid", (GradeStatus.invalid_request, None, "invalid_task"), 1),
        ("retry", NOT_GRADED, 1),
        ("exit", NOT_GRADED, 4),
        ("nonsense", NOT_GRADED, 4),
        ("flood", NOT_GRADED, 4),
        ("too many", NOT_GRADED, 4),
        (f"signal {int(signal.SIGKILL)}", NOT_GRADED, 4),
        (f"signal {int(signal.SIGTERM)}", NOT_GRADED, 4),
    ],
)
def test_only_what_a_response_is_to_blame_for_is_a_0(
    response: str, expected: tuple[GradeStatus, float | None, str], num_workers: int
) -> None:
    """And the next request finds a worker."""

    async def use(service: Service, processes: list[subprocess.Popen[bytes]]) -> None:
        assert outcome(await service.score(ask(response))) == expected
        assert (await service.score(ask("honest"))).score == 1
        assert len(processes) == num_workers

    with_service(use)


def test_a_worker_that_gives_no_answer_in_time_is_replaced_and_its_request_not_graded() -> None:
    async def use(service: Service, _: object) -> None:
        assert outcome(await service.score(ask("stall"))) == NOT_GRADED

    with_service(use, wall_s=0.5)


def test_a_worker_that_dies_costs_its_request_nothing(tmp_path: object) -> None:
    async def use(service: Service, processes: list[subprocess.Popen[bytes]]) -> None:
        assert (await service.score(ask("exit once", answer=f"{tmp_path}/was here"))).score == 1
        processes[-1].kill()  # while it is idle
        assert (await service.score(ask("honest"))).score == 1
        assert len(processes) == 3

    with_service(use)


def test_a_flood_is_refused_at_once_and_what_was_taken_is_graded() -> None:
    async def use(service: Service, _: object) -> None:
        found = await scores_together(service, ["honest"] * 40)
        assert [result.verdict for result in found] == ["correct"] * 8 + ["queue_full"] * 32
        assert {outcome(result)[:2] for result in found[8:]} == {(GradeStatus.overloaded, None)}
        assert service.pools["math"].depth == 0

    with_service(use, queue=8)


def test_a_deadline_passes_while_all_workers_are_busy() -> None:
    async def use(service: Service, _: object) -> None:
        busy = asyncio.ensure_future(service.score(ask("nap")))
        await asyncio.sleep(0.05)
        late, patient = await asyncio.gather(
            service.score(ask("honest", deadline_ms=1)), service.score(ask("honest", deadline_ms=300_000))
        )
        assert outcome(late) == (GradeStatus.overloaded, None, "deadline_passed")
        assert patient.score == (await busy).score == 1
        assert service.pools["math"].depth == 0

    with_service(use)


def test_a_defect_of_ours_is_no_verdict_and_stays_with_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Pool.run

    async def broken(pool: Pool, message: dict[str, str], *rest: object, **options: object) -> object:
        if message["response"] == "broken":
            raise KeyError("a defect")
        return await run(pool, message, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Pool, "run", broken)

    async def use(service: Service, _: object) -> None:
        bad, good = await asyncio.gather(service.score(ask("broken")), service.score(ask("honest")))
        assert outcome(bad) == (GradeStatus.infra_error, None, "internal_error")
        assert good.score == 1

    with_service(use)


def test_a_task_that_nests_too_deep_for_a_worker_is_invalid() -> None:
    async def use(service: Service, _: object) -> None:
        nested: list[object] = []
        for _depth in range(100_000):
            nested = [nested]
        request = ScoreRequest(
            request_id="r", domain="math", response="x", task={"answer": "5", "more": nested}
        )
        assert (await service.score(request)).status is GradeStatus.invalid_request

    with_service(use)


async def scores_together(service: Service, words: Sequence[str]) -> list[ScoreResult]:
    """Returns the results of requests that come while the only worker is busy."""
    busy = asyncio.ensure_future(service.score(ask("nap")))
    await asyncio.sleep(0.05)
    found = await asyncio.gather(*(service.score(ask(word)) for word in words))
    await busy
    return list(found)


def together(results: Iterable[ScoreResult]) -> list[object]:
    """Returns with how many requests each was sent, or None for one that was not graded by the grader."""
    return [result.details.get("together") for result in results]


@pytest.mark.parametrize("max_bytes", [1 << 20, 260])
def test_small_requests_go_together(max_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is some 80 bytes long."""
    monkeypatch.setattr("reward.pool._MAX_GROUP_BYTES", max_bytes)

    async def use(service: Service, _: object) -> None:
        busy = asyncio.ensure_future(service.score(ask("nap")))
        await asyncio.sleep(0.05)
        waiting = [asyncio.ensure_future(service.score(ask("honest"))) for _ in range(20)]
        message = {"response": "a known answer", "task": {}}
        known = await service.pools["math"].run(message, urgent=True)
        assert isinstance(known, Grade)
        assert known.details == {"together": 1}
        found = await asyncio.gather(busy, *waiting)
        assert together(found) == [1, *([16] * 16 + [4] * 4 if max_bytes > 260 else [3] * 18 + [2] * 2)]

    with_service(use, group=16)


def test_what_a_worker_did_not_get_to_is_sent_again_together() -> None:
    async def use(service: Service, _: object) -> None:
        found = await scores_together(service, ["honest", "last", "honest", "honest"])
        assert together(found) == [4, 4, 2, 2]

    with_service(use, group=16)


@pytest.mark.parametrize(
    ("word", "expected", "others"),
    [
        ("spin", (GradeStatus.graded, 0.0, "timeout"), 1),
        (f"signal {int(signal.SIGSEGV)}", (GradeStatus.graded, 0.0, "crashed"), 1),
        ("stall", NOT_GRADED, 1),
        ("nonsense", NOT_GRADED, 1),
        ("retry", NOT_GRADED, 3),
    ],
)
def test_only_the_one_that_is_to_blame_pays_for_its_group(
    word: str, expected: tuple[GradeStatus, float | None, str], others: int
) -> None:
    async def use(service: Service, _: object) -> None:
        found = await scores_together(service, ["honest", word, "honest"])
        assert outcome(found[1]) == expected
        assert together(found) == [others, None, others]
        if expected is NOT_GRADED and word != "stall":
            assert found[1].details["reason"].endswith("3 times in a row")

    with_service(use, wall_s=3.0 if word == "stall" else 60.0, group=16)


def test_a_service_that_closes_leaves_nothing_behind() -> None:
    async def use(service: Service, processes: list[subprocess.Popen[bytes]]) -> None:
        asking = [asyncio.create_task(service.score(ask("stall"))) for _ in range(3)]
        await asyncio.sleep(0.1)
        await service.close()
        for task in asking:
            task.cancel()

    with_service(use)


def test_a_start_that_is_given_up_while_it_connects_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def use(service: Service, processes: list[subprocess.Popen[bytes]]) -> None:
        opens, connects = asyncio.Event(), Link.open

        async def connects_for_ever(link: Link) -> None:
            await connects(link)
            opens.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(Link, "open", connects_for_ever)
        processes[0].kill()  # so that another one is started
        asking = asyncio.create_task(service.score(ask("honest")))
        await opens.wait()
        asking.cancel()
        assert len(processes) == 2

    with_service(use)
