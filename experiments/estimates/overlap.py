"""Simulates log-probability passes that begin while the longest responses are still sampled.

    python -m experiments.estimates.overlap

A model of 1.5B on eight H100, 512 rollouts of at most 8,192 tokens, half of that on average, four updates, a KL term.
Every engine starts all of its rollouts at once. Each rank scores what its own engine samples, in the order of the
lengths, one pass after the other: which rollouts are in a pass then depends on no timing. While a pass runs beside
sampling, each goes on at a share of its speed alone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
import numpy.typing as npt

from experiments.estimates.tail import Engine, Lengths
from nemo_prorl.cluster.plan.chain import load_chain
from nemo_prorl.cluster.plan.fit import Cluster
from nemo_prorl.cluster.scale.known import GPUS, PAPER_MODEL, shape_of
from nemo_prorl.cluster.scale.roofline import FITTED, DecodeCost, decode_cost
from nemo_prorl.cluster.scale.workload import Case
from nemo_prorl.types import FloatArray, IntArray

NUM_ENGINES, NEEDED, NUM_ROLLOUTS = 8, 32, 16
LIMIT, PROMPT_TOKENS, PASS_TOKENS = 8192, 200, 8192
TOKEN_S = 1.75 / 118_700
"""Time of all passes per token: of the reference, and of the policy for three of four updates, at the speed measured on
one H100 (experiments/gpu.md)."""
SPEEDS = {
    "take turns": (1.0, 0.0),
    "as threads on the laptop": (0.8, 0.5),
    "share a partitioned GPU": (0.6, 0.8),
    "do not disturb each other": (1.0, 1.0),
}
"""What passes and sampling do -> (speed of passes, speed of sampling), each of its speed alone."""
NUM_DRAWS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """What one rank samples, in the order of the lengths. Arrays are [number of its rollouts]."""

    ends_s: FloatArray
    """When each rollout has ended."""
    tokens: IntArray
    """Prompt and response of each."""
    kept: npt.NDArray[np.bool_]
    """Whether the step trains on it, which is not known before all of its siblings are graded."""

    @property
    def sampled_s(self) -> float:
        return float(self.ends_s[-1])

    @property
    def passes_s(self) -> float:
        """Time of the passes that are needed."""
        return TOKEN_S * int(self.tokens[self.kept].sum())

    def finish_s(self, passes: float, sampling: float) -> float:
        """Returns when this rank has sampled, and scored what is kept. passes, sampling: speeds of each beside the
        other. A pass begins when its rollouts and the passes before it have ended."""
        now, delay, left = 0.0, 0.0, 0.0  # `now` in seconds of undisturbed sampling
        for rows in self._passes():
            tokens = self.tokens[rows]
            work, needed = TOKEN_S * tokens.sum(), TOKEN_S * tokens[self.kept[rows]].sum()
            now = max(now, float(self.ends_s[rows[-1]]))
            if now >= self.sampled_s:
                left += needed
                continue
            beside = work / passes
            if sampling and now + beside * sampling > self.sampled_s:
                beside = (self.sampled_s - now) / sampling
            now += beside * sampling
            delay += beside * (1 - sampling)
            left += needed * (1 - beside * passes / work)
        return self.sampled_s + delay + left

    def _passes(self) -> list[IntArray]:
        """Returns the rows of each pass of at most PASS_TOKENS tokens, or of one longer rollout."""
        cuts, room = [0], PASS_TOKENS
        for row, tokens in enumerate(self.tokens.tolist()):
            if tokens > room and row > cuts[-1]:
                cuts.append(row)
                room = PASS_TOKENS
            room -= tokens
        return np.split(np.arange(len(self.tokens)), cuts[1:])


def ranks_of(lengths: IntArray, kept: npt.NDArray[np.bool_], cost: DecodeCost) -> list[Rank]:
    """Returns all ranks. lengths: of the responses, [prompt, sibling]; kept: which prompts the step trains on."""
    ranks = []
    for first in range(NUM_ENGINES):  # single rollouts are distributed in turn
        of_rank = lengths.ravel()[first::NUM_ENGINES]
        is_kept = np.repeat(kept, lengths.shape[1])[first::NUM_ENGINES]
        order = np.argsort(of_rank, kind="stable")
        engine = Engine(
            cost=cost, prompt_tokens=PROMPT_TOKENS, num_places=len(order), queue=deque([of_rank.tolist()])
        )
        engine.run()
        ends = np.array(engine.ends_s) / FITTED.sampling
        ranks.append(Rank(ends_s=ends, tokens=of_rank[order] + PROMPT_TOKENS, kept=is_kept[order]))
    return ranks


def gain_s(ranks: list[Rank], passes: float, sampling: float) -> float:
    """Returns by how much a step is shorter than today's, which scores when all have sampled, in equal shares."""
    today = max(rank.sampled_s for rank in ranks) + fmean(rank.passes_s for rank in ranks)
    return today - max(rank.finish_s(passes, sampling) for rank in ranks)


def print_step(cost: DecodeCost, *, yield_: float, oversample: float) -> None:
    """Prints means over draws. yield_: share of prompts with a training signal, which does not depend on lengths."""
    num_prompts = round(NEEDED * oversample / yield_)
    draws, whole = [], []
    for seed in range(NUM_DRAWS):
        lengths = Lengths.with_mean(LIMIT / 2, limit=LIMIT).draw(num_prompts, NUM_ROLLOUTS, seed)
        informative = np.random.default_rng(seed).random(num_prompts) < yield_
        kept = informative & (np.cumsum(informative) <= NEEDED)
        draws.append(ranks_of(lengths, kept, cost))
        tokens = (lengths + PROMPT_TOKENS).sum(axis=1)[kept]
        whole.append(tokens[lengths.max(axis=1)[kept] < LIMIT].sum() / tokens.sum())
    each = [rank for ranks in draws for rank in ranks]
    seconds = fmean(rank.passes_s for rank in each)
    single = fmean(r.tokens[r.ends_s < r.sampled_s].sum() / r.tokens.sum() for r in each)
    last = fmean(max(rank.sampled_s for rank in ranks) for ranks in draws)
    waiting = last - fmean(rank.sampled_s for rank in each)
    print(
        f"{num_prompts} prompts: sampling {last:.1f} s, of which an engine waits {waiting:.1f} s; passes "
        f"{seconds:.1f} s; of all tokens {single:.0%} are in rollouts, and {fmean(whole):.0%} in whole groups, "
        "that end before the longest"
    )
    for name, speeds in SPEEDS.items():
        print(f"  passes and sampling {name}: {fmean(gain_s(ranks, *speeds) for ranks in draws):+.1f} s")


def main() -> None:
    """Prints the gain without dynamic sampling, and with half of the prompts informative."""
    config = load_chain(["run1"], [], config_name="train", conf_dir=Path("conf"))[-1]
    config = replace(config, trainer=replace(config.trainer, prompts_per_step=NEEDED))
    cluster = Cluster(num_nodes=1, gpus_per_node=NUM_ENGINES)
    cost = decode_cost(Case(model=shape_of(PAPER_MODEL), config=config, cluster=cluster, gpu=GPUS["h100"]))
    print_step(cost, yield_=1.0, oversample=1.0)
    print_step(cost, yield_=0.5, oversample=config.dynamic_sampling.oversample)


if __name__ == "__main__":
    main()
