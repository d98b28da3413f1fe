"""A custom reward function for verl (written against verl 0.9.1). In its configuration:

    reward.custom_reward_function.path=pkg://reward.adapters.verl
    reward.custom_reward_function.name=compute_score
    +reward.custom_reward_function.reward_kwargs.servers=[http://127.0.0.1:8700]

`ground_truth` is the label (reward/rows.py says what it may be): an answer, or for code verl's own JSON text with
"inputs" and "outputs". verl cannot represent "not graded": a response is sent again for `patience_s`, and then training
stops with one sentence (StopTraining), under every reward manager of verl; a label that defines no task stops it at
once. Neither becomes a reward of 0.

The managers `naive` (the default), `dapo` and `rate_limited` await `compute_score`, so all responses of a batch are
graded concurrently. `remote` takes no coroutine and needs `compute_score_blocking`. Neither function needs verl, so
other callers of a Python function use them too (docs/other_trainers.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from reward.adapters.connection import connection
from reward.protocol import ScoreResult
from reward.rows import request_of_label


class StopTraining(BaseException):
    """A response cannot be graded; the message is one sentence.

    Deliberately not an Exception: some callers of a reward function take every Exception for a reward of 0, as verl
    0.9.1 does in its rate-limited and PRIME reward managers (experimental/reward_loop/reward_manager/limited.py,
    workers/reward_manager/prime.py). A policy would then learn that its answers are wrong whenever the service is down,
    or whenever a row's label defines no task."""


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    **options: Any,
) -> float:
    """Returns the score of a response, 0 to 1.

    options (verl's reward_kwargs):
    servers: URLs of servers, or a folder with their ready files.
    domain: the domain of labels that do not name one, "math" if not given.
    in_thought: whether responses begin inside a thought that the chat template opens in the prompt (see ScoreRequest);
        false if not given. A row's `extra_info` may override `domain` and `in_thought`.
    token_file, patience_s (1,800 s if not given): as in ServiceConnection.

    Raises StopTraining for a label that defines no task, if there is no score after patience_s, or if the manager's own
    time limit cancels the call first.
    """
    try:
        with _stopping():
            result = await asyncio.wrap_future(_submit(solution_str, ground_truth, extra_info, **options))
    except asyncio.CancelledError as error:
        raise StopTraining(
            "the call was cancelled before the reward service had graded a response, as the rate-limited manager"
            " does after reward.timeout seconds; make that longer than reward_kwargs.patience_s"
        ) from error
    return _score(result)


def compute_score_blocking(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    **options: Any,
) -> float:
    """Scores one response as compute_score does, for callers that cannot await. Slower: one response per thread."""
    with _stopping():
        result = _submit(solution_str, ground_truth, extra_info, **options).result()
    return _score(result)


def _submit(
    response: str,
    label: Any,
    row: Mapping[str, Any] | None,
    *,
    servers: str | Sequence[str],
    domain: str = "math",
    in_thought: bool = False,
    token_file: str | None = None,
    patience_s: float = 1800.0,
    **_: Any,
) -> Future[ScoreResult]:
    """Submits a response. Other options, which verl's managers add, are ignored."""
    row = row or {}
    request = request_of_label(
        response,
        label,
        domain=row.get("domain") or domain,
        in_thought=bool(row.get("in_thought", in_thought)),
    )
    return connection(servers, token_file, patience_s).submit(request)


@contextmanager
def _stopping() -> Iterator[None]:
    """Turns every Exception, such as BadLabel, into StopTraining with its sentence."""
    try:
        yield
    except Exception as error:
        raise StopTraining(f"a response cannot be graded ({type(error).__name__}): {error}") from error


def _score(result: ScoreResult) -> float:
    """Returns the score. Raises StopTraining if there is none."""
    if result.score is None:
        reason = result.details.get("reason", result.verdict)
        raise StopTraining(
            f"the reward service did not grade a response ({result.status.value}: {reason}), and a reward of 0 would"
            " teach the policy that its answer is wrong"
        )
    return result.score
