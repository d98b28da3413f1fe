"""Tests of `make test`: where scripts/test.sh runs which tests, what it says and returns, and which tests are live."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import REWARD_PYTHON, ROOT, unit
from tests.live import starts
from tests.training.tiny import Case, assert_close, make_case

PASSES = "def test_{0}(): pass\n"
FAILS = "def test_{0}(): raise RuntimeError\n"


@pytest.mark.parametrize("script", [".ci/run", "Makefile", "scripts/test.sh", "scripts/setup.sh"])
def test_the_tests_that_a_script_names_exist(script: str) -> None:
    named = re.findall(r"(?<![\w/])tests/[\w./]*\w", (ROOT / script).read_text(encoding="utf-8"))
    assert not [path for path in named if not (ROOT / path).exists()]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with few tests: one of the service, two of the trainer, of which one fails."""
    for folder in ("scripts", "tests/reward"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "scripts/test.sh", tmp_path / "scripts")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / ".venv-reward").symlink_to(Path(REWARD_PYTHON).parents[1])
    (tmp_path / "tests/reward/test_service.py").write_text(
        "def test_environment():\n    import langdetect\n"  # which only the service's environment has
    )
    (tmp_path / "tests/test_trainer.py").write_text("def test_environment():\n    import hydra\n")
    (tmp_path / "tests/test_wrong.py").write_text(PASSES.format("passes") + FAILS.format("fails"))
    return tmp_path


def run(checkout: Path, *arguments: str) -> tuple[int, list[str]]:
    """Runs the script with one worker. Returns its exit status and what it prints."""
    command = [checkout / "scripts/test.sh", "-n", "1", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.slow
def test_both_parts_run_and_their_last_lines_are_repeated_at_the_end(checkout):
    status, printed = run(checkout)
    assert status == 1
    service, trainer = printed[-2:]
    assert service.startswith("reward service: ")
    assert " 1 passed in " in service
    assert trainer.startswith("trainer: ")
    assert " 1 failed, 2 passed in " in trainer

    status, printed = run(checkout, "--lf", "tests")
    assert status == 1
    assert " 1 failed in " in printed[-1], "what failed last time runs again, alone"


def test_a_path_runs_in_its_environment_alone(checkout):
    status, printed = run(checkout, "tests/reward/test_service.py::test_environment")
    assert status == 0
    assert printed[-1].startswith("reward service: ")
    assert not any(line.startswith("trainer: ") for line in printed)


@pytest.mark.slow
def test_a_part_without_a_selected_test_is_no_failure_but_an_unknown_option_is(checkout):
    assert run(checkout, "-k", "test_service")[0] == 0
    assert run(checkout, "--no-such-option")[0] == 1


def wait_for(condition: Callable[[], bool], timeout_s: float = 120.0) -> bool:
    limit = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < limit:
        time.sleep(0.2)
    return condition()


def group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_ctrl_c_ends_all_workers(checkout):
    (checkout / "tests/test_wrong.py").write_text(
        "import pathlib, time\n\n\ndef test_waits():\n    pathlib.Path('begun').touch()\n    time.sleep(300)\n"
    )
    script = subprocess.Popen(
        [checkout / "scripts/test.sh", "-n", "2", "tests/test_wrong.py", "tests/test_trainer.py"],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        # A shell lets its background processes ignore Ctrl-C, and so this test's if `make test` is one of them.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert wait_for((checkout / "begun").exists)
        os.killpg(script.pid, signal.SIGINT)  # what a terminal does
        assert script.wait(60) == 130
        assert wait_for(lambda: not group_exists(script.pid)), "no process is left"
    finally:
        if script.poll() is None:
            os.killpg(script.pid, signal.SIGKILL)


def by_a_fixtures_class(case: Case) -> None:
    make_case(Path(), "").train("run")


def by_a_function_inside() -> None:
    def inner() -> None:
        run(Path())

    inner()


def by_an_import() -> None:
    from nemo_prorl.engines.vllm.sampler import VllmSampler

    VllmSampler()  # type: ignore[call-arg]


def by_nothing() -> None:
    assert_close({}, {}, 0.0)


def test_what_starts_processes_is_found_through_helpers_classes_and_imports():
    found = [starts(f) for f in (by_a_fixtures_class, by_a_function_inside, by_an_import, by_nothing)]
    assert found == [True, True, True, False]


def test_tests_that_share_something_dear_run_in_one_worker():
    assert (
        unit("tests/slurm/test_common.py::a[b::c]")
        == unit("tests/slurm/test_training.py::d")
        == "tests/slurm/"
    )
    assert unit("tests/reward/test_server.py::a") == unit("tests/reward/test_frontends.py::b")
    assert unit("tests/report/test_page.py::a[tests/slurm/x]") == "tests/report/test_page.py"
