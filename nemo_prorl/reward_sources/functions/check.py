"""Checks reward functions before any long work: that each can be called, and that every rank of a run has the same.
Reports a change when a stage is resumed."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_prorl.config import ConfigError, RewardConfig
from nemo_prorl.reward_sources.functions.grader import OFFERED, Item, arguments
from nemo_prorl.reward_sources.functions.process import FunctionProcess
from nemo_prorl.reward_sources.functions.worker import CallFailed, Description, FunctionUnusable
from nemo_prorl.types import Prompt
from reward.extract import THINK_END
from reward.protocol import ScoreRequest

if TYPE_CHECKING:  # it imports torch, which `train --check` does not need
    from nemo_prorl.distributed import Ranks

TRIED_PROMPTS = 4
"""Prompts that `try_functions` needs at most: enough to see whether the values differ."""


def check_functions(reward: RewardConfig, columns: Mapping[str, set[str]]) -> None:
    """Imports each function in a process like the run's, and compares its parameters with the columns of the rows to be
    graded. Raises ConfigError; standard error then has the traceback of the user's file.

    columns: of each file (`columns_of`), or of another source of rows, by a name for the message."""
    for text in reward.function:
        with _started(text, reward) as (_, function):
            if not any(function.wants(name) for name in OFFERED if name != "prompts"):
                raise ConfigError(
                    f"reward.function={text} has no parameter for what it is to grade: give it one that is named "
                    "responses."
                )
            for name in function.required:
                lacking = [where for where, names in columns.items() if name not in names]
                if name not in OFFERED and lacking:
                    there = [*OFFERED, *sorted(set.intersection(*columns.values()))]
                    raise ConfigError(
                        f"reward.function={text} has a parameter {name}, and {lacking[0]} has no such column: add the "
                        f"column, or give the parameter a default. There are {', '.join(there)}."
                    )


def try_functions(reward: RewardConfig, prompts: Sequence[Prompt]) -> list[str]:
    """Calls each function once as a run does, with made-up responses to the prompts that have the columns of the first.
    Returns a sentence on what each returned, or that a server which it asks does not answer from here.

    Raises ConfigError for a call that fails otherwise; standard error then has the traceback."""
    tried = [p for p in prompts[:TRIED_PROMPTS] if p.columns.keys() == prompts[0].columns.keys()]
    forms: list[list[Item]] = [[], [], []]
    for prompt in tried:
        for form, text in zip(forms, _right_answers(prompt) or ["I do not know."], strict=False):
            request = ScoreRequest(
                request_id=f"try/{prompt.uid}",
                domain=prompt.domain,
                response=prompt.begun + (f"Easy.\n{THINK_END}\n\n" if prompt.opens_thought else "") + text,
                in_thought=prompt.opens_thought,
                task=prompt.task,
            )
            form.append(Item(request, prompt))
    return [_tried(text, reward, [form for form in forms if form]) for text in reward.function]


def _tried(text: str, reward: RewardConfig, forms: Sequence[Sequence[Item]]) -> str:
    called = f"reward.function={text}, called with made-up responses to {len(forms[0])} prompt(s),"
    batch = [item for form in forms for item in form]
    with _started(text, reward) as (running, description):
        began = time.monotonic()
        try:
            values = running.call(arguments(description, batch), len(batch))
        except CallFailed as error:
            if not error.is_network:
                raise ConfigError(
                    f"{called} {error}: correct it, or raise reward.function_timeout_s if it is only slow."
                ) from None
            return (
                f"{called} {error}: a server that it asks does not answer from here, and a run would stop if it does "
                "not answer there."
            )
        seconds = time.monotonic() - began
    listed, returned = iter(values), []
    for form in forms:
        each = [
            f"nothing ({v})" if isinstance(v, str) else f"{v:g}" for _, v in zip(form, listed, strict=False)
        ]
        returned.append(f"{', '.join(each)} for responses such as {form[0].request.response!r}")
    hint, are_right = "", all(_right_answers(item.prompt) for item in batch)
    if not any(values) and are_right:
        hint = " These are the right answers: look whether it reads them as it should."
    elif not are_right and all(isinstance(value, float) and value >= 1 for value in values):
        hint = " These answer nothing: look why it pays for them."
    return f"{called} returned {', and '.join(returned)} after {seconds:.2f} s.{hint}"


def _right_answers(prompt: Prompt) -> list[str]:
    """Returns the right answer alone, and in the forms that prompts ask for; empty if the task does not have it."""
    answer, entry = prompt.task.get("answer"), prompt.task.get("entry")
    if isinstance(answer, str | int | float):
        return [f"{answer}", f"\\boxed{{{answer}}}", f"<answer>{answer}</answer>"]
    found = entry.get("answer") if isinstance(entry, Mapping) else None
    return [found, f"<answer>{found}</answer>"] if isinstance(found, str) else []


@contextmanager
def _started(text: str, reward: RewardConfig) -> Iterator[tuple[FunctionProcess, Description]]:
    """Yields a process like the run's that has imported the function, and what it says of it. Raises ConfigError."""
    running = FunctionProcess(text, reward, log=None)
    try:
        yield running, running.start()
    except FunctionUnusable as error:
        raise ConfigError(f"reward.function={text} cannot be used: {error}.") from None
    finally:
        running.end()


def columns_of(files: Iterable[str]) -> dict[str, set[str]]:
    """Returns the column names of each prompt file, by the name that the user gave it. Leaves out a file that cannot be
    read; that mistake is reported where the file is read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from nemo_prorl.data.rows import CONVERTED_FROM

    columns = {}
    for file in files:
        with suppress(OSError, pa.ArrowException):
            schema = pq.read_schema(file)
            columns[(schema.metadata or {}).get(CONVERTED_FROM, file.encode()).decode()] = set(schema.names)
    return columns


def agreed_digests(config: RewardConfig, ranks: Ranks) -> dict[str, str]:
    """Returns the SHA-256 of each function's file, by FILE.py:NAME. Collective. Raises ConfigError on every rank if a
    machine lacks a file, or has another one."""
    mine = ranks.together(lambda: {text: digest(text) for text in config.function})
    (first_host, first), *others = ranks.gather((platform.node(), mine))
    for other_host, other in others:
        for text in config.function:
            if other[text] != first[text]:
                raise ConfigError(
                    f"reward.function={text} is another file on {other_host} than on {first_host}: copy one of them to "
                    "every machine that trains, because one run must have one reward."
                )
    return mine


def digest(text: str) -> str:
    """Returns the SHA-256 of the file of FILE.py:NAME. Raises ConfigError on a machine that does not have it."""
    try:
        return hashlib.sha256(Path(text.rpartition(":")[0]).read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(
            f"reward.function={text} cannot be read on {platform.node()} ({error.strerror}): it has to be on every "
            "machine that trains, under the same path."
        ) from None


def what_changed(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Says in one sentence how two rewards differ, each given as descriptions of its parts by name
    (`MixedGrader.parts`); empty if they are the same, or if the earlier one is unknown."""
    if not before or before == now:
        return ""
    was, is_now = (" + ".join(f"{name} ({how})" for name, how in of.items()) for of in (before, now))
    return f"the reward has changed since the last checkpoint: it was {was}, and is now {is_now}"
