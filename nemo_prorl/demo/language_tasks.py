"""The problems of `demo-llm`: instructions with one or two rules of IFEval, and small calculations.

Held-out instructions are about other topics than those that RL trains on, and held-out calculations have other numbers.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_prorl.data.rows import Row

KINDS = ("one rule", "two rules", "arithmetic")
TRAIN_TOPICS = (
    "the sea", "a rainy day", "a small dog", "the moon", "my first bicycle", "winter", "a busy market", "an old house",
    "a birthday party", "learning to swim", "a forest walk", "making bread", "the night sky", "a school trip",
    "a blue car", "a long letter", "music", "coffee", "a good friend", "a football match", "robots", "the desert",
    "a bridge", "honey bees", "a storm", "a cooking lesson", "an island", "a lost umbrella", "autumn leaves",
    "a tall tower", "a noisy neighbour", "the kitchen",
)  # fmt: skip
HELD_OUT_TOPICS = (
    "a train journey", "the library", "a garden", "mountains", "a lost key", "a red kite", "the harbour", "a museum",
    "an apple tree", "a sleeping cat", "snow", "a wooden boat",
)  # fmt: skip
NUM_HELD_OUT = 48
"""Held-out problems of each kind."""
SHOWN = (("6 + 7", 13), ("12 - 4", 8))
"""Calculations that the prompt shows with their answers. Without them the base hardly ever writes a box."""


@dataclass(frozen=True, slots=True)
class RuleWording:
    """One of IFEval's rules: how a prompt asks for it, its id, and its arguments."""

    text: str
    name: str
    arguments: Mapping[str, Any]


RULES: tuple[tuple[RuleWording, ...], ...] = (
    (RuleWording("Do not use any commas.", "punctuation:no_comma", {}),),
    (
        RuleWording(
            "Give it a title in double angular brackets, such as <<title>>.", "detectable_format:title", {}
        ),
    ),
    (
        RuleWording(
            "At the end add a postscript that begins with P.S.",
            "detectable_content:postscript",
            {"postscript_marker": "P.S."},
        ),
    ),
    (
        RuleWording(
            "Highlight at least 2 phrases with asterisks, such as *phrase*.",
            "detectable_format:number_highlighted_sections",
            {"num_highlights": 2},
        ),
    ),
    (
        RuleWording(
            "Use at least 2 placeholders in square brackets, such as [name].",
            "detectable_content:number_placeholders",
            {"num_placeholders": 2},
        ),
    ),
    tuple(
        RuleWording(
            f"Write exactly {count} bullet points that begin with * and a space.",
            "detectable_format:number_bullet_lists",
            {"num_bullets": count},
        )
        for count in (2, 3)
    ),
    tuple(
        RuleWording(
            f"Use fewer than {count} words.",
            "length_constraints:number_words",
            {"relation": "less than", "num_words": count},
        )
        for count in (12, 16, 20)
    ),
    tuple(
        RuleWording(f"End with exactly: {phrase}", "startend:end_checker", {"end_phrase": phrase})
        for phrase in ("The end.", "That is all.", "Thank you.")
    ),
    tuple(
        RuleWording(f"Use the words {one} and {other}.", "keywords:existence", {"keywords": [one, other]})
        for one, other in (("bright", "quiet"), ("river", "paper"), ("happy", "stone"))
    ),
    tuple(
        RuleWording(
            f"Do not use the words {one} and {other}.",
            "keywords:forbidden_words",
            {"forbidden_words": [one, other]},
        )
        for one, other in (("the", "and"), ("is", "it"), ("a", "of"))
    ),
    tuple(
        RuleWording(
            f"Use the word {word} at least twice.",
            "keywords:frequency",
            {"keyword": word, "frequency": 2, "relation": "at least"},
        )
        for word in ("bright", "quiet", "happy")
    ),
    tuple(
        RuleWording(
            f"Use the letter {letter} at least {count} times.",
            "keywords:letter_frequency",
            {"letter": letter, "let_frequency": count, "let_relation": "at least"},
        )
        for letter, count in (("w", 5), ("k", 4), ("m", 6))
    ),
)
"""Wordings of each kind of rule. The base follows 5 to 60 % of each kind when it is asked for alone."""


def instructions(topics: Sequence[str], num_rules: int, *, count: int, split: str) -> Iterator[Row]:
    """Yields `count` distinct prompts with so many rules of different kinds, about each topic in turn.

    The topic counts as a rule, too: a response that does not name it earns only a part of the reward."""
    stream = random.Random(f"{split}/{num_rules}")
    kind, seen = KINDS[num_rules - 1], set[str]()
    while len(seen) < count:
        rules = [stream.choice(wordings) for wordings in stream.sample(RULES, num_rules)]
        topic = topics[len(seen) % len(topics)]
        prompt = " ".join([f"Write two short sentences about {topic}.", *(rule.text for rule in rules)])
        if prompt in seen:
            continue
        yield Row(
            uid=f"{kind}/{split}/{len(seen)}",
            domain="instruction",
            source=kind,
            split=split,
            messages=({"role": "user", "content": prompt},),
            task={
                "instruction_id_list": ["keywords:existence", *(rule.name for rule in rules)],
                "kwargs": [{"keywords": [topic.split()[-1]]}, *(dict(rule.arguments) for rule in rules)],
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
