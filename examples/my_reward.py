"""Two reward functions of one's own (docs/custom_rewards.md), for the puzzles that conf/laptop.yaml trains on.

python -m nemo_prorl train --config-name laptop reward.function=examples/my_reward.py:right
"""

from __future__ import annotations

import re


def right(final_texts: list[str | None], task: list[dict], **columns: list) -> list[float]:
    """1 if the answer ends in the right numbers. An answer is None if the thought never ended."""
    golds = [numbers(row["answer"] if "answer" in row else row["entry"]["answer"]) for row in task]
    found = [numbers(answer or "") for answer in final_texts]
    return [
        float(gold != [] and answer[-len(gold) :] == gold) for answer, gold in zip(found, golds, strict=True)
    ]


def brief(responses: list[str], **columns: list) -> list[float]:
    """From 0 for an empty response down to -1 for one of 100 characters or more."""
    return [-min(len(response), 100) / 100 for response in responses]


def numbers(text: object) -> list[float]:
    """The numbers in a text, in order: 3 and 4 in both ['3', '4'] and [3.0,4.0]."""
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", str(text))]
