"""Tests of what the pages of studies promise: their tables are those of the recorded runs, every arm is a
configuration, and a study runs in small."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.beyond import __main__ as beyond
from experiments.boundary import arms as boundary
from experiments.boundary import report, results
from experiments.findings.__main__ import COMPARISONS, RECIPES, STALLED, STORIES, TINY, overrides_of
from experiments.kl_weighted import __main__ as kl_weighted
from experiments.learning_rate import __main__ as learning_rate
from experiments.low_rank import __main__ as low_rank
from experiments.puzzles import page as puzzles
from experiments.real_model import __main__ as real_model
from nemo_prorl.commands.parsing import composed
from nemo_prorl.demo import build
from tests.conftest import ROOT

FOLDER = ROOT / "experiments"


def recorded(name: str) -> Any:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def of_boundary() -> results.Results:
    return results.from_json((FOLDER / "boundary/results.json").read_text(encoding="utf-8"))


TABLES: dict[str, Callable[[], list[str]]] = {
    "real_model.md": lambda: real_model.table(recorded("real_model/results.json")),
    "learning_rate.md": lambda: learning_rate.table(recorded("learning_rate/results.json")),
    "low_rank.md": lambda: low_rank.table(recorded("low_rank/results.json")),
    "beyond.md": lambda: beyond.table(recorded("beyond/results.json")),
    "kl_weighted/README.md": lambda: kl_weighted.table(recorded("kl_weighted/results.json")),
    "puzzles/README.md": lambda: puzzles.page().splitlines(),
    "boundary/numbers.md": lambda: report.text(of_boundary()).splitlines(),
}


@pytest.mark.medium
@pytest.mark.parametrize("page", TABLES)
def test_a_page_has_the_table_of_the_recorded_runs(page: str) -> None:
    lines = (FOLDER / page).read_text(encoding="utf-8").splitlines()
    assert [line for line in TABLES[page]() if line not in lines] == []


def test_the_record_is_of_the_shipped_policy() -> None:
    weights = (build.BASE_POLICY / "model.safetensors").read_bytes()
    assert of_boundary().policy == hashlib.sha256(weights).hexdigest()


def configurations() -> Iterator[tuple[str, list[str]]]:
    """Yields the configuration and the overrides of every arm."""
    yield from (("laptop", [*boundary.COMMON, *arm.overrides]) for arm in boundary.ARMS.values())
    yield from (("smollm2", [*real_model.SETTING, *arm]) for arm in real_model.ARMS.values())
    for model in learning_rate.MODELS.values():
        yield model.config_name, [*model.overrides, f"trainer.learning_rate={model.rates[0]}"]
    yield from (("stories", [*low_rank.SETTING, "model.path=m", *arm]) for arm in low_rank.ARMS.values())
    still = ["stage.name=still", "stage.parent=learn", *beyond.SETTING]
    yield from (("laptop", [*still, *one.split()]) for one in {**beyond.RESETS, **beyond.OTHERS}.values())
    for family in (TINY, STALLED, STORIES, RECIPES):
        for arm in family.arms:
            yield family.config_name, overrides_of(family, arm, 7, None, Path("x"))


@pytest.mark.slow
def test_every_arm_is_a_configuration() -> None:
    for name, overrides in configurations():
        composed(name, overrides)


def test_the_control_of_boundary_has_the_settings_of_its_arms() -> None:
    config = composed("laptop", [*boundary.COMMON, *boundary.ARMS["resets"].overrides])
    sequences = config.trainer.prompts_per_step * config.sampler.num_rollouts
    assert sequences == boundary.SEQUENCES * config.trainer.updates_per_step
    assert (config.trainer.learning_rate, config.sampler.temperature, config.trainer.updates_per_step) == (
        boundary.LEARNING_RATE, boundary.RL_TEMPERATURE, boundary.UPDATES_PER_STEP,
    )  # fmt: skip


@pytest.mark.slow
def test_boundary_in_small_measures_trains_and_reports(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "experiments.boundary",
        "--quick",
        "--arms",
        "short",
        "--out",
        str(tmp_path),
    ]
    subprocess.run(command, cwd=ROOT, check=True)
    assert list(results.from_json((tmp_path / "results.json").read_text(encoding="utf-8")).runs) == ["short"]
    assert (tmp_path / "numbers.md").stat().st_size > 0


@pytest.mark.slow
def test_a_comparison_of_findings_trains_its_arms_and_writes_table_numbers_and_figure(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "experiments.findings", "--only", "clip", "--seeds", "1", "--steps", "1"]
    subprocess.run([*command, "--out", str(tmp_path)], cwd=ROOT, check=True)
    arms = list(COMPARISONS["clip"].arms)
    numbers = json.loads((tmp_path / "clip.json").read_text())
    assert list(numbers) == arms
    assert all(run["rewards"] for runs in numbers.values() for run in runs)
    lines = (tmp_path / "clip.md").read_text().splitlines()
    assert [line.split("|")[1].strip() for line in lines[-len(arms) :]] == arms
    assert (tmp_path / "clip.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_sweep_of_learning_rates_records_each_and_prints_the_table(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "experiments.learning_rate", "trainer.num_steps=1", "validation.max_prompts=4"]
    arguments = ["--only", "0.6M", "--seeds", "1", "--rates", "1e-4", "0", "--out", str(tmp_path)]
    said = subprocess.run([*command, *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    numbers = json.loads((tmp_path / "results.json").read_text())
    assert list(numbers) == ["0.6M"]
    assert list(numbers["0.6M"]) == ["1e-4, seed 1", "0, seed 1"]
    assert said.splitlines()[-1].startswith("| 0.6M | 0, seed 1 | 1 | 0: ")


@pytest.mark.slow
def test_what_helps_at_a_plateau_is_tried_in_small(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "experiments.beyond", "trainer.num_steps=1", "validation.max_prompts=4"]
    arguments = ["--only", "held", "--arms", "moments", "--seeds", "1", "--steps", "1", "--out", str(tmp_path)]
    said = subprocess.run([*command, *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    arms = json.loads((tmp_path / "results.json").read_text())["held"]["arms"]
    assert {arm: list(seeds) for arm, seeds in arms.items()} == {"moments": ["1"], "nothing": ["1"]}
    assert arms["moments"]["1"]["right"][0] == arms["nothing"]["1"]["right"][0], "the same weights and samples"
    assert said.splitlines()[-1].startswith("| moments | ")
    assert (tmp_path / "beyond.png").read_bytes().startswith(b"\x89PNG")


SEARCH = """
import json, sys
from pathlib import Path
from experiments.puzzles.constants import result_of
print(json.dumps(result_of(sys.argv[1], Path(sys.argv[2]), 6)))
"""


@pytest.mark.slow
def test_a_search_for_answers_to_puzzles_finds_what_was_recorded(tmp_path: Path) -> None:
    """The same seeds give the same result."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SEARCH, "letter_counting", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(puzzles.DATA.read_text(encoding="utf-8"))["tasks"]["letter_counting"]
    assert json.loads(done.stdout.splitlines()[-1]) == found
