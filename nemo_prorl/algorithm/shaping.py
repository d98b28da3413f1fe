"""Turns a task's score into the training reward. Every rule is off by default; docs/algorithm.md has the formulas."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from nemo_prorl.config import LengthPenaltyConfig, ShapingConfig
from nemo_prorl.types import Finish, Rollout, RolloutOutline
from reward.extract import THINK_END, THINK_START

SHAPINGS = (
    "termination_factor",
    "malformed_thought_factor",
    "overlong_penalty",
    "length_penalty",
    "overlong_filtering",
)
"""The rules, named after their options, as metrics count them."""

_THOUGHT_TAG = re.compile(f"{THINK_START}|{THINK_END}")


class Shaped(NamedTuple):
    """The result of the rules for one rollout."""

    reward: float
    in_loss: bool = True
    """False: the rollout counts in its group's statistics but not in the loss."""
    shaped_by: tuple[str, ...] = ()
    """The rules of SHAPINGS that applied to it, in that order."""


def outline(rollout: Rollout) -> RolloutOutline:
    """Returns a rollout without its tokens: what the rules below need, and what every rank holds of all rollouts."""
    return RolloutOutline(
        prompt=rollout.prompt,
        sibling=rollout.sibling,
        num_tokens=len(rollout.token_ids),
        finish=rollout.finish,
        policy_version=rollout.policy_version,
        has_malformed_thought=is_malformed_thought(rollout.text, in_thought=rollout.prompt.opens_thought),
    )


def unshaped(rollout: RolloutOutline, score: float) -> Shaped:
    """Returns the score itself: what validation and evaluation report."""
    return Shaped(score)


def shape_reward(
    rollout: RolloutOutline,
    score: float,
    *,
    max_response_tokens: int,
    num_updates: int,
    config: ShapingConfig,
) -> Shaped:
    """Returns the reward of a rollout, whether it enters the loss, and which rules applied.

    reward = score * (termination_factor if it ran out of tokens, else 1)
                   * (malformed_thought_factor if its thought is malformed, else 1)
             + overlong_penalty * `overlong_ramp`
             + length_penalty.weight * `cosine_length_reward`, in updates in which the penalty is on

    ProRL (section 4.2, runs 4 and 5) penalises responses that do not terminate and does not say how; a factor keeps a
    rollout that earned nothing at 0. The additive terms are DAPO's and ProRL v2's. Overlong filtering leaves the reward
    unchanged.

    A reward function may return scores below 0 (docs/custom_rewards.md). Factors are not applied to those, because that
    would reward an unfinished response.

    score: the task's score. max_response_tokens: tokens that a response may have, end-of-sequence included.
    num_updates: optimizer updates of the run before this step. Raises ValueError on a score that is infinite or NaN:
    for a missing score, drop the rollout instead.
    """
    if not math.isfinite(score):
        raise ValueError(f"a score must be a finite number, got {score}")
    num_tokens, unfinished = rollout.num_tokens, rollout.finish is Finish.length
    reward, applied = score, []
    if config.termination_factor < 1 and unfinished and score >= 0:
        reward *= config.termination_factor
        applied.append("termination_factor")
    if config.malformed_thought_factor < 1 and score >= 0 and rollout.has_malformed_thought:
        reward *= config.malformed_thought_factor
        applied.append("malformed_thought_factor")
    ramp = overlong_ramp(num_tokens, max_response_tokens, config.overlong_buffer_share)
    if ramp < 0:
        reward += config.overlong_penalty * ramp
        applied.append("overlong_penalty")
    penalty = config.length_penalty
    if length_penalty_is_on(num_updates, penalty):
        reward += penalty.weight * cosine_length_reward(num_tokens, max_response_tokens, penalty)
        applied.append("length_penalty")
    if filtered := config.overlong_filtering and unfinished:
        applied.append("overlong_filtering")
    return Shaped(reward, in_loss=not filtered, shaped_by=tuple(applied))


def overlong_ramp(num_tokens: int, max_response_tokens: int, buffer_share: float) -> float:
    """Returns R_length of DAPO eq. 13: 0 up to the buffer, then linearly down to -1 at the limit, and -1 beyond it.

    buffer_share: the paper's L_cache / L_max, the last part of the allowed tokens, in which length is penalised; 0
    penalises nothing.
    """
    if buffer_share == 0:
        return 0.0
    buffer_tokens = buffer_share * max_response_tokens
    num_over = num_tokens - (max_response_tokens - buffer_tokens)
    return -min(max(num_over / buffer_tokens, 0.0), 1.0)


def cosine_length_reward(num_tokens: int, max_response_tokens: int, config: LengthPenaltyConfig) -> float:
    """Returns eta_min + (eta_max - eta_min) / 2 * (1 + cos(pi t / T)) for a response of t tokens with limit T.

    The formula is ProRL v2's ("ProRL V2: Prolonged Training Validates RL Scaling Laws", 2025-08-11, section 3), which
    takes it from the cosine reward of arXiv 2502.03373. It falls from eta_max = `shortest` at t = 0 to eta_min =
    `longest` at T: slowly at both ends, fastest half-way. ProRL v2 calls T the "context token limit"; here it is the
    limit of the response, so that a response that reaches it gets `longest` whatever its prompt's length.
    """
    progress = min(num_tokens / max_response_tokens, 1.0)
    return config.longest + 0.5 * (config.shortest - config.longest) * (1.0 + math.cos(math.pi * progress))


def length_penalty_is_on(num_updates: int, config: LengthPenaltyConfig) -> bool:
    """Returns whether the penalty is on. ProRL v2 lets it "cycle on and off at regular intervals (e.g., 100 updates on,
    500 off)".

    num_updates: optimizer updates of the run before this step, over all stages; the first cycle begins at 0 with the
    penalty on. It is part of every checkpoint, so a resumed run is at the same point of the cycle. A step has one
    setting for all of its updates, because rewards are computed once per step.
    """
    return config.weight > 0 and num_updates % (config.on_updates + config.off_updates) < config.on_updates


def is_malformed_thought(response: str, *, in_thought: bool) -> bool:
    """Returns whether a response contains reasoning tags in any form other than none at all or one closed thought.

    in_thought: the prompt ends inside <think>, so the response begins inside a thought; it must then close it once and
    open none. Otherwise it may have no tag, or begin with <think>, as in Qwen3, and close it once. A thought that never
    ends, a second one, a nested one and a </think> without a beginning are malformed.
    """
    tags = list(_THOUGHT_TAG.finditer(response))
    if not tags:
        return in_thought
    if in_thought:
        return [tag.group() for tag in tags] != [THINK_END]
    begins_with_it = not response[: tags[0].start()].strip()
    return not begins_with_it or [tag.group() for tag in tags] != [THINK_START, THINK_END]
