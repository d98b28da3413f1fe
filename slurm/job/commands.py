"""Calls of Slurm's commands."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from slurm.job.decisions import StepEnd

ANSWER_S = 60.0
"""Time limit of a command that asks Slurm."""
NUM_ASKED, PAUSE_S = 6, 10.0
"""How often Slurm is asked before it counts as not answering, and seconds between."""
_UNKNOWN = "Invalid job id"
"""What Slurm says of an old job, which it has forgotten."""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of Slurm. A missing command or one that hangs has the exit code 127."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))


def ask(*command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command that asks Slurm, several times until there is an answer."""
    for attempt in range(NUM_ASKED):
        time.sleep(PAUSE_S if attempt else 0.0)
        answer = run(*command)
        if answer.returncode == 0 or _UNKNOWN in answer.stderr:
            break
    return answer


def fields_of(*what: str) -> dict[str, str]:
    """Returns the fields of `scontrol show WHAT`, such as JobState and Restarts; none if Slurm does not answer."""
    words = run("scontrol", "show", "--oneliner", *what).stdout.split()
    return dict(word.split("=", 1) for word in words if "=" in word)


def host_names(nodes: str) -> list[str]:
    """Returns the names in a list of nodes such as gpu[01-03],cpu7."""
    return run("scontrol", "show", "hostnames", nodes).stdout.split()


def state_of(job: str) -> str | None:
    """Returns squeue's name of a job's state, empty if it waits or runs no more; None if squeue does not answer."""
    answer = ask("squeue", "--noheader", f"--job={job}", "--format=%A %T")
    if answer.returncode and _UNKNOWN not in answer.stderr:
        return None
    # The id of an array's last task is that of the whole array.
    return dict(line.split() for line in answer.stdout.splitlines()).get(job, "")


def end_of(job: str) -> float | None:
    """Returns when a job ends, in seconds since 1970; None if it has no limit or Slurm does not say."""
    text = os.environ.get("SLURM_JOB_END_TIME", "")
    if text.isdigit():
        return float(text)
    text = fields_of("job", job).get("EndTime", "")
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None


def free_port(choices: Sequence[int]) -> int:
    """Returns the first of the ports on which no program of this machine listens; the first of all if each is used, or
    if no port can be tried."""
    has_both = socket.has_dualstack_ipv6()  # of the kernel; socket.has_ipv6 is of Python
    family = socket.AF_INET6 if has_both else socket.AF_INET
    for port in choices:
        with suppress(OSError), socket.create_server(("", port), family=family, dualstack_ipv6=has_both):
            return port
    return choices[0]


_NO_WORDS = re.compile(
    r"srun: (error: \S+ tasks? .*: (Exited|Terminated|Killed)|Terminating|Job step|launch/)"
    r'|Try "srun|slurmstepd.* \*\*\*'
)
"""Lines of srun that say only that a task has ended."""


class Step:
    """A running job step. With `reads_errors`, remembers the last line of its standard error, which goes to the log as
    well."""

    def __init__(self, command: Sequence[str], *, log: str | None = None, reads_errors: bool = False) -> None:
        self._words: deque[str] = deque(maxlen=1)
        self._reader: threading.Thread | None = None
        errors = subprocess.PIPE if reads_errors else open(log, "ab") if log else None  # noqa: SIM115
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=errors)
        finally:
            if log and errors is not None and not isinstance(errors, int):
                errors.close()
        if reads_errors:
            self._reader = threading.Thread(target=self._forward, daemon=True)
            self._reader.start()

    def _forward(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            text = line.decode(errors="replace").strip()
            if text and not _NO_WORDS.match(text):
                self._words.append(text)
            try:
                os.write(2, line)
            except OSError:
                continue

    @property
    def code(self) -> int | None:
        """srun's exit code, as a shell's; None while it runs."""
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def end(self) -> StepEnd:
        self._process.wait()
        if self._reader is not None:
            self._reader.join(timeout=5)
        return StepEnd(code=self.code or 0, last_words=self._words[-1] if self._words else "")

    def send(self, number: int) -> None:
        self._process.send_signal(number)
