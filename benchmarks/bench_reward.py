"""Throughput, latency and correctness of the reward service, beside what it is measured against, in one run.

    .venv-reward/bin/python benchmarks/bench_reward.py [--seconds 20] [--workers N] [--only code,math,...]

* code: honest short programs with 5 tests through the service, beside a plain bubblewrap runner (a `bwrap python` a
  test, outputs compared outside) and a kinder one (a `bwrap python` a submission that forks for each test).
* math: the acceptance cases through the service, beside math-verify's `math_metric` in a process pool that is made
  afresh for each batch of 64, forked from a process that has imported it, and spawned.
* logic, instruction: through the service.
* correctness: false negatives and false positives on the acceptance cases, beside math-verify alone and DeepScaleR's
  rules alone.

Rates are of finished requests a second; latencies are from submission to result while the service is kept full. The
line below them says how many milliseconds of CPU time a request takes, by kind of process: on a machine that others use
too, rates say little and these figures more.
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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from processor_time import cpu_s  # noqa: E402

from reward.client import RewardClient  # noqa: E402
from reward.protocol import ScoreRequest, ScoreResult, Status  # noqa: E402

DATA = ROOT / "tests/reward/data"
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


def cases() -> list[dict[str, Any]]:
    """The acceptance cases for mathematics."""
    return [json.loads(line) for line in (DATA / "math_cases.jsonl").read_text().splitlines()]


# ------------------------------------------------------------------------------------- the service
@contextlib.contextmanager
def service(workers: int) -> Iterator[tuple[str, int]]:
    """Starts the service, yields its URL and process id, stops it."""
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready.json"
        command = [sys.executable, "-m", "reward", "serve", "--ready-file", str(ready)]
        command += ["--exit-with-parent", str(os.getpid()), "--workers", str(workers)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        while not ready.exists():
            if process.poll() is not None:
                raise SystemExit("the service did not start")
            time.sleep(0.1)
        try:
            yield json.loads(ready.read_text())["url"], process.pid
        finally:
            process.send_signal(signal.SIGHUP)
            process.wait()


def through_service(
    client: RewardClient,
    pid: int,
    make: Callable[[int], ScoreRequest],
    seconds: float,
    in_flight: int,
) -> None:
    """Keeps `in_flight` requests open for so long; prints rate, latencies and CPU time. `pid`: of the service. Fails on
    anything not graded."""
    latencies: list[float] = []
    failed: list[ScoreResult] = []
    places = threading.Semaphore(in_flight)

    def submit(number: int) -> None:
        started = time.perf_counter()

        def done(future: Future[ScoreResult]) -> None:
            latencies.append(time.perf_counter() - started)
            if future.result().status is not Status.graded:
                failed.append(future.result())
            places.release()

        client.submit(make(number)).add_done_callback(done)

    spent, begun = cpu_s(pid), time.perf_counter()
    for number in itertools.takewhile(lambda _: time.perf_counter() - begun < seconds, itertools.count()):
        places.acquire()
        submit(number)
    for _ in range(in_flight):
        places.acquire()
    took = time.perf_counter() - begun
    assert not failed, failed[0]
    report("this service", latencies, took)
    each = {kind: 1e3 * s / len(latencies) for kind, s in (cpu_s(pid) - spent).items()}
    parts = ", ".join(f"{kind} {ms:.3f}" for kind, ms in each.items())
    print(f"    CPU time a request: {sum(each.values()):.3f} ms ({parts})", flush=True)


def report(name: str, latencies: list[float], seconds: float) -> None:
    """Prints one line: rate and latencies."""
    ordered = sorted(latencies)
    p50, p99 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    print(
        f"  {name:<44} {len(ordered) / seconds:>8.1f}/s   p50 {1e3 * p50:>7.1f} ms   p99 {1e3 * p99:>7.1f} ms",
        flush=True,
    )


def ask(domain: str, response: str, task: dict[str, Any], number: int) -> ScoreRequest:
    """A request with an id that no other has."""
    return ScoreRequest(
        request_id=f"{domain}-{number}-{time.time_ns()}", domain=domain, response=response, task=task
    )


# ------------------------------------------------------------------------------------- what it is compared with
def bubblewrap() -> list[str]:
    """The command before the source: an isolated interpreter with the libraries, a /tmp and nothing else."""
    prefix = str(Path(sys.base_prefix).resolve())
    command = [
        "bwrap",
        "--unshare-all",
        "--die-with-parent",
        "--new-session",
        "--cap-drop",
        "ALL",
        "--clearenv",
    ]
    for path in ("/usr", prefix):
        command += ["--ro-bind", path, path]
    for path in ("/lib", "/lib64", "/bin"):
        command += ["--symlink", f"usr{path}", path]
    command += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--chdir", "/tmp"]
    return [*command, "--", *plain_python()]


def plain_python() -> list[str]:
    """The command before the source: an interpreter of its own, and no sandbox at all."""
    prefix = str(Path(sys.base_prefix).resolve())
    return [f"{prefix}/bin/python{sysconfig.get_python_version()}", "-I", "-S", "-B", "-c"]


def a_process_a_test(python: Sequence[str], program: str, inputs: Sequence[str]) -> tuple[list[str], float]:
    """What a program prints for each input, and the seconds that it took. `python`: a command that ends in -c."""
    started = time.perf_counter()
    outputs = [
        subprocess.run([*python, program], input=text, capture_output=True, text=True, timeout=60).stdout
        for text in inputs
    ]
    return outputs, time.perf_counter() - started


def plain_bubblewrap(_: int) -> float:
    """Seconds for one submission: five sandboxes."""
    outputs, seconds = a_process_a_test(bubblewrap(), PROGRAM, INPUTS)
    assert outputs == OUTPUTS, outputs
    return seconds


def bubblewrap_that_forks(_: int) -> float:
    """Seconds for one submission: one sandbox."""
    started, command = time.perf_counter(), [*bubblewrap(), FORKS_FOR_EACH_TEST]
    done = subprocess.run(
        command, input=json.dumps([PROGRAM, INPUTS]), capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "".join(OUTPUTS), done
    return time.perf_counter() - started


def in_threads(name: str, run: Callable[[int], float], seconds: float, workers: int) -> None:
    """Runs it in so many threads for so long, with 0, 1, 2, ...; prints a line."""
    latencies: list[float] = []
    numbers = itertools.count()
    begun = time.perf_counter()
    with ThreadPoolExecutor(workers) as threads:
        while time.perf_counter() - begun < seconds:
            latencies += threads.map(run, itertools.islice(numbers, 4 * workers))
    report(name, latencies, time.perf_counter() - begun)


def math_metric_score(pair: tuple[str, str]) -> float:
    """As verl's utils/reward_score/math_verify.py: a fresh metric, the gold boxed, the whole response."""
    from math_verify.metric import math_metric
    from math_verify.parser import ExprExtractionConfig, LatexExtractionConfig

    started = time.perf_counter()
    verify = math_metric(
        gold_extraction_target=(LatexExtractionConfig(),),
        pred_extraction_target=(ExprExtractionConfig(), LatexExtractionConfig()),
    )
    with contextlib.suppress(Exception):  # as theirs: anything that goes wrong is a 0
        verify([f"\\boxed{{{pair[1]}}}"], [pair[0]])
    return time.perf_counter() - started


def fresh_pools(method: str, seconds: float, workers: int) -> tuple[list[float], float]:
    """math-verify in a new pool for each batch of 64: (latencies, seconds). Runs in a process of its own: `fork`
    starts from one that has imported math-verify, `spawn` has every worker import it."""
    if method == "fork":
        math_metric_score(("\\boxed{1}", "1"))
    context = multiprocessing.get_context(method)
    pairs = itertools.cycle((case["response"], case["gold"]) for case in cases())
    latencies: list[float] = []
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        batch = list(itertools.islice(pairs, 64))
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            latencies += pool.map(math_metric_score, batch)
    return latencies, time.perf_counter() - begun


# ------------------------------------------------------------------------------------- correctness
def math_verify_alone(response: str, gold: str) -> bool:
    """As its README says, on the whole text after the reasoning."""
    from math_verify import parse, verify

    from reward.extract import visible_text

    return bool(verify(parse(f"\\boxed{{{gold}}}"), parse(visible_text(response))))


def deepscaler_alone(response: str, gold: str) -> bool:
    """Our port of its rules, on the last box."""
    from reward.extract import last_box, visible_text
    from reward.graders import deepscaler

    box = last_box(visible_text(response))
    return box is not None and deepscaler.equal(box, gold) is not None


def correctness() -> None:
    """False negatives and false positives by kind of case."""
    from reward.graders import grade

    def ours(response: str, gold: str) -> bool:
        return grade("math", response, {"answer": gold}).score == 1

    print(f"\ncorrectness      {'cases':>16} {'this service':>18} {'math-verify':>18} {'DeepScaleR':>18}")
    for kind in ("peer", "policy", "stem_peer", "hedge"):
        chosen = [case for case in cases() if case["kind"] == kind]
        cells = []
        for scorer in (ours, math_verify_alone, deepscaler_alone):
            found = [(scorer(case["response"], case["gold"]), case["expected"] == 1) for case in chosen]
            missed = sum(not got and want for got, want in found)
            cells.append(f"FN {missed:>2}  FP {sum(got and not want for got, want in found):>2}")
        print(f"  {kind:<14} {len(chosen):>16} " + " ".join(f"{cell:>18}" for cell in cells), flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="for each line of the report")
    parser.add_argument(
        "--workers", type=int, default=2, help="of the service and of what it is compared with"
    )
    parser.add_argument(
        "--only", default="code,math,logic,instruction,correctness", help="parts, joined by commas"
    )
    options = parser.parse_args()
    parts, seconds, workers = options.only.split(","), options.seconds, options.workers
    with service(workers) as (url, pid), RewardClient(urls=[url], batch_items=64) as client:
        client.wait_until_ready(60)
        if "code" in parts:
            print("code: honest short programs, 5 tests")
            response, task = (
                f"<think>.</think>\n```python\n{PROGRAM}```",
                {"inputs": INPUTS, "outputs": OUTPUTS},
            )
            through_service(client, pid, lambda n: ask("code", response, task, n), seconds, 16 * workers)
            if shutil.which("bwrap"):
                in_threads("plain bubblewrap, a process a test", plain_bubblewrap, seconds, workers)
                in_threads("bubblewrap, a process a submission", bubblewrap_that_forks, seconds, workers)
            else:
                print("  bubblewrap is not installed: no comparison")
        if "math" in parts:
            print("math: the acceptance cases")
            rows = cases()
            through_service(
                client,
                pid,
                lambda n: ask(
                    "math", rows[n % len(rows)]["response"], {"answer": rows[n % len(rows)]["gold"]}, n
                ),
                seconds,
                16 * workers,
            )
            for method in ("fork", "spawn"):
                with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as alone:
                    latencies, took = alone.submit(fresh_pools, method, seconds, workers).result()
                report(f"math-verify, a fresh pool a batch ({method})", latencies, took)
        if "logic" in parts:
            print("logic: chain_sum")
            entry = {"task": "chain_sum", "entry": {"question": "4 + 3 =", "answer": "7", "metadata": {}}}
            through_service(
                client, pid, lambda n: ask("logic", f"<answer>{n % 9}</answer>", entry, n), seconds, 256
            )
        if "instruction" in parts:
            print("instruction: four rules")
            names = [
                "punctuation:no_comma",
                "length_constraints:number_words",
                "startend:quotation",
                "detectable_format:title",
            ]
            rules = {
                "instruction_id_list": names,
                "kwargs": [{}, {"num_words": 50, "relation": "at least"}, {}, {}],
            }
            text = "A response of a few hundred characters that follows some rules. " * 6
            through_service(client, pid, lambda n: ask("instruction", f"{text}{n}", rules, n), seconds, 256)
    if "correctness" in parts:
        correctness()


if __name__ == "__main__":
    main()
