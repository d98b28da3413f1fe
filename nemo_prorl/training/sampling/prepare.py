"""Preparation of a round: collects verdicts, and computes log-probabilities while others are missing.

Log-probabilities are computed chunk by chunk (a chunk is some prompts of this replica). The prompts of a chunk are
fixed before the first verdict, and a chunk waits until it is decided which of its groups are kept, and which of them
are in the first update. So a group's log-probabilities do not depend on timing, and none are computed for surplus
groups. The old ones of the first update's rollouts are left to that update, whose pass has the same weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial

from nemo_prorl.algorithm.selection import Informativeness, classify, known_to_be_kept
from nemo_prorl.algorithm.shaping import shape_reward
from nemo_prorl.config import DynamicSamplingConfig
from nemo_prorl.data.batch import PASSES_A_CHUNK, balance, chunks, completed, responses, token_batch
from nemo_prorl.training.context import StepContext
from nemo_prorl.training.sampling import grading
from nemo_prorl.training.sampling.fleet import Key
from nemo_prorl.training.sampling.grading import Round
from nemo_prorl.types import (
    FloatArray,
    PreparedRollout,
    RolloutGroup,
    RolloutOutline,
    RolloutTokens,
    RunState,
    Share,
)
from reward.protocol import ScoreResult


def kind_of(group: RolloutGroup, dynamic: DynamicSamplingConfig) -> Informativeness:
    """Returns the group's kind. Without dynamic sampling every group that can be trained on is informative."""
    kind = classify(group, dynamic.by)
    unusable = kind in (Informativeness.service_failure, Informativeness.all_filtered)
    return kind if dynamic.enabled or unusable else Informativeness.informative


@dataclass(eq=False)
class Preparer:
    """Grades and prepares the rounds of each step. One instance serves the whole run."""

    context: StepContext

    def _send_tokens(self, round_: Round, share: Share, sizes: Sequence[int]) -> dict[Key, RolloutTokens]:
        """Sends each prompt's rollouts, of `sizes` tokens, to the replica that is to prepare them, balanced by tokens.
        Returns those of this replica."""
        layout = self.context.ranks.layout
        receivers = {
            index: layout.replica_ranks(replica)
            for replica, part in enumerate(balance(sizes, layout.data_parallel))
            for index in part
        }
        with self.context.stopwatch.measure("exchange_s"):
            return self.context.fleet.tokens(share, round_.prompts, receivers)

    def grade_and_prepare(
        self,
        round_: Round,
        share: Share,
        rollouts: Sequence[Sequence[RolloutOutline]],
        needed: int,
        num_first: int,
        state: RunState,
    ) -> tuple[list[RolloutGroup], dict[Key, PreparedRollout], dict[Key, ScoreResult]]:
        """Collects all verdicts of a round, and meanwhile prepares this replica's part of the first `needed`
        informative groups, of which the first `num_first` are for the first update. Returns (all groups in prompt
        order, what was prepared, all verdicts). share: what this rank has sampled; rollouts: all outlines as
        [prompt][sibling]."""
        context, config = self.context, self.context.config
        sizes = [sum(rollout.length for rollout in group) for group in rollouts]
        mine = self._send_tokens(round_, share, sizes)
        shape = partial(
            shape_reward,
            max_response_tokens=config.sampler.max_response_tokens,
            num_updates=state.num_updates,
            config=config.shaping,
        )
        context.stopwatch.begin("grading")
        indices = sorted({index for index, _ in mine})
        waiting = chunks(indices, sizes, PASSES_A_CHUNK * config.trainer.micro_batch_tokens)
        verdicts: dict[Key, ScoreResult] = {}
        groups: dict[int, RolloutGroup] = {}
        kinds: list[Informativeness | None] = [None] * len(rollouts)
        prepared: dict[Key, PreparedRollout] = {}
        while len(groups) < len(rollouts):
            verdicts |= self._arrived(round_)
            decided = {
                index: grading.graded_group(
                    round_.prompts[index], group, [verdicts[index, r.sibling] for r in group], shape
                )
                for index, group in enumerate(rollouts)
                if index not in groups and all((index, r.sibling) in verdicts for r in group)
            }
            if not decided:
                # Collecting verdicts is a collective of all ranks, whose time grows with their number (an estimated
                # 2 ms with 32 ranks). The interval keeps it at a tenth of the time, up to 400 ranks.
                interval_s = min(0.02 * max(1.0, context.ranks.layout.world_size / 32), 0.25)
                round_.in_flight.wait(interval_s)
                continue
            groups |= decided
            for index, group in decided.items():
                kinds[index] = kind_of(group, config.dynamic_sampling)
            kept, is_first = known_to_be_kept(kinds, needed), known_to_be_kept(kinds, num_first)
            ready = [
                chunk
                for chunk in waiting
                if all(kept[index] is not None and is_first[index] is not None for index in chunk)
            ]
            waiting = [chunk for chunk in waiting if chunk not in ready]
            batches = [
                {
                    (index, member.rollout.sibling): mine[index, member.rollout.sibling]
                    for index in chunk
                    if kept[index]
                    for member in groups[index].members
                }
                for chunk in ready
            ]
            if any(batches):
                of_update = {
                    (index, member.rollout.sibling)
                    for index in groups
                    if is_first[index]
                    for member in groups[index].members
                    if member.in_loss
                }
                prepared |= self._prepare([batch for batch in batches if batch], of_update, state)
                context.stopwatch.begin("grading")
        return [groups[index] for index in range(len(rollouts))], prepared, verdicts

    def _arrived(self, round_: Round) -> dict[Key, ScoreResult]:
        """Returns the verdicts that have arrived on any rank since the last call. Collective."""
        mine = {key: grading.for_all_ranks(found) for key, found in round_.in_flight.take_finished().items()}
        arrived: dict[Key, ScoreResult] = {}
        for part in self.context.ranks.gather(mine):
            arrived |= part
            if part:
                self.context.on_progress()
        return arrived

    def _prepare(
        self, ready: Sequence[Mapping[Key, RolloutTokens]], of_update: Set[Key], state: RunState
    ) -> dict[Key, PreparedRollout]:
        """Computes the log-probabilities of chunks of rollouts, each as one batch, but not the old ones that are left
        to the first update. Takes all chunks that are ready, because each call loads the reference weights once."""
        with self.context.stopwatch.measure("old_logprobs_s"):
            old = self._logprobs(
                [{k: row for k, row in chunk.items() if k not in of_update} for chunk in ready]
            )
        reference = old
        with self.context.stopwatch.measure("reference_logprobs_s"):
            if self.context.config.measures_kl and not state.policy_is_reference:
                with self.context.policy.reference():
                    reference = self._logprobs(ready)
        return {
            key: PreparedRollout(
                prompt=row.prompt,
                token_ids=row.token_ids,
                sampler_logprobs=row.sampler_logprobs,
                old_logprobs=old.get(key),
                reference_logprobs=reference.get(key),
            )
            for chunk in ready
            for key, row in chunk.items()
        }

    def num_first(self, num_groups: int) -> int:
        """Returns how many groups of a step are in its first update, if that computes their old log-probabilities. A KL
        penalty in the reward needs them before: then 0."""
        if self.context.config.algorithm.takes_kl_from_rewards:
            return 0
        return -(-num_groups // min(self.context.config.trainer.updates_per_step, num_groups))

    def complete(self, prepared: dict[Key, PreparedRollout], groups: Set[int]) -> None:
        """Computes what was left to the first update for groups that are not in it, because the step is not full."""
        missing = {k: row for k, row in prepared.items() if k[0] in groups and row.old_logprobs is None}
        if not missing:
            return
        with self.context.stopwatch.measure("old_logprobs_s"):
            for key, old in self._logprobs([missing]).items():
                prepared[key] = completed(prepared[key], old)

    def _logprobs(self, chunks: Sequence[Mapping[Key, RolloutTokens]]) -> dict[Key, FloatArray]:
        """Returns the [R] log-probabilities of each rollout; every chunk is one batch."""
        found: dict[Key, FloatArray] = {}
        for chunk in filter(None, chunks):
            rows = list(chunk.values())
            found |= zip(chunk, responses(self.context.policy.logprobs(token_batch(rows)), rows), strict=True)
            self.context.on_progress()
        return found
