"""Instruction following: prompts with IFEval's verifiable instructions, from NVIDIA's Llama-Nemotron data.

A record has `input` (turns) and `args` with instruction_id_list and instruction_kwargs, which list every argument of
every rule, most of them null. Its system turn switches reasoning off in the Llama-Nemotron models and is dropped.
"""

from __future__ import annotations

import json
from typing import Any

from nemo_prorl.data.building.source import Dropped, Problem, Record, Source


def convert(record: Record) -> Problem:
    """Turns a record into a problem. Raises Dropped."""
    given = record.values["args"]
    arguments = json.loads(given) if isinstance(given, str) else given or {}
    ids, kwargs = arguments.get("instruction_id_list"), arguments.get("instruction_kwargs")
    if not ids or not isinstance(kwargs, list):
        raise Dropped("no_instructions")
    return Problem(
        question=_question(record.values["input"]),
        task={"instruction_id_list": list(ids), "kwargs": [_without_nulls(one) for one in kwargs]},
    )


def _question(turns: Any) -> str:
    if isinstance(turns, str):
        turns = [{"role": "user", "content": turns}]
    texts = [turn["content"] for turn in turns or [] if turn["role"] == "user"]
    if len(texts) != 1 or not texts[0].strip():
        raise Dropped("not_one_user_turn")
    return str(texts[0]).strip()


def _without_nulls(kwargs: Any) -> dict[str, Any]:
    """Removes nulls only: 0 and the empty text are values."""
    if isinstance(kwargs, str):
        kwargs = json.loads(kwargs)
    return {name: value for name, value in (kwargs or {}).items() if value is not None}


SOURCE = Source(
    name="llama_nemotron_if",
    domain="instruction",
    summary="56k prompts with verifiable instructions in IFEval's form; ProRL used 10k",
    hub_id="nvidia/Llama-Nemotron-Post-Training-Dataset",
    hub_files="RL/instruction_following/*.jsonl",
    licence="CC-BY-4.0 (dataset card); its rows say ODC-BY",
    columns=("input", "args"),
    convert=convert,
    paper_rows=10_000,
)
