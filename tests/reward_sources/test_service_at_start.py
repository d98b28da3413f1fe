"""Tests of what a run checks of the reward service before sampling: which servers can grade its data, and which tasks
no grader accepts."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nemo_prorl.config import ConfigError, RewardConfig
from nemo_prorl.data.rows import Row, write_rows
from nemo_prorl.distributed import Layout
from nemo_prorl.reward_sources.service import (
    RewardService,
    RewardServiceEnded,
    ServiceGrader,
    check_tasks,
    ready_client,
    refused_here,
    reward_client,
)
from reward.client import RewardServiceError
from reward.protocol import ScoreRequest
from tests.conftest import ROOT
from tests.data.conftest import make_row
from tests.reward.fake_server import FakeServer, fake_servers

REFUSED = {"ready": False, "is_refused": True, "reason": "no sandbox on this machine"}
LATE = {"ready": False, "reason": "a known answer got 0.0"}


@pytest.fixture
def fakes() -> Iterator[Callable[..., FakeServer]]:
    with fake_servers() as make:
        yield make


@pytest.mark.parametrize(
    ("domain", "words"),
    [
        ("code", r"refuses code \(no sandbox on this machine\): serve on machines that can"),
        ("haiku", r"no grader of its own for haiku, so install the grader plug-in into"),
    ],
)
def test_a_service_that_cannot_grade_the_data_is_refused_with_its_own_reason(
    fakes: Callable[..., FakeServer], domain: str, words: str
) -> None:
    """Before anything is sampled, without waiting for reward.ready_timeout_s."""
    urls = [fakes(domains={"math": {"ready": True}, "code": REFUSED}).url]
    with ready_client(RewardConfig(), urls, ["math"]):
        pass
    config = RewardConfig(ready_timeout_s=3600.0)
    with pytest.raises(ConfigError, match=words), ready_client(config, urls, ["math", domain]):
        pass


def test_the_terminal_says_why_a_service_is_waited_for(
    fakes: Callable[..., FakeServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = fakes(domains={"math": LATE}).url
    said: list[str] = []
    monkeypatch.setattr("nemo_prorl.run_folder.terminal.explain", said.append)
    why = f"{url} is not ready: a known answer got 0.0 (math)"
    with (
        pytest.raises(RewardServiceError, match=f"within 1 s: {re.escape(why)}"),
        ready_client(RewardConfig(ready_timeout_s=1.0), [url], ["math"]),
    ):
        pass
    assert why in said
    assert set(said) <= {f"{url} was not reached yet", why}


def test_the_main_rank_alone_waits_and_the_others_learn_what_it_found(
    fakes: Callable[..., FakeServer], tmp_path: Path
) -> None:
    told: list[Any] = []
    fake = fakes(domains={"math": {"ready": True}, "code": {"ready": True}})
    config = RewardConfig(urls=[fake.url])
    for rank, from_main in enumerate((lambda value: told.append(value) or value, lambda _: told[0])):
        layout = Layout(rank=rank, world_size=2, tensor_parallel=1, pipeline_parallel=1)
        ranks: Any = SimpleNamespace(layout=layout, from_main=from_main)
        with reward_client(config, ranks, tmp_path, ["math", "code"]) as grader:
            assert (grader.version, grader.grades("code"), grader.grades("logic")) == ("v1", True, False)
            if rank:
                assert not fake.tokens, "a client comes with the first request"
                request = ScoreRequest(request_id="r", domain="code", response="", task={})
                assert grader.submit(request, None).result(60).score == 1  # type: ignore[arg-type]
        fake.tokens.clear()


DOUBLE = {"inputs": ["2"], "outputs": ["4"], "fn_name": "double"}
BAD_TASKS: list[tuple[dict[str, Any], str]] = [
    ({"task": {"ground_truth": "4"}}, 'the task needs "answer", a non-empty string'),
    ({"domain": "code", "task": {**DOUBLE, "cpu_s": 0}}, '"cpu_s" must be a number of seconds'),
    ({"domain": "logic", "task": {"task": "no_such_puzzle", "entry": {}}}, "no Reasoning Gym task"),
    ({"domain": "instruction", "task": {"instruction_id_list": ["x"], "kwargs": []}}, "0 kwargs"),
]


def check_all(
    tmp_path: Path, refused: Callable[[Sequence[Row]], list[tuple[int, str]]], tasks: list[tuple[Any, str]]
) -> None:
    """Has good rows and a row with each of the bad tasks checked together; starting the graders is slow."""
    answers = []

    def remembered(rows: Sequence[Row]) -> list[tuple[int, str]]:
        answers.append(refused(rows))
        return answers[-1]

    good, bad = tmp_path / "good.parquet", tmp_path / "bad.parquet"
    write_rows(good, [make_row("g/0"), make_row("g/1"), make_row("g/2", domain="code", task=DOUBLE)])
    write_rows(bad, [make_row("b/0"), *(make_row(f"b/{n}", **row) for n, (row, _) in enumerate(tasks, 1))])
    check_tasks([str(good)], remembered)
    words = (
        rf"bad\.parquet: {len(tasks)} of {len(tasks) + 1} checked rows cannot be graded, such as row 1 \(b/1\): "
        rf".*{tasks[0][1]}.*; correct its domain or task"
    )
    with pytest.raises(ConfigError, match=words) as caught:
        check_tasks([str(good), str(bad)], remembered)
    assert "\n" not in str(caught.value)
    assert [index for index, _ in answers[-1]] == [4 + index for index in range(len(tasks))]
    for (_, why), (row, wanted) in zip(answers[-1], tasks, strict=True):
        assert wanted in why, row
        assert "\n" not in why


def test_tasks_that_no_grader_accepts_are_found_without_a_service(tmp_path: Path) -> None:
    unknown = ({"domain": "maths"}, "grader for the domain 'maths', but math")
    check_all(tmp_path, partial(refused_here, RewardConfig()), [*BAD_TASKS, unknown])


def test_the_service_refuses_the_same_tasks(tmp_path: Path, service: str) -> None:
    with ready_client(RewardConfig(), [service]) as client:
        check_all(tmp_path, ServiceGrader(client, None).refused, BAD_TASKS)


def test_a_service_that_fails_while_tasks_are_checked_accepts_none(fakes: Callable[..., FakeServer]) -> None:
    url = fakes(lambda items: (500, b"the workers are gone")).url
    with ready_client(RewardConfig(max_attempts=2), [url]) as client:
        words = r"could not check the task of g/0: .*HTTP 500: the workers are gone \(after 2 attempts\)"
        with pytest.raises(RewardServiceError, match=words):
            ServiceGrader(client, None).refused([make_row("g/0")])


def test_a_service_that_dies_while_tasks_are_checked_is_noticed_at_once(
    fakes: Callable[..., FakeServer], tmp_path: Path
) -> None:
    released = threading.Event()
    url = fakes(lambda items: (500, str(released.wait(60)).encode())).url
    (tmp_path / "log").write_text("out of memory\n")
    with (
        subprocess.Popen(["sleep", "600"]) as process,
        ready_client(RewardConfig(), [url]) as client,
    ):
        service = RewardService(url=url, process=process, log=tmp_path / "log")
        threading.Timer(0.3, process.kill).start()
        started = time.monotonic()
        with pytest.raises(RewardServiceEnded, match=r"ended with code -9 .*out of memory"):
            ServiceGrader(client, service).refused([make_row("g/0")])
        assert time.monotonic() - started < 30
    released.set()


def test_a_domain_that_others_may_grade_is_left_to_them() -> None:
    """A service on another machine may have plug-ins that are not installed here, and functions may grade any
    domain."""
    rows = [make_row("a", domain="chess", task={"fen": "8/8"}), make_row("b", task={})]
    elsewhere = RewardConfig(urls=["http://x"])
    mixed = RewardConfig(function=["a.py:f"], weights={"service": 1.0})
    for config in (elsewhere, mixed):
        assert [index for index, _ in refused_here(config, rows)] == [1]
    assert refused_here(RewardConfig(function=["a.py:f"]), rows) == []


def test_an_environment_without_graders_is_refused_before_a_service_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a run that would start a service needs them here."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['langdetect'] = None")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    with pytest.raises(ConfigError, match=r"cannot be started: langdetect cannot be imported: .*\[server\]"):
        refused_here(RewardConfig(), [make_row("a/0")])
    assert refused_here(RewardConfig(urls=["http://x"]), [make_row("a/0")]) == []
