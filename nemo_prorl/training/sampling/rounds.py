"""Dynamic sampling: rounds of sample -> grade -> select, until the step has enough informative groups.

Which groups are kept depends only on the prompts' order and the rewards, never on what finished first, so short
responses are not favoured. prepare.py computes log-probabilities while verdicts are missing.

With sampler.ahead the next step's first round is sampled while the policy trains on this step's. The importance weight
(old / sampler probability, docs/algorithm.md) corrects for its weights, which are one step older. A round begins at a
fixed point of the step, whatever the timing, so a run with sampling ahead is as reproducible as one without.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from operator import itemgetter
from threading import Event

from nemo_prorl.algorithm.selection import Informativeness, classify, keep_first
from nemo_prorl.config import one_line
from nemo_prorl.engines.interface import SamplingSettings
from nemo_prorl.training.context import StepContext
from nemo_prorl.training.sampling import giving_up, grading
from nemo_prorl.training.sampling.fleet import Key
from nemo_prorl.training.sampling.grading import Round
from nemo_prorl.training.sampling.prepare import Preparer, kind_of
from nemo_prorl.types import (
    Finish,
    PreparedRollout,
    Prompt,
    Rollout,
    RolloutGroup,
    RolloutOutline,
    RunState,
    Share,
)
from reward.protocol import ScoreResult

PRIOR_PROMPTS = 4
"""The share of the steps before counts as much as so many prompts of this step; in simulations 2 to 20 need the same
number of rounds."""


def _nothing(*_: object) -> Share:
    """Samples no prompt, as `SamplerFleet.sample_share` samples a round."""
    return {}


def sampling_seed(seed: int, step: int, num_attempts: int) -> int:
    """Returns the seed of all rollouts of the step that follows `step` others and `num_attempts` attempts at it. Runs
    of another `seed` below 2^32 never use it."""
    return (seed + 2**32 * num_attempts) * 1_000_003 + step


SampleShare = Callable[[Sequence[Prompt], SamplingSettings, Callable[[int, Rollout], None]], Share]


class Saturated(RuntimeError):
    """The stage's data is exhausted: a step finds too few groups to train on, because the policy solves nearly all
    prompts, and their share has not changed all at once."""


class NothingToLearn(RuntimeError):
    """A step finds too few groups to train on, which is no chance, and the stage's data is not exhausted. Without
    dynamic sampling it is raised only if the step finds no group to train on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """The groups that a step trains on, and all that it sampled to find them. The same on every rank, except for
    `rollouts`, `prepared` and the seconds."""

    sampled: tuple[RolloutGroup, ...]
    """Every group of the step, kept or not, in prompt order. Metrics of rewards and lengths cover all of them."""
    kept: tuple[int, ...]
    """Indices in `sampled` of the groups to train on."""
    rollouts: Mapping[Key, Rollout]
    """Map from (index in `sampled`, sibling) to each rollout that this rank has sampled."""
    verdicts: Mapping[Key, ScoreResult]
    """Map from (index in `sampled`, sibling) to the verdict on each rollout, failed ones included; ordered by key."""
    prepared: Mapping[Key, PreparedRollout]
    """Map from (index in `sampled`, sibling) to the rollout of a kept group whose log-probabilities this replica has
    computed; ordered by key."""
    kinds: Counter[Informativeness]
    """Number of groups of `sampled` of each kind."""
    num_needed: int
    """Number of groups from the beginning of `sampled` that it took to fill the step; all, if it is not full."""
    surplus: tuple[int, ...]
    """Indices in `sampled` of the informative groups that were not needed."""
    rounds: tuple[int, ...]
    """Index in `sampled` of the first prompt of each round."""
    was_ahead: bool
    """Whether the first round was sampled during the step before."""
    grading_busy_s: float
    """Seconds in which at least one rollout of this rank was being graded."""
    grading_exposed_s: float
    """Seconds in which this rank only waited for verdicts."""

    @property
    def groups(self) -> tuple[RolloutGroup, ...]:
        """The groups to train on, in prompt order."""
        return tuple(self.sampled[index] for index in self.kept)

    def graded(self) -> Iterator[tuple[str, Rollout, ScoreResult]]:
        """Yields the id under which it was graded, rollout and verdict for each rollout that this rank has sampled."""
        for (index, sibling), rollout in self.rollouts.items():
            start = self.rounds[bisect_right(self.rounds, index) - 1]
            verdict = self.verdicts[index, sibling]
            yield grading.request_id((index - start, sibling), rollout), rollout, verdict

    @property
    def num_tokens(self) -> int:
        """Response tokens of all graded rollouts of the step, kept or not."""
        return sum(group.num_tokens for group in self.sampled)


class RoundAhead:
    """A round that this rank's engine samples in a background thread, without collectives. Nobody else may use the
    engine until `share` or `cancel` has returned."""

    def __init__(self, round_: Round, sample_share: SampleShare) -> None:
        self.round = round_
        self._unwanted = Event()
        executor = ThreadPoolExecutor(1, thread_name_prefix="sampling-ahead")
        self._share = executor.submit(sample_share, round_.prompts, round_.settings, self._on_finish)
        executor.shutdown(wait=False)

    def share(self) -> Share:
        """Waits until the round has ended, and returns what this rank sampled. Raises what sampling raised."""
        return self._share.result()

    def cancel(self) -> None:
        """Stops sampling. Returns when the engine is idle, at the latest when its next rollout has ended."""
        self._unwanted.set()
        self._share.exception()

    def _on_finish(self, index: int, rollout: Rollout) -> None:
        if self._unwanted.is_set():
            raise CancelledError  # makes the sampler abort the other rollouts
        self.round.submit(index, rollout)


class Collector:
    """Collects the groups of each step. One instance serves the whole run."""

    def __init__(self, context: StepContext) -> None:
        self.context = context
        self.samples_ahead = True
        """False: a round ahead is only drawn, because it will be dropped."""
        self._preparer = Preparer(context)
        self._ahead: RoundAhead | None = None

    def collect(self, state: RunState, *, ahead: bool = False) -> Collection:
        """Samples, grades and selects the groups of one step. Collective. Raises Saturated, NothingToLearn (which gives
        the step's prompts back) or RewardServiceFailing.

        ahead: samples the first round of the next step in the background, with the sampler's present weights. Nothing
        else may then use the sampler before `finish_ahead` or `drop_ahead`.
        """
        needed, dynamic = self.context.config.trainer.prompts_per_step, self.context.config.dynamic_sampling
        preparer = self._preparer
        groups: list[RolloutGroup] = []
        held: dict[Key, Rollout] = {}
        prepared: dict[Key, PreparedRollout] = {}
        verdicts: dict[Key, ScoreResult] = {}
        rounds: list[Round] = []
        starts: list[int] = []
        was_ahead = self._ahead is not None
        kept, surplus = tuple[int, ...](), tuple[int, ...]()
        num_first = preparer.num_first(needed)
        while len(kept) < needed and self._goes_on(len(rounds), len(kept), len(groups), state):
            share = (len(kept) + PRIOR_PROMPTS * state.sampling_yield) / (len(groups) + PRIOR_PROMPTS)
            size = self._round_size(needed - len(kept), share)
            round_, sampled, rollouts = self._sample(size, state, is_first=not rounds)
            if ahead and not rounds:
                self._begin_ahead(self._round_size(needed, state.sampling_yield), state.step + 1)
            rounds.append(round_)
            round_groups, round_prepared, round_verdicts = preparer.grade_and_prepare(
                round_, sampled, rollouts, needed - len(kept), max(0, num_first - len(kept)), state
            )
            starts.append(start := len(groups))
            held |= {(start + index, row.sibling): row for index, rows in sampled.items() for row in rows}
            verdicts |= {(start + index, sibling): one for (index, sibling), one in round_verdicts.items()}
            grading.check_failures(list(verdicts.values()), self.context.config.reward.max_failed_share)
            prepared |= {(start + index, sibling): row for (index, sibling), row in round_prepared.items()}
            groups += round_groups
            kept, surplus = keep_first([kind_of(group, dynamic) for group in groups], needed)
        scores = [member.verdict.score or 0.0 for group in groups for member in group.members]
        highest = max([state.highest_score, *scores])
        kinds = Counter(classify(group, dynamic.by, highest) for group in groups)
        self._check_enough(
            len(kept), groups, kinds, rounds, state, lambda: self._seen(groups, held, verdicts)
        )
        state.highest_score = highest
        num_found = len(kept) + len(surplus)
        state.sampling_yield = 0.5 * state.sampling_yield + 0.5 * num_found / len(groups)
        state.recent_informative = 0.5 * state.recent_informative + num_found
        state.recent_prompts = 0.5 * state.recent_prompts + len(groups)
        self.context.prompts.note(groups)
        preparer.complete(prepared, set(kept[preparer.num_first(len(kept)) : num_first]))
        return Collection(
            sampled=tuple(groups),
            kept=kept,
            rollouts=held,
            verdicts=dict(sorted(verdicts.items())),
            prepared=dict(sorted(prepared.items())),  # so that sums over it do not depend on timing
            kinds=kinds,
            num_needed=kept[-1] + 1 if len(kept) == needed else len(groups),
            surplus=surplus,
            rounds=tuple(starts),
            was_ahead=was_ahead,
            grading_busy_s=sum(round_.in_flight.busy_s for round_ in rounds),
            grading_exposed_s=sum(round_.in_flight.exposed_s for round_ in rounds),
        )

    def _goes_on(self, num_rounds: int, num_kept: int, num_prompts: int, state: RunState) -> bool:
        """Returns whether a step that is not full samples another round. Without any informative group it stops as soon
        as that is no chance, and otherwise not before, except in a stage's first step."""
        dynamic = self.context.config.dynamic_sampling
        has_rounds = num_rounds < (dynamic.max_rounds if dynamic.enabled else 1)
        if num_kept or not num_rounds or not dynamic.enabled:
            return has_rounds
        return giving_up.may_be_chance(0, num_prompts, state) and (has_rounds or state.stage_step > 0)

    def _check_enough(
        self,
        num_kept: int,
        groups: Sequence[RolloutGroup],
        kinds: Counter[Informativeness],
        rounds: Sequence[Round],
        state: RunState,
        seen: Callable[[], giving_up.Seen],
    ) -> None:
        """Raises what `collect` raises if its rounds found too few groups to train on. seen: collective."""
        needed, dynamic = self.context.config.trainer.prompts_per_step, self.context.config.dynamic_sampling
        num_ungraded = kinds[Informativeness.service_failure]
        if not dynamic.enabled and num_kept < needed:
            self.context.say(
                f"step {state.step + 1} trains on {num_kept} of {needed} prompts: overlong filtering leaves no "
                f"rollout of {kinds[Informativeness.all_filtered]}, and grading failed on {num_ungraded}"
            )
        if num_kept >= max(1.0, dynamic.min_fill * needed if dynamic.enabled else 0.0):
            return
        # If grading failed on as many groups as are missing, the data may well have enough.
        if num_ungraded >= (needed - num_kept if dynamic.enabled else 1):
            raise grading.RewardServiceFailing(
                f"grading failed on {num_ungraded} of {kinds.total()} prompts, so that a step found only {num_kept} of "
                f"{needed} groups to train on."
            )
        counts = ", ".join(f"{count} {kind.value.replace('_', ' ')}" for kind, count in kinds.most_common())
        found = f"{num_kept} of {needed} informative prompts in {len(rounds)} round(s) ({counts})"
        if num_kept and giving_up.may_be_chance(num_kept, kinds.total(), state):
            self.context.say(f"step {state.step + 1} trains on what it found: {found}")
            return
        if giving_up.is_done(kinds, state):
            self.context.prompts.note(groups)
            raise Saturated(
                f"a step found {found}: the data has little left to teach this policy. Begin the next stage."
            )
        advice = giving_up.advice(kinds, state, self.context.config.reward.function, seen())
        self.drop_ahead()
        self.context.prompts.give_back([prompt for round_ in rounds for prompt in round_.prompts])
        state.num_attempts += 1
        raise NothingToLearn(f"a step found {found}: {advice}")

    def _seen(
        self, groups: Sequence[RolloutGroup], held: Mapping[Key, Rollout], verdicts: Mapping[Key, ScoreResult]
    ) -> giving_up.Seen:
        """Returns what the responses of the step have in common; its example is the first that ends by itself.
        Collective."""
        order = sorted((held[key].finish is Finish.length, key) for key in held)
        first = [(of, one_line(held[of[1]].text)[-80:], verdicts[of[1]].score) for of in order[:1]]
        no_box = sum(verdicts[key].verdict == "no_box" for key in held)
        each = self.context.ranks.gather((first, (len(held), sum(is_cut for is_cut, _ in order), no_box)))
        (_, (index, _)), end, score = min((row for rows, _ in each for row in rows), key=itemgetter(0))
        num, num_cut, num_no_box = map(sum, zip(*(counts for _, counts in each), strict=True))
        answer = groups[index].prompt.task.get("answer")
        right = "" if answer is None else f" (right is {repr(answer)[:80]})"
        got = "no score" if score is None else f"{score:g}"
        return giving_up.Seen(
            example=f"a response that ends in {end!r}{right} got {got}",
            cut_share=num_cut / num,
            no_box_share=num_no_box / num,
        )

    def _begin_ahead(self, num_prompts: int, step: int) -> None:
        sample = self.context.fleet.sample_share if self.samples_ahead else _nothing
        self._ahead = RoundAhead(self._new_round(num_prompts, step), sample)

    def finish_ahead(self) -> None:
        """Waits until the round sampled ahead has ended and the sampler is free. `collect` uses it in the next step."""
        if self._ahead is not None:
            with self.context.stopwatch.measure("sampling_s"):
                self._ahead.share()

    def drop_ahead(self) -> None:
        """Stops and discards the round sampled ahead, if there is one. Its prompts are the next that will be drawn.
        Needed before a checkpoint, which cannot contain a round, and when training ends."""
        if self._ahead is not None:
            self._ahead.cancel()
            self.context.prompts.give_back(self._ahead.round.prompts)
            self._ahead = None

    def _round_size(self, missing: int, share: float) -> int:
        """Returns how many prompts to sample for `missing` groups, at most four for each: by the share of informative
        groups so far, and never by the number of engines, on which no result may depend."""
        dynamic = self.context.config.dynamic_sampling
        if not dynamic.enabled:
            return missing
        return math.ceil(min(missing * dynamic.oversample / max(share, 0.05), 4 * missing))

    def _sample(
        self, num_prompts: int, state: RunState, *, is_first: bool
    ) -> tuple[Round, Share, list[list[RolloutOutline]]]:
        """Samples a round and returns (round, what this rank sampled, outlines of all rollouts as [prompt][sibling]).
        The first round of a step is the one that was sampled ahead, if there is one."""
        fleet = self.context.fleet
        self.finish_ahead()  # this step's first round, or the next step's if this step needs another round
        with self.context.stopwatch.measure("sampling_s"):
            if self._ahead is not None and is_first:
                round_, share = self._ahead.round, self._ahead.share()
                self._ahead = None
            else:
                round_ = self._new_round(num_prompts, state.step, state.num_attempts)
                share = fleet.sample_share(round_.prompts, round_.settings, round_.submit)
            return round_, share, fleet.outlines(share, round_.prompts, round_.settings.num_rollouts)

    def _new_round(self, num_prompts: int, step: int, num_attempts: int = 0) -> Round:
        context, config = self.context, self.context.config
        settings = SamplingSettings(
            num_rollouts=config.sampler.num_rollouts,
            temperature=config.sampler.temperature,
            top_p=1.0,
            max_response_tokens=config.sampler.max_response_tokens,
            seed=sampling_seed(config.seed, step, num_attempts),
        )
        in_flight = grading.GradingInFlight(context.grader, say=context.say, on_progress=context.on_progress)
        return Round(prompts=context.prompts.take(num_prompts), settings=settings, in_flight=in_flight)
