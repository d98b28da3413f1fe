"""Draws by difficulty in the loop, on a real mix of a file that ends within five steps: resumed at any step; computed
again; sampled ahead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.config import (
    ControllerAction,
    ControllerConfig,
    DataMix,
)
from nemo_prorl.data.mix import PromptMix
from nemo_prorl.data.rows import write_rows
from nemo_prorl.run_folder.difficulty import read_difficulty
from nemo_prorl.run_folder.records import read_digests
from tests.data.conftest import CharacterTokenizer, make_row
from tests.training.conftest import MIXED, RIGHT, WRONG
from tests.training.scripted_run import Run, killed_in_updates
from tests.training.test_digest import Sampler, again

SCORES = [MIXED] * 4 + [RIGHT] * 3 + [WRONG] * 3
NUM_STEPS = 10
TRUSTING = ControllerAction.ignore
"""The scripted sampler and policy differ."""


def file_mix(folder: Path) -> PromptMix:
    path = folder / "rows.parquet"
    if not path.exists():
        rows = [make_row(f"row{i}", f"{i}", task={"scores": scores}) for i, scores in enumerate(SCORES)]
        write_rows(path, rows)
    return PromptMix({str(path): 1.0}, seed=1, tokenizer=CharacterTokenizer(), max_prompt_tokens=32)


def make_run(folder: Path, *, mix: DataMix = DataMix.difficulty, ahead: bool = False, **config: Any) -> Run:
    """Returns a run whose file has 4 informative problems of 10."""
    options = {"num_steps": NUM_STEPS, "prompts_per_step": 2, "max_rounds": 20, "interval": 1}
    options |= {"controller": ControllerConfig(sampler_mismatch=TRUSTING)} | config
    run = Run(folder / "run", **options)
    run.new_prompts = lambda: file_mix(folder)
    run.prompts = run.new_prompts()
    run.sampler = Sampler(events=run.events)
    run.config.sampler.ahead = ahead
    run.config.data.mix = mix
    return run


def drawn(run: Run) -> dict[int, list[str]]:
    """Returns step -> what it sampled, with how often it was sampled before."""
    found: dict[int, list[str]] = {}
    for row in read_difficulty(run.folder).to_dict("records"):
        found.setdefault(row["step"], []).append(f"{row['uid']}#{row['epoch']}")
    return found


def test_informative_problems_return_more_often(tmp_path: Path) -> None:
    """Each problem is sampled once, and then those that some rollouts solve."""
    counts = {}
    for mix in DataMix:
        run = make_run(tmp_path / mix.name, mix=mix, num_steps=30, interval=0)
        run.fit()
        uids = [uid.split("#") for step in drawn(run).values() for uid in step]
        assert sorted(uid for uid, _ in uids[:10]) == sorted(f"row{i}" for i in range(10))
        later = [uid for uid, _ in uids[10:]]
        counts[mix] = sum(int(uid.removeprefix("row")) < 4 for uid in later) / len(later)
        assert len({tuple(uid) for uid in uids}) == len(uids), "a problem's visits are numbered"
    assert counts[DataMix.uniform] == pytest.approx(0.4, abs=0.1)
    weights = [0.55] * 4 + [0.05] * 6
    assert counts[DataMix.difficulty] > 0.9 * sum(weights[:4]) / sum(weights) - 0.1


@pytest.mark.parametrize("ahead", [False, True])
def test_a_resumed_run_draws_the_same(tmp_path: Path, ahead: bool) -> None:
    whole = make_run(tmp_path / "whole", ahead=ahead, every=2)
    whole.fit()
    run = make_run(tmp_path / "cut", ahead=ahead, every=2)
    for step in (3, 4, 7):
        run = killed_in_updates(run, step)
        run.sampler = Sampler(events=run.events)
    run.fit()
    assert drawn(run) == drawn(whole)
    lines = [read_digests(of.folder).steps for of in (run, whole)]
    assert [line["phases"] for line in lines[0].values()] == [line["phases"] for line in lines[1].values()]


@pytest.mark.parametrize("ahead", [False, True])
def test_every_step_is_equal_again(tmp_path: Path, ahead: bool) -> None:
    run = make_run(tmp_path, ahead=ahead)
    run.fit()
    for number in read_digests(run.folder).steps:
        assert again(run, file_mix(tmp_path)).step(number) == {}
