"""The reward service through other trainers' adapters and protocols: the same verdicts, also when it is killed, and how
fast beside verl's own graders.

    make bench-clients DATA=DIR [BENCH_ARGS="--rows 200 --routes trl verl"]

Recorded rows of mathematics, code and instructions (real_outputs.py says what DIR holds) go through our own client,
then through each route, each time to a server that has not seen them. Differences to our own client must be 0, with
the server undisturbed and with the server killed (SIGKILL) and started again every few seconds. Then verl's own
graders (verl.utils.reward_score) get the rows of mathematics and code, in threads as verl calls them, and the
service the same rows through the adapter for verl.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# serving by its folder: verl's wheel has a package `tests` of its own.
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "tests" / "reward")]

from real_outputs import (  # noqa: E402
    Case,
    MissingData,
    all_cases,
    check_folder,
    grade_all,
)
from serving import Server  # noqa: E402

from reward.adapters import verifiers, verl  # noqa: E402
from reward.adapters.connection import Connection, StopTraining  # noqa: E402
from reward.adapters.trl import RewardFunction  # noqa: E402
from reward.client import RewardClient  # noqa: E402

PARTS = ("math", "stem", "references", "altered", "ifeval_strict", "ifeval_loose")
"""Parts of real_outputs that a model or a person wrote and that have a verdict; no gold answers against themselves."""
IN_FLIGHT = 64
PATIENCE_S = 600.0
Scores = list[float | None]


def label(case: Case) -> str:
    """The row's label as text, which every protocol can carry."""
    return json.dumps({"domain": case.request.domain, "task": dict(case.request.task)})


# ------------------------------------------------------------------------------------- routes
def through_trl(url: str, cases: Sequence[Case]) -> Scores:
    """A call for each 64 completions, as a step of GRPOTrainer makes it."""
    function = RewardFunction(connection=Connection(servers=(url,), patience_s=PATIENCE_S))
    scores: Scores = []
    for start in range(0, len(cases), IN_FLIGHT):
        batch = cases[start : start + IN_FLIGHT]
        texts = [case.request.response for case in batch]
        scores += function([""] * len(batch), texts, label=[label(case) for case in batch])
    return scores


def through_verl(url: str, cases: Sequence[Case]) -> Scores:
    """A coroutine for each response, as verl's reward loop has it."""

    async def one(case: Case) -> float:
        return await verl.compute_score(
            "any", case.request.response, label(case), {}, servers=url, patience_s=PATIENCE_S
        )

    return asyncio.run(at_once(one, cases))


def through_rubric(url: str, cases: Sequence[Case]) -> Scores:
    """A coroutine for each rollout, as a rubric of verifiers has it."""
    function = verifiers.rubric_function(url, patience_s=PATIENCE_S)

    async def one(case: Case) -> float:
        completion = [{"role": "assistant", "content": case.request.response}]
        return await function(prompt=[], completion=completion, answer="", info={"label": label(case)})

    return asyncio.run(at_once(one, cases))


def through_slime(url: str, cases: Sequence[Case]) -> Scores:
    """POST /slime, tried again after every status but 200 and every lost connection."""

    def body(case: Case) -> dict[str, Any]:
        return {"prompt": "", "response": case.request.response, "label": label(case)}

    return asyncio.run(posted(f"{url}/slime?in_thought=false", cases, body, float))


def through_openrlhf(url: str, cases: Sequence[Case]) -> Scores:
    """POST /openrlhf, tried again in the same way."""

    def body(case: Case) -> dict[str, Any]:
        prompt = "Q:"
        return {"query": [prompt + case.request.response], "prompts": [prompt], "labels": [label(case)]}

    return asyncio.run(
        posted(f"{url}/openrlhf?in_thought=false", cases, body, lambda answer: answer["rewards"][0])
    )


ROUTES: dict[str, Callable[[str, Sequence[Case]], Scores]] = {
    "trl": through_trl,
    "verl": through_verl,
    "rubric": through_rubric,
    "slime": through_slime,
    "openrlhf": through_openrlhf,
}


async def at_once(one: Callable[[Case], Awaitable[float | None]], cases: Sequence[Case]) -> Scores:
    """So many at the same time; None where training would have stopped for want of a verdict."""
    room = asyncio.Semaphore(IN_FLIGHT)

    async def limited(case: Case) -> float | None:
        async with room:
            try:
                return await one(case)
            except StopTraining:
                return None

    return list(await asyncio.gather(*map(limited, cases)))


async def posted(
    url: str, cases: Sequence[Case], body: Callable[[Case], Any], score_of: Callable[[Any], float]
) -> Scores:
    """As a patient HTTP client does it: everything but an answer with status 200 is tried again until PATIENCE_S."""
    import aiohttp

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:

        async def one(case: Case) -> float | None:
            limit = time.monotonic() + PATIENCE_S
            while time.monotonic() < limit:
                with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                    async with session.post(url, json=body(case)) as reply:
                        if reply.status == 200:
                            return score_of(await reply.json(content_type=None))
                        if reply.status == 400:
                            return None
                await asyncio.sleep(0.5)
            return None

        return await at_once(one, cases)


# ------------------------------------------------------------------------------------- servers
@contextlib.contextmanager
def service(workers: int) -> Iterator[Server]:
    """A new server on a port that stays the same when it is started again."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ("--port", str(port), "--workers", str(workers), "--exit-with-parent", str(os.getpid()))
    server = Server(*arguments)
    try:
        yield server
    finally:
        server.stop(signal.SIGHUP)


@contextlib.contextmanager
def killed_again_and_again(server: Server, seconds: float) -> Iterator[list[float]]:
    """Kills the server, and starts it again at once, every so many seconds; yields the list of moments."""
    stop, moments = threading.Event(), []

    def run() -> None:
        while not stop.wait(seconds):
            server.kill()
            moments.append(time.monotonic())
            server.start()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield moments
    finally:
        stop.set()
        thread.join()


def cpu_s_of(server: Server) -> float:
    """Processor time of the server and of all processes below it, those included that it has waited for."""
    ticks = 0
    for pid in [server.process.pid, *server.descendants()]:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # utime, stime, and those of children that have ended
    return ticks / os.sysconf("SC_CLK_TCK")


def own_cpu_s() -> float:
    """Processor time of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


# ------------------------------------------------------------------------------------- what is printed
def same_verdicts(cases: Sequence[Case], routes: Sequence[str], workers: int, kill_every_s: float) -> None:
    """A line for each route, undisturbed and with the server killed under load."""
    with service(workers) as server, RewardClient(urls=[server.url]) as client:
        client.wait_until_ready(300)
        reference = [outcome.result.score for outcome in grade_all(client, cases, IN_FLIGHT)]
    missing = sum(score is None for score in reference)
    print(f"our own client: {len(cases)} rows, {missing} not graded")
    print(
        f"\n{'route':<10} {'server':<14} {'rows':>6} {'differ':>7} {'false 0':>8} {'not graded':>11} {'s':>7}"
    )
    for route in routes:
        for disturbed in (False, True):
            with service(workers) as server:
                killing = (
                    killed_again_and_again(server, kill_every_s) if disturbed else contextlib.nullcontext([])
                )
                begun = time.monotonic()
                with killing as moments:
                    scores = ROUTES[route](server.url, cases)
                seconds = time.monotonic() - begun
            pairs = [(got, want) for got, want in zip(scores, reference, strict=True) if want is not None]
            differ = sum(got is not None and abs(got - want) > 1e-9 for got, want in pairs)
            zeros = sum(got == 0 and want > 0 for got, want in pairs)
            lost = sum(got is None for got, _ in pairs)
            state = f"killed {len(moments)} times" if disturbed else "undisturbed"
            print(
                f"{route:<10} {state:<14} {len(pairs):>6} {differ:>7} {zeros:>8} {lost:>11} {seconds:>7.1f}",
                flush=True,
            )


def beside_verls_own(cases: Sequence[Case], workers: int) -> None:
    """Verdicts a second and processor time of verl's own graders and of the service, on the same rows."""
    try:
        from verl.utils.reward_score import default_compute_score
    except ImportError as error:
        print(f"\nverl's own graders are not compared: {error}")
        return
    sources = {"math": "numina_olympiads", "code": "codecontests"}
    print(
        f"\n{'domain':<8} {'graders':<24} {'rows':>6} {'as recorded':>12} {'s':>7} {'a second':>9} {'CPU s':>7}"
    )
    for domain, source in sources.items():
        chosen = [case for case in cases if case.request.domain == domain]

        def theirs(case: Case, source: str = source) -> float:
            task = case.request.task
            truth = task["answer"] if "answer" in task else json.dumps(dict(task))
            try:
                return float(default_compute_score(source, case.request.response, truth))
            except Exception:
                return float("nan")

        begun, cpu = time.monotonic(), own_cpu_s()
        with ThreadPoolExecutor(
            min(32, (os.cpu_count() or 1) + 4)
        ) as pool:  # asyncio's default, which verl uses
            scores: Scores = list(pool.map(theirs, chosen))
        _line(domain, f"verl's, {source}", chosen, scores, time.monotonic() - begun, own_cpu_s() - cpu)
        with service(workers) as server:
            begun, cpu, own = time.monotonic(), cpu_s_of(server), own_cpu_s()
            scores = through_verl(server.url, chosen)
            seconds, cpu = time.monotonic() - begun, cpu_s_of(server) - cpu + own_cpu_s() - own
        _line(domain, "this service", chosen, scores, seconds, cpu)


def _line(domain: str, who: str, cases: Sequence[Case], scores: Scores, seconds: float, cpu_s: float) -> None:
    right = sum(
        score is not None and isinstance(case.expected, float) and abs(score - case.expected) < 1e-9
        for score, case in zip(scores, cases, strict=True)
    )
    rate = len(cases) / max(seconds, 1e-9)
    print(
        f"{domain:<8} {who:<24} {len(cases):>6} {right:>12} {seconds:>7.1f} {rate:>9.1f} {cpu_s:>7.1f}",
        flush=True,
    )


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="folder of the recorded outputs")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--routes", nargs="*", choices=list(ROUTES), default=list(ROUTES))
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--kill-every", type=float, default=2.0, metavar="S", help="seconds that the server lives each time"
    )
    options = parser.parse_args()
    try:
        if not options.data:
            raise MissingData("name the folder of the recorded outputs: make bench-clients DATA=DIR")
        check_folder(Path(options.data))
    except MissingData as error:
        print(f"bench_clients: {error}", file=sys.stderr)
        return 2
    cases = [case for case in all_cases(Path(options.data)) if case.part in PARTS][: options.rows]
    same_verdicts(cases, options.routes, options.workers, options.kill_every)
    beside_verls_own(cases, options.workers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
