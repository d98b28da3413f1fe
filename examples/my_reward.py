"""Two reward functions of one's own (docs/custom_rewards.md), for the sums that conf/laptop.yaml trains on.

python -m nemo_prorl train --config-name laptop reward.function=examples/my_reward.py:right
"""

from __future__ import annotations

import re


def right(final_texts: list[str | None], task: list[dict], **columns: list) -> list[float]:
    """1 if the last number of the answer is the right one. An answer is None if the thought never ended."""
    golds = [row.get("answer") or row["entry"]["answer"] for row in task]
    numbers = [re.findall(r"-?\d+", answer or "") for answer in final_texts]
    return [float(found[-1:] == [gold]) for found, gold in zip(numbers, golds, strict=True)]


def brief(responses: list[str], **columns: list) -> list[float]:
    """From 0 for an empty response down to -1 for one of 100 characters or more."""
    return [-min(len(response), 100) / 100 for response in responses]
