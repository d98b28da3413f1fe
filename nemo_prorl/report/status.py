"""The summary of a run from the files in its folder, and the state of its jobs from Slurm's queue."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from nemo_prorl.cluster.slurm_queue import Queue, ask_queue
from nemo_prorl.report.forecast import forecast_sentence, outlook_of
from nemo_prorl.report.health import Best, bests_of, checks_of
from nemo_prorl.report.state import facts_of, seen_s, stage_of
from nemo_prorl.run_folder.checkpoints import step_of
from nemo_prorl.run_folder.formats import duration, table
from nemo_prorl.run_folder.run import RunFolder
from nemo_prorl.run_folder.storage import MANIFEST_FILE
from nemo_prorl.training.control.health import RECENT

ANSWER_S = 10.0
"""How long squeue may take: less than for a submission, because a user looks on."""
COLUMNS = ("run", "state", "stage", "step", "seen", "reward", "held out", "left", "alarms")


@dataclass(frozen=True, slots=True)
class Recent:
    """The mean of a metric over the recent steps, and how far it is from the mean over as many steps before."""

    mean: float
    change: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The state of one folder, for `status`. A number is None if it is not known yet."""

    run_dir: str
    state: str
    """waiting, checking, starting, training, silent, paused, stopped, failed, done, empty, or no run."""
    where: str = ""
    """Such as "after step 30 of 40 of run2"."""
    wrote: str
    """What the run wrote last; of a folder that is no run's, why it is none."""
    queue: str = ""
    """What squeue says of its jobs; empty outside of Slurm."""
    advice: str = ""
    """What to do so that the run goes on; empty if it does by itself."""
    stage: str = ""
    step: int | None = None
    """Steps of the run."""
    stage_step: int | None = None
    num_steps: int | None = None
    """The most steps that the stage may take."""
    seen_s: float | None = None
    """Age of the last sign of life."""
    step_s: float | None = None
    """Mean over the recent steps, with their share of validations and saves, as are the next ones."""
    reward: Recent | None = None
    pass_rate: Recent | None = None
    held_out: Best | None = None
    """Mean over domains, or over prompts where that is not known."""
    on_gpus: bool = False
    num_starts: int = 0
    stage_hours: Mapping[str, float] = field(default_factory=dict)
    """Wall time x ranks, of every stage so far: GPU hours if on_gpus."""
    left_s: float | None = None
    """Until the stage's last step, at the present speed."""
    left_hours: float | None = None
    """The same in rank hours."""
    checkpoint_step: int | None = None
    checkpoint_age_s: float | None = None
    engines: Mapping[str, str] = field(default_factory=dict)
    """What its newest process computes with; empty before its engines are ready."""
    forecast: str = ""
    """A sentence on the end of the stage; empty if it is over, or if the records do not allow one."""
    alarms: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(status_lines(self))

    @property
    def summary(self) -> str:
        """Returns the state and where the run stands, or why the folder is no run's."""
        return f"{self.state} {self.where}" if self.where else self.wrote


def ask_for(folders: Sequence[Path]) -> Queue | None:
    """Returns squeue's answer, None if no run of these has a Slurm job."""
    runs = map(RunFolder, folders)
    uses_slurm = any(run.submissions or run.folder_job or any(one.job for one in run.starts) for run in runs)
    return ask_queue(timeout_s=ANSWER_S) if uses_slurm else None


def read_status(folder: Path, queue: Queue | None = None) -> RunStatus:
    """Returns the status of any folder, damaged ones too. queue: squeue's answer; without it the states of jobs are
    guesses."""
    run = RunFolder(folder)
    if not (run.records or run.starts or run.submissions or run.folder_job or run.failures):
        return _no_run(run)
    stage, step_s = stage_of(run), run.recent_step_s(RECENT)
    age_s = seen_s(run)
    numbers = _numbers(run, stage, step_s) if run.records else {"where": f"before the first step of {stage}"}
    return RunStatus(
        run_dir=str(folder),
        **facts_of(run, queue),
        stage=stage,
        seen_s=None if math.isinf(age_s) else age_s,
        on_gpus=run.on_gpus,
        num_starts=len(run.starts),
        stage_hours=run.stage_hours,
        engines=run.engines,
        **numbers,
    )


def _numbers(run: RunFolder, stage: str, step_s: float) -> dict[str, Any]:
    """Returns the fields that follow from the records, of which there is one."""
    num_steps = run.configs.get(stage, {}).get("trainer.num_steps")
    stage_step = sum(record["stage"] == stage for record in run.steps)
    step = int(run.last["step"])
    is_under_way = stage not in run.failures and stage not in run.outcomes
    left_s = step_s * max(0, num_steps - stage_step) if step_s and num_steps and is_under_way else None
    checkpoint = run.newest_checkpoint
    of_run = f" (step {step:,} of the run)" if step != stage_step else ""
    return {
        "where": f"after step {stage_step:,}{f' of {num_steps:,}' if num_steps else ''} of {stage}{of_run}",
        "step": step,
        "stage_step": stage_step,
        "num_steps": num_steps,
        "step_s": step_s or None,
        "reward": _recent(run, "reward/mean"),
        "pass_rate": _recent(run, "reward/pass_rate"),
        "held_out": next(iter(bests_of(run)), None),
        "left_s": left_s,
        "left_hours": left_s * run.num_ranks / 3600 if left_s is not None and run.starts else None,
        "checkpoint_step": step_of(checkpoint) if checkpoint else None,
        "checkpoint_age_s": max(0.0, time.time() - (checkpoint / MANIFEST_FILE).stat().st_mtime)
        if checkpoint
        else None,
        "forecast": forecast_sentence(outlook_of(run)) if is_under_way else "",
        "alarms": tuple(
            f"{check.title}: {check.text}"
            for check in checks_of(run)
            if not check.is_fine and check.title != "Progress"  # which the state says already
        ),
    }


def _no_run(run: RunFolder) -> RunStatus:
    """Returns the status of a folder in which nothing has begun."""
    state, wrote = "no run", "no run: the folder holds none of the files that a run leaves."
    if not run.folder.is_dir():
        wrote = "there is no such folder: write the exp_manager.explicit_log_dir of a run."
    elif run.why_foreign:
        wrote = run.why_foreign
    elif any((run.folder / name).is_file() for name in ("metrics.jsonl", "resolved.yaml")):
        state, wrote = "empty", "a run that has not come to its first step."
    return RunStatus(run_dir=str(run.folder), state=state, wrote=wrote)


def status_table(found: Sequence[RunStatus], width: int = 80) -> list[str]:
    """Returns a line for each run under a title, of less than `width` columns if it suffices to cut names of runs."""
    rows: list[tuple[str, ...]] = [COLUMNS]
    for status in found:
        total = f"/{status.num_steps}" if status.num_steps else ""
        step = "-" if status.stage_step is None else f"{status.stage_step}{total}"
        reward = "-" if status.reward is None else f"{status.reward.mean:.3f}"
        held_out = "-" if status.held_out is None else f"{status.held_out.last:.3f}"
        seen, left = ("-" if age_s is None else duration(age_s) for age_s in (status.seen_s, status.left_s))
        alarms = str(len(status.alarms) or "-")
        rows.append(
            (status.run_dir, status.state, status.stage[:8], step, seen, reward, held_out, left, alarms)
        )
    return table(rows, "<<<>>>>>>", width - 1)


def status_lines(status: RunStatus) -> list[str]:
    """Returns lines for the terminal: the run's state, speed, reward, cost so far and to come, and warnings."""
    lines = [f"{status.run_dir}: {status.summary}"]
    if status.where:
        facts = {"it wrote": status.wrote, "squeue says": status.queue, "what to do": status.advice}
        lines += [f"  {title}: {text}" for title, text in facts.items() if text]
    said = []
    if status.step_s:
        said.append(f"{duration(status.step_s)} a step")
    for name, recent in (("reward", status.reward), ("pass rate", status.pass_rate)):
        if recent is not None:
            change = "" if recent.change is None else f" ({recent.change:+.3f})"
            said.append(f"{name} {recent.mean:.3f}{change}")
    if status.held_out is not None:
        best = f"best {status.held_out.best:.3f} at step {status.held_out.best_step}"
        said.append(f"held out {status.held_out.last:.3f} ({best})")
    lines += [f"  {', '.join(said)}"] if said else []
    if status.stage_hours:
        unit = "GPU h" if status.on_gpus else "CPU rank h"
        hours, total = status.stage_hours.get(status.stage, 0.0), sum(status.stage_hours.values())
        starts = f"{status.num_starts} start{'s' * (status.num_starts > 1)}"
        text = f"  {hours:,.2f} {unit} in {status.stage}, {total:,.2f} in all, {starts}"
        if status.left_hours is not None and status.left_s is not None:
            text += f"; {status.left_hours:,.2f} more in {duration(status.left_s)}, if it takes all its steps"
        lines.append(text)
    if status.checkpoint_age_s is not None:
        age = duration(status.checkpoint_age_s)
        lines.append(f"  checkpoint of step {status.checkpoint_step}, {age} ago")
    elif status.step is not None:
        lines.append("  no checkpoint yet")
    if status.engines:
        lines.append("  in use: " + "; ".join(f"{name}: {value}" for name, value in status.engines.items()))
    lines += [f"  {status.forecast}"] if status.forecast else []
    return [*lines, *(f"  look at: {alarm}" for alarm in status.alarms)]


def _recent(run: RunFolder, key: str) -> Recent | None:
    values = [float(record[key]) for record in run.steps if key in record]
    if not values:
        return None
    num_recent = min(RECENT, len(values) // 2 or 1)
    mean, before = fmean(values[-num_recent:]), values[-2 * num_recent : -num_recent]
    return Recent(mean, mean - fmean(before) if before else None)
