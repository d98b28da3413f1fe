"""Reports mistakes in reward functions in one sentence, before any long work."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress

from nemo_prorl.config import ConfigError, RewardConfig
from nemo_prorl.reward_sources.functions.grader import OFFERED
from nemo_prorl.reward_sources.functions.process import Description, FunctionProcess, FunctionUnusable


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
        process = FunctionProcess(text, reward, log=None)
        try:
            description = process.start()
        except FunctionUnusable as error:
            raise ConfigError(f"reward.function={text} cannot be used: {error}.") from None
        finally:
            process.end()
        _check_parameters(text, description, columns)


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
    """Returns the column names of each prompt file. Leaves out a file that cannot be read; that mistake is reported
    where the file is read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {}
    for file in files:
        with suppress(OSError, pa.ArrowException):
            columns[file] = set(pq.read_schema(file).names)
    return columns
