"""Measures the reward service on outputs that others recorded and graded: agreement, latency and throughput.

    make experiment NAME=grading ARGS="DIR [--limit 500] [--workers 2]"

Starts the service and sends it all cases of outputs.py with the project's own client, domains mixed, two requests
per core at a time. For comparison, the papers' verifiers grade the same rows of mathematics, if they are installed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from tqdm import tqdm

from benchmarks.bench_reward import mistakes, papers_verdict, papers_verifiers, service
from experiments.grading.outputs import MissingData, Outcome, all_cases, grade_all, plain_value
from reward.client import RewardClient


# ------------------------------------------------------------------------------------- agreement
def agreement(outcomes: Sequence[Outcome]) -> None:
    """Prints a line for each part, and every deviation with its reason."""
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
    """Returns one line with the case, the expected and the actual result, and the reason if it is known."""
    case, details = outcome.case, outcome.result.details
    line = f"{case.part} {case.name}: expected {_short(case.expected)}, got {_short(outcome.got)}"
    if isinstance(case.expected, tuple) and isinstance(outcome.got, tuple):
        rules = case.request.task["instruction_id_list"]
        different = [
            rule for rule, want, got in zip(rules, case.expected, outcome.got, strict=True) if want is not got
        ]
        line = f"{case.part} {case.name}: {', '.join(different)}"
    elif case.part == "pairs":
        answer, gold = str(details["extracted"]), str(details["gold"])
        equal = "equal" if plain_value(answer) == plain_value(gold) else "not recognised as equal"
        return f"{case.part} {case.name}: {answer} = {gold} ({details.get('rule')}; {equal} in value)"
    elif case.request.domain in ("math", "stem"):
        line += f"; {details.get('extracted', '')!r} for {details.get('gold', '')!r}"
    return f"{line} [{outcome.result.verdict}]: {case.reason or 'not explained yet'}"


def instructions(outcomes: Sequence[Outcome]) -> None:
    """Prints the agreement for each rule of instruction following, strict and loose."""
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
    """Prints false negatives and false positives of the math grader and of each of the papers' verifiers."""
    chosen = [outcome for outcome in outcomes if outcome.case.part in ("math", "stem")]
    pairs = [(o.case.request.response, str(o.case.request.task["answer"])) for o in chosen]
    responses, golds = zip(*pairs, strict=True)
    verdicts = {"this service": [o.got == 1 for o in chosen]}
    verifiers = papers_verifiers()
    progress = tqdm(total=len(verifiers) * len(chosen), disable=None)
    with progress, ProcessPoolExecutor(workers) as pool:
        for verifier in verifiers:
            verdicts[verifier] = []
            for verdict in pool.map(partial(papers_verdict, verifier), responses, golds, chunksize=8):
                verdicts[verifier].append(verdict)
                progress.update()
    print(f"\n{'mathematics':<20} {'part':<6} {'cases':>6} {'FN':>4} {'FP':>4}")
    for name, of_grader in verdicts.items():
        for part in ("math", "stem"):
            verdicts_of_part = [
                (verdict, outcome.case.expected == 1)
                for verdict, outcome in zip(of_grader, chosen, strict=True)
                if outcome.case.part == part
            ]
            negatives, positives = mistakes(verdicts_of_part)
            print(f"{name:<20} {part:<6} {len(verdicts_of_part):>6} {negatives:>4} {positives:>4}")


# ------------------------------------------------------------------------------------- speed
def latencies(outcomes: Sequence[Outcome], seconds: float) -> None:
    """Prints the overall rate, and latencies by domain."""
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


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> int:
    """Parses the command line, prints all tables, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="folder of the recorded outputs")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--limit", type=int, help="largest number of cases, for a quick look")
    options = parser.parse_args()
    workers = options.workers
    try:
        cases = all_cases(Path(options.data))[: options.limit]
    except MissingData as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{len(cases)} cases, domains mixed, {2 * workers} at a time, {workers} workers", flush=True)
    with service(workers) as (_, url), RewardClient(urls=[url]) as client:
        client.wait_until_ready(300)
        start = time.perf_counter()
        with tqdm(total=len(cases), disable=None) as progress:
            outcomes = grade_all(client, cases, 2 * workers, progress.update)
        seconds = time.perf_counter() - start
        agreement(outcomes)
        instructions(outcomes)
        latencies(outcomes, seconds)
        print(f"retries {client.num_retries}, lost {client.num_missing}")
    alone(outcomes, workers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
