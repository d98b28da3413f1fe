"""Commands that make the files named in conf/, for messages about missing files. Imports only the standard library."""

from __future__ import annotations

import re

_MAKERS = (
    (r"models/(DeepSeek-R1-\S+)", r"hf download deepseek-ai/\1 --local-dir \g<0>"),
    (r"data/eval/(\w+)\.parquet", r"python -m nemo_prorl evaluate benchmarks=\1 --write-prompts data/eval"),
    (
        r"data/scp116k/train\.parquet",
        "python -m nemo_prorl data build scp116k endpoint=http://127.0.0.1:8000/v1 "
        "model=Qwen/Qwen2.5-32B-Instruct",
    ),
    (
        r"data/(deepscaler|eurus|goosereason|llama_nemotron_if|reasoning_gym)/(train|validation)\.parquet",
        r"python -m nemo_prorl data build \1",
    ),
    (r"runs/tiny/[\w./-]+", "python -m nemo_prorl.demo.build"),
    (r"(runs/stories/data)/\S+", r"python experiments/findings/stories_prompts.py \1"),
)
"""Pairs of a pattern of the whole path and the command that makes the file; the first match counts."""


def command_for(path: str) -> str:
    """Returns the command that makes this file or folder; empty where none is known."""
    for pattern, command in _MAKERS:
        if found := re.fullmatch(pattern, path):
            return found.expand(command)
    return ""


def made_by(path: str) -> str:
    """Returns ", and `COMMAND` makes it", to end a clause about a missing file; empty if no command is known."""
    command = command_for(path)
    return f", and `{command}` makes it" if command else ""
