"""Tests of OpenRLHF's and slime's protocols: rewards, thoughts, end tokens, what is refused; and that nothing ungraded
becomes a reward, because requests wait, are sent again, and get the result of their first try."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("fastapi")

from fastapi import HTTPException

from reward.frontends import Options, scores
from reward.protocol import GradeStatus, ScoreRequest, ScoreResult
from reward.rows import request_of_label
from reward.server import Front
from tests.reward.serving import Server, program

R1_PROMPT = "<｜User｜>2 + 2?<｜Assistant｜><think>\n"
TESTS = {"inputs": ["1\n", "3\n"], "outputs": ["2\n", "6\n"]}
QUOTED = {"instruction_id_list": ["startend:quotation"], "kwargs": [{}]}


def slime(server: Server, response: Any, label: Any, prompt: Any = "2 + 2?", query: str = "") -> Any:
    status, _, body = server.call("/slime" + query, {"prompt": prompt, "response": response, "label": label})
    assert status == 200, body
    return json.loads(body)


def openrlhf(server: Server, *samples: tuple[str, str, Any], query: str = "") -> tuple[int, Any]:
    queries, prompts, labels = ([sample[n] for sample in samples] for n in range(3))
    body = {"query": queries, "prompts": prompts, "labels": labels}
    status, _, answer = server.call("/openrlhf" + query, body)
    return status, json.loads(answer)


LABELLED = [
    ("so \\boxed{4}", "4", 1.0),
    ("so \\boxed{5}", 4, 0.0),
    (program("print(2)"), TESTS, 0.5),
    ('"said"<|im_end|>\n', json.dumps(QUOTED), 1.0),
]


def test_rewards_come_as_each_trainer_expects_them(server: Server) -> None:
    wanted = [reward for _, _, reward in LABELLED]
    assert [slime(server, response, label) for response, label, _ in LABELLED] == wanted
    samples = [("Q:" + response, "Q:", label) for response, label, _ in LABELLED]
    assert openrlhf(server, *samples) == (200, {"rewards": wanted, "scores": wanted, "extra_logs": {}})
    assert openrlhf(server) == (200, {"rewards": [], "scores": [], "extra_logs": {}})


def test_openrlhf_grades_what_follows_the_prompt(server: Server) -> None:
    prompt = "Write \\boxed{4} if you know it." + "?" * 500 + "<|assistant|>\n"
    cut = prompt[-450:]  # OpenRLHF cuts prompts that are too long on the left
    periodic = "Answer in \\boxed{4}. " * 60
    status, answer = openrlhf(
        server,
        (prompt + "I do not", prompt, "4"),
        (cut + "I do not", prompt, "4"),
        (cut + "\\boxed{4}<|im_end|><|endoftext|>", prompt, "4"),
        ("<s> " + prompt + "\\boxed{4}</s>", prompt, "4"),
        ("\\boxed{4}", "", "4"),
        (periodic[-500:] + "so 4", periodic, "4"),
    )
    assert (status, answer["rewards"]) == (200, [0.0, 0.0, 1.0, 1.0, 1.0, 0.0])
    status, answer = openrlhf(server, ("\\boxed{4}", prompt, "4"))
    assert status == 400
    assert "prompt" in answer["detail"]


@pytest.mark.parametrize(
    ("prompt", "query", "reward"),
    [
        ("2 + 2?", "", 1.0),
        (R1_PROMPT, "", 0.0),
        (R1_PROMPT, "?in_thought=auto", 0.0),
        ("2 + 2?", "?in_thought=true", 0.0),
        (R1_PROMPT, "?in_thought=false", 1.0),
        ([{"role": "user", "content": "2 + 2?"}], "?in_thought=true", 0.0),
    ],
)
def test_a_draft_in_a_thought_that_the_prompt_opened_is_no_answer(
    server: Server, prompt: Any, query: str, reward: float
) -> None:
    draft = "perhaps \\boxed{4}"
    assert slime(server, draft, "4", prompt, query) == reward
    assert slime(server, f"{draft}</think>\\boxed{{4}}", "4", prompt, query) == 1.0
    if isinstance(prompt, str):
        assert openrlhf(server, (prompt + draft, prompt, "4"), query=query)[1]["rewards"] == [reward]


def test_the_url_says_the_domain_of_bare_labels(server: Server) -> None:
    assert slime(server, "\\boxed{(B) 5 cm}", "B", query="?domain=stem") == 1.0
    assert slime(server, program("print(2 * int(input()))"), TESTS, query="?domain=stem") == 1.0


SAMPLE = {"prompt": "p", "response": "r", "label": "4"}


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        ("/slime", [], "object"),
        ("/slime", {"prompt": "p", "label": "4"}, "response"),
        ("/slime", {**SAMPLE, "label": None}, "label"),
        ("/slime", {**SAMPLE, "label": {"domain": "code", "task": {}}}, "inputs"),
        ("/slime?domain=poetry", SAMPLE, "poetry"),
        ("/slime?in_thought=1", SAMPLE, "in_thought"),
        ("/slime?wait_s=nan", SAMPLE, "wait_s"),
        ("/slime?thought=true", SAMPLE, "option thought"),
        ("/openrlhf", {"query": ["a"], "prompts": ["a"], "labels": []}, "equally"),
        ("/openrlhf", {"query": "a", "prompts": ["a"], "labels": ["4"]}, "lists"),
        ("/openrlhf", {"query": [3], "prompts": ["a"], "labels": ["4"]}, "text"),
    ],
)
def test_what_no_request_can_be_is_refused_in_a_sentence(
    server: Server, path: str, body: Any, word: str
) -> None:
    status, _, answer = server.call(path, body)
    assert status == 400
    assert word in json.loads(answer)["detail"]


# ------------------------------------------------------------------------------------- what is not graded
class Scripted:
    """A service that answers with the given statuses in turn, then repeats the last. `seconds`: time per answer."""

    version = "test"

    def __init__(self, *statuses: GradeStatus, seconds: float = 0.0, verdict: str = "v") -> None:
        self.statuses, self.seconds, self.verdict, self.calls = list(statuses), seconds, verdict, 0

    async def score(self, request: ScoreRequest) -> ScoreResult:
        status = self.statuses[min(self.calls, len(self.statuses) - 1)]
        self.calls += 1
        await asyncio.sleep(self.seconds)
        score = 1.0 if status is GradeStatus.graded else None
        return ScoreResult(
            request_id=request.request_id,
            status=status,
            score=score,
            verdict=self.verdict,
            details={"reason": "broken"},
        )


def ask(service: Scripted, wait_s: float, tries: int = 1) -> list[Any]:
    """Sends the same request several times in succession. Returns the rewards of each try, or its HTTPException."""

    async def main() -> list[Any]:
        front, answers = Front(service, None, None), []  # type: ignore[arg-type]
        for _ in range(tries):
            try:
                request = request_of_label("\\boxed{4}", "4")
                answers.append(await scores(front, [request], Options(wait_s=wait_s)))
            except HTTPException as error:
                answers.append(error)
        return answers

    return asyncio.run(main())


BUSY, FAILED, GRADED = GradeStatus.overloaded, GradeStatus.infra_error, GradeStatus.graded


@pytest.mark.parametrize("statuses", [(BUSY, BUSY, GRADED), (FAILED, GRADED)])
def test_a_service_that_is_busy_or_fails_once_is_waited_for(statuses: tuple[GradeStatus, ...]) -> None:
    assert ask(Scripted(*statuses), 30) == [[1.0]]


@pytest.mark.parametrize(
    ("service", "wait_s", "calls", "word"),
    [
        (Scripted(BUSY), 0.2, 1, "busy"),
        (Scripted(FAILED), 0.7, 2, "broken"),
        (Scripted(FAILED, verdict="no_sandbox"), 30.0, 1, "broken"),  # retrying cannot help
    ],
)
def test_what_is_not_graded_is_503_with_retry_after(
    service: Scripted, wait_s: float, calls: int, word: str
) -> None:
    (refusal,) = ask(service, wait_s)
    assert (refusal.status_code, refusal.headers, service.calls) == (503, {"Retry-After": "2"}, calls)
    assert word in refusal.detail


def test_a_client_that_comes_again_gets_the_result_of_its_first_try() -> None:
    service = Scripted(GRADED, seconds=0.3)
    answers = ask(service, 0.05, tries=20)
    assert isinstance(answers[0], HTTPException)
    assert answers[-1] == [1.0]
    assert service.calls == 1


@pytest.mark.parametrize("status", [GRADED, FAILED])
def test_equal_requests_are_graded_once(status: GradeStatus) -> None:
    service = Scripted(status, seconds=0.05)

    async def together() -> list[ScoreResult]:
        front = Front(service, None, None)  # type: ignore[arg-type]
        results = await front.score_all([request_of_label("\\boxed{4}", "4").to_json()] * 3)
        assert front._running == {}
        return results

    assert [result.status for result in asyncio.run(together())] == [status] * 3
    assert service.calls == 1
