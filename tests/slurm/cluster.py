"""A real Slurm cluster on this machine for tests, and the commands for it."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "slurm" / "cluster.sh"
NUM_NODES, GPUS_PER_NODE = 16, 2
"""Nodes of the cluster, and GPUs of each."""
SIZE = ("--nodes=2", f"--gpus-per-node={GPUS_PER_NODE}")
"""Options for a job's size, in place of the launchers'. Eight jobs fit on the cluster at a time, and six wait for a
test."""
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL"}


@dataclass(frozen=True)
class Cluster:
    """A Slurm cluster whose files are in one folder; `cluster.sh` starts it."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """Returns the environment without what a developer's shell may have set for another cluster."""
        foreign = ("SLURM", "SBATCH", "RUN_DIR", "CONTAINER", "REWARD_", "MODULES", "PYTHON", "MAX_RESTARTS")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
        return {**kept, "SLURM_CONF": str(self.folder / "slurm.conf"), "SITE_ENV": "/dev/null"}

    def up(self) -> None:
        command = [str(SCRIPT), "up", str(self.folder), str(NUM_NODES), str(GPUS_PER_NODE)]
        # Not captured: the daemons would keep the pipe open for ever.
        with (self.folder / "up.log").open("w") as log:
            done = subprocess.run(command, stdout=log, stderr=log, check=False, timeout=300)
        assert done.returncode == 0, (self.folder / "up.log").read_text()

    def down(self) -> None:
        subprocess.run([str(SCRIPT), "down", str(self.folder)], check=True, timeout=120)

    def run(self, *command: str, cwd: Path = ROOT, **environment: str) -> str:
        """Runs a command, which must succeed, and returns its output."""
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def states(self, job: str) -> dict[str, str]:
        """Returns the fields of `scontrol show job`, such as JobState, Reason and Restarts."""
        words = self.run("scontrol", "show", "job", "--oneliner", job).split(" ")
        return dict(word.partition("=")[::2] for word in words if "=" in word)

    def wait(self, job: str, *, until: set[str] = ENDED, timeout_s: float = 400.0) -> dict[str, str]:
        """Waits until the job's state is one of these. A requeued job waits for two minutes; here two seconds do. If it
        restarted within the same second, Slurm would confuse its credential with the revoked one and fail the job."""
        limit, released = time.monotonic() + timeout_s, ""
        while (state := self.states(job))["JobState"] not in until:
            if time.monotonic() > limit:
                log = Path(state["StdOut"])
                raise AssertionError(
                    f"job {job} does not end: {state}\n{log.read_text() if log.exists() else ''}"
                )
            if state["Reason"] == "BeginTime" and state["Restarts"] != released:
                self.run("scontrol", "update", f"jobid={job}", "StartTime=now+2seconds")
                released = state["Restarts"]
            time.sleep(0.2)
        return state
