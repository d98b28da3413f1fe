"""Summarises runs: state, step, reward, time left and alarms; of one run also speed, GPU hours and checkpoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from nemo_prorl.commands.ending import show
from nemo_prorl.commands.parsing import PROGRAM, Parser

DESCRIPTION = """\
Several runs are a table with one line each, one run is described in a few lines, which --long shows of all.

It reads files, and asks squeue about the jobs of these runs. Where that cannot be asked, it guesses from the age of \
the last sign of life (`seen`), and says so. A number in brackets is the change of the mean over the last 20 steps \
from the mean over the 20 before. Exit code: 0, 2 if a folder is not a run."""


def main(arguments: Sequence[str]) -> int:
    """Prints the summaries and returns the exit code: 2 if a folder is not that of a run."""
    parser = Parser("status", __doc__, DESCRIPTION)
    parser.path("runs", "RUN_DIR", "folder of a run (default: those in runs/)", nargs="*")
    parser.flag("--long", "describes every run in a few lines")
    parser.flag("--json", "prints a JSON list with one object per run")
    options = parser.parse_args(arguments)
    folders = options.runs or sorted(path.parent for path in Path("runs").glob("*/resolved.yaml"))
    from nemo_prorl.report.status import ask_for, read_status, status_lines, status_table

    queue = ask_for(folders)
    found = [read_status(folder, queue) for folder in folders]
    if options.json:
        show([json.dumps([asdict(status) for status in found], indent=1)], exact=True)
    elif not found:
        show([f"There is no run in runs/. Name the folder of a run: {PROGRAM} status RUN_DIR."])
    elif len(options.runs) == 1 or options.long:
        show([line for status in found for line in status_lines(status)])
    else:
        show(status_table(found, shutil.get_terminal_size().columns))
    return 2 if any(status.state == "no run" for status in found) else 0
