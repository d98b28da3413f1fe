"""The reward service as the trainer uses it: its clients on all ranks, and the service itself as a child process, for
runs on one machine. On a cluster it is a job step of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_prorl.config import SERVICE, ConfigError, RewardConfig
from nemo_prorl.data.rows import Row, RowFile
from reward.client import CannotGrade, RewardClient, RewardServiceError
from reward.discovery import Announced, read_folder
from reward.known_server import never_grades
from reward.protocol import DOMAINS, ScoreRequest, ScoreResult, Status

if TYPE_CHECKING:
    from nemo_prorl.distributed import Ranks
    from nemo_prorl.types import Prompt

CHECKED_ROWS = 200
"""Rows of each prompt file whose tasks are checked before a run (our choice: a mistake is usually in all rows)."""
WATCH_S = 1.0
"""Seconds after which whoever waits for a result looks whether the service is still there."""


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
    python = config.interpreter
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
                process_group=0,  # Ctrl-C and `timeout` signal the trainer's group, which has a step to finish
            )
        try:
            url = _wait_for_url(process, ready, log, config.ready_timeout_s)
            yield RewardService(url=url, process=process, log=log)
        finally:
            process.send_signal(signal.SIGHUP)  # it leaves SIGTERM and SIGINT to this process
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class _WatchedFuture(Future[ScoreResult]):
    """A result that is not waited for once the service that is to give it has ended."""

    def __init__(self, inner: Future[ScoreResult], service: RewardService) -> None:
        super().__init__()
        self._inner, self._service = inner, service

    def result(self, timeout: float | None = None) -> ScoreResult:
        """Raises RewardServiceEnded."""
        while not self._inner.done():
            self._service.check()
            wait([self._inner], timeout=WATCH_S)
        return self._inner.result()


def watched(
    submit: Callable[[ScoreRequest], Future[ScoreResult]], service: RewardService
) -> Callable[[ScoreRequest], Future[ScoreResult]]:
    """`submit` whose results notice within seconds that our own service is gone. The client alone hopes for its return,
    for as long as a service elsewhere might need."""
    return lambda request: _WatchedFuture(submit(request), service)


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
    announced: Announced | None = None,
) -> Iterator[RewardClient]:
    """Yields a client of the service at `urls`, or in reward.discovery_dir, and closes it at the end. Raises
    RewardServiceError if no server is ready in time, and ConfigError if none can grade all of `domains`."""
    client = make_client(config, urls, domains=domains, announced=announced)
    try:
        try:
            client.wait_until_ready(config.ready_timeout_s)
        except CannotGrade as error:
            raise ConfigError(f"{error}: {_what_to_do(str(error), domains)}.") from None
        yield client
    finally:
        client.close()


@contextmanager
def reward_client(
    config: RewardConfig, ranks: Ranks, log_dir: Path, domains: Collection[str] = ()
) -> Iterator[ServiceGrader]:
    """A client of the configured service, or of one that the main rank starts for this job and stops with it. The main
    rank waits until the service is ready; it finds the servers for all ranks."""
    announced = announced_by_main(Path(config.discovery_dir), ranks) if config.discovery_dir else None
    with ExitStack() as stack:
        client: RewardClient | ClientOnDemand | None = None
        service = None
        told: _Service | Exception | None = None
        if ranks.layout.is_main:
            try:
                urls = list(config.urls)
                if not urls and not config.discovery_dir:
                    service = stack.enter_context(running_service(config, log_dir))
                    urls = [service.url]
                client = stack.enter_context(ready_client(config, urls, domains, announced))
                told = _Service(urls=urls, version=client.version, domains=client.domains)
            except (ConfigError, RewardServiceError, RewardServiceNotStarted) as error:
                told = error
        told = ranks.from_main(told)
        if isinstance(told, Exception):
            raise told
        assert told is not None
        if client is None:
            make = partial(
                make_client,
                config,
                told.urls,
                domains=domains,
                announced=announced,
                version=told.version,
            )
            client = stack.enter_context(
                closing(ClientOnDemand(make, version=told.version, domains=told.domains))
            )
        yield ServiceGrader(client, service)


@dataclass(frozen=True, kw_only=True)
class _Service:
    """What the main rank tells the others of the reward service."""

    urls: list[str]
    version: str
    domains: frozenset[str]


class ServiceGrader:
    """Grader of engines/interface.py on the reward service."""

    def __init__(self, client: RewardClient | ClientOnDemand, service: RewardService | None) -> None:
        """`service`: our own, if this process has started one."""
        self._client = client
        self.version = client.version
        """Version of the graders: equal versions give equal results."""
        self.parts = {SERVICE: "weight 1"}
        """What the reward consists of, in words."""
        self._service = service

    def submit(self, request: ScoreRequest, prompt: Prompt) -> Future[ScoreResult]:
        """All that the service is told stands in the request."""
        return self._client.submit(request)

    def refused(self, rows: Sequence[Row]) -> list[tuple[int, str]]:
        """For `check_tasks`: returns (index, why) of each row whose task the service refuses, whatever the response.
        Raises RewardServiceError if the service fails to grade a row, and RewardServiceEnded once our own is gone."""
        submit = self._client.submit if self._service is None else watched(self._client.submit, self._service)
        asked = {
            index: submit(
                ScoreRequest(request_id=f"check/{row.uid}", domain=row.domain, response="", task=row.task)
            )
            for index, row in enumerate(rows)
            if self.grades(row.domain)
        }
        found = []
        for index, future in asked.items():
            result = future.result()
            reason = str(result.details.get("reason", result.verdict))
            if result.status is Status.invalid_request:
                found.append((index, reason))
            elif result.status is not Status.graded:
                self.check()
                raise RewardServiceError(
                    f"the reward service could not check the task of {rows[index].uid}: {reason}"
                )
        return found

    def grades(self, domain: str) -> bool:
        """Whether the service knows this domain."""
        return domain in self._client.domains

    def check(self) -> None:
        """Raises RewardServiceEnded. Of a service elsewhere the client hopes that it comes back."""
        if self._service is not None:
            self._service.check()


class ClientOnDemand:
    """The client of a rank that may never need one, such as most ranks of an engine that is spread over several: it
    comes into being with the first request. `version` and `domains` are those that the main rank has found."""

    def __init__(self, make: Callable[[], RewardClient], *, version: str, domains: frozenset[str]) -> None:
        self._make = make
        self._client: RewardClient | None = None
        self.version, self.domains = version, domains

    def submit(self, request: ScoreRequest) -> Future[ScoreResult]:
        """As that of RewardClient. Called from one thread at a time."""
        if self._client is None:
            self._client = self._make()
        return self._client.submit(request)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


def announced_by_main(folder: Path, ranks: Ranks) -> Announced | None:
    """For the clients of all ranks: the main rank reads reward.discovery_dir, and the others ask the main rank. None
    where there is one rank, which reads by itself."""
    if ranks.layout.world_size == 1:
        return None
    board = ranks.board("reward servers")
    known: dict[str, str] = {}

    def read() -> dict[str, str]:
        found = read_folder(folder)
        board.write(json.dumps(found))
        return found

    def ask() -> dict[str, str]:
        nonlocal known
        with suppress(RuntimeError):  # the main rank has ended: what was known has to do
            known = json.loads(board.read() or "{}")
        return known

    return read if ranks.layout.is_main else ask


def check_tasks(files: Iterable[str], refused: Callable[[Sequence[Row]], Iterable[tuple[int, str]]]) -> None:
    """Raises ConfigError when graders refuse the tasks of prompt files; looks at CHECKED_ROWS rows of each.

    `refused` gives (index, why) of each row whose task no grader accepts."""
    rows = [(file, index, row) for file in files for index, row in RowFile(Path(file)).sample(CHECKED_ROWS)]
    if found := list(refused([row for *_, row in rows])):
        number, reason = found[0]
        file, index, row = rows[number]
        num_looked_at = sum(name == file for name, *_ in rows)
        num_refused = sum(rows[number][0] == file for number, _ in found)
        raise ConfigError(
            f"data file {file}: {num_refused:,} of {num_looked_at:,} rows looked at cannot be graded, such as row "
            f"{index} ({row.uid}): {reason}; correct its domain or task (docs/data.md), or leave such rows out."
        )


def refused_here(config: RewardConfig, rows: Sequence[Row]) -> list[tuple[int, str]]:
    """For `check_tasks` without a service: the graders are asked in the service's own environment. Where that is not on
    this machine, nothing is known to be refused."""
    if not config.asks_service or not config.interpreter.exists():
        return []
    lines = [json.dumps({"domain": row.domain, "task": dict(row.task)}) for row in rows]
    command = [str(config.interpreter), "-m", "reward", "check", "--tasks"]
    done = subprocess.run(
        command, input="\n".join(lines), capture_output=True, text=True, env=_environment(), check=False
    )
    if done.returncode:  # what is wrong with the environment is said when the service is started
        return []
    others_may_grade = bool(config.function or config.urls or config.discovery_dir)
    found = json.loads(done.stdout)
    return [(number, why) for number, what, why in found if what == "task" or not others_may_grade]


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
