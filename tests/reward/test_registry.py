"""Tests that the table of domains is complete."""

from reward.canaries import CANARIES
from reward.graders.registry import BUILT_IN
from reward.protocol import DOMAINS


def test_every_domain_is_in_every_table() -> None:
    assert tuple(BUILT_IN) == DOMAINS
    assert set(CANARIES) == set(DOMAINS)


def test_every_domain_has_a_right_and_a_wrong_canary() -> None:
    for name in DOMAINS:
        assert {canary.score for canary in CANARIES[name]} == {0.0, 1.0}, name
