"""Submissions against a test program, HumanEval's `check(candidate)`. Pure text; reward.sandbox.judge runs it.

task {"test_program", "entry_point", "preamble"?, "cpu_s"?}: a program that defines `check(candidate)`, the function
asked for, what both the tests and the submission may lean on, and CPU seconds for the submission (5 by default). The
score is 1 if `check` ends without an error, else 0.

The tests never run in a process with the submission, so nothing that a submission prints, raises, exits with, patches
or finds on the stack is a verdict. Two cells take turns, and plain data goes between them:

1. The test program runs with a candidate that knows no answers: each call is noted and goes no further.
2. The submission gets the noted calls, and answers with values.
3. The test program runs again with these answers, which may lead to further calls, until none is unknown.

So a function is asked once for each different set of arguments, gets copies of them, and can return None, bools,
numbers, text, lists, tuples, sets and dicts of such.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from reward.graders.code_tests import Tests
from reward.graders.grade import require

MAX_ROUNDS = 50
"""Test programs whose calls depend on answers need several; HumanEval's need two."""
MAX_CALLS = 20_000
CALLS_A_PROCESS = 200
_MAX_BYTES = 4 << 20
_ROOM = 400_000
"""Characters of calls that a round takes on; the rest are asked in the next. A cell may write a megabyte."""

CODEC = '''
def encode(value):
    """As JSON that keeps tuples, sets, keys of any kind, and infinities apart."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if value - value == 0 else {"f": repr(float(value))}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, tuple):
        return {"t": [encode(item) for item in value]}
    if isinstance(value, (set, frozenset)):
        return {"s": sorted((encode(item) for item in value), key=repr)}
    if isinstance(value, dict):
        return {"d": [[encode(key), encode(item)] for key, item in value.items()]}
    raise TypeError(type(value).__name__)


def decode(data):
    if isinstance(data, list):
        return [decode(item) for item in data]
    if not isinstance(data, dict):
        return data
    ((kind, content),) = data.items()
    if kind == "f":
        return float(content)
    if kind == "d":
        return {decode(key): decode(item) for key, item in content}
    return {"t": tuple, "s": set}[kind](decode(item) for item in content)


def answer(candidate, call):
    args, kwargs = decode(call)
    try:
        return {"value": encode(candidate(*args, **kwargs))}
    except Exception as error:
        return {"raised": type(error).__name__}
'''

_SUBMISSION = """


def __answers__(calls, __codec__={codec!r}):
    names = {{}}
    __import__("builtins").exec(__codec__, names)
    return [names["answer"]({entry_point}, call) for call in calls]
"""

_HEAD = """
class __Unknown__(BaseException):
    pass


__import__("random").seed(0)


"""
"""Tests that draw their inputs at random draw the same in every round."""

_TESTER = """


def __tell__(known, __codec__={codec!r}):
    import builtins, json
    names = {{}}
    exec(__codec__, names)
    answers, asked, room = {{json.dumps(call): reply for call, reply in known}}, {{}}, [{room}]

    def candidate(*args, **kwargs):
        call = names["encode"]((args, kwargs))
        text = json.dumps(call)
        reply = answers.get(text)
        if reply is None:
            if room[0] > 0 and text not in asked:
                asked[text], room[0] = call, room[0] - len(text)
            raise __Unknown__
        if "raised" in reply:
            kind = getattr(builtins, reply["raised"], None)
            is_error = isinstance(kind, type) and issubclass(kind, Exception)
            raise (kind if is_error else RuntimeError)()
        return names["decode"](reply["value"])

    globals()[{entry_point!r}] = candidate
    failure = ""
    try:
        check(candidate)
    except __Unknown__:
        pass
    except BaseException as error:
        failure = type(error).__name__
    return {{"asked": list(asked.values()), "failure": failure}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers(Tests):
    """Calls as inputs, so many a process; what comes back is right if it can be an answer at all."""

    num_calls: tuple[int, ...]

    def passes(self, index: int, output: bytes) -> bool:
        return replies_of(output, self.num_calls[index]) is not None


def is_test_program(task: Mapping[str, Any]) -> bool:
    """Of the two kinds of code task, this one?"""
    return "test_program" in task


def check(task: Mapping[str, Any]) -> None:
    """Raises InvalidTask unless the task can be graded."""
    program, name, preamble = task.get("test_program"), task.get("entry_point"), task.get("preamble", "")
    require(
        isinstance(program, str) and isinstance(preamble, str), '"test_program" and "preamble" must be text'
    )
    require(isinstance(name, str) and name.isidentifier(), '"entry_point" must be a Python name')
    assert isinstance(program, str)
    require("test_cpu_s" not in task, '"test_cpu_s" is of tasks with inputs and outputs: write "cpu_s"')
    require(
        len(program) + len(preamble) <= _MAX_BYTES, f"the test program is longer than {_MAX_BYTES} characters"
    )
    try:
        tree = ast.parse(preamble + "\n" + program)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        require(False, f"the test program is not Python ({error})")
        return
    defines = any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body)
    require(defines, "the test program does not define check(candidate)")


def tester_of(task: Mapping[str, Any]) -> str:
    """Source of the program that calls `check`; fn form, function `__tell__` of the calls known so far."""
    return _tester(task.get("preamble", "") + "\n" + task["test_program"], task["entry_point"])


def program_of(source: str, task: Mapping[str, Any]) -> str:
    """The submission as a program that answers calls; fn form, function `__answers__` of a list of calls."""
    preamble = task.get("preamble", "")
    if "from __future__" in source:  # has to come first
        preamble = ""
    return f"{preamble}\n{source}\n" + _SUBMISSION.format(codec=CODEC, entry_point=task["entry_point"])


def one_input(argument: Any, name: str) -> Tests:
    """A run of one test, whose output is read by the caller."""
    return Tests(inputs=(json.dumps(argument),), expected=(None,), fn_name=name)


def calls_as_tests(calls: Sequence[Any]) -> Answers:
    """Calls for the submission, CALLS_A_PROCESS to a process."""
    chunks = [calls[start : start + CALLS_A_PROCESS] for start in range(0, len(calls), CALLS_A_PROCESS)]
    return Answers(
        inputs=tuple(json.dumps(chunk) for chunk in chunks),
        expected=(None,) * len(chunks),
        fn_name="__answers__",
        num_calls=tuple(map(len, chunks)),
    )


def replies_of(output: bytes, num_calls: int) -> list[dict[str, Any]] | None:
    """One reply a call, or None if it is anything else: the output is the submission's."""
    try:
        replies = json.loads(output)
    except (ValueError, RecursionError):
        return None
    if not isinstance(replies, list) or len(replies) != num_calls:
        return None
    return replies if all(map(_is_reply, replies)) else None


def _is_reply(reply: Any) -> bool:
    if not isinstance(reply, dict) or len(reply) != 1:
        return False
    return "value" in reply or isinstance(reply.get("raised"), str)


@lru_cache(maxsize=64)
def _tester(source: str, entry_point: str) -> str:
    tree = _GoOn().visit(ast.parse(source))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "check":
            node.body = [_guarded([statement]) for statement in node.body]
    text = ast.unparse(ast.fix_missing_locations(tree))
    return _HEAD + text + _TESTER.format(codec=CODEC, entry_point=entry_point, room=_ROOM)


class _GoOn(ast.NodeTransformer):
    """An unknown answer ends a pass through a loop, not the loop: most calls are noted in the first round."""

    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        node.body = [_guarded(node.body)]
        return node


def _guarded(body: list[ast.stmt]) -> ast.stmt:
    handler = ast.ExceptHandler(type=ast.Name("__Unknown__", ast.Load()), name=None, body=[ast.Pass()])
    return ast.Try(body=body, handlers=[handler], orelse=[], finalbody=[])
