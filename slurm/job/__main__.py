"""Starts or continues a stage and trains it as long as the job's time allows.

Ranks are tasks of srun, one per GPU, without torchrun: Slurm starts and labels them, ends all when one fails, and sends
SIGUSR1 (#SBATCH --signal) to each of them, which would kill torchrun before its ranks have saved. What happens next is
decided by files in RUN/stages (NAME.done, NAME.failed), not by exit codes (docs/cluster.md). Nothing is read from conf/
here, because an override may change it: `doctor` and `train` compose the same configuration.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from slurm.job import allocation, commands, decisions
from slurm.job.commands import Step
from slurm.job.decisions import (
    FAIL,
    GO_ON,
    NO_RESTART_HELPS,
    REFUSE,
    REQUEUE,
    STOP,
    WAIT,
    Answer,
    Holder,
    JobDecision,
    Mistake,
)
from slurm.job.folder import Folder, cannot_write, read_text, say

POLL_S = 0.5
LATE_S = 30.0
"""How late a shared file system may show what another node has written or made."""
WAIT_FOR_HOLDER_S = 600.0
"""Time limit for another job of the folder to end, once Slurm is ending it."""
DOCTOR_MINUTES = 10
REVIVE_S = 30.0
"""Reward steps that have ended are started again at most this often."""


class End(Exception):
    """The job ends, or goes back to the queue, for the reason in a decision."""

    def __init__(self, decision: JobDecision) -> None:
        super().__init__(decision.why)
        self.decision = decision


def end_if_refused(decision: JobDecision) -> None:
    """Raises End for every decision but GO_ON."""
    if decision.what != GO_ON:
        raise End(decision)


class JobStart:
    """One start of a stage's job."""

    def __init__(self, stage: str, arguments: Sequence[str]) -> None:
        environment = os.environ
        self.stage, self.began_s, self.say = stage, time.time(), partial(say, stage)
        run_dir, others = decisions.read_arguments(arguments, environment)
        self.max_restarts = decisions.read_number(environment, "MAX_RESTARTS", 3)
        self.ready_s = decisions.read_number(environment, "REWARD_READY_S", 180)
        decisions.read_number(environment, "REWARD_WORKERS", 0)
        runtime = environment.get("CONTAINER_RUNTIME") or "pyxis"
        if runtime not in ("pyxis", "apptainer"):
            raise Mistake(f"CONTAINER_RUNTIME={runtime} is not known: write pyxis or apptainer in site.env")
        nodes = commands.host_names(environment["SLURM_JOB_NODELIST"])
        shown = commands.ask("scontrol", "show", "--details", "job", allocation.name_of(environment))
        self.allocation = allocation.read_allocation(environment, nodes, shown.stdout)
        self.folder = Folder(run_dir, stage, self.allocation.job)
        self.overrides = allocation.overrides(stage, run_dir, str(self.folder.reward), others)
        self.checkout = (
            os.environ.get("PWD", "") if os.path.samefile(os.environ.get("PWD", "."), ".") else os.getcwd()
        )
        self.first_step = self.folder.newest_step()
        self.heeded_from_s = 0.0
        self.end_s: float | None = None
        self.signals: set[int] = set()
        self.is_ending = False
        """Whether Slurm has told this process to end."""
        self.servers: dict[str, Step] = {}
        """Node -> the step of its reward server."""
        self.revived_s = 0.0
        self.trainer: Step | None = None

    def run(self) -> int:
        """Does all of it and returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda number, _frame: self.signals.add(number))
        try:
            if self.folder.marker("done").exists():
                raise End(JobDecision(decisions.DONE, "is done already"))
            self.take_folder()
            self.prepare()
            self.check_nodes()
            self.take_folder(again=True)
            self.start_reward_service()
            end_if_refused(decisions.after_signal(self.folder.usr1_came_s(), self.heeded_from_s))
            raise End(self.train())
        except End as end:
            return self.finish(end.decision)
        except Exception as error:  # of this program; the traceback follows
            self.folder.note_state(decisions.ENDED, f"the launcher failed: {error!r}")
            raise

    # ------------------------------------------------------------------------------------------------- the beginning
    def take_folder(self, again: bool = False) -> None:
        """Claims the run's folder, or ends before anything is written there if another job has it. `again`: looks
        whether another job has claimed it at the same moment."""
        mine = Holder(
            job=self.allocation.job,
            cluster=os.environ.get("SLURM_CLUSTER_NAME", ""),
            user=os.environ.get("SLURM_JOB_USER", ""),
            host=self.allocation.nodes[0],
        )
        for holder in self.folder.holders():
            limit_s = time.time() + WAIT_FOR_HOLDER_S
            while True:
                state = commands.state_of(holder.job) if holder.job not in ("", mine.job) else ""
                decision = decisions.may_take_folder(mine, holder, state, str(self.folder.path))
                if decision.what != WAIT or time.time() > limit_s:
                    break
                self.pause(5 * POLL_S)
            end_if_refused(JobDecision(REFUSE, decision.why) if decision.what == WAIT else decision)
        if again:
            return
        record = {"job_id": mine.job, "stage": self.stage, "start": self.allocation.start + 1}
        record |= {"cluster": mine.cluster, "user": mine.user, "host": mine.host}
        try:
            self.folder.hold({**record, "state": decisions.CHECKING, "reason": ""})
        except OSError as error:
            raise End(JobDecision(REFUSE, cannot_write(self.folder.path, error))) from None

    def prepare(self) -> None:
        """Says what the job is, and sets the variables that every step inherits."""
        self.say(f"{self.allocation}, from step {self.first_step}")
        self.end_s = end_s = commands.end_of(self.allocation.name)
        lead_s = decisions.lead_time_s(
            read_text(Path(os.environ.get("JOB_SCRIPT", ""))), os.environ.get("SBATCH_SIGNAL", "")
        )
        self.heeded_from_s = decisions.heeded_from(self.began_s, end_s, lead_s)
        if self.heeded_from_s and end_s is not None:
            left = f"{end_s - self.began_s:.0f} s, no more than the {lead_s:.0f} s of --signal"
            self.say(f"the job has {left}: it pauses before its end without that signal, after a step")
        node = commands.fields_of("node", self.allocation.nodes[0])
        made = allocation.rank_environment(
            os.environ,
            self.allocation,
            address=node.get("NodeAddr", self.allocation.nodes[0]),
            port=commands.free_port(allocation.ports(self.allocation.job)),
            end_s=end_s,
            heeded_from_s=self.heeded_from_s,
            nccl_log=os.path.realpath(self.folder.nccl),
            user_id=os.getuid(),
        )
        if "NCCL_DEBUG_FILE" in made:
            with suppress(OSError):
                self.folder.prepare_nccl_log()
        os.environ.update(made)
        os.environ["USR1_FOLDER"] = str(self.folder.doctor)

    # ---------------------------------------------------------------------------------------------------------- steps
    def step(
        self, image: str, name: str, options: Sequence[str], command: Sequence[str], **streams: object
    ) -> Step:
        """Starts a job step in the container that the variable `image` of site.env names, if it does."""
        all_options = [f"--job-name={name}", *self.allocation.gpu_options, *options]
        words = allocation.step_command(
            os.environ.get(image, ""), all_options, command, os.environ, self.checkout
        )
        return Step(words, **streams)  # type: ignore[arg-type]

    def pause(self, seconds: float = POLL_S) -> None:
        """Waits, and heeds the signals that have come."""
        time.sleep(seconds)
        if signal.SIGUSR1 in self.signals:  # --signal=B:USR1 sends it to this process only
            self.signals.remove(signal.SIGUSR1)
            commands.run("scancel", "--signal=USR1", self.allocation.name)
        if signal.SIGTERM in self.signals:
            self.folder.close_service()
            self.folder.note_state(decisions.STOPPED, self.why_stopped())
            if self.trainer:  # `scancel --batch` sends SIGTERM to this process only; srun passes SIGUSR1 on
                self.trainer.send(signal.SIGUSR1)
            self.signals.remove(signal.SIGTERM)
            self.is_ending = True

    def why_stopped(self) -> str:
        has_new_step = self.folder.newest_step() > self.first_step
        return decisions.why_stopped(
            now_s=time.time(), began_s=self.began_s, end_s=self.end_s, has_new_step=has_new_step
        )

    def wait(self, step: Step) -> decisions.StepEnd:
        """Waits for a step. Raises End if Slurm ends the job meanwhile, and the stage is not done."""
        while step.code is None:
            self.pause()
        end = step.end()
        self.pause(0)
        if self.is_ending and not self.folder.marker("done").exists():
            raise End(JobDecision(STOP, self.why_stopped()))
        return end

    # ---------------------------------------------------------------------------------------------------------- nodes
    def check_nodes(self) -> None:
        """Runs `doctor` on every node; returns only if all of them suit this run."""
        nodes, folder = self.allocation.nodes, self.folder.doctor
        each = [f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1"]
        each += ["--kill-on-bad-exit=0", f"--cpus-per-task={min(self.allocation.cpus)}", "--mpi=none"]
        each += [f"--time={DOCTOR_MINUTES}"]
        given = ["--folder", str(folder), "--nodes", ",".join(nodes), "--reward-elsewhere"]
        allowed = [
            word for check in os.environ.get("DOCTOR_ALLOW", "").split() for word in ("--allow", check)
        ]
        # The graders may have a container of their own, so their check is a step of its own beside doctor.
        check_reward = ["bash", "slurm/check_reward.sh", str(folder)]
        sandbox = self.step("REWARD_CONTAINER", "sandbox", each, check_reward, reads_errors=True)
        run_doctor = ["bash", "slurm/rank.sh", "doctor", *given, *allowed, *self.overrides]
        doctor = self.step("CONTAINER", "doctor", each, run_doctor, reads_errors=True)
        while sandbox.code is None and doctor.code is None:
            self.pause()
        if sandbox.code:
            words = sandbox.end().last_words or f"the step ended with code {sandbox.code}"
            for node in nodes:
                if not (folder / f"{node}.reward").exists():
                    self.folder.write(folder / f"{node}.reward", words)
        end = self.wait(doctor)
        self.wait(sandbox)
        limit_s = time.time() + LATE_S
        while len(answers := self.folder.answers(nodes)) < len(nodes) and time.time() < limit_s:
            if not answers and end.code:
                break  # none has come so far as to write one
            self.pause()
        bad = decisions.at_fault(nodes, answers)
        unwritable, pinned = "", list[str]()
        if bad:
            unwritable = self.folder.unwritable()
            job = commands.fields_of("job", self.allocation.name)
            pinned = commands.host_names(job.get("ReqNodeList", ""))
        decision = decisions.choose_nodes(nodes, answers, end, unwritable, pinned)
        silent = Answer("failure", f"did not answer{f' ({end.last_words})' if end.last_words else ''}")
        for node in bad if answers and decision.what != REFUSE else ():
            self.say(f"{node}: {answers.get(node, silent).sentence}")
        end_if_refused(decision)

    # ------------------------------------------------------------------------------------------------ reward service
    def serve(self, node: str) -> Step:
        """Starts the reward server of a node."""
        log = str(self.folder.reward / f"{node}.log")
        cpus = self.allocation.cpus[self.allocation.nodes.index(node)]
        address = commands.fields_of("node", node).get("NodeAddr", node)
        options = ["--nodes=1", "--ntasks=1", f"--nodelist={node}", f"--cpus-per-task={cpus}"]
        options += ["--open-mode=append", f"--output={log}"]
        command = ["bash", "slurm/reward.sh", str(self.folder.reward), address]
        return self.step("REWARD_CONTAINER", "reward", options, command, log=log)

    def revive_servers(self) -> None:
        """Starts reward steps again that were killed as a whole, for their memory for example; while a step is there,
        reward.sh does that with its server."""
        dead = [node for node, step in self.servers.items() if step.code not in (None, *NO_RESTART_HELPS)]
        if not dead or self.is_ending or time.time() - self.revived_s < REVIVE_S:
            return
        self.revived_s = time.time()
        for node in dead:
            self.say(
                f"{node}: the reward service, which ended with code {self.servers[node].code}, starts again"
            )
            with suppress(OSError):
                (self.folder.reward / f"{node}.json").unlink()
            self.servers[node] = self.serve(node)

    def start_reward_service(self) -> None:
        """Starts one server per node, beside the trainer, and waits for them; not if the run's own functions grade all
        of the data."""
        if self.folder.domains() == "":
            return
        nodes, folder = self.allocation.nodes, self.folder.reward
        self.servers = {node: self.serve(node) for node in nodes}
        limit_s, announced = time.time() + self.ready_s, self.folder.announcements()
        while len(announced) < len(nodes) and time.time() < limit_s:
            if all(server.code is not None for server in self.servers.values()):
                break
            self.pause()
            announced = self.folder.announcements()
        if len(announced) < len(nodes):
            self.say(
                f"the reward service is ready on {len(announced)} of {len(nodes)} nodes; each server's log:"
            )
            for node in nodes:
                last = read_text(folder / f"{node}.log").splitlines()[-3:]
                self.say(f"{node}: " + " | ".join(last or ["nothing"]))
        codes = [server.code for server in self.servers.values()]
        end_if_refused(decisions.may_use_servers(len(announced), codes))
        sandboxes = decisions.may_grade_code(self.folder.domains() or "", announced)
        end_if_refused(JobDecision(sandboxes.what, f"{sandboxes.why} ({folder}/NODE.log says why)"))

    # -------------------------------------------------------------------------------------------------------- trainer
    def train(self) -> JobDecision:
        self.folder.note_state(decisions.TRAINING)
        # Another program may have taken the port since doctor used it.
        os.environ["MASTER_PORT"] = str(commands.free_port(allocation.ports(self.allocation.job)))
        sizes = self.allocation
        # block:block puts neighbouring ranks, and so neighbouring GPUs, on one socket. Each rank sees all GPUs of the
        # job on its node. --gpu-bind=none would also show those of other jobs on clusters without cgroups for devices.
        options = [f"--nodes={len(sizes.nodes)}", f"--ntasks={sizes.world_size}"]
        options += [f"--ntasks-per-node={sizes.ranks_per_node}", f"--cpus-per-task={sizes.cpus_per_rank}"]
        options += ["--mpi=none", "--label", "--kill-on-bad-exit=1", "--distribution=block:block"]
        self.trainer = trainer = self.step(
            "CONTAINER", "train", options, ["bash", "slurm/rank.sh", "train", *self.overrides]
        )
        seen_s = time.time()
        while trainer.code is None:
            self.pause()
            self.revive_servers()
            seen_s = time.time() if self.folder.is_there() else seen_s
            if time.time() - seen_s > LATE_S:
                trainer.send(signal.SIGTERM)  # srun kills the ranks
                trainer.end()
                return JobDecision(FAIL, f"{self.folder.path} was deleted while the job trained in it")
        end = self.wait(trainer)
        is_done = self.folder.marker("done").exists()
        error = self.folder.error_of_trainer(since_s=self.began_s)
        return decisions.after_training(
            is_done=is_done, failure=self.folder.failure(), code=end.code, error=error
        )

    # -------------------------------------------------------------------------------------------------------- the end
    def finish(self, decision: JobDecision) -> int:
        """Ends the job as decided and returns its exit code. Only files of this job are touched, and those of the stage
        only if the job holds the folder."""
        self.folder.close_service()
        self.folder.forget_token()
        if decision.what == REQUEUE:
            step = self.folder.newest_step()
            decision = decisions.may_restart(
                decision,
                step=step,
                first_step=self.first_step,
                num_idle=self.folder.count_idle(step, self.first_step),
                max_restarts=self.max_restarts,
            )
        if decision.what == REQUEUE:
            return self.requeue(decision)
        if decision.what == FAIL:
            self.say(f"failed: {decision.why}")
            if not self.folder.failure():
                self.folder.mark_failed(decision.why)
        elif decision.what == STOP:
            self.say(f"Slurm ends the job{decision.why and ': ' + decision.why}")
            self.folder.note_state(decisions.STOPPED, decision.why)
            return 143
        else:
            self.say(decision.why or "done")
        self.folder.note_state(decisions.ENDED, decision.why or "done")
        return 0 if decision.what == decisions.DONE else 1

    def requeue(self, decision: JobDecision) -> int:
        """Gives the job back to the queue, without the bad nodes."""
        self.say(decision.why)
        # The requeue's would end this process before leave_out.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.folder.note_state(decisions.REQUEUED, decision.why)
        job = self.allocation.name
        done = commands.run("scontrol", "requeue", job)
        if done.returncode:
            now = commands.fields_of("job", job)
            restarts = int(now.get("Restarts", "0"))
            words = done.stderr.strip()
            decision_now = decisions.after_refused_requeue(
                now.get("JobState", ""), restarts, self.allocation.start, words
            )
            self.say(decision_now.why)
            if decision_now.what == REFUSE:
                self.folder.note_state(decisions.ENDED, decision_now.why)
                return 1
        if decision.bad_nodes:
            self.leave_out(decision.bad_nodes)
        return 0

    def leave_out(self, nodes: Sequence[str]) -> None:
        """Excludes nodes from the next start of this job, which is in the queue again: Slurm changes only a job that
        waits."""
        self.folder.note_excluded(nodes)
        job, names = self.allocation.name, ",".join(nodes)
        known = commands.fields_of("job", job).get("ExcNodeList", "(null)")
        all_names = names if known == "(null)" else f"{known},{names}"
        if commands.run("scontrol", "update", f"JobId={job}", f"ExcNodeList={all_names}").returncode:
            self.say(f"Slurm does not exclude {names}: submit the launcher again with --exclude={names}")


def main(arguments: Sequence[str]) -> int:
    """Trains a stage and returns the job's exit code."""
    stage, *others = arguments
    try:
        return JobStart(stage, others).run()
    except Mistake as mistake:
        say(stage, f"error: {mistake}")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
