"""The summary of a run from the files in its folder, and the state of its jobs from Slurm's queue."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from nemo_prorl.cluster.slurm_queue import Queue
from nemo_prorl.config import ConfigError
from nemo_prorl.report.forecast import forecast_sentence, outlook_of
from nemo_prorl.report.health import bests_of, checks_of, duration, short_duration
from nemo_prorl.report.runs import LOOP_TIMES, RUNNING_S, NoRecords, Run, read_run
from nemo_prorl.report.state import Jobs, Signs, describe, jobs_of
from nemo_prorl.run_folder.checkpoints import newest_folder, step_of
from nemo_prorl.run_folder.lock import is_held
from nemo_prorl.run_folder.starts import Start, hours_by_stage, read_starts
from nemo_prorl.run_folder.storage import ENGINES_FILE, MANIFEST_FILE, read_json
from nemo_prorl.training.control.checks import RECENT

COLUMNS = {
    "state": "<10", "stage": "<8", "step": ">12", "seen": ">6", "reward": ">7", "held out": ">9", "left": ">6",
    "alarms": ">7",
}  # fmt: skip
"""Column of the table -> its alignment and width."""
HEARTBEAT_FILE = "heartbeat.json"
SILENT_STEPS = 2.0
"""A run is called silent after this many times the duration of its steps without a sign of life, and not before
RUNNING_S."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The state of one folder, for `status`. A number is None if it is not known yet."""

    run_dir: str
    state: str
    """waiting, checking, starting, training, silent, paused, stopped, cancelled, failed, done, empty, or no run."""
    sentence: str
    job: str = ""
    """The Slurm job that trains or trained last; empty outside of Slurm."""
    job_state: str = ""
    """squeue's word for it, "gone" or "not known"."""
    stage: str = ""
    step: int | None = None
    """Steps of the run."""
    stage_step: int | None = None
    num_steps: int | None = None
    """The most steps that the stage may take."""
    phase: str = ""
    seen_s: float | None = None
    """Age of the last sign of life."""
    step_s: float | None = None
    """Mean over the recent steps, with their share of validations and saves, as are the next ones."""
    reward: float | None = None
    reward_change: float | None = None
    """Against as many steps before."""
    pass_rate: float | None = None
    pass_rate_change: float | None = None
    held_out: float | None = None
    held_out_best: float | None = None
    held_out_best_step: int | None = None
    on_gpus: bool = False
    num_starts: int = 0
    stage_hours: Mapping[str, float]
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


def read_status(folder: Path, queue: Queue | None = None) -> RunStatus:
    """Never raises for what it finds in the folder: every state of it has its sentence. queue: squeue's answer; without
    it the states of jobs are guesses."""
    starts = read_starts(folder)
    jobs = jobs_of(folder, starts, queue)
    try:
        run = read_run(folder, with_prompts=False)
    except (ConfigError, KeyError, OSError, ValueError) as error:
        return _without_steps(folder, starts, jobs, error)
    stage = starts[-1].stage if starts else str(run.last["stage"])
    in_stage = run.configs.get(stage, {})
    records = [record for record in run.steps if record["stage"] == stage]
    num_steps = in_stage.get("trainer.num_steps")
    num_ranks = starts[-1].num_ranks if starts else 1
    # A step's mean duration, over the recent ones, with what the loop did between them.
    seconds = [sum(float(record.get(key, 0.0)) for key in LOOP_TIMES) for record in run.steps[-RECENT:]]
    step_s = fmean(seconds) if any(seconds) else None
    where = f"step {len(records)}{f' of {num_steps:,}' if num_steps else ''} of {stage}"
    signs = Signs(
        stage=stage,
        where=f"after {where}",
        start=starts[-1] if starts else None,
        seen_s=_seen_s(run, starts),
        patience_s=max(RUNNING_S, SILENT_STEPS * (step_s or 0.0)),
        step=int(run.last["step"]),
        beat=read_json(folder / HEARTBEAT_FILE),
        failures=run.failures,
        outcomes=run.outcomes,
        is_unlocked=_is_unlocked(folder, starts),
    )
    state, sentence = describe(signs, jobs)
    is_under_way = stage not in run.failures and stage not in run.outcomes
    left_s = step_s * max(0, num_steps - len(records)) if step_s and num_steps and is_under_way else None
    best = next(iter(bests_of(run)), None)
    reward, pass_rate = (_recent_mean(run, key) for key in ("reward/mean", "reward/pass_rate"))
    checkpoint = newest_folder(folder)
    saved = (checkpoint / MANIFEST_FILE).stat().st_mtime if checkpoint else None
    return RunStatus(
        run_dir=str(folder),
        state=state,
        sentence=sentence,
        job=jobs.last.job if jobs.last else "",
        job_state=jobs.last.state if jobs.last else "",
        stage=stage,
        step=int(run.last["step"]),
        stage_step=len(records),
        num_steps=num_steps,
        phase=str(signs.beat.get("phase", "")),
        seen_s=signs.seen_s,
        step_s=step_s,
        reward=reward[0],
        reward_change=reward[1],
        pass_rate=pass_rate[0],
        pass_rate_change=pass_rate[1],
        held_out=best.last if best else None,
        held_out_best=best.best if best else None,
        held_out_best_step=best.best_step if best else None,
        on_gpus=bool(starts) and starts[-1].on_gpus,
        num_starts=len(starts),
        stage_hours=hours_by_stage(starts),
        left_s=left_s,
        left_hours=left_s * num_ranks / 3600 if left_s is not None and starts else None,
        checkpoint_step=step_of(checkpoint) if checkpoint else None,
        checkpoint_age_s=max(0.0, time.time() - saved) if saved is not None else None,
        engines=read_json(folder / ENGINES_FILE),
        forecast=forecast_sentence(outlook_of(run)) if is_under_way else "",
        alarms=tuple(
            f"{check.title}: {check.text}"
            for check in checks_of(run)
            if not check.is_fine and check.title != "Progress"  # which the state says already
        ),
    )


def status_table(found: Sequence[RunStatus], width: int = 80) -> list[str]:
    """One line for each run, of less than `width` columns, under a title. What does not fit is cut: names of runs at
    their beginning, names of stages at their end."""
    room = max(12, width - 2 - sum(int(form[1:]) for form in COLUMNS.values()))
    room = min(room, max(len("run"), *(len(status.run_dir) for status in found)))
    rows: list[tuple[str, ...]] = [("run", *COLUMNS)]
    for status in found:
        name, total = status.run_dir, f"/{status.num_steps}" if status.num_steps else ""
        step = "-" if status.stage_step is None else f"{status.stage_step}{total}"
        scores = ("-" if score is None else f"{score:.3f}" for score in (status.reward, status.held_out))
        seen, left = (
            "-" if age_s is None else short_duration(age_s) for age_s in (status.seen_s, status.left_s)
        )
        if len(name) > room:
            last = f"…/{Path(name).name}"
            name = last if len(last) <= room else f"…{name[1 - room :]}"
        alarms = str(len(status.alarms) or "-")
        rows.append((name, status.state, status.stage[:8], step, seen, *scores, left, alarms))
    return [
        f"{name:<{room}} "
        + "".join(f"{cell:{form}}" for cell, form in zip(cells, COLUMNS.values(), strict=True))
        for name, *cells in rows
    ]


def status_lines(status: RunStatus) -> list[str]:
    """Returns lines for the terminal: the run's state, speed, reward, cost so far and to come, and warnings."""
    lines = [f"{status.run_dir}: {status.sentence}"]
    said = []
    if status.step_s:
        said.append(f"{duration(status.step_s)} a step")
    for name, value, change in (
        ("reward", status.reward, status.reward_change),
        ("pass rate", status.pass_rate, status.pass_rate_change),
    ):
        if value is not None:
            said.append(f"{name} {value:.3f}" + ("" if change is None else f" ({change:+.3f})"))
    if status.held_out is not None:
        best = f"best {status.held_out_best:.3f} at step {status.held_out_best_step}"
        said.append(f"held out {status.held_out:.3f} ({best})")
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


def _without_steps(folder: Path, starts: Sequence[Start], jobs: Jobs, error: Exception) -> RunStatus:
    """The status of a folder whose metrics.jsonl is absent, empty or not a run's."""
    state, seen_s = "no run", time.time() - starts[-1].seen if starts else None
    failures = {
        path.stem: str(read_json(path).get("reason", "")) for path in sorted(folder.glob("stages/*.failed"))
    }
    stage = starts[-1].stage if starts else jobs.every[0].stage if jobs.every else next(iter(failures), "")
    if not folder.is_dir():
        sentence = "there is no such folder: write the exp_manager.explicit_log_dir of a run."
    elif starts or jobs.every or failures:
        signs = Signs(
            stage=stage,
            where=f"before the first step of {stage}",
            start=starts[-1] if starts else None,
            seen_s=seen_s,
            failures=failures,
            is_unlocked=_is_unlocked(folder, starts),
        )
        state, sentence = describe(signs, jobs)
    elif (folder / "metrics.jsonl").is_file() or (folder / "resolved.yaml").is_file():
        if isinstance(error, NoRecords):
            sentence = str(error)
        elif isinstance(error, ConfigError):
            state, sentence = "empty", "a run that has not come to its first step."
        else:
            sentence = f"metrics.jsonl is not that of a run ({type(error).__name__}: {error})."
    else:
        sentence = "no run: the folder holds none of the files that a run leaves."
    return RunStatus(
        run_dir=str(folder),
        state=state,
        sentence=sentence,
        job=jobs.last.job if jobs.last else "",
        job_state=jobs.last.state if jobs.last else "",
        stage=stage,
        seen_s=seen_s,
        on_gpus=bool(starts) and starts[-1].on_gpus,
        num_starts=len(starts),
        stage_hours=hours_by_stage(starts),
    )


def _is_unlocked(folder: Path, starts: Sequence[Start]) -> bool:
    """Whether the newest process ran on this machine and is gone: locks of other machines may be unseen here."""
    return bool(starts) and starts[-1].host == socket.gethostname() and is_held(folder) is False


def _seen_s(run: Run, starts: Sequence[Start]) -> float:
    """Age of the last sign of life; a process that has ended gives none after its end."""
    by_start = max(0.0, time.time() - starts[-1].seen) if starts else run.sign_of_life_s
    return by_start if starts and starts[-1].end else min(by_start, run.sign_of_life_s)


def _recent_mean(run: Run, key: str) -> tuple[float | None, float | None]:
    """Mean over the recent steps, and how far it is from the mean over as many steps before."""
    values = [float(record[key]) for record in run.steps if key in record]
    num_recent = min(RECENT, len(values) // 2 or 1)
    recent, before = values[-num_recent:], values[-2 * num_recent : -num_recent]
    if not recent:
        return None, None
    return fmean(recent), fmean(recent) - fmean(before) if before else None
