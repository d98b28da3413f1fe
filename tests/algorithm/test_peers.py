"""Losses, gradients, weights and advantages against what the peers' own code gives for one small batch.

The numbers were recorded once, from the peers' functions and not from copies of them, on CPU and in float64 (OpenRLHF
and Molt compute in float32): TRL 1.16.0 (`GRPOTrainer._compute_loss` on a stand-in for the trainer, and the lines of
`_generate_and_score_completions` that weigh sequences or take the KL from the reward), NeMo RL 7ea279a
(`ClippedPGLossFn`, `calculate_kl`, `ReinforcePlusPlusAdvantageEstimator`), verl b178a3c (`core_algos`,
`rollout_corr_helper`), slime 624b824 (`ppo_utils`, `mis.compute_mis_weights`), OpenRLHF 3c3be62 (`PolicyLoss`,
`compute_approx_kl`) and Molt 2d62608 (`PolicyLoss`). Imports that these functions do not need were replaced by stubs.

NeMo RL's loss has another gradient of the KL than its `calculate_kl` alone: it multiplies the KL by
exp(log pi - sg(log pi)), which is 1 and adds the gradient of the sampling probability (arXiv 2506.09477). The two KL
entries below are its clipped loss plus beta times `calculate_kl`, without that factor.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from nemo_prorl.algorithm.advantage import batch_normalised, group_advantages
from nemo_prorl.algorithm.kl import kl_penalty
from nemo_prorl.algorithm.mismatch import importance_weights
from nemo_prorl.algorithm.objective import policy_loss
from nemo_prorl.config import (
    Advantage,
    Aggregation,
    AlgorithmConfig,
    CorrectionLevel,
    CorrectionMode,
    KlEstimator,
    Objective,
    RatioLevel,
)
from nemo_prorl.types import Totals, TrainBatch

EXPECTED = json.loads(Path(__file__).with_name("peers.json").read_text())
"""Test -> its name -> the peers' numbers: a loss with its gradient in the ten response tokens, the weights of these
tokens, or values of the KL."""
OLD = [[-1.06, -0.44, -0.72, -1.98], [-1.81], [-0.49, -2.49, -0.61], [-0.67, -1.42]]
CURRENT = [[-0.86, -0.3, -0.68, -2.35], [-1.82], [-0.21, -3.03, -0.79], [-1.43, -1.94]]
SAMPLER = [[-1.7, -0.52, -1.16, -1.89], [-1.76], [-0.56, -3.37, -0.8], [-0.27, -1.8]]
"""Data whose products over the rollouts are 2.92, 0.95, 3.13 and 0.98; the tokens of the last have 0.67 and 1.46."""
REFERENCE = [[-3.36, -1.16, -2.19, -3.19], [-0.22], [-1.7, -2.54, 0.72], [-1.55, -1.59]]
ADVANTAGES = [1.3, -0.7, 0.4, -1.1]


def options(**given: object) -> AlgorithmConfig:
    """Returns algorithm options without KL, correction, clamps or dual clip unless they are given."""
    base: dict[str, object] = {
        "kl_beta": 0.0,
        "clip_high": 0.2,
        "dual_clip": 0.0,
        "kl_clamp_log_ratio": 0.0,
        "kl_clamp_value": 0.0,
    }
    return AlgorithmConfig(**(base | given))  # type: ignore[arg-type]


def corrected(level: str, mode: str, low: float, high: float, **given: object) -> AlgorithmConfig:
    return options(
        correction_level=CorrectionLevel(level),
        correction_mode=CorrectionMode(mode),
        correction_low=low,
        correction_high=high,
        **given,
    )


GSPO: dict[str, object] = {
    "ratio_level": RatioLevel.sequence,
    "aggregation": Aggregation.sequence_mean_token_mean,
    "clip_low": 0.1,
    "clip_high": 0.05,
}
ONE_SIDED_CISPO: dict[str, object] = {"objective": Objective.cispo, "clip_low": 1.0, "clip_high": 0.2}

LOSSES: dict[str, AlgorithmConfig] = {
    "GSPO: TRL, NeMo RL, verl, slime, OpenRLHF, Molt": options(**GSPO),
    "GSPO with sequence_mask: TRL": corrected("sequence", "mask", 0.0, 1.3, **GSPO),
    "CISPO: NeMo RL, verl, slime": options(objective=Objective.cispo, clip_low=0.1),
    "CISPO bounded above: TRL, Molt": options(**ONE_SIDED_CISPO),
    "CISPO with token_mask: TRL": corrected("token", "mask", 0.8, 1.3, **ONE_SIDED_CISPO),
    "Dr. GRPO with a constant of 8: TRL": options(
        aggregation=Aggregation.sequence_mean_token_sum, aggregation_constant=8.0, clip_high=0.4
    ),
    "DAPO with k3 and sequence_mask: TRL": corrected(
        "sequence", "mask", 0.0, 1.3, kl_beta=0.1, clip_high=0.4
    ),
    "tis with both bounds: NeMo RL, OpenRLHF": corrected("token", "truncate", 0.8, 1.3),
    "clip: Molt": corrected("token", "truncate", 0.8, 1.1),
    "trunc: Molt": corrected("token", "truncate", 0.0, 1.1),
    "icepop: NeMo RL, OpenRLHF": corrected("token", "mask", 0.8, 1.3),
    "token mask: Molt": corrected("token", "mask", 0.8, 1.1),
    "seq-mask-tis: NeMo RL, OpenRLHF, Molt": corrected("geometric", "drop", 0.9, 1.1),
    "seq mask: Molt": corrected("sequence", "drop", 0.8, 1.1),
    "k3 with both clamps: calculate_kl of NeMo RL": options(
        kl_beta=0.1, kl_clamp_log_ratio=2.0, kl_clamp_value=1.0
    ),
    "k2 with the log-ratio clamped: calculate_kl of NeMo RL": options(
        kl_beta=0.1, kl_estimator=KlEstimator.k2, kl_clamp_log_ratio=1.0
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradient_are_the_peers(name, make_batch):
    config, expected = LOSSES[name], EXPECTED["losses"][name]
    batch: TrainBatch = make_batch(
        advantages=ADVANTAGES, old=OLD, sampler=SAMPLER, reference=REFERENCE, num_prompt_tokens=1, padding=1
    )
    mask = torch.from_numpy(batch.tokens.response_mask_BT)
    current = torch.zeros(mask.shape, dtype=torch.float64)
    current[mask] = torch.tensor([value for row in CURRENT for value in row], dtype=torch.float64)
    current.requires_grad_()
    totals = Totals(num_tokens=10, num_rollouts=4)
    loss = policy_loss(current, current, batch, totals, config=config, entropy_coefficient=0.0)
    assert loss.item() == pytest.approx(expected["loss"], abs=1e-6)
    gradient = torch.autograd.grad(loss, current)[0][mask]
    assert gradient.tolist() == pytest.approx(expected["gradient"], abs=1e-6)


WEIGHTS: dict[str, AlgorithmConfig] = {
    "token truncate: TRL": corrected("token", "truncate", 0.8, 1.3),
    "token mask: TRL": corrected("token", "mask", 0.8, 1.3),
    "sequence truncate: TRL": corrected("sequence", "truncate", 0.8, 1.3),
    "sequence mask: TRL": corrected("sequence", "mask", 0.8, 1.3),
    "sequence mask, the default of TRL": corrected("sequence", "mask", 0.0, 3.0),
    "token without a lower bound: TRL, verl, slime": corrected("token", "truncate", 0.0, 1.1),
    "token clip: slime": corrected("token", "truncate", 0.8, 1.1),
    "token mask: slime": corrected("token", "mask", 0.8, 1.1),
    "sequence: verl, slime": corrected("sequence", "truncate", 0.0, 1.1),
    "sequence mask: slime": corrected("sequence", "mask", 0.8, 1.1),
    "geometric: slime": corrected("geometric", "truncate", 0.0, 1.1),
    "geometric mask: slime": corrected("geometric", "mask", 0.8, 1.1),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_importance_weights_are_the_peers(name):
    config, expected = WEIGHTS[name], EXPECTED["weights"][name]
    mask = torch.arange(4) < torch.tensor([len(row) for row in OLD])[:, None]
    log_ratio = torch.zeros(4, 4, dtype=torch.float64)
    log_ratio[mask] = torch.tensor(
        [o - s for old, sampler in zip(OLD, SAMPLER, strict=True) for o, s in zip(old, sampler, strict=True)],
        dtype=torch.float64,
    )
    weights = importance_weights(log_ratio, mask, config)
    assert weights.weight_BT[mask].tolist() == pytest.approx(expected, abs=1e-8)


KL_VALUES: dict[str, AlgorithmConfig] = {
    "k1: NeMo RL": options(kl_estimator=KlEstimator.k1, kl_clamp_log_ratio=20.0, kl_clamp_value=10.0),
    "k2: NeMo RL": options(kl_estimator=KlEstimator.k2, kl_clamp_log_ratio=20.0, kl_clamp_value=10.0),
    "k3: NeMo RL": options(kl_estimator=KlEstimator.k3, kl_clamp_log_ratio=20.0, kl_clamp_value=10.0),
}
"""Their values are for log-probability -1 and references that are larger by 0, -15, -30, 25 and 2 nats."""


@pytest.mark.parametrize("name", KL_VALUES)
def test_the_clamped_kl_is_the_peers(name):
    config, expected = KL_VALUES[name], EXPECTED["kl"][name]
    current = torch.full((5,), -1.0, dtype=torch.float64)
    reference = current + torch.tensor([0.0, -15.0, -30.0, 25.0, 2.0])
    assert kl_penalty(current, reference, config).tolist() == pytest.approx(expected, abs=1e-8)


def test_batch_normalised_advantages_are_nemo_rls_and_verls():
    """Two groups of two rollouts of 4, 1, 3 and 2 tokens. verl's variance is that of a sample: N - 1 = 9 tokens."""
    deviations = [group_advantages(rewards, Advantage.batch_std) for rewards in ([1.0, 0.0], [0.25, 0.5])]
    advantages = np.concatenate(batch_normalised(deviations, [np.array([4, 1]), np.array([3, 2])]))
    assert advantages.tolist() == pytest.approx(
        [1.074074074, -1.888888889, -0.777777778, -0.037037037], abs=1e-8
    )
    verl = [1.018956096, -1.79195727, -0.737864758, -0.035136417]
    assert (advantages * (9 / 10) ** 0.5).tolist() == pytest.approx(verl, abs=1e-6)


def test_leave_one_out_is_verls():
    advantages = group_advantages([1.0, 0.0, 0.25, 0.5], Advantage.leave_one_out)
    assert advantages.tolist() == pytest.approx([0.75, -0.583333333, -0.25, 0.083333333], abs=1e-8)
