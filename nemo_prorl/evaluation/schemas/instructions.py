"""Prompts with IFEval's verifiable instructions."""

from __future__ import annotations

from nemo_prorl.data.building.source import NoRow, Problem, Record
from nemo_prorl.data.sources.llama_nemotron_if import without_nulls
from nemo_prorl.evaluation.benchmark import missing_column


def convert(record: Record) -> Problem:
    """Reads google-research's input_data.jsonl, and the hub's copies of it, which list every argument of every rule,
    mostly as null. Graded strictly, after </think>; the prompt asks for no format (ProRL, appendix D.5). Raises
    NoRow, and ConfigError for a damaged record."""
    prompt = record.values.get("prompt")
    if not isinstance(prompt, str) or "instruction_id_list" not in record.values:
        raise missing_column(record, "prompt and instruction_id_list")
    ids, kwargs = record.list("instruction_id_list"), record.list("kwargs")
    if not ids or len(kwargs) != len(ids):
        raise NoRow("no_arguments")
    return Problem(
        question=prompt,
        task={"instruction_id_list": list(ids), "kwargs": [without_nulls(one) for one in kwargs]},
    )
