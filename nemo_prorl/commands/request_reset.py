"""Requests a reset of a running run at its next step boundary."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from nemo_prorl.commands.ending import show
from nemo_prorl.commands.parsing import Parser
from nemo_prorl.config import ConfigError

POLL_S = 1.0


def main(arguments: Sequence[str]) -> int:
    """Requests the reset and returns the exit code: 1 if, with --wait, the stage ended before the reset."""
    parser = Parser("request-reset", __doc__)
    parser.path("run_dir", "RUN_DIR", "exp_manager.explicit_log_dir of the run")
    parser.flag("--wait", "returns when the reset is in a checkpoint")
    given = parser.parse_args(arguments)
    from nemo_prorl.report.state import UNDER_WAY, stage_of, wrote_last
    from nemo_prorl.run_folder import markers
    from nemo_prorl.run_folder.run import RunFolder

    run_dir: Path = given.run_dir
    run = RunFolder(run_dir)
    stage = stage_of(run)
    if not (run.stages or run.starts):
        raise ConfigError(f"RUN_DIR={run_dir} is no run: write the exp_manager.explicit_log_dir of one.")
    if stage in run.outcomes:
        raise ConfigError(
            f"stage {stage} in {run_dir} is done and cannot be reset: to reset at the start of the next stage, set its "
            "stage.reset_reference=true."
        )
    request = markers.reset_request(run_dir)
    if request.exists():
        raise ConfigError(f"a reset of {run_dir} is requested already: wait for it, or remove {request}.")
    markers.ask_for_reset(run_dir)
    word, wrote = wrote_last(run)
    said = f"The run: {wrote.rstrip('.')}."
    if word not in UNDER_WAY:
        said += " It is not running: it will be reset after the first step of its next start."
    show([f"asked stage {stage} in {run_dir} for a reset after its current step.", said])
    while given.wait and request.exists():
        if markers.is_done(run_dir, stage) or markers.why_failed(run_dir, stage):
            request.unlink(missing_ok=True)
            show([f"stage {stage} ended before the reset, which is withdrawn."])
            return 1
        time.sleep(POLL_S)
    if given.wait:
        show(["the reset is done and in a checkpoint."])
    return 0
