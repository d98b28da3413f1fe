"""The trainer's side of the reward service: its clients on all ranks and, for runs on one machine, the service itself
as a child process. On a cluster the service is a job step of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_prorl.config import SERVICE, ConfigError, RewardConfig
from nemo_prorl.data.rows import Row, RowFile
from nemo_prorl.run_folder import terminal
from reward.__main__ import why_no_graders
from reward.client import CannotGrade, RewardClient, RewardServiceError
from reward.graders import grader, registry
from reward.graders.grade import InvalidTask
from reward.graders.plugins import PluginError
from reward.protocol import DOMAINS, ScoreRequest, ScoreResult

if TYPE_CHECKING:
    from nemo_prorl.distributed import Ranks
    from nemo_prorl.types import Prompt

CHECKED_ROWS = 200
"""Rows of each prompt file whose tasks are checked before a run; a mistake is usually in all rows."""

URL_VARIABLE = "PRORL_REWARD_URL"
"""Environment variable with the URL of the service that a command has started for the runs that it starts. An option
would stay in their records, from which `verify` and `fork` would ask a service that has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardService:
    """A reward service that runs as a child process and is ready."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        """Raises RewardServiceError, with its last output, if the process has ended."""
        if self.process.poll() is not None:
            raise RewardServiceError(
                f"the reward service of this run ended with code {self.process.returncode} ({self.log}): "
                f"{_last_lines(self.log)}"
            )


@contextmanager
def reward_service(config: RewardConfig, log_dir: Path) -> Iterator[str]:
    """Starts a service as `running_service` does and yields its URL. Runs that this process starts meanwhile, and that
    would start a service, use this one."""
    with running_service(config, log_dir) as service:
        os.environ[URL_VARIABLE] = service.url
        try:
            yield service.url
        finally:
            del os.environ[URL_VARIABLE]


@contextmanager
def running_service(config: RewardConfig, log_dir: Path) -> Iterator[RewardService]:
    """Starts `python -m reward serve` with this interpreter, yields the service, and stops it at the end.

    Its output goes to `log_dir`/reward_service.log. It also ends if this process is killed. Raises RewardServiceError,
    with its last output, if it ends before it is ready or is not ready in time.
    """
    log_dir.mkdir(parents=True, exist_ok=True)
    log = log_dir / "reward_service.log"
    with tempfile.TemporaryDirectory(prefix="reward-") as folder, log.open("ab") as output:
        ready = Path(folder) / "ready.json"
        command = [sys.executable, "-m", "reward", "serve", "--ready-file", str(ready)]
        command += ["--exit-with-parent", str(os.getpid())]
        # Slurm sends SIGUSR1 to every process of a job, and the child has to inherit a mask that blocks it. If it
        # reaches this process meanwhile, it is delivered afterwards.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment(),
                process_group=0,  # Ctrl-C and `timeout` signal a whole group, but the trainer has to finish its step
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        deadline = time.monotonic() + config.ready_timeout_s
        try:
            while not ready.exists():
                is_over = process.poll() is not None
                if is_over or time.monotonic() > deadline:
                    late = f"not ready in reward.ready_timeout_s={config.ready_timeout_s:g}: a busy machine needs more"
                    why = f"ended with code {process.returncode}" if is_over else late
                    said = _last_lines(log)
                    raise RewardServiceError(
                        f"the reward service did not start ({why}; {log}){f': {said}' if said else '.'}"
                    )
                time.sleep(0.05)
            url = str(json.loads(ready.read_text(encoding="utf-8"))["url"])
            yield RewardService(url=url, process=process, log=log)
        finally:
            process.send_signal(signal.SIGHUP)  # with --exit-with-parent it ignores SIGTERM and SIGINT
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def make_client(config: RewardConfig, urls: Sequence[str], **options: Any) -> RewardClient:
    """Returns a client of the service at `urls`, or in reward.discovery_dir."""
    return RewardClient(
        urls=urls,
        discovery_dir=Path(config.discovery_dir) if config.discovery_dir else None,
        token_file=Path(config.token_file) if config.token_file else None,
        request_timeout_s=config.request_timeout_s,
        max_attempts=config.max_attempts,
        **options,
    )


@contextmanager
def ready_client(
    config: RewardConfig,
    urls: Sequence[str],
    domains: Collection[str] = (),
) -> Iterator[RewardClient]:
    """Yields a client of the service at `urls`, or in reward.discovery_dir, and closes it at the end. Raises
    RewardServiceError if no server is ready in time, and ConfigError if none can grade all of `domains`."""
    with closing(make_client(config, urls)) as client:
        try:
            client.wait_until_ready(config.ready_timeout_s, terminal.explain, domains)
        except CannotGrade as error:
            raise ConfigError(
                f"{error}: serve on machines that can (`python -m nemo_prorl doctor` says what one lacks), install the "
                "grader plug-in of a domain of your own there, or take such rows out of the data."
            ) from None
        yield client


@contextmanager
def reward_client(
    config: RewardConfig, ranks: Ranks, log_dir: Path, domains: Collection[str] = ()
) -> Iterator[ServiceGrader]:
    """Yields a grader that uses the configured service, or one that the main rank starts and stops. Collective. The
    main rank waits until the service is ready and finds the servers for all ranks; its errors are raised on all."""
    with ExitStack() as stack:
        service: RewardService | None = None

        def found() -> tuple[list[str], str, frozenset[str]] | Exception:
            nonlocal service
            urls = list(config.urls)
            try:
                if not config.names_servers:
                    if not (url := os.environ.get(URL_VARIABLE)):
                        service = stack.enter_context(running_service(config, log_dir))
                        url = service.url
                    urls = [url]
                with ready_client(config, urls, domains) as client:
                    return urls, client.version, client.domains
            except (ConfigError, RewardServiceError) as error:
                return error

        told = ranks.on_main(found)
        if isinstance(told, Exception):
            raise told
        urls, version, known = told
        client = make_client(config, urls, version=version, domains=known)
        yield ServiceGrader(stack.enter_context(closing(client)), service)


class ServiceGrader:
    """Implements `Grader` of engines/interface.py with the reward service."""

    def __init__(self, client: RewardClient, service: RewardService | None) -> None:
        """service: the one that this process has started, if any."""
        self._client = client
        self.version = client.version
        """Version of the graders: equal versions give equal results."""
        self.parts = {SERVICE: f"weight 1, version {client.version}"}
        """Name -> description of each part of the reward."""
        self._service = service

    def submit(self, request: ScoreRequest, prompt: Prompt) -> Future[ScoreResult]:
        """Returns a future of the result. The prompt is not used: the request has all that the service needs."""
        return self._client.submit(request)

    def grades(self, domain: str) -> bool:
        return domain in self._client.domains

    def check(self) -> None:
        """Raises RewardServiceError if our own service has ended. Services elsewhere may come back."""
        if self._service is not None:
            self._service.check()


def check_tasks(config: RewardConfig, files: Iterable[str]) -> None:
    """Checks CHECKED_ROWS rows of each prompt file with this environment's graders. Raises ConfigError if they refuse a
    task, or if they cannot be used and the run would start a service.

    Rows of plug-ins are not checked, because only the processes of the service import those."""
    if not config.asks_service or not config.weight(SERVICE):
        return
    try:
        why, known = why_no_graders(), registry.domains()
    except PluginError as error:
        why = str(error)
    if why and config.names_servers:  # elsewhere, which have another environment
        return
    if why:
        raise ConfigError(f"the reward service cannot be started: {why}")
    others_may_grade = bool(config.function) or config.names_servers
    for file in files:
        rows = list(RowFile(Path(file)).sample(CHECKED_ROWS))
        reasons = [_why_refused(row, known, others_may_grade) for _, row in rows]
        if any(reasons):
            (index, row), reason = next(pair for pair in zip(rows, reasons, strict=True) if pair[1])
            raise ConfigError(
                f"data file {RowFile(Path(file)).name}: {sum(map(bool, reasons)):,} of {len(rows):,} checked rows "
                f"cannot be graded, such as row {index} ({row.uid}): {reason}; correct its domain or task "
                "(docs/data.md), or leave such rows out."
            )


def _why_refused(row: Row, known: Collection[str], others_may_grade: bool) -> str:
    """Returns why this environment's graders refuse a row's task; empty if they do not."""
    if row.domain not in known:
        is_wrong = f"there is no grader for the domain {row.domain[:80]!r}, but {', '.join(known)}"
        return "" if others_may_grade else is_wrong
    try:
        if row.domain in DOMAINS:
            grader(row.domain).check(row.task)
    except InvalidTask as error:
        is_extra = isinstance(error.__cause__, ModuleNotFoundError)  # the papers' verifiers
        return "" if is_extra and others_may_grade else str(error)
    return ""


def _last_lines(log: Path) -> str:
    return " / ".join(log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:])


def environment() -> dict[str, str]:
    """Returns this process's environment without library paths and preloads, which are meant for torch and vLLM."""
    dropped = {"LD_PRELOAD", "LD_LIBRARY_PATH"}
    return {key: value for key, value in os.environ.items() if key not in dropped}
