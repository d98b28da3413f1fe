"""What a job does in each event: pure functions from what was seen to a decision. docs/cluster.md has the same as a
table for users."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

GO_ON, WAIT, DONE, REQUEUE, FAIL, REFUSE, STOP = "go on", "wait", "done", "requeue", "fail", "refuse", "stop"
"""Kinds of decisions. FAIL marks the stage as failed; REFUSE ends the job and leaves the run's folder as it is; STOP:
Slurm ends the job."""

CHECKING, TRAINING, REQUEUED, STOPPED, ENDED = "checking", "training", "requeued", "stopped", "ended"
"""States of a job in RUN/slurm/job.json. Only ENDED gives up the folder: what Slurm stops, it may requeue."""

FOLDER_KEY = "exp_manager.explicit_log_dir"
EARLY_S = 90.0
"""Slurm sends the signal of `--signal` up to a minute before its time, and within this time after the start of a job
that is shorter than the signal's lead time."""
NO_RESTART_HELPS = (2, 78, 126, 127, 255)
"""Exit codes of a program that is missing, cannot be executed or refuses its arguments; 2 is also srun's for a task
that it cannot start, 255 apptainer's, 78 that of rank.sh for a folder that cannot be used."""


class Mistake(Exception):
    """The user has written something that no job can run with; says what, where, and what to write instead."""


@dataclass(frozen=True)
class JobDecision:
    """What to do next, and why in words for the job's log.

    Example: JobDecision(REQUEUE, "doctor found fault with node7", bad_nodes=("node7",))
    """

    what: str
    why: str = ""
    bad_nodes: Sequence[str] = ()
    """Nodes to leave out of the next start."""


@dataclass(frozen=True)
class Holder:
    """A job, or a process outside of Slurm, that has said in the run's folder that it trains there."""

    job: str
    """Id of the job; empty outside of Slurm."""
    cluster: str = ""
    user: str = ""
    host: str = ""
    is_alive: bool = False
    """Whether it certainly holds the lock RUN/lock, or did until its node crashed."""

    def __str__(self) -> str:
        return f"job {self.job}" if self.job else f"a process on {self.host or 'another machine'}"

    def is_of(self, other: Holder) -> bool:
        """Returns whether both are of the same user on the same cluster, as far as both are known."""
        known = ((self.cluster, other.cluster), (self.user, other.user))
        return all(mine == theirs or not (mine and theirs) for mine, theirs in known)


@dataclass(frozen=True)
class Answer:
    """What `doctor` says of a node."""

    verdict: str
    """The value "ok", "failure" (of the node) or "mistake" (of the user)."""
    sentence: str = ""


@dataclass(frozen=True)
class StepEnd:
    """The end of a job step: srun's exit code, and the last line that the step or srun has written on stderr."""

    code: int
    last_words: str = ""


def read_arguments(
    arguments: Sequence[str], environment: Mapping[str, str], default: str = "runs/prorl"
) -> tuple[str, list[str]]:
    """Returns the run's folder and the overrides without it. Raises Mistake for what the trainer would read otherwise
    than the launcher, or than `submit`."""
    run_dir, others = environment.get("RUN_DIR", ""), []
    for text in arguments:
        name, has_value, value = text.partition("=")
        key = name.strip().lstrip("+~").strip()
        if key in ("stage", "stage.name"):
            raise Mistake(f"{text}: a launcher trains its own stage; submit another one")
        if key not in (FOLDER_KEY, "exp_manager"):
            others.append(text)
            continue
        if name.strip() != FOLDER_KEY or not has_value:
            raise Mistake(
                f"{text}: a launcher reads the run's folder only as {FOLDER_KEY}=FOLDER; write that"
            )
        if not value.strip() or re.search(r"[\"'$\n]", value):
            raise Mistake(f"{text}: write a folder that needs no quotation marks and no variables")
        run_dir = value.strip()
    if not run_dir and any(text.startswith("--config-name") for text in arguments):
        raise Mistake(
            f"--config-name may name another run folder than {default}: write {FOLDER_KEY}=FOLDER too"
        )
    return run_dir or default, others


def read_number(environment: Mapping[str, str], name: str, default: int) -> int:
    """Returns a variable of site.env that is a whole number. Raises Mistake."""
    text = environment.get(name, "") or str(default)
    if not text.isdigit():
        raise Mistake(
            f"{name}={text} is not a whole number: write {name}={default}, for example, in site.env"
        )
    return int(text)


def may_take_folder(me: Holder, holder: Holder, state: str | None, run_dir: str) -> JobDecision:
    """Returns whether `me` may take the folder from a `holder` that has not said that it has ended. state: what squeue
    says of the holder's job, empty if it lists none; None if squeue does not answer."""
    or_else = f"or write another {FOLDER_KEY}"
    if not holder.job:
        how = "wait for its end" if holder.is_alive else f"remove {run_dir}/lock if that has ended"
        return JobDecision(REFUSE, f"{holder} trains in {run_dir}: {how}, {or_else}")
    if holder.job == me.job and holder.is_of(me):
        return JobDecision(GO_ON)  # an earlier start of this job
    if state is None:
        why = f"squeue does not answer, and {holder} may still train in {run_dir}: submit again when it does"
        return JobDecision(REFUSE, why)
    if holder.is_of(me):
        if not state:
            return JobDecision(GO_ON)
        if state == "COMPLETING":
            return JobDecision(WAIT, f"{holder} is ending in {run_dir}")
        does = "waits in the queue to go on" if state == "PENDING" else "trains"
        return JobDecision(
            REFUSE, f"{holder} {does} in {run_dir}: wait for its end, `scancel {holder.job}`, {or_else}"
        )
    whose = f"of {holder.user or 'somebody'} on {holder.cluster or 'this cluster'}"  # squeue may hide it
    why = f"{holder} {whose} trains in {run_dir}: wait for its end, remove {run_dir}/slurm/job.json and {run_dir}/lock"
    return JobDecision(REFUSE, f"{why} if it has ended, {or_else}")


def at_fault(nodes: Sequence[str], answers: Mapping[str, Answer]) -> list[str]:
    """Returns the nodes that did not answer, or whose answer is not ok."""
    return [node for node in nodes if node not in answers or answers[node].verdict != "ok"]


def choose_nodes(
    nodes: Sequence[str],
    answers: Mapping[str, Answer],
    step: StepEnd,
    unwritable: str = "",
    pinned: Sequence[str] = (),
) -> JobDecision:
    """Returns what follows from the nodes' answers. A fault of most nodes is the configuration's or the cluster's,
    which other nodes would have too. The exit code counts only if no node has answered, because on any node anything
    may end with 2. unwritable: why the run's folder, where nodes answer, cannot be written; no node is at fault then.
    pinned: the nodes of --nodelist, without which the job would never start."""
    first = answers.get(nodes[0])
    if first is not None and first.verdict == "mistake":
        return JobDecision(FAIL, first.sentence)
    if first is not None and "EADDRINUSE" in first.sentence:
        return JobDecision(REQUEUE, f"{nodes[0]}: {first.sentence}")
    silent = [node for node in nodes if node not in answers]
    bad = at_fault(nodes, answers)
    if bad and unwritable:
        return JobDecision(REFUSE, unwritable)
    if len(silent) == len(nodes):
        what = f"doctor ended with code {step.code} and without an answer"
        words = f": {step.last_words}" if step.last_words else ""
        return JobDecision(REQUEUE if _may_pass(step) else FAIL, f"{what} on any node{words}")
    if 2 * len(bad) > len(nodes):
        said = [answers[node].sentence for node in bad if node in answers]
        words = (
            said[0] if said else f"they did not answer{f' ({step.last_words})' if step.last_words else ''}"
        )
        return JobDecision(FAIL, f"{len(bad)} of {len(nodes)} nodes cannot run this: {words}")
    if needed := [node for node in bad if node in pinned]:
        fault = answers[needed[0]].sentence if needed[0] in answers else "did not answer"
        return JobDecision(FAIL, f"{needed[0]}: {fault}; --nodelist asks for it: submit without it")
    if bad:
        return JobDecision(REQUEUE, f"doctor found fault with {' '.join(bad)}", bad)
    return JobDecision(GO_ON)


_PASSING = re.compile(
    r"srun: .*(timed out|[Cc]ommunicat|busy|credential|not responding|[Nn]ode failure|CANCELLED)"
)
"""Errors of Slurm itself that another start may not have."""


def _may_pass(step: StepEnd) -> bool:
    """Returns whether a step that no node answered may do better in another start: it was killed or has hung, or Slurm
    could not start it at that moment. What ends by itself ends so again."""
    was_killed = step.code == 0 or (step.code > 128 and step.code not in NO_RESTART_HELPS)
    return was_killed or _PASSING.search(step.last_words) is not None


def may_use_servers(num_ready: int, codes: Sequence[int | None]) -> JobDecision:
    """Returns whether training can start with the reward servers that are ready. codes: exit code of each node's
    server; None while it runs."""
    if num_ready:
        return JobDecision(GO_ON)
    never = all(code in NO_RESTART_HELPS for code in codes)
    return JobDecision(
        FAIL if never else REQUEUE, "no reward server starts" if never else "no reward service"
    )


def may_grade_code(domains: str, announcements: Sequence[Mapping[str, str]]) -> JobDecision:
    """Returns whether the servers can grade the data. domains: those of the data, one a line."""
    has_code = "code" in domains.split()
    if has_code and all(server.get("sandbox") == "none" for server in announcements):
        return JobDecision(FAIL, "the data has code, and no reward server has a sandbox for it")
    return JobDecision(GO_ON)


def lead_time_s(script: str, sbatch_signal: str) -> float:
    """Returns how long before the end Slurm sends SIGUSR1, as a launcher's #SBATCH lines or SBATCH_SIGNAL say; 0 if
    they do not. That of sbatch's command line is in neither."""
    written = re.findall(r"^#SBATCH\s+--signal[= ](\S+)", script, re.MULTILINE)
    _, _, seconds = (sbatch_signal or (written[-1] if written else "")).partition("@")
    return float(seconds) if seconds.isdigit() else 60.0 if sbatch_signal or written else 0.0


def heeded_from(start_s: float, end_s: float | None, lead_s: float) -> float:
    """Returns the time from which SIGUSR1 asks for a pause, in seconds since 1970; 0: always.

    If a job is shorter than the lead time, Slurm sends the signal at its start. Heeding it would make every start
    of the job a single step; the trainer knows the job's end, and pauses in time without it.
    """
    return start_s + EARLY_S if end_s is not None and end_s - start_s <= lead_s + EARLY_S else 0.0


def after_signal(came_s: float | None, heeded_from_s: float) -> JobDecision:
    """Returns what becomes of a SIGUSR1 that came at `came_s`, before the trainer could take it; None: none came."""
    if came_s is None or came_s < heeded_from_s:
        return JobDecision(GO_ON)
    return JobDecision(REQUEUE, "SIGUSR1 came before training: paused")


def why_stopped(*, now_s: float, began_s: float, end_s: float | None, has_new_step: bool) -> str:
    """Returns why Slurm would stop the same submission again; empty if it may go on. Times are in seconds since 1970;
    end_s: the job's time limit."""
    if end_s is None or now_s < end_s - 1 or has_new_step:
        return ""
    return f"no step was saved in the {end_s - began_s:.0f} s that the job had: raise --time"


def after_training(*, is_done: bool, failure: str, code: int, error: str = "") -> JobDecision:
    """Returns what follows the end of the trainer, which has written markers or not; exit codes decide nothing that a
    marker says. failure: the reason in NAME.failed; error: what the trainer has recorded as its end."""
    if is_done:
        return JobDecision(DONE)
    if failure:
        return JobDecision(FAIL, failure)
    why = f"ended with code {code}{f' ({error})' if error else ''}"
    return JobDecision(REQUEUE, "paused" if code == 0 else why)


def may_restart(
    decision: JobDecision, *, step: int, first_step: int, num_idle: int, max_restarts: int
) -> JobDecision:
    """Returns REQUEUE, or FAIL after too many starts in a row without a new checkpoint. num_idle: how many there were,
    with this one if it made none."""
    if step > first_step or num_idle <= max_restarts:
        why = f"{decision.why} at step {step}; the job goes back to the queue and continues from there"
        return JobDecision(REQUEUE, why, decision.bad_nodes)
    why = f"MAX_RESTARTS={max_restarts} restarts in a row had brought no new checkpoint"
    return JobDecision(FAIL, f"{decision.why} at step {step}, and {why}")


def after_refused_requeue(state: str, restarts: int, start: int, words: str) -> JobDecision:
    """Returns what a refusal of `scontrol requeue` means. state, restarts: of this job, from `scontrol show job`;
    start: the number of its restarts when this start began."""
    if restarts > start or state in ("PENDING", "COMPLETING"):
        return JobDecision(REQUEUE, "Slurm has requeued the job already")
    reason = f" ({words})" if words else ""
    return JobDecision(
        REFUSE, f"Slurm refuses to requeue the job{reason}: submit the launcher again to continue"
    )
