"""Tests that no box is right for two different answers, whatever it shows or hides beside the first one."""

import itertools
import random

import pytest

from reward.graders import grade
from tests.reward.graders.math.two_guesses import IN_PARTS, PAIRS, UNCERTAIN_PARTS, filled, forms

FORMS = list(dict.fromkeys(forms()))
NUM_NOTATIONS = 92
"""How many of FORMS, at its beginning, are notations."""


def score(gold: str, answer: str, domain: str = "math") -> float:
    return grade(domain, f"\\boxed{{{answer}}}", {"answer": gold}).score


def right_for_both(form: str, pairs: tuple[tuple[str, str], ...], domain: str = "math") -> list[str]:
    """Returns the boxes of this form that are right for both values of a pair."""
    boxes = [(filled(form, *pair), pair) for pair in pairs]
    return [box for box, pair in boxes if all(score(gold, box, domain) == 1 for gold in pair)]


@pytest.mark.medium
def test_the_pairs_are_pairs_of_different_answers() -> None:
    for first, second in PAIRS:
        assert score(first, first) == score(second, second) == 1
        assert score(first, second) == score(second, first) == 0


@pytest.mark.medium
@pytest.mark.parametrize("domain", ["math", "stem"])
def test_no_form_is_right_for_two_answers(domain: str) -> None:
    draw = random.Random(domain)
    for form in draw.sample(FORMS, 200):
        assert right_for_both(form, (draw.choice(PAIRS),), domain) == []


@pytest.mark.medium
def test_no_notation_is_right_for_two_answers() -> None:
    draw = random.Random(1)
    for form in FORMS[:NUM_NOTATIONS]:
        assert right_for_both(form, tuple(draw.sample(PAIRS, 2))) == []


@pytest.mark.medium
@pytest.mark.parametrize(("answer", "gold"), IN_PARTS)
def test_no_part_of_an_answer_is_right_for_two_golds(answer: str, gold: str) -> None:
    for part, first, second in UNCERTAIN_PARTS:
        box = answer.replace("P", part)
        assert score(gold.replace("P", first), box) + score(gold.replace("P", second), box) <= 1, box


@pytest.mark.slow
def test_no_notation_is_right_for_two_answers_of_any_pair() -> None:
    for form in FORMS[:NUM_NOTATIONS]:
        assert right_for_both(form, PAIRS) == []


@pytest.mark.slow
def test_none_of_several_thousand_forms_is_right_for_two_answers() -> None:
    """Each form meets five pairs, and the next one the five after those, so that a separator or a hiding place, which
    neighbours among the forms have in common, meets nearly all."""
    pairs = itertools.cycle(PAIRS)
    for index in sorted(random.Random(0).sample(range(NUM_NOTATIONS, len(FORMS)), 3_000)):
        assert right_for_both(FORMS[index], tuple(itertools.islice(pairs, 5))) == []
