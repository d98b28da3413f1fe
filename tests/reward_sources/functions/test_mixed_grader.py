"""Tests of several user functions with and without the reward service: one reward, with named parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.config import RewardConfig
from nemo_prorl.reward_sources.functions.check import digest
from nemo_prorl.reward_sources.functions.grader import (
    FunctionGrader,
    MixedGrader,
    RewardFunctionFailing,
    ungraded,
)
from nemo_prorl.types import PARTS, Prompt
from reward.protocol import GradeStatus, ScoreRequest, ScoreResult
from tests.reward_sources.functions.asking import a_prompt, grade, reason, scores


class Service:
    """A stand-in for the reward service; the test lists the right answers."""

    version = "1"

    def __init__(self, verdicts: Mapping[str, float | None]) -> None:
        self.verdicts = verdicts
        self.asked: list[str] = []

    def submit(self, request: ScoreRequest, prompt: Prompt) -> Future[ScoreResult]:
        self.asked.append(request.response)
        future: Future[ScoreResult] = Future()
        score = self.verdicts[request.response]
        if score is None:
            future.set_result(ungraded(request.request_id, "the service is on fire"))
        else:
            future.set_result(
                ScoreResult(
                    request_id=request.request_id,
                    status=GradeStatus.graded,
                    score=score,
                    verdict="correct",
                    details={"extracted": "4"},
                )
            )
        return future

    def grades(self, domain: str) -> bool:
        return domain == "math"

    def check(self) -> None: ...


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[Callable[..., MixedGrader]]:
    opened: list[FunctionGrader] = []

    def make(weights: Mapping[str, float], service: Service | None = None, **options: Any) -> MixedGrader:
        file = tmp_path / "parts.py"
        file.write_text(
            "def size(responses):\n    return [float(len(r)) for r in responses]\n"
            "def picky(responses):\n    return [None if r == 'none' else -1.0 for r in responses]\n"
        )
        config = RewardConfig(function=[f"{file}:size", f"{file}:picky"], weights=dict(weights))
        functions = [
            FunctionGrader(text, config, tmp_path / "log.txt", digest(text)) for text in config.function
        ]
        opened.extend(functions)
        return MixedGrader(functions, service, config, **options)

    yield make
    for grader in opened:
        grader.close()


def test_the_reward_is_the_weighted_sum_and_its_parts_have_names(mixed: Any) -> None:
    service = Service({"a": 1.0, "bb": 0.0})
    results = grade(mixed({"size": 0.5, "service": 10.0}, service), ["a", "bb"])
    assert scores(results) == [0.5 - 1 + 10, 1 - 1 + 0]
    assert [result.details[PARTS] for result in results] == [
        {"size": 1.0, "picky": -1.0, "service": 1.0},
        {"size": 2.0, "picky": -1.0, "service": 0.0},
    ]
    assert results[0].verdict == "correct"
    assert results[0].details["extracted"] == "4"


def test_what_one_part_does_not_grade_is_not_graded(mixed: Any) -> None:
    service = Service({"a": 1.0, "none": 1.0, "fire": None})
    results = grade(mixed({"service": 1.0}, service), ["a", "none", "fire"])
    assert scores(results) == [1.0, None, None]
    assert "picky returned None" in reason(results[1])
    assert "on fire" in reason(results[2])


def test_a_weight_of_0_records_and_does_not_count(mixed: Any) -> None:
    service = Service({"a": 1.0})
    (result,) = grade(mixed({"service": 0.0, "picky": 0.0}, service), ["a"])
    assert result.score == 1
    assert result.details[PARTS] == {"size": 1.0, "picky": -1.0, "service": 1.0}


def test_what_only_records_and_is_missing_is_left_out(mixed: Any) -> None:
    service = Service({"none": 1.0, "fire": None})
    results = grade(mixed({"service": 0.0, "picky": 0.0}, service), ["none", "fire"])
    assert scores(results) == [4, 4], "the lengths"
    assert [result.details[PARTS] for result in results] == [
        {"size": 4.0, "service": 1.0},
        {"size": 4.0, "picky": -1.0},
    ]
    assert [result.verdict for result in results] == ["correct", "function"]


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_a_function_that_fails_for_good_stops_the_run_unless_it_only_records(
    tmp_path: Path, weight: float
) -> None:
    file, said = tmp_path / "broken.py", list[str]()
    file.write_text(
        "def size(responses):\n    return [1.0 for _ in responses]\ndef broken(responses):\n    return 1.0\n"
    )
    config = RewardConfig(function=[f"{file}:size", f"{file}:broken"], weights={"broken": weight})
    functions = [FunctionGrader(text, config, tmp_path / "log.txt", digest(text)) for text in config.function]
    grader = MixedGrader(functions, None, config, said.append)
    try:
        grade(grader, ["a"])
        if weight:
            with pytest.raises(
                RewardFunctionFailing, match="reward function broken returned a value of type float"
            ):
                grader.check()
        else:
            grader.check()
            grader.check()
            assert len(said) == 1
            assert "It has weight 0" in said[0]
    finally:
        for function in functions:
            function.close()


def test_rows_that_the_service_does_not_know_are_graded_by_functions_alone(mixed: Any) -> None:
    said: list[str] = []
    service = Service({"a": 1.0, "b": 1.0, "c": 1.0})
    grader = mixed({"service": 1.0}, service, say=said.append)
    prompts = [a_prompt(0), a_prompt(1, domain="haiku"), a_prompt(2, task={}), a_prompt(3, domain="haiku")]
    results = grade(grader, ["a", "b", "c", "d"], prompts)
    assert scores(results) == [1, 0, 0, 0]
    assert service.asked == ["a"]
    assert [text.count("haiku") for text in said] == [1], "it is said once"


def test_without_a_function_that_counts_unknown_rows_are_the_services_business(mixed: Any) -> None:
    service = Service({"a": None})
    grader = mixed({"service": 1.0, "size": 0.0, "picky": 0.0}, service)
    assert scores(grade(grader, ["a"], [a_prompt(domain="haiku")])) == [None], "and not a made-up 0"


def test_a_sum_that_is_too_large_is_no_score(mixed: Any) -> None:
    (result,) = grade(mixed({"size": 1e308, "picky": -1e308}), ["abc"])
    assert math.isfinite(1e308)
    assert "not a finite number" in reason(result)


def test_versions_tell_functions_and_weights_apart(mixed: Any, tmp_path: Path) -> None:
    first, again, other = mixed({}), mixed({}), mixed({"size": 2.0})
    assert first.version == again.version != other.version
