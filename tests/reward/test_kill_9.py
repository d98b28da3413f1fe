"""Tests kill -9 of every kind of process under load, through the client: no request is lost, and no score is wrong. The
server writes its ready file into the client's folder, as on a cluster, and restarts on another port."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from reward.client import RewardClient
from reward.protocol import GradeStatus, ScoreRequest, ScoreResult
from tests.reward.serving import Server, alive, children, program, wait_until

DOUBLE = {"inputs": [f"{n}\n" for n in range(3)], "outputs": [f"{2 * n}\n" for n in range(3)]}
SUM = {"task": "chain_sum", "entry": {"question": "4 + 3", "answer": "7", "metadata": {}}}
RULES = {"instruction_id_list": ["punctuation:no_comma", "startend:quotation"], "kwargs": [{}, {}]}
SLOWLY = "n = int(input())\nsum(range(1_000_000))\n"
WORK = [
    ("math", "\\boxed{\\frac{x+N}{x-1}}", {"answer": "\\frac{N+x}{x-1}"}, 1.0),
    ("math", "\\boxed{\\frac{x+N}{x-2}}", {"answer": "\\frac{N+x}{x-1}"}, 0.0),
    ("stem", "\\boxed{(B)} N", {"answer": "B"}, 1.0),
    ("code", program(SLOWLY + "print(2 * n) # N"), DOUBLE, 1.0),
    ("code", program(SLOWLY + "print(2 * n if n else 9) # N"), DOUBLE, 2 / 3),
    ("logic", "N <answer>7</answer>", SUM, 1.0),
    ("instruction", "a b N", RULES, 0.5),
]
"""(domain, response, task, score); N becomes the number of the request, so that none is answered from the cache."""
NUM_REQUESTS = 70


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server("--workers", "2")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[RewardClient]:
    with RewardClient(discovery_dir=server.ready_file.parent, batch_items=8) as client:
        client.wait_until_ready(60)
        yield client


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def graders_zygotes(server: Server) -> list[int]:
    return [pid for pid in children(server.process.pid) if "sandbox.zygote" in command(pid)]


def workers(server: Server) -> list[int]:
    return [pid for zygote in graders_zygotes(server) for pid in children(zygote)]


def judges(server: Server) -> list[int]:
    return [pid for pid in children(server.process.pid) if "reward.judge" in command(pid)]


def code_zygotes(server: Server) -> list[int]:
    return [pid for judge in judges(server) for pid in children(judge)]


def runners(server: Server) -> list[int]:
    return [pid for zygote in code_zygotes(server) for pid in children(zygote)]


def submit(client: RewardClient, name: str, first: int = 0) -> list[tuple[Future[ScoreResult], float]]:
    """Submits requests of every domain; returns each future with its expected score."""
    futures = []
    for number in range(first, first + NUM_REQUESTS):
        domain, response, task, score = WORK[number % len(WORK)]
        text = response.replace("N", str(number + 3))
        gold = {
            key: value.replace("N", str(number + 3)) if key == "answer" else value
            for key, value in task.items()
        }
        request = ScoreRequest(request_id=f"{name}-{number}", domain=domain, response=text, task=gold)
        futures.append((client.submit(request), score))
    return futures


def check(futures: list[tuple[Future[ScoreResult], float]]) -> None:
    for future, score in futures:
        result = future.result(180)
        assert (result.status, result.score) == (GradeStatus.graded, pytest.approx(score)), result


def killed_one(pids: list[int]) -> bool:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # runners come and go
            os.kill(pid, signal.SIGKILL)
            return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victims", "num_kills"),
    [(workers, 2), (graders_zygotes, 1), (judges, 2), (code_zygotes, 2), (runners, 2)],
)
def test_kill_9_below_the_server(
    victims: Callable[[Server], list[int]], num_kills: int, server: Server, client: RewardClient
) -> None:
    """The second kill is that of a successor; the graders' fork server, which takes seconds to start, is killed once,
    and its successor serves the tests after this one."""
    futures = []
    for load in range(num_kills):
        # Whoever takes the place of the killed one is there first; runners come with the load.
        assert wait_until(lambda: victims is runners or victims(server))
        fresh = submit(client, victims.__name__, first=load * NUM_REQUESTS)
        wait_until(lambda fresh=fresh: sum(future.done() for future, _ in fresh) >= 0.2 * NUM_REQUESTS)
        assert wait_until(lambda: killed_one(victims(server)))
        assert not all(future.done() for future, _ in fresh), "the load was over before the kill"
        futures += fresh
    check(futures)


@pytest.mark.slow
def test_kill_9_of_the_server_itself(server: Server, client: RewardClient) -> None:
    futures = submit(client, "server")
    assert wait_until(lambda: sum(future.done() for future, _ in futures) >= NUM_REQUESTS // 4)
    old_url, below = server.url, server.descendants()
    server.kill()
    assert wait_until(lambda: not alive(below)), "nobody outlives the server"
    futures += submit(client, "meanwhile")  # nobody is there to take them
    server.start()
    assert server.url != old_url
    check(futures)
    assert client.num_missing == 0
