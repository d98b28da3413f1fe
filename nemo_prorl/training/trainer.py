"""The loop that trains a stage: steps (training/step.py), and what follows each (`ProRLTrainer._close_step`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

from nemo_prorl.algorithm.metrics import token_limits
from nemo_prorl.config import ConfigError, ControllerAction, ControllerMode, ResetTo
from nemo_prorl.distributed import Layout
from nemo_prorl.engines.interface import NonFiniteUpdate
from nemo_prorl.run_folder.markers import request_id, reset_request, save_request
from nemo_prorl.run_folder.records import write_rollouts, write_trained
from nemo_prorl.run_folder.samples import gather_samples
from nemo_prorl.run_folder.telemetry import RunLog, Telemetry
from nemo_prorl.run_folder.validation_metrics import (
    DOMAIN_MEAN,
    EARLY,
    MEASUREMENT,
    WENT_BACK,
    check_monitor,
    measurement_name,
)
from nemo_prorl.training import evaluation
from nemo_prorl.training.checkpoint import CheckpointWriter, SaveSchedule
from nemo_prorl.training.context import StepContext
from nemo_prorl.training.control.controller import Decision, ResetController
from nemo_prorl.training.control.resets import better_checkpoint, reset_policy
from nemo_prorl.training.deadline import Deadline
from nemo_prorl.training.digest import digest_of
from nemo_prorl.training.sampling.grading import RewardServiceFailing
from nemo_prorl.training.sampling.refit import Refitted
from nemo_prorl.training.sampling.rounds import NothingToLearn, Saturated
from nemo_prorl.training.stages import ENDS_STAGE, Outcome, last_line
from nemo_prorl.training.step import Stepper, StepResult
from nemo_prorl.training.watchdog import Watchdog
from nemo_prorl.types import Prompt, RunState


class StoppedByController(RuntimeError):
    """The controller stopped the run. Everything is saved, and a person has to decide how to continue."""


@dataclass(kw_only=True, eq=False)
class ProRLTrainer:
    """Trains one stage. As in NeMo-Aligner the trainer owns `fit`; every rank runs it, on its own engines."""

    context: StepContext
    held_out: Sequence[Prompt]
    canary: Prompt | None
    checkpoints: CheckpointWriter | None
    """None: the run saves nothing."""
    telemetry: Telemetry | None
    """None on every rank but the main one."""
    log: RunLog
    watchdog: Watchdog
    deadline: Deadline
    state: RunState
    measured: Mapping[str, Any] = field(default_factory=dict)
    """What is known of the weights before the first step."""

    def __post_init__(self) -> None:
        context = self.context
        self.config, self.ranks, self.stopwatch = context.config, context.ranks, context.stopwatch
        self.policy = context.policy
        self.run_dir = Path(self.config.exp_manager.explicit_log_dir)
        self.controller = ResetController(self.config.controller, self.state.controller)
        self.schedule = SaveSchedule(self.config.exp_manager.checkpoint_callback_params)
        self._measured = {**self.measured, **self._last_validation()}
        """Metrics of the current weights, from which the next checkpoint takes its score: those of the last step or,
        after a reset to an earlier checkpoint, those of that checkpoint's validation."""
        self._save_request = ""
        """Id of the user's request for a checkpoint, until one is begun."""
        self.stepper = Stepper(self.context, canary=self.canary)
        self.refitted = Refitted()
        """Result of the last refit."""

    def fit(self) -> Outcome:
        """Trains the stage from where `state` stands. Returns why training ended or paused, after saving everything.

        Raises StoppedByController, NothingToLearn, RewardServiceFailing, NonFiniteUpdate or CheckpointNotSaved, and
        ConfigError if no validation measures the monitored metric; all of them on every rank. An engine, or a grader
        that is gone for good, may raise other errors on one rank alone.
        """
        self.watchdog.follow(self.state)
        try:
            return self._run()
        except (NothingToLearn, RewardServiceFailing, NonFiniteUpdate, ConfigError) as error:
            if isinstance(error, NonFiniteUpdate):
                error.step = self.state.step + 1
            self._finish_saving()  # all ranks are here, so they can complete a checkpoint that is being written
            raise
        finally:
            self.stepper.collector.drop_ahead()

    def _run(self) -> Outcome:
        stage, step = self.state.stage, self.state.step
        self._delete_requests()  # the previous process may have died between saving what they ask for and this
        if self.config.controller.mode is ControllerMode.manual:
            self.state.outcome = ""  # the user overrules a controller that ended the stage
        if self.state.outcome:
            how = "controller.mode=manual trains it further"
            self.log.say(f"the controller ended stage {stage} after step {step}: {how}")
            return Outcome(self.state.outcome)
        is_over = self.state.stage_step > 0 and (self._has_all_steps() or self._has_reached_target())
        if is_over and self._is_validated():  # only the done marker is missing
            return Outcome.target if self._has_reached_target() else Outcome.steps
        self._refit()
        if self.refitted.is_lost:
            raise StoppedByController(
                f"stage {stage} stopped before step {step + 1}: {self.refitted.diagnosis}"
            )
        outcome = self._close_step({}) if self._has_all_steps() else self._pause_at_start()
        if outcome is None and self.state.stage_step == 0 and not self.controller.has_seen(stage):
            self._open_stage()
            outcome = self._pause_at_start(saves=True)
        if outcome is None and self._has_reached_target():
            outcome = self._close_step({})
        while outcome is None:
            self._poll_saving()
            # The next step's rollouts are sampled during this step's updates. Not before a checkpoint, because a run
            # that resumes from it samples them with newer weights and would get other rollouts.
            next_step = self.state.stage_step + 1
            is_last = next_step == self.config.trainer.num_steps
            ahead = self.config.sampler.ahead and not is_last and not self.schedule.is_due(next_step)
            try:
                result = self.stepper.step(
                    self.state, ahead=ahead, canary_limit=self.controller.canary_limit()
                )
            except Saturated as saturated:
                self.stepper.collector.drop_ahead()  # the last validation needs the sampler
                outcome = self._close_step({}, why=str(saturated))
                continue
            except NothingToLearn as error:
                if self.state.stage_step:  # before, a checkpoint would only keep its data from being changed
                    self._save()
                sentence = last_line(
                    Outcome.stopped, self.state, str(error), saved=self.checkpoints is not None
                )
                raise NothingToLearn(sentence) from None
            outcome = self._close_step(self._record_step(result))
        return outcome

    def _record_step(self, result: StepResult) -> dict[str, Any]:
        """Records a finished step, and what else the loop needs of it. Returns its metrics, with the time that
        saving took."""
        self.refitted = result.refitted
        self.deadline.note("step", self.stopwatch.elapsed_s())
        step, every = self.state.step, self.config.exp_manager.record_rollouts
        if every and step % every == 0:
            self.ranks.together(lambda: _record_rollouts(self.run_dir, step, result, self.ranks.layout))
        digest = digest_of(result, self.ranks)
        if self.telemetry is not None:
            self.telemetry.prompts(step, result.collection.sampled)
            self.telemetry.digests.add(self.state, digest.as_record())
        self.state.num_attempts = 0
        waited_s = self.checkpoints.take_waited_s() if self.checkpoints is not None else 0.0
        return result.metrics | {"time/save_s": waited_s}

    def _pause_at_start(self, *, saves: bool = False) -> Outcome | None:
        """Pauses, and returns so, if a signal has come before the first step of this process. saves: there is something
        that no checkpoint has."""
        if not (why := self._why_pause()):
            return None
        if saves:
            self._save()
            self._finish_saving()
        self.log.say(last_line(Outcome.paused, self.state, why, saved=self.checkpoints is not None))
        return Outcome.paused

    def _why_pause(self) -> str:
        """Returns any rank's reason to pause, since a signal may reach one alone; empty if none has one. Collective."""
        return next(filter(None, self.ranks.gather(self.deadline.reason())), "")

    def _open_stage(self) -> None:
        """Validates the weights that the stage begins with, and saves them if a reset may return to them."""
        self._measured = self._validate()
        monitor = self.config.exp_manager.checkpoint_callback_params.monitor
        if sentence := check_monitor(monitor, self._measured):
            self.log.say(sentence)
        self.controller.observe(self._position() | self._measured)
        self._record(self._measured)
        if self.config.controller.reset_to is ResetTo.best:
            self._save()

    def _close_step(self, metrics: dict[str, Any], *, why: str = "") -> Outcome | None:
        """Does what follows a step, in this order. Returns the outcome, which ends the loop, or None. Raises
        StoppedByController.

        metrics: of the step; empty if none was trained. why: the reason for an outcome that the caller knows already.
        """
        trained, is_last, validation = bool(metrics), self._has_all_steps(), self.config.validation
        is_save_due = self.schedule.is_due(self.state.stage_step)
        is_due = is_last or validation.is_due(self.state.stage_step)
        is_early = not is_due and validation.is_early(self.state.step)
        validates = trained and (is_due or is_early) and not self.refitted.is_lost
        decision, action = None, None
        if trained:
            self._measured = metrics
            if validates:
                metrics |= self._validate()
            if validates and is_early:
                metrics[EARLY] = 1
            decision = self._decide(metrics)  # after the validation, which the controller uses
            action = decision.action if decision is not None else None
            if action is ControllerAction.reset:
                self._reset()
            self._record(metrics)

        outcome: Outcome | None = None
        if decision is not None and action is ControllerAction.stop:
            outcome, why = Outcome.stopped, decision.reason
        elif self.refitted.is_lost:
            outcome, why = Outcome.stopped, self.refitted.diagnosis
        elif action is ControllerAction.end_stage:
            outcome = Outcome.end_stage
        elif self._has_reached_target():
            outcome, why = Outcome.target, f"the held-out mean has reached {validation.stop_at:g}"
        elif is_last:
            outcome = Outcome.steps
        elif not trained:
            outcome = Outcome.saturated
        elif why := self._why_pause():
            outcome = Outcome.paused
        if outcome in ENDS_STAGE and not (validates or self._is_validated()):
            measured = self._validate()
            self._measured |= measured
            self._record(measured)

        # When training ends nothing waits for a checkpoint later, and a run that is resumed must know of a reset.
        if outcome is not None or action is ControllerAction.reset or self._save_request:
            self._save()
            self._finish_saving()
            self._delete_requests()  # of a user who asked for a reset or a checkpoint: there is one now
        elif is_save_due:
            self._save()
        if outcome is Outcome.stopped:
            raise StoppedByController(f"stage {self.state.stage} stopped after step {self.state.step}: {why}")
        if outcome is not None:
            self.log.say(last_line(outcome, self.state, why, saved=self.checkpoints is not None))
        return outcome

    def _decide(self, metrics: dict[str, Any]) -> Decision | None:
        """Returns the controller's decision, or else the reset that a user asks for, and adds it to log and `metrics`.
        Asks user and clock which steps to save after. All ranks take the main rank's answers."""
        step = self.state.step
        decision = self.controller.observe(self._position() | metrics)
        request = save = ""
        if self.ranks.layout.is_main:
            request, save = (request_id(file(self.run_dir)) for file in (reset_request, save_request))
        by_clock = self.schedule.next_by_clock(self.state.stage_step, self.stopwatch.elapsed_s())
        told = self.ranks.from_main((decision, request, save, by_clock))
        decision, request, save, self.schedule.by_clock = told
        is_new = self.checkpoints is not None and save != self.state.last_save_request
        self._save_request = save if is_new else ""
        if request not in ("", self.state.last_reset_request):
            if decision is None or decision.action is ControllerAction.warn:
                decision = self.controller.reset_on_request(step)
            # An end overtakes the request, which stays.
            if decision.action is ControllerAction.reset:
                self.state.last_reset_request = request
        if decision is not None and decision.action is ControllerAction.end_stage:
            self.state.outcome = Outcome.end_stage
        if decision is not None and decision.signal == "sampler_mismatch":
            decision = replace(decision, reason=f"{decision.reason} {self.refitted.diagnosis}")
        if decision is not None:
            metrics["controller"] = decision.as_record()
            self.log.say(f"{decision.action.name} after step {step}: {decision.reason}")
        return decision

    def _reset(self) -> None:
        """Resets the current policy or the stage's best checkpoint (controller.reset_to)."""
        best = None
        if self.config.controller.reset_to is ResetTo.best:
            self._finish_saving()
            best = better_checkpoint(self.config, self.state, self._measured, self.ranks, self.log.say)
        if best is None:
            reset_policy(self.policy, self.state, self.config.controller)
            return
        self.stepper.go_back(self.state, best)
        self._measured = self._last_validation()
        self.controller.note_other_weights(self._measured)
        self._refit()

    def _refit(self) -> None:
        limit = self.controller.canary_limit()
        self.refitted = self.stepper.refit(self.state, canary_limit=limit)

    def _has_all_steps(self) -> bool:
        return self.state.stage_step >= self.config.trainer.num_steps

    def _has_reached_target(self) -> bool:
        """Returns whether the current weights' validation has reached validation.stop_at."""
        return self._last_validation().get(DOMAIN_MEAN, -inf) >= self.config.validation.stop_at > 0

    def _is_validated(self) -> bool:
        """Returns whether the current weights have been validated, or there is nothing to validate them with."""
        return not self.held_out or bool(self._last_validation())

    def _last_validation(self) -> dict[str, Any]:
        """Returns the metrics of the current weights' validation; empty if they have not been validated."""
        found = [record for record in self.state.validation[-1:] if record["step"] == self.state.step]
        return {f"validation/{name}": value for r in found for name, value in r.items() if name != "step"}

    def _validate(self) -> dict[str, Any]:
        """Returns the metrics of the current weights on the held-out prompts; empty if there are none. Collective."""
        if not self.held_out:
            return {}
        with self.stopwatch.measure("validation_s"):
            groups, share = evaluation.evaluate(
                self.held_out,
                evaluation.validation_settings(self.config),
                fleet=self.context.fleet,
                grader=self.context.grader,
                ranks=self.ranks,
                max_failed_share=self.config.reward.max_failed_share,
                say=self.log.say,
                on_progress=self.watchdog.beat,
            )
            kept = gather_samples(groups, share, self.ranks, num_kept=self.config.validation.num_kept)
        if self.telemetry is not None:
            self.telemetry.held_out(self.state.step, groups, kept)
        seconds = self.stopwatch.seconds["validation_s"]
        self.deadline.note("validation", seconds)
        summary = evaluation.summarise(groups, ks=sorted({1, self.config.validation.num_rollouts}))
        self.state.validation.append({"step": self.state.step, **summary})
        measured: dict[str, Any] = {f"validation/{name}": value for name, value in summary.items()}
        measured |= evaluation.source_scores(groups, self.context.sources)
        if self.state.measurement:
            measured[MEASUREMENT] = measurement_name(self.state.measurement)
        return measured | {"time/validation_s": seconds}

    def _save(self) -> None:
        """Begins to save a checkpoint; training may go on meanwhile."""
        self.schedule.note_save()
        self.stepper.collector.drop_ahead()
        self.state.prompts = self.context.prompts.state()
        self.state.controller = self.controller.state()
        if self.checkpoints is not None:
            monitor = self.config.exp_manager.checkpoint_callback_params.monitor
            is_requested = bool(self._save_request)
            if is_requested:
                self.log.say(f"the checkpoint of step {self.state.step} was asked for: the run keeps it")
                self.state.last_save_request, self._save_request = self._save_request, ""
            with self.stopwatch.measure("checkpoint_s"):
                score = self._measured.get(monitor)
                self.checkpoints.save(self.policy, self.state, score=score, is_requested=is_requested)

    def _poll_saving(self) -> None:
        if self.checkpoints is not None:
            self.checkpoints.poll()
            self.deadline.note("save", self.checkpoints.longest_s)

    def _finish_saving(self) -> None:
        if self.checkpoints is not None:
            with self.stopwatch.measure("checkpoint_s"):
                self.checkpoints.finish()

    def _delete_requests(self) -> None:
        """Deletes the user's requests that are carried out, once that is in a checkpoint. Newer requests stay."""
        reset, save = reset_request(self.run_dir), save_request(self.run_dir)
        for file, request in ((reset, self.state.last_reset_request), (save, self.state.last_save_request)):
            if request and self.ranks.layout.is_main and request_id(file) == request:
                with suppress(OSError):  # the checkpoint knows it, so one that stays is not carried out again
                    file.unlink(missing_ok=True)

    def _position(self) -> dict[str, Any]:
        return {"step": self.state.step, "stage": self.state.stage, "num_resets": self.state.num_resets}

    def _record(self, metrics: Mapping[str, Any]) -> None:
        self.state.num_records += 1
        if self.state.went_back_to >= 0:
            metrics = {**metrics, WENT_BACK: self.state.went_back_to}
            self.state.went_back_to = -1
        if self.telemetry is not None:
            self.telemetry.step(self._position() | dict(metrics), stage_step=self.state.stage_step)


def _record_rollouts(run_dir: Path, step: int, result: StepResult, layout: Layout) -> None:
    """Writes into RUN/rollouts what this rank sampled, and as a replica's leader also what the replica trained on."""
    write_rollouts(run_dir, step, layout.rank, result.collection.graded())
    trained = []
    for rows, batch, report in zip(result.rows, result.batches, result.reports, strict=True):
        limits_BT = token_limits(report, batch, result.config.algorithm)
        for row, limits, mask in zip(rows, limits_BT, batch.tokens.response_mask_BT, strict=True):
            of_row = {"uid": row.rollout.prompt.uid, "sibling": row.key[1], "advantage": row.advantage}
            trained.append(of_row | {"old_logprobs": row.rollout.old_logprobs, "limits": limits[mask]})
    if layout.leads_replica:
        write_trained(run_dir, step, layout.rank, trained)
