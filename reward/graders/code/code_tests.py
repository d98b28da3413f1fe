"""Tests for programs: how inputs are passed, and when an output is right. Pure; grader.py runs them.

The PRIME/Eurus form: {"inputs": [...], "outputs": [...]}, one pair per test. Without "fn_name" a program reads the
input from standard input and its standard output is compared. With "fn_name", the function (of the module or of
`class Solution`) gets one argument per line of JSON, and its result is compared as JSON. An output that is text is JSON
too, or Python data such as `True` or `(1, 2)`: "12" is the number; the text is written "\\"12\\"" or ["12"].

Every test runs, and the score is passed / all; a syntax error or exhausted time gives 0. Times are CPU seconds: `cpu_s`
for all tests together (default 5), and `test_cpu_s` for each test if the task sets it. Outputs are compared as plain
data, never inside the sandbox and never by the submission's own objects: exactly, else line by line without surrounding
white space (a picture's indentation counts), else as numbers where both are (relative 1e-5, absolute 1e-8, PRIME's
`allclose`; against an integer only absolute 1e-5, or counts from 100,000 on could be guessed). Outputs are never
compared as sets or as substrings.
"""

from __future__ import annotations

import ast
import json
import keyword
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from reward.extract import is_literal
from reward.frames import refuse_constant
from reward.graders.grade import InvalidTask, is_number, require
from reward.sandbox.limits import MAX_CPU_S, OUTPUT_BYTES, OUTPUT_BYTES_IN_ALL, OutputLimits, ProgramLimits

_MAX_TESTS = 2_000
"""HumanEval+ has up to 1,100 tests of a function."""
_MAX_DATA_BYTES = 32 << 20
_RELATIVE, _ABSOLUTE = 1e-5, 1e-8
_NO_TEST_PROGRAM = (
    ', because a "test_program" is not run: write the arguments and results of its calls, and "fn_name"'
)
_INDENTED = re.compile(r"^[ \t]+\S", re.MULTILINE)
_INDENTED_TEXT = re.compile(r"^[ \t]+(?![-+.\d])\S", re.MULTILINE)
_LEADING_ZERO = re.compile(r"[+-]?0\d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tests:
    """Inputs as text, in the form the program gets; expected outputs as text (stdin form) or lists of the results that
    are right (fn form)."""

    inputs: tuple[str, ...]
    expected: tuple[Any, ...]
    fn_name: str | None

    def __len__(self) -> int:
        return len(self.inputs)

    def output_limits(self) -> OutputLimits:
        """Returns twice the size of the expected outputs, because numbers may have more digits than needed, plus an
        allowance for stray output."""
        sizes = [
            2 * len(one.encode("utf-8", "replace") if isinstance(one, str) else json.dumps(one))
            for one in self.expected
        ]
        each = tuple(OUTPUT_BYTES + size for size in sizes)
        return OutputLimits(each=each, in_all=OUTPUT_BYTES_IN_ALL + sum(sizes))

    def passes(self, index: int, output: bytes) -> bool:
        """Whether the output of a program is the expected one of test `index`."""
        try:
            text = output.decode("utf-8")
        except UnicodeDecodeError:
            return False
        if self.fn_name is None:
            return same_output(text, self.expected[index])
        try:
            value = json.loads(text, parse_constant=refuse_constant)
        except (ValueError, RecursionError):
            return False
        return any(_same_data(value, right) for right in self.expected[index])


def limits_of(task: Mapping[str, Any]) -> ProgramLimits:
    """Returns the task's "cpu_s" and "test_cpu_s", or the defaults. Raises InvalidTask for anything but a time up to
    MAX_CPU_S."""
    given = {name: task[name] for name in ("cpu_s", "test_cpu_s") if name in task}
    for name, value in given.items():
        require(
            is_number(value) and 0 < value <= MAX_CPU_S,
            f'"{name}" must be a number of seconds above 0 and up to {MAX_CPU_S:g}',
        )
    return ProgramLimits(**given)


def tests_of(task: Mapping[str, Any]) -> Tests:
    """Raises InvalidTask with a sentence if the task is not of the form above."""
    inputs, outputs, fn_name = task.get("inputs"), task.get("outputs"), task.get("fn_name")
    if not (isinstance(inputs, list) and isinstance(outputs, list)):
        instead = _NO_TEST_PROGRAM if "test_program" in task else ""
        raise InvalidTask(f'the task needs the lists "inputs" and "outputs"{instead}')
    require(len(inputs) == len(outputs), f"the task has {len(inputs)} inputs and {len(outputs)} outputs")
    require(
        0 < len(inputs) <= _MAX_TESTS, f"the task has {len(inputs)} tests; 1 to {_MAX_TESTS} are possible"
    )
    require(fn_name is None or is_name(fn_name), '"fn_name" must be a Python name')
    if fn_name is None:
        tests = Tests(inputs=tuple(map(_lines, inputs)), expected=tuple(map(_lines, outputs)), fn_name=None)
    else:
        arguments = tuple(map(_arguments, inputs))
        # Text is JSON, as PRIME and LiveCodeBench write it, or else the `repr` of Python data (`True`, `(1, 2)`),
        # unless one text of the task is neither: then none was encoded, and "12" is the text.
        texts = [item for item in outputs if isinstance(item, str)]
        decode = _decode if all(_is_json(item) or is_literal(item) for item in texts) else str
        expected = [[decode(item)] if isinstance(item, str) else _right_results(item) for item in outputs]
        tests = Tests(inputs=arguments, expected=tuple(expected), fn_name=fn_name)
        for text in arguments:
            for line in filter(str.strip, text.split("\n")):
                require(_is_json(line), f"the input line {line[:60]!r} of a fn_name task is not JSON")
    size = sum(map(len, tests.inputs))
    require(
        size <= _MAX_DATA_BYTES, f"the inputs of the task have {size} characters, more than {_MAX_DATA_BYTES}"
    )
    return tests


def is_name(value: object) -> TypeGuard[str]:
    """Whether a value is text that can name a Python function."""
    return isinstance(value, str) and value.isidentifier() and not keyword.iskeyword(value)


def same_output(text: str, expected: str) -> bool:
    """Whether standard output equals the expected text."""
    if text == expected:
        return True
    if _INDENTED.search(expected):
        indents = _indents(expected)
        is_picture = len(set(indents)) > 2 or _INDENTED_TEXT.search(expected)
        if is_picture and _indents(text) != indents:
            return False
    text, expected = text.strip(), expected.strip()
    if text.count("\n") != expected.count("\n"):  # before splitting what may be a flood of lines
        return False
    lines = [line.strip() for line in text.split("\n")]
    wanted = [line.strip() for line in expected.split("\n")]
    if lines == wanted:
        return True
    for line, want in zip(lines, wanted, strict=True):
        if line != want:
            tokens, numbers = line.split(), want.split()
            if len(tokens) != len(numbers) or not all(map(_same_token, tokens, numbers)):
                return False
    return True


def _indents(text: str) -> list[int]:
    """Returns how far each line that is not blank is indented beyond the one that is indented least."""
    indents = [len(line) - len(line.lstrip()) for line in text.split("\n") if line.strip()]
    return [indent - min(indents) for indent in indents]


def _same_token(token: str, want: str) -> bool:
    if token == want:
        return True
    if len(token) > 40 or len(want) > 40 or "_" in token or not token.isascii():
        return False
    if _is_whole(token) and _is_whole(want):
        return False  # whole numbers are equal or not
    if _LEADING_ZERO.match(want):  # digits that are no number: 0101 is not 101.0
        return False
    try:
        return _close(float(token), int(want) if _is_whole(want) else float(want))
    except ValueError:
        return False


def _is_whole(token: str) -> bool:
    return token.lstrip("+-").isdigit()


def _same_data(value: Any, expected: Any) -> bool:
    """Whether two values are equal as JSON data: a bool is no number, 2.0 is 2, floats within PRIME's `allclose`. Never
    raises."""
    stack = [(value, expected)]
    while stack:
        left, right = stack.pop()
        if isinstance(left, bool) or isinstance(right, bool):
            if left is not right:
                return False
        elif isinstance(left, int | float) and isinstance(right, int | float):
            both_whole = isinstance(left, int) and isinstance(right, int)
            if left != right and (both_whole or not _close(left, right)):
                return False
        elif type(left) is not type(right):
            return False
        elif isinstance(left, list):
            if len(left) != len(right):
                return False
            stack.extend(zip(left, right, strict=True))
        elif isinstance(left, dict):
            if left.keys() != right.keys():
                return False
            stack.extend((left[key], right[key]) for key in left)
        elif left != right:
            return False
    return True


def _close(value: float, wanted: float) -> bool:
    """Whether two numbers are close. Against an integer there is no relative tolerance: 1000000.0 is not 1000001."""
    try:
        tolerance = _RELATIVE if isinstance(wanted, int) else _ABSOLUTE + _RELATIVE * abs(wanted)
        return math.isfinite(value) and math.isfinite(wanted) and abs(value - wanted) <= tolerance
    except OverflowError:  # an integer beyond the range of floats
        return False


def _lines(item: Any) -> str:
    """Returns an item as text: text as it is, a list as lines, a number as its digits."""
    if isinstance(item, str):
        return item
    if isinstance(item, list):
        return "\n".join(map(_lines, item))
    require(
        isinstance(item, int | float), f"a test's input or output is {type(item).__name__}, not text or lines"
    )
    return str(item)


def _arguments(item: Any) -> str:
    """Returns an input of a fn_name task as lines of JSON."""
    if isinstance(item, str):
        return item
    require(isinstance(item, list), "an input of a fn_name task is neither text nor a list of arguments")
    return "\n".join(json.dumps(value) for value in item)


def _right_results(item: Any) -> list[Any]:
    """Returns an output of a fn_name task that is data; a list of one may be the result or wrap it."""
    return [item, *item] if isinstance(item, list) and len(item) == 1 else [item]


def _decode(text: str) -> Any:
    """Returns the value of JSON, or of a Python literal as a result would be sent (a tuple as a list). A literal that
    cannot be a result, such as a set, stays text."""
    if _is_json(text):
        return json.loads(text)
    try:
        return json.loads(json.dumps(ast.literal_eval(text)))
    except (ValueError, TypeError, RecursionError):
        return text


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
