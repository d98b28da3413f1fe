"""Resets: the policy becomes its own reference, as it is or after it has gone back to the stage's best checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nemo_prorl.config import CheckpointCallbackParams, ConfigError, RunConfig
from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.interface import Policy
from nemo_prorl.training.checkpoint import Checkpoint, by_score, find_checkpoints, is_better, is_intact
from nemo_prorl.types import RunState


def reset_policy(policy: Policy, state: RunState, *, optimizer: bool) -> None:
    """ProRL's hard reset (arXiv 2505.24864, section 3.2.1): the policy becomes its own reference, and with `optimizer`
    the moments are cleared. Weights and learning rate stay."""
    policy.adopt_as_reference()
    if optimizer:
        policy.reset_optimizer()
    state.num_resets += 1
    state.last_reset_step, state.last_reset_update = state.step, state.num_updates


def take_policy_of(state: RunState, checkpoint: Checkpoint) -> None:
    """The policy is that of an earlier checkpoint from now on, while the run goes on where it stands: steps, data,
    updates of the learning-rate schedule, resets and records are not taken back.

    What belongs to the policy comes along: how far it is from its reference, its entropy, the share of prompts that
    are informative for it, and what was measured of it, which now holds for the weights of this step.
    """
    then = checkpoint.state
    state.last_reset_step = then.last_reset_step
    state.last_reset_update = state.num_updates - (then.num_updates - then.last_reset_update)
    state.sampling_yield = then.sampling_yield
    state.entropy, state.entropy_coefficient = then.entropy, then.entropy_coefficient
    state.went_back_to = then.step
    others = [record for record in state.validation if record["step"] != state.step]
    own = [{**record, "step": state.step} for record in then.validation[-1:] if record["step"] == then.step]
    state.validation = others + own


def go_back(policy: Policy, state: RunState, checkpoint: Checkpoint) -> None:
    """Collective: weights and optimizer of an earlier checkpoint, for a reset, which makes the reference anew. The
    moments come along even where a reset clears them: beside them lie the fp32 copies of 16-bit weights."""
    policy.load(checkpoint.policy, reference=False, num_updates=state.num_updates)
    take_policy_of(state, checkpoint)


def better_checkpoint(
    config: RunConfig, stage: str, measured: Mapping[str, Any], ranks: Ranks, say: Callable[[str], None]
) -> Checkpoint | None:
    """Collective: the stage's best checkpoint, for a reset with controller.reset_to=best to go back to; None where the
    policy stays as it is, because it is the best itself (`measured`: metrics of this step) or because there is none.
    `say` tells which."""
    params = config.exp_manager.checkpoint_callback_params
    best = _find_best(Path(config.exp_manager.explicit_log_dir), stage, params, ranks)
    if best is None or best.score is None:
        say(f"no checkpoint of stage {stage} has a value of {params.monitor}: the policy stays as it is")
        return None
    now = measured.get(params.monitor)
    if now is not None and not is_better(best.score, now, params.mode):
        say(f"{params.monitor} {now:.4f} is the best of stage {stage}: the policy stays as it is")
        return None
    value = "is not measured at this step" if now is None else f"is {now:.4f} now"
    say(
        f"the policy goes back to step {best.state.step}, where {params.monitor} was {best.score:.4f}; it {value}"
    )
    return best


def _find_best(
    run_dir: Path, stage: str, params: CheckpointCallbackParams, ranks: Ranks
) -> Checkpoint | None:
    """Collective: the stage's best checkpoint whose content is what was written, the same on every rank."""
    while True:
        found = ranks.from_main(_best_of(run_dir, stage, params) if ranks.layout.is_main else None)
        if found is None or is_intact(found, ranks):
            return found


def _best_of(run_dir: Path, stage: str, params: CheckpointCallbackParams) -> Checkpoint | None:
    try:
        checkpoints = find_checkpoints(run_dir)
    except ConfigError:  # none is whole
        return None
    return next(iter(by_score(checkpoints, params.monitor, params.mode, stage=stage)), None)
