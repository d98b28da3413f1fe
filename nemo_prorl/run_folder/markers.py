"""Files that commands and trainer leave each other, for commands that must start fast: no slow imports here.

RUN/stages/NAME.done, NAME.failed    how a stage ended, for launchers, which may lose exit codes
RUN/requests/reset                   a user asks the live run for a reset (`nemo_prorl request-reset`)
RUN/requests/save                    a user asks the live run for a checkpoint that it keeps (`touch`)
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from nemo_prorl.run_folder.storage import read_json, replace_text


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
    marker = failed_marker(run_dir, stage)
    return str(read_json(marker).get("reason", f"{marker} does not say why")) if marker.is_file() else ""


def reset_request(run_dir: Path) -> Path:
    """Returns the path of the request, a file that exists until the requested reset is in a checkpoint."""
    return run_dir / "requests" / "reset"


def save_request(run_dir: Path) -> Path:
    """Returns the path of a request for a checkpoint, a file that exists until there is one."""
    return run_dir / "requests" / "save"


def ask_for_reset(run_dir: Path) -> None:
    """Makes a request, atomically. A second one replaces the first."""
    asked = datetime.now(UTC).isoformat(timespec="seconds")
    replace_text(reset_request(run_dir), json.dumps({"asked": asked}) + "\n")


def request_id(request: Path) -> str:
    """Returns the id of a request; empty if none can be seen. A checkpoint contains the id of the last request that was
    carried out, so a run that is killed before it deletes the file does not reset or save twice."""
    try:
        return str(request.stat().st_mtime_ns)
    except OSError:
        return ""


def withdraw_reset_request(run_dir: Path, *, asked_before: Path) -> bool:
    """Deletes a request that is older than the file `asked_before`. Returns whether there was one."""
    try:
        is_older = reset_request(run_dir).stat().st_mtime_ns <= asked_before.stat().st_mtime_ns
    except FileNotFoundError:
        return False
    if is_older:
        reset_request(run_dir).unlink(missing_ok=True)
    return is_older
