"""Corrections of Reasoning Gym's scorers: what they pay for an answer that is wrong, and refuse though it is right.

The library reads the part of an answer that it expects and ignores the rest, compares lists as far as both of them
reach, and rounds. It also refuses right answers for their typography, which `spellings` takes off. There are four kinds
of corrections, each a table by task:

* FORMS: the whole answer has the form that the question asks for. The library takes `\\frac{1}{2} or 7`, `nan`,
  `(1, 2), 7`, `0.5, zzz`, a line "Shape: ..." above a grid, and words or signs between numbers and moves.
* OUTLINES: the answer has as many entries as the library's. The library takes more rows and columns, words, letters and
  partitions, and in knights_knaves any text around the roles, also "It is not true that ...".
* ONLY_SAME: no other answer is right. Neither the case of a word nor the spelling of a number matters, but in EXACT.
* SCORES: an own score, usually by comparing values exactly. Each function says what the library does instead.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from fractions import Fraction
from itertools import chain
from typing import Any

from reasoning_gym.logic.knights_knaves import VALID_ROLES

from reward.graders.grade import is_number
from reward.graders.safe import parse_safely

Entry = Mapping[str, Any]
Score = Callable[[str, Entry], float]
"""An answer and the Reasoning Gym entry that it answers -> the score, from 0 to 1."""


def correct_score(name: str, library: Score, answer: str, entry: Entry) -> float:
    """Returns the library's score of an answer to an entry of the task `name`, corrected. May raise on odd text."""
    oracles = entry["answer"]  # None where a puzzle has many answers
    if oracles is not None and (answer == oracles or (name not in EXACT and _is_same(answer, str(oracles)))):
        return 1.0
    if name in ONLY_SAME or not re.fullmatch(FORMS.get(name, r"(?s:.*)"), answer.strip(), re.ASCII):
        return 0.0
    if name in OUTLINES and OUTLINES[name](answer) != OUTLINES[name](entry["answer"]):
        return 0.0
    return SCORES[name](answer, entry, library) if name in SCORES else library(answer, entry)


# ------------------------------------------------------------------------------------- typography
_AROUND = re.compile(
    r"`{3,}[\w+-]*\n(.+?)`{3,}|(\*{1,3}|_{1,2}|`{1,3}|\${1,2}|[\"'])(.+)\2|[“‘](.+)[”’]|\\\((.+)\\\)|\\\[(.+)\\\]"
    r"|\\(?:boxed|fbox|text\w*|math\w*)\s*\{(.+)\}|<(b|strong|code)>(.+)</\8>"
    r"|(?i:(?:the\s+)?(?:final\s+)?answer(?:\s+is|:))\s*(.+)|(.+)[.。]|(?:[a-z]\s*=|\$)\s*(.+)",
    re.DOTALL,
)
"""What may stand around an answer; the last group that matches is the answer."""
_CHARACTERS = str.maketrans("’‘′“”−–", "'''\"\"--")
_COMMANDS = {
    **{"times": "×", "cdot": "·", "to": "→", "rightarrow": "→", "leftrightarrow": "↔"},
    **{"land": "∧", "wedge": "∧", "lor": "∨", "vee": "∨", "neg": "¬", "lnot": "¬"},
}
_FRACTION = re.compile(r"\\[dDt]?[fF]rac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_SIGNS = {
    "dice": (" ?/ ?", "/"),
    "graph_color": ("'", '"'),
    "prime_factorization": (r"[*·x]", "×"),
    "rubiks_cube": (r"[\s,]+|(?=[A-Z])", " "),
    "tower_of_hanoi": (r"(?m)^[ \t]*(?:\d+[.):]|[-*•])[ \t]+|[.,;]", "\n"),
    "word_ladder": ("→|[-=]>", ","),
}
"""Task -> signs that separate the parts of an answer, and what the library reads instead."""


def spellings(name: str, answer: str) -> list[str]:
    """Returns an answer to the task `name` as it stands and in plain spellings, the plainest first: without what stands
    around it (`**$42$.**` is 42), with signs instead of LaTeX, without blanks behind lines."""
    found = [answer]
    while len(found) < 9 and (match := _AROUND.fullmatch(found[-1])):
        found.append(match[match.lastindex or 0].strip())
    return list(dict.fromkeys(one for text in reversed(found) for one in (_plain(name, text), text)))


def _plain(name: str, text: str) -> str:
    text = _FRACTION.sub(r"\1/\2", text.translate(_CHARACTERS).replace("{,}", ","))
    text = re.sub(r"\\([a-z]+)", lambda command: _COMMANDS.get(command[1], command[0]), text)
    if name in _SIGNS:
        text = re.sub(*_SIGNS[name], text)
    return "\n".join(line.rstrip() for line in text.strip().split("\n"))


# ------------------------------------------------------------------------------------- the whole answer
_PLAIN = r"[+-]?(?!0\d)(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?"
_NUMBER = rf"(?:[+-]?\d{{1,3}}(?:,\d{{3}})+(?:\.\d*)?|{_PLAIN})"
"""A number; commas stand between thousands. Few digits in the exponent, because 1e999999999 takes for ever. Digits
after a zero are a code."""

FORMS = {
    "advanced_geometry": rf"\(?\s*{_PLAIN}\s*,\s*{_PLAIN}\s*\)?|{_PLAIN}\s*°?",
    "arc_agi": r"[\d\s]*",
    "complex_arithmetic": r"[^n]*",
    "fraction_simplification": r"\d+\s*/\s*\d+",
    "kakurasu": r"[01\s\[\],]*",
    "polynomial_equations": rf'(?:""|{_PLAIN}(?:\s*,\s*{_PLAIN})*)?',
    "prime_factorization": r"\d+(?:\s*×\s*\d+)*",
    "quantum_lock": r"[ABCabc](?:\s*(?:,|→|->)?\s*[ABCabc])*",
    "rearc": r"[\d\s]*",
    "rubiks_cube": r"(?:[A-Za-z]'?\d?\s*)*",
    "rush_hour": r"(?:[A-Z][+-]\d+[\s,]*)+",
    "sokoban": r"[LRUD\s]*",
    "survo": r"[\d\s]*",
    "tower_of_hanoi": r"(?:Move disk \d+ from Peg \d+ to Peg \d+\s*)+",
}
"""Task -> the pattern of its answers."""


# ------------------------------------------------------------------------------------- as many entries
def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _shape(value: Any) -> Any:
    """Returns JSON data with None for each number: equal for data that differ in numbers only."""
    if isinstance(value, list):
        return [_shape(item) for item in value]
    if isinstance(value, dict):
        return {key: _shape(item) for key, item in value.items()}
    return None if is_number(value) else value


def _names_and_roles(text: str) -> tuple[list[str], int]:
    words = [
        word for word in re.split(r"[\s.,()]+", text.lower()) if word not in ("", "is", "a", "an", "and")
    ]
    names = [word for word in words if word not in VALID_ROLES]
    return sorted(names), len(words) - len(names)


OUTLINES: dict[str, Callable[[str], Any]] = {
    "cryptarithm": lambda text: text.count(","),
    "figlet_font": lambda text: len(text.replace(" ", "")),
    "game_of_life": lambda text: _shape(_json(text)),
    "knights_knaves": _names_and_roles,
    "palindrome_partitioning": lambda text: len(rows) if isinstance(rows := _json(text), list) else 0,
    "word_sorting": lambda text: text.count(","),
}
"""Task -> what a right answer has in common with the library's, of which it may differ otherwise."""


# ------------------------------------------------------------------------------------- the same answer
EXACT = frozenset({"base_conversion", "codeio"})
"""Tasks whose answers are digits, of which e may be one, or data."""
ONLY_SAME = frozenset({"chain_sum", "game_of_life_halting", "gsm_symbolic", "number_format", "products"})
"""Tasks in which the library takes more than the same answer: the first digits (9 in `-9`, `9/7`, `9 million`), commas
anywhere (`1,2`), what is 0.01 off, and any text in game_of_life_halting, because `bool("False")` is true."""


def _is_same(answer: str, oracles: str) -> bool:
    if (answer.istitle() or oracles.istitle()) and answer.lower() == oracles.lower():
        return True  # a word: not a string of letters, not a sentence
    return (number := _value(answer)) is not None and number == _value(oracles)


# ------------------------------------------------------------------------------------- own scores
def _value(text: str) -> Fraction | None:
    """Returns the number that a text consists of, or None."""
    text = text.strip()
    return Fraction(text.replace(",", "")) if re.fullmatch(_NUMBER, text, re.ASCII) else None


def _sorted_numbers(answer: str, entry: Entry, library: Score) -> float:
    """The library takes numbers that are 1 off, and `nan`s."""
    numbers = _json(answer.replace("'", '"'))
    if not isinstance(numbers, list):
        return 0.0
    return float([_value(str(n)) for n in numbers] == [_value(n) for n in ast.literal_eval(entry["answer"])])


def _decimal(answer: str, entry: Entry, library: Score) -> float:
    """The library takes what is up to 0.001 off, whatever the question. Here as many significant digits count as it
    asks for (12), less the two in which the library's own answer errs, because it rounds after each operation."""
    ours, asked = _value(answer), re.search(r"maximum of (\d+) significant", entry.get("question") or "")
    oracles = Fraction(entry["answer"])
    num_digits = int(asked[1]) - 2 if asked else 10
    return float(
        ours is not None and abs(ours - oracles) <= abs(oracles) * Fraction(1, 10 ** (num_digits - 1))
    )


def _probability(answer: str, entry: Entry, library: Score) -> float:
    """The library takes `0`, because every probability begins with it."""
    ours, oracles = (float(Fraction(text.replace(",", ""))) for text in (answer, entry["answer"]))
    return float(abs(ours - oracles) <= 1e-4)


def _makes_24(answer: str, entry: Entry, library: Score) -> float:
    """The library takes any four numbers from 1 to 10, so `4*6*1*1` solves every puzzle, and cuts 24.5 to 24."""
    numbers = sorted(map(int, re.findall(r"\d+", answer)))
    return float(numbers == sorted(entry["metadata"]["numbers"]) and bool(parse_safely(answer) == 24))


def _reaches_target(answer: str, entry: Entry, library: Score) -> float:
    """The library takes what is 0.001 % off the target."""
    score = library(answer, entry)
    return score if score < 1 or parse_safely(answer) == entry["metadata"]["target"] else 0.05


def _words_at_their_places(answer: str, entry: Entry, library: Score) -> float:
    """The library takes words behind the last one; whether it pays them in full depends on the rounding of a sum."""
    ours, oracles = answer.lower().split(), entry["answer"].lower().split()
    if len(ours) != len(oracles):
        return 0.0
    return sum(a == b for a, b in zip(ours, oracles, strict=True)) / len(oracles)


def _letters_at_their_places(answer: str, entry: Entry, library: Score) -> float:
    """The library means 0.8 for the right word with letters behind it; by rounding a sum it pays 0, 0.8 or 1."""
    ours, oracles = answer.lower(), entry["answer"].lower()
    share = sum(a == b for a, b in zip(ours, oracles, strict=False)) / len(oracles)
    return 0.8 if share == 1 and ours != oracles else share


def _figlet_letters(answer: str, entry: Entry, library: Score) -> float:
    """The library pays 0.1 per letter, which is 1 for ten letters of a longer word."""
    score = library(answer, entry)
    return score if answer.replace(" ", "").lower() == entry["answer"].lower() else min(score, 0.9)


def _pooled(answer: str, entry: Entry, library: Score) -> float:
    """The library takes numbers that are 1 % off, comments (numpy.loadtxt) and a column for a row."""
    ours = [[_value(cell) for cell in line.split()] for line in answer.splitlines() if line.strip()]
    oracles = entry["metadata"]["solution"]
    if [len(row) for row in ours] != [len(row) for row in oracles] or any(None in row for row in ours):
        return 0.0
    pairs = zip(chain(*ours), chain(*oracles), strict=True)
    is_close = all(abs(a - Fraction(b)) <= 0.005 + 1e-9 for a, b in pairs if a is not None)
    return 1.0 if is_close else 0.1  # two decimals are asked for


def _same_json(answer: str, entry: Entry, library: Score) -> float:
    """The library takes 1 for true, because Python does, and pays by length of text: 0.99 for one wrong digit."""
    return float(library(answer, entry) == 1 and _shape(_json(answer)) == _shape(_json(entry["answer"])))


def _colours_all(answer: str, entry: Entry, library: Score) -> float:
    """The library takes colours of vertices that do not exist, and `true` for colour 1."""
    colours, vertices = _json(answer), entry["metadata"]["puzzle"]["vertices"]
    is_complete = isinstance(colours, dict) and set(colours) == set(map(str, vertices))
    return library(answer, entry) if is_complete and all(map(is_number, colours.values())) else 0.0


_DURATION = re.compile(
    r"(?P<only>\d+)(?: days?)?"
    r"|(?:(?P<days>\d+) days?,\s*)?(?P<h>\d{1,2}):(?P<m>[0-5]\d)(?::(?P<s>[0-5]\d)(?:\.(?P<ms>\d{3}))?)?",
    re.ASCII,
)


def _duration(text: str) -> timedelta | None:
    """Returns a duration as the questions ask for it: `5 days`, `03:47`, `03:47:10.250`, `5 days, 03:47`."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        return None
    days, h, m, s, ms = (int(match[name] or 0) for name in ("days", "h", "m", "s", "ms"))
    return timedelta(days=days + int(match["only"] or 0), hours=h, minutes=m, seconds=s, milliseconds=ms)


def _elapsed(answer: str, entry: Entry, library: Score) -> float:
    """The library reads .0840 as .840 and -00:32 as 00:32, ignores what stands behind `5 days` or a third colon, does
    not know `1 day`, and cuts a millisecond off 43 % of its answers with milliseconds: 0.869 becomes 0.868."""
    ours = _duration(answer)
    if ours is None:
        return 0.0
    start, end = (datetime.fromisoformat(entry["metadata"][f"{which}_time"]) for which in ("start", "end"))
    return 1.0 if ours in (_duration(entry["answer"]), end - start) else library(answer, entry)


SCORES: dict[str, Callable[[str, Entry, Score], float]] = {
    "codeio": _same_json,
    "coin_flip": _probability,
    "countdown": _reaches_target,
    "decimal_arithmetic": _decimal,
    "figlet_font": _figlet_letters,
    "graph_color": _colours_all,
    "letter_jumble": _words_at_their_places,
    "number_sorting": _sorted_numbers,
    "pool_matrix": _pooled,
    "puzzle24": _makes_24,
    "spell_backward": _letters_at_their_places,
    "time_intervals": _elapsed,
}
"""Task -> its own score; the third argument is the library's."""
