"""One training step on its engines: rollouts, verdicts, updates, refit, metrics. What happens between steps is the
loop's (training/trainer.py); whoever has engines and a state can call a step alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from nemo_prorl.algorithm.entropy import active_entropy_coefficient, entropy_target, next_entropy_coefficient
from nemo_prorl.algorithm.metrics import UpdateStatistics, merge_statistics, update_statistics
from nemo_prorl.algorithm.objective import policy_loss
from nemo_prorl.config import DataMix, EntropyBonus, RunConfig
from nemo_prorl.data.batch import TrainingRow, train_batch, with_old_logprobs
from nemo_prorl.data.mix import PromptMix
from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.interface import Grader, NonFiniteUpdate, Policy, Sampler
from nemo_prorl.training import splitting, step_metrics
from nemo_prorl.training.sampling.fleet import SamplerFleet
from nemo_prorl.training.sampling.refit import Refit, Refitted
from nemo_prorl.training.sampling.rounds import Collection, Collector
from nemo_prorl.training.timing import Stopwatch
from nemo_prorl.types import Prompt, RunState, TrainBatch, UpdateReport


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step has computed. `rows`, `reports` and `statistics` have one entry per update, of this replica."""

    config: RunConfig
    collection: Collection
    rows: tuple[tuple[TrainingRow, ...], ...]
    """What this replica trained on."""
    reports: tuple[UpdateReport, ...]
    statistics: tuple[UpdateStatistics, ...]
    ahead: bool
    """Whether the next step's first round was drawn during this step."""
    began_with: Mapping[str, int]
    """Fingerprint of each tensor of the weights that the step began with."""
    refitted: Refitted
    metrics: dict[str, Any]
    """The step's metrics, the same on every rank; those of what happens between steps are missing."""

    @property
    def batches(self) -> tuple[TrainBatch, ...]:
        """The rows of each update as padded arrays."""
        return tuple(map(train_batch, self.rows))


@dataclass(kw_only=True, eq=False)
class Stepper:
    """Makes steps. One instance serves the whole run, on every rank."""

    config: RunConfig
    ranks: Ranks
    policy: Policy
    sampler: Sampler
    grader: Grader
    prompts: PromptMix
    canary: Prompt | None
    stopwatch: Stopwatch
    say: Callable[[str], None] = lambda text: None
    on_progress: Callable[[], None] = lambda: None
    """Called after each rollout, verdict, batch and update."""
    between: Callable[[], None] = lambda: None
    """Called on every rank between sampling and updates; its time does not count."""

    def __post_init__(self) -> None:
        config, policy, sampler, ranks = self.config, self.policy, self.sampler, self.ranks
        self.fleet = SamplerFleet(
            sampler, ranks, tensor_parallel=config.sampler.tensor_parallel, on_progress=self.on_progress
        )
        self.collector = Collector(
            config=config,
            prompts=self.prompts,
            fleet=self.fleet,
            policy=policy,
            grader=self.grader,
            ranks=ranks,
            stopwatch=self.stopwatch,
            say=self.say,
            on_progress=self.on_progress,
        )
        self._refit = Refit(
            self.canary,
            config=config,
            policy=policy,
            sampler=sampler,
            fleet=self.fleet,
            ranks=ranks,
            say=self.say,
        )
        self._fingerprints: Mapping[str, int] = {}
        """Fingerprints of the weights that the sampler holds."""

    def step(self, state: RunState, *, ahead: bool, canary_limit: float) -> StepResult:
        """Makes one step, and counts it and its updates in `state`. Collective; the sampler needs the policy's weights
        (`refit`).

        ahead: samples the next step's first round during this step's updates. Raises Saturated, NothingToLearn or
        RewardServiceFailing before anything has changed, or NonFiniteUpdate.
        """
        self.stopwatch.restart()
        began_with = self._fingerprints
        self.prompts.by_difficulty = state.remixed or self.config.data.mix is DataMix.difficulty
        collection = self.collector.collect(state, ahead=ahead)  # sample, grade, keep informative groups
        with self.stopwatch.pause():
            self.between()
        self.sampler.sleep()
        rows, reports, statistics = self._update(collection, state)
        if not self.config.algorithm.takes_kl_from_rewards:
            collection = _completed(collection, rows[0])
        refitted = self.refit(state, canary_limit=canary_limit)
        metrics = self._metrics(collection, reports, statistics, refitted, state)
        state.step += 1
        state.stage_step += 1
        return StepResult(
            config=self.config,
            collection=collection,
            ahead=ahead,
            rows=tuple(map(tuple, rows)),
            reports=tuple(reports),
            statistics=tuple(statistics),
            began_with=began_with,
            refitted=refitted,
            metrics=metrics,
        )

    def refit(self, state: RunState, *, canary_limit: float) -> Refitted:
        """Loads the policy's weights into the sampler and verifies them. Their version is the number of updates."""
        self.collector.finish_ahead()
        with self.stopwatch.measure("refit_s"):
            self.sampler.wake()
            refitted = self._refit(state.num_updates, canary_limit=canary_limit)
        self._fingerprints = refitted.fingerprints
        return refitted

    def _update(
        self, collection: Collection, state: RunState
    ) -> tuple[list[list[TrainingRow]], list[UpdateReport], list[UpdateStatistics]]:
        """Makes the step's optimizer updates. Returns this replica's rows, a report and this replica's statistics for
        each. Raises NonFiniteUpdate."""
        algorithm = self.config.algorithm
        loss = partial(policy_loss, config=algorithm, entropy_coefficient=self._entropy_coefficient(state))
        summarised = partial(update_statistics, config=algorithm, with_kl=self.config.measures_kl)
        try:
            with self.stopwatch.measure("exchange_s"):
                updates = splitting.split_over_ranks(collection, self.config, self.ranks)
        except ValueError as error:  # nothing has changed yet
            raise NonFiniteUpdate(f"step {state.step + 1} is not trained on: {error}.") from error
        reports: list[UpdateReport] = []
        statistics: list[UpdateStatistics] = []
        with self.stopwatch.measure("updates_s"):
            self.policy.prepare_for_training()
            for rows in updates:
                batch = train_batch(rows)
                report = self.policy.update(batch, loss)
                if batch.old_logprobs_BT is None:
                    rows[:] = with_old_logprobs(rows, report.current_logprobs_BT)
                self.on_progress()
                ages = [state.num_updates - row.policy_version for row in rows]
                state.num_updates += 1
                statistics.append(summarised(report, batch, is_first=not reports, ages_B=ages))
                reports.append(report)
            self.policy.finish_training()
        return updates, reports, statistics

    def _entropy_coefficient(self, state: RunState) -> float:
        """Returns this step's coefficient, which depends on the entropy of the step before."""
        algorithm, num_steps = self.config.algorithm, state.steps_since_reset
        return active_entropy_coefficient(
            state.entropy_coefficient, state.entropy, algorithm, num_steps=num_steps
        )

    def _metrics(
        self,
        collection: Collection,
        reports: Sequence[UpdateReport],
        statistics: Sequence[UpdateStatistics],
        refitted: Refitted,
        state: RunState,
    ) -> dict[str, Any]:
        """Returns the metrics of one step, and adapts the entropy coefficient to the step's entropy. Collective."""
        step_s = self.stopwatch.elapsed_s()
        updates_before = state.num_updates - len(reports)
        mine = [*statistics, *step_metrics.sampling_statistics(collection.prepared.values(), self.config)]
        objective = merge_statistics([part for parts in self.ranks.gather_replicas(mine) for part in parts])
        coefficient = self._entropy_coefficient(state)
        state.entropy = objective["objective/entropy"]
        algorithm, num_steps = self.config.algorithm, state.steps_since_reset
        state.entropy_coefficient = next_entropy_coefficient(
            state.entropy_coefficient, state.entropy, algorithm, num_steps=num_steps
        )
        adaptive = algorithm.entropy_bonus is EntropyBonus.adaptive
        target = {"objective/entropy_target": entropy_target(algorithm, num_steps)} if adaptive else {}
        num_tokens = collection.num_tokens
        return {
            **step_metrics.collection_metrics(collection, self.config.shaping, updates_before),
            **objective,
            **target,
            **refitted.metrics,
            "sampler/num_preemptions": self.fleet.take_preemptions(),
            "objective/loss": float(np.mean([report.loss for report in reports])),
            "objective/entropy_coefficient": coefficient,
            "optimizer/grad_norm": float(np.mean([report.grad_norm for report in reports])),
            "optimizer/learning_rate": reports[-1].learning_rate,
            "optimizer/num_updates": state.num_updates,
            **{
                f"lora/{group}/relative_change": value for group, value in reports[-1].relative_change.items()
            },
            "data/num_too_long": self.prompts.num_too_long,
            "throughput/num_tokens": num_tokens,
            "throughput/tokens_per_s": num_tokens / step_s,
            "throughput/exchange_mib": self.ranks.traffic.take() / 2**20,
            "time/step_s": step_s,
            **self.stopwatch.metrics(),
        }


def _completed(collection: Collection, first_update: Sequence[TrainingRow]) -> Collection:
    """Returns the collection with the old log-probabilities that the first update has computed, each on the replica
    that trained on it."""
    known = {key: row for key, row in collection.prepared.items() if row.old_logprobs is not None}
    known |= {row.key: row.rollout for row in first_update}
    return replace(collection, prepared=dict(sorted(known.items())))
