"""The loop: sample, grade, keep the informative groups, update, validate, checkpoint; until the stage ends."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from nemo_prorl.algorithm.advantage import group_advantages
from nemo_prorl.algorithm.entropy import active_entropy_coefficient, next_entropy_coefficient
from nemo_prorl.algorithm.metrics import (
    UpdateStatistics,
    merge_statistics,
    sampler_agreement,
    update_statistics,
)
from nemo_prorl.algorithm.objective import policy_loss
from nemo_prorl.config import RunConfig
from nemo_prorl.data.batch import balance, train_batch, training_rows
from nemo_prorl.data.mix import PromptMix
from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.interface import Grader, NonFiniteUpdate, Policy, Sampler, SamplingSettings
from nemo_prorl.training.checkpoint import CheckpointWriter
from nemo_prorl.training.collector import Collection, Collector, Saturated
from nemo_prorl.training.evaluation import evaluate, summarise
from nemo_prorl.training.fleet import SamplerFleet
from nemo_prorl.training.grading import RewardServiceFailing
from nemo_prorl.training.step_metrics import grading_metrics, rollout_metrics, selection_metrics
from nemo_prorl.training.telemetry import Telemetry
from nemo_prorl.training.timing import Stopwatch
from nemo_prorl.types import PreparedGroup, Prompt, RunState, UpdateReport


class ProRLTrainer:
    """NeMo-Aligner's shape: a trainer that owns `fit`. Every rank runs it, on its own engines."""

    def __init__(
        self,
        *,
        config: RunConfig,
        ranks: Ranks,
        policy: Policy,
        sampler: Sampler,
        grader: Grader,
        prompts: PromptMix,
        held_out: Sequence[Prompt],
        checkpoints: CheckpointWriter | None,
        telemetry: Telemetry | None,
        state: RunState,
    ) -> None:
        self.config = config
        self.ranks = ranks
        self.policy = policy
        self.sampler = sampler
        self.grader = grader
        self.prompts = prompts
        self.held_out = held_out
        self.checkpoints = checkpoints
        self.telemetry = telemetry
        self.state = state
        self.stopwatch = Stopwatch()
        self.fleet = SamplerFleet(sampler, ranks, tensor_parallel=config.sampler.tensor_parallel)
        self.collector = Collector(
            config=config,
            prompts=prompts,
            fleet=self.fleet,
            policy=policy,
            grader=grader,
            ranks=ranks,
            stopwatch=self.stopwatch,
        )

    def fit(self) -> str:
        """Runs the stage from where `state` stands. Returns why it ended: "steps" or "saturated"."""
        try:
            return self._run()
        except (RewardServiceFailing, NonFiniteUpdate):  # on every rank: what is on its way to disk still gets there
            self._finish_saving()
            raise

    def _run(self) -> str:
        self._refit()
        if self.state.stage_step == 0:
            self._record(self._validate())
        while self.state.stage_step < self.config.trainer.num_steps:
            started = time.perf_counter()
            self.stopwatch.seconds.clear()
            try:
                collection = self.collector.collect(self.state)
            except Saturated as saturated:
                self._say(f"stage {self.state.stage} ends: {saturated}")
                metrics = {}
                if not self._validation_is_due():  # else these weights have been validated
                    metrics = self._validate()
                    self._record(metrics)
                self._save(metrics)
                self._finish_saving()
                return "saturated"
            self._poll_saving()
            self.sampler.sleep()
            reports, statistics = self._update(collection.groups)
            self._refit()
            self.state.step += 1
            self.state.stage_step += 1
            metrics = self._metrics(collection, reports, statistics, time.perf_counter() - started)
            if self._validation_is_due():
                metrics |= self._validate()
            self._record(metrics)
            self._poll_saving()
            if self._checkpoint_is_due():
                self._save(metrics)
        self._finish_saving()
        return "steps"

    def _update(self, groups: Sequence[PreparedGroup]) -> tuple[list[UpdateReport], list[UpdateStatistics]]:
        """The step's optimizer updates, each on an equal share of the groups, balanced over the replicas."""
        algorithm, layout = self.config.algorithm, self.ranks.layout
        loss = partial(policy_loss, config=algorithm, entropy_coefficient=self._entropy_coefficient())
        reports, statistics = [], []
        with self.stopwatch.measure("updates_s"):
            self.policy.prepare_for_training()
            for share in np.array_split(
                np.arange(len(groups)), min(self.config.trainer.updates_per_step, len(groups))
            ):
                part = [groups[index] for index in share]
                advantages = [
                    group_advantages(group.group.rewards, normalise_std=algorithm.normalise_std)
                    for group in part
                ]
                rows = training_rows(part, advantages)
                mine = balance([row.length for row in rows], layout.data_parallel)[layout.replica]
                batch = train_batch([rows[index] for index in mine])
                report = self.policy.update(batch, loss)
                self.state.num_updates += 1
                reports.append(report)
                statistics.append(update_statistics(report, batch, algorithm))
            self.policy.finish_training()
        return reports, statistics

    def _entropy_coefficient(self) -> float:
        """Of this step: decided by the entropy of the one before."""
        return active_entropy_coefficient(
            self.state.entropy_coefficient, self.state.entropy, self.config.algorithm
        )

    def _refit(self) -> None:
        """The sampler gets the policy's weights, under the number of updates behind them."""
        with self.stopwatch.measure("refit_s"):
            self.sampler.wake()
            self.sampler.load_weights(self.policy.named_weights(), version=self.state.num_updates)

    def _metrics(
        self,
        collection: Collection,
        reports: Sequence[UpdateReport],
        statistics: Sequence[UpdateStatistics],
        step_s: float,
    ) -> dict[str, Any]:
        """Everything about one step; collective over the ranks."""
        parts = [part for replica in self.ranks.gather_replicas(list(statistics)) for part in replica]
        objective = merge_statistics(parts)
        agreement = sampler_agreement(
            [
                member.rollout.sampler_logprobs
                for group in collection.groups
                for member in group.group.members
            ],
            [logprobs for group in collection.groups for logprobs in group.old_logprobs],
        )
        coefficient = self._entropy_coefficient()
        self.state.entropy = objective["objective/entropy"]
        self.state.entropy_coefficient = next_entropy_coefficient(
            self.state.entropy_coefficient, self.state.entropy, self.config.algorithm
        )
        num_tokens = sum(len(m.rollout.token_ids) for group in collection.sampled for m in group.members)
        return {
            **rollout_metrics(collection),
            **objective,
            **merge_statistics([agreement]),
            **selection_metrics(collection),
            **grading_metrics(collection),
            "objective/loss": float(np.mean([report.loss for report in reports])),
            "objective/entropy_coefficient": coefficient,
            "optimizer/grad_norm": float(np.mean([report.grad_norm for report in reports])),
            "optimizer/learning_rate": reports[-1].learning_rate,
            "optimizer/num_updates": self.state.num_updates,
            "data/num_too_long": self.prompts.num_too_long,
            "throughput/num_tokens": num_tokens,
            "throughput/tokens_per_s": num_tokens / step_s,
            "time/step_s": step_s,
            "time/save_s": self.checkpoints.take_waited_s() if self.checkpoints is not None else 0.0,
            **{f"time/{name}": seconds for name, seconds in self.stopwatch.seconds.items()},
        }

    def _validation_is_due(self) -> bool:
        interval, done = self.config.validation.interval, self.state.stage_step
        return done == self.config.trainer.num_steps or (interval > 0 and done % interval == 0)

    def _validate(self) -> dict[str, float]:
        """Held-out rewards of the current weights; empty without held-out prompts."""
        if not self.held_out:
            return {}
        started = time.perf_counter()
        groups = evaluate(
            self.held_out,
            validation_settings(self.config),
            fleet=self.fleet,
            grader=self.grader,
            ranks=self.ranks,
            max_failed_share=self.config.reward.max_failed_share,
        )
        summary = summarise(groups, ks=sorted({1, self.config.validation.num_rollouts}))
        self.state.validation.append({"step": self.state.step, **summary})
        seconds = time.perf_counter() - started
        return {f"validation/{name}": value for name, value in summary.items()} | {
            "time/validation_s": seconds
        }

    def _checkpoint_is_due(self) -> bool:
        every, done = (
            self.config.exp_manager.checkpoint_callback_params.every_n_train_steps,
            self.state.stage_step,
        )
        return done == self.config.trainer.num_steps or (every > 0 and done % every == 0)

    def _save(self, metrics: Mapping[str, Any]) -> None:
        self.state.prompts = self.prompts.state()
        if self.checkpoints is not None:
            monitor = self.config.exp_manager.checkpoint_callback_params.monitor
            self.checkpoints.save(self.policy, self.state, score=metrics.get(monitor))

    def _poll_saving(self) -> None:
        if self.checkpoints is not None:
            self.checkpoints.poll()

    def _finish_saving(self) -> None:
        if self.checkpoints is not None:
            self.checkpoints.finish()

    def _record(self, metrics: dict[str, Any]) -> None:
        if self.telemetry is not None:
            position = {
                "step": self.state.step,
                "stage": self.state.stage,
                "num_resets": self.state.num_resets,
            }
            self.telemetry.step(position | metrics, stage_step=self.state.stage_step)

    def _say(self, text: str) -> None:
        if self.telemetry is not None:
            self.telemetry.say(text)


def validation_settings(config: RunConfig) -> SamplingSettings:
    """The same seed at every validation: differences come from the weights."""
    return SamplingSettings(
        num_rollouts=config.validation.num_rollouts,
        temperature=config.validation.temperature,
        top_p=config.validation.top_p,
        max_response_tokens=config.sampler.max_response_tokens,
        seed=config.seed,
    )
