"""Tests of experiments/findings: every arm is a configuration, and a comparison trains, draws and tabulates."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.findings.__main__ import COMPARISONS, RECIPES, STALLED, STORIES, TINY, overrides_of
from nemo_prorl.commands.parsing import composed
from tests.conftest import ROOT

FAMILIES = (TINY, STALLED, STORIES, RECIPES)


@pytest.mark.slow
def test_every_arm_is_a_configuration_of_its_own() -> None:
    for family in FAMILIES:
        arms = [overrides_of(family, arm, 7, None, Path("x")) for arm in family.arms]
        configs = [composed(family.config_name, overrides) for overrides in arms]
        assert len(set(map(str, configs))) == len(configs)


@pytest.mark.slow
def test_a_comparison_trains_its_arms_and_writes_table_numbers_and_figure(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "experiments.findings", "--only", "clip", "--seeds", "1", "--steps", "1"]
    subprocess.run([*command, "--out", str(tmp_path)], cwd=ROOT, check=True)
    arms = list(COMPARISONS["clip"].arms)
    numbers = json.loads((tmp_path / "clip.json").read_text())
    assert list(numbers) == arms
    assert all(run["rewards"] for runs in numbers.values() for run in runs)
    lines = (tmp_path / "clip.md").read_text().splitlines()
    assert [line.split("|")[1].strip() for line in lines[-len(arms) :]] == arms
    assert (tmp_path / "clip.png").read_bytes().startswith(b"\x89PNG")
