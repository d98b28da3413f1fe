"""Adaptive entropy bonus: a target entropy switches it on and off (Skywork-OR1, arXiv 2505.22312, "Adaptive Entropy
Control"; ProRL section 5.4, AdaptiveEntropy).

    alpha_k = c_k if e_k <= target else 0                           the weight in the loss of step k
    c_(k+1) = c_k + delta if e_k < target else c_k - delta          kept within [0, entropy_coefficient_max]

e_k is the entropy that was measured last, in nats a token. The authors' code treats e_k == target as reached; so
does the second line. The upper bound is ours: without one a policy that cannot reach the target gets noise in the end.
"""

from __future__ import annotations

import math

from nemo_prorl.config import AlgorithmConfig, EntropyBonus


def active_entropy_coefficient(coefficient: float, entropy: float, config: AlgorithmConfig) -> float:
    """alpha_k above: weight of the bonus in this step's loss.

    coefficient: c_k, the state. entropy: last measured, nats a token. With a fixed bonus the configured weight,
    whatever the state. Raises ValueError on an entropy that is NaN or infinite.
    """
    if config.entropy_bonus is EntropyBonus.fixed:
        return config.entropy_coefficient
    _check(entropy)
    return coefficient if entropy <= config.entropy_target else 0.0


def next_entropy_coefficient(coefficient: float, entropy: float, config: AlgorithmConfig) -> float:
    """c_(k+1) above, from c_k and the entropy of step k in nats a token.

    With a fixed bonus the configured weight. Raises ValueError on an entropy that is NaN or infinite.
    """
    if config.entropy_bonus is EntropyBonus.fixed:
        return config.entropy_coefficient
    _check(entropy)
    step = config.entropy_step if entropy < config.entropy_target else -config.entropy_step
    return min(max(coefficient + step, 0.0), config.entropy_coefficient_max)


def _check(entropy: float) -> None:
    """NaN compares false with everything, which would quietly lower the coefficient step by step."""
    if not math.isfinite(entropy):
        raise ValueError(f"entropy must be finite, got {entropy}")
