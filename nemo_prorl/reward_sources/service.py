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
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_prorl.config import SERVICE, ConfigError, RewardConfig
from nemo_prorl.data.rows import Row, RowFile
from nemo_prorl.run_folder import terminal
from reward.client import CannotGrade, RewardClient, RewardServiceError
from reward.protocol import DOMAINS, GradeStatus, ScoreRequest, ScoreResult, id_of
from reward.servers import Announced, read_folder

if TYPE_CHECKING:
    from nemo_prorl.distributed import Ranks
    from nemo_prorl.types import Prompt

CHECKED_ROWS = 200
"""Rows of each prompt file whose tasks are checked before a run; a mistake is usually in all rows."""
WATCH_S = 1.0
"""Seconds between checks, during a wait for a result, that the service is still running."""


class RewardServiceNotStarted(RuntimeError):
    """The service ended before it was ready, or was not ready in time; the message has its last output."""


class RewardServiceEnded(RuntimeError):
    """A running service has ended by itself; the message has its last output."""


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
        """Raises RewardServiceEnded if the process has ended."""
        if self.process.poll() is not None:
            raise RewardServiceEnded(
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

    Its output goes to `log_dir`/reward_service.log. It also ends if this process is killed. Raises
    RewardServiceNotStarted.
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
                    raise RewardServiceNotStarted(
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


class _WatchedFuture(Future[ScoreResult]):
    """A future whose `result` stops waiting if the service has ended. No other method of it works."""

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
    """Returns a `submit` whose futures raise RewardServiceEnded within seconds after our own service has ended. The
    client's futures would go on waiting, because a service on another machine may come back."""
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
    with closing(make_client(config, urls, announced=announced)) as client:
        try:
            client.wait_until_ready(config.ready_timeout_s, terminal.explain, domains)
        except CannotGrade as error:
            if foreign := sorted(error.unknown - set(DOMAINS)):
                advice = (
                    f"the service has no grader of its own for {', '.join(foreign)}, so install the grader plug-in "
                    "into the service's environment, or correct the column `domain`"
                )
            else:
                advice = (
                    "serve on machines that can (`python -m nemo_prorl doctor` says what one lacks), or take such "
                    "rows out of the data"
                )
            raise ConfigError(f"{error}: {advice}.") from None
        yield client


@contextmanager
def reward_client(
    config: RewardConfig, ranks: Ranks, log_dir: Path, domains: Collection[str] = ()
) -> Iterator[ServiceGrader]:
    """Yields a grader that uses the configured service, or one that the main rank starts and stops. Collective. The
    main rank waits until the service is ready and finds the servers for all ranks; its errors are raised on all."""
    announced = announced_by_main(Path(config.discovery_dir), ranks) if config.discovery_dir else None
    with ExitStack() as stack:
        client: RewardClient | None = None
        service = None
        told: tuple[list[str], str, frozenset[str]] | Exception | None = None
        if ranks.layout.is_main:
            try:
                urls = list(config.urls)
                if not config.names_servers:
                    if not (url := os.environ.get(URL_VARIABLE)):
                        service = stack.enter_context(running_service(config, log_dir))
                        url = service.url
                    urls = [url]
                client = stack.enter_context(ready_client(config, urls, domains, announced))
                told = urls, client.version, client.domains
            except (ConfigError, RewardServiceError, RewardServiceNotStarted) as error:
                told = error
        told = ranks.from_main(told)
        if isinstance(told, Exception):
            raise told
        assert told is not None
        if client is None:
            urls, version, known = told
            client = make_client(config, urls, announced=announced, version=version, domains=known)
            stack.enter_context(closing(client))
        yield ServiceGrader(client, service)


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

    def refused(self, rows: Sequence[Row]) -> list[tuple[int, str]]:
        """Returns (index, reason) of each row whose task the service refuses for any response, for `check_tasks`.
        Raises RewardServiceError if the service fails to grade a row, and RewardServiceEnded if our own has ended."""
        submit = self._client.submit if self._service is None else watched(self._client.submit, self._service)
        asked = {
            index: submit(
                ScoreRequest(
                    request_id=id_of("check", row.uid), domain=row.domain, response="", task=row.task
                )
            )
            for index, row in enumerate(rows)
            if self.grades(row.domain)
        }
        found = []
        for index, future in asked.items():
            result = future.result()
            reason = str(result.details.get("reason", result.verdict))
            if result.status is GradeStatus.invalid_request:
                found.append((index, reason))
            elif result.status is not GradeStatus.graded:
                self.check()
                raise RewardServiceError(
                    f"the reward service could not check the task of {rows[index].uid}: {reason}"
                )
        return found

    def grades(self, domain: str) -> bool:
        return domain in self._client.domains

    def check(self) -> None:
        """Raises RewardServiceEnded if our own service has ended. Services elsewhere may come back."""
        if self._service is not None:
            self._service.check()


def announced_by_main(folder: Path, ranks: Ranks) -> Announced | None:
    """Returns a function that finds the servers in reward.discovery_dir: the main rank reads the folder, the others ask
    the main rank. None for a single rank, whose client reads the folder itself."""
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
        with suppress(RuntimeError):  # the main rank has ended; the last known servers remain in use
            known = json.loads(board.read() or "{}")
        return known

    return read if ranks.layout.is_main else ask


def check_tasks(files: Iterable[str], refused: Callable[[Sequence[Row]], Iterable[tuple[int, str]]]) -> None:
    """Raises ConfigError if graders refuse tasks of the prompt files; checks CHECKED_ROWS rows of each.

    `refused` returns (index, reason) of each row whose task no grader accepts."""
    rows = [(file, index, row) for file in files for index, row in RowFile(Path(file)).sample(CHECKED_ROWS)]
    if found := list(refused([row for *_, row in rows])):
        number, reason = found[0]
        file, index, row = rows[number]
        num_looked_at = sum(name == file for name, *_ in rows)
        num_refused = sum(rows[number][0] == file for number, _ in found)
        raise ConfigError(
            f"data file {RowFile(Path(file)).name}: {num_refused:,} of {num_looked_at:,} checked rows cannot be "
            f"graded, such as row {index} ({row.uid}): {reason}; correct its domain or task (docs/data.md), or leave "
            "such rows out."
        )


def refused_here(config: RewardConfig, rows: Sequence[Row]) -> list[tuple[int, str]]:
    """Returns (index, reason) of each refused row, for `check_tasks` without a running service: runs this environment's
    graders. Raises ConfigError if it lacks those of a service that a run would start."""
    if not config.asks_service:
        return []
    lines = [json.dumps({"domain": row.domain, "task": dict(row.task)}) for row in rows]
    command = [sys.executable, "-m", "reward", "check", "--tasks"]
    done = subprocess.run(
        command, input="\n".join(lines), capture_output=True, text=True, env=environment(), check=False
    )
    if done.returncode:
        if config.names_servers:  # elsewhere, which have another environment
            return []
        reason = done.stderr.strip().rpartition("\n")[2].removeprefix("reward: ")
        raise ConfigError(f"the reward service cannot be started: {reason}")
    others_may_grade = bool(config.function) or config.names_servers
    found = json.loads(done.stdout)
    return [(number, why) for number, what, why in found if what == "task" or not others_may_grade]


def _last_lines(log: Path) -> str:
    return " / ".join(log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:])


def environment() -> dict[str, str]:
    """Returns this process's environment without library paths and preloads, which are meant for torch and vLLM."""
    dropped = {"LD_PRELOAD", "LD_LIBRARY_PATH"}
    return {key: value for key, value in os.environ.items() if key not in dropped}
