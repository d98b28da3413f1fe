"""Tests of what a run checks of the reward service before sampling: which servers can grade its data, and which tasks
no grader accepts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nemo_prorl.config import ConfigError, RewardConfig
from nemo_prorl.data.rows import Row, write_rows
from nemo_prorl.distributed import Layout
from nemo_prorl.reward_sources.service import (
    check_tasks,
    ready_client,
    reward_client,
)
from reward.protocol import ScoreRequest
from tests.data.conftest import make_row
from tests.reward.fake_server import FakeServer, fake_servers

REFUSED = {"ready": False, "is_refused": True, "reason": "no sandbox on this machine"}


@pytest.fixture
def fakes() -> Iterator[Callable[..., FakeServer]]:
    with fake_servers() as make:
        yield make


@pytest.mark.parametrize(
    ("domain", "words"),
    [
        ("code", r"refuses code \(no sandbox on this machine\): serve on machines that can"),
        ("haiku", r"does not know the domain haiku: .*install the grader plug-in"),
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


def test_the_main_rank_alone_waits_and_the_others_learn_what_it_found(
    fakes: Callable[..., FakeServer], tmp_path: Path
) -> None:
    told: list[Any] = []
    fake = fakes(domains={"math": {"ready": True}, "code": {"ready": True}})
    config = RewardConfig(urls=[fake.url])
    for rank, on_main in enumerate((lambda found: told.append(found()) or told[0], lambda _: told[0])):
        layout = Layout(rank=rank, world_size=2, tensor_parallel=1, pipeline_parallel=1)
        ranks: Any = SimpleNamespace(layout=layout, on_main=on_main)
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


def checked_file(tmp_path: Path, *rows: Row) -> str:
    file = tmp_path / "rows.parquet"
    write_rows(file, list(rows))
    return str(file)


@pytest.mark.parametrize(
    ("row", "reason"), [*BAD_TASKS, ({"domain": "maths"}, "grader for the domain 'maths', but math")]
)
def test_a_task_that_no_grader_accepts_is_named(tmp_path: Path, row: dict[str, Any], reason: str) -> None:
    good = [make_row("g/0"), make_row("g/1"), make_row("g/2", domain="code", task=DOUBLE)]
    file = checked_file(tmp_path, *good)
    check_tasks(RewardConfig(), [file])
    words = (
        rf"rows\.parquet: 1 of 4 checked rows cannot be graded, such as row 3 \(b/0\): .*{reason}.*; "
        "correct its domain or task"
    )
    bad = checked_file(tmp_path, *good, make_row("b/0", **row))
    with pytest.raises(ConfigError, match=words) as caught:
        check_tasks(RewardConfig(), [bad])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "refused"),
    [
        (RewardConfig(), True),
        (RewardConfig(urls=["http://x"]), False),
        (RewardConfig(function=["a.py:f"], weights={"service": 1.0}), False),
    ],
)
def test_what_others_may_grade_is_left_to_them(tmp_path: Path, config: RewardConfig, refused: bool) -> None:
    """A service on another machine may have plug-ins and verifiers that are not installed here, and functions may grade
    any domain."""
    for row in (
        make_row("a", domain="chess", task={"fen": "8/8"}),
        make_row("b", task={"answer": "4", "verifier": "papers"}),
    ):
        with pytest.raises(ConfigError) if refused else nullcontext():
            check_tasks(config, [checked_file(tmp_path, row)])
    with pytest.raises(ConfigError, match="1 of 1"):
        check_tasks(config, [checked_file(tmp_path, make_row("c", task={"answer": ""}))])


@pytest.mark.parametrize("weights", [{}, {"service": 0.0}])
def test_tasks_do_not_matter_where_the_service_decides_nothing(
    tmp_path: Path, weights: dict[str, float]
) -> None:
    config = RewardConfig(function=["a.py:f"], weights=weights)
    check_tasks(config, [checked_file(tmp_path, make_row("a", task={}))])


def test_an_environment_without_graders_is_refused_before_a_service_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a run that would start a service needs them here."""
    monkeypatch.setattr("reward.__main__._SERVER_MODULES", ("a_module_that_nobody_has",))
    file = checked_file(tmp_path, make_row("a/0", task={}))
    with pytest.raises(
        ConfigError, match=r"cannot be started: a_module_\w+ cannot be imported: .*\[server\]"
    ):
        check_tasks(RewardConfig(), [file])
    check_tasks(RewardConfig(urls=["http://x"]), [file])
