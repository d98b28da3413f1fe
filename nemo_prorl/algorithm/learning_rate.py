"""The learning rate that trainer.learning_rate=0 stands for."""

from __future__ import annotations

from math import sqrt

ANCHOR_WEIGHTS, ANCHOR_RATE = 1.777e9, 2e-6
"""ProRL's model and rate (2507.12507 section 4.1)."""
EXPONENT = 0.6
LEAST, MOST = 1e-6, 5e-4
"""The rate of published recipes from 7B to 32B, and half of the rate at which small models collapsed."""


def chosen_rate(num_weights: int, *, hidden_size: int, rank: int = 0, scale: float = 1.0) -> float:
    """Returns the rate for a model of so many weights, with two digits; rank: of low-rank training, with the scale of
    its factors' product, 0 if all weights are trained.

    An update of Adam moves every weight by about the rate, so the outputs of a layer move by its width times the rate,
    which is why the best rate falls with the width (muP: Yang et al., arXiv 2203.03466, table 3), about as the root of
    the number of weights. The exponent is a little more, as measured (experiments/learning_rate.md). With A of N(0, 1 /
    rank) (engines/megatron/low_rank.py) the first update of B moves the outputs by the root of the rank times rate and
    scale, for inputs of independent elements, and that of all weights by the root of the width: the two rates move them
    equally far. At rank 32 this is 7 times the rate of 1.5B, near the 10 times of LoRA Without Regret (Schulman et al.,
    2025)."""
    rate = min(MOST, max(LEAST, ANCHOR_RATE * (ANCHOR_WEIGHTS / num_weights) ** EXPONENT))
    if rank:
        rate *= sqrt(hidden_size / rank) / scale
    return float(f"{rate:.1e}")
