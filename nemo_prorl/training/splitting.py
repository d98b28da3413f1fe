"""Splits a step's groups into the rows that each replica trains on: advantages, balanced shares, exchange of rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nemo_prorl.algorithm.advantage import response_kl, step_advantages
from nemo_prorl.config import RunConfig
from nemo_prorl.data.batch import TrainingRow, balance
from nemo_prorl.distributed import Ranks
from nemo_prorl.training.sampling.fleet import Key
from nemo_prorl.training.sampling.rounds import Collection
from nemo_prorl.types import FloatArray, PreparedRollout, RolloutOutline, TokenIds

Packed = tuple[TokenIds, FloatArray, FloatArray | None, FloatArray | None]
"""One rollout's token ids and its sampler, old and reference log-probabilities, each [R]. The last two may be the same
array; pickle then sends it once."""


def split_over_ranks(collection: Collection, config: RunConfig, ranks: Ranks) -> list[list[TrainingRow]]:
    """Returns the rows that this replica trains on, one list per update. Collective. Updates get equal shares
    of the groups, and replicas balanced numbers of their tokens. Raises ValueError on a reward that is NaN or infinite.

    Rollouts that shaping keeps out of the loss are in no row, so they do not count in the totals by which the update's
    loss is divided.
    """
    layout = ranks.layout
    kl_sums: list[list[float]] = []  # [group][member]
    if config.algorithm.takes_kl_from_rewards:
        mine = {key: response_kl(*row.logprobs, config.algorithm) for key, row in collection.prepared.items()}
        found = {key: kl for part in ranks.gather_replicas(mine) for key, kl in part.items()}
        kl_sums = [
            [found[index, member.rollout.sibling] for member in collection.sampled[index].members]
            for index in collection.kept
        ]
    advantages = step_advantages(collection.groups, config.algorithm, kl_sums)
    num_updates = min(config.trainer.updates_per_step, len(collection.kept))
    split: list[list[list[tuple[Key, float, RolloutOutline]]]] = []  # [update][replica] -> what it trains on
    for share in np.array_split(np.arange(len(collection.kept)), num_updates):
        members = [
            ((collection.kept[place], member.rollout.sibling), float(advantage), member.rollout)
            for place in share
            for member, advantage in zip(collection.groups[place].members, advantages[place], strict=True)
            if member.in_loss
        ]
        parts = balance([rollout.length for *_, rollout in members], layout.data_parallel)
        split.append([[members[index] for index in part] for part in parts])
    owner = {key: replica for parts in split for replica, part in enumerate(parts) for key, *_ in part}
    rows = _exchange(collection, owner, ranks)
    return [
        [
            TrainingRow(
                key=key, rollout=rows[key], advantage=advantage, policy_version=outline.policy_version
            )
            for key, advantage, outline in parts[layout.replica]
        ]
        for parts in split
    ]


def _exchange(collection: Collection, owner: Mapping[Key, int], ranks: Ranks) -> dict[Key, PreparedRollout]:
    """Sends each rollout from the replica that prepared it to the one that trains on it. Returns those of this rank."""
    parcels: dict[int, dict[Key, Packed]] = {}
    if ranks.layout.leads_replica:
        for key, row in collection.prepared.items():
            packed = (row.token_ids, row.sampler_logprobs, row.old_logprobs, row.reference_logprobs)
            for rank in ranks.layout.replica_ranks(owner[key]) if key in owner else ():
                parcels.setdefault(rank, {})[key] = packed
    return {
        key: PreparedRollout(
            prompt=collection.sampled[key[0]].prompt,
            token_ids=token_ids,
            sampler_logprobs=sampler,
            old_logprobs=old,
            reference_logprobs=reference,
        )
        for parcel in ranks.exchange(parcels)
        for key, (token_ids, sampler, old, reference) in parcel.items()
    }
