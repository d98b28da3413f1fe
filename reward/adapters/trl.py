"""A reward function for TRL's trainers (written against TRL 1.16).

    from reward.adapters.trl import reward_service

    trainer = GRPOTrainer(model=..., train_dataset=..., reward_funcs=[reward_service("http://127.0.0.1:8700")])

The data set has a column `label`, `ground_truth` or `answer`, or the columns `domain` and `task` (reward/rows.py says
what a label may be). A response that the service could not grade gets None: TRL leaves it out of its group's mean and
standard deviation and gives it an advantage of 0 (trl/trainer/grpo_trainer.py, `unscorable_mask`). If all responses get
None, TRL warns and continues; by then the function has waited `patience_s` and logged the reason.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from reward.adapters.connection import ServiceConnection, connection
from reward.extract import THINK_END, THINK_START
from reward.protocol import ScoreResult
from reward.rows import BadLabel, opens_thought, request_of_label

log = logging.getLogger("reward.adapters.trl")

LABEL_COLUMNS = ("label", "ground_truth", "answer")


def reward_service(
    servers: str | Sequence[str],
    *,
    label_column: str | None = None,
    domain: str = "math",
    in_thought: bool | None = None,
    token_file: str | os.PathLike[str] | None = None,
    patience_s: float = 300.0,
    ready_timeout_s: float = 120.0,
) -> RewardFunction:
    """Waits until the service is ready and returns the reward function.

    servers: URLs of servers, or a folder with their ready files.
    label_column: the column with the label; None: found by its name (`label_of`).
    domain: the domain of labels that do not name one.
    in_thought: whether responses begin inside a thought that the chat template opens in the prompt. None: as the column
        `in_thought` says, else read from a prompt that is text; TRL does not show what the template adds to messages.
    patience_s: seconds for which a response is sent again before it gets None.

    Raises ValueError, or RewardServiceError with one sentence if no server is ready within ready_timeout_s.
    """
    where = connection(servers, token_file, patience_s)
    where.client().wait_until_ready(ready_timeout_s)
    return RewardFunction(connection=where, label_column=label_column, domain=domain, in_thought=in_thought)


@dataclass(frozen=True, kw_only=True)
class RewardFunction:
    """The function that TRL calls. It can be pickled and used from any thread and process."""

    connection: ServiceConnection
    label_column: str | None = None
    domain: str = "math"
    in_thought: bool | None = None
    __name__ = "reward_service"  # under which TRL logs the reward

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Returns a score from 0 to 1, or None, for each completion. Raises BadLabel for a label that defines no
        task."""
        rows = rows_of(columns, len(completions))
        responses = [text_of(completion) for completion in completions]
        requests = []
        for prompt, response, row in zip(prompts, responses, rows, strict=True):
            in_thought = self.in_thought
            if in_thought is None:
                in_row = row.get("in_thought")
                in_thought = opens_thought(prompt) if in_row is None else bool(in_row)
            label = label_of(row, self.label_column)
            requests.append(request_of_label(response, label, domain=self.domain, in_thought=in_thought))
        if self.in_thought is None and any(
            # It ends a thought that it has not begun.
            not request.in_thought
            and THINK_END in request.response
            and THINK_START not in request.response.partition(THINK_END)[0]
            for request in requests
        ):
            _warn_of_thoughts()
        futures = [self.connection.submit(request) for request in requests]
        results = [future.result() for future in futures]
        if bad := next((result for result in results if result.verdict == "invalid_task"), None):
            raise BadLabel(str(bad.details.get("reason")))
        num_not_graded = _report(results)
        if log_metric is not None:
            log_metric(f"{self.__name__}/not_graded", num_not_graded / max(len(results), 1))
        return [result.score for result in results]


def _report(results: Sequence[ScoreResult]) -> int:
    """Logs one line per call about responses that were not graded, with the most frequent reason. Returns their
    number."""
    reasons = Counter(str(r.details.get("reason", r.verdict)) for r in results if r.score is None)
    if reasons:
        log.error(
            "%d of %d responses were not graded and get None, not 0: %s",
            reasons.total(),
            len(results),
            reasons.most_common(1)[0][0],
        )
    return reasons.total()


@cache
def _warn_of_thoughts() -> None:
    """Warns once per process."""
    log.warning(
        "a response has </think> without <think>, so the chat template seems to open the thought in the prompt:"
        " write reward_service(..., in_thought=True), or drafts in thoughts that never end are graded as answers"
    )


# ------------------------------------------------------------------------------------- a row's label and response
def label_of(row: Mapping[str, Any], column: str | None = None) -> object:
    """Returns the label of a row, for reward.rows.request_of_label.

    The label is the given column; without one, {"domain", "task"} if the row has both (`task` may be JSON text); else
    the one column of LABEL_COLUMNS that the row has. Fields that are None are dropped: data sets whose rows have
    different fields pad them with None. Raises BadLabel.
    """
    if column is None and row.get("domain") is not None and row.get("task") is not None:
        task = row["task"]
        try:
            task = json.loads(task) if isinstance(task, str) else task
        except ValueError as error:
            raise BadLabel(
                f"the column task must hold an object or its JSON text, not {task[:80]!r}"
            ) from error
        return {"domain": row["domain"], "task": task}
    names = [name for name in LABEL_COLUMNS if row.get(name) is not None] if column is None else [column]
    if len(names) != 1 or row.get(names[0]) is None:
        raise BadLabel(
            f"cannot tell which column is the label: the row has {', '.join(map(repr, row)) or 'no columns'}; it needs"
            f" either domain and task, or one of {', '.join(LABEL_COLUMNS)}, or name the column with label_column"
        )
    label = row[names[0]]
    if isinstance(label, Mapping):
        return {key: value for key, value in label.items() if value is not None}
    return label


def rows_of(columns: Mapping[str, Any], num_rows: int) -> list[dict[str, Any]]:
    """Turns columns (lists) into one dictionary per row. Ignores arguments that are no list of num_rows values."""
    lists = {
        name: values
        for name, values in columns.items()
        if isinstance(values, list | tuple) and len(values) == num_rows
    }
    return [{name: values[index] for name, values in lists.items()} for index in range(num_rows)]


def text_of(completion: object) -> str:
    """Returns the response: the completion itself if it is text, or the last assistant message of a list of messages.
    Raises TypeError for anything else."""
    if isinstance(completion, str):
        return completion
    if not isinstance(completion, list | tuple):
        raise TypeError(f"a completion must be text or a list of messages, not {type(completion).__name__}")
    messages = [message for message in map(_fields, completion) if message.get("role") == "assistant"]
    content = messages[-1].get("content") if messages else None
    if content is None or isinstance(content, str):
        return content or ""
    parts: Iterable[Any] = content if isinstance(content, list | tuple) else [content]
    return "".join(str(_fields(part).get("text") or "") for part in parts)


def _fields(message: object) -> Mapping[str, Any]:
    """Returns a message as a mapping, whether it is one or an object with such attributes."""
    return message if isinstance(message, Mapping) else getattr(message, "__dict__", {})
