"""Markers of how a stage ended: RUN/stages/NAME.done and NAME.failed, for launchers, which may lose exit codes.

Commands that must start fast read them, so this module imports only the standard library.
"""

from __future__ import annotations

import json
from pathlib import Path

from nemo_prorl.run_folder.storage import replace_text


def done_marker(run_dir: Path, stage: str) -> Path:
    """Returns the file that exists if the stage is finished, whatever the exit code was."""
    return run_dir / "stages" / f"{stage}.done"


def is_done(run_dir: Path, stage: str) -> bool:
    """Returns whether the stage is finished. A finished stage is never run again."""
    return done_marker(run_dir, stage).is_file()


def mark_done(run_dir: Path, stage: str, *, outcome: str, checkpoint: str) -> None:
    """Writes the done marker atomically. Call it last, when everything else is on disk."""
    replace_text(done_marker(run_dir, stage), json.dumps({"outcome": outcome, "checkpoint": checkpoint}))


def failed_marker(run_dir: Path, stage: str) -> Path:
    """Returns the file that exists if restarting the stage automatically is pointless. Starting the stage by hand
    removes it."""
    return run_dir / "stages" / f"{stage}.failed"


def mark_failed(run_dir: Path, stage: str, *, reason: str) -> None:
    """Writes the failed marker atomically."""
    replace_text(failed_marker(run_dir, stage), json.dumps({"reason": reason}))


def why_failed(run_dir: Path, stage: str) -> str:
    """Returns why the stage failed; empty unless it did."""
    try:
        return str(json.loads(failed_marker(run_dir, stage).read_text(encoding="utf-8"))["reason"])
    except FileNotFoundError:
        return ""
