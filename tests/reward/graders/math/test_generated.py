"""Tests that answers which are equal by how they were made are right, and their neighbours wrong."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.reward.graders.math.answers import KINDS
from tests.reward.graders.math.generator import ONE_WAY, answers, pairs
from tests.reward.graders.math.right import graded

FEW, MANY, CHUNKS = 2_000, 100_000, 50


def check(number: int, seed: int) -> None:
    """Grades so many pairs, and says which verdicts are not as wanted."""
    bad, kinds = [], set()
    for pair in pairs(number, seed):
        found = graded(pair.answer, pair.gold)
        if (found.score == 1) != pair.wanted:
            kinds.add(pair.kind)
            wanted = "right" if pair.wanted else "wrong"
            bad.append(
                f"{pair.kind}: {pair.answer!r} for {pair.gold!r} must be {wanted} ({pair.why}), but is "
                f"{found.verdict}: {found.details}"
            )
    assert not bad, f"{len(bad)} of {number} pairs, in {sorted(kinds)}:\n" + "\n".join(bad[:100])


@pytest.mark.medium
def test_generated_answers() -> None:
    check(FEW, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_many_generated_answers(chunk: int) -> None:
    check(MANY // CHUNKS, seed=1 + chunk)


def test_the_same_seed_deals_the_same_pairs() -> None:
    assert list(pairs(500, seed=3)) == list(pairs(500, seed=3)) != list(pairs(500, seed=4))


@pytest.mark.medium
@pytest.mark.parametrize("name", KINDS)
def test_a_kind_contradicts_nothing(name: str) -> None:
    """No form is both equal and different, and no gold has two values."""
    values: dict[str, object] = {}
    for answer in islice(answers(name, seed=5), 100):
        equal, different = {*answer.equal, *answer.right}, {*answer.different, *answer.wrong}
        assert not equal & different, answer
        assert all(
            form.strip() and "{}" not in form.replace("\\{\\}", "").replace("{}^", "")
            for form in equal | different
        )
        assert values.setdefault(answer.gold, answer.value) == answer.value
        assert answer.equal or answer.right or answer.wrong
        assert not answer.right or name in ONE_WAY


def test_one_way_names_kinds() -> None:
    assert set(ONE_WAY) <= set(KINDS)
