"""Whatever a column holds, reading a row gives a row or a sentence, never another error."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_prorl.config import ConfigError
from nemo_prorl.data.building.source import NoRow, Record
from nemo_prorl.data.layouts import BadRecord, recognise, row_of
from nemo_prorl.data.sources import deepscaler, eurus, goosereason, llama_nemotron_if, scp116k
from nemo_prorl.evaluation.schemas import answers, human_eval, instructions, programs, puzzles

FIELDS = (
    "role",
    "content",
    "answer",
    "input",
    "output",
    "inputs",
    "outputs",
    "func_name",
    "ground_truth",
    "task",
)
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.sampled_from(["", "user", "4", "nan", "[", "{", "####", r"\boxed{4}", "functional", "code", "\ud83d"]),
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3)
    ),
    max_leaves=6,
)
CELLS = st.one_of(VALUES, VALUES.map(json.dumps), st.binary(max_size=3))
"""A value, or its JSON text as a CSV file has it, which may hold NaN."""

SCHEMAS: dict[str, tuple[Callable[[Record], object], tuple[str, ...]]] = {
    "answers": (answers.convert, ("problem", "answer", "final_answer", "solution", "context")),
    "choices": (answers.choices, ("question", "choices", "answer")),
    "gpqa": (answers.choices, ("Question", "Correct Answer", "Incorrect Answer 1")),
    "programs": (programs.convert, ("problem", "tests", "input_output", "demo-input", "starter_code")),
    "livecodebench": (
        programs.convert,
        ("question_content", "public_test_cases", "private_test_cases", "metadata"),
    ),
    "prime": (programs.convert, ("data_source", "prompt", "ability", "reward_model", "extra_info")),
    "human_eval": (human_eval.convert, ("prompt", "entry_point", "test", "canonical_solution")),
    "instructions": (instructions.convert, ("prompt", "instruction_id_list", "kwargs")),
    "puzzles": (puzzles.row, ("messages", "task")),
    "deepscaler": (deepscaler.convert, deepscaler.SOURCE.columns),
    "eurus": (eurus.convert, eurus.SOURCE.columns),
    "llama_nemotron_if": (llama_nemotron_if.convert, llama_nemotron_if.SOURCE.columns),
    "goosereason": (goosereason.convert, goosereason.SOURCE.columns),
    "scp116k": (scp116k.convert, ("problem", "solution", "r1_response", "domain")),
}


@pytest.mark.medium
@pytest.mark.parametrize("name", SCHEMAS)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_every_schema_reads_any_value(name: str, data: st.DataObject) -> None:
    convert, columns = SCHEMAS[name]
    values = {column: data.draw(CELLS, label=column) for column in columns}
    with suppress(NoRow, ConfigError):
        convert(Record(values=values, split="test", origin="file:0"))


COLUMNS = (
    "messages",
    "prompt",
    "task",
    "answer",
    "reward_model",
    "solution",
    "domain",
    "extra_info",
    "uid",
    "images",
)


@pytest.mark.medium
@settings(max_examples=60, deadline=None, derandomize=True)
@given(values=st.dictionaries(st.sampled_from(COLUMNS), CELLS, min_size=2, max_size=4))
def test_every_layout_reads_any_value(values: dict[str, Any]) -> None:
    with suppress(BadRecord, ConfigError):
        layout = recognise(values, needs_answer=True)
        row_of(values, layout, uid="a/0", source="a", split="train", needs_answer=True)
