"""Which of a response's code blocks is its program. One block is chosen, from the text alone and before anything runs.

The program is the first block, in the order of `reward.code_blocks.by_preference`, that compiles and has the form that
the task asks for: it defines the function, at the top level or in `class Solution`; or, where programs read standard
input, it names a way to read it. If no block has the form, it is the first that compiles, else the first.

So an example call, a sample of the output, or a shell command behind the program does not replace it; of two complete
programs with the same label the later one counts. A response cannot have two guesses judged: no test is run before the
choice, and the choice does not depend on the tests.

To compile text written by a policy can take a minute or crash the interpreter. Where there is a choice it is therefore
made by a program of ours, CHOOSER, in the sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from reward.code_blocks import Block, by_preference, code_blocks
from reward.graders.code_tests import Tests

_MOST_BLOCKS = 50
"""A response with more has the others ignored."""
_MOST_OUTPUT = 100

CHOOSER = '''
import symtable


def defines(text, name):
    """Whether a module defines a name, or its class Solution does."""
    module = symtable.symtable(text, "solution.py", "exec")
    scopes = [module]
    scopes += [s for s in module.get_children() if s.get_type() == "class" and s.get_name() == "Solution"]
    for scope in scopes:
        if name in scope.get_identifiers():
            symbol = scope.lookup(name)
            if symbol.is_assigned() or symbol.is_imported():
                return True
    return False


def reads_input(code):
    if {"input", "stdin", "__stdin__", "open", "fileinput", "fdopen"} & {*code.co_names}:
        return True
    return any(reads_input(constant) for constant in code.co_consts if hasattr(constant, "co_names"))


def __choose__(request):
    """The index of the program among texts in order of preference."""
    texts, name = request
    first = None
    for index, text in enumerate(texts):
        try:
            code = compile(text, "solution.py", "exec", dont_inherit=True)
            if reads_input(code) if name is None else defines(text, name):
                return index
        except Exception:
            continue
        if first is None:
            first = index
    return first or 0
'''
"""Function form, `__choose__([texts, name or None])`. It compiles, and executes nothing."""


def candidates(text: str) -> list[tuple[int, Block]]:
    """The blocks that may be the program, the likeliest first, each with its place in the response from 0."""
    blocks = code_blocks(text)
    return [(index, blocks[index]) for index in by_preference(blocks)[:_MOST_BLOCKS]]


def name_asked_for(task: Mapping[str, Any]) -> str | None:
    """The function that a task wants defined; None if its programs read standard input."""
    name: str | None = task["entry_point"] if "test_program" in task else task.get("fn_name")
    return name


def question(found: list[tuple[int, Block]], task: Mapping[str, Any]) -> Tests:
    """What to run CHOOSER on."""
    request = [[block.body for _, block in found], name_asked_for(task)]
    return Tests(inputs=(json.dumps(request),), expected=(None,), fn_name="__choose__")


def choice(output: bytes, num_candidates: int) -> int:
    """What CHOOSER said; 0, the block liked best, if it ended without a word."""
    digits = output[:_MOST_OUTPUT].decode("ascii", "replace")
    index = int(digits) if digits.isdigit() else 0
    return index if index < num_candidates else 0
