"""Requests a reset of a running run at its next step boundary."""

from __future__ import annotations

import json
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
    from nemo_prorl.run_folder import markers
    from nemo_prorl.training.watchdog import heartbeat

    run_dir: Path = given.run_dir
    stage = _live_stage(run_dir)
    if markers.is_reset_requested(run_dir):
        raise ConfigError(
            f"a reset of {run_dir} is requested already: wait for it, or remove {markers.reset_request(run_dir)}."
        )
    markers.ask_for_reset(run_dir)
    # The age of the run's heartbeat, so that a user does not wait for a run that has ended.
    try:
        beat = json.loads(heartbeat(run_dir).read_text(encoding="utf-8"))
        age_s = max(0.0, time.time() - float(beat["time"]))
        sign = f"Its last sign of life: {beat['phase']} after step {beat['step']}, {age_s:.0f} s ago."
    except (OSError, ValueError, KeyError, TypeError):
        sign = "It has shown no sign of life yet: it is starting or not running, and will be reset after its next step."
    show([f"asked stage {stage} in {run_dir} for a reset after its current step.", sign])
    while given.wait and markers.is_reset_requested(run_dir):
        if markers.is_done(run_dir, stage) or markers.why_failed(run_dir, stage):
            markers.delete_reset_request(run_dir)
            show([f"stage {stage} ended before the reset, which is withdrawn."])
            return 1
        time.sleep(POLL_S)
    if given.wait:
        show(["the reset is done and in a checkpoint."])
    return 0


def _live_stage(run_dir: Path) -> str:
    """Returns the stage that was trained last in this folder. Raises ConfigError if it cannot be reset any more."""
    import yaml

    resolved = run_dir / "resolved.yaml"
    if not resolved.is_file():
        raise ConfigError(
            f"RUN_DIR={run_dir} is no run: write the exp_manager.explicit_log_dir of one (it holds resolved.yaml)."
        )
    try:
        stage = str(yaml.safe_load(resolved.read_text(encoding="utf-8"))["stage"]["name"])
    except (yaml.YAMLError, TypeError, KeyError):
        raise ConfigError(f"{resolved} is not the configuration of a run: write another RUN_DIR.") from None
    from nemo_prorl.run_folder.markers import is_done

    if is_done(run_dir, stage):
        raise ConfigError(
            f"stage {stage} in {run_dir} is done and cannot be reset: to reset at the start of the next stage, set its "
            "stage.reset_reference=true."
        )
    return stage
