"""Instruction following: prompts with IFEval's verifiable instructions, from NVIDIA's Llama-Nemotron data.

A record has `input` (turns) and `args` with instruction_id_list and instruction_kwargs, which list every argument of
every rule, most of them null. Its system turn switches reasoning off in the Llama-Nemotron models and is dropped.

Rows ask for strict grading: the official evaluator's holes are closed, so that training does not teach them. `evaluate`
grades IFEval as its authors do.
"""

from __future__ import annotations

import json
from typing import Any

from nemo_prorl.data.building.source import NoRow, Problem, Record, Source, only_user_turn


def convert(record: Record) -> Problem:
    """Turns a record into a problem. Raises NoRow, and ConfigError for a damaged one."""
    arguments = record.object("args")
    ids, kwargs = arguments.get("instruction_id_list"), arguments.get("instruction_kwargs")
    if not ids or not isinstance(ids, list) or not isinstance(kwargs, list):
        raise NoRow("no_instructions")
    return Problem(
        question=only_user_turn(record.values["input"], otherwise="not_one_user_turn").strip(),
        task={
            "instruction_id_list": list(ids),
            "kwargs": [without_nulls(one) for one in kwargs],
            "strict": True,
        },
    )


def without_nulls(arguments: Any) -> dict[str, Any]:
    """Returns a rule's arguments, given as an object or its JSON text, without nulls; 0 and the empty text are values.
    Raises NoRow for anything else."""
    try:
        given = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        raise NoRow("arguments_not_json") from None
    if not isinstance(given, dict | None):
        raise NoRow("arguments_not_an_object")
    return {name: value for name, value in (given or {}).items() if value is not None}


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
