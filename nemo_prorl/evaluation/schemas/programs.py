"""Programming problems with tests: inputs and outputs, as text for programs or as arguments for functions.

Reads PRIME's own form (Eurus-2-RL-Data, all four of the paper's sets in one file), the form of DeepCoder's repository,
APPS's and TACO's `input_output`, the hub's Codeforces submissions, and LiveCodeBench.
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from nemo_prorl.data.building.source import NoRow, OtherSet, Problem, Record
from nemo_prorl.data.sources import eurus
from nemo_prorl.evaluation.benchmark import missing_column

QUESTION = "problem|question|question_content|problem-description|description"
TESTS = ("tests", "input_output", "test_cases", "public_test_cases")
STATEMENT_PARTS = (
    ("input-specification", "Input"),
    ("output-specification", "Output"),
    ("demo-input", "Example input"),
    ("demo-output", "Example output"),
    ("note", "Note"),
)
"""Columns that go on with the statement, and their headings."""
_OF_DAMAGED_PICKLES = (
    *(ValueError, TypeError, EOFError, AttributeError, IndexError, KeyError, RecursionError),
    *(zlib.error, pickle.UnpicklingError),
)


def only_from(*origins: str) -> Callable[[Record], Problem]:
    """Returns a conversion that, in a file with the origin of each problem, keeps those of these origins."""

    def convert_those(record: Record) -> Problem:
        origin = record.values.get("data_source")
        if isinstance(origin, str) and origin not in origins:
            raise OtherSet("of_another_set")
        return convert(record)

    return convert_those


def convert(record: Record) -> Problem:
    """Turns a record into a problem. Raises NoRow, and ConfigError for a file of another schema."""
    if "reward_model" in record.values:
        eurus.SOURCE.check_columns(record.values, record.origin)
        return eurus.convert(record)
    question = record.first(QUESTION)
    if not isinstance(question, str):
        raise missing_column(record, f"question ({QUESTION.replace('|', ', ')})")
    column = next((name for name in TESTS if record.values.get(name)), None)
    if column is None and not any(name in record.values for name in TESTS):
        raise missing_column(record, f"tests ({', '.join(TESTS)})")
    if "private_test_cases" in record.values or column == "public_test_cases":
        task, remark = livecodebench_tests(record)
    else:
        task, remark = tests(record.values[column] if column else None), ""
    suffix = "" if "```" in question[-200:] else eurus.SUFFIX  # unless it says how to present the code
    # The statement is followed by the content of further columns: formats, examples, starter code.
    parts = [question.strip()]
    for column, head in STATEMENT_PARTS:
        value = record.values.get(column)
        text = "\n".join(map(str, value)) if isinstance(value, list) else value
        if isinstance(text, str) and text.strip():
            parts.append(f"{head}\n{text.strip()}")
    starter = record.values.get("starter_code")
    if isinstance(starter, str) and starter.strip():
        parts.append(f"Begin with this code:\n```python\n{starter.rstrip()}\n```")
    return Problem(question="\n\n".join(parts), task=task, suffix=suffix, remark=remark)


def tests(given: Any) -> dict[str, Any]:
    """Returns {"inputs", "outputs", "fn_name"?} from JSON text or data, in columns or as a list of pairs. Raises
    NoRow."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            raise NoRow("tests_not_json") from None
    if isinstance(given, list):
        if not all(isinstance(pair, Mapping) and {"input", "output"} <= pair.keys() for pair in given):
            raise NoRow("tests_without_input_or_output")
        given = {"inputs": [p["input"] for p in given], "outputs": [p["output"] for p in given]}
    if not isinstance(given, Mapping) or not given.get("inputs") or not given.get("outputs"):
        raise NoRow("no_tests")
    inputs, outputs, name = given["inputs"], given["outputs"], given.get("fn_name")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise NoRow("tests_not_in_pairs")
    if not isinstance(name, str | None):
        raise NoRow("no_function_name")
    return {"inputs": list(inputs), "outputs": list(outputs)} | ({"fn_name": name} if name else {})


def livecodebench_tests(record: Record) -> tuple[dict[str, Any], str]:
    """Returns (the public and the private tests, `Problem.remark`), from JSON text or lists; long private ones are
    compressed. Raises NoRow, and ConfigError for a damaged record."""
    private = record.values.get("private_test_cases")
    if isinstance(private, str) and private.strip():
        try:
            private = json.loads(private)
        except ValueError:  # JSON pickled as text, zipped and in base 64
            try:
                packed = io.BytesIO(zlib.decompress(base64.b64decode(private)))
                private = json.loads(_TextUnpickler(packed).load())
            except _OF_DAMAGED_PICKLES:
                raise NoRow("private_tests_not_readable") from None
    if private and not isinstance(private, list):
        raise NoRow("private_tests_not_readable")
    pairs = record.list("public_test_cases") + (private or [])
    task = tests(pairs)
    if any(pair.get("testtype") == "functional" for pair in pairs):
        name = record.object("metadata").get("func_name")
        if not isinstance(name, str) or not name.strip():
            raise NoRow("no_function_name")
        task["fn_name"] = name
    remark = "have no private tests, and are graded on the examples in their question alone"
    return task, "" if private else remark


class _TextUnpickler(pickle.Unpickler):
    """Unpickles text only, which needs no class: anything else in a pickle is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is not text")
