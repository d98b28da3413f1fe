"""All sampling engines of the job as one: deals rollouts out, and brings each to the ranks that compute with it. What
all ranks need to know of every rollout is small.

Rollouts are dealt one by one, not prompt by prompt: siblings are of similar length, and a hard prompt whose rollouts
are all on one engine keeps the others waiting (docs/scale.md has the figures). Who samples what depends on the prompts'
order alone, so it is the same in every run; what comes out does not depend on who samples it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from nemo_prorl.algorithm.shaping import outline
from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.interface import Sampler, SamplingSettings
from nemo_prorl.types import FloatArray, Prompt, Rollout, RolloutOutline, RolloutTokens, TokenIds

Share = Mapping[int, Sequence[Rollout]]
"""Rollouts that one engine has sampled, by index of the prompt."""
Key = tuple[int, int]
"""Names a rollout of a step on every rank: (index of the prompt, sibling)."""


class SamplerFleet:
    """One engine every `tensor_parallel` consecutive ranks; the first of them speaks for the engine."""

    def __init__(
        self,
        sampler: Sampler,
        ranks: Ranks,
        *,
        tensor_parallel: int,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_progress` is called on each rank of an engine when a rollout of it ends."""
        self._sampler = sampler
        self._ranks = ranks
        self._on_progress = on_progress
        self._engine, self._shard = divmod(ranks.layout.rank, tensor_parallel)
        self.num_engines = ranks.layout.world_size // tensor_parallel
        self._num_preemptions = 0

    def sample_share(
        self,
        prompts: Sequence[Prompt],
        settings: SamplingSettings,
        on_finish: Callable[[int, Rollout], None],
    ) -> dict[int, list[Rollout]]:
        """This engine's share of the rollouts, by index of the prompt; on the ranks that do not speak for it, none.

        `on_finish(index of the prompt, rollout)` is called on one rank only, the moment the rollout ends.
        """
        siblings = dealt(self._engine, self.num_engines, len(prompts), settings.num_rollouts)
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
        """All rollouts of all prompts, from every engine: by engine, prompt and sibling, on every rank."""
        sampled = self._sampler.sample(prompts, settings, lambda rollout: self._on_progress())
        shards = self._ranks.gather(sampled if self._shard == 0 else [])
        return [shards[rank] for rank in range(0, len(shards), len(shards) // self.num_engines)]

    def take_preemptions(self) -> int:
        """Returns how many rollouts all engines have removed from a full KV cache since the last call. Collective."""
        before, mine = self._num_preemptions, self._sampler.num_preemptions
        self._num_preemptions = mine
        return sum(self._ranks.gather(mine - before if self._shard == 0 else 0))

    def outlines(
        self, share: Share, prompts: Sequence[Prompt], num_rollouts: int
    ) -> list[list[RolloutOutline]]:
        """Of all rollouts of every prompt, in the prompts' order, on every rank. Collective; `share` is what this rank
        got from `sample_share`."""
        groups: list[dict[int, RolloutOutline]] = [{} for _ in prompts]
        mine = [(index, _facts(outline(r))) for index, rollouts in share.items() for r in rollouts]
        for part in self._ranks.gather(mine):
            for index, facts in part:
                groups[index][facts["sibling"]] = RolloutOutline(prompt=prompts[index], **facts)
        return [[group[sibling] for sibling in range(num_rollouts)] for group in groups]

    def tokens(
        self, share: Share, prompts: Sequence[Prompt], receivers: Mapping[int, Sequence[int]]
    ) -> dict[Key, RolloutTokens]:
        """Those of the prompts for which `receivers`, by index of the prompt, names this rank. Collective."""
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


def dealt(engine: int, num_engines: int, num_prompts: int, num_rollouts: int) -> dict[int, range]:
    """Siblings that an engine samples, by index of the prompt, when rollouts are dealt like cards.

    Example: dealt(1, 3, 3, 2) -> {0: [1], 2: [0]} as ranges: the second and the fifth of six rollouts
    """
    shares = {
        index: range((engine - index * num_rollouts) % num_engines, num_rollouts, num_engines)
        for index in range(num_prompts)
    }
    return {index: siblings for index, siblings in shares.items() if siblings}


def _facts(rollout: RolloutOutline) -> dict[str, Any]:
    """All but the prompt, which every rank has."""
    return {field.name: getattr(rollout, field.name) for field in fields(rollout) if field.name != "prompt"}
