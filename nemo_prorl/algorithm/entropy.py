"""Adaptive entropy bonus, switched on and off by a target entropy (Skywork-OR1, arXiv 2505.22312, "Adaptive Entropy
Control"; ProRL section 5.4, AdaptiveEntropy).

    alpha_k = c_k if e_k <= target else 0                           the weight in the loss of step k
    c_(k+1) = c_k + delta if e_k < target else c_k - delta          kept within [0, entropy_coefficient_max]

e_k is the most recently measured entropy, in nats a token. The authors' code treats e_k == target as reached, and so
does the second line. With entropy_anneal_steps = T the target is a schedule, the best one of Entrocraft (arXiv
2604.26326): it moves linearly from entropy_target to entropy_target_end in the T steps after a reset or the run's
start, and stays there. The papers set no upper bound; without one a policy that cannot reach the target would get ever
more bonus, and in the end noise.
"""

from __future__ import annotations

import math

from nemo_prorl.config import AlgorithmConfig, EntropyBonus


def entropy_target(config: AlgorithmConfig, num_steps: int) -> float:
    """Returns the target in nats a token, `num_steps` steps after the last reset or the run's start."""
    if not config.entropy_anneal_steps:
        return config.entropy_target
    share = min(1.0, num_steps / config.entropy_anneal_steps)
    return config.entropy_target + share * (config.entropy_target_end - config.entropy_target)


def active_entropy_coefficient(
    coefficient: float | None, entropy: float, config: AlgorithmConfig, *, num_steps: int = 0
) -> float:
    """Returns alpha_k above: the weight of the bonus in this step's loss.

    coefficient: c_k, the state; None stands for the configured c_0. entropy: most recently measured, in nats a token.
    num_steps: as for `entropy_target`. With a fixed bonus returns the configured weight, whatever the state. Raises
    ValueError on an entropy that is NaN or infinite.
    """
    if config.entropy_bonus is EntropyBonus.fixed:
        return config.entropy_coefficient
    _check(entropy)
    return _state(coefficient, config) if entropy <= entropy_target(config, num_steps) else 0.0


def next_entropy_coefficient(
    coefficient: float | None, entropy: float, config: AlgorithmConfig, *, num_steps: int = 0
) -> float | None:
    """Returns c_(k+1) above, from c_k (None stands for the configured c_0) and the entropy of step k in nats a token.
    num_steps: as for `entropy_target`.

    With a fixed bonus returns None, so that a later stage with an adaptive one begins at its own c_0. Raises ValueError
    on an entropy that is NaN or infinite.
    """
    if config.entropy_bonus is EntropyBonus.fixed:
        return None
    _check(entropy)
    step = config.entropy_step if entropy < entropy_target(config, num_steps) else -config.entropy_step
    return min(max(_state(coefficient, config) + step, 0.0), config.entropy_coefficient_max)


def _state(coefficient: float | None, config: AlgorithmConfig) -> float:
    return config.entropy_coefficient if coefficient is None else coefficient


def _check(entropy: float) -> None:
    """Refuses NaN, which compares false with everything and would lower the coefficient step by step, unnoticed."""
    if not math.isfinite(entropy):
        raise ValueError(f"entropy must be finite, got {entropy}")
