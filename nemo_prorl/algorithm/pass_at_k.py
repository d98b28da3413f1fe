"""pass@k: the probability that at least one of k rollouts of a prompt is right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import comb, fsum

import numpy as np


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Returns 1 - C(n - c, k) / C(n, k), unbiased for k <= n (Chen et al., arXiv 2107.03374 eq. 1).

    Computed in integers and divided once, so it is correctly rounded for any n; the usual product of floats loses
    digits if few of many samples are right.

    num_samples: n. num_correct: c. Raises ValueError unless 1 <= k <= n and 0 <= c <= n: there is no unbiased estimate
    for k > n.
    """
    if not 1 <= k <= num_samples:
        raise ValueError(
            f"pass@{k} needs at least {max(k, 1)} samples and k of at least 1, got {num_samples} samples"
        )
    if not 0 <= num_correct <= num_samples:
        raise ValueError(f"{num_correct} correct of {num_samples} samples is impossible")
    num_subsets = comb(num_samples, k)
    return (num_subsets - comb(num_samples - num_correct, k)) / num_subsets


def boundary_k(num_samples: int) -> int:
    """Returns the k for the reasoning boundary: half of the samples, as ProRL uses pass@128 of 256 samples.

    At k = n the estimate for a prompt is 1 if any sample was right, else 0. That is as unbiased as at n / 2, but has
    the largest variance of all k, and a single missing sample of one prompt makes it impossible.
    """
    return max(1, num_samples // 2)


def measured_ks(num_samples: int, least_samples: int) -> list[int]:
    """Returns the ks of a pass@k curve: powers of two, `boundary_k(num_samples)` and num_samples itself, limited to
    those for which every prompt has enough samples.

    num_samples: the most that a prompt has. least_samples: the fewest, at least boundary_k(num_samples).
    """
    ks = {2**i for i in range(least_samples.bit_length())} | {boundary_k(num_samples), num_samples}
    return sorted(k for k in ks if k <= least_samples)


def mean_pass_at_k(counts: Iterable[tuple[int, int]], k: int) -> float:
    """Returns the mean of `pass_at_k` over prompts; prompts count equally, however often each was sampled.

    counts: (num_samples, num_correct) of each prompt. Raises ValueError without prompts, or as `pass_at_k` does.
    """
    values = [pass_at_k(num_samples, num_correct, k) for num_samples, num_correct in counts]
    if not values:
        raise ValueError(f"the mean of pass@{k} needs at least one prompt")
    return fsum(values) / len(values)


def pass_at_k_bound(counts: Sequence[tuple[int, int]], k: int) -> float:
    """Returns the bound of ProRL (arXiv 2505.24864) eq. 5, from Dang et al. 2025: with rho the pass@1 of a prompt,

        E[pass@k] <= 1 - ((1 - E[rho])^2 + Var(rho))^(k / 2).

    The bracket is E[(1 - rho)^2], the probability that two samples are both wrong, which is 1 - pass@2. So the bound is
    computed as 1 - (1 - pass@2)^(k / 2), from the unbiased pass@2: the variance of rates measured with few samples is
    too large, and would make the bound too low. By Jensen's inequality it holds for k >= 2 (with equality at 2) and is
    reversed below.

    counts: (num_samples, num_correct) of each prompt. Raises ValueError for k < 2, or as `mean_pass_at_k` does.
    """
    if k < 2:
        raise ValueError(f"the bound holds for k of at least 2, not for {k}")
    return 1.0 - (1.0 - mean_pass_at_k(counts, 2)) ** (k / 2)


def bootstrap_interval(values: Sequence[float], *, num_resamples: int, seed: int) -> tuple[float, float]:
    """Returns the 95 % bootstrap percentile interval (Efron 1979), as (low, high), of the mean of `values`, one per
    prompt.

    It says how far another set of prompts could move the mean. As rollouts of other prompts differ, too, this includes
    the randomness of sampling. Raises ValueError without values.
    """
    if not values:
        raise ValueError("an interval needs at least one prompt")
    array, generator = np.asarray(values, dtype=np.float64), np.random.default_rng(seed)
    block = max(1, 2**16 // len(array))  # resamples drawn at once: as many as fit into a processor's cache
    sizes = [min(block, num_resamples - drawn) for drawn in range(0, num_resamples, block)]
    draws = (generator.integers(0, len(array), (size, len(array))) for size in sizes)
    means = np.concatenate([array[drawn].mean(axis=1) for drawn in draws])
    low, high = np.quantile(means, [(1 - 0.95) / 2, (1 + 0.95) / 2])
    return float(low), float(high)
