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

LOSSES: dict[str, tuple[AlgorithmConfig, float, list[float]]] = {
    "GSPO: TRL, NeMo RL, verl, slime, OpenRLHF, Molt": (
        options(**GSPO),
        0.008587025,
        [
            -0.081453379,
            -0.081453379,
            -0.081453379,
            -0.081453379,
            0.173258721,
            -0.02878606,
            -0.02878606,
            -0.02878606,
            0.0,
            0.0,
        ],
    ),
    "GSPO with sequence_mask: TRL": (
        corrected("sequence", "mask", 0.0, 1.3, **GSPO),
        0.407407965,
        [0.0, 0.0, 0.0, 0.0, 0.164808793, 0.0, 0.0, 0.0, 0.0, 0.0],
    ),
    "CISPO: NeMo RL, verl, slime": (
        options(objective=Objective.cispo, clip_low=0.1),
        0.233816002,
        [-0.156, -0.149535594, -0.135305401, -0.117, 0.069303488, -0.048, -0.036, -0.036, 0.099, 0.099],
    ),
    "CISPO bounded above: TRL, Molt": (
        options(**ONE_SIDED_CISPO),
        0.262584353,
        [
            -0.156,
            -0.149535594,
            -0.135305401,
            -0.089795463,
            0.069303488,
            -0.048,
            -0.02330993,
            -0.033410808,
            0.051443307,
            0.06539726,
        ],
    ),
    "CISPO with token_mask: TRL": (
        corrected("token", "mask", 0.8, 1.3, **ONE_SIDED_CISPO),
        0.164201812,
        [0.0, -0.161989975, 0.0, -0.082066874, 0.065923517, -0.051480393, 0.0, -0.040402007, 0.0, 0.0],
    ),
    "Dr. GRPO with a constant of 8: TRL": (
        options(aggregation=Aggregation.sequence_mean_token_sum, aggregation_constant=8.0, clip_high=0.4),
        -0.124300393,
        [
            -0.049619487,
            -0.046729873,
            -0.042282938,
            -0.028061082,
            0.02165734,
            -0.016539123,
            -0.007284353,
            -0.010440878,
            0.0,
            0.0,
        ],
    ),
    "DAPO with k3 and sequence_mask: TRL": (
        corrected("sequence", "mask", 0.0, 1.3, kl_beta=0.1, clip_high=0.4),
        0.32015156,
        [
            0.00917915,
            0.005768379,
            0.0077909,
            0.005682895,
            0.026393193,
            0.007746273,
            -0.006323162,
            -0.035267308,
            0.001130796,
            -0.004190675,
        ],
    ),
    "tis with both bounds: NeMo RL, OpenRLHF": (
        corrected("token", "truncate", 0.8, 1.3),
        -0.49421566,
        [
            0.0,
            -0.161989975,
            -0.175897021,
            -0.082066874,
            0.065923517,
            0.0,
            -0.030302909,
            -0.040402007,
            0.0,
            0.0,
        ],
    ),
    "clip: Molt": (
        corrected("token", "truncate", 0.8, 1.1),
        -0.445242494,
        [
            0.0,
            -0.161989957,
            -0.148835957,
            -0.082066871,
            0.065923512,
            0.0,
            -0.025640927,
            -0.036751892,
            0.0,
            0.0,
        ],
    ),
    "trunc: Molt": (
        corrected("token", "truncate", 0.0, 1.1),
        -0.45665431,
        [
            0.0,
            -0.161989957,
            -0.148835957,
            -0.082066871,
            0.065923512,
            0.0,
            -0.025640927,
            -0.036751892,
            0.0,
            0.0,
        ],
    ),
    "icepop: NeMo RL, OpenRLHF": (
        corrected("token", "mask", 0.8, 1.3),
        -0.270015731,
        [0.0, -0.161989975, 0.0, -0.082066874, 0.065923517, 0.0, 0.0, -0.040402007, 0.0, 0.0],
    ),
    "token mask: Molt": (
        corrected("token", "mask", 0.8, 1.1),
        -0.229613706,
        [0.0, -0.161989957, 0.0, -0.082066871, 0.065923512, 0.0, 0.0, 0.0, 0.0, 0.0],
    ),
    "seq-mask-tis: NeMo RL, OpenRLHF, Molt": (
        corrected("geometric", "drop", 0.9, 1.1),
        0.253592725,
        [0.0, 0.0, 0.0, 0.0, 0.065923517, 0.0, 0.0, 0.0, 0.0, 0.0],
    ),
    "seq mask: Molt": (
        corrected("sequence", "drop", 0.8, 1.1),
        0.25359273,
        [0.0, 0.0, 0.0, 0.0, 0.065923512, 0.0, 0.0, 0.0, 0.0, 0.0],
    ),
    "k3 with both clamps: calculate_kl of NeMo RL": (
        options(kl_beta=0.1, kl_clamp_log_ratio=2.0, kl_clamp_value=1.0),
        -0.337859113,
        [
            0.0,
            -0.143767215,
            -0.1275145,
            -0.084112568,
            0.069303488,
            0.007746273,
            -0.029633092,
            -0.033410808,
            0.001130796,
            -0.004190675,
        ],
    ),
    "k2 with the log-ratio clamped: calculate_kl of NeMo RL": (
        options(kl_beta=0.1, kl_estimator=KlEstimator.k2, kl_clamp_log_ratio=1.0),
        -0.355942707,
        [
            0.0,
            -0.140935594,
            -0.135305401,
            -0.081395463,
            0.069303488,
            0.0,
            -0.02820993,
            -0.033410808,
            0.0012,
            -0.0035,
        ],
    ),
}
"""(options, loss, its gradient in the ten response tokens)"""


@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradient_are_the_peers(name, make_batch):
    config, expected, gradient = LOSSES[name]
    batch: TrainBatch = make_batch(
        advantages=ADVANTAGES, old=OLD, sampler=SAMPLER, reference=REFERENCE, num_prompt_tokens=1, padding=1
    )
    mask = torch.from_numpy(batch.tokens.response_mask_BT)
    current = torch.zeros(mask.shape, dtype=torch.float64)
    current[mask] = torch.tensor([value for row in CURRENT for value in row], dtype=torch.float64)
    current.requires_grad_()
    totals = Totals(num_tokens=10, num_rollouts=4)
    loss = policy_loss(current, current, batch, totals, config=config, entropy_coefficient=0.0)
    assert loss.item() == pytest.approx(expected, abs=1e-6)
    assert torch.autograd.grad(loss, current)[0][mask].tolist() == pytest.approx(gradient, abs=1e-6)


WEIGHTS: dict[str, tuple[AlgorithmConfig, list[float]]] = {
    "token truncate: TRL": (
        corrected("token", "truncate", 0.8, 1.3),
        [1.3, 1.083287068, 1.3, 0.913931185, 0.951229425, 1.072508181, 1.3, 1.209249598, 0.8, 1.3],
    ),
    "token mask: TRL": (
        corrected("token", "mask", 0.8, 1.3),
        [0.0, 1.083287068, 0.0, 0.913931185, 0.951229425, 1.072508181, 0.0, 1.209249598, 0.0, 0.0],
    ),
    "sequence truncate: TRL": (
        corrected("sequence", "truncate", 0.8, 1.3),
        [1.3, 1.3, 1.3, 1.3, 0.951229425, 1.3, 1.3, 1.3, 0.980198673, 0.980198673],
    ),
    "sequence mask: TRL": (
        corrected("sequence", "mask", 0.8, 1.3),
        [0.0, 0.0, 0.0, 0.0, 0.951229425, 0.0, 0.0, 0.0, 0.980198673, 0.980198673],
    ),
    "sequence mask, the default of TRL": (
        corrected("sequence", "mask", 0.0, 3.0),
        [2.9153795, 2.9153795, 2.9153795, 2.9153795, 0.951229425, 0.0, 0.0, 0.0, 0.980198673, 0.980198673],
    ),
    "token without a lower bound: TRL, verl, slime": (
        corrected("token", "truncate", 0.0, 1.1),
        [1.1, 1.083287068, 1.1, 0.913931185, 0.951229425, 1.072508181, 1.1, 1.1, 0.670320046, 1.1],
    ),
    "token clip: slime": (
        corrected("token", "truncate", 0.8, 1.1),
        [1.1, 1.083287068, 1.1, 0.913931185, 0.951229425, 1.072508181, 1.1, 1.1, 0.8, 1.1],
    ),
    "token mask: slime": (
        corrected("token", "mask", 0.8, 1.1),
        [0.0, 1.083287068, 0.0, 0.913931185, 0.951229425, 1.072508181, 0.0, 0.0, 0.0, 0.0],
    ),
    "sequence: verl, slime": (
        corrected("sequence", "truncate", 0.0, 1.1),
        [1.1, 1.1, 1.1, 1.1, 0.951229425, 1.1, 1.1, 1.1, 0.980198673, 0.980198673],
    ),
    "sequence mask: slime": (
        corrected("sequence", "mask", 0.8, 1.1),
        [0.0, 0.0, 0.0, 0.0, 0.951229425, 0.0, 0.0, 0.0, 0.980198673, 0.980198673],
    ),
    "geometric: slime": (
        corrected("geometric", "truncate", 0.0, 1.1),
        [1.1, 1.1, 1.1, 1.1, 0.951229425, 1.1, 1.1, 1.1, 0.990049834, 0.990049834],
    ),
    "geometric mask: slime": (
        corrected("geometric", "mask", 0.8, 1.1),
        [0.0, 0.0, 0.0, 0.0, 0.951229425, 0.0, 0.0, 0.0, 0.990049834, 0.990049834],
    ),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_importance_weights_are_the_peers(name):
    config, expected = WEIGHTS[name]
    mask = torch.arange(4) < torch.tensor([len(row) for row in OLD])[:, None]
    log_ratio = torch.zeros(4, 4, dtype=torch.float64)
    log_ratio[mask] = torch.tensor(
        [o - s for old, sampler in zip(OLD, SAMPLER, strict=True) for o, s in zip(old, sampler, strict=True)],
        dtype=torch.float64,
    )
    weights = importance_weights(log_ratio, mask, config)
    assert weights.weight_BT[mask].tolist() == pytest.approx(expected, abs=1e-8)


KL_VALUES: dict[str, tuple[AlgorithmConfig, list[float]]] = {
    "k1: NeMo RL": (
        options(kl_estimator=KlEstimator.k1, kl_clamp_log_ratio=20.0, kl_clamp_value=10.0),
        [0.0, 10.0, 10.0, -10.0, -2.0],
    ),
    "k2: NeMo RL": (
        options(kl_estimator=KlEstimator.k2, kl_clamp_log_ratio=20.0, kl_clamp_value=10.0),
        [0.0, 10.0, 10.0, 10.0, 2.0],
    ),
    "k3: NeMo RL": (
        options(kl_estimator=KlEstimator.k3, kl_clamp_log_ratio=20.0, kl_clamp_value=10.0),
        [0.0, 10.0, 10.0, 10.0, 4.389056099],
    ),
}
"""Expected values for log-probability -1 and references that are larger by 0, -15, -30, 25 and 2 nats."""


@pytest.mark.parametrize("name", KL_VALUES)
def test_the_clamped_kl_is_the_peers(name):
    config, expected = KL_VALUES[name]
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
