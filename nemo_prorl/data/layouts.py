"""Recognises how people lay out problems (plain columns, TRL's and verl's data sets) and turns a record into a row.

The prompt is in the first of PROMPT_COLUMNS that a file has: a text, which becomes the user's turn, or a list of
messages with role and content. A conversation that includes the model's answer, as in data sets for fine-tuning, is
passed over if a later column has the prompt. The task is in `task` (an object), or its label is in the first of
ANSWER_COLUMNS, which comes before a `task` that is no object (some data sets name the subject there); reward/rows.py
says what a label may be. verl keeps the label in the field `ground_truth` of `reward_model`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nemo_prorl.config import ConfigError
from nemo_prorl.data.rows import Row, split_answer
from reward.extract import joined_boxes
from reward.protocol import DOMAINS
from reward.rows import ANSWER_DOMAINS, BadLabel, NoAnswer, domain_and_task, with_answer_text

PROMPT_COLUMNS = ("messages", "prompt", "problem", "question")
ANSWER_COLUMNS = ("answer", "ground_truth", "reward_model", "solution")
"""`solution` comes last: beside a column with the answer it usually holds the working."""
KNOWN = (
    f"A file has a prompt ({', '.join(PROMPT_COLUMNS[:-1])} or {PROMPT_COLUMNS[-1]}) and an answer (answer, solution, "
    "ground_truth, reward_model with ground_truth as verl has it, or domain and task as docs/data.md says)"
)
_MEDIA = re.compile(r"(image|video|audio)s?(_\d+)?", re.IGNORECASE)
"""Names of columns that hold what a text model cannot see, as in geo3k and OlympiadBench."""
_ANSWER_MARK = "####"
"""Begins the last line of a solution of GSM8K. Elsewhere it begins a heading of Markdown."""
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")
_COMMAND = re.compile(r"\\[a-zA-Z]+")


class BadRecord(ValueError):
    """A record that makes no row; the text completes the sentence "row 3 ..."."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnLayout:
    """Which columns of a file hold what. Example: ColumnLayout(prompt="problem", label="answer")"""

    prompt: str
    label: str
    """Empty: there is none, and only reward functions of the user's own grade the rows."""

    def __str__(self) -> str:
        label = "reward_model.ground_truth" if self.label == "reward_model" else self.label
        if not label:
            return f"prompts from {self.prompt}, no answers"
        return f"prompts from {self.prompt}, {'tasks' if label == 'task' else 'answers'} from {label}"


def recognise(first: Mapping[str, Any], *, needs_answer: bool) -> ColumnLayout:
    """The layout of a file with this first record. needs_answer: whether the reward service grades.

    Raises ConfigError that lists the columns and the layouts that are known."""
    labels = ("task", *ANSWER_COLUMNS) if _object(first.get("task")) else (*ANSWER_COLUMNS, "task")
    prompts = [name for name in PROMPT_COLUMNS if name in first]
    prompt = next((name for name in prompts if not _is_answered(first[name])), next(iter(prompts), ""))
    label = next((name for name in labels if name in first), "")
    if not prompt or (needs_answer and not label):
        lacks = "prompt" if not prompt else "answer"
        advice = (
            "" if lacks == "prompt" else ", or write reward.function with a function that needs no answer"
        )
        columns = [name if name == name.strip() else repr(name) for name in sorted(first)]
        raise ConfigError(
            f"no {lacks} is recognised among the columns {', '.join(columns) or '(none)'}. {KNOWN}: rename a "
            f"column{advice}."
        )
    return ColumnLayout(prompt=prompt, label=label)


def row_of(
    values: Mapping[str, Any], layout: ColumnLayout, *, uid: str, source: str, split: str, needs_answer: bool
) -> Row:
    """The row of one record. `uid`, `source` and `split` are for records that do not say their own.

    With needs_answer=False a label that says no task leaves the task empty. Raises BadRecord."""
    if media := shown_media(values):
        raise BadRecord(f"has {media}, which the model would not see")
    extra_info = values.get("extra_info")
    info = extra_info if isinstance(extra_info, Mapping) else {}
    try:
        domain, task = _domain_and_task(values, layout, info)
    except (BadRecord, BadLabel) as error:
        if needs_answer:
            raise _as_bad_record(error, layout) from None
        domain, task = _word(values, "domain") or "math", {}
    row = Row(
        uid=_word(values, "uid") or uid,
        domain=domain,
        source=_text(values.get("source")) or _text(values.get("data_source")) or source,
        split=_text(values.get("split")) or _text(info.get("split")) or split,
        messages=_messages(values.get(layout.prompt), layout.prompt),
        task=task,
    )
    begun = split_answer(row.messages)[1]
    if begun and final_answer(begun) == task.get("answer"):
        raise BadRecord(
            f"has the right answer at the end of {layout.prompt}, which the model is to find: take the last message "
            "out, or cut it before the answer"
        )
    try:
        json.dumps([*row.columns.values()], ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError):
        raise BadRecord("has a value that JSON in UTF-8 cannot hold") from None
    return row


def is_media(column: str) -> bool:
    """Returns whether a column's name says that it holds images, videos or sound."""
    return _MEDIA.fullmatch(column) is not None


def shown_media(values: Mapping[str, Any]) -> str:
    """Returns the first column that holds images, videos or sound; empty if there is none."""
    return next((name for name, value in values.items() if is_media(str(name)) and _holds(value)), "")


def final_answer(text: str) -> str:
    r"""The answer of a text that may also hold the working: what follows GSM8K's `####` in the last line, or the
    content of the last `\boxed{}` as in MATH, or else the whole text."""
    last_line = text.strip().rpartition("\n")[2]
    marked = last_line.removeprefix(_ANSWER_MARK).strip() if last_line.startswith(_ANSWER_MARK) else ""
    return joined_boxes(marked) or marked or joined_boxes(text) or text.strip()


def is_prose(answer: str) -> bool:
    """Returns whether an answer is working rather than an answer: several lines, but for LaTeX's environments, or
    several sentences of some letters each. No boxed answer equals such a text."""
    if "\n" in answer and r"\begin" not in answer:
        return True
    sentences = _SENTENCE_END.split(_COMMAND.sub("", answer))
    return sum(sum(map(str.isalpha, sentence)) >= 3 for sentence in sentences) > 1


def _domain_and_task(
    values: Mapping[str, Any], layout: ColumnLayout, info: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    label = values.get(layout.label)
    if layout.label == "reward_model":
        model = _object(label)
        if model is None or "ground_truth" not in model:
            raise BadRecord("has a reward_model without ground_truth")
        label = model["ground_truth"]
    label = _without_nulls(label)
    domain = _word(values, "domain") or _text(info.get("domain"))
    if layout.label == "task":
        found = _object(label)
        if found is None:
            raise BadRecord("has a task that is not a JSON object")
        domain, fields = domain or "math", found
        return domain, with_answer_text(domain, fields)
    if not domain and values.get("ability") in ANSWER_DOMAINS:
        domain = str(values["ability"])
    if domain and domain not in DOMAINS:  # of a grader plug-in, which alone knows its tasks
        if not _holds(label):
            raise BadRecord(f"has no {layout.label or 'answer'}")
        return domain, _object(label) or {"answer": str(label)}
    domain, task = domain_and_task(label, domain or "math")
    if isinstance(label, str) and task == {"answer": label}:
        task = {"answer": final_answer(label)}
        if layout.label == "solution" and is_prose(task["answer"]):
            raise BadRecord(
                f"has a solution that gives its answer neither in \\boxed{{}} nor after {_ANSWER_MARK} in the last line"
            )
    return domain, task


def _as_bad_record(error: BadRecord | BadLabel, layout: ColumnLayout) -> BadRecord:
    if isinstance(error, BadRecord):
        return error
    if isinstance(error, NoAnswer):
        return BadRecord(f"has no {layout.label or 'answer'}")
    return BadRecord(f"has a label in {layout.label} that is no task ({error})")


def _messages(value: Any, column: str) -> tuple[dict[str, str], ...]:
    """The conversation that the model goes on with, of a text, a list of messages, or the JSON text of such a list. The
    text of a message may be in parts of type text."""
    if isinstance(value, str):
        value = _turns(value) or [{"role": "user", "content": value}]
    if not isinstance(value, list | tuple) or not value:
        raise BadRecord(f"has no {column}")
    messages = []
    for message in value:
        role = message.get("role") if isinstance(message, Mapping) else None
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, list | tuple):
            texts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
            whole = [text for text in texts if isinstance(text, str)]
            content = "".join(whole) if len(whole) == len(texts) else None
        if not isinstance(role, str) or not isinstance(content, str):
            raise BadRecord(f"has a message in {column} without a role and a content that are text")
        messages.append({"role": role, "content": content})
    if not any(message["content"].strip() for message in split_answer(messages)[0]):
        raise BadRecord(f"has an empty {column}")
    return tuple(messages)


def _is_answered(value: Any) -> bool:
    """Returns whether a conversation ends with the assistant's turn."""
    turns = _turns(value)
    return bool(turns) and isinstance(turns[-1], Mapping) and turns[-1].get("role") == "assistant"


def _turns(value: Any) -> list[Any]:
    """The turns of a conversation, given as a list, or as the JSON text of one, as a CSV file has it; empty for any
    other text."""
    if isinstance(value, list | tuple):
        return list(value)
    found = _parsed(value) if isinstance(value, str) and value.lstrip().startswith("[") else None
    if not isinstance(found, list):
        return []
    return found if all(isinstance(one, dict) and "role" in one for one in found) else []


def _object(value: Any) -> dict[str, Any] | None:
    value = _parsed(value) if isinstance(value, str) else value
    return dict(value) if isinstance(value, Mapping) else None


def _parsed(text: str) -> Any:
    """What a text spells as JSON; None if it spells nothing."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _holds(value: Any) -> bool:
    """Returns whether a column of a row has a value: not null, NaN, or an empty text or list, also as JSON."""
    if isinstance(value, str):
        return value.strip().lower() not in ("", "[]", "{}", "null", "none", "nan")
    if isinstance(value, Mapping):
        return any(map(_holds, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_holds, value))
    return value is not None and value == value  # NaN differs from itself


def _without_nulls(value: Any) -> Any:
    """Files whose rows differ in the fields of an object fill the others up with null."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value


def _word(values: Mapping[str, Any], column: str) -> str:
    """The text of a column that says what the row is, a whole number as text; empty for none. Raises BadRecord."""
    value = values.get(column)
    if isinstance(value, bool) or not isinstance(value, str | int | None):
        raise BadRecord(f"has a {column} that is no text")
    return "" if value is None else str(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
