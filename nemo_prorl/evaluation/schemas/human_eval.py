"""HumanEval and HumanEval+: Python functions to complete, whose test programs become inputs and outputs.

A test is a program with a function `check(candidate)`. Almost all of them are lists of calls with literal arguments and
results, which can be read without running anything:

    assert candidate([1, 2], 3) == 2 * 3                        also with `is`
    assert candidate(7), assert not candidate(8)                the results True and False
    assert abs(candidate(1.5) - 0.5) < 1e-6                     the result 0.5
    inputs = [[1], [2]]                                         HumanEval+
    results = [3, 4]
    for i, (inp, exp) in enumerate(zip(inputs, results)):
        assertion(candidate(*inp), exp, 0)

A problem whose test holds anything else, such as a loop over random inputs, is dropped as a whole, because some of its
tests alone would pass wrong programs. Results are compared as the code grader compares them (docs/graders.md): a tuple
is a list, 1 is not True, and floats may differ by 1e-5 relatively.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Iterator
from typing import Any

from nemo_prorl.data.building.source import NoRow, Problem, Record
from nemo_prorl.data.sources import eurus
from nemo_prorl.evaluation.benchmark import missing_column

_OVER_LISTS = re.compile(
    r"for i, \(inp, exp\) in enumerate\(zip\(inputs, results\)\):\s+"
    r"assertion\(candidate\(\*inp\), exp, [\d.e-]+\)"
)
_OPERATORS: dict[type[ast.operator], Any] = {
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_LARGEST_OPERAND = 100_000
"""Larger numbers are not calculated with: 9**9**9 would take for ever."""
_LARGEST_TOLERANCE = 1e-5


def convert(record: Record) -> Problem:
    """Reads a problem of either benchmark. Raises NoRow, and ConfigError for a file of another schema."""
    columns = ("prompt", "entry_point", "test")
    for column in columns:
        if column not in record.values:
            raise missing_column(record, f"column {column}")
    prompt, name, test = (record.values[column] for column in columns)
    if not (isinstance(prompt, str) and isinstance(name, str) and isinstance(test, str)):
        raise NoRow("not_text")
    solution = record.values.get("canonical_solution")
    return Problem(
        question=f"Complete this Python function:\n```python\n{prompt.rstrip()}\n```",
        suffix=eurus.SUFFIX,
        task={**inputs_and_outputs(test), "fn_name": name},
        gold=f"```python\n{prompt}{solution}\n```" if isinstance(solution, str) else None,
    )


def inputs_and_outputs(program: str) -> dict[str, list[str]]:
    """Returns {"inputs", "outputs"} of a test program: for each call its arguments as lines of JSON, and its result as
    JSON. Raises NoRow."""
    try:
        calls = [
            (
                "\n".join(json.dumps(argument, allow_nan=False) for argument in arguments),
                json.dumps(result, allow_nan=False),
            )
            for arguments, result in _calls(program)
        ]
    except (SyntaxError, ValueError, TypeError, KeyError, ArithmeticError, RecursionError, MemoryError):
        raise NoRow("tests_not_literal") from None
    if not calls:
        raise NoRow("no_tests")
    inputs, outputs = zip(*calls, strict=True)
    return {"inputs": list(inputs), "outputs": list(outputs)}


def _calls(program: str) -> Iterator[tuple[list[Any], Any]]:
    """Yields the arguments and the result of each call. Raises an error of Python for any other program."""
    functions = (node for node in ast.parse(program).body if isinstance(node, ast.FunctionDef))
    lists: dict[str, Any] = {}
    for statement in next((function.body for function in functions if function.name == "check"), []):
        match statement:
            case ast.Assert(test=ast.Constant(value=True)) | ast.Expr(value=ast.Constant() | ast.Name()):
                pass
            case ast.Assert(test=condition):
                yield _call(condition)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                lists[name] = _value(value)
            case ast.For() if _OVER_LISTS.fullmatch(ast.unparse(statement)):
                yield from zip(lists["inputs"], lists["results"], strict=True)
            case _:
                raise ValueError(ast.unparse(statement))


def _call(condition: ast.expr) -> tuple[list[Any], Any]:
    """Returns the arguments and the result that an assertion asks for."""
    result: Any = True
    match condition:
        case ast.UnaryOp(op=ast.Not(), operand=call):
            result = False
        case ast.Compare(
            left=ast.Call(func=ast.Name(id="abs"), args=[ast.BinOp(left=call, op=ast.Sub(), right=wanted)]),
            ops=[ast.Lt()],
            comparators=[ast.Constant(value=float() as tolerance)],
        ) if tolerance <= _LARGEST_TOLERANCE:
            result = _value(wanted)
        case ast.Compare(left=call, ops=[ast.Eq() | ast.Is()], comparators=[wanted]):
            result = _value(wanted)
        case call:
            pass
    match call:
        case ast.Call(func=ast.Name(id="candidate"), args=arguments, keywords=[]):
            return [_value(argument) for argument in arguments], result
    raise ValueError(ast.unparse(condition))


def _value(node: ast.expr | None) -> Any:
    """Returns the value of a literal, in which numbers may be calculated and texts joined, as it arrives after JSON. A
    dict whose keys would change on the way (1 would be "1", and "1" be 1) is no such literal."""
    match node:
        case ast.Constant(value=None | bool() | int() | float() | str() as value):
            return value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            names = [_value(key) for key in keys]
            if all(isinstance(name, str) and not name.lstrip("-").isdigit() for name in names):
                return dict(zip(names, map(_value, values), strict=True))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _value(left) + _value(right)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            sides = _value(left), _value(right)
            if max(map(abs, sides)) <= _LARGEST_OPERAND:
                return _OPERATORS[type(op)](*sides)
    raise ValueError("not a literal")
