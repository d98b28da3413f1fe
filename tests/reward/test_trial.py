"""Responses that no worker answers: 0 if they are to blame, and never because something else went wrong.

The workers are processes of a few lines that do what the response says, so that tests are as short as possible.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable

import pytest

from reward import trial
from reward.answers import Answer
from reward.pool import Link, Pool, PoolOptions
from reward.protocol import GradeStatus, ScoreRequest, ScoreResult
from reward.service import Service
from tests.reward.serving import ROOT, alive, wait_until

WORKER = f"""
import os, signal, struct, sys, time
sys.path.insert(0, {str(ROOT)!r})
from reward import frames
from reward.answers import Grade, Invalid, Reply, Retry
from reward.known_answers import KNOWN_ANSWERS
fd, kind = int(sys.argv[1]), sys.argv[2]
scores = {{known.response: known.score for domain in KNOWN_ANSWERS.values() for known in domain}}
num_known = 0
while (message := frames.read(fd)) is not None:
    word = message["response"]
    if word in scores:
        num_known += 1
        if num_known > 4:  # the first are for warming up
            if kind == "slow":
                time.sleep(0.4)
            if kind == "mistaken":
                scores[word] = 0.5
            if kind == "mortal":
                os._exit(1)
    if word == "stall":
        time.sleep(1000)
    if word == "spin":
        while True:
            pass
    if word == "wait for a child that computes":
        if os.fork():
            os.wait()
        while os.getppid() > 1:
            pass
    if word == "exit":
        os._exit(70)
    if word == "nonsense":
        os.write(fd, b"\\0\\0\\0\\1?")
    if word == "flood":
        os.write(fd, struct.pack("!I", 1 << 30))
    if word.startswith("signal "):
        os.kill(os.getpid(), int(word.split()[1]))
        time.sleep(1000)
    if word == "retry":
        answer = Retry("the machine is too loaded")
    elif word == "invalid":
        answer = Invalid("no such task")
    else:
        answer = Grade(score=scores.get(word, 1.0), verdict="correct")
    frames.write(fd, Reply((answer,), spent_s=time.process_time()).to_frame())
"""


class Stage:
    """Starts workers and records their processes. `kinds`: what each worker does, in the order of starting."""

    def __init__(self, kinds: dict[int, str]) -> None:
        self.kinds = kinds
        self.processes: list[subprocess.Popen[bytes]] = []

    def __call__(self) -> "Actor":
        kind = self.kinds.get(len(self.processes), "well")
        if kind == "missing":
            raise OSError("no process could be had")
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-S", "-c", WORKER, str(theirs.fileno()), kind]
            self.processes.append(
                subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
            )
        return Actor(ours, self.processes[-1])


class Actor:
    def __init__(self, own_socket: socket.socket, process: subprocess.Popen[bytes]) -> None:
        self.socket, self.pid, self.spent_s, self._process = own_socket, process.pid, 0.0, process

    def end(self) -> int:
        self.socket.close()
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        return max(-self._process.wait(), 0)


Use = Callable[[Service, Stage], Awaitable[None]]


@pytest.fixture
def act(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a coroutine with a service whose only pool has one such worker, and checks that no process remains.

    A trial's wall time is the real one, so that a verdict is reached on a busy machine, too. Only tests that nothing
    but this limit ends shorten it: what they expect, no verdict, is right however little of a processor they get."""
    monkeypatch.setattr(trial, "_STALL_S", 1.0)
    monkeypatch.setattr(trial, "_SAMPLE_S", 0.05)
    monkeypatch.setattr(trial, "_PAUSE_S", 0.05)
    monkeypatch.setattr(trial, "_SLOW_S", 20.0)  # as above
    monkeypatch.setattr(trial, "_JUDGE_CPU_S", 0.5)

    def run(
        use: Use, kinds: dict[int, str] | None = None, cpu_s: float | None = 0.5, wall_s: float = 0.8
    ) -> None:
        stage = Stage(kinds or {})

        async def body() -> None:
            service = Service(None, num_workers=1, version="test")
            options = PoolOptions(workers=1, cpu_s=cpu_s, wall_s=wall_s, queue=64)
            service.pools = {"math": Pool("math", options, stage, service.metrics)}
            await service.open()
            try:
                await use(service, stage)
            finally:
                await service.close()

        asyncio.run(body())
        assert wait_until(lambda: not alive([process.pid for process in stage.processes]), 60)

    return run


@pytest.fixture
def short_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_WALL_S", 2.0)


def ask(response: str, deadline_ms: int | None = None, answer: str = "5") -> ScoreRequest:
    return ScoreRequest(
        request_id="r", domain="math", response=response, task={"answer": answer}, deadline_ms=deadline_ms
    )


def outcomes(service: Service) -> dict[str, int]:
    return {outcome: count for (_, outcome), count in service.metrics.trials.values.items()}


def is_undecided(result: ScoreResult) -> bool:
    return (result.status, result.score, result.verdict) == (GradeStatus.infra_error, None, "worker_failed")


@pytest.mark.parametrize("response", ["stall", "exit", "nonsense", "flood", f"signal {int(signal.SIGSYS)}"])
def test_a_response_that_no_worker_answers_on_a_healthy_machine_is_a_0(
    response: str, act: Callable[..., None]
) -> None:
    async def use(service: Service, _: Stage) -> None:
        result = await service.score(ask(response))
        assert (result.status, result.score, result.verdict) == (GradeStatus.graded, 0.0, "exhausts_grader")
        assert result.details["reason"]
        assert outcomes(service) == {"exhausts": 1}
        assert (await service.score(ask("honest"))).score == 1
        text = service.metrics.render({})
        assert 'reward_trials_total{pool="math",outcome="exhausts"} 1' in text

    act(use)


def test_a_judge_that_computes_without_end_is_a_0(act: Callable[..., None]) -> None:
    async def use(service: Service, _: Stage) -> None:
        assert (await service.score(ask("spin"))).verdict == "exhausts_grader"

    act(use, cpu_s=None)


def test_a_worker_kept_from_computing_for_a_while_is_judged_all_the_same(
    act: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = trial._turn

    async def delayed_turn(pool: Pool, suspect: Link, data: bytes) -> Answer | None:
        os.kill(suspect.worker.pid, signal.SIGSTOP)
        asyncio.get_running_loop().call_later(2.5, os.kill, suspect.worker.pid, signal.SIGCONT)
        return await turn(pool, suspect, data)

    monkeypatch.setattr(trial, "_turn", delayed_turn)

    async def use(service: Service, _: Stage) -> None:
        assert (await service.score(ask("stall"))).verdict == "exhausts_grader"

    act(use)


@pytest.mark.parametrize("kind", ["slow", "mistaken", "mortal", "missing"])
@pytest.mark.parametrize("response", ["stall", "exit"])
def test_where_the_witness_suffers_as_well_there_is_no_verdict(
    response: str, kind: str, act: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_SLOW_S", 0.2)

    async def use(service: Service, _: Stage) -> None:
        result = await service.score(ask(response))
        assert is_undecided(result), result
        assert "tried alone" in result.details["reason"]
        assert outcomes(service) == {"undecided": 1}

    num_before = 1 if response == "stall" else 3  # workers that the pool's own attempts use up
    act(use, kinds=dict.fromkeys(range(num_before + 1, num_before + 5), kind))


@pytest.mark.usefixtures("short_trials")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_what_comes_from_outside_proves_nothing(number: int, act: Callable[..., None]) -> None:
    async def use(service: Service, _: Stage) -> None:
        assert is_undecided(await service.score(ask(f"signal {int(number)}")))

    act(use, wall_s=0.6)


@pytest.mark.usefixtures("short_trials")
def test_a_worker_that_waits_for_what_computes_does_not_stall(act: Callable[..., None]) -> None:
    async def use(service: Service, _: Stage) -> None:
        assert is_undecided(await service.score(ask("wait for a child that computes")))

    act(use)


@pytest.mark.usefixtures("short_trials")
@pytest.mark.parametrize("response", ["honest", "stall", "spin"])
def test_when_everything_is_stopped_all_the_time_there_is_no_verdict(
    response: str, act: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_WARM_UP_S", 2.0)
    monkeypatch.setattr(trial, "_SLOW_S", 0.5)

    async def use(service: Service, stage: Stage) -> None:
        async def starve() -> None:
            """Lets each worker run for a hundredth of a second in a second."""
            while True:
                for process in stage.processes:
                    for number, pause_s in ((signal.SIGCONT, 0.01), (signal.SIGSTOP, 0.0)):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(process.pid, number)
                        await asyncio.sleep(pause_s)
                await asyncio.sleep(1.0)

        starving = asyncio.create_task(starve())
        try:
            result = await service.score(ask(response))
        finally:
            starving.cancel()
            for process in stage.processes:  # a stopped one could not end
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGCONT)
        assert result.score in {"honest": (None, 1.0), "stall": (None,), "spin": (None, 0.0)}[response], (
            result
        )
        assert result.verdict != "exhausts_grader"

    act(use)


def test_a_worker_stopped_once_costs_its_response_nothing(act: Callable[..., None]) -> None:
    async def use(service: Service, stage: Stage) -> None:
        os.kill(stage.processes[0].pid, signal.SIGSTOP)
        assert (await service.score(ask("honest"))).score == 1
        assert outcomes(service) == {"answered": 1}

    act(use)


@pytest.mark.parametrize(
    ("response", "cpu_s", "expected"),
    [
        ("invalid", 0.5, "invalid_task"),
        ("spin", 0.5, "timeout"),
        (f"signal {int(signal.SIGSEGV)}", 0.5, "crashed"),
        ("retry", None, "worker_failed"),
    ],
)
def test_what_the_pool_decides_needs_no_trial(
    response: str, cpu_s: float | None, expected: str, act: Callable[..., None]
) -> None:
    async def use(service: Service, _: Stage) -> None:
        assert (await service.score(ask(response))).verdict == expected
        assert outcomes(service) == {}

    act(use, cpu_s=cpu_s, wall_s=20.0)


def test_a_response_that_gets_too_little_of_a_processor_to_reach_its_limit_gets_more_time(
    act: Callable[..., None],
) -> None:
    async def use(service: Service, _: Stage) -> None:
        assert (await service.score(ask("spin"))).verdict == "timeout"
        assert outcomes(service) == {"answered": 1}

    act(use, cpu_s=1.0, wall_s=0.4)


def test_known_answers_of_the_readiness_probe_get_no_trial(act: Callable[..., None]) -> None:
    async def use(service: Service, _: Stage) -> None:
        assert is_undecided(await service.score(ask("exit"), urgent=True))
        assert outcomes(service) == {}

    act(use)


def test_trials_are_few(act: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_PLACES", 2)

    async def use(service: Service, _: Stage) -> None:
        results = await asyncio.gather(
            *(service.score(ask("exit", answer=str(n))) for n in range(5)), service.score(ask("honest"))
        )
        assert results.pop().score == 1
        verdicts = [result.verdict for result in results]
        assert verdicts.count("exhausts_grader") == outcomes(service)["exhausts"] >= 2
        assert verdicts.count("worker_failed") == outcomes(service).get("no_place", 0)

    act(use, wall_s=60.0)  # so that the honest one needs no place, however slowly its worker starts


def test_trials_wait_no_longer_than_their_callers(act: Callable[..., None]) -> None:
    async def use(service: Service, _: Stage) -> None:
        first, late = await asyncio.gather(
            service.score(ask("stall")), service.score(ask("stall", 1_000, answer="6"))
        )
        assert first.verdict == "exhausts_grader"
        assert late.score is None

    act(use)


def test_what_has_been_found_to_exhaust_is_not_tried_again(
    act: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_PLACES", 2)
    monkeypatch.setattr(trial, "_REMEMBERED", 2)

    async def use(service: Service, _: Stage) -> None:
        group = await asyncio.gather(*(service.score(ask("exit")) for _ in range(2)))
        group += await asyncio.gather(*(service.score(ask("exit")) for _ in range(3)))
        assert {(result.score, result.verdict) for result in group} == {(0.0, "exhausts_grader")}
        assert len({result.details["reason"] for result in group}) == 1
        assert outcomes(service) == {"exhausts": 1, "remembered": 4}
        for answer in ("6", "7"):  # other tasks have trials of their own, and push the first out
            assert (await service.score(ask("exit", answer=answer))).verdict == "exhausts_grader"
        assert outcomes(service) == {"exhausts": 3, "remembered": 4}
        assert (await service.score(ask("exit"))).verdict == "exhausts_grader"
        assert outcomes(service) == {"exhausts": 4, "remembered": 4}
        assert len(service._trials._exhausting) == 2

    act(use)


def test_what_got_no_verdict_is_not_remembered(act: Callable[..., None]) -> None:
    async def use(service: Service, _: Stage) -> None:
        for count in (1, 2):
            assert is_undecided(await service.score(ask(f"signal {int(signal.SIGKILL)}")))
            assert outcomes(service) == {"undecided": count}

    act(use)


def test_a_deadline_that_has_passed_gets_no_trial(act: Callable[..., None]) -> None:
    async def use(service: Service, _: Stage) -> None:
        assert is_undecided(await service.score(ask("stall", 500)))
        assert outcomes(service) == {"late": 1}

    act(use)


def test_a_service_that_closes_in_mid_trial_leaves_nothing_behind(act: Callable[..., None]) -> None:
    results: list[ScoreResult] = []

    async def use(service: Service, stage: Stage) -> None:
        async def one() -> None:
            results.append(await service.score(ask("stall")))

        asking = [asyncio.create_task(one()) for _ in range(3)]
        while len(stage.processes) < 3:  # the pool's and those of the first trial
            await asyncio.sleep(0.02)
        await service.close()
        await asyncio.wait(asking[:1])
        for task in asking:
            task.cancel()

    act(use)
    assert results
    assert all(is_undecided(result) for result in results)


def test_a_start_that_is_given_up_while_it_connects_leaves_no_process(
    act: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(service: Service, stage: Stage) -> None:
        opens, connects = asyncio.Event(), Link.open

        async def connects_for_ever(link: Link) -> None:
            await connects(link)
            opens.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(Link, "open", connects_for_ever)
        starting = asyncio.create_task(service.pools["math"].fresh())
        await opens.wait()
        starting.cancel()
        await asyncio.wait([starting])
        assert starting.cancelled()
        assert len(stage.processes) == 2

    act(use)


def test_a_caller_that_leaves_takes_its_trial_along(act: Callable[..., None]) -> None:
    async def use(service: Service, stage: Stage) -> None:
        asking = asyncio.create_task(service.score(ask("stall")))
        while len(stage.processes) < 4:
            await asyncio.sleep(0.02)
        asking.cancel()
        await asyncio.wait([asking])
        assert (await service.score(ask("exit"))).verdict == "exhausts_grader"

    act(use)
