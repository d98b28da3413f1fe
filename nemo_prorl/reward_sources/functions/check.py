"""Reports mistakes in reward functions in one sentence, before any long work."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from nemo_prorl.config import ConfigError, RewardConfig
from nemo_prorl.reward_sources.functions.grader import OFFERED, Item, arguments
from nemo_prorl.reward_sources.functions.process import (
    CallFailed,
    Description,
    FunctionProcess,
    FunctionUnusable,
)
from nemo_prorl.types import Prompt
from reward.extract import THINK_END
from reward.protocol import ScoreRequest

TRIED_PROMPTS = 4
"""Prompts that `try_functions` needs at most: enough to see whether the values differ."""


def check_functions(reward: RewardConfig, columns: Mapping[str, set[str]]) -> None:
    """Imports each function in a process like the run's, and compares its parameters with the columns of the rows to be
    graded. Raises ConfigError; standard error then has the traceback of the user's file.

    columns: of each file (`columns_of`), or of another source of rows, by a name for the message."""
    if not reward.function:
        return
    if reward.function_python and shutil.which(reward.function_python) is None:
        raise ConfigError(
            f"reward.function_python={reward.function_python} is not a program: write the path of an interpreter."
        )
    for text in reward.function:
        with _started(text, reward) as (_, description):
            _check_parameters(text, description, columns)


def try_functions(reward: RewardConfig, prompts: Sequence[Prompt]) -> list[str]:
    """Calls each function once as a run does, with one made-up response to each of the prompts that have the columns of
    the first, and returns a sentence on what each returned, or that a server which it asks does not answer from here.

    Raises ConfigError for a call that fails otherwise; standard error then has the traceback."""
    batch = [
        _made_up(prompt)
        for prompt in prompts[:TRIED_PROMPTS]
        if prompt.columns.keys() == prompts[0].columns.keys()
    ]
    return [_tried(text, reward, batch) for text in reward.function]


def _tried(text: str, reward: RewardConfig, batch: Sequence[Item]) -> str:
    called = f"reward.function={text}, called with made-up responses to {len(batch)} prompt(s),"
    with _started(text, reward) as (process, description):
        began = time.monotonic()
        try:
            values = process.call(arguments(description, batch), len(batch))
        except CallFailed as error:
            if error.is_network:
                return (
                    f"{called} {error}: a server that it asks does not answer from here, and a run would stop if it "
                    "does not answer there."
                )
            is_slow = str(error).startswith("took longer")
            advice = "make it faster, or raise reward.function_timeout_s" if is_slow else "correct it"
            raise ConfigError(f"{called} {error}: {advice}.") from None
        except FunctionUnusable as error:
            raise ConfigError(f"{called} cannot be used: {error}.") from None
        seconds = time.monotonic() - began
    listed = ", ".join(
        f"{value:g}" if isinstance(value, float | int) else f"nothing ({value})" for value in values
    )
    hint = ""
    if not any(values) and all(_gold(item.prompt) for item in batch):
        hint = " These are the right answers: look whether it reads them as it should."
    return f"{called} returned {listed} after {seconds:.2f} s.{hint}"


def _made_up(prompt: Prompt) -> Item:
    """Returns a response with the right answer, in the form that the prompts of its domain ask for, if it is known."""
    gold = _gold(prompt)
    text = gold or "I do not know."
    request = ScoreRequest(
        request_id=f"try/{prompt.uid}",
        domain=prompt.domain,
        response=f"Easy.\n{THINK_END}\n\n{text}" if prompt.opens_thought else text,
        in_thought=prompt.opens_thought,
        task=prompt.task,
    )
    return Item(request, prompt)


def _gold(prompt: Prompt) -> str:
    """Returns the right answer as a response; empty if the task does not have it."""
    answer, entry = prompt.task.get("answer"), prompt.task.get("entry")
    if isinstance(answer, str):
        return f"\\boxed{{{answer}}}"
    found = entry.get("answer") if isinstance(entry, Mapping) else None
    return f"<answer>{found}</answer>" if isinstance(found, str) else ""


@contextmanager
def _started(text: str, reward: RewardConfig) -> Iterator[tuple[FunctionProcess, Description]]:
    """Yields a process like the run's that has imported the function, and what it says of it. Raises ConfigError."""
    process = FunctionProcess(text, reward, log=None)
    try:
        try:
            description = process.start()
        except FunctionUnusable as error:
            raise ConfigError(f"reward.function={text} cannot be used: {error}.") from None
        yield process, description
    finally:
        process.end()


def _check_parameters(text: str, function: Description, columns: Mapping[str, set[str]]) -> None:
    if not any(function.wants(name) for name in OFFERED if name != "prompts"):
        raise ConfigError(
            f"reward.function={text} has no parameter for what it is to grade: give it one that is named responses."
        )
    for name in function.required:
        lacking = [where for where, names in columns.items() if name not in names]
        if name not in OFFERED and lacking:
            in_every_file = sorted(set.intersection(*columns.values()))
            raise ConfigError(
                f"reward.function={text} has a parameter {name}, and {lacking[0]} has no such column: add the column, "
                f"or give the parameter a default. There are {', '.join([*OFFERED, *in_every_file])}."
            )


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
