"""From the chat template to the verdict: a response that is cut off inside the thought that its prompt opened has no
answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nemo_prorl.data.mix import render
from nemo_prorl.data.rows import Row
from nemo_prorl.reward_sources.service import ServiceGrader
from nemo_prorl.training.evaluation import drain
from nemo_prorl.training.sampling.grading import GradingInFlight
from nemo_prorl.types import Finish, Prompt, Rollout
from reward.client import RewardClient
from reward.protocol import ScoreResult
from tests import chat_templates
from tests.chat_templates import tokenizer_with
from tests.training.conftest import MIXED, ScriptedGrader, make_prompt, make_rollout

DRAFTS: dict[str, tuple[str, dict[str, Any]]] = {
    "math": ("\\boxed{4}", {"answer": "4"}),
    "stem": ("\\boxed{B}", {"answer": "B"}),
    "code": ("```python\nprint(2 * int(input()))\n```", {"inputs": ["1\n"], "outputs": ["2\n"]}),
    "logic": (
        "<answer>7</answer>",
        {"task": "chain_sum", "entry": {"question": "4 + 3 =", "answer": "7", "metadata": {}}},
    ),
    "instruction": ("No comma", {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}),
}
"""A right answer, which a thought may hold as a draft."""
SCORES_OF_A_CUT_OFF_THOUGHT = {
    "R1_DISTILL": 0.0,
    "QWEN3_THINKING_2507": 0.0,
    "QWEN2_5": 1.0,
    "QWEN3": 1.0,
    "QWEN3_THINKING_OFF": 1.0,
}
"""Without a thought in the prompt, a response without tags is all answer."""


def rollout_of(prompt: Prompt, sibling: int, text: str) -> Rollout:
    return Rollout(
        prompt=prompt,
        sibling=sibling,
        token_ids=np.zeros(1, dtype=np.int64),
        sampler_logprobs=np.zeros(1, dtype=np.float32),
        text=text,
        finish=Finish.length,
        policy_version=0,
    )


def test_a_cut_off_thought_is_no_answer_where_the_template_opens_it(service: str) -> None:
    """Uses the path of training, validation and evaluation, in all domains, beside complete responses."""
    verdicts: dict[tuple[int, int], ScoreResult] = {}
    cases = [(name, domain) for name in SCORES_OF_A_CUT_OFF_THOUGHT for domain in DRAFTS]
    with RewardClient(urls=[service]) as client:
        client.wait_until_ready(60)
        in_flight = GradingInFlight(ServiceGrader(client, None))
        for index, (name, domain) in enumerate(cases):
            draft, task = DRAFTS[domain]
            row = Row(
                uid=f"{name}/{domain}",
                domain=domain,
                source="test",
                split="train",
                messages=({"role": "user", "content": "?"},),
                task=task,
            )
            prompt = render(row, tokenizer_with(getattr(chat_templates, name)))
            for sibling, text in enumerate(
                (
                    f"{draft}\nor not",
                    f"so</think>\n\n{draft}",
                    f"<think>so</think>\n\n{draft}",
                    f"<think>{draft}",
                )
            ):
                in_flight.submit((index, sibling), rollout_of(prompt, sibling, text))
        drain(in_flight, verdicts.__setitem__)
    for index, (name, domain) in enumerate(cases):
        scores = [verdicts[index, sibling].score for sibling in range(4)]
        assert scores == [SCORES_OF_A_CUT_OFF_THOUGHT[name], 1.0, 1.0, 0.0], (name, domain)
        cut_off = verdicts[index, 0].verdict
        assert (cut_off == "open_thought") == (SCORES_OF_A_CUT_OFF_THOUGHT[name] == 0.0)


@pytest.mark.parametrize("opens_thought", [False, True])
def test_every_request_says_what_its_prompt_says(opens_thought: bool) -> None:
    asked = []

    class Listening(ScriptedGrader):
        def submit(self, request: Any, prompt: Any) -> Any:
            asked.append(request)
            return super().submit(request, prompt)

    prompt = replace(make_prompt("p", MIXED), opens_thought=opens_thought)
    GradingInFlight(Listening()).submit((0, 0), make_rollout(prompt, 0))
    assert [request.in_thought for request in asked] == [opens_thought]
