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

LLAMA3 = (
    "{{- bos_token }}"
    "{%- if messages[0]['role'] == 'system' %}"
    "{%- set system = messages[0]['content'] | trim %}{%- set turns = messages[1:] %}"
    "{%- else %}{%- set system = '' %}{%- set turns = messages %}{%- endif %}"
    "{{- '<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n' }}"
    "{{- 'Today Date: 26 Jul 2024\n\n' + system + '<|eot_id|>' }}"
    "{%- for message in turns %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{{- message['content'] | trim + '<|eot_id|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
MISTRAL = (
    "{%- if messages[0]['role'] == 'system' %}"
    "{%- set system = messages[0]['content'] + '\n\n' %}{%- set turns = messages[1:] %}"
    "{%- else %}{%- set system = '' %}{%- set turns = messages %}{%- endif %}"
    "{{- bos_token }}"
    "{%- for message in turns %}"
    "{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{- raise_exception('conversation roles must alternate user/assistant/user/assistant/...') }}{%- endif %}"
    "{%- if message['role'] == 'user' %}"
    "{{- '[INST]' + (system if loop.last else '') + message['content'] + '[/INST]' }}"
    "{%- else %}{{- message['content'] + eos_token }}{%- endif %}"
    "{%- endfor %}"
)
"""The template of Mistral Nemo: nothing begins the assistant's turn, so add_generation_prompt makes no difference."""
PHI4_MINI = (
    "{%- for message in messages %}{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- else %}{{- eos_token }}{%- endif %}"
)
PHI4 = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '<|im_sep|>' + message['content'] + '<|im_end|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant<|im_sep|>' }}{%- endif %}"
)
PHI4_REASONING = (
    "{{- '<|im_start|>system<|im_sep|>Structure your response into two sections: ' }}"
    "{{- '<think> {Thought section} </think> {Solution section}.<|im_end|>' }}" + PHI4
)
"""Its system turn names the tags, and the model itself writes <think>."""


def tokenizer_with(chat_template: str, end_of_turn: str = "<end>") -> Any:
    """Returns a tokenizer of transformers with this template, and without words: 0 stands for all. 1 is the
    end-of-sequence token, 2 the end of a turn."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    vocab = {"<unk>": 0, "<eos>": 1, end_of_turn: 2}
    words = Tokenizer(WordLevel(vocab, unk_token="<unk>"))  # type: ignore[call-arg]
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        bos_token="<｜begin▁of▁sentence｜>",
        unk_token="<unk>",
        eos_token="<eos>",
        extra_special_tokens=[end_of_turn],
        chat_template=chat_template,
    )
