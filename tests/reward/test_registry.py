"""Tests that the table of domains is complete."""

from reward.graders.registry import BUILT_IN
from reward.known_answers import KNOWN_ANSWERS
from reward.protocol import DOMAINS


def test_every_domain_is_in_every_table() -> None:
    assert tuple(BUILT_IN) == DOMAINS
    assert set(KNOWN_ANSWERS) == set(DOMAINS)


def test_every_domain_has_a_right_and_a_wrong_known_answer() -> None:
    for name in DOMAINS:
        assert {known.score for known in KNOWN_ANSWERS[name]} == {0.0, 1.0}, name
