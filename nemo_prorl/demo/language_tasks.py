"""The problems of `demo-llm`: instructions with one or two rules of IFEval, and small calculations.

Held-out instructions are about other topics than those that RL trains on, and held-out calculations have other numbers.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from nemo_prorl.data.rows import Row

KINDS = ("one rule", "two rules", "arithmetic")
NUM_HELD_OUT = 48
"""Held-out problems of each kind."""
SHOWN = (("6 + 7", 13), ("12 - 4", 8))
"""Calculations that the prompt shows with their answers. Without them the base hardly ever writes a box."""


DATA = Path(__file__).with_suffix(".yaml")
_CONTENT = yaml.safe_load(DATA.read_text(encoding="utf-8"))
TRAIN_TOPICS: Sequence[str] = _CONTENT["train_topics"]
HELD_OUT_TOPICS: Sequence[str] = _CONTENT["held_out_topics"]
RULES: Sequence[Sequence[Mapping[str, Any]]] = [
    [{"name": name, **wording} for wording in wordings] for name, wordings in _CONTENT["rules"].items()
]
"""Wordings of each kind of IFEval's rules: its name, the text by which a prompt asks for it, and its arguments."""


def instructions(topics: Sequence[str], num_rules: int, *, count: int, split: str) -> Iterator[Row]:
    """Yields `count` distinct prompts with so many rules of different kinds, about each topic in turn.

    The topic counts as a rule, too: a response that does not name it earns only a part of the reward."""
    stream = random.Random(f"{split}/{num_rules}")
    kind, seen = KINDS[num_rules - 1], set[str]()
    while len(seen) < count:
        rules = [stream.choice(wordings) for wordings in stream.sample(RULES, num_rules)]
        topic = topics[len(seen) % len(topics)]
        prompt = " ".join([f"Write two short sentences about {topic}.", *(rule["text"] for rule in rules)])
        if prompt in seen:
            continue
        yield Row(
            uid=f"{kind}/{split}/{len(seen)}",
            domain="instruction",
            source=kind,
            split=split,
            messages=({"role": "user", "content": prompt},),
            task={
                "instruction_id_list": ["keywords:existence", *(rule["name"] for rule in rules)],
                "kwargs": [{"keywords": [topic.split()[-1]]}, *(dict(rule["arguments"]) for rule in rules)],
                "strict": True,
            },
        )
        seen.add(prompt)


def calculations() -> tuple[list[Row], list[Row]]:
    """Returns (training, held-out) calculations: sums and differences of numbers up to 20, and products up to 9 * 9.
    Each prompt first shows two others with their answers in a box."""
    found = [(f"{a} + {b}", a + b) for a, b in itertools.product(range(2, 21), repeat=2)]
    found += [(f"{a} - {b}", a - b) for a, b in itertools.product(range(2, 21), repeat=2) if a > b]
    found += [(f"{a} * {b}", a * b) for a, b in itertools.product(range(2, 10), repeat=2)]
    found = [one for one in found if one not in SHOWN]
    random.Random("arithmetic").shuffle(found)
    examples = [{"role": "system", "content": "You are a calculator."}]
    for question, answer in SHOWN:
        examples += [
            {"role": "user", "content": f"{question} ="},
            {"role": "assistant", "content": f"{question} = \\boxed{{{answer}}}"},
        ]
    rows = [
        Row(
            uid=f"arithmetic/{question}",
            domain="math",
            source="arithmetic",
            split="held_out" if number < NUM_HELD_OUT else "train",
            messages=(*examples, {"role": "user", "content": f"{question} ="}),
            task={"answer": str(answer)},
        )
        for number, (question, answer) in enumerate(found)
    ]
    return rows[NUM_HELD_OUT:], rows[:NUM_HELD_OUT]
