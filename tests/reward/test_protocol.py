import json

import pytest

from reward.protocol import MAX_ID_CHARACTERS, GradeStatus, ScoreRequest, ScoreResult, id_of


def test_only_a_graded_result_has_a_score() -> None:
    for status in GradeStatus:
        score = 0.5 if status is GradeStatus.graded else None
        result = ScoreResult(request_id="a", status=status, score=score, verdict="v")
        assert ScoreResult.from_json(json.loads(json.dumps(result.to_json()))) == result
        with pytest.raises(ValueError, match="score"):
            ScoreResult(request_id="a", status=status, score=None if score else 0.0, verdict="v")


@pytest.mark.parametrize("score", [-0.1, 1.1, float("nan"), float("inf")])
def test_scores_of_the_service_lie_between_0_and_1(score: float) -> None:
    body = {"request_id": "a", "status": "graded", "verdict": "v", "details": {}, "version": ""}
    with pytest.raises(ValueError, match="outside"):
        ScoreResult.from_json({**body, "score": score})


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_every_score_is_a_finite_number(score: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        ScoreResult(request_id="a", status=GradeStatus.graded, score=score, verdict="v")


def test_a_request_has_only_the_fields_that_it_needs() -> None:
    fields = {"request_id": "a", "domain": "math", "response": "r", "task": {"answer": "1"}}
    assert ScoreRequest(**fields).to_json() == fields  # type: ignore[arg-type]
    rest = {"in_thought": True, "deadline_ms": 5}
    assert ScoreRequest(**fields, **rest).to_json() == fields | rest  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [1, MAX_ID_CHARACTERS - 10, 480, 494, MAX_ID_CHARACTERS, 10_000])
def test_an_id_of_names_of_any_length_is_short_and_its_own(length: int) -> None:
    names = ["x" * (length - 1) + letter for letter in "ab"]
    ids = [id_of(12, f"{name}#3", 45, sibling) for name in names for sibling in (6, 7)]
    assert len(set(ids)) == 4
    assert all(len(text) <= MAX_ID_CHARACTERS for text in ids)
    assert id_of("check", "a", 0) == "check/a/0"
