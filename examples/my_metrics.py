"""Metrics of one's own, for steps that a run has taken (docs/experiments.md).

python -m nemo_prorl verify RUN --step 9..12 --metric examples/my_metrics.py:effective_sample
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from nemo_prorl.algorithm.metrics import UpdateStatistics
from nemo_prorl.algorithm.objective import policy_loss


def longest(step, policy):
    """Called after every step: how long is the longest response that was right?"""
    right = [m.rollout.num_tokens for g in step.collection.groups for m in g.members if m.reward == 1]
    return UpdateStatistics(maxima={"my/longest_right": float(max(right, default=0))})


def effective_sample(batch, policy):
    """Called before every update: effective sample size of its tokens, as a share (Kong, 1992)."""
    mask = batch.tokens.response_mask_BT
    weights = np.exp((batch.old_logprobs_BT - batch.sampler_logprobs_BT)[mask].astype(np.float64))
    share = weights.sum() ** 2 / np.square(weights).sum() / len(weights)
    return UpdateStatistics(means={"my/effective_sample": (share, 1)})


def gradient_norms(batch, policy):
    """Called before every update: the norms of the gradients of the policy term and of the KL term."""
    loss = partial(policy_loss, config=policy.config.algorithm, entropy_coefficient=0.0)
    without_kl = partial(loss, config=replace(policy.config.algorithm, kl_beta=0.0))
    only_kl = replace(batch, advantages_B=np.zeros_like(batch.advantages_B))
    norms = {
        "my/policy_gradient": policy.gradient_norm(batch, without_kl),
        "my/kl_gradient": policy.gradient_norm(only_kl, loss),
    }
    return UpdateStatistics(means={name: (norm, 1) for name, norm in norms.items()})
