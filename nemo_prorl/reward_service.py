"""The reward service as a child process, for runs on one machine. On a cluster it is a job step of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nemo_prorl.config import ConfigError, RewardConfig
from reward.client import CannotGrade, RewardClient
from reward.known_server import never_grades
from reward.protocol import DOMAINS


class RewardServiceNotStarted(RuntimeError):
    """The service ended, or did not get ready in time; the message carries what it printed last."""


class RewardServiceEnded(RuntimeError):
    """A service that was up has ended by itself; the message carries what it printed last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardService:
    """A child process that is ready."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        """Raises RewardServiceEnded once it is gone."""
        if self.process.poll() is not None:
            raise RewardServiceEnded(
                f"the reward service of this run ended with code {self.process.returncode} ({self.log}): "
                f"{_last_lines(self.log)}"
            )


@contextmanager
def reward_service(config: RewardConfig, log_dir: Path) -> Iterator[str]:
    """`running_service` for those who need no more than its URL."""
    with running_service(config, log_dir) as service:
        yield service.url


@contextmanager
def running_service(config: RewardConfig, log_dir: Path) -> Iterator[RewardService]:
    """Starts `python -m reward serve` in its own environment, and stops it at the end.

    What it prints goes to `log_dir`/reward_service.log. It ends with this process, however this process ends.
    """
    python = Path(config.python)
    if not python.exists():
        raise ConfigError(
            f"reward.python={python} does not exist: run `make setup`, or write reward.urls=[http://…] of a "
            "running service."
        )
    log_dir.mkdir(parents=True, exist_ok=True)
    log = log_dir / "reward_service.log"
    with tempfile.TemporaryDirectory(prefix="reward-") as folder, log.open("ab") as output:
        ready = Path(folder) / "ready.json"
        command = [str(python), "-m", "reward", "serve", "--ready-file", str(ready)]
        command += ["--exit-with-parent", str(os.getpid())]
        with _blocked_in_children(signal.SIGUSR1):  # Slurm sends it to every process of a job
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_environment(),
                process_group=0,  # a Ctrl-C is for the run alone, which still has a step to finish
            )
        try:
            url = _wait_for_url(process, ready, log, config.ready_timeout_s)
            yield RewardService(url=url, process=process, log=log)
        finally:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def ready_client(
    config: RewardConfig, urls: Sequence[str], domains: Collection[str] = ()
) -> Iterator[RewardClient]:
    """Of the service at `urls`, or in reward.discovery_dir; closed at the end. Raises RewardServiceError when nothing
    is ready in time, and ConfigError when no server can grade all of `domains`."""
    client = RewardClient(
        urls=urls,
        discovery_dir=Path(config.discovery_dir) if config.discovery_dir else None,
        token_file=Path(config.token_file) if config.token_file else None,
        request_timeout_s=config.request_timeout_s,
        max_attempts=config.max_attempts,
        domains=domains,
    )
    try:
        try:
            client.wait_until_ready(config.ready_timeout_s)
        except CannotGrade as error:
            raise ConfigError(f"{error}: {_what_to_do(str(error), domains)}.") from None
        yield client
    finally:
        client.close()


def _what_to_do(error: str, domains: Collection[str]) -> str:
    """When no server can grade all `domains`, and `error` says why: the end of the sentence."""
    unknown = [name for name in domains if re.search(rf"{re.escape(never_grades(name, None, ''))}\b", error)]
    if foreign := sorted(set(unknown) - set(DOMAINS)):
        return (
            f"the service has no grader of its own for {', '.join(foreign)}, so install the grader plug-in into the "
            "service's environment, or correct the column `domain`"
        )
    return (
        "serve on machines that can (`python -m nemo_prorl doctor` says what one lacks), or take such rows out of the "
        "data"
    )


def _wait_for_url(process: subprocess.Popen[bytes], ready: Path, log: Path, timeout_s: float) -> str:
    deadline = time.monotonic() + timeout_s
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            why = (
                f"ended with code {process.returncode}"
                if process.poll() is not None
                else f"not ready in {timeout_s:g} s"
            )
            raise RewardServiceNotStarted(
                f"the reward service did not start ({why}; {log}): {_last_lines(log)}"
            )
        time.sleep(0.05)
    return str(json.loads(ready.read_text(encoding="utf-8"))["url"])


def _last_lines(log: Path) -> str:
    return " / ".join(log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:])


@contextmanager
def _blocked_in_children(number: signal.Signals) -> Iterator[None]:
    """Processes that start in the body inherit the mask; for this one the signal is only late."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _environment() -> dict[str, str]:
    """Ours, without what vLLM and torchrun leave in it: preloaded libraries have no place in the service."""
    dropped = {"LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH"}
    return {key: value for key, value in os.environ.items() if key not in dropped}
