"""The learning rate that trainer.learning_rate=0 stands for."""

from __future__ import annotations

from math import sqrt

ANCHOR_WEIGHTS, ANCHOR_RATE = 1.777e9, 2e-6
"""ProRL's model and its rate (2507.12507 section 4.1)."""
LEAST = 1e-6
"""The rate of published recipes from 7B to 32B (docs/recipes.md)."""


def chosen_rate(num_weights: int, *, hidden_size: int, rank: int = 0, scale: float = 1.0) -> float:
    """Returns a rate with two digits for a model of so many weights. rank, scale: of low-rank factors; rank 0: all
    weights are trained.

    An update of Adam moves every weight by about the rate, and so the outputs of a layer by the rate times its width:
    the best rate falls with the width (muP, Yang et al., arXiv 2203.03466, table 3), at a given depth with the root of
    the number of weights. With A of N(0, 1 / rank) (engines/megatron/low_rank.py), of an input with independent
    elements, the first update of B moves the outputs by scale times the root of the rank, one of all weights by the
    root of the width; the factor makes them equal. It is 7 for 1.5B at rank 32, near the 10 of Schulman et al. (LoRA
    Without Regret, 2025)."""
    rate = max(LEAST, ANCHOR_RATE * sqrt(ANCHOR_WEIGHTS / num_weights))
    if rank:
        rate *= sqrt(hidden_size / rank) / scale
    return float(f"{rate:.1e}")
