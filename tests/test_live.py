"""Tests of how the tests run: which are live, which share a worker, and that scripts name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT, unit
from tests.live import starts
from tests.training.tiny import Case, assert_close, make_case


@pytest.mark.parametrize("script", [".ci/run", "Makefile", "scripts/test_te.sh"])
def test_the_tests_that_a_script_names_exist(script: str) -> None:
    named = re.findall(r"(?<![\w/])tests/[\w./]*\w", (ROOT / script).read_text(encoding="utf-8"))
    assert named
    assert not [path for path in named if not (ROOT / path).exists()]


def by_a_fixtures_class(case: Case) -> None:
    make_case(Path(), "").train("run")


def by_an_import() -> None:
    from nemo_prorl.engines.vllm.sampler import VllmSampler

    def inside() -> None:
        VllmSampler()  # type: ignore[call-arg]

    inside()


def by_nothing() -> None:
    assert_close({}, {}, 0.0)


def test_what_starts_processes_is_found_through_helpers_classes_and_imports() -> None:
    found = [starts(f) for f in (by_a_fixtures_class, by_an_import, by_nothing)]
    assert found == [True, True, False]


def test_tests_that_share_something_dear_run_in_one_worker() -> None:
    assert unit("tests/slurm/test_common.py::a[b::c]") == unit("tests/slurm/test_training.py::d")
    assert unit("tests/reward/test_server.py::a") == unit("tests/reward/test_frontends.py::b")
    assert unit("tests/report/test_page.py::a[tests/slurm/x]") == "tests/report/test_page.py"
