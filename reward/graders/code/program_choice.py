"""Chooses the code block of a response that is its program, from the text alone, before anything runs.

The program is the block that compiles and best matches the form that the task asks for; among equals, the first in the
order of `blocks.by_preference`. Where the task asks for a function, a block that defines it, at the top
level or in `class Solution`, comes before one that assigns its name, and that before one that imports it. Where
programs read standard input, a block that names a way to read it comes before one that only opens files. If no block
matches the form, the first that compiles is chosen, else the first.

So an example call, a sample output or a shell command behind the program does not replace it, and of two complete
programs with the same label the later one counts. A response cannot have two guesses judged: no test runs before the
choice, and the choice does not depend on the tests.

Compiling text written by a policy can take a minute or crash the interpreter. So if there is more than one candidate,
our own program CHOOSER decides, inside the sandbox.
"""

from __future__ import annotations

import json

from reward.graders.code.blocks import Block, by_preference, code_blocks

_MOST_BLOCKS = 50
"""Further blocks of a response are ignored."""
_MOST_OUTPUT = 100

CHOOSER = '''
import symtable


def how_it_defines(text, name):
    """3 if a module or its class Solution defines a name, 2 if it assigns to it, 1 if it imports it, else 0."""
    module = symtable.symtable(text, "solution.py", "exec")
    scopes = [module]
    scopes += [s for s in module.get_children() if s.get_type() == "class" and s.get_name() == "Solution"]
    found = [0]
    for scope in scopes:
        if name in scope.get_identifiers():
            symbol = scope.lookup(name)
            if symbol.is_namespace():
                found.append(3)
            elif symbol.is_imported():
                found.append(1)
            elif symbol.is_assigned():
                found.append(2)
    return max(found)


def names_in(code):
    names = {*code.co_names}
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            names |= names_in(constant)
    return names


def how_it_reads(code):
    """2 if a program names a way to read standard input, 1 if it only opens files, one of which may be it, else 0."""
    names = names_in(code)
    if {"input", "stdin", "__stdin__", "fileinput", "fdopen"} & names:
        return 2
    return int("open" in names)


def __choose__(request):
    """The index of the program among texts in order of preference."""
    texts, name = request
    chosen, most = 0, -1
    for index, text in enumerate(texts):
        try:
            code = compile(text, "solution.py", "exec", dont_inherit=True)
            form = how_it_reads(code) if name is None else how_it_defines(text, name)
        except Exception:
            continue
        if form > most:
            chosen, most = index, form
    return chosen
'''
"""In function form: `__choose__([texts, name or None])`. It compiles the texts and executes nothing."""


def candidates(text: str) -> list[tuple[int, Block]]:
    """Returns the blocks that may be the program, the likeliest first, each with its index in the response from 0."""
    blocks = code_blocks(text)
    return [(index, blocks[index]) for index in by_preference(blocks)[:_MOST_BLOCKS]]


def question(found: list[tuple[int, Block]], fn_name: str | None) -> str:
    """Returns the input for CHOOSER: the blocks, and the function that the task asks for, None if programs read
    standard input."""
    return json.dumps([[block.body for _, block in found], fn_name])


def choice(output: bytes, num_candidates: int) -> int:
    """Returns the index that CHOOSER chose; 0, the preferred block, if it ended without an answer."""
    digits = output[:_MOST_OUTPUT].decode("ascii", "replace")
    index = int(digits) if digits.isdigit() else 0
    return index if index < num_candidates else 0
