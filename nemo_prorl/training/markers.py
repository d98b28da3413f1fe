"""How a stage has ended, for launchers, which lose exit codes: RUN/stages/NAME.done and NAME.failed say so.

Read by commands that answer at once: standard library only.
"""

from __future__ import annotations

import json
from pathlib import Path

from nemo_prorl.storage import replace_text


def done_marker(run_dir: Path, stage: str) -> Path:
    """Exists when the stage is finished; it, not an exit code, says so."""
    return run_dir / "stages" / f"{stage}.done"


def is_done(run_dir: Path, stage: str) -> bool:
    """A finished stage is never run again."""
    return done_marker(run_dir, stage).is_file()


def mark_done(run_dir: Path, stage: str, *, outcome: str, checkpoint: str) -> None:
    """Written last, and whole or not at all."""
    replace_text(done_marker(run_dir, stage), json.dumps({"outcome": outcome, "checkpoint": checkpoint}))


def failed_marker(run_dir: Path, stage: str) -> Path:
    """Exists when going on by itself is pointless; a user who starts the stage again removes it by that."""
    return run_dir / "stages" / f"{stage}.failed"


def mark_failed(run_dir: Path, stage: str, *, reason: str) -> None:
    """Whole or not at all."""
    replace_text(failed_marker(run_dir, stage), json.dumps({"reason": reason}))


def why_failed(run_dir: Path, stage: str) -> str:
    """Empty unless the stage failed."""
    try:
        return str(json.loads(failed_marker(run_dir, stage).read_text(encoding="utf-8"))["reason"])
    except FileNotFoundError:
        return ""
