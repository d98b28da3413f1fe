"""The reward service on outputs that others recorded and graded: agreement, latency, throughput, memory.

    make real DATA=DIR [BENCH_ARGS="--seconds 20 --workers 2"]

Starts the real service and sends every case of real_outputs.py through HTTP with the project's own client, mixed over
the domains, two in flight a core. Then, for comparison: math-verify alone and DeepScaleR's rules alone on the same rows
of mathematics, and the reference programs through a runner that starts a plain process a test, and one that starts it
in bubblewrap.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from bench_reward import (  # noqa: E402
    a_process_a_test,
    ask,
    bubblewrap,
    deepscaler_alone,
    in_threads,
    math_verify_alone,
    plain_python,
    through_service,
)
from real_outputs import (  # noqa: E402
    Case,
    MissingData,
    Outcome,
    all_cases,
    check_folder,
    grade_all,
    plain_value,
)

from reward.client import RewardClient  # noqa: E402
from reward.offline import Progress  # noqa: E402
from tests.reward.serving import Server  # noqa: E402

PREAMBLE = """
import json, sys
from typing import *
from math import inf, gcd, sqrt, ceil, floor, comb, isqrt, log, log2
import math, heapq, bisect, itertools, functools, collections, string, re, random, operator, copy, datetime
from collections import *
from itertools import *
from functools import *
from heapq import *
from bisect import *
from operator import *
pow = __builtins__.pow
"""
"""What the reference programs lean on."""
DRIVER = """
_given = [json.loads(line) for line in sys.stdin.read().split("\\n") if line.strip()]
print(json.dumps(Solution().{name}(*_given)))
"""


# ------------------------------------------------------------------------------------- agreement
def agreement(outcomes: Sequence[Outcome]) -> None:
    """A line for each part, and every deviation with its reason."""
    parts: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        parts[outcome.case.part].append(outcome)
    print(f"\n{'part':<16} {'cases':>6} {'agree':>6} {'too low':>8} {'too high':>9} {'not graded':>11}")
    for part, group in sorted(parts.items()):
        low = sum(o.got is not None and o.got < o.case.expected for o in group if not o.agrees)
        high = sum(o.got is not None and o.got > o.case.expected for o in group if not o.agrees)
        agree, lost = sum(o.agrees for o in group), sum(o.got is None for o in group)
        print(f"{part:<16} {len(group):>6} {agree:>6} {low:>8} {high:>9} {lost:>11}")
    print("\ndeviations")
    for outcome in outcomes:
        if not outcome.agrees:
            print(f"  {deviation(outcome)}")


def deviation(outcome: Outcome) -> str:
    """One line: which case, what was wanted, what came, and why if that is known."""
    case, details = outcome.case, outcome.result.details
    line = f"{case.part} {case.name}: wanted {_short(case.expected)}, got {_short(outcome.got)}"
    if isinstance(case.expected, tuple) and isinstance(outcome.got, tuple):
        rules = case.request.task["instruction_id_list"]
        apart = [
            rule for rule, want, got in zip(rules, case.expected, outcome.got, strict=True) if want is not got
        ]
        line = f"{case.part} {case.name}: {', '.join(apart)}"
    elif case.part == "pairs":
        answer, gold = str(details["extracted"]), str(details["gold"])
        equal = "equal" if plain_value(answer) == plain_value(gold) else "not seen to be equal"
        return f"{case.part} {case.name}: {answer} = {gold} ({details.get('accepted_by')}; {equal} in value)"
    elif case.request.domain in ("math", "stem"):
        line += f"; {details.get('extracted', '')!r} for {details.get('gold', '')!r}"
    return f"{line} [{outcome.result.verdict}]: {case.reason or 'not explained yet'}"


def instructions(outcomes: Sequence[Outcome]) -> None:
    """Agreement by rule, strict and loose."""
    modes = ("ifeval_strict", "ifeval_loose")
    count: dict[str, Counter[str]] = {mode: Counter() for mode in modes}
    agree: dict[str, Counter[str]] = {mode: Counter() for mode in modes}
    for outcome in outcomes:
        case = outcome.case
        if isinstance(case.expected, tuple) and isinstance(outcome.got, tuple):
            rules = case.request.task["instruction_id_list"]
            count[case.part].update(rules)
            agree[case.part].update(
                rule for rule, want, got in zip(rules, case.expected, outcome.got, strict=True) if want is got
            )
    print(f"\n{'instruction':<44} {'strict':>12} {'loose':>12}")
    for rule in sorted(count["ifeval_strict"] | count["ifeval_loose"]):
        print(f"{rule:<44}", *(f"{agree[mode][rule]:>5} of {count[mode][rule]:<3}" for mode in modes))
    print(f"{'all':<44}", *(f"{agree[mode].total():>5} of {count[mode].total():<3}" for mode in modes))


def alone(outcomes: Sequence[Outcome], workers: int) -> None:
    """Mathematics beside what it is made of: false negatives and false positives on the same rows."""
    chosen = [outcome for outcome in outcomes if outcome.case.part in ("math", "stem")]
    pairs = [(o.case.request.response, str(o.case.request.task["answer"])) for o in chosen]
    responses, golds = zip(*pairs, strict=True)
    verdicts = {"this service": [o.got == 1 for o in chosen]}
    progress = Progress(2 * len(chosen), sys.stderr)
    with ProcessPoolExecutor(workers) as pool:
        for name, judge in (
            ("math-verify alone", math_verify_alone),
            ("DeepScaleR alone", deepscaler_alone),
        ):
            verdicts[name] = []
            for verdict in pool.map(judge, responses, golds, chunksize=8):
                verdicts[name].append(verdict)
                progress.step()
    print(f"\n{'mathematics':<20} {'part':<6} {'cases':>6} {'FN':>4} {'FP':>4}")
    for name, said in verdicts.items():
        for part in ("math", "stem"):
            rows = [
                (v, o.case.expected == 1) for v, o in zip(said, chosen, strict=True) if o.case.part == part
            ]
            missed, passed = sum(w and not v for v, w in rows), sum(v and not w for v, w in rows)
            print(f"{name:<20} {part:<6} {len(rows):>6} {missed:>4} {passed:>4}")


# ------------------------------------------------------------------------------------- speed
def latencies(outcomes: Sequence[Outcome], seconds: float) -> None:
    """Rate of the whole, and latencies by domain."""
    domains: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        domains[outcome.case.request.domain].append(outcome.seconds)
        domains["all"].append(outcome.seconds)
    print(f"\n{len(outcomes)} requests in {seconds:.0f} s: {len(outcomes) / seconds:.1f}/s, mixed")
    print(f"{'domain':<12} {'requests':>9} {'p50 ms':>8} {'p99 ms':>8}")
    for domain, values in sorted(domains.items()):
        values.sort()
        p50, p99 = values[len(values) // 2], values[int(0.99 * len(values))]
        print(f"{domain:<12} {len(values):>9} {1e3 * p50:>8.1f} {1e3 * p99:>8.1f}")


def code_speed(client: RewardClient, pid: int, cases: Sequence[Case], seconds: float, workers: int) -> None:
    """Reference programs a second: this service (process `pid`), a plain process a test, bubblewrap a test."""
    references = [case.request for case in cases if case.part == "references"]
    print(f"\nreference programs, {workers} workers, {seconds:g} s each")

    def again(number: int) -> object:
        chosen = references[number % len(references)]
        return ask("code", chosen.response, dict(chosen.task), number)

    through_service(client, pid, again, seconds, 2 * workers)  # type: ignore[arg-type]
    failed: Counter[str] = Counter()

    def one_by(name: str, python: list[str], number: int) -> float:
        request = references[number % len(references)]
        source = request.response.removeprefix("```python\n").removesuffix("\n```")
        program = PREAMBLE + source + DRIVER.format(name=request.task["fn_name"])
        outputs, took = a_process_a_test(python, program, request.task["inputs"])
        failed[name] += not all(map(_same_json, outputs, request.task["outputs"]))
        return took

    runners = {"a plain process a test": plain_python()}
    if shutil.which("bwrap"):
        runners["bubblewrap, a process a test"] = bubblewrap()
    else:
        print("  bubblewrap is not installed: no comparison with it")
    for name, python in runners.items():
        in_threads(name, lambda n, name=name, python=python: one_by(name, python, n), seconds, workers)
        if failed[name]:
            print(f"    {failed[name]} of these programs did not pass there")


def _same_json(output: str, expected: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(json.loads(output) == json.loads(expected))
    return False


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@contextlib.contextmanager
def _service(workers: int) -> Iterator[Server]:
    server = Server("--workers", str(workers), "--exit-with-parent", str(os.getpid()))
    try:
        yield server
    finally:
        server.stop(signal.SIGHUP)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="folder of the recorded outputs")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each line on the speed of programs")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--limit", type=int, help="only so many of the mixed cases, for a quick look")
    options = parser.parse_args()
    workers = options.workers
    if not options.data:
        print("real_graders: name the folder of the recorded outputs: make real DATA=DIR", file=sys.stderr)
        return 2
    folder = Path(options.data)
    try:
        check_folder(folder)
    except MissingData as error:
        print(f"real_graders: {error}", file=sys.stderr)
        return 2
    cases = all_cases(folder)[: options.limit]
    print(f"{len(cases)} cases, mixed, {2 * workers} in flight, {workers} workers", flush=True)
    with _service(workers) as server, RewardClient(urls=[server.url]) as client:
        client.wait_until_ready(300)
        progress = Progress(len(cases), sys.stderr)
        third = len(cases) // 3  # by then caches are filled and workers have been replaced
        begun = time.perf_counter()
        outcomes = grade_all(client, cases[:third], 2 * workers, progress.step)
        seconds, before = time.perf_counter() - begun, server.footprint()
        begun = time.perf_counter()
        outcomes += grade_all(client, cases[third:], 2 * workers, progress.step)
        seconds, after = seconds + time.perf_counter() - begun, server.footprint()
        agreement(outcomes)
        instructions(outcomes)
        latencies(outcomes, seconds)
        print(f"retries {client.statistics.num_retries}, lost {client.statistics.num_missing}")
        for name, (processes, descriptors, kib) in (("a third", before), ("the end", after)):
            print(f"after {name}: {processes} processes, {descriptors} descriptors, {kib >> 10} MiB")
        sys.stdout.flush()
        code_speed(client, server.process.pid, cases, options.seconds, workers)
    alone(outcomes, workers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
