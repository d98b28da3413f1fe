"""Prompts, requests for them, and the results of a grader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nemo_prorl.config import RewardConfig
from nemo_prorl.reward_sources.functions.check import digest
from nemo_prorl.reward_sources.functions.grader import FunctionGrader
from nemo_prorl.types import Prompt
from reward.protocol import GradeStatus, ScoreRequest, ScoreResult

WAIT_S = 120


def a_prompt(number: int = 0, *, domain: str = "math", **columns: Any) -> Prompt:
    task = columns.pop("task", {"answer": str(number)})
    return Prompt(
        uid=f"p{number}#0",
        domain=domain,
        source="here",
        text=f"question {number}",
        token_ids=(1, 2),
        task=task,
        columns={"uid": f"p{number}", "domain": domain, "task": task, **columns},
    )


def a_request(prompt: Prompt, response: str, *, in_thought: bool = False) -> ScoreRequest:
    return ScoreRequest(
        request_id=f"0/{prompt.uid}/0/{response[:20]}",
        domain=prompt.domain,
        response=response,
        in_thought=in_thought,
        task=prompt.task,
    )


def grader(text: str, folder: Path, **options: Any) -> FunctionGrader:
    """A grader of the function FILE.py:NAME, whose log is in a folder."""
    return FunctionGrader(text, RewardConfig(**options), folder / "log.txt", digest(text))


def grade(grader: Any, responses: list[str], prompts: list[Prompt] | None = None) -> list[ScoreResult]:
    prompts = prompts or [a_prompt(index) for index in range(len(responses))]
    futures = [
        grader.submit(a_request(prompt, text), prompt)
        for prompt, text in zip(prompts, responses, strict=True)
    ]
    return [future.result(WAIT_S) for future in futures]


def scores(results: list[ScoreResult]) -> list[float | None]:
    return [result.score for result in results]


def reason(result: ScoreResult) -> str:
    assert result.status is GradeStatus.infra_error
    assert result.score is None
    text = str(result.details["reason"])
    assert "\n" not in text
    return text
