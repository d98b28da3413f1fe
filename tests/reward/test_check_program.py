"""Tests of submissions against test programs: honest ones pass, and no result can be forged."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import Any

import pytest

from reward import frames, judge
from reward.graders.code import check_program, grader
from reward.graders.code.grader import grade
from reward.graders.grade import InvalidTask
from reward.sandbox.cell import Level
from reward.sandbox.execution import Allowance, Execution, Sandbox
from reward.sandbox.launch import Judge
from reward.sandbox.limits import ProgramLimits

CHECK = """
def check(candidate):
    assert candidate([1, 2]) == (3, 2)
    assert candidate([]) == (0, 1)
    for n in range(30):
        assert candidate([n]) == (n, n)
    assert sorted(candidate([2, 3])) == [5, 6]
"""
TASK: dict[str, Any] = {"test_program": CHECK, "entry_point": "sum_product"}
RIGHT = """
def sum_product(numbers):
    total, product = 0, 1
    for number in numbers:
        total, product = total + number, product * number
    return total, product
"""


def score(sandbox: Sandbox, source: str, task: dict[str, Any] | None = None) -> tuple[float, str]:
    graded = grade(sandbox, f"<think>so</think>\n```python\n{source}\n```", task or TASK)
    return graded.score, graded.verdict


def test_a_right_function_passes_in_two_rounds(sandbox: Sandbox) -> None:
    graded = grade(sandbox, f"```python\n{RIGHT}\n```", TASK)
    assert (graded.score, graded.verdict) == (1.0, "correct")
    assert (graded.details["calls"], graded.details["rounds"]) == (33, 1)


@pytest.mark.parametrize(
    ("source", "verdict"),
    [
        ("def sum_product(numbers):\n    return [0, 1]", "wrong"),  # a list is no tuple
        ("def sum_product(numbers):\n    return 0, 1", "wrong"),
        ("def sum_product(numbers):\n    return sum(numbers), numbers[0] * 1", "wrong"),  # raises on []
        ("def other(numbers):\n    return 0, 1", "runtime_error"),
        ("def sum_product(numbers:\n", "syntax_error"),
        ("import os\nos._exit(0)", "wrong"),
        ("raise SystemExit(0)", "wrong"),
        ("def sum_product(numbers):\n    while True: pass", "timeout"),
    ],
)
def test_wrong_functions_do_not(sandbox: Sandbox, source: str, verdict: str) -> None:
    assert score(sandbox, source, {**TASK, "cpu_s": 1.0}) == (0.0, verdict)


def test_a_task_sets_its_own_time(sandbox: Sandbox) -> None:
    busy = "import time\nt = time.process_time()\nwhile time.process_time() - t < 0.4: pass\n" + RIGHT
    assert score(sandbox, busy, {**TASK, "cpu_s": 20}) == (1.0, "correct")
    assert score(sandbox, busy, {**TASK, "cpu_s": 0.2}) == (0.0, "timeout")


FORGERIES = {
    "prints what the tester says": "import os\nfor fd in range(1, 9):\n    try:\n"
    '        os.write(fd, b\'{"asked": [], "failure": ""}\')\n'
    "    except OSError: pass\nos._exit(0)",
    "equal to everything": "class Any(tuple):\n    __eq__ = lambda s, o: True\n    __iter__ = lambda s: iter([5, 6])\n"
    "def sum_product(numbers):\n    return Any()",
    "no assertion fails": "import builtins\nbuiltins.AssertionError = Exception\nclass T(tuple): pass\n"
    "def sum_product(numbers):\n    return T()",
    "its own check": "def check(candidate):\n    pass\ndef __tell__(known):\n    return {'asked': [], 'failure': ''}\n"
    "def sum_product(numbers):\n    return 1",
    "raises what the tester catches": "class __Unknown__(BaseException): pass\ndef sum_product(numbers):\n"
    "    raise __Unknown__",
    "looks for the tests": "import sys, gc\ndef sum_product(numbers):\n    frame = sys._getframe()\n    found = []\n"
    "    while frame:\n        found += [v for v in frame.f_locals.values()]\n        frame = frame.f_back\n"
    "    text = repr(found) + repr([o for o in gc.get_objects() if callable(o)])[:10**6]\n"
    "    assert 'candidate([1, 2])' in text and '(3, 2)' in text\n    return 3, 2",
    "answers for all calls at once": "import os, json\n"
    "os.write(3, json.dumps([[{'value': {'t': [0, 1]}}]] * 33).encode())\nos._exit(0)",
    "patches json": "import json\njson.dumps = lambda *a, **k: '{\"asked\": [], \"failure\": \"\"}'\n"
    "def sum_product(numbers):\n    return 1",
}  # fmt: skip


@pytest.mark.parametrize("source", FORGERIES.values(), ids=FORGERIES)
def test_no_verdict_can_be_forged(sandbox: Sandbox, source: str) -> None:
    assert score(sandbox, source)[0] == 0.0


FORGED_REPLIES = {
    "exec as a value": {"value": {"B": [0, "exec"]}},
    "a name of the preamble": {"value": {"P": "helper"}},
    "an object of no known class": {"value": {"o": ["Answer", [["__class__", 1]]]}},
    "an object of a class that it names": {"value": {"x": ["int", []]}},
    "a type that is no data": {"value": {"N": "type"}},
    "an enum that is none": {"value": {"e": ["helper", "__globals__"]}},
    "a tuple of no known class": {"value": {"n": ["helper", [3, 2]]}},
    "a reference to nothing": {"value": {"r": 7}},
    "a reference to itself": {"value": {"r": 1}},
    "two kinds": {"value": {"t": [3, 2], "s": []}},
    "no kind": {"value": {}},
    "a kind of its own": {"value": {"eval": "3, 2"}},
    "nothing": {},
    "broken": {"broken": True},
    "the end of the run": {"raised": [["SystemExit"], [0]]},
    "the sign for an unknown answer": {"raised": [["__Unknown__", "Unknown"], []]},
    "an exception that is none": {"raised": [["print"], ["x"]]},
    "an exception without names": {"raised": []},
    "changes that are none": {"value": None, "changed": 3},
    "a change of what has no number": {"value": None, "changed": [[5, []]]},
    "a change of another kind": {"value": None, "changed": [[0, {"d": []}]]},
    "more and more": {"value": {"y": [[3, 2], "more"]}},
    "a function": {"value": {"h": 0}},
    "numbers too large": {"value": {"g": [0, 10**30, 1]}},
    "a list in a set": {"value": {"s": [[1]]}},
    "nested deep": {"value": json.loads("[" * 900 + "]" * 900)},
}


@pytest.mark.parametrize("reply", FORGED_REPLIES.values(), ids=FORGED_REPLIES)
def test_no_reply_forges_a_verdict(sandbox: Sandbox, reply: dict[str, Any]) -> None:
    """A submission shares its process with the code that writes its answers, and may write anything instead."""
    task = {
        "preamble": "def helper(x):\n    return 3, 2\n",
        "test_program": "def check(candidate):\n    a = [1, 2]\n    assert candidate(a) == (3, 2) and a == [1, 2]\n",
        "entry_point": "f",
    }
    source = (
        "import json, os\ndef f(numbers):\n    pass\n"
        f"os.write(3, json.dumps([[json.loads({json.dumps(reply)!r})]]).encode())\nos._exit(0)"
    )
    graded = grade(sandbox, f"```python\n{source}\n```", task)
    assert (graded.score, graded.verdict) == (0.0, "wrong")


def test_only_the_first_run_can_find_a_task_invalid(sandbox: Sandbox) -> None:
    """Later runs depend on the submission's answers: a wrong submission could choose not to be graded."""
    program = "def check(candidate):\n    if candidate(1) != 2:\n        candidate(lambda: 0)\n    {}\n"
    task = {"test_program": program.format("pass"), "entry_point": "f"}
    right, wrong = "def f(n):\n    return 2", "def f(n):\n    return 3"
    assert score(sandbox, right, task) == (1.0, "correct")
    assert score(sandbox, wrong, task) == (0.0, "wrong")
    for source in (right, wrong):
        with pytest.raises(InvalidTask, match="a value of type function"):
            score(sandbox, source, {**task, "test_program": program.format("candidate(lambda: 0)")})


def test_operations_are_counted_over_all_rounds(sandbox: Sandbox) -> None:
    """Otherwise a function that returns functions would be asked ever longer sessions."""
    checks = "    g = candidate()\n    for _ in range(3_000):\n        g = g()\n    assert g == 1\n"
    task = {"test_program": f"def check(candidate):\n{checks}", "entry_point": "f"}
    graded = grade(sandbox, "```python\ndef f():\n    return lambda: f()\n```", task)
    assert (graded.score, graded.details["failure"]) == (0.0, "too_many_calls")


def test_what_a_function_prints_changes_nothing(sandbox: Sandbox) -> None:
    assert score(sandbox, f"{RIGHT}\nprint(sum_product([1]))\nlist = str = print = 3") == (1.0, "correct")


def test_values_of_every_kind_cross_unchanged(sandbox: Sandbox) -> None:
    program = """
def check(candidate):
    for value in (None, True, 1, 1.0, 10**40, "a", [1, (2,)], {1: "x", "1": (3,)}, {1, 2}, (), float("inf"), {}):
        back = candidate(value, again=value)
        assert back == [value, value] and repr(back) == repr([value, value])
"""
    task = {"test_program": program, "entry_point": "echo"}
    assert score(sandbox, "def echo(value, again):\n    return [value, again]", task) == (1.0, "correct")


def test_calls_that_depend_on_answers_take_more_rounds(sandbox: Sandbox) -> None:
    program = """
def check(candidate):
    value = 1
    for _ in range(5):
        value = candidate(value)
    assert value == 32
    try:
        candidate(-1)
    except ValueError:
        return
    assert False
"""
    task = {"test_program": program, "entry_point": "double"}
    right = "def double(n):\n    if n < 0: raise ValueError\n    return 2 * n"
    assert score(sandbox, right, task) == (1.0, "correct")
    assert score(sandbox, "def double(n):\n    return 2 * n", task) == (0.0, "wrong")


def test_inputs_drawn_at_random_are_the_same_in_every_round(sandbox: Sandbox) -> None:
    program = """
from random import randint
def check(candidate):
    for _ in range(50):
        n = randint(0, 10**12)
        assert candidate(n) == n + 1
"""
    task = {"test_program": program, "entry_point": "f"}
    assert score(sandbox, "def f(n):\n    return n + 1", task) == (1.0, "correct")


def test_the_preamble_is_there_for_both(sandbox: Sandbox) -> None:
    preamble = "def helper(n):\n    return n + 1\n\ndef f(n):\n    pass\n"
    task = {
        "preamble": preamble,
        "test_program": "def check(candidate):\n    assert candidate(1) == helper(1)",
        "entry_point": "f",
    }
    assert score(sandbox, "def f(n):\n    return helper(n)", task) == (1.0, "correct")
    assert score(sandbox, "x = 1", task) == (0.0, "wrong"), "the preamble's own stub is no solution"


@pytest.mark.parametrize(
    "change",
    [
        {"test_program": "def check(candidate:"},
        {"test_program": "def other(): pass"},
        {"test_program": 3},
        {"entry_point": "a b"},
        {"preamble": None},
        {"test_cpu_s": 1.0},
        {"changes_arguments": 1},
    ],
)
def test_tasks_that_cannot_be_graded(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidTask):
        check_program.check({**TASK, **change})


@pytest.mark.parametrize(
    "output", [b"", b"[", b"{}", b"[1]", b"[[]]", b"[[1]]", b"[[{}, {}]]", b"[[{}], [{}]]", b"[" * 100_000]
)
def test_what_is_no_list_of_replies(output: bytes) -> None:
    assert check_program.replies_of(output, [1]) is None
    assert check_program.replies_of(b'[[{"value": null}]]', [1]) == [[{"value": None}]]


COUNTDOWN = {
    "test_program": "def check(candidate):\n    x = 40\n    while x > 0:\n        x = candidate(x)\n",
    "entry_point": "step",
}
"""Every call depends on the previous answer, so there are forty rounds."""
WAITS_FOR_ANSWERS = {
    "test_program": "import time\n\ndef check(candidate):\n    x = 40\n    while x > 0:\n        x = candidate(x)\n"
    "        time.sleep(0.6 if x == int(x) else 0)\n",
    "entry_point": "step",
}
SLEEPS = "import time\n\ndef step(x):\n    time.sleep(0.6)\n    return x - 1"


@pytest.mark.parametrize(
    ("source", "task", "verdict"),
    [
        (SLEEPS, COUNTDOWN, "timeout"),
        ("def step(x):\n    return x - 1", WAITS_FOR_ANSWERS, "wrong"),
    ],
)
def test_sleep_is_counted_over_all_rounds(
    source: str, task: dict[str, Any], verdict: str, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A little sleep in each of forty rounds, less than one run may sleep, once outlasted the pool, which then did not
    grade instead of giving 0."""
    monkeypatch.setattr(grader, "SLEEP_S", 1.5)
    monkeypatch.setattr(grader, "TEST_PROGRAM_SLEEP_S", 1.5)
    graded = grade(sandbox, f"```python\n{source}\n```", task)
    assert (graded.score, graded.verdict) == (0.0, verdict)


def test_many_rounds_without_sleep_pass(sandbox: Sandbox) -> None:
    graded = grade(sandbox, "```python\ndef step(x):\n    return x - 1\n```", COUNTDOWN)
    assert (graded.score, graded.verdict) == (1.0, "correct")
    assert graded.details["rounds"] == 40


def test_an_allowance_is_for_all_runs_together() -> None:
    """A single run never gets more than the limits of one run."""
    given: list[tuple[float, float]] = []

    class Scripted:
        def run(self, *_: Any, limits: ProgramLimits, sleep_s: float, **__: Any) -> Execution:
            given.append((limits.cpu_s, sleep_s))
            return Execution(cpu_s=2.0, compile_s=0.5, slept_s=4.0)

    allowance = Allowance(cpu_s=6.0, sleep_s=10.0)
    while not allowance.is_spent:
        allowance.run(Scripted(), "", ["[]"], fn_name="f", run_cpu_s=5.0)  # type: ignore[arg-type]
    assert given == [(5.0, 5.0), (3.5, 5.0), (1.0, 2.0)]


UNFIT = {
    "a preamble that needs the program behind it": {"preamble": "@__import__('functools').lru_cache"},
    "a sum of 900 terms": {
        "test_program": f"def check(candidate):\n    assert candidate(1) == {' + '.join(['1'] * 900)}\n"
    },
    "a name that no function can have": {"entry_point": "class"},
}
if sys.version_info < (3, 12):
    UNFIT["an f-string that cannot be written again"] = {
        "test_program": "def check(candidate):\n    assert candidate(1) == f'{str(\"\x07\")}'\n"
    }
DEEPEST = """
import json
depth = 500
try:
    while True:
        json.loads("[" * depth + "]" * depth)
        depth += 1
except RecursionError:
    print(depth)
"""
"""996 in Python 3.11, 1498 in 3.12.1, more in later versions."""


@pytest.mark.parametrize("change", UNFIT.values(), ids=UNFIT)
def test_a_defect_of_the_task_is_never_the_submissions(change: dict[str, Any], sandbox: Sandbox) -> None:
    """Each of these once raised an error in the judge, or a syntax error in a correct submission."""
    helper = "def helper():\n    return 1\n"
    task = {**TASK, "test_program": helper + CHECK, **change}
    with pytest.raises(InvalidTask):
        check_program.check(task)
    with pytest.raises(InvalidTask):
        score(sandbox, RIGHT, task)


def test_an_answer_that_nests_deep_is_wrong_and_never_without_a_verdict(sandbox: Sandbox) -> None:
    """The result nests deeper than the answer: at a few depths, 974 to 987 in Python 3.11, an answer could be read but
    not passed on."""
    program = "def check(candidate):\n    assert candidate(candidate(1)) == 2\n"
    task = {"test_program": program, "entry_point": "f"}
    source = (
        "def f(x):\n    result = []\n    for _ in range({}):\n        result = [result]\n    return result"
    )
    measured = subprocess.run([sys.executable, "-c", DEEPEST], capture_output=True, check=True)
    deepest = int(measured.stdout)
    judge, found = Judge(sandbox._level), set()
    try:
        for depth in (400, *range(deepest - 24, deepest), 2 * deepest):
            response = f"```python\n{source.format(depth)}\n```"
            frames.write(judge.socket.fileno(), {"response": response, "task": task})
            answer = frames.read(judge.socket.fileno())
            assert answer is not None, f"the judge died of an answer that nests {depth} deep"
            assert answer["grade"]["score"] == 0.0
            found.add(answer["grade"]["verdict"])
    finally:
        judge.end()
    assert found == {"wrong", "nested_too_deep"}


@pytest.mark.parametrize("output", [b"", b"{", b"\xff", b"9" * 5_000])
def test_a_test_program_whose_words_cannot_be_read_has_failed(output: bytes) -> None:
    said = grader._read_message(Execution(compiled="", ends=["exit"], outputs=[output]))
    assert (said["asked"], said["failure"]) == ([], "test_program_unreadable")


def test_data_too_deep_for_json_is_the_submissions_fault_only_after_it_has_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_deep(known: list[Any], has_answered: bool) -> None:
        known += [({}, {})] * has_answered
        raise RecursionError

    monkeypatch.setattr(grader, "_take_turns", lambda *given: too_deep(given[-1], True))
    graded = grader._grade_with_test_program(None, "", TASK, 5.0)  # type: ignore[arg-type]
    assert (graded.score, graded.verdict) == (0.0, "nested_too_deep")
    monkeypatch.setattr(grader, "_take_turns", lambda *given: too_deep(given[-1], False))
    with pytest.raises(InvalidTask, match="nests too deep"):
        grader._grade_with_test_program(None, "", TASK, 5.0)  # type: ignore[arg-type]


def test_a_defect_of_the_judge_is_answered_and_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the judge died of it, a trial would give the response a 0."""

    def fails(*_: Any, **__: Any) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr(judge, "grade", fails)
    ours, theirs = socket.socketpair()
    with ours:
        for _ in range(2):
            frames.write(ours.fileno(), {"response": "", "task": TASK})
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(SystemExit):
            judge.main(theirs.detach(), Level.none)
        for _ in range(2):
            assert frames.read(ours.fileno()) == {"failed": "the judge has a defect: KeyError"}
