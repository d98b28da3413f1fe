"""Ratios of the current to the old policy, and the three objectives that bound them.

Tensors are [B, T] (B rollouts, T tokens of prompt and response) and 0 outside the response; advantages are [B, 1].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nemo_prorl.algorithm.numerics import exp, response_mean
from nemo_prorl.config import AlgorithmConfig, Objective, RatioLevel


def probability_ratio(
    current_logprobs_BT: torch.Tensor,
    old_logprobs_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    level: RatioLevel,
    counts_BT: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns the [B, T] ratio of current to old probability; exactly 1 where the policies agree, and where `counts_BT`
    is given and false.

    token: r_t = exp(current_t - old_t) (ProRL eq. 1). sequence: s = exp(mean of current_t - old_t over the response),
    the same value on every token of a rollout (GSPO, arXiv 2507.18071 eq. 7).

    The gradient of s flows into every token of the response, as in GSPO's eq. 5. In the paper's GSPO-token variant each
    token's term acts on its own log-probability alone. Since all tokens of a rollout share one advantage, and every
    aggregation gives them the same weight, the sum over the rollout has the same value and the same gradient. (The two
    differ if importance weights differ between the tokens of a rollout.)
    """
    log_ratio_BT = current_logprobs_BT - old_logprobs_BT
    if level is RatioLevel.sequence:
        log_ratio_BT = response_mean(log_ratio_BT, mask_BT)
    # Selected before `exp`: what comes before is linear, so a gradient of 0 stays 0.
    return exp(log_ratio_BT if counts_BT is None else torch.where(counts_BT, log_ratio_BT, 0.0))


def probability_change(current_logprobs: torch.Tensor, sampler_logprobs: torch.Tensor) -> torch.Tensor:
    """Returns each token's current probability minus that under which it was sampled, between -1 and 1, without a
    gradient."""
    return current_logprobs.detach().exp() - sampler_logprobs.exp()


def surrogate(
    ratio: torch.Tensor,
    current_logprobs: torch.Tensor,
    moved: torch.Tensor,
    advantages: torch.Tensor,
    config: AlgorithmConfig,
) -> torch.Tensor:
    """Returns the [B, T] terms to be maximised, by `algorithm.objective`. moved: as for `clip_bindings`."""
    match config.objective:
        case Objective.clip:
            return clipped_surrogate(ratio, advantages, config)
        case Objective.cispo:
            return cispo_surrogate(ratio, current_logprobs, advantages, config)
        case Objective.dppo:
            return dppo_surrogate(ratio, moved, advantages, config)


def clipped_surrogate(ratio: torch.Tensor, advantages: torch.Tensor, config: AlgorithmConfig) -> torch.Tensor:
    """Returns min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), to be maximised (ProRL eq. 1 with eq. 3).

    With dual_clip = c: max(that, c A) where A < 0 (dual-clip PPO, arXiv 1912.09729). Without it the slope in the
    log-probability, r A, has no bound there, so that one token can outweigh all others.

    The gradient is exactly 0 where `clip_bindings` says that a bound is active.
    """
    clipped = ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high)
    return _dual_clipped(torch.minimum(ratio * advantages, clipped * advantages), advantages, config)


def cispo_surrogate(
    ratio: torch.Tensor, current_logprobs: torch.Tensor, advantages: torch.Tensor, config: AlgorithmConfig
) -> torch.Tensor:
    """Returns sg(clip(r, 1 - clip_low, 1 + clip_high)) A log pi, to be maximised; sg stops the gradient (CISPO,
    MiniMax-M1, arXiv 2506.13585 eq. 4 and 5).

    This is REINFORCE with a bounded weight: unlike in `clipped_surrogate`, a token whose ratio is clipped keeps its
    gradient. The paper sets no lower bound in its experiments, which is clip_low=1 here.
    """
    weight = ratio.detach().clamp(1.0 - config.clip_low, 1.0 + config.clip_high)
    return weight * advantages * current_logprobs


def dppo_surrogate(
    ratio: torch.Tensor, moved: torch.Tensor, advantages: torch.Tensor, config: AlgorithmConfig
) -> torch.Tensor:
    """Returns r A, to be maximised, and 0 where the token's probability has moved too far: by more than clip_high
    upwards where A > 0, by more than clip_low downwards where A < 0 (DPPO with its binary total variation, arXiv
    2602.04879).

    A ratio bounds rare tokens, whose probability hardly matters, more tightly than likely ones. With dual_clip = c:
    max(that, c A) where A < 0; where A > 0 no ratio is bounded. moved: as for `clip_bindings`.
    """
    is_far = torch.where(advantages < 0, moved < -config.clip_low, moved > config.clip_high)
    return _dual_clipped(torch.where(is_far, 0.0, ratio) * advantages, advantages, config)


def _dual_clipped(objective: torch.Tensor, advantages: torch.Tensor, config: AlgorithmConfig) -> torch.Tensor:
    if config.dual_clip == 0:
        return objective
    return torch.where(advantages < 0, torch.maximum(objective, config.dual_clip * advantages), objective)


@dataclass(frozen=True, slots=True)
class ClipBindings:
    """The tokens on which the clip is active, by bound.

    With the objectives `clip` and `dppo` those tokens have no gradient; with `cispo` their weight is the bound instead
    of the ratio, whatever the sign of the advantage. With `dppo` the bounds are those of the probability.
    """

    low: torch.Tensor
    """The ratio is below 1 - clip_low; with `clip` where A < 0, since the token is unlikely enough already."""
    high: torch.Tensor
    """The ratio is above 1 + clip_high; with `clip` where A > 0, since the token is likely enough already."""
    dual: torch.Tensor
    """A < 0 and the ratio is above dual_clip; nowhere when it is off, or with `cispo`."""


def clip_bindings(
    ratio: torch.Tensor, moved: torch.Tensor, advantages: torch.Tensor, config: AlgorithmConfig
) -> ClipBindings:
    """Returns boolean tensors with the shape of ratio and advantages broadcast together. A token whose advantage is 0
    has no gradient to bound, and never counts. ProRL eq. 3, arXiv 1912.09729, arXiv 2506.13585 eq. 5.

    moved: the token's current probability minus the sampler's (`probability_change`); only `dppo` uses it.
    """
    below, above = ratio < 1.0 - config.clip_low, ratio > 1.0 + config.clip_high
    if config.objective is Objective.dppo:
        below, above = moved < -config.clip_low, moved > config.clip_high
    dual = (advantages < 0) & (ratio > config.dual_clip)
    is_cispo = config.objective is Objective.cispo
    return ClipBindings(
        low=below & (advantages != 0 if is_cispo else advantages < 0),
        high=above & (advantages != 0 if is_cispo else advantages > 0),
        dual=dual if config.dual_clip > 0 and not is_cispo else torch.zeros_like(dual),
    )
