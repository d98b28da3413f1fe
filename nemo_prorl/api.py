"""The Python API, for notebooks and scripts: starts the command `train`, and reads runs. Imports nothing heavy.

run = nemo_prorl.train("runs/mine", "laptop", trainer={"num_steps": 2})
run.metrics()[-1]["reward/mean"]
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nemo_prorl.report.status import RunStatus


class Run:
    """A run's folder, live or finished. Every call reads it anew."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def metrics(self) -> list[dict[str, Any]]:
        """Returns a dict for every step, and for the validation before a stage's first: `step`, `stage`, and metrics by
        name (docs/reference/metrics.md). `pandas.DataFrame(run.metrics())` is a table of them. Raises ConfigError if
        the run has recorded nothing yet."""
        from nemo_prorl.run_folder.run import read_run

        return [dict(record) for record in read_run(self.folder).records]

    def status(self) -> RunStatus:
        """Returns what `nemo-prorl status` knows; printing it shows the same lines."""
        from nemo_prorl.report.status import ask_for, read_status

        return read_status(self.folder, ask_for([self.folder]))

    def report(self, out: str | Path = "", *, with_pictures: bool = True) -> Path:
        """Writes the report and returns the page, by default report.html in the run's folder. Raises ConfigError if the
        run has recorded nothing yet."""
        from nemo_prorl.report.page import write_report

        page = Path(out or self.folder / "report.html")
        write_report([self.folder], page, with_pictures=with_pictures)
        return page

    def export(self, out: str | Path, *arguments: str) -> Path:
        """Writes the newest checkpoint as a Hugging Face folder, in a process of its own, and returns the folder.
        arguments: of `nemo-prorl export`, such as "--dtype", "bf16". Raises RuntimeError if that fails."""
        _command("export", str(self.folder), str(out), *arguments)
        return Path(out)


def train(folder: str | Path, config_name: str = "train", *, num_ranks: int = 1, **options: Any) -> Run:
    """Trains a stage in `folder`, or continues it, as `nemo-prorl train` does in processes of its own, and returns the
    run when it has ended or paused. Prints what the command prints.

    config_name: a file of conf/ or a path. options: those of the command line, by section: trainer={"num_steps": 2}.
    data={"train": rows} may be a list of dicts, which is written to RUN/data, and reward={"function": score} a function
    of a Python file. An interrupt pauses the run, as Ctrl-C does. Raises RuntimeError if the command fails.
    """
    run = Run(folder)
    given = {**options, "exp_manager": {**options.get("exp_manager", {}), "explicit_log_dir": str(folder)}}
    overrides = list(_overrides(given, run.folder))
    _command("train", "--config-name", config_name, *overrides, num_ranks=num_ranks)
    return run


def _overrides(options: Mapping[str, Any], folder: Path, prefix: str = "") -> Iterator[str]:
    """Yields NAME=VALUE as on the command line."""
    from nemo_prorl.config.help import options as known
    from nemo_prorl.run_folder.storage import replace_text

    for name, value in options.items():
        key = prefix + name
        if isinstance(value, Mapping) and key not in known():
            yield from _overrides(value, folder, f"{key}.")
            continue
        if key.startswith("data.") and isinstance(value, list) and value and isinstance(value[0], Mapping):
            lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in value]
            file = folder / "data" / f"{key.removeprefix('data.')}.jsonl"
            replace_text(file, "".join(lines))
            value = [file]
        yield f"{key}={_text(value)}"


def _text(value: Any) -> str:
    """Returns a value in the grammar of the command line."""
    from nemo_prorl.config.compose import quoted  # loads Hydra

    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_text(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_text, value)) + "]"
    if callable(value):
        value = _reference(value)
    return quoted(str(value)) if isinstance(value, str | Path) else json.dumps(value)


def _reference(function: Callable[..., Any]) -> str:
    """Returns FILE:NAME of a function. Raises ConfigError for one that no other process can import."""
    from nemo_prorl.config import ConfigError

    name, file = function.__qualname__, inspect.getsourcefile(function)
    if name.isidentifier() and file and Path(file).is_file():
        return f"{file}:{name}"
    raise ConfigError(
        f"{name} is not at the top of a Python file: write it into one, and import it from there."
    )


def _command(*arguments: str, num_ranks: int = 1) -> None:
    """Runs `python -m nemo_prorl` and prints what it prints. Raises RuntimeError if it fails."""
    from nemo_prorl.cluster.local_ranks import start_ranks

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    # A session of its own, so that an interrupt reaches it once.
    process = start_ranks(["nemo_prorl", *arguments], num_ranks=num_ranks, start_new_session=True, **pipes)
    assert process.stdout is not None
    last = ""
    while True:
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                last = line.strip() or last
            code = process.wait()
            break
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGINT)
    if code not in (0, 128 + signal.SIGINT):
        raise RuntimeError(f"nemo-prorl {arguments[0]} ended with exit code {code}: {last}")
