"""One training step on its engines: rollouts, verdicts, updates, refit, metrics. What happens between steps is the
loop's (training/trainer.py); whoever has engines and a state can call a step alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from nemo_prorl.algorithm.entropy import active_entropy_coefficient, entropy_target, next_entropy_coefficient
from nemo_prorl.algorithm.metrics import UpdateStatistics, merge_statistics, update_statistics
from nemo_prorl.algorithm.objective import policy_loss
from nemo_prorl.config import DataMix, EntropyBonus, RunConfig
from nemo_prorl.data.batch import TrainingRow, train_batch, with_old_logprobs
from nemo_prorl.engines.interface import NonFiniteUpdate
from nemo_prorl.run_folder.checkpoints import Checkpoint
from nemo_prorl.training import splitting, step_metrics
from nemo_prorl.training.context import StepContext
from nemo_prorl.training.control.resets import reset_policy, take_policy_of
from nemo_prorl.training.sampling.refit import Refit, Refitted
from nemo_prorl.training.sampling.rounds import Collection, Collector
from nemo_prorl.training.timing import HOST_FREE, host_memory
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


class Stepper:
    """Makes steps. One instance serves the whole run, on every rank."""

    def __init__(self, context: StepContext, *, canary: Prompt | None) -> None:
        """canary: the prompt of the canary (sampling/refit.py); None: there is none."""
        self.context = context
        self.collector = Collector(context)
        self._refit = Refit(context, canary)
        self._num_steps = 0
        self._fingerprints: Mapping[str, int] = {}
        """Fingerprints of the weights that the sampler holds."""

    def step(self, state: RunState, *, ahead: bool, canary_limit: float) -> StepResult:
        """Makes one step, and counts it and its updates in `state`. Collective; the sampler needs the policy's weights
        (`refit`).

        ahead: samples the next step's first round during this step's updates. Raises Saturated, NothingToLearn or
        RewardServiceFailing before anything has changed, or NonFiniteUpdate.
        """
        context, config = self.context, self.context.config
        context.stopwatch.restart()
        began_with = self._fingerprints
        context.prompts.by_difficulty = config.data.mix is DataMix.difficulty
        collection = self.collector.collect(state, ahead=ahead)  # sample, grade, keep informative groups
        context.sampler.sleep()
        # It depends on the entropy of the step before.
        coefficient = active_entropy_coefficient(
            state.entropy_coefficient, state.entropy, config.algorithm, num_steps=state.steps_since_reset
        )
        rows, reports, statistics = self._update(collection, coefficient, state)
        if not config.algorithm.takes_kl_from_rewards:
            collection = _completed(collection, rows[0])
        refitted = self.refit(state, canary_limit=canary_limit)
        if began_with and began_with == refitted.fingerprints:
            rate = reports[-1].learning_rate
            context.say(f"step {state.step + 1} has changed no weight, with a learning rate of {rate:.2g}")
        metrics = self._metrics(collection, reports, statistics, state)
        metrics |= refitted.metrics | {"objective/entropy_coefficient": coefficient}
        state.step += 1
        state.stage_step += 1
        return StepResult(
            config=config,
            collection=collection,
            ahead=ahead,
            rows=tuple(map(tuple, rows)),
            reports=tuple(reports),
            statistics=tuple(statistics),
            began_with=began_with,
            refitted=refitted,
            metrics=metrics,
        )

    def go_back(self, state: RunState, checkpoint: Checkpoint) -> None:
        """Resets the policy to that of an earlier checkpoint. Collective; the sampler needs a `refit` afterwards. The
        optimizer is loaded even if its moments are cleared, because it holds the fp32 copies of 16-bit weights."""
        context, policy, what = self.context, self.context.policy, self.context.config.controller
        self.collector.drop_ahead()
        context.sampler.sleep()
        with context.stopwatch.measure("going_back_s"):
            policy.prepare_for_training()
            policy.load(checkpoint.policy, reference=not what.reset_reference, num_updates=state.num_updates)
            take_policy_of(state, checkpoint)
            reset_policy(policy, state, what)
            policy.finish_training()

    def refit(self, state: RunState, *, canary_limit: float) -> Refitted:
        """Loads the policy's weights into the sampler and verifies them. Their version is the number of updates."""
        self.collector.finish_ahead()
        with self.context.stopwatch.measure("refit_s"):
            self.context.sampler.wake()
            refitted = self._refit(state.num_updates, canary_limit=canary_limit)
        self._fingerprints = refitted.fingerprints
        return refitted

    def _update(
        self, collection: Collection, coefficient: float, state: RunState
    ) -> tuple[list[list[TrainingRow]], list[UpdateReport], list[UpdateStatistics]]:
        """Makes the step's optimizer updates. Returns this replica's rows, a report and this replica's statistics for
        each. coefficient: of the entropy bonus. Raises NonFiniteUpdate."""
        context, algorithm = self.context, self.context.config.algorithm
        loss = partial(policy_loss, config=algorithm, entropy_coefficient=coefficient)
        summarised = partial(update_statistics, config=algorithm, with_kl=context.config.measures_kl)
        try:
            with context.stopwatch.measure("exchange_s"):
                updates = splitting.split_over_ranks(collection, context.config, context.ranks)
        except ValueError as error:  # nothing has changed yet
            raise NonFiniteUpdate(f"step {state.step + 1} is not trained on: {error}.") from error
        reports: list[UpdateReport] = []
        statistics: list[UpdateStatistics] = []
        with context.stopwatch.measure("updates_s"):
            context.policy.prepare_for_training()
            for rows in updates:
                batch = train_batch(rows)
                report = context.policy.update(batch, loss)
                if batch.old_logprobs_BT is None:
                    rows[:] = with_old_logprobs(rows, report.current_logprobs_BT)
                context.on_progress()
                ages = [state.num_updates - row.policy_version for row in rows]
                state.num_updates += 1
                statistics.append(summarised(report, batch, is_first=not reports, ages_B=ages))
                reports.append(report)
            context.policy.finish_training()
        return updates, reports, statistics

    def _metrics(
        self,
        collection: Collection,
        reports: Sequence[UpdateReport],
        statistics: Sequence[UpdateStatistics],
        state: RunState,
    ) -> dict[str, Any]:
        """Returns the metrics of one step, and adapts the entropy coefficient to the step's entropy. Collective."""
        context, config = self.context, self.context.config
        step_s = context.stopwatch.elapsed_s()
        updates_before = state.num_updates - len(reports)
        mine = [*statistics, *step_metrics.sampling_statistics(collection.prepared.values(), config)]
        parts = context.ranks.gather_replicas(mine)
        objective = merge_statistics([one for part in parts for one in part])
        state.entropy = objective["objective/entropy"]
        algorithm, num_steps = config.algorithm, state.steps_since_reset
        state.entropy_coefficient = next_entropy_coefficient(
            state.entropy_coefficient, state.entropy, algorithm, num_steps=num_steps
        )
        adaptive = algorithm.entropy_bonus is EntropyBonus.adaptive
        target = {"objective/entropy_target": entropy_target(algorithm, num_steps)} if adaptive else {}
        self._num_steps += 1
        memory = context.ranks.gather(host_memory())
        num_tokens = collection.num_tokens
        return {
            **step_metrics.collection_metrics(collection, config.shaping, updates_before, context.sources),
            **objective,
            **target,
            "sampler/num_preemptions": context.fleet.take_preemptions(),
            "objective/loss": float(np.mean([report.loss for report in reports])),
            "optimizer/grad_norm": float(np.mean([report.grad_norm for report in reports])),
            "optimizer/learning_rate": reports[-1].learning_rate,
            "optimizer/num_updates": state.num_updates,
            **{
                f"lora/{group}/relative_change": value for group, value in reports[-1].relative_change.items()
            },
            "data/num_too_long": context.prompts.num_too_long,
            "throughput/num_tokens": num_tokens,
            "throughput/tokens_per_s": num_tokens / step_s,
            "throughput/exchange_mib": context.ranks.traffic.take() / 2**20,
            "time/step_s": step_s,
            **context.stopwatch.metrics(),
            "host_memory/num_steps": self._num_steps,
            **{key: (min if key == HOST_FREE else max)(part[key] for part in memory) for key in memory[0]},
        }


def _completed(collection: Collection, first_update: Sequence[TrainingRow]) -> Collection:
    """Returns the collection with the old log-probabilities that the first update has computed, each on the replica
    that trained on it."""
    known = {key: row for key, row in collection.prepared.items() if row.old_logprobs is not None}
    known |= {row.key: row.rollout for row in first_update}
    return replace(collection, prepared=dict(sorted(known.items())))
