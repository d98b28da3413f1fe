"""Tests the reward service on outputs that others recorded and graded, through HTTP and mixed over the domains."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from experiments.grading.outputs import MissingData, Outcome, all_cases, grade_all, plain_value
from reward.client import RewardClient
from tests.reward.serving import Server

EVERY = 6
"""Grades one case in six, which is enough to notice that a grader has changed; experiments/grading grades all."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_000)]


Graded = Mapping[str, list[Outcome]]


@pytest.fixture(scope="module")
def graded(real_data: Path) -> Graded:
    """Returns the outcomes by part. None is lost."""
    cases = all_cases(real_data)[::EVERY]
    server = Server()
    try:
        with RewardClient(urls=[server.url]) as client:
            client.wait_until_ready(300)
            outcomes = grade_all(client, cases, in_flight=2 * (os.cpu_count() or 2))
            assert client.num_missing == 0
    finally:
        server.stop()
    assert [outcome.case for outcome in outcomes] == cases
    parts = defaultdict(list)
    for outcome in outcomes:
        parts[outcome.case.part].append(outcome)
    return parts


def deviations(outcomes: list[Outcome]) -> list[tuple[str, object, object]]:
    return [(o.case.name, o.case.expected, o.got) for o in outcomes if not o.agrees]


@pytest.mark.parametrize("mode", ["strict", "loose"])
def test_instruction_verdicts_are_those_of_the_official_evaluator(mode: str, graded: Graded) -> None:
    pairs = []
    for outcome in graded[f"ifeval_{mode}"]:
        assert isinstance(outcome.got, tuple)
        assert isinstance(outcome.case.expected, tuple)
        pairs += zip(outcome.got, outcome.case.expected, strict=True)
    assert sum(got is want for got, want in pairs) >= 0.995 * len(pairs), deviations(graded[f"ifeval_{mode}"])


@pytest.mark.parametrize(
    ("parts", "share"),
    [
        (("math", "stem"), 0.99),
        (("golds",), 0.999),
        (("references",), 1.0),
        (("altered",), 0.98),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else "",
)
def test_scores_are_those_that_others_gave(parts: tuple[str, ...], share: float, graded: Graded) -> None:
    outcomes = [outcome for part in parts for outcome in graded[part]]
    assert sum(outcome.agrees for outcome in outcomes) >= share * len(outcomes) > 0, deviations(outcomes)
    assert all(outcome.agrees or outcome.case.reason for outcome in outcomes), deviations(outcomes)


def test_of_random_pairs_of_answers_only_those_of_equal_value_are_equal(graded: Graded) -> None:
    for outcome in graded["pairs"]:
        answer, gold = (str(outcome.result.details[key]) for key in ("extracted", "gold"))
        assert outcome.agrees or plain_value(answer) == plain_value(gold), (answer, gold)


def test_a_folder_that_lacks_a_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="there is no folder"):
        all_cases(tmp_path / "nowhere")
    with pytest.raises(MissingData, match="lacks ifeval_outputs"):
        all_cases(tmp_path)
