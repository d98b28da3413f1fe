"""Computes steps of a recorded run again, and says whether they are what the run recorded."""

from __future__ import annotations

import math
import re
import traceback
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nemo_prorl.commands import parsing
from nemo_prorl.commands.ending import show
from nemo_prorl.config import ConfigError, Device, Precision, one_line
from nemo_prorl.config.layout import rank_from_environment, world_size_from_environment
from nemo_prorl.engines import environment
from nemo_prorl.run_folder import terminal

if TYPE_CHECKING:
    from nemo_prorl.distributed import Ranks
    from nemo_prorl.questions.rerun import RerunPlan
    from nemo_prorl.training.digest import Phase, StepDigest

TOLERANCES = {Precision.fp32: 1e-5, Precision.bf16: 1e-2}
"""Relative and absolute, for numbers of a step that was trained on another machine, layout or version."""
NOT_COMPARED = (
    "time/", "throughput/", "grading/", "memory/", "host_memory/", "sampler/canary", "sampler/num_preemptions",
)  # fmt: skip
"""Beginnings of metrics that depend on time, or on what a repeated step leaves out."""


def main(arguments: Sequence[str]) -> int:
    """Verifies or measures the steps. Returns the exit code: 0 if they are equal, 1 if one is not; a step that cannot
    be verified is a ConfigError, code 2."""
    parser = parsing.Parser(
        "verify",
        __doc__,
        "Steps are computed from the newest checkpoint before them, or from the start of their stage. Rollouts and "
        "verdicts come from RUN/rollouts where exp_manager.record_rollouts has kept them; all others are sampled and "
        "graded again. Exit code: 0 equal, 1 different, 2 cannot be verified.",
    )
    parser.path("run", "RUN", "folder of a run")
    parser.option("--step", "N | A..B", "verifies this step, or these of one stage (default: the newest)")
    parser.option(
        "--metric",
        "FILE.py:NAME",
        "measures the steps with a function instead, into RUN/remeasured/NAME.jsonl",
    )
    parser.flag("--sample-again", "samples and grades again also what is recorded")
    parser.option(
        "--tolerance",
        "X",
        "largest relative or absolute difference of a number where not every bit can be equal (default: 1e-5 in "
        "fp32, 1e-2 in bf16)",
        type=float,
    )
    given = parser.parse_args(arguments)
    if given.tolerance is not None and not 0 <= given.tolerance < math.inf:
        raise ConfigError(f"--tolerance {given.tolerance:g} is no difference: write 0 or more, such as 1e-4.")
    try:
        with terminal.shown(speaks=rank_from_environment() == 0):
            return _answer(given)
    except (ConfigError, ModuleNotFoundError):
        raise
    except Exception as error:  # Python would end with 1, which means different
        traceback.print_exc()
        raise ConfigError(f"nothing was verified: {one_line(error)}.") from error


def _answer(given: Namespace) -> int:
    terminal.wait_for("reading the run")
    from nemo_prorl.run_folder.run import RunFolder

    digests = RunFolder(given.run).digests
    if not digests.steps:
        raise ConfigError(
            f"{given.run} has no digests.jsonl with steps: write the folder of a run that has trained a step."
        )
    first, last = _range(given.step or str(max(digests.steps)))
    of_inputs = digests.steps.get(last, {}).get("of_inputs", "")
    if of_inputs in digests.inputs:
        _prepare(digests.inputs[of_inputs]["options"])
    from nemo_prorl.questions import rerun

    plan = rerun.plan(given.run, first, last, num_ranks=world_size_from_environment())
    parsing.check_model(plan.config)
    if given.metric:
        return _measure(plan, given.metric, sample_again=given.sample_again)
    return _verify(plan, given.tolerance, sample_again=given.sample_again)


def _prepare(options: Mapping[str, Any]) -> None:
    """Chooses the device and sets the engines' environment by a run's recorded options, before torch is imported."""
    trainer, sampler = options["trainer"], options["sampler"]
    environment.choose_device(Device[trainer["device"]])
    environment.order_launches(tensor_parallel=trainer["tensor_parallel"], ahead=sampler["ahead"])
    environment.set_allocator(sampler_tensor_parallel=sampler["tensor_parallel"])
    terminal.wait_for("loading PyTorch and the engines")
    parsing.prepare_engines(samples=False)


def _range(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 0 < first <= last:
        raise ConfigError(
            f"--step {text} is no step: write a number, or the first and the last, as in 20..60."
        )
    return first, last


def _verify(plan: RerunPlan, tolerance: float | None, *, sample_again: bool) -> int:
    from nemo_prorl.engines.recorded import NotRecorded
    from nemo_prorl.questions import rerun
    from nemo_prorl.training.digest import differences, digest_of

    ranks = _begin(plan, sample_again=sample_again)
    others = rerun.other_circumstances(plan, ranks)
    tolerance = TOLERANCES[plan.config.model.precision] if tolerance is None else tolerance
    because = f"Within {tolerance:g}, because of {'; '.join(others)}."
    _say([because if others else "Exact: every bit is compared."])
    code = 0
    with rerun.machinery(plan, ranks, sample_again=sample_again) as (stepper, state):
        results = rerun.steps_again(plan, stepper, state)
        for step in plan.steps:
            terminal.wait_for(f"computing step {step}")
            try:
                result = next(results)
            except NotRecorded as error:
                _say([f"step {step}: prompts DIFFER: {error} in the recorded step"])
                return 1
            if step < plan.first:
                continue
            digest = digest_of(result, ranks)
            found = differences(plan.lines[step], digest)
            if others:
                lines, of_step = _within(plan, step, found, result.metrics, tolerance)
            else:
                lines, of_step = _exact(found, digest), 1 if found else 0
            _say([f"step {step}", *lines])
            code = max(code, of_step)
    return code


def _begin(plan: RerunPlan, *, sample_again: bool) -> Ranks:
    """Joins the other ranks, and says what will be computed, and with which rollouts."""
    from nemo_prorl.distributed import initialise
    from nemo_prorl.questions import rerun

    ranks = initialise(plan.config.trainer.tensor_parallel, plan.config.trainer.pipeline_parallel)
    recorded = set() if sample_again else rerun.recorded_steps(plan)
    which = f"step {plan.first}" if plan.first == plan.last else f"steps {plan.first} to {plan.last}"
    if not recorded:
        how = "sampled and graded again"
    elif len(recorded) == len(plan.steps):
        how = "with the recorded rollouts and verdicts"
    else:
        how = f"with the recorded rollouts and verdicts of {len(recorded)} step(s), the others sampled again"
    _say([f"{which} of {plan.run_dir}: {len(plan.steps)} step(s) from {plan.start}, {how}"])
    return ranks


def _exact(found: Mapping[Phase, str], digest: StepDigest) -> list[str]:
    """Returns lines on the phases that are equal, on the first that differs, and on those that follow from it."""
    from nemo_prorl.training.digest import UNITS, Phase

    lines = []
    for phase in Phase:
        if phase not in found:
            count = len(digest.items[phase])
            lines.append(f"  {phase.value:<31} equal   {count} {UNITS.get(phase, 'prompts')}")
        elif phase is next(iter(found)):
            lines.append(f"  {phase.value:<31} DIFFERS {found[phase]}")
        else:
            lines.append(f"  {phase.value:<31} differs")
    return lines


def _within(
    plan: RerunPlan, step: int, found: Mapping[Phase, str], metrics: dict[str, Any], tolerance: float
) -> tuple[list[str], int]:
    """Returns lines and an exit code for a step whose bits need not be equal. Raises CannotVerify if it has other
    rollouts, so that no number can be compared."""
    from nemo_prorl.questions import rerun
    from nemo_prorl.training.digest import Phase

    discrete = (Phase.prompts, Phase.rollouts, Phase.verdicts, Phase.selection)
    for phase, text in found.items():
        if phase is Phase.prompts:
            return [f"  {phase.value:<31} DIFFERS {text}"], 1
        if phase in discrete:
            raise rerun.CannotVerify(
                f"step {step} has other {phase.value} than recorded: {text}. Rounding alone can do "
                "that here, so its numbers cannot be compared; exp_manager.record_rollouts keeps rollouts for that."
            )
    record = plan.metrics.get(step, {})
    names = [
        name
        for name, value in metrics.items()
        if isinstance(value, float) and name in record and not name.startswith(NOT_COMPARED)
    ]
    wrong = [
        name
        for name in names
        if not math.isclose(metrics[name], record[name], rel_tol=tolerance, abs_tol=tolerance)
    ]
    if not names:
        raise rerun.CannotVerify(f"{plan.run_dir}/metrics.jsonl has no numbers of step {step}.")
    if not wrong:
        return [
            f"  prompts, rollouts, verdicts and selection are equal, {len(names)} numbers within {tolerance:g}"
        ], 0
    pairs = [f"{name} {record[name]:.9g} -> {metrics[name]:.9g}" for name in wrong[:3]]
    return [f"  {len(wrong)} of {len(names)} numbers DIFFER: {', '.join(pairs)}"], 1


def _measure(plan: RerunPlan, text: str, *, sample_again: bool) -> int:
    from nemo_prorl.questions import rerun
    from nemo_prorl.questions.remeasure import load_metric
    from nemo_prorl.run_folder.records import write_remeasured

    metric = load_metric(text)
    ranks = _begin(plan, sample_again=sample_again)
    lines = []
    with rerun.machinery(plan, ranks, sample_again=sample_again, watched=metric.watching) as (stepper, state):
        for step, result in zip(plan.steps, rerun.steps_again(plan, stepper, state), strict=True):
            terminal.wait_for(f"measured step {step}")
            if not metric.of_updates:
                metric.measure(result, stepper.context.policy)
            found = metric.take(ranks)
            if step >= plan.first:
                lines.append({"step": step, "stage": state.stage, **found})
    if ranks.layout.is_main:
        path = write_remeasured(plan.run_dir, metric.name, lines)
        names = sorted({name for line in lines for name in line} - {"step", "stage"})
        _say([f"wrote {len(lines)} step(s) of {', '.join(names)} to {path}"])
    return 0


def _say(lines: Sequence[str]) -> None:
    if rank_from_environment() == 0:
        show(lines)
