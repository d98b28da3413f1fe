"""Carries out a reset of the current policy, or of the stage's best checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nemo_prorl.config import ConfigError, ControllerConfig, RunConfig, StageConfig
from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.interface import Policy
from nemo_prorl.run_folder.checkpoints import Checkpoint, by_score, find_checkpoints, is_better, score_kind
from nemo_prorl.training.checkpoint import is_intact
from nemo_prorl.types import RunState


def reset_policy(policy: Policy, state: RunState, what: ControllerConfig | StageConfig) -> None:
    """Makes the policy its own reference and clears the optimizer's moments, or only one of them, as `what` says: both
    are ProRL's hard reset (arXiv 2505.24864, section 3.2.1). Weights and learning rate stay."""
    if what.reset_reference:
        policy.adopt_as_reference()
        state.last_reset_update = state.num_updates
    if what.reset_optimizer:
        policy.reset_optimizer()
    state.num_resets += 1
    state.last_reset_step = state.step


def take_policy_of(state: RunState, checkpoint: Checkpoint) -> None:
    """Changes `state` after the policy was replaced by that of an earlier checkpoint.

    Steps, data, learning-rate schedule, resets and records continue. What describes the policy comes from the
    checkpoint: its distance from the reference, its entropy, its share of informative prompts, and its validation,
    which becomes the validation of this step.
    """
    then = checkpoint.state
    state.last_reset_step = state.step - then.steps_since_reset
    state.last_reset_update = state.num_updates - (then.num_updates - then.last_reset_update)
    state.sampling_yield = then.sampling_yield
    state.recent_prompts, state.recent_informative = then.recent_prompts, then.recent_informative
    state.entropy, state.entropy_coefficient = then.entropy, then.entropy_coefficient
    state.went_back_to = then.step
    others = [record for record in state.validation if record["step"] != state.step]
    own = [{**record, "step": state.step} for record in then.validation[-1:] if record["step"] == then.step]
    state.validation = others + own


def better_checkpoint(
    config: RunConfig,
    state: RunState,
    measured: Mapping[str, Any],
    ranks: Ranks,
    say: Callable[[str], None],
) -> Checkpoint | None:
    """Returns the stage's best intact checkpoint, for a reset with controller.reset_to=best. Collective. Returns None,
    and says why, if the current policy is as good, or if no checkpoint has a score. measured: the policy's metrics."""
    params, run_dir = config.exp_manager.checkpoint_callback_params, Path(config.exp_manager.explicit_log_dir)
    kind, clears = score_kind(params.monitor, state), config.controller.reset_optimizer

    def find() -> Checkpoint | None:
        with suppress(ConfigError):  # no checkpoint is complete
            usable = [one for one in find_checkpoints(run_dir) if clears or one.has_moments]
            return next(iter(by_score(usable, kind, params.mode, stage=state.stage)), None)
        return None

    best = ranks.on_main(find)
    while best is not None and not is_intact(best, ranks):
        best = ranks.on_main(find)
    if best is None or best.score is None:
        say(
            f"no checkpoint of stage {state.stage} has a value of {params.monitor}: the policy stays as it is"
        )
        return None
    now = measured.get(params.monitor)
    if now is not None and not is_better(best.score, now, params.mode):
        say(f"{params.monitor} {now:.4f} is the best of stage {state.stage}: the policy stays as it is")
        return None
    value = "is not measured at this step" if now is None else f"is {now:.4f} now"
    say(
        f"the policy goes back to step {best.state.step}, where {params.monitor} was {best.score:.4f}; it {value}"
    )
    return best
