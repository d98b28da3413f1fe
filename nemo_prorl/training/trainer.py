"""The loop: sample, grade, keep the informative groups, update, validate, decide, checkpoint; until the stage ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nemo_prorl.algorithm.entropy import active_entropy_coefficient, next_entropy_coefficient
from nemo_prorl.algorithm.metrics import UpdateStatistics, merge_statistics, update_statistics
from nemo_prorl.algorithm.objective import policy_loss
from nemo_prorl.config import ConfigError, ControllerAction, ControllerMode, ResetTo, RunConfig
from nemo_prorl.data.batch import train_batch
from nemo_prorl.data.mix import PromptMix
from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.interface import Grader, NonFiniteUpdate, Policy, Sampler
from nemo_prorl.training.checkpoint import CheckpointWriter
from nemo_prorl.training.collector import Collection, Collector, Saturated, check_learned
from nemo_prorl.training.controller import Decision, ResetController
from nemo_prorl.training.deadline import Deadline
from nemo_prorl.training.dealing import deal
from nemo_prorl.training.evaluation import evaluate, summarise, validation_settings
from nemo_prorl.training.fleet import SamplerFleet
from nemo_prorl.training.grading import RewardServiceFailing
from nemo_prorl.training.held_out import WENT_BACK, check_monitor
from nemo_prorl.training.refit import Refit, Refitted
from nemo_prorl.training.requests import reset_request_id, take_reset_request
from nemo_prorl.training.resets import better_checkpoint, go_back, reset_policy
from nemo_prorl.training.samples import gather_samples
from nemo_prorl.training.save_schedule import SaveSchedule
from nemo_prorl.training.stages import Outcome, last_line
from nemo_prorl.training.step_metrics import collection_metrics, sampling_statistics
from nemo_prorl.training.telemetry import RunLog, Telemetry
from nemo_prorl.training.timing import Stopwatch
from nemo_prorl.training.watchdog import Watchdog
from nemo_prorl.types import Prompt, RunState, UpdateReport


class StoppedByController(RuntimeError):
    """The controller found that the run is lost. Everything is saved; what to do is for a person to decide."""


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
        canary: Prompt | None,
        checkpoints: CheckpointWriter | None,
        telemetry: Telemetry | None,
        log: RunLog,
        watchdog: Watchdog,
        deadline: Deadline,
        state: RunState,
    ) -> None:
        self.config = config
        self.run_dir = Path(config.exp_manager.explicit_log_dir)
        self.ranks = ranks
        self.policy = policy
        self.sampler = sampler
        self.grader = grader
        self.prompts = prompts
        self.held_out = held_out
        self.checkpoints = checkpoints
        self.telemetry = telemetry
        self.log = log
        self.watchdog = watchdog
        self.deadline = deadline
        self.state = state
        self.controller = ResetController(config.controller, state.controller)
        self.schedule = SaveSchedule(config.exp_manager.checkpoint_callback_params)
        self._measured: dict[str, Any] = self._last_validation()
        """Metrics of the last finished step, or what is known of the weights that a reset went back to: they say how
        good the next checkpoint is."""
        self.stopwatch = Stopwatch(watchdog.enter, policy.take_peak_gib)
        self.fleet = SamplerFleet(
            sampler, ranks, tensor_parallel=config.sampler.tensor_parallel, on_progress=watchdog.beat
        )
        self.refit = Refit(
            canary, config=config, policy=policy, sampler=sampler, fleet=self.fleet, ranks=ranks, say=log.say
        )
        self.refitted = Refitted()
        """How the last refit went."""
        self.collector = Collector(
            config=config,
            prompts=prompts,
            fleet=self.fleet,
            policy=policy,
            grader=grader,
            ranks=ranks,
            stopwatch=self.stopwatch,
            say=log.say,
            on_progress=watchdog.beat,
        )

    def fit(self) -> Outcome:
        """Runs the stage from where `state` stands; returns why it ended or was interrupted. Everything is saved then.

        Raises StoppedByController, NothingToLearn, RewardServiceFailing, NonFiniteUpdate or CheckpointNotSaved, and
        ConfigError where the metric to monitor is not measured; on every rank.
        """
        self.watchdog.follow(self.state)
        try:
            return self._run()
        except (RewardServiceFailing, NonFiniteUpdate, ConfigError):  # what is being saved still gets to disk
            self._finish_saving()
            raise
        finally:
            self.collector.drop_ahead()

    def _run(self) -> Outcome:
        if (ended := self._ended_before()) is not None:
            return ended
        self._take_obeyed_request()  # the process before may have died between its reset's checkpoint and this
        self._refit()
        self._stop_if_sampler_is_lost()
        if self.state.stage_step == 0 and not self.controller.has_seen(self.state.stage):
            self._open_stage()
        while True:
            self.stopwatch.restart()
            try:
                # sample, grade, keep informative groups
                collection = self.collector.collect(self.state, ahead=self._samples_ahead())
            except Saturated as saturated:
                check_learned(self.state, saturated)
                return self._leave(Outcome.saturated, str(saturated))
            with self.stopwatch.pause():  # time/save_s has it
                self._poll_saving()
            self.sampler.sleep()
            reports, statistics = self._update(collection)
            self._refit()
            if self.telemetry is not None:
                self.telemetry.prompts(self.state.step + 1, collection.sampled)
            outcome = self._close_step(self._metrics(collection, reports, statistics))
            if outcome is not None:
                return outcome

    def _ended_before(self) -> Outcome | None:
        """Of a stage that had ended when its process was killed, or its marker removed. In mode manual a stage goes on
        that the controller has ended."""
        if self.config.controller.mode is ControllerMode.manual:
            self.state.outcome = ""
        if self.state.outcome:
            return Outcome(self.state.outcome)
        return Outcome.steps if self.state.stage_step >= self.config.trainer.num_steps else None

    def _open_stage(self) -> None:
        """What the stage begins with is on record as well, and in a checkpoint where a reset may go back to it."""
        self._measured = self._validate()
        monitor = self.config.exp_manager.checkpoint_callback_params.monitor
        if sentence := check_monitor(monitor, self._measured):
            self.log.say(sentence)
        self.controller.observe(self._position() | self._measured)
        self._record(self._measured)
        if self.config.controller.reset_to is ResetTo.best:
            self._save()

    def _close_step(self, metrics: dict[str, Any]) -> Outcome | None:
        """The step boundary: validate, decide, record, save, each where it is due. An outcome ends the loop."""
        self.deadline.note("step", self.stopwatch.elapsed_s())
        self.state.step += 1
        self.state.stage_step += 1
        if self._validation_is_due() and not self.refitted.is_lost:
            metrics |= self._validate()
        self._measured = metrics
        decision = self._decide(metrics)
        if decision is None and (warning := self.controller.warning()):
            self.log.say(f"warning after step {self.state.step}: {warning}.")
        if decision is not None:
            metrics["controller"] = decision.as_record()
            self.log.say(f"{decision.action.name} after step {self.state.step}: {decision.reason}")
            if decision.action is ControllerAction.reset:
                self._reset()
        self._record(metrics)
        action = decision.action if decision is not None else None
        if action is ControllerAction.end_stage:
            return self._leave(Outcome.end_stage)
        if action is not ControllerAction.stop and self.state.stage_step == self.config.trainer.num_steps:
            return self._leave(Outcome.steps)
        if action is not ControllerAction.stop and (reason := self._reason_to_pause()):
            return self._leave(Outcome.paused, reason)
        if action is not None:
            self._save_now()
            if action is ControllerAction.reset:  # it may have refitted the sampler
                self._stop_if_sampler_is_lost()
        elif self.schedule.is_due(self.state.stage_step):
            self._save()
        else:
            self._poll_saving()
        if decision is not None and action is ControllerAction.stop:
            raise StoppedByController(
                f"stage {self.state.stage} stopped after step {self.state.step}: {decision.reason}"
            )
        return None

    def _stop_if_sampler_is_lost(self) -> None:
        if self.refitted.is_lost:
            raise StoppedByController(
                f"stage {self.state.stage} stopped before step {self.state.step + 1}: {self.refitted.diagnosis}"
            )

    def _leave(self, outcome: Outcome, why: str = "") -> Outcome:
        """Everything is on disk on return, and a stage that ends is validated."""
        self.collector.drop_ahead()  # the validation needs the sampler, too
        if outcome is Outcome.end_stage:
            self.state.outcome = outcome
        if outcome is not Outcome.paused and not self._is_validated():
            validation = self._validate()
            self._measured |= validation
            if validation:
                self._record(validation)
        self._save_now()
        self.log.say(last_line(outcome, self.state, why, saved=self.checkpoints is not None))
        return outcome

    def _decide(self, metrics: Mapping[str, Any]) -> Decision | None:
        """The controller's decision, or what a user asked for; the same on every rank, as is what the clock decides.

        Any reset obeys a request; one that is overtaken by the end of the stage, or a stop, stays where it is."""
        decision = self.controller.observe(self._position() | dict(metrics))
        request = reset_request_id(self.run_dir) if self.ranks.layout.is_main else ""
        by_clock = self.schedule.next_by_clock(self.state.stage_step, self.stopwatch.elapsed_s())
        decision, request, self.schedule.by_clock = self.ranks.from_main((decision, request, by_clock))
        if decision is not None and decision.signal == "sampler_mismatch":
            decision = replace(decision, reason=f"{decision.reason} {self.refitted.diagnosis}")
        overtaken = decision is not None and decision.action is not ControllerAction.reset
        if overtaken or request in ("", self.state.last_reset_request):
            return decision
        self.state.last_reset_request = request
        if decision is None:
            decision = Decision(
                action=ControllerAction.reset,
                signal="request",
                reason="a user asked for it.",
                numbers={},
                step=self.state.step,
            )
            self.controller.note_reset(self.state.step)
        return decision

    def _reset(self) -> None:
        """ProRL's hard reset, of the policy as it is or of the stage's best checkpoint (controller.reset_to)."""
        best = None
        if self.config.controller.reset_to is ResetTo.best:
            self._finish_saving()
            best = better_checkpoint(self.config, self.state.stage, self._measured, self.ranks, self.log.say)
        if best is None:
            reset_policy(self.policy, self.state, optimizer=self.config.controller.reset_optimizer)
            return
        self.collector.drop_ahead()
        self.sampler.sleep()
        with self.stopwatch.measure("going_back_s"):
            self.policy.prepare_for_training()
            go_back(self.policy, self.state, best)
            reset_policy(self.policy, self.state, optimizer=self.config.controller.reset_optimizer)
            self.policy.finish_training()
        self._measured = self._last_validation()
        self.controller.note_other_weights(self._measured)
        self._refit()

    def _reason_to_pause(self) -> str:
        """Of any rank: a signal may reach one alone."""
        return next((reason for reason in self.ranks.gather(self.deadline.reason()) if reason), "")

    def _update(self, collection: Collection) -> tuple[list[UpdateReport], list[UpdateStatistics]]:
        """The step's optimizer updates."""
        algorithm = self.config.algorithm
        loss = partial(policy_loss, config=algorithm, entropy_coefficient=self._entropy_coefficient())
        summarised = partial(update_statistics, config=algorithm, with_kl=self.config.measures_kl)
        try:
            with self.stopwatch.measure("exchange_s"):
                updates = deal(collection, self.config, self.ranks)
        except ValueError as error:  # before anything has changed
            raise NonFiniteUpdate(f"step {self.state.step + 1} is not trained on: {error}.") from error
        reports: list[UpdateReport] = []
        statistics: list[UpdateStatistics] = []
        with self.stopwatch.measure("updates_s"):
            self.policy.prepare_for_training()
            for rows in updates:
                batch = train_batch(rows)
                report = self.policy.update(batch, loss)
                self.watchdog.beat()
                self.state.num_updates += 1
                statistics.append(summarised(report, batch, is_first=not reports))
                reports.append(report)
            self.policy.finish_training()
        return reports, statistics

    def _entropy_coefficient(self) -> float:
        """Of this step: decided by the entropy of the one before."""
        return active_entropy_coefficient(
            self.state.entropy_coefficient, self.state.entropy, self.config.algorithm
        )

    def _refit(self) -> None:
        """The sampler gets the policy's weights, under the number of updates behind them."""
        self.collector.finish_ahead()
        with self.stopwatch.measure("refit_s"):
            self.sampler.wake()
            limit = self.controller.canary_limit()
            self.refitted = self.refit(self.state.num_updates, canary_limit=limit)

    def _metrics(
        self,
        collection: Collection,
        reports: Sequence[UpdateReport],
        statistics: Sequence[UpdateStatistics],
    ) -> dict[str, Any]:
        """Everything about one step; collective over the ranks."""
        step_s = self.stopwatch.elapsed_s()
        updates_before = self.state.num_updates - len(reports)
        mine = [*statistics, *sampling_statistics(collection.prepared.values(), self.config)]
        objective = merge_statistics([part for parts in self.ranks.gather_replicas(mine) for part in parts])
        coefficient = self._entropy_coefficient()
        self.state.entropy = objective["objective/entropy"]
        self.state.entropy_coefficient = next_entropy_coefficient(
            self.state.entropy_coefficient, self.state.entropy, self.config.algorithm
        )
        num_tokens = collection.num_tokens
        return {
            **collection_metrics(collection, self.config.shaping, updates_before),
            **objective,
            **self.refitted.metrics,
            "sampler/num_preemptions": self.fleet.take_preemptions(),
            "objective/loss": float(np.mean([report.loss for report in reports])),
            "objective/entropy_coefficient": coefficient,
            "optimizer/grad_norm": float(np.mean([report.grad_norm for report in reports])),
            "optimizer/learning_rate": reports[-1].learning_rate,
            "optimizer/num_updates": self.state.num_updates,
            "data/num_too_long": self.prompts.num_too_long,
            "throughput/num_tokens": num_tokens,
            "throughput/tokens_per_s": num_tokens / step_s,
            "throughput/exchange_mib": self.ranks.traffic.take() / 2**20,
            "time/step_s": step_s,
            "time/save_s": self.checkpoints.take_waited_s() if self.checkpoints is not None else 0.0,
            **self.stopwatch.metrics(),
        }

    def _validation_is_due(self) -> bool:
        interval, done = self.config.validation.interval, self.state.stage_step
        return done == self.config.trainer.num_steps or (interval > 0 and done % interval == 0)

    def _is_validated(self) -> bool:
        """Have these very weights been validated?"""
        return bool(self.state.validation) and self.state.validation[-1]["step"] == self.state.step

    def _last_validation(self) -> dict[str, Any]:
        """Metrics of the validation of these very weights; empty where they have not been validated."""
        found = self.state.validation[-1] if self._is_validated() else {}
        return {f"validation/{name}": value for name, value in found.items() if name != "step"}

    def _validate(self) -> dict[str, float]:
        """Held-out rewards of the current weights; empty without held-out prompts."""
        if not self.held_out:
            return {}
        with self.stopwatch.measure("validation_s"):
            groups, share = evaluate(
                self.held_out,
                validation_settings(self.config),
                fleet=self.fleet,
                grader=self.grader,
                ranks=self.ranks,
                max_failed_share=self.config.reward.max_failed_share,
                say=self.log.say,
                on_progress=self.watchdog.beat,
            )
            kept = gather_samples(groups, share, self.ranks, num_kept=self.config.validation.num_kept)
        if self.telemetry is not None:
            self.telemetry.held_out(self.state.step, kept)
        seconds = self.stopwatch.seconds["validation_s"]
        self.deadline.note("validation", seconds)
        summary = summarise(groups, ks=sorted({1, self.config.validation.num_rollouts}))
        self.state.validation.append({"step": self.state.step, **summary})
        return {f"validation/{name}": value for name, value in summary.items()} | {
            "time/validation_s": seconds
        }

    def _samples_ahead(self) -> bool:
        """Whether the next step's rollouts begin before this step's updates. Not across a checkpoint: it has no
        rollouts under way, so that a run which goes on from it does what this one does."""
        after = self.state.stage_step + 1
        last = after == self.config.trainer.num_steps
        return self.config.sampler.ahead and not last and not self.schedule.is_due(after)

    def _save(self) -> None:
        """Begins to save; training goes on meanwhile."""
        self.schedule.note_save()
        self.collector.drop_ahead()
        self.state.prompts = self.prompts.state()
        self.state.controller = self.controller.state()
        if self.checkpoints is not None:
            monitor = self.config.exp_manager.checkpoint_callback_params.monitor
            with self.stopwatch.measure("checkpoint_s"):
                self.checkpoints.save(self.policy, self.state, score=self._measured.get(monitor))

    def _save_now(self) -> None:
        """It is on disk on return. So is the reset that a user asked for, if one did."""
        self._save()
        self._finish_saving()
        self._take_obeyed_request()

    def _take_obeyed_request(self) -> None:
        """Of a reset that is in a checkpoint."""
        if self.ranks.layout.is_main and reset_request_id(self.run_dir) == self.state.last_reset_request:
            take_reset_request(self.run_dir)  # where none was made and none obeyed, there is none to take

    def _poll_saving(self) -> None:
        if self.checkpoints is not None:
            self.checkpoints.poll()
            self.deadline.note("save", self.checkpoints.longest_s)

    def _finish_saving(self) -> None:
        if self.checkpoints is not None:
            with self.stopwatch.measure("checkpoint_s"):
                self.checkpoints.finish()

    def _position(self) -> dict[str, Any]:
        return {"step": self.state.step, "stage": self.state.stage, "num_resets": self.state.num_resets}

    def _record(self, metrics: Mapping[str, Any]) -> None:
        self.state.num_records += 1
        if self.state.went_back_to >= 0:
            metrics = {**metrics, WENT_BACK: self.state.went_back_to}
            self.state.went_back_to = -1
        if self.telemetry is not None:
            self.telemetry.step(self._position() | dict(metrics), stage_step=self.state.stage_step)
