"""Summarises runs in a few lines each: step, speed, reward, GPU hours, last checkpoint, and warnings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nemo_prorl.commands.output import show
from nemo_prorl.commands.parsing import Parser

DESCRIPTION = """\
It only reads files, so it works at any time and on any machine that shares the folder. A change in brackets is that of
the mean over the last 20 steps from the mean over the 20 before. The exit code is 0 unless a folder is not a run."""

NO_RUNS = "There is no run in runs/. Name the folder of a run: nemo-prorl status RUN_DIR."


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 2 if a folder is not that of a run."""
    parser = Parser("status", __doc__, DESCRIPTION)
    parser.add_argument(
        "runs", nargs="*", type=Path, metavar="RUN_DIR", help="folder of a run (default: those in runs/)"
    )
    parser.add_argument("--json", action="store_true", help="prints a JSON list with one object per run")
    options = parser.parse_args(arguments)
    folders = options.runs or sorted(path.parent for path in Path("runs").glob("*/resolved.yaml"))
    import json
    from dataclasses import asdict

    from nemo_prorl.report.status import read_status, status_lines

    found = [read_status(folder) for folder in folders]
    if options.json:
        show([json.dumps([asdict(status) for status in found], indent=1)])
    else:
        show([line for status in found for line in status_lines(status)] or [NO_RUNS])
    return 2 if any(status.state == "no run" for status in found) else 0
