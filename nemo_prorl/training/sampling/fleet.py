"""All sampling engines of the job as one: distributes rollouts over them, and sends the tokens of each rollout to the
ranks that compute with it. All ranks get only its small outline.

Rollouts are distributed one by one, not prompt by prompt: siblings have similar lengths, so an engine with all rollouts
of a hard prompt would keep the others waiting (experiments/estimates.md has the figures). The distribution depends only
on the prompts' order, and the tokens of a rollout do not depend on the engine that samples it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from nemo_prorl.algorithm.shaping import outline
from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.interface import Sampler, SamplingSettings
from nemo_prorl.types import FloatArray, Prompt, Rollout, RolloutOutline, RolloutTokens, Share, TokenIds

Key = tuple[int, int]
"""Index of the prompt, and sibling: they identify a rollout of a step on every rank."""


class SamplerFleet:
    """The job's sampling engines, each of `tensor_parallel` consecutive ranks. The first rank of an engine reports its
    rollouts, the others report none."""

    def __init__(
        self,
        sampler: Sampler,
        ranks: Ranks,
        *,
        tensor_parallel: int,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        """on_progress: is called on every rank of an engine when one of its rollouts ends."""
        self._sampler = sampler
        self._ranks = ranks
        self._on_progress = on_progress
        self._engine, self._shard = divmod(ranks.layout.rank, tensor_parallel)
        self.num_engines = ranks.layout.world_size // tensor_parallel
        self._num_preemptions = 0

    def sample_share(
        self, prompts: Sequence[Prompt], settings: SamplingSettings, on_finish: Callable[[int, Rollout], None]
    ) -> dict[int, list[Rollout]]:
        """Returns this engine's share of the rollouts on the rank that reports them, nothing on its other ranks.

        on_finish: is called there with (index of the prompt, rollout) when a rollout ends.
        """
        siblings = siblings_of(self._engine, self.num_engines, len(prompts), settings.num_rollouts)
        index_of = {prompts[index].uid: index for index in siblings}

        def report(rollout: Rollout) -> None:
            self._on_progress()
            if self._shard == 0:
                on_finish(index_of[rollout.prompt.uid], rollout)

        mine = [prompts[index] for index in siblings]
        sampled = self._sampler.sample(mine, settings, report, list(siblings.values()))
        return dict(zip(siblings, sampled, strict=True)) if self._shard == 0 else {}

    def sample_on_each(
        self, prompts: Sequence[Prompt], settings: SamplingSettings
    ) -> list[list[list[Rollout]]]:
        """Returns rollouts as [engine][prompt][sibling] on every rank; every engine samples all of them. Collective."""
        sampled = self._sampler.sample(prompts, settings, lambda rollout: self._on_progress())
        shards = self._ranks.gather(sampled if self._shard == 0 else [])
        return [shards[rank] for rank in range(0, len(shards), len(shards) // self.num_engines)]

    def take_preemptions(self) -> int:
        """Returns how many rollouts were removed from a full KV cache since the last call, over all engines.
        Collective."""
        before, mine = self._num_preemptions, self._sampler.num_preemptions
        self._num_preemptions = mine
        return sum(self._ranks.gather(mine - before if self._shard == 0 else 0))

    def outlines(
        self, share: Share, prompts: Sequence[Prompt], num_rollouts: int
    ) -> list[list[RolloutOutline]]:
        """Returns outlines of all rollouts as [prompt][sibling], on every rank. Collective. share: what `sample_share`
        returned on this rank."""
        groups: list[dict[int, RolloutOutline]] = [{} for _ in prompts]
        mine = [
            (index, replace(outline(rollout), prompt=None))  # type: ignore[arg-type]  # every rank has the prompts
            for index, rollouts in share.items()
            for rollout in rollouts
        ]
        for part in self._ranks.gather(mine):
            for index, found in part:
                groups[index][found.sibling] = replace(found, prompt=prompts[index])
        return [[group[sibling] for sibling in range(num_rollouts)] for group in groups]

    def tokens(
        self, share: Share, prompts: Sequence[Prompt], receivers: Mapping[int, Sequence[int]]
    ) -> dict[Key, RolloutTokens]:
        """Returns the rollouts' tokens that this rank is to receive. Collective. receivers: index of the prompt ->
        ranks that get all of its rollouts."""
        parcels: dict[int, dict[Key, tuple[TokenIds, FloatArray]]] = {}
        for index, rollouts in share.items():
            packed = {
                (index, r.sibling): (r.token_ids.astype(np.int32), r.sampler_logprobs) for r in rollouts
            }
            for rank in receivers[index]:
                parcels.setdefault(rank, {}).update(packed)
        return {
            key: RolloutTokens(prompt=prompts[key[0]], token_ids=token_ids, sampler_logprobs=logprobs)
            for parcel in self._ranks.exchange(parcels)
            for key, (token_ids, logprobs) in parcel.items()
        }


def siblings_of(engine: int, num_engines: int, num_prompts: int, num_rollouts: int) -> dict[int, range]:
    """Returns, by index of the prompt, the siblings that one engine samples, if engines take rollouts in turn.

    Example: siblings_of(1, 3, 3, 2) -> {0: [1], 2: [0]} as ranges: the second and the fifth of six rollouts
    """
    shares = {
        index: range((engine - index * num_rollouts) % num_engines, num_rollouts, num_engines)
        for index in range(num_prompts)
    }
    return {index: siblings for index, siblings in shares.items() if siblings}
