"""Deals out answers of every kind, with forms that are equal to them and neighbours that are not."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.reward.graders.math import (
    exact,
    expressions,
    mixtures,
    numbers,
    quantities,
    relations,
    several,
    wordings,
)
from tests.reward.graders.math.answers import KINDS, Answer, forms
from tests.reward.graders.math.typography import dress

MODULES = (numbers, quantities, exact, several, expressions, relations, wordings, mixtures)
"""The modules whose functions KINDS holds, once they are imported."""


ONE_WAY = {
    "binomials": "a number stands for a binomial coefficient, but who is asked for the number has to work it out",
    "factorials": "as for binomial coefficients",
    "chains": "a chain shows the way to the value, which a gold does not",
    "options": "an answer may have its option's text behind the letter",
    "integers": "an answer may repeat itself in another form (`or`), and have a name of its own",
    "approximations": "a gold is exact, or has the digits that it has",
    "lists": "`or` in a gold may stand between forms of one value",
    "plus_or_minus": "as for lists",
}
"""Kinds with forms that are right as answers and no golds, and why."""


HEDGES = forms(
    r"G, V | V, G | G \text{ or } V | V \text{ or } G | G; V | G \Rightarrow V | G \text{ and } V | G \quad V"
)
"""Boxes with two values, of which G is right."""
HEDGED = frozenset(
    forms(
        "integers | fractions | mixed_numbers | scientific | currencies | derived_units | temperatures | "
        "angles | counted | number_words | surds | sums_of_surds | powers | factorials | binomials | "
        "logarithms | complex_numbers | polar | repeating_decimals | base_numerals | tuples | matrices | "
        "vectors | products | polynomials | factored | rational_functions | functions | words | options | "
        "yes_or_no | letter_lists | formulas | figures | clocks | dates | lines | curves | ratios"
    )
)
"""Kinds with one value, so that a second one makes any box wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """An answer to a gold and whether it is right; `why`: how it was made."""

    kind: str
    gold: str
    answer: str
    wanted: bool
    why: str


# ------------------------------------------------------------------------------------- pairs
def pairs(number: int, seed: int) -> Iterator[Pair]:
    """Yields pairs of all kinds in turn: about half are right."""
    draw, seen, left = random.Random(seed), [], number
    while True:
        for maker in KINDS.values():
            answer = maker(draw)
            for pair in _pairs_of(answer, draw, seen):
                yield pair
                left -= 1
                if not left:
                    return
            seen = [*seen[-150:], answer]


def answers(name: str, seed: int) -> Iterator[Answer]:
    """Yields answers of one kind, without end."""
    draw = random.Random(seed)
    while True:
        yield KINDS[name](draw)


def _pairs_of(answer: Answer, draw: random.Random, others: list[Answer]) -> Iterator[Pair]:
    def pair(given: str, gold: str, wanted: bool, why: str) -> Pair:
        dressed = dress(given, draw) if draw.random() < 0.5 else given
        return Pair(kind=answer.kind, gold=gold, answer=dressed, wanted=wanted, why=why)

    yield pair(answer.gold, answer.gold, True, "itself")
    for form in some(answer.equal, 3, draw):
        yield pair(form, answer.gold, True, "equal form")
    for form in some(answer.equal, 1, draw):
        yield pair(answer.gold, form, True, "equal form as gold")
    for form in some(answer.right, 1, draw):
        yield pair(form, answer.gold, True, "one way")
    for form in some(answer.different, 3, draw):
        yield pair(form, answer.gold, False, "neighbour")
    for form in some(answer.different, 1, draw):
        yield pair(answer.gold, form, False, "neighbour as gold")
    for form in some(answer.wrong, 1, draw):
        yield pair(form, answer.gold, False, "no answer")
    if answer.kind in HEDGED and answer.different:
        second, hedge = draw.choice(answer.different), draw.choice(HEDGES)
        if answer.kind == "options":  # an option may have its text behind it
            hedge = hedge.replace("\\quad", "\\text{ or }")
        both = hedge.replace("G", "\0").replace("V", second).replace("\0", answer.gold)
        yield pair(both, answer.gold, False, "two values")
    near = [other for other in others if other.kind == answer.kind]
    for group in (near, others):
        for other in some(group, 2, draw):
            if not answer.agrees(other) and other.gold != answer.gold:
                given = draw.choice([other.gold, *other.equal])
                yield pair(given, answer.gold, False, f"right for {other.gold} ({other.kind})")


def some(items: Sequence[Any], number: int, draw: random.Random) -> list[Any]:
    """Returns up to so many of the items, in a random order."""
    return draw.sample(items, min(number, len(items)))
