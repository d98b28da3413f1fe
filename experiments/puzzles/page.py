"""Writes README.md beside this file from reward/data/puzzle_constants.json."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "reward" / "data" / "puzzle_constants.json"
PAGE = Path(__file__).with_name("README.md")
_MAX_CHARACTERS = 28
"""Longest constant that is shown in full."""

_HEAD = """# Rewards of puzzles in training

Many verifiers of Reasoning Gym give credit for a part of the answer, for a number near it, or for the right form. A
policy can earn that without reading the question. For each of the paper's 96 tasks, this page shows what the best such
answer earns by the library's score, how training rewards the task instead, and what such an answer still earns.

The task's `"credit"` selects the score ([graders.md](../../docs/graders.md)): `"training"`, the default of the service, gives the
rewards of this table; `"corrected"` gives the library's score with our corrections of its scorers, and `"library"` the
library's own score. Training rows have the default. Held-out rows of `data build reasoning_gym` and all benchmarks of
`evaluate` have `"corrected"`, because the papers report the mean of the library's scores.

**How training rewards a score.** Every task has a floor. Scores up to the floor become 0, and the rest is rescaled:
`max(0,(score-floor)/(1-floor))`. With a floor of 1, only right answers earn a reward. {num_rescaled} tasks keep partial
credit above a floor; the other {num_exact} reward right answers only, either because partial credit cannot be told
from a guess, or because the library gives hardly any for answers that are nearly right. Credit for a well-formed
wrong answer (0.01 to 0.1 in the library) is 0 everywhere. Tasks that are not in the table reward right answers only.

**What was measured.** {library}, default configurations, {candidates} entries from which candidates were drawn,
{choice} on which the best were chosen, {measure} others on which these were measured (fewer if they are slow to make or
to grade: {few}). Candidates are constants (generic ones, gold answers of other entries, the most common symbol at each
place of these, mutations of the best), answers that adopt the form of the question or copy parts of it (a grid filled
with one symbol, the input, the clues of a sudoku with each blank filled by a number that its row lacks, everybody a
knave), and the best constant for each form of question. The search was run twice: by the library's score, and then by
the reward in training. Constants were mutated in 6 rounds, and in 40 for most of the tasks that keep partial credit;
the longer search found nothing better (`"rounds"` in the data).

- *constant*: mean library score of the best constant, and the share of entries on which it is right.
- *shaped*: the same for the best of all answers, if that is not a constant.
- *left*: the largest mean reward in training that the second search found, and the share of entries on which that
  answer is right. No grader can change the latter: it is the rate at which a guess is right.
- *near*: mean reward in training of an answer that is nearly right (a wrong letter, two words swapped, a detour).

`constants.py` searches, and writes the data and this page.

| task | floor | constant: score (right) | shaped: score (right) | left: reward (right) | near |
|---|---|---|---|---|---|
"""

_FOOT = """
Where *left* is high, the puzzle itself is easy to guess: there are only two possible answers (`circuit_logic`,
`syllogism`), one of them is frequent (`mahjong_puzzle`), or the input is often the answer (`string_insertion`: in 97 %
of entries nothing is inserted). In `propositional_logic` a premise copied from the question is nearly always right,
because every statement that follows from the premises is. The library's own example answer follows from a single
premise in 246 of 300 entries, so a stricter rule would reject it. `string_insertion` and `propositional_logic` would
teach a policy to copy, and no reward can prevent that: `data build reasoning_gym` makes validation rows of them, but no
training rows.
"""


def page() -> str:
    """Returns the page's text."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    tasks: Mapping[str, Any] = data["tasks"]
    num_exact = sum(one["floor"] == 1 for one in tasks.values())
    head = _HEAD.format(
        num_exact=num_exact,
        num_rescaled=len(tasks) - num_exact,
        library=data["library"],
        few=", ".join(
            f"{one['entries']} for `{task}`"
            for task, one in tasks.items()
            if one["entries"] < data["entries"]["measure"]
        ),
        **data["entries"],
    )
    return _folded(head) + "\n".join(_rows(tasks)) + "\n\n" + _folded(_FOOT.strip()) + "\n"


def _folded(text: str) -> str:
    """Wraps paragraphs at 120 columns, but not lists, headings and the table's head."""
    paragraphs = [
        part if part.startswith(("-", "#", "|")) else textwrap.fill(part, 120, break_on_hyphens=False)
        for part in text.split("\n\n")
    ]
    return "\n\n".join(paragraphs)


def _rows(tasks: Mapping[str, Any]) -> Iterator[str]:
    for task, one in tasks.items():
        library = one["library"]
        left = max(one["training"].values(), key=lambda measured: measured["mean"])
        floor = "right only" if one["floor"] == 1 else f"{one['floor']:g}"
        constant = f"{_text(library['constant'])} {_numbers(library['constant'])}"
        is_shaped = library["any"]["mean"] > library["constant"]["mean"]
        shaped = f"{library['any']['name']} {_numbers(library['any'])}" if is_shaped else ""
        near = f"{one['near']:.2f}" if one["floor"] < 1 else ""
        yield f"| {task} | {floor} | {constant} | {shaped} | {_numbers(left)} | {near} |".replace("  ", " ")


def _numbers(measured: Mapping[str, Any]) -> str:
    return f"{measured['mean']:.3f} ({measured['right']:.3f})"


def _text(measured: Mapping[str, Any]) -> str:
    """Returns a constant, shortened to fit into a cell."""
    text = " ".join(measured["answers"][""].split()).replace("|", "\\|").replace("`", "'")
    return f"`{text[:_MAX_CHARACTERS]}{' ...' if len(text) > _MAX_CHARACTERS else ''}`" if text else "(empty)"


def write_page() -> None:
    """Writes the page beside this file."""
    PAGE.write_text(page(), encoding="utf-8")
