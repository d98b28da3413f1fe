"""The LaTeX commands that an answer may contain, each with its arguments and what it shows, from data/commands.json.

A command that is not listed makes a box unreadable (see `page`). Add a command only if the page shows all of its
arguments.
"""

from __future__ import annotations

import json
from importlib.resources import files

_TABLES = json.loads(files("reward").joinpath("data/commands.json").read_text(encoding="utf-8"))


def names(words: str) -> frozenset[str]:
    """Returns the words of a text."""
    return frozenset(words.split())


def _named(table: str) -> frozenset[str]:
    """Returns the commands of a table, which has several lines of them."""
    return names(" ".join(_TABLES[table]))


SPACES = _named("spaces") | {" ", "\n", "\t"}
WIDE_SPACES = _named("wide_spaces")
"""Spaces between two statements; between two equations they mean a comma."""
APPEARANCE = _named("appearance")
"""Commands without an argument that change how the rest looks, and the delimiters of mathematics."""
CURRENCIES: dict[str, str] = _TABLES["currencies"]
CURRENCY_SIGNS = "€£¥₹"
ORDINALS = names("st nd rd th")
WRAPPERS = _named("wrappers")
"""Commands whose one argument is shown as it is."""
TEXTS = _named("texts")
"""Commands whose one argument is text."""
SYNONYMS: dict[str, str] = _TABLES["synonyms"]
"""Other names of a command."""
STAND_FOR: dict[str, str] = _TABLES["stand_for"]
"""Commands that are another way to type these signs."""
LETTERS = _named("letters")
FUNCTIONS = _named("functions")
"""Function names: a number behind one is its argument."""
SIGNS, RELATIONS = _named("signs"), _named("relations")
RELATION_SIGNS: dict[str, str] = _TABLES["meaning_of_relations"]
"""What relations mean, in one sign."""
TYPED_FUNCTIONS: list[str] = " ".join(_TABLES["typed_functions"]).split()
"""Functions that may stand without a backslash, before the shorter ones that they begin with."""
PLAIN: dict[str, str] = _TABLES["plain"]
"""What commands are in plain text."""
OPENING, CLOSING = _named("opening"), _named("closing")
ACCENTS = _named("accents")
"""Marks over letters. One verifier would ignore them over numbers."""
ALPHABETS, MATRICES = _named("alphabets"), _named("matrices")
LINES = _named("lines")
"""Environments that stack statements: read as a list."""
