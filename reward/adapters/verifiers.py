"""Reward functions for verifiers (written against 0.4.0, and 0.3.1 for rubrics).

A reward for a task (verifiers 0.4), in the task's class or plugged in by configuration:

    from reward.adapters.verifiers import reward_service

    graded = reward_service("http://127.0.0.1:8700")

    class MyTask(vf.Task[MyData]):
        @vf.reward
        async def correct(self, task, trace) -> float:
            return await graded(task, trace)

A function for a rubric (verifiers up to 0.3):

    rubric = vf.Rubric(funcs=[rubric_function("http://127.0.0.1:8700")])

The row has a field `label`, `ground_truth` or `answer`, or the fields `domain` and `task` (reward/rows.py says what a
label may be); in a rubric, `info` may hold them too. verifiers 0.4 records a reward's error on the trace and leaves the
rollout without a reward, which is right for a response that was not graded, so the reward raises NotGraded. A rubric
turns every Exception into a reward of 0, so its function raises StopTraining, for a label that defines no task too.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from reward.adapters.columns import label_of, text_of
from reward.adapters.connection import (
    Connection,
    NotGraded,
    StopTraining,
    connection,
    score_or_raise,
    stopping,
)
from reward.rows import opens_thought, request_of_label

_PATIENCE_S = 600.0


def reward_service(
    servers: str | Sequence[str],
    *,
    label_field: str | None = None,
    domain: str = "math",
    in_thought: bool = False,
    token_file: str | os.PathLike[str] | None = None,
    patience_s: float = _PATIENCE_S,
) -> Callable[[Any, Any], Awaitable[float]]:
    """Returns a reward `(task, trace) -> float` for verifiers 0.4: the score of the last reply, 0 to 1.

    servers: URLs of servers, or a folder with their ready files. label_field: the task's field with the label; None:
    found by its name. domain: the domain of labels that do not name one. in_thought: whether replies begin inside a
    thought that the chat template opens in the prompt and that the API returns as text. The reward raises NotGraded if
    there is no score after patience_s, and BadLabel for a label that defines no task.
    """
    where = connection(servers, token_file, patience_s)

    async def correct(task: Any, trace: Any) -> float:
        label = label_of(task.model_dump(), label_field)
        return await _score(where, trace.last_reply, label, domain, in_thought, NotGraded)

    return correct


def rubric_function(
    servers: str | Sequence[str],
    *,
    label_field: str | None = None,
    domain: str = "math",
    in_thought: bool | None = None,
    token_file: str | os.PathLike[str] | None = None,
    patience_s: float = _PATIENCE_S,
) -> Callable[..., Awaitable[float]]:
    """Returns a function for `vf.Rubric(funcs=[...])` of verifiers up to 0.3: the score of a completion, 0 to 1.

    The arguments are those of reward_service; in_thought=None is read from the prompt where that is text. The function
    raises StopTraining for a label that defines no task, or if there is no score after patience_s.
    """
    where = connection(servers, token_file, patience_s)

    async def reward_service(
        prompt: Any, completion: Any, answer: Any, info: Any = None, **fields: Any
    ) -> float:
        with stopping():
            row = {**fields, **(info if isinstance(info, Mapping) else {})}
            if answer not in (None, ""):
                row["answer"] = answer
            opened = opens_thought(prompt) if in_thought is None else in_thought
            label = label_of(row, label_field)
            return await _score(where, text_of(completion), label, domain, opened, StopTraining)

    return reward_service


async def _score(
    where: Connection, response: str, label: Any, domain: str, in_thought: bool, error: type[BaseException]
) -> float:
    request = request_of_label(response, label, domain=domain, in_thought=in_thought)
    return score_or_raise(await where.grade_one(request), error)
