"""Computes steps of a recorded run again: the same step (training/step.py) on the same engines, from a checkpoint.

What happened between the steps is taken from metrics.jsonl, not decided again. Nothing is written to the run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from nemo_prorl import run
from nemo_prorl.config import ConfigError, ControllerAction, RunConfig, StartFrom
from nemo_prorl.config.compose import SCHEMA, compose
from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.interface import Policy
from nemo_prorl.engines.recorded import RecordedGrader, RecordedSampler, Records
from nemo_prorl.run_folder.checkpoints import Checkpoint, find_checkpoints, last_of_stage
from nemo_prorl.run_folder.origin import flatten
from nemo_prorl.run_folder.records import read_rollouts
from nemo_prorl.run_folder.run import RunFolder
from nemo_prorl.run_folder.slurm_jobs import without_servers_of_its_job
from nemo_prorl.run_folder.storage import changed_content, step_files
from nemo_prorl.run_folder.validation_metrics import WENT_BACK
from nemo_prorl.training.context import StepContext
from nemo_prorl.training.control.resets import reset_policy
from nemo_prorl.training.digest import NUM_DIGITS, Phase
from nemo_prorl.training.sampling.rounds import sampling_seed
from nemo_prorl.training.stages import StartingPoint, check_moments, restore_prompts
from nemo_prorl.training.step import Stepper, StepResult
from nemo_prorl.training.timing import Stopwatch
from nemo_prorl.types import RunState

BETWEEN = (
    "exp_manager", "controller", "validation", "trainer.num_steps", "trainer.start_timeout_s",
    "trainer.hang_timeout_s", "reward.urls", "reward.discovery_dir", "reward.token_file",
    "reward.ready_timeout_s",
)  # fmt: skip
"""Options, and sections of them, on which no number of a step depends, apart from AFTER_ALL."""
AFTER_ALL = (
    "controller.mode", "controller.kl_spike", "exp_manager.checkpoint_callback_params.monitor",
    "controller.reset_reference", "controller.reset_optimizer",
)  # fmt: skip
"""Options on which a step's numbers may depend: the first three decide whether the KL is measured."""


class CannotVerify(ConfigError):
    """A step cannot be computed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RerunPlan:
    """How the steps `first` to `last` of a run will be computed again."""

    run_dir: Path
    first: int
    last: int
    config: RunConfig
    """The options of these steps."""
    start: StartingPoint
    lines: Mapping[int, Mapping[str, Any]]
    """Step -> its line of digests.jsonl."""
    metrics: Mapping[int, Mapping[str, Any]]
    """Step -> its line of metrics.jsonl."""
    inputs: Sequence[Mapping[str, Any]]
    """What each of `steps` was computed with (`run.step_inputs`); the options are the same."""

    @property
    def begins_after(self) -> int:
        """The step of the checkpoint, or 0."""
        saved = self.start.last or self.start.checkpoint
        return 0 if saved is None else saved.state.step

    @property
    def steps(self) -> range:
        """Every step that has to be computed."""
        return range(self.begins_after + 1, self.last + 1)

    def num_attempts(self, step: int) -> int:
        """Returns how many attempts at the step had failed before (`RunState.num_attempts`)."""
        return int(self.lines[step].get("num_attempts", 0))


def plan(run_dir: Path, first: int, last: int, *, num_ranks: int = 1) -> RerunPlan:
    """Returns how to compute the steps again, from files alone. Raises CannotVerify with the reason if they cannot."""
    run_files = RunFolder(run_dir)
    digests = run_files.digests
    for step in range(first, last + 1):
        if step in digests.damaged:
            raise CannotVerify(f"the line of step {step} in {run_dir}/digests.jsonl is not what was written.")
        if step not in digests.steps:
            known = f"{min(digests.steps)} to {max(digests.steps)}"
            raise CannotVerify(f"{run_dir} has no digest of step {step}: write a step of {known}.")
    stage = digests.steps[last]["stage"]
    if digests.steps[first]["stage"] != stage:
        raise CannotVerify(f"steps {first} and {last} are of different stages: write steps of one stage.")
    metrics = {record["step"]: record for record in run_files.steps}
    of_inputs = digests.steps[last]["of_inputs"]
    if of_inputs not in digests.inputs:
        raise CannotVerify(
            f"the line with the options of step {last} in {run_dir}/digests.jsonl is missing or not what was written."
        )
    inputs = digests.inputs[of_inputs]
    config = _config(run_dir, inputs["options"], num_ranks)
    start = _start(run_dir, config, first)
    found = RerunPlan(
        run_dir=run_dir,
        first=first,
        last=last,
        config=config,
        start=start,
        lines=digests.steps,
        metrics=metrics,
        inputs=[],
    )
    of_steps = []
    for step in found.steps:
        before = digests.inputs.get(digests.steps.get(step, {}).get("of_inputs", ""))
        changed = [] if before is None else changed_options(before["options"], inputs["options"])
        if before is None or changed:
            what = f"with another {changed[0]}" if changed else "but digests.jsonl does not say how"
            raise CannotVerify(
                f"step {last} has to be computed from {start}, and step {step} on the way was trained {what}: choose "
                "a step with a checkpoint nearer before it."
            )
        of_steps.append(before)
        if step < last and (went_back_to := metrics.get(step, {}).get(WENT_BACK)) is not None:
            _checkpoint_of(find_checkpoints(run_dir), went_back_to, stage)  # it will be needed
    return replace(found, inputs=of_steps)


def changed_options(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns the names of the options that differ and on which a step's numbers may depend."""
    old, new = dict(flatten(before)), dict(flatten(now))
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    between = tuple(f"{name}." for name in BETWEEN)
    return [name for name in names if name in AFTER_ALL or not f"{name}.".startswith(between)]


def other_circumstances(plan: RerunPlan, ranks: Ranks) -> list[str]:
    """Returns what is different here from where the steps were trained, so that their numbers may differ in the last
    digits; empty if every bit has to be the same."""
    here, found = run.step_inputs(plan.config, ranks), []
    for then in plan.inputs:
        found += [
            f"{name} {then['versions'].get(name, 'none')} then, {here['versions'].get(name, 'none')} now"
            for name in sorted(then["versions"].keys() | here["versions"].keys())
            if then["versions"].get(name) != here["versions"].get(name)
        ]
        found += [
            f"{key} {then[key]} then, {here[key]} now"
            for key in ("ranks", "device")
            if then[key] != here[key]
        ]
        if not then["device"].startswith("CPU"):
            found.append("GPUs, where equal runs were never shown to be equal")
    return list(dict.fromkeys(found))


def steps_again(plan: RerunPlan, stepper: Stepper, state: RunState) -> Iterator[StepResult]:
    """Yields the result of every step of the plan, which change policy and state as in the run. Collective. Raises
    NotRecorded. The stepper and the state are `machinery`'s."""
    stepper.refit(state, canary_limit=float("inf"))
    for step in plan.steps:
        is_used = step < plan.last and plan.lines[step + 1]["was_ahead"]
        stepper.collector.samples_ahead = is_used
        ahead = plan.lines[step].get("ahead", is_used)  # a line of an earlier version does not say
        state.num_attempts = plan.num_attempts(step)
        yield stepper.step(state, ahead=ahead, canary_limit=float("inf"))
        if not is_used:
            stepper.collector.drop_ahead()
        if step < plan.last:
            _repeat_decision(plan, stepper, state)


def _repeat_decision(plan: RerunPlan, stepper: Stepper, state: RunState) -> None:
    """Resets the policy if the run did so after this step."""
    record = plan.metrics.get(state.step, {})
    if record.get("controller", {}).get("action") != ControllerAction.reset.name:
        return
    if WENT_BACK in record:
        best = _checkpoint_of(find_checkpoints(plan.run_dir), record[WENT_BACK], state.stage)
        stepper.go_back(state, best)
        stepper.refit(state, canary_limit=float("inf"))
    else:
        reset_policy(stepper.context.policy, state, plan.config.controller)


@contextmanager
def machinery(
    plan: RerunPlan,
    ranks: Ranks,
    *,
    sample_again: bool = False,
    watched: Callable[[Policy], Policy] = lambda policy: policy,
    stopwatch: Stopwatch | None = None,
) -> Iterator[tuple[Stepper, RunState]]:
    """Yields a stepper on its engines, and the state that the plan's first step begins with. Collective. vLLM and the
    reward service are started only if a step is not recorded.

    sample_again: samples and grades also what is recorded. watched: wraps the policy, to see its updates."""
    with ExitStack() as stack:
        into = None
        if ranks.layout.world_size == 1:  # several ranks find converted files in the run's folder
            into = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nemo_prorl-")))
        inputs = run.load_inputs(plan.config, ranks, is_resume=False, into=into)
        config = inputs.config
        seeds = {sampling_seed(config.seed, step - 1, plan.num_attempts(step)): step for step in plan.steps}
        recorded = ranks.on_main(lambda: set() if sample_again else recorded_steps(plan))

        def records(seed: int) -> Records:
            step = seeds.get(seed)
            if step is None or step not in recorded:
                return {}
            found = read_rollouts(plan.run_dir, step)
            num_prompts = len({uid for uid, _ in found})
            then = len(plan.lines[step]["phases"][Phase.rollouts.name][1]) // NUM_DIGITS
            if num_prompts < then:
                raise CannotVerify(
                    f"{plan.run_dir}/rollouts has {num_prompts} of the {then} prompts of step {step}: bring back the "
                    "file of every rank, or write --sample-again."
                )
            return found

        grader = other_sampler = None
        is_live = not recorded.issuperset(plan.steps)
        if is_live:
            grader = stack.enter_context(run.graders(config.reward, ranks, into or plan.run_dir))
        policy, state = run.build_policy(config, ranks, plan.start)
        policy.finish_training()
        restore_prompts(inputs.prompts, state, is_resume=plan.start.is_resume)
        if is_live:
            other_sampler = stack.enter_context(
                run.build_sampler(config, ranks, inputs.tokenizer, reads_weights=False)
            )
        sampler = RecordedSampler(records, other_sampler)
        context = StepContext(
            config=config,
            ranks=ranks,
            policy=watched(policy),
            sampler=sampler,
            grader=RecordedGrader(sampler, grader),
            prompts=inputs.prompts,
            stopwatch=stopwatch or Stopwatch(),
        )
        yield Stepper(context, canary=None), state


def recorded_steps(plan: RerunPlan) -> set[int]:
    """Returns the steps of the plan whose rollouts are recorded."""
    return {step for step, _ in step_files(plan.run_dir, "rollouts").all()} & set(plan.steps)


def _config(run_dir: Path, options: Mapping[str, Any], num_ranks: int) -> RunConfig:
    """Returns recorded options as a configuration, in a layout that fits the number of ranks."""
    with tempfile.TemporaryDirectory(prefix="nemo_prorl-") as folder:
        path = Path(folder) / "recorded.yaml"
        tree = {"defaults": [SCHEMA, "_self_"], **options}
        text = yaml.safe_dump(tree, sort_keys=False)  # the order of data.train counts
        path.write_text(text, encoding="utf-8")
        config = without_servers_of_its_job(compose(str(path), [], conf_dir=Path(folder)))
    exp_manager = replace(config.exp_manager, explicit_log_dir=str(run_dir))  # the folder may have been moved
    config = replace(config, exp_manager=exp_manager)
    if num_ranks > 1:
        return config
    trainer = replace(config.trainer, tensor_parallel=1, pipeline_parallel=1, sequence_parallel=False)
    return replace(config, trainer=trainer, sampler=replace(config.sampler, tensor_parallel=1))


def _start(run_dir: Path, config: RunConfig, first: int) -> StartingPoint:
    """Returns the newest whole checkpoint of the stage before its step `first`, or the stage's own start. Raises
    CannotVerify if that is gone."""
    stage, checkpoints = config.stage, find_checkpoints(run_dir)
    for checkpoint in reversed(checkpoints):
        is_before = checkpoint.state.stage == stage.name and checkpoint.state.step < first
        if is_before and checkpoint.has_moments and not changed_content(checkpoint.path):
            return StartingPoint(checkpoint=checkpoint, is_resume=True)
    if not stage.parent:
        return StartingPoint(checkpoint=None, is_resume=False)
    last = last_of_stage(checkpoints, stage.parent)
    if last is None:
        raise CannotVerify(
            f"stage {stage.name} began with stage {stage.parent}, of which {run_dir} has no checkpoint any more."
        )
    last = _whole(last, f"stage {stage.name} began with")
    if stage.start_from is StartFrom.best:
        begun = next((one for one in RunFolder(run_dir).records if one["stage"] == stage.name), {})
        if WENT_BACK in begun:
            best = _checkpoint_of(checkpoints, begun[WENT_BACK], stage.parent)
            return check_moments(StartingPoint(checkpoint=best, is_resume=False, last=last), stage)
    return check_moments(StartingPoint(checkpoint=last, is_resume=False), stage)


def _checkpoint_of(checkpoints: list[Checkpoint], step: int, stage: str) -> Checkpoint:
    went_back = f"the policy went back to step {step} of stage {stage}"
    for checkpoint in checkpoints:
        if (checkpoint.state.step, checkpoint.state.stage) == (step, stage):
            return _whole(checkpoint, f"{went_back},")
    raise CannotVerify(f"{went_back}, and that checkpoint is gone.")


def _whole(checkpoint: Checkpoint, used: str) -> Checkpoint:
    """Returns a checkpoint whose content is what was written. used: how the run has used it. Raises CannotVerify."""
    if changed := changed_content(checkpoint.path):
        raise CannotVerify(f"{used} {checkpoint.path}, and {changed}.")
    return checkpoint
