"""What can be wrong with reward functions, said in one sentence before any long work."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from nemo_prorl.config import ConfigError, RunConfig
from nemo_prorl.reward_function.grader import OFFERED
from nemo_prorl.reward_function.process import Description, FunctionProcess, FunctionUnusable


def check_functions(config: RunConfig) -> None:
    """Imports each function in a process like that of the run, and compares its parameters with the columns of
    data.train and data.validation. Raises ConfigError; a traceback of the user's file is on standard error then."""
    reward = config.reward
    if not reward.function:
        return
    if reward.function_python and shutil.which(reward.function_python) is None:
        raise ConfigError(
            f"reward.function_python={reward.function_python} is not a program: write the path of an interpreter."
        )
    columns = {path: _columns(Path(path)) for path in (*config.data.train, *config.data.validation)}
    for text in reward.function:
        process = FunctionProcess(text, reward, log=None)
        try:
            description = process.start()
        except FunctionUnusable as error:
            raise ConfigError(f"reward.function={text} cannot be used: {error}.") from None
        finally:
            process.end()
        _check_parameters(text, description, columns)


def _check_parameters(text: str, function: Description, columns: dict[str, set[str]]) -> None:
    if not any(function.wants(name) for name in OFFERED if name != "prompts"):
        raise ConfigError(
            f"reward.function={text} has no parameter for what it is to grade: give it one that is named responses."
        )
    for name in function.required:
        lacking = [path for path, names in columns.items() if name not in names]
        if name not in OFFERED and (lacking or not columns):
            raise ConfigError(
                f"reward.function={text} has a parameter {name}, and {lacking[0] if lacking else 'no data file'} has "
                f"no such column: add the column, or give the parameter a default. There are "
                f"{', '.join([*OFFERED, *_common(columns.values())])}."
            )


def _common(columns: Iterable[set[str]]) -> list[str]:
    """Columns that every file has."""
    return sorted(set.intersection(*columns)) if columns else []


def _columns(path: Path) -> set[str]:
    """Names of a prompt file's columns. What is wrong with the file is said where it is read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return set(pq.read_schema(path).names)
    except (OSError, pa.ArrowException):
        return set()
