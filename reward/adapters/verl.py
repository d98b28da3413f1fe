"""A custom reward function for verl (written against verl 0.9.1). In its configuration:

    reward.custom_reward_function.path=pkg://reward.adapters.verl
    reward.custom_reward_function.name=compute_score
    +reward.custom_reward_function.reward_kwargs.servers=[http://127.0.0.1:8700]

`ground_truth` is the label (reward/rows.py says what it may be): an answer, or for code verl's own JSON text with
"inputs" and "outputs". verl cannot represent "not graded": a response is sent again for `patience_s`, and then training
stops with one sentence (StopTraining), under every reward manager of verl; a label that defines no task stops it at
once. Neither becomes a reward of 0.

The managers `naive` (the default), `dapo` and `rate_limited` await `compute_score`, so all responses of a batch are
graded concurrently. `remote` takes no coroutine and needs `compute_score_blocking`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from reward.adapters.connection import Connection, StopTraining, connection, score_or_raise, stopping
from reward.protocol import ScoreRequest
from reward.rows import request_of_label

_PATIENCE_S = 1800.0


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    servers: str | Sequence[str],
    domain: str = "math",
    in_thought: bool = False,
    token_file: str | None = None,
    patience_s: float = _PATIENCE_S,
    **_: Any,
) -> float:
    """Returns the score of a response, 0 to 1.

    servers: URLs of servers, or a folder with their ready files. domain: the domain of labels that do not name one.
    in_thought: whether responses begin inside a thought that the chat template opens in the prompt (see ScoreRequest).
    A row's `extra_info` may override `domain` and `in_thought`.

    Raises StopTraining for a label that defines no task, if there is no score after patience_s, or if the manager's own
    time limit cancels the call first.
    """
    try:
        with stopping():
            request = _request(solution_str, ground_truth, extra_info, domain, in_thought)
            result = await _connection(_names(servers), token_file, patience_s).grade_one(request)
    except asyncio.CancelledError as error:
        raise StopTraining(
            "the call was cancelled before the reward service had graded a response, as the rate-limited manager"
            " does after reward.timeout seconds; make that longer than reward_kwargs.patience_s"
        ) from error
    return score_or_raise(result, StopTraining)


def compute_score_blocking(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    servers: str | Sequence[str],
    domain: str = "math",
    in_thought: bool = False,
    token_file: str | None = None,
    patience_s: float = _PATIENCE_S,
    **_: Any,
) -> float:
    """Scores one response as compute_score does, for callers that cannot await. Slower: one response per thread."""
    with stopping():
        request = _request(solution_str, ground_truth, extra_info, domain, in_thought)
        (result,) = _connection(_names(servers), token_file, patience_s).grade([request])
    return score_or_raise(result, StopTraining)


def _request(
    response: str, label: Any, extra_info: Mapping[str, Any] | None, domain: str, in_thought: bool
) -> ScoreRequest:
    row = extra_info or {}
    return request_of_label(
        response,
        label,
        domain=row.get("domain") or domain,
        in_thought=bool(row.get("in_thought", in_thought)),
    )


def _names(servers: str | Sequence[str]) -> tuple[str, ...]:
    return (servers,) if isinstance(servers, str) else tuple(servers)


@cache
def _connection(servers: tuple[str, ...], token_file: str | None, patience_s: float) -> Connection:
    return connection(servers, token_file, patience_s)
