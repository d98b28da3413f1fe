"""Published chat templates, shortened to the parts for a conversation without tools, and tokenizers that use them. They
differ in how they begin the assistant's turn: with an open thought, with a closed one, or with none."""

from __future__ import annotations

from typing import Any

R1_DISTILL = (
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
    "{% set ns = namespace(system_prompt='') %}"
    "{%- for message in messages %}{%- if message['role'] == 'system' %}"
    "{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}"
    "{%- for message in messages %}"
    "{%- if message['role'] == 'user' %}{{'<｜User｜>' + message['content']}}{%- endif %}"
    "{%- if message['role'] == 'assistant' %}{% set content = message['content'] %}"
    "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}"
    "{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}"
    "{%- endfor -%}"
    "{% if add_generation_prompt %}{{'<｜Assistant｜><think>\\n'}}{% endif %}"
)
"""The template of DeepSeek-R1-Distill-Qwen-1.5B, the model of conf/train.yaml."""

_CHATML = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}"
)
QWEN2_5 = (
    "{%- if messages[0]['role'] != 'system' %}"
    "{{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}"
    "{%- endif %}" + _CHATML + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
QWEN3 = (
    _CHATML + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
    "{%- endif %}"
)
"""With thinking switched on, which is the default, the model itself writes <think>."""
QWEN3_THINKING_OFF = "{%- set enable_thinking = false %}" + QWEN3
QWEN3_THINKING_2507 = (
    _CHATML + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"
)
OPENS_UNASKED = _CHATML + "{{- '<|im_start|>assistant\\n<think>\\n' }}"
"""A template that begins the assistant's turn even if add_generation_prompt is false."""


def tokenizer_with(chat_template: str) -> Any:
    """Returns a tokenizer of transformers with this template and without a vocabulary: only rendered text is tested."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"<unk>": 0}, unk_token="<unk>"))  # type: ignore[call-arg]
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        bos_token="<｜begin▁of▁sentence｜>",
        unk_token="<unk>",
        chat_template=chat_template,
    )
