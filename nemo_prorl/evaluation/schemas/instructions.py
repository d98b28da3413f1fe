"""Prompts with IFEval's verifiable instructions."""

from __future__ import annotations

from nemo_prorl.data.building.source import Dropped, Problem, Record
from nemo_prorl.data.sources.llama_nemotron_if import without_nulls
from nemo_prorl.evaluation.benchmark import missing_column


def convert(record: Record) -> Problem:
    """Reads google-research's input_data.jsonl, and the hub's copies of it, which list every argument of every rule,
    mostly as null. Graded strictly, after </think>; the prompt asks for no format (ProRL, appendix D.5). Raises
    Dropped."""
    prompt, ids = record.values.get("prompt"), record.values.get("instruction_id_list")
    if not isinstance(prompt, str) or not isinstance(ids, list):
        raise missing_column(record, "prompt and instruction_id_list")
    kwargs = record.values.get("kwargs")
    if not isinstance(kwargs, list) or len(kwargs) != len(ids):
        raise Dropped("no_arguments")
    return Problem(
        question=prompt,
        task={"instruction_id_list": list(ids), "kwargs": [without_nulls(one) for one in kwargs]},
    )
