"""Grades submissions against a test program, HumanEval's `check(candidate)`. Pure text; grader.py runs it.

task {"test_program", "entry_point", "preamble"?, "changes_arguments"?, "cpu_s"?}: a program that defines
`check(candidate)`; the name of the requested function; code that both sides may use; whether the function is meant to
change its arguments and also return something; CPU seconds for the submission (default 5). The score is 1 if `check`
ends without an error, else 0.

The tests never run in a process with the submission, so nothing that a submission prints, raises, exits with, patches
or finds on the stack decides the score. Two cells take turns and exchange plain data (crossing.py):

1. The test program runs with a candidate that knows no answers (stand_in.py): each call is recorded and ends there.
2. The submission gets the recorded calls, and returns values.
3. The test program runs again with these answers, which may lead to further calls, until every answer is known.

So a function is called once for each different set of arguments, and remembers nothing between two calls.

Changes that it makes to its arguments reach the test program if it returns None, as `list.sort` does, and otherwise
only with "changes_arguments". Else a function that empties `a` and returns 0 would pass
`assert candidate(a) == sum(a)`.
"""

from __future__ import annotations

import ast
import json
import marshal
import re
from binascii import b2a_base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from reward.graders.code.code_tests import Tests, is_name
from reward.graders.grade import InvalidTask, require
from reward.sandbox.limits import OutputLimits

MAX_ROUNDS = 50
"""Test programs whose calls depend on earlier answers need several rounds; HumanEval's need two."""
MAX_CALLS = 20_000
"""Calls, and operations on their results, over all rounds."""
CALLS_A_PROCESS = 200
_MAX_BYTES = 4 << 20
_ROOM = 400_000
"""Characters of calls per round; the rest are asked in the next. A cell may write a megabyte."""
_ANSWER_BYTES = 8 << 20
"""Bytes that a process may send in answer to its calls."""
_PARSER_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)
"""The errors of `ast.parse` and `ast.unparse` for source that is wrong, nests too deep, or cannot be unparsed."""
_FUTURE = re.compile(r"^from __future__ import [^\n]*", re.MULTILINE)


def _compile_file(name: str) -> str:
    """Returns a file beside this one as byte code. The cells run this same interpreter, and compiling in the cell would
    take longer than most test programs."""
    path = Path(__file__).parent / name
    code = compile(path.read_text(encoding="utf-8"), name, "exec", dont_inherit=True, optimize=2)
    return b2a_base64(marshal.dumps(code), newline=False).decode()


CODEC = _compile_file("crossing.py")

_SUBMISSION = """


def __answers__(sessions, __codec__={codec!r}):
    import binascii, builtins, marshal
    names = {{"__name__": "crossing"}}
    builtins.exec(marshal.loads(binascii.a2b_base64(__codec__)), names)
    here = builtins.globals()
    shared = {{name: here[name] for name in {shared!r} if name in here}}
    return names["answers"](sessions, {entry_point}, shared)
"""

_HEAD = """
class __Unknown__(BaseException):
    pass


class __Ended__(Exception):
    pass


def __method__(owner, name):
    return getattr(owner, name)


__import__("random").seed(0)


"""
"""Seeds test programs that draw random inputs, so that they draw the same in every round."""

_CANDIDATE = _compile_file("stand_in.py")

_TESTER = """


def __tell__(known, __codec__={codec!r}, __candidate__={candidate!r}):
    import binascii, marshal
    names = {{"__name__": "crossing", "Unknown": __Unknown__, "Ended": __Ended__}}
    exec(marshal.loads(binascii.a2b_base64(__codec__)), names)
    exec(marshal.loads(binascii.a2b_base64(__candidate__)), names)
    shared = {{name: globals()[name] for name in {shared!r} if name in globals()}}
    asking = names["Asking"](known, shared, {in_place!r})
    globals()["__method__"] = names["method"]
    globals()[{entry_point!r}] = asking.candidate
    failure = ""
    try:
        check(asking.candidate)
    except __Unknown__:
        pass
    except BaseException as error:
        failure = type(error.args[0] if type(error) is __Ended__ else error).__name__
    return asking.message(failure, {room})
"""

_SEEN = """
try: pass
except __Ended__ as __ended__: raise __ended__.args[0]
"""
_HIDDEN = """
try: pass
except (StopIteration, StopAsyncIteration) as __end__: raise getattr(__end__, "__ended__", __end__)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers(Tests):
    """Tests whose inputs are sessions, several per process; an output passes if it has the form of an answer."""

    num_operations: tuple[tuple[int, ...], ...]
    """The number of operations, for each process and each of its sessions."""

    def output_limits(self) -> OutputLimits:
        return OutputLimits(each=(_ANSWER_BYTES,) * len(self))

    def passes(self, index: int, output: bytes) -> bool:
        return replies_of(output, self.num_operations[index]) is not None


def check(task: Mapping[str, Any]) -> None:
    """Raises InvalidTask unless the task can be graded."""
    program, name, preamble = task.get("test_program"), task.get("entry_point"), task.get("preamble", "")
    if not (isinstance(program, str) and isinstance(preamble, str)):
        raise InvalidTask('"test_program" and "preamble" must be text')
    if not is_name(name):
        raise InvalidTask('"entry_point" must be a Python name')
    changes = task.get("changes_arguments", False)
    require(isinstance(changes, bool), '"changes_arguments" must be true or false')
    require("test_cpu_s" not in task, '"test_cpu_s" is for tasks with inputs and outputs: write "cpu_s"')
    require(
        len(program) + len(preamble) <= _MAX_BYTES, f"the test program is longer than {_MAX_BYTES} characters"
    )
    try:
        _names(preamble)
    except _PARSER_ERRORS as error:
        raise InvalidTask(f"the preamble alone is not Python ({error})") from error
    try:
        tree = ast.parse(preamble + "\n" + program)
    except _PARSER_ERRORS as error:
        raise InvalidTask(f"the test program is not Python ({error})") from error
    defines = any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body)
    require(defines, "the test program does not define check(candidate)")
    try:
        _tester(preamble, program, name, changes)
    except _PARSER_ERRORS as error:
        raise InvalidTask(f"the test program cannot be prepared for grading ({error})") from error


def tester_of(task: Mapping[str, Any]) -> str:
    """Source of the program that calls `check`; function form, with `__tell__` applied to the calls known so far."""
    preamble = task.get("preamble", "")
    return _tester(preamble, task["test_program"], task["entry_point"], task.get("changes_arguments", False))


def program_of(source: str, task: Mapping[str, Any]) -> str:
    """Returns the submission as a program that answers calls; function form, with `__answers__` applied to a list of
    calls."""
    preamble = task.get("preamble", "")
    ending = _SUBMISSION.format(codec=CODEC, entry_point=task["entry_point"], shared=_names(preamble))
    first = "\n".join(_FUTURE.findall(source))  # such imports have to come first
    return f"{first}\n{preamble}\n{_FUTURE.sub('', source)}\n{ending}"


def sessions_as_tests(sessions: Sequence[Any]) -> Answers:
    """Returns the submission's input: sessions, CALLS_A_PROCESS per process."""
    starts = range(0, len(sessions), CALLS_A_PROCESS)
    chunks = [sessions[start : start + CALLS_A_PROCESS] for start in starts]
    return Answers(
        inputs=tuple(json.dumps(chunk) for chunk in chunks),
        expected=(None,) * len(chunks),
        fn_name="__answers__",
        num_operations=tuple(tuple(len(session["ops"]) for session in chunk) for chunk in chunks),
    )


def replies_of(output: bytes, num_operations: Sequence[int]) -> list[list[dict[str, Any]]] | None:
    """Returns for each session a reply to each of its operations; None if the output, which the submission controls,
    has any other form. Whether a reply makes sense is decided where the test program runs."""
    try:
        said = json.loads(output)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, list) or len(said) != len(num_operations):
        return None
    for replies, count in zip(said, num_operations, strict=True):
        if not isinstance(replies, list) or len(replies) != count:
            return None
        if not all(isinstance(reply, dict) for reply in replies):
            return None
    return said


@lru_cache(maxsize=64)
def _names(preamble: str) -> list[str]:
    """Returns the names that a preamble defines; both sides know them."""
    found: list[str] = []
    for node in ast.parse(preamble).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.append(node.name)
        elif isinstance(node, ast.Assign):
            found += [target.id for target in node.targets if isinstance(target, ast.Name)]
    return found


@lru_cache(maxsize=64)
def _tester(preamble: str, program: str, entry_point: str, in_place: bool) -> str:
    tree = _GoOn().visit(ast.parse(preamble + "\n" + program))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "check":
            node.body = [_guard([statement]) for statement in node.body]
    text = ast.unparse(ast.fix_missing_locations(tree))
    options = {"entry_point": entry_point, "shared": _names(preamble), "in_place": in_place, "room": _ROOM}
    return _HEAD + text + _TESTER.format(codec=CODEC, candidate=_CANDIDATE, **options)


class _GoOn(ast.NodeTransformer):
    """Rewrites a test program. An unknown answer ends one iteration of a loop, not the loop, so that most calls are
    recorded in the first round."""

    # Only `try` and `with` see a StopIteration of the submission. Elsewhere it is `__Ended__`, because map, zip, all
    # and the like would take it for the end of their input, and a test that checks nothing passes.

    def visit_Call(self, node: ast.Call) -> ast.Call:
        # `__method__` tells a call of a stand-in's method from a mere attribute access.
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and not node.func.attr.startswith("__"):
            owner, name = node.func.value, ast.Constant(node.func.attr)
            node.func = ast.Call(func=ast.Name("__method__", ast.Load()), args=[owner, name], keywords=[])
        return node

    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        node.body = [_guard(node.body)]
        return node

    def visit_Try(self, node: Any) -> ast.Try:
        self.generic_visit(node)
        node.body = [_fill(_SEEN, node.body)]
        return _fill(_HIDDEN, [node])

    visit_TryStar = visit_With = visit_AsyncWith = visit_Try


def _fill(form: str, body: list[ast.stmt]) -> ast.Try:
    """Returns a `try` statement with this body."""
    (statement,) = ast.parse(form).body
    assert isinstance(statement, ast.Try)
    statement.body = body
    return statement


def _guard(body: list[ast.stmt]) -> ast.stmt:
    handler = ast.ExceptHandler(type=ast.Name("__Unknown__", ast.Load()), name=None, body=[ast.Pass()])
    return ast.Try(body=body, handlers=[handler], orelse=[], finalbody=[])
