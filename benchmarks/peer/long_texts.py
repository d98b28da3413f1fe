"""Writes prompts whose responses are several times as long as those of `demo-llm`."""

from __future__ import annotations

from pathlib import Path

from nemo_prorl.data.rows import Row, write_rows
from nemo_prorl.demo.language_tasks import TRAIN_TOPICS

LONG_TEXTS = Path("runs/smollm2_tail/long.parquet")


def write_long_texts() -> None:
    """Writes a prompt for each training topic of the demo."""
    rows = (
        Row(
            uid=f"long/{topic}",
            domain="instruction",
            source="long",
            split="train",
            messages=({"role": "user", "content": f"Write about {topic} in at least 100 words."},),
            task={
                "instruction_id_list": ["length_constraints:number_words"],
                "kwargs": [{"relation": "at least", "num_words": 100}],
                "strict": True,
            },
        )
        for topic in TRAIN_TOPICS
    )
    write_rows(LONG_TEXTS, rows)
