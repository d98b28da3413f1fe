"""Programming problems with tests: inputs and outputs, as text for programs or as arguments for functions.

Reads PRIME's own form (Eurus-2-RL-Data, all four of the paper's sets in one file), the form of DeepCoder's repository,
APPS's and TACO's `input_output`, the hub's Codeforces submissions, and LiveCodeBench.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import pickle
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from nemo_prorl.data.building.source import Dropped, Problem, Record
from nemo_prorl.data.sources import eurus
from nemo_prorl.evaluation.benchmark import missing_column

QUESTION = "problem|question|question_content|problem-description|description"
TESTS = ("tests", "input_output", "test_cases", "public_test_cases")


def of(*kinds: str) -> Callable[[Record], Problem]:
    """Returns a conversion that, in a file with the origin of each problem, keeps those of these origins."""

    def convert_those(record: Record) -> Problem:
        origin = record.values.get("data_source")
        if isinstance(origin, str) and origin not in kinds:
            raise Dropped("of_another_set")
        return convert(record)

    return convert_those


def convert(record: Record) -> Problem:
    """Turns a record into a problem. Raises Dropped, and ConfigError for a file of another schema."""
    if "reward_model" in record.values:
        return eurus.convert(record)
    question = record.first(QUESTION)
    column = next((name for name in TESTS if record.values.get(name)), None)
    if not isinstance(question, str):
        raise missing_column(record, f"question ({QUESTION.replace('|', ', ')})")
    if column is None:
        if any(name in record.values for name in TESTS):
            raise Dropped("no_tests")
        raise missing_column(record, f"tests ({', '.join(TESTS)})")
    task = (
        livecodebench_tests(record.values) if column == "public_test_cases" else tests(record.values[column])
    )
    suffix = "" if "```" in question[-200:] else eurus.SUFFIX  # unless it says how to present the code
    return Problem(question=_asked(record.values, question), task=task, suffix=suffix)


def tests(given: Any) -> dict[str, Any]:
    """Returns {"inputs", "outputs", "fn_name"?} from JSON text or data, in columns or as a list of pairs. Raises
    Dropped."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            raise Dropped("tests_not_json") from None
    if isinstance(given, list):
        pairs = [pair for pair in given if isinstance(pair, Mapping) and {"input", "output"} <= pair.keys()]
        given = {"inputs": [p["input"] for p in pairs], "outputs": [p["output"] for p in pairs]}
    if not isinstance(given, Mapping) or not given.get("inputs") or not given.get("outputs"):
        raise Dropped("no_tests")
    task = {"inputs": list(given["inputs"]), "outputs": list(given["outputs"])}
    return task | ({"fn_name": given["fn_name"]} if given.get("fn_name") else {})


def livecodebench_tests(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the public and the private tests; long private ones are compressed. Raises Dropped."""
    pairs = json.loads(values["public_test_cases"]) + _private_tests(values.get("private_test_cases") or "[]")
    task = tests(pairs)
    if any(pair.get("testtype") == "functional" for pair in pairs):
        task["fn_name"] = json.loads(values.get("metadata") or "{}").get("func_name")
    return task


def _private_tests(text: str) -> list[Any]:
    """Decodes JSON, or JSON pickled as text, zipped and in base 64; LiveCodeBench ships both."""
    try:
        return list(json.loads(text))
    except ValueError:
        pass
    try:
        unpacked = _TextUnpickler(io.BytesIO(zlib.decompress(base64.b64decode(text)))).load()
        return list(json.loads(unpacked))
    except (binascii.Error, zlib.error, pickle.UnpicklingError, ValueError, TypeError, EOFError):
        raise Dropped("private_tests_not_readable") from None


class _TextUnpickler(pickle.Unpickler):
    """Unpickles text only, which needs no class: anything else in a pickle is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is not text")


def _asked(values: Mapping[str, Any], question: str) -> str:
    """Returns the statement with the content of further columns: formats, examples, starter code."""
    parts = [question.strip()]
    for column, head in (
        ("input-specification", "Input"),
        ("output-specification", "Output"),
        ("demo-input", "Example input"),
        ("demo-output", "Example output"),
        ("note", "Note"),
    ):
        value = values.get(column)
        text = "\n".join(map(str, value)) if isinstance(value, list) else value
        if isinstance(text, str) and text.strip():
            parts.append(f"{head}\n{text.strip()}")
    starter = values.get("starter_code")
    if isinstance(starter, str) and starter.strip():
        parts.append(f"Begin with this code:\n```python\n{starter.rstrip()}\n```")
    return "\n\n".join(parts)
