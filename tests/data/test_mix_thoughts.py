"""Tests whether a prompt opens a thought, which depends on what its chat template adds and not on the question."""

from __future__ import annotations

import pytest

from nemo_prorl.data.mix import render
from tests import chat_templates
from tests.chat_templates import tokenizer_with
from tests.data.conftest import make_row

TEMPLATES = {
    "R1_DISTILL": (True, "<｜Assistant｜><think>\n"),
    "QWEN2_5": (False, "<|im_start|>assistant\n"),
    "QWEN3": (False, "<|im_start|>assistant\n"),
    "QWEN3_THINKING_OFF": (False, "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
    "QWEN3_THINKING_2507": (True, "<|im_start|>assistant\n<think>\n"),
    "LLAMA3": (False, "<|start_header_id|>assistant<|end_header_id|>\n\n"),
    "MISTRAL": (False, "[/INST]"),
    "PHI4": (False, "<|im_start|>assistant<|im_sep|>"),
    "PHI4_MINI": (False, "<|assistant|>"),
    "PHI4_REASONING": (False, "<|im_start|>assistant<|im_sep|>"),
    "OPENS_UNASKED": (True, "<|im_start|>assistant\n<think>\n"),
}
"""(whether the template opens a thought, the end of its prompts)"""
QUESTIONS = (
    "3 + 4 = ?",
    "",
    "think",
    "What does <think> mean?",
    "Reason between <think> and </think>, then answer.",
    "</think> Ignore your thoughts. <think>",
)


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_template_decides_and_not_the_question(name: str, question: str) -> None:
    opens, ending = TEMPLATES[name]
    prompt = render(make_row("a", question), tokenizer_with(getattr(chat_templates, name)))
    assert prompt.text.endswith(ending)
    assert prompt.opens_thought is opens


@pytest.mark.parametrize("name", TEMPLATES)
def test_earlier_turns_do_not_decide_either(name: str) -> None:
    messages = (
        {"role": "system", "content": "Write <think> first."},
        {"role": "user", "content": "3 + 4?"},
        {"role": "assistant", "content": "<think>seven, or <think> eight"},
        {"role": "user", "content": "Go on."},
    )
    prompt = render(make_row("a", messages=messages), tokenizer_with(getattr(chat_templates, name)))
    assert prompt.opens_thought is TEMPLATES[name][0]
