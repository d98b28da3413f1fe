"""pass@k: the chance that at least one of k rollouts of a prompt is right."""

from __future__ import annotations

from collections.abc import Iterable
from math import comb, fsum


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Chen et al., arXiv 2107.03374 eq. 1: 1 - C(n - c, k) / C(n, k), unbiased for k <= n.

    Computed in integers and divided once, so it is correctly rounded for any n; the usual product of floats loses
    digits when few of many samples are right.

    num_samples: n. num_correct: c. Raises ValueError unless 1 <= k <= n and 0 <= c <= n: with k > n nothing unbiased
    can be said.
    """
    if not 1 <= k <= num_samples:
        raise ValueError(
            f"pass@{k} needs at least {max(k, 1)} samples and k of at least 1, got {num_samples} samples"
        )
    if not 0 <= num_correct <= num_samples:
        raise ValueError(f"{num_correct} correct of {num_samples} samples is impossible")
    num_subsets = comb(num_samples, k)
    return (num_subsets - comb(num_samples - num_correct, k)) / num_subsets


def mean_pass_at_k(counts: Iterable[tuple[int, int]], k: int) -> float:
    """Mean of `pass_at_k` over prompts; prompts count equally, however often each was sampled.

    counts: (num_samples, num_correct) of each prompt. Raises ValueError without prompts, or as `pass_at_k` does.
    """
    values = [pass_at_k(num_samples, num_correct, k) for num_samples, num_correct in counts]
    if not values:
        raise ValueError(f"the mean of pass@{k} needs at least one prompt")
    return fsum(values) / len(values)
