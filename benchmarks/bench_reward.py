"""Measures throughput, latency and correctness of the reward service, and of alternatives in the same run.

    make bench-reward [ARGS="--seconds 20 --workers 2 --only code,math"]

* code: short programs with 5 tests each. Alternatives: one `bwrap python` per test, and one per submission that forks
  for each test; both compare outputs outside the sandbox.
* math: the acceptance cases. Alternatives: math-verify's `math_metric` in a new process pool for each batch of 64, with
  workers forked from a process that has imported it, and spawned ones.
* logic, instruction: the service alone.
* correctness: false negatives and false positives on the acceptance cases. Alternatives: the papers' verifiers.

Alternatives that use math-verify are left out, with a line that says so, where the reward distribution's extra `papers`
is not installed.

Rates are finished requests per second; latencies are measured from submission to result while the service is fully
loaded. The line below them shows the CPU time per request by kind of process, which is more comparable than rates on a
machine that others use too.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from reward.client import RewardClient
from reward.protocol import GradeStatus, ScoreRequest, ScoreResult

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = "n = int(input())\nprint(2 * n)\n"
INPUTS = [f"{n}\n" for n in range(5)]
OUTPUTS = [f"{2 * n}\n" for n in range(5)]
FORKS_FOR_EACH_TEST = """
import os, sys, json
program, inputs = json.load(sys.stdin)
code = compile(program, "solution.py", "exec")
for text in inputs:
    r, w = os.pipe(); os.write(w, text.encode()); os.close(w)
    if os.fork() == 0:
        os.dup2(r, 0); sys.stdin = open(0, closefd=False); exec(code, {"__name__": "__main__"})
        sys.stdout.flush(); os._exit(0)
    os.close(r); os.wait()
"""


CASES = [json.loads(line) for line in (ROOT / "tests/reward/data/math_cases.jsonl").read_text().splitlines()]
"""The acceptance cases for mathematics."""
START_TIMEOUT_S = 180
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


# ------------------------------------------------------------------------------------- the service
@contextlib.contextmanager
def service(workers: int) -> Iterator[tuple[int, str]]:
    """Starts the service, yields its process id and its URL, and stops it."""
    with tempfile.TemporaryDirectory() as folder:
        ready, log = Path(folder) / "ready.json", Path(folder) / "log"
        command = [sys.executable, "-m", "reward", "serve", "--ready-file", str(ready)]
        command += ["--workers", str(workers), "--exit-with-parent", str(os.getpid())]
        with log.open("wb") as output:
            process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
        try:
            limit = time.monotonic() + START_TIMEOUT_S
            while not ready.exists():
                if process.poll() is not None or time.monotonic() > limit:
                    sys.exit(f"error: the service did not start:\n{log.read_text()}")
                time.sleep(0.05)
            yield process.pid, json.loads(ready.read_text())["url"]
        finally:
            process.send_signal(signal.SIGHUP)  # as --exit-with-parent wants
            process.wait(60)


def cpu_s(service: int) -> Counter[str]:
    """Returns the CPU seconds of the service with this process id since its start, by kind of process: its `front`,
    `graders` and `judges`, the `programs` that judges run, and this process, the `client`. The time of a process that
    has ended counts for the kind of its parent, except for children of the front."""
    seconds = Counter(client=time.process_time())
    todo = [(service, "front")]
    while todo:
        pid, kind = todo.pop()
        with contextlib.suppress(OSError):  # the process has just ended
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            own, ended_children = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
            seconds[kind] += (own + (0 if kind == "front" else ended_children)) / TICKS_PER_S
            todo += [(child, _kind(child, kind)) for child in children(pid)]
    return seconds


def children(pid: int) -> list[int]:
    """Returns the processes that any thread of a process has started."""
    found = []
    for task in Path("/proc").glob(f"{pid}/task/*/children"):
        with contextlib.suppress(OSError):
            found += [int(word) for word in task.read_text().split()]
    return found


def _kind(pid: int, kind_of_parent: str) -> str:
    if kind_of_parent == "front":
        return "judges" if b"reward.judge" in Path(f"/proc/{pid}/cmdline").read_bytes() else "graders"
    return "programs" if kind_of_parent == "judges" else kind_of_parent


def through_service(
    client: RewardClient, pid: int, make: Callable[[int], ScoreRequest], seconds: float, in_flight: int
) -> None:
    """Keeps `in_flight` requests open for `seconds`, and prints rate, latencies and CPU time. make: returns the request
    of a number. pid: the service's process id. Fails if a request is not graded."""
    latencies: list[float] = []
    failed: list[ScoreResult] = []
    slots = threading.Semaphore(in_flight)

    def submit(number: int) -> None:
        started = time.perf_counter()

        def done(future: Future[ScoreResult]) -> None:
            latencies.append(time.perf_counter() - started)
            if future.result().status is not GradeStatus.graded:
                failed.append(future.result())
            slots.release()

        client.submit(make(number)).add_done_callback(done)

    cpu_before, start = cpu_s(pid), time.perf_counter()
    for number in itertools.takewhile(lambda _: time.perf_counter() - start < seconds, itertools.count()):
        slots.acquire()
        submit(number)
    for _ in range(in_flight):
        slots.acquire()
    elapsed_s = time.perf_counter() - start
    assert not failed, failed[0]
    report("this service", latencies, elapsed_s)
    each_ms = {kind: 1e3 * s / len(latencies) for kind, s in (cpu_s(pid) - cpu_before).items()}
    parts = ", ".join(f"{kind} {ms:.3f}" for kind, ms in each_ms.items())
    print(f"    CPU time per request: {sum(each_ms.values()):.3f} ms ({parts})", flush=True)


def report(name: str, latencies: list[float], seconds: float) -> None:
    """Prints rate and latencies in one line."""
    ordered = sorted(latencies)
    p50, p99 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    print(
        f"  {name:<44} {len(ordered) / seconds:>8.1f}/s   p50 {1e3 * p50:>7.1f} ms   p99 {1e3 * p99:>7.1f} ms",
        flush=True,
    )


def ask(domain: str, response: str, task: dict[str, Any], number: int) -> ScoreRequest:
    """Returns a request with a unique id."""
    return ScoreRequest(
        request_id=f"{domain}-{number}-{time.time_ns()}", domain=domain, response=response, task=task
    )


# ------------------------------------------------------------------------------------- alternatives
def bubblewrap() -> list[str]:
    """Returns the command, without the source, of an interpreter in a sandbox with the libraries and an empty /tmp."""
    prefix = str(Path(sys.base_prefix).resolve())
    command = [
        "bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv",
    ]  # fmt: skip
    for path in ("/usr", prefix):
        command += ["--ro-bind", path, path]
    for path in ("/lib", "/lib64", "/bin"):
        command += ["--symlink", f"usr{path}", path]
    command += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--chdir", "/tmp"]
    return [*command, "--", f"{prefix}/bin/python{sysconfig.get_python_version()}", "-I", "-S", "-B", "-c"]


def bubblewrap_per_test(_: int) -> float:
    """Returns the seconds for one submission in five sandboxes."""
    started = time.perf_counter()
    outputs = [
        subprocess.run(
            [*bubblewrap(), PROGRAM], input=text, capture_output=True, text=True, timeout=60
        ).stdout
        for text in INPUTS
    ]
    assert outputs == OUTPUTS, outputs
    return time.perf_counter() - started


def bubblewrap_per_submission(_: int) -> float:
    """Returns the seconds for one submission in one sandbox, which forks for each test."""
    started, command = time.perf_counter(), [*bubblewrap(), FORKS_FOR_EACH_TEST]
    done = subprocess.run(
        command, input=json.dumps([PROGRAM, INPUTS]), capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "".join(OUTPUTS), done
    return time.perf_counter() - started


def in_threads(name: str, run: Callable[[int], float], seconds: float, workers: int) -> None:
    """Calls `run` with 0, 1, 2, ... in `workers` threads for `seconds`, and prints rate and latencies."""
    latencies: list[float] = []
    numbers = itertools.count()
    start = time.perf_counter()
    with ThreadPoolExecutor(workers) as threads:
        while time.perf_counter() - start < seconds:
            latencies += threads.map(run, itertools.islice(numbers, 4 * workers))
    report(name, latencies, time.perf_counter() - start)


def math_metric_seconds(pair: tuple[str, str]) -> float:
    """Returns the seconds to grade (response, gold) as verl's utils/reward_score/math_verify.py does: with a new
    metric, the gold in a box, and the whole response."""
    from math_verify.metric import math_metric
    from math_verify.parser import ExprExtractionConfig, LatexExtractionConfig

    started = time.perf_counter()
    verify = math_metric(
        gold_extraction_target=(LatexExtractionConfig(),),
        pred_extraction_target=(ExprExtractionConfig(), LatexExtractionConfig()),
    )
    with contextlib.suppress(Exception):  # verl counts any error as a score of 0
        verify([f"\\boxed{{{pair[1]}}}"], [pair[0]])
    return time.perf_counter() - started


def fresh_pools(method: str, seconds: float, workers: int) -> tuple[list[float], float]:
    """Runs math-verify in a new pool for each batch of 64 and returns (latencies, seconds). Has to be called in a
    process of its own. method: `fork` copies a process that has imported math-verify; with `spawn` every worker imports
    it."""
    if method == "fork":
        math_metric_seconds(("\\boxed{1}", "1"))
    context = multiprocessing.get_context(method)
    pairs = itertools.cycle((case["response"], case["gold"]) for case in CASES)
    latencies: list[float] = []
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        batch = list(itertools.islice(pairs, 64))
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            latencies += pool.map(math_metric_seconds, batch)
    return latencies, time.perf_counter() - start


# ------------------------------------------------------------------------------------- correctness
PAPERS = ("math_verify", "deepscaler", "papers")
"""The papers' verifiers, which the service is compared with (reward/graders/papers.py)."""


def papers_verdict(verifier: str, response: str, gold: str) -> bool:
    """Returns the verdict of one of the papers' verifiers on a response."""
    from reward.extract import visible_text
    from reward.graders.papers import accepts

    return accepts(verifier, visible_text(response), gold)


def papers_verifiers() -> tuple[str, ...]:
    """Returns PAPERS; nothing, after a line that says so, where math-verify is not installed."""
    if find_spec("math_verify") is not None:
        return PAPERS
    print('  no comparison with the papers\' verifiers, which pip install "./reward[papers]" adds')
    return ()


def mistakes(pairs: Sequence[tuple[bool, bool]]) -> tuple[int, int]:
    """Returns how many of the (verdict, truth) are false negatives, and how many are false positives."""
    return sum(want and not got for got, want in pairs), sum(got and not want for got, want in pairs)


def correctness() -> None:
    """Prints false negatives and false positives by kind of case."""
    from reward.graders import grade

    def ours(response: str, gold: str) -> bool:
        return grade("math", response, {"answer": gold}).score == 1

    print("\ncorrectness")
    verifiers = papers_verifiers()
    scorers = (ours, *(partial(papers_verdict, verifier) for verifier in verifiers))
    names = " ".join(f"{name:>18}" for name in ("this service", *verifiers))
    print(f"  {'kind':<14} {'cases':>16} {names}")
    for kind in ("peer", "policy", "stem_peer", "hedge"):
        chosen = [case for case in CASES if case["kind"] == kind]
        cells = []
        for scorer in scorers:
            verdicts = [scorer(case["response"], case["gold"]) for case in chosen]
            truths = [case["expected"] == 1 for case in chosen]
            false_negatives, false_positives = mistakes(list(zip(verdicts, truths, strict=True)))
            cells.append(f"FN {false_negatives:>2}  FP {false_positives:>2}")
        print(f"  {kind:<14} {len(chosen):>16} " + " ".join(f"{cell:>18}" for cell in cells), flush=True)


# ------------------------------------------------------------------------------------- the command
class Speed:
    """Measures the domains, each through the same service."""

    def __init__(self, client: RewardClient, pid: int, seconds: float, workers: int) -> None:
        self._client, self._pid, self._seconds, self._workers = client, pid, seconds, workers

    def code(self) -> None:
        response, task = f"<think>.</think>\n```python\n{PROGRAM}```", {"inputs": INPUTS, "outputs": OUTPUTS}
        self._measure(16 * self._workers, lambda n: ask("code", response, task, n))
        if shutil.which("bwrap") is None:
            print("  no comparison with bubblewrap, which is not installed")
            return
        for what, run in (("test", bubblewrap_per_test), ("submission", bubblewrap_per_submission)):
            in_threads(f"bubblewrap, a process per {what}", run, self._seconds, self._workers)

    def math(self) -> None:

        def request(number: int) -> ScoreRequest:
            case = CASES[number % len(CASES)]
            return ask("math", case["response"], {"answer": case["gold"]}, number)

        self._measure(16 * self._workers, request)
        for method in ("fork", "spawn") if papers_verifiers() else ():
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as alone:
                latencies, elapsed_s = alone.submit(
                    fresh_pools, method, self._seconds, self._workers
                ).result()
            report(f"math-verify, a new pool per batch ({method})", latencies, elapsed_s)

    def logic(self) -> None:
        task = {"task": "chain_sum", "entry": {"question": "4 + 3 =", "answer": "7", "metadata": {}}}
        self._measure(256, lambda n: ask("logic", f"<answer>{n % 9}</answer>", task, n))

    def instruction(self) -> None:
        rules = {
            "punctuation:no_comma": {},
            "length_constraints:number_words": {"num_words": 50, "relation": "at least"},
            "startend:quotation": {},
            "detectable_format:title": {},
        }
        task = {"instruction_id_list": list(rules), "kwargs": list(rules.values())}
        text = "A response of a few hundred characters that follows some rules. " * 6
        self._measure(256, lambda n: ask("instruction", f"{text}{n}", task, n))

    def _measure(self, in_flight: int, make: Callable[[int], ScoreRequest]) -> None:
        through_service(self._client, self._pid, make, self._seconds, in_flight)


DOMAINS = {
    "code": "short programs, 5 tests",
    "math": "the acceptance cases",
    "logic": "chain_sum",
    "instruction": "four rules",
}
PARTS = (*DOMAINS, "correctness")


def main() -> None:
    """Parses the command line, and measures each part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of each measurement")
    parser.add_argument("--workers", type=int, default=2, help="workers of the service and of alternatives")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    options = parser.parse_args()
    parts = options.only.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"--only names no part {unknown[0]}: write some of {', '.join(PARTS)}")
    with service(options.workers) as (pid, url), RewardClient(urls=[url], batch_items=64) as client:
        client.wait_until_ready(60)
        speed = Speed(client, pid, options.seconds, options.workers)
        for domain, work in DOMAINS.items():
            if domain in parts:
                print(f"{domain}: {work}")
                getattr(speed, domain)()
    if "correctness" in parts:
        correctness()


if __name__ == "__main__":
    main()
