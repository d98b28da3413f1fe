"""Dynamic sampling: rounds of sample -> grade -> select, until the step has its informative groups.

Which groups are kept is a function of the prompts' order and of the rewards alone, never of what finished first:
short answers get no advantage from being short. Log-probabilities are computed chunk by chunk while other verdicts
are still on their way. Which prompts form a chunk is known before the first verdict, and a chunk waits until it is
decided which of its groups are kept, so that a group's numbers do not depend on what happened to be ready beside it,
and no pass is spent on groups beyond what the step needs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from nemo_prorl.algorithm.selection import Informativeness, classify, keep_first, known_to_be_kept
from nemo_prorl.algorithm.shaping import shape_reward
from nemo_prorl.config import RunConfig
from nemo_prorl.data.batch import PASSES_A_CHUNK, balance, chunks, responses, token_batch
from nemo_prorl.data.mix import PromptMix
from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.interface import Grader, Policy, SamplingSettings
from nemo_prorl.training.ahead import Round, RoundAhead
from nemo_prorl.training.fleet import Key, SamplerFleet, Share
from nemo_prorl.training.grading import (
    GradingInFlight,
    RewardServiceFailing,
    check_failures,
    for_all_ranks,
    graded_group,
)
from nemo_prorl.training.timing import Stopwatch
from nemo_prorl.types import (
    FloatArray,
    PreparedRollout,
    RolloutGroup,
    RolloutOutline,
    RolloutTokens,
    RunState,
    TokenBatch,
)
from reward.protocol import ScoreResult


def poll_s(world_size: int) -> float:
    """Seconds between two looks at what has been graded. Each look is a collective of all ranks, whose time grows with
    their number (some 2 ms with 32 ranks, our estimate): it is to take a tenth of the time up to 400 ranks."""
    return min(0.02 * max(1.0, world_size / 32), 0.25)


class Saturated(RuntimeError):
    """A step finds too few groups to train on: (nearly) every prompt is all right or all wrong, or overlong filtering
    leaves nothing of its group. Without dynamic sampling that means none at all."""


class NothingToLearn(RuntimeError):
    """The very first step of a run is saturated: not the data is exhausted, but data and policy do not fit."""


def check_learned(state: RunState, saturated: Saturated) -> None:
    """Raises NothingToLearn where a run would end before it has taken a step."""
    if state.step == 0:
        raise NothingToLearn(f"stage {state.stage} finds nothing to learn from: {saturated}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """What a step is trained on, and how it came about; the same on every rank but for `prepared` and the clock."""

    sampled: tuple[RolloutGroup, ...]
    """Every group of the step, kept or not, in prompt order: what rewards and lengths are reported over."""
    kept: tuple[int, ...]
    """Indices in `sampled` of what the step is trained on."""
    prepared: Mapping[Key, PreparedRollout]
    """Rollouts of kept groups whose log-probabilities this replica has computed, by (index in `sampled`, sibling), and
    in the order of these keys."""
    kinds: Counter[Informativeness]
    num_needed: int
    """How many of `sampled` it took to fill the step: those behind them were sampled and graded in vain."""
    surplus: tuple[int, ...]
    """Indices in `sampled` of informative groups beyond what the step needed: sampled and graded in vain."""
    num_rounds: int
    grading_busy_s: float
    """Seconds in which this rank had something at the graders."""
    grading_exposed_s: float
    """Seconds in which this rank did nothing but wait for them."""

    @property
    def groups(self) -> tuple[RolloutGroup, ...]:
        """What the step is trained on, in prompt order."""
        return tuple(self.sampled[index] for index in self.kept)

    @property
    def num_tokens(self) -> int:
        """Response tokens of everything that was sampled and graded."""
        return sum(group.num_tokens for group in self.sampled)


class Collector:
    """Fills batches. One instance a run; every rank calls `collect` at the same time."""

    def __init__(
        self,
        *,
        config: RunConfig,
        prompts: PromptMix,
        fleet: SamplerFleet,
        policy: Policy,
        grader: Grader,
        ranks: Ranks,
        stopwatch: Stopwatch,
        say: Callable[[str], None] = lambda text: None,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        """`say` and `on_progress`: see GradingInFlight."""
        self._config = config
        self._prompts = prompts
        self._fleet = fleet
        self._policy = policy
        self._grader = grader
        self._ranks = ranks
        self._stopwatch = stopwatch
        self._say = say
        self._on_progress = on_progress
        self._poll_s = poll_s(ranks.layout.world_size)
        self._ahead: RoundAhead | None = None

    def collect(self, state: RunState, *, ahead: bool = False) -> Collection:
        """`ahead`: the first round of the next step is sampled meanwhile, by the weights that the sampler has now, and
        nobody else may use the sampler before `finish_ahead` or `drop_ahead`. Raises Saturated, or
        RewardServiceFailing."""
        needed, dynamic = self._config.trainer.prompts_per_step, self._config.dynamic_sampling
        groups: list[RolloutGroup] = []
        prepared: dict[Key, PreparedRollout] = {}
        verdicts: list[ScoreResult] = []
        rounds: list[Round] = []
        kept, surplus = tuple[int, ...](), tuple[int, ...]()
        while len(kept) < needed and len(rounds) < (dynamic.max_rounds if dynamic.enabled else 1):
            size = self._round_size(needed - len(kept), state)
            round_, share, rollouts = self._sample(size, state.step, is_first=not rounds)
            if ahead and not rounds:
                self._begin_ahead(self._round_size(needed, state), state.step + 1)
            rounds.append(round_)
            mine = self._deal_tokens(round_, share, rollouts)
            fresh, of_round = self._settle(round_, rollouts, mine, needed - len(kept), state, verdicts)
            check_failures(verdicts, self._config.reward.max_failed_share)
            prepared |= {(len(groups) + index, sibling): row for (index, sibling), row in of_round.items()}
            groups += fresh
            kept, surplus = keep_first([self._kind(group) for group in groups], needed)
        state.sampling_yield = 0.5 * state.sampling_yield + 0.5 * (len(kept) + len(surplus)) / len(groups)
        kinds = Counter(classify(group, dynamic.by) for group in groups)
        if not dynamic.enabled and len(kept) < needed:
            self._say(
                f"step {state.step + 1} trains on {len(kept)} of {needed} prompts: overlong filtering leaves nothing "
                f"of {kinds[Informativeness.all_filtered]}, and grading failed on "
                f"{kinds[Informativeness.service_failure]}"
            )
        if len(kept) < max(1.0, dynamic.min_fill * needed if dynamic.enabled else 0.0):
            # A step that lacks what the service failed on says nothing about the data.
            if kinds[Informativeness.service_failure] >= (needed - len(kept) if dynamic.enabled else 1):
                raise RewardServiceFailing(
                    f"failures of grading left {kinds[Informativeness.service_failure]} of {len(groups)} prompts "
                    f"without verdicts, so that a step found {len(kept)} of {needed} groups."
                )
            raise Saturated(_describe_saturation(kinds, len(kept), needed, len(rounds)))
        return Collection(
            sampled=tuple(groups),
            kept=kept,
            prepared=dict(sorted(prepared.items())),  # sums over it are the same whatever was graded first
            kinds=kinds,
            num_needed=kept[-1] + 1 if len(kept) == needed else len(groups),
            surplus=surplus,
            num_rounds=len(rounds),
            grading_busy_s=sum(round_.in_flight.busy_s for round_ in rounds),
            grading_exposed_s=sum(round_.in_flight.exposed_s for round_ in rounds),
        )

    def finish_ahead(self) -> None:
        """Returns when the sampler is free again. What it has sampled is kept for the next step."""
        if self._ahead is not None:
            with self._stopwatch.measure("sampling_s"):
                self._ahead.share()

    def drop_ahead(self) -> None:
        """A round that is under way or kept has never been: its prompts come again, and so do those that were taken
        after them. For a checkpoint, which is to say all that goes on from it, and for the end."""
        if self._ahead is not None:
            self._ahead.cancel()
            self._prompts.restore(self._ahead.cursor)
            self._ahead = None

    def _kind(self, group: RolloutGroup) -> Informativeness:
        """Without dynamic sampling every group that has something to compare and to train on counts as informative."""
        kind = classify(group, self._config.dynamic_sampling.by)
        unusable = kind in (Informativeness.service_failure, Informativeness.all_filtered)
        return kind if self._config.dynamic_sampling.enabled or unusable else Informativeness.informative

    def _round_size(self, missing: int, state: RunState) -> int:
        """Prompts to sample for `missing` groups at the yield seen so far, on however many engines."""
        dynamic = self._config.dynamic_sampling
        if not dynamic.enabled:
            return missing
        return math.ceil(min(missing * dynamic.oversample / max(state.sampling_yield, 0.05), 4 * missing))

    def _sample(
        self, num_prompts: int, step: int, *, is_first: bool
    ) -> tuple[Round, Share, list[list[RolloutOutline]]]:
        """So many prompts, now; as the first of a step the round that the step before has begun, if it has. The share
        is what this rank has sampled of it."""
        self.finish_ahead()  # of this step; of the next one, where this one's first round was not enough
        with self._stopwatch.measure("sampling_s"):
            if self._ahead is not None and is_first:
                round_, share = self._ahead.round, self._ahead.share()
                self._ahead = None
            else:
                round_ = self._new_round(num_prompts, step)
                share = self._fleet.sample_share(round_.prompts, round_.settings, round_.submit)
            return round_, share, self._fleet.outlines(share, round_.prompts, round_.settings.num_rollouts)

    def _begin_ahead(self, num_prompts: int, step: int) -> None:
        cursor = self._prompts.state()
        self._ahead = RoundAhead(self._new_round(num_prompts, step), self._fleet.sample_share, cursor)

    def _new_round(self, num_prompts: int, step: int) -> Round:
        settings = SamplingSettings(
            num_rollouts=self._config.sampler.num_rollouts,
            temperature=self._config.sampler.temperature,
            top_p=1.0,
            max_response_tokens=self._config.sampler.max_response_tokens,
            seed=self._config.seed * 1_000_003 + step,
        )
        in_flight = GradingInFlight(self._grader, say=self._say, on_progress=self._on_progress)
        return Round(prompts=self._prompts.take(num_prompts), settings=settings, in_flight=in_flight)

    def _deal_tokens(
        self, round_: Round, share: Share, rollouts: Sequence[Sequence[RolloutOutline]]
    ) -> dict[Key, RolloutTokens]:
        """Brings each prompt's rollouts to the replica that is to prepare them; returns those of this one."""
        layout = self._ranks.layout
        sizes = [sum(rollout.length for rollout in group) for group in rollouts]
        receivers = {
            index: layout.replica_ranks(replica)
            for replica, part in enumerate(balance(sizes, layout.data_parallel))
            for index in part
        }
        with self._stopwatch.measure("exchange_s"):
            return self._fleet.tokens(share, round_.prompts, receivers)

    def _settle(
        self,
        round_: Round,
        rollouts: Sequence[Sequence[RolloutOutline]],
        mine: Mapping[Key, RolloutTokens],
        needed: int,
        state: RunState,
        all_verdicts: list[ScoreResult],
    ) -> tuple[list[RolloutGroup], dict[Key, PreparedRollout]]:
        """Collects all verdicts of a round, and meanwhile prepares `mine`, as far as they are of the first `needed`
        groups that are worth it. `all_verdicts` of the step grows by the round's."""
        shape = partial(
            shape_reward,
            max_response_tokens=self._config.sampler.max_response_tokens,
            num_updates=state.num_updates,
            config=self._config.shaping,
        )
        self._stopwatch.begin("grading")
        sizes = [sum(rollout.length for rollout in group) for group in rollouts]
        indices = sorted({index for index, _ in mine})
        waiting = chunks(indices, sizes, PASSES_A_CHUNK * self._config.trainer.micro_batch_tokens)
        verdicts: dict[Key, ScoreResult] = {}
        groups: dict[int, RolloutGroup] = {}
        kinds: list[Informativeness | None] = [None] * len(rollouts)
        prepared: dict[Key, PreparedRollout] = {}
        while len(groups) < len(rollouts):
            finished = round_.in_flight.take_finished()
            for part in self._ranks.gather({key: for_all_ranks(found) for key, found in finished.items()}):
                verdicts |= part
                if part:
                    self._on_progress()
            decided = {
                index: graded_group(
                    round_.prompts[index], group, [verdicts[index, r.sibling] for r in group], shape
                )
                for index, group in enumerate(rollouts)
                if index not in groups and all((index, r.sibling) in verdicts for r in group)
            }
            if not decided:
                round_.in_flight.wait(self._poll_s)
                continue
            groups |= decided
            for index, group in decided.items():
                kinds[index] = self._kind(group)
            kept = known_to_be_kept(kinds, needed)
            ready = [chunk for chunk in waiting if all(kept[index] is not None for index in chunk)]
            waiting = [chunk for chunk in waiting if chunk not in ready]
            keys = [
                [key for index in chunk if kept[index] for key in _keys(index, groups)] for chunk in ready
            ]
            if any(keys):
                prepared |= self._prepare([{key: mine[key] for key in part} for part in keys if part], state)
                self._stopwatch.begin("grading")
        all_verdicts += verdicts.values()
        return [groups[index] for index in range(len(rollouts))], prepared

    def _prepare(
        self, ready: Sequence[Mapping[Key, RolloutTokens]], state: RunState
    ) -> dict[Key, PreparedRollout]:
        """Of chunks of rollouts, each a batch of its own; the reference comes once for all of them."""
        batches = [token_batch(list(chunk.values())) for chunk in ready]
        with self._stopwatch.measure("old_logprobs_s"):
            old = self._logprobs(batches)
        reference = old
        with self._stopwatch.measure("reference_logprobs_s"):
            if self._config.measures_kl and not state.policy_is_reference:
                with self._policy.reference():
                    reference = self._logprobs(batches)
        prepared: dict[Key, PreparedRollout] = {}
        for index, chunk in enumerate(ready):
            rows = list(chunk.values())
            of_old = responses(old[index], rows)
            of_reference = of_old if reference is old else responses(reference[index], rows)
            for number, (key, row) in enumerate(chunk.items()):
                prepared[key] = PreparedRollout(
                    prompt=row.prompt,
                    token_ids=row.token_ids,
                    sampler_logprobs=row.sampler_logprobs,
                    old_logprobs=of_old[number],
                    reference_logprobs=of_reference[number],
                )
        return prepared

    def _logprobs(self, batches: Sequence[TokenBatch]) -> list[FloatArray]:
        logprobs = []
        for batch in batches:
            logprobs.append(self._policy.logprobs(batch))
            self._on_progress()
        return logprobs


def _keys(index: int, groups: Mapping[int, RolloutGroup]) -> list[Key]:
    """Of the group's graded rollouts."""
    return [(index, member.rollout.sibling) for member in groups[index].members]


_ADVICE = {
    Informativeness.all_filtered: "most groups have no response that ends, and overlong filtering trains on none that "
    "does not. Let responses be longer (sampler.max_response_tokens), or write shaping.overlong_filtering=false.",
    Informativeness.all_wrong: "the policy solves next to none of these prompts. Train on easier ones, sample more "
    "rollouts of each (sampler.num_rollouts), or let responses be longer (sampler.max_response_tokens); and see with "
    "`evaluate data=FILE --samples OUT.jsonl` whether answers come in the form that the grader looks for.",
    Informativeness.all_right: "the policy solves nearly all of these prompts already. Train on harder ones, or begin "
    "the next stage.",
}
"""What to do when more than half of a step's groups are of this kind."""


def _describe_saturation(kinds: Counter[Informativeness], found: int, needed: int, num_rounds: int) -> str:
    counts = ", ".join(f"{kinds[kind]} {kind.value}" for kind in Informativeness)
    most = [kind for kind, count in kinds.items() if count > kinds.total() / 2]
    advice = "the data has little left to teach this policy. Begin the next stage."
    advice = next((_ADVICE[kind] for kind in most if kind in _ADVICE), advice)
    if found:
        advice += " With a lower trainer.prompts_per_step the step would have had enough."
    return (
        f"a step found {found} of {needed} informative prompts in {num_rounds} round(s) ({counts}): {advice}"
    )
