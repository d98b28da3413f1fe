"""What users ask a live run for: a file in RUN/requests/ that a command makes and the trainer takes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from nemo_prorl.storage import replace_text


def reset_request(run_dir: Path) -> Path:
    """Exists from the moment of asking until the reset that it asked for is in a checkpoint."""
    return run_dir / "requests" / "reset"


def ask_for_reset(run_dir: Path) -> None:
    """Whole or not at all; asking twice is asking once."""
    asked = datetime.now(UTC).isoformat(timespec="seconds")
    replace_text(reset_request(run_dir), json.dumps({"asked": asked}) + "\n")


def is_reset_requested(run_dir: Path) -> bool:
    """Whether one is waiting for its step boundary."""
    return reset_request(run_dir).is_file()


def reset_request_id(run_dir: Path) -> str:
    """Tells one request from the next; empty without one. A run that was killed after it has saved the reset, and
    before it took the request, knows by this that it has obeyed."""
    try:
        return str(reset_request(run_dir).stat().st_mtime_ns)
    except FileNotFoundError:
        return ""


def take_reset_request(run_dir: Path) -> None:
    """After the reset is in a checkpoint: a run that is killed before it still finds the request."""
    reset_request(run_dir).unlink(missing_ok=True)


def withdraw_reset_request(run_dir: Path, *, asked_before: Path) -> bool:
    """Takes away a request that is older than this file, which ended what it was asked of. Whether there was one."""
    request = reset_request(run_dir)
    try:
        is_older = request.stat().st_mtime_ns <= asked_before.stat().st_mtime_ns
    except FileNotFoundError:
        return False
    if is_older:
        request.unlink(missing_ok=True)
    return is_older
