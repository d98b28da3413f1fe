"""Finds the label in a row of a data set, and the response in a completion."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from reward.rows import BadLabel

LABEL_COLUMNS = ("label", "ground_truth", "answer")


def label_of(row: Mapping[str, Any], column: str | None = None) -> object:
    """Returns the label of a row, for reward.rows.request_of_label.

    The label is the given column; without one, {"domain", "task"} if the row has both (`task` may be JSON text); else
    the one column of LABEL_COLUMNS that the row has. Fields that are None are dropped: data sets whose rows have
    different fields pad them with None. Raises BadLabel.
    """
    if column is None and row.get("domain") is not None and row.get("task") is not None:
        task = row["task"]
        try:
            task = json.loads(task) if isinstance(task, str) else task
        except ValueError as error:
            raise BadLabel(
                f"the column task must hold an object or its JSON text, not {task[:80]!r}"
            ) from error
        return {"domain": row["domain"], "task": task}
    names = [name for name in LABEL_COLUMNS if row.get(name) is not None] if column is None else [column]
    if len(names) != 1 or row.get(names[0]) is None:
        raise BadLabel(
            f"cannot tell which column is the label: the row has {', '.join(map(repr, row)) or 'no columns'}; it needs"
            f" either domain and task, or one of {', '.join(LABEL_COLUMNS)}, or name the column with label_column"
        )
    label = row[names[0]]
    if isinstance(label, Mapping):
        return {key: value for key, value in label.items() if value is not None}
    return label


def rows_of(columns: Mapping[str, Any], num_rows: int) -> list[dict[str, Any]]:
    """Turns columns (lists) into one dictionary per row. Ignores arguments that are no list of num_rows values."""
    lists = {
        name: values
        for name, values in columns.items()
        if isinstance(values, list | tuple) and len(values) == num_rows
    }
    return [{name: values[index] for name, values in lists.items()} for index in range(num_rows)]


def text_of(completion: object) -> str:
    """Returns the response: the completion itself if it is text, or the last assistant message of a list of messages.
    Raises TypeError for anything else."""
    if isinstance(completion, str):
        return completion
    if not isinstance(completion, list | tuple):
        raise TypeError(f"a completion must be text or a list of messages, not {type(completion).__name__}")
    messages = [message for message in map(_fields, completion) if message.get("role") == "assistant"]
    content = messages[-1].get("content") if messages else None
    if content is None or isinstance(content, str):
        return content or ""
    parts: Iterable[Any] = content if isinstance(content, list | tuple) else [content]
    return "".join(str(_fields(part).get("text") or "") for part in parts)


def _fields(message: object) -> Mapping[str, Any]:
    """Returns a message as a mapping, whether it is one or an object with such attributes."""
    return message if isinstance(message, Mapping) else getattr(message, "__dict__", {})
