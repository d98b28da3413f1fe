"""Turns a row of another trainer's data set, a response and a label, into a request. Standard library only, so that
adapters which run inside other trainers can import it.

The first rule that fits decides what a label means:

1. An object, or the JSON text of an object, with "domain" and an object "task": {"domain": "logic", "task": {"task":
   "chain_sum", "entry": {...}}}. Without an object "task", the fields beside "domain" are the task: {"domain": "stem",
   "answer": "B"}.
2. An object, or the JSON text of one, with a task's fields has that task's domain: "inputs" and "outputs": code;
   "instruction_id_list": instruction; "task" and "entry": logic; "answer": the default domain.
   So verl's `ground_truth` of a code row, a JSON text with "inputs" and "outputs", is a code task.
3. Any other text or number is the answer, if the default domain is math or stem. Text that only looks like data, such
   as `[1, 2]`, `{1,2}`, `(0, 1)` or `{}`, is an answer too.

Everything else (nothing, NaN, true, a list, an object of no known form) raises BadLabel, because every response would
be wrong against such a label. `answer_text` says what an answer may be.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from reward.extract import THINK_START
from reward.graders.grade import is_number
from reward.graders.registry import domains
from reward.protocol import ScoreRequest

ANSWER_DOMAINS = ("math", "stem")
"""The domains whose task is an answer, so that a bare text can be the label."""
_FORMS = '"inputs" and "outputs", "instruction_id_list", "task" and "entry", or "answer"'
_END_TOKEN = re.compile(r"(?:<\|[a-z_]{1,30}\|>|<｜[^｜<>]{1,40}｜>|</s>|<eos>|<pad>|<end_of_turn>)\Z")
_LONGEST_END_TOKEN = 50


class BadLabel(ValueError):
    """A label that defines no task; the message is one sentence for the person who made the data set."""


class NoAnswer(BadLabel):
    """A label that holds nothing, such as an empty field or the NaN that pandas writes for one."""


def request_of_label(
    response: str,
    label: object,
    *,
    domain: str = "math",
    in_thought: bool = False,
) -> ScoreRequest:
    """Returns the request to grade `response` against `label`, by the rules at the top of this file.

    `domain`: the domain of labels that do not name one. `in_thought`: as in ScoreRequest, see `opens_thought`. The id
    is a hash of the content, so that the service answers a repeated request from its cache.

    Raises BadLabel.

    Example: request_of_label("<think>..</think> \\\\boxed{4}", "4").task == {"answer": "4"}
    """
    domain, task = domain_and_task(label, domain)
    request_id = content_id(domain, response, in_thought, task)
    return ScoreRequest(
        request_id=request_id, domain=domain, response=response, in_thought=in_thought, task=task
    )


def domain_and_task(label: object, default_domain: str = "math") -> tuple[str, dict[str, Any]]:
    """Returns the domain and the task that a label defines, by the rules at the top of this file. Converts numpy's
    numbers and arrays, as Parquet readers return them, to Python's own for JSON. Raises BadLabel."""
    label = _plain(label)
    if default_domain not in domains():
        raise BadLabel(f"unknown domain {default_domain[:80]!r}; there are {', '.join(domains())}")
    fields = label if isinstance(label, Mapping) else None
    if isinstance(label, str) and label.lstrip().startswith("{"):
        with suppress(ValueError, RecursionError):
            fields = json.loads(label) or None  # `{}` is the empty set, an answer
    if fields is not None:
        return _domain_and_task_of(dict(fields), default_domain)
    answer = answer_text(label)
    if default_domain not in ANSWER_DOMAINS:
        raise BadLabel(
            f"a {default_domain} label must be an object with the task's fields; {answer[:60]!r} is text"
        )
    return default_domain, {"answer": answer}


def answer_text(value: object) -> str:
    """Returns an answer as the text with which responses are compared: 27.0, as tables store whole numbers beside
    missing ones, is 27. Raises NoAnswer for nothing, white space, NaN (also as text) and infinity, and BadLabel for
    what is neither text nor a number."""
    if value is None:
        raise NoAnswer("the label is NoneType, which is no answer")
    if not is_number(value) and not isinstance(value, str):
        raise BadLabel(
            f"a label must be an answer (text or a number) or an object with a task, not {type(value).__name__}"
        )
    text = str(int(value) if isinstance(value, float) and value.is_integer() else value)
    if not text.strip():
        raise NoAnswer("the label is empty; it must be the right answer, or an object with a task")
    if (isinstance(value, float) and not math.isfinite(value)) or text.strip().lower() == "nan":
        raise NoAnswer(f"the label is {text.strip()}, which is no answer")
    return text


def with_answer_text(domain: str, task: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a task with its answer, if the domain's tasks are answers, as `answer_text` has it. Raises BadLabel."""
    if domain in ANSWER_DOMAINS and "answer" in task:
        return {**task, "answer": answer_text(task["answer"])}
    return dict(task)


def opens_thought(prompt: object) -> bool:
    """Whether a prompt, after its chat template, ends with <think> and so leaves a thought open for the response, as
    with DeepSeek-R1-Distill and Qwen3's thinking models. A question that only mentions <think> opens none; a list of
    messages does not show what the template adds."""
    return isinstance(prompt, str) and prompt.rstrip().endswith(THINK_START)


def without_end_tokens(response: str) -> str:
    """Returns a response without end-of-turn and padding tokens, which trainers leave in the text that they send
    (`<|im_end|>`, `<｜end▁of▁sentence｜>`, `</s>`, ...). A rule about the last word would see them."""
    text = response.rstrip()
    while token := _END_TOKEN.search(text, max(0, len(text) - _LONGEST_END_TOKEN)):
        response = text[: token.start()]
        text = response.rstrip()
    return response


def content_id(*content: object) -> str:
    """Returns a request id that depends on the content alone."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def _plain(value: object) -> object:
    """Replaces numpy's numbers and arrays by Python's own; both have the method `tolist`. Raises BadLabel for what JSON
    cannot carry."""
    try:
        return json.loads(json.dumps(value, default=lambda item: item.tolist()))
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise BadLabel(f"the label cannot be written as JSON: {error}") from error


def _domain_and_task_of(fields: dict[str, Any], default_domain: str) -> tuple[str, dict[str, Any]]:
    if "domain" in fields:
        domain = fields.pop("domain")
        if not isinstance(domain, str) or domain not in domains():
            raise BadLabel(
                f"the label has the unknown domain {str(domain)[:80]!r}; there are {', '.join(domains())}"
            )
        task = fields["task"] if isinstance(fields.get("task"), dict) else fields
        return domain, with_answer_text(domain, task)
    if "inputs" in fields and "outputs" in fields:
        return "code", fields
    if "instruction_id_list" in fields:
        return "instruction", fields
    if "task" in fields and "entry" in fields:
        return "logic", fields
    if "answer" in fields:
        if default_domain not in ANSWER_DOMAINS:
            raise BadLabel(f'the label has an "answer", which is no task of the domain {default_domain}')
        return default_domain, with_answer_text(default_domain, fields)
    raise BadLabel(
        f"the label is an object with {', '.join(map(repr, list(fields)[:8])) or 'no fields'}; "
        f'a task has {_FORMS}, or a "domain" beside its fields'
    )
