"""A user's request for a reset of a live run: a file that `nemo_prorl request-reset` makes and the trainer deletes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from nemo_prorl.run_folder.storage import replace_text


def reset_request(run_dir: Path) -> Path:
    """Returns the path of the request, a file that exists until the requested reset is in a checkpoint."""
    return run_dir / "requests" / "reset"


def ask_for_reset(run_dir: Path) -> None:
    """Makes a request, atomically. A second one replaces the first."""
    asked = datetime.now(UTC).isoformat(timespec="seconds")
    replace_text(reset_request(run_dir), json.dumps({"asked": asked}) + "\n")


def is_reset_requested(run_dir: Path) -> bool:
    """Whether a request waits to be carried out."""
    return reset_request(run_dir).is_file()


def reset_request_id(run_dir: Path) -> str:
    """Returns the id of the request; empty if there is none. A checkpoint contains the id of the last request that was
    carried out, so a run that is killed before it deletes the file does not reset twice."""
    try:
        return str(reset_request(run_dir).stat().st_mtime_ns)
    except FileNotFoundError:
        return ""


def delete_reset_request(run_dir: Path) -> None:
    """Deletes the request, if there is one."""
    reset_request(run_dir).unlink(missing_ok=True)


def withdraw_reset_request(run_dir: Path, *, asked_before: Path) -> bool:
    """Deletes a request that is older than the file `asked_before`. Returns whether there was one."""
    try:
        is_older = reset_request(run_dir).stat().st_mtime_ns <= asked_before.stat().st_mtime_ns
    except FileNotFoundError:
        return False
    if is_older:
        delete_reset_request(run_dir)
    return is_older
