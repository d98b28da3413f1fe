"""HumanEval and HumanEval+: a function to complete, and a test program with `check(candidate)`."""

from __future__ import annotations

import re

from nemo_prorl.data.building.source import Dropped, Problem, Record
from nemo_prorl.data.sources import eurus
from nemo_prorl.evaluation.benchmark import missing_column

NUMPY = '''
class np:
    """What HumanEval+'s tests want of numpy, for numbers and lists of numbers."""

    ndarray = float64 = float32 = ()

    @staticmethod
    def allclose(out, exp, rtol=1e-05, atol=1e-08):
        if isinstance(exp, (list, tuple)):
            return len(out) == len(exp) and all(np.allclose(o, e, rtol, atol) for o, e in zip(out, exp))
        return abs(out - exp) <= atol + rtol * abs(exp)
'''
"""Replaces numpy, which the sandbox does not have."""
_IMPORT = re.compile(r"^import numpy as np[ \t]*$", re.MULTILINE)


def convert(record: Record) -> Problem:
    """Turns a record into a problem. The tests run apart from the submission (reward/graders/code/check_program.py).
    Raises Dropped, and ConfigError for a file of another schema."""
    columns = ("prompt", "entry_point", "test")
    for column in columns:
        if column not in record.values:
            raise missing_column(record, f"column {column}")
    prompt, entry_point, test = (record.values[column] for column in columns)
    if not (isinstance(prompt, str) and isinstance(entry_point, str) and isinstance(test, str)):
        raise Dropped("not_text")
    if "def check(" not in test:
        raise Dropped("no_check")
    solution = record.values.get("canonical_solution")
    return Problem(
        question=f"Complete this Python function:\n```python\n{prompt.rstrip()}\n```",
        suffix=eurus.SUFFIX,
        task={
            "preamble": f"{prompt}    pass\n",
            "test_program": _IMPORT.sub(lambda _: NUMPY, test),
            "entry_point": entry_point,
        },
        gold=f"```python\n{prompt}{solution}\n```" if isinstance(solution, str) else None,
    )
