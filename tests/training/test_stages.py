"""Where a stage begins."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from nemo_prorl.config import ConfigError, ExpManagerConfig, RunConfig, StageConfig
from nemo_prorl.storage import write_manifest
from nemo_prorl.training.markers import mark_done, mark_failed
from nemo_prorl.training.stages import find_starting_point, reset_policy
from nemo_prorl.types import RunState
from tests.training.conftest import ScriptedPolicy


def put_checkpoint(run_dir: Path, stage: str, step: int) -> None:
    folder = run_dir / "checkpoints" / f"step-{step:08d}-{stage}"
    folder.mkdir(parents=True)
    state = asdict(RunState(stage=stage, step=step))
    (folder / "state.json").write_text(json.dumps({"state": state, "score": None, "reference_hash": ""}))
    write_manifest(folder, {})


def config(run_dir: Path, stage: str, parent: str = "", *, resume: bool = True) -> RunConfig:
    return RunConfig(
        stage=StageConfig(name=stage, parent=parent),
        exp_manager=ExpManagerConfig(explicit_log_dir=str(run_dir), resume_if_exists=resume),
    )


# (name, checkpoints, finished stages, stage, parent) -> (step to start from or None, is it a resume)
STARTS = [
    ("new run", [], [], "a", "", (None, False)),
    ("crashed before its first checkpoint", [], [], "a", "", (None, False)),
    ("resume", [("a", 5), ("a", 10)], [], "a", "", (10, True)),
    ("child of a finished stage", [("a", 5), ("a", 10)], ["a"], "b", "a", (10, False)),
    ("resume of a child", [("a", 10), ("b", 15)], ["a"], "b", "a", (15, True)),
    ("grandchild", [("a", 10), ("b", 20)], ["a", "b"], "c", "b", (20, False)),
]


@pytest.mark.parametrize(
    ("checkpoints", "done", "stage", "parent", "expected"),
    [case[1:] for case in STARTS],
    ids=[case[0] for case in STARTS],
)
def test_a_stage_begins_at_its_own_newest_or_its_parents_last_checkpoint(
    tmp_path: Path,
    checkpoints: list[tuple[str, int]],
    done: list[str],
    stage: str,
    parent: str,
    expected: tuple[int | None, bool],
) -> None:
    for name, step in checkpoints:
        put_checkpoint(tmp_path, name, step)
    for name in done:
        mark_done(tmp_path, name, outcome="steps", checkpoint="")
    start = find_starting_point(config(tmp_path, stage, parent))
    step = None if start.checkpoint is None else start.checkpoint.state.step
    assert (step, start.is_resume) == expected


REFUSALS = [
    ("parent never ran", [], [], "b", "a", True, "stage=a first"),
    ("parent is not done", [("a", 5)], [], "b", "a", True, "has not finished"),
    ("parent is done but left nothing", [], ["a"], "b", "a", True, "has not finished"),
    ("folder of another run", [("x", 5)], [], "a", "", True, "holds checkpoints of stage x"),
    (
        "second child would overwrite the first",
        [("a", 10), ("b", 20)],
        ["a", "b"],
        "c",
        "a",
        True,
        "has gone on",
    ),
    ("the records of a later stage would be lost", [("a", 10), ("b", 20)], [], "a", "", True, "has gone on"),
    ("resume not wanted", [("a", 5)], [], "a", "", False, "resume_if_exists=false"),
]


@pytest.mark.parametrize(
    ("checkpoints", "done", "stage", "parent", "resume", "words"),
    [case[1:] for case in REFUSALS],
    ids=[case[0] for case in REFUSALS],
)
def test_a_folder_that_does_not_fit_is_one_sentence(
    tmp_path: Path,
    checkpoints: list[tuple[str, int]],
    done: list[str],
    stage: str,
    parent: str,
    resume: bool,
    words: str,
) -> None:
    for name, step in checkpoints:
        put_checkpoint(tmp_path, name, step)
    for name in done:
        mark_done(tmp_path, name, outcome="steps", checkpoint="")
    with pytest.raises(ConfigError, match=words) as caught:
        find_starting_point(config(tmp_path, stage, parent, resume=resume))
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_child_of_a_failed_stage_is_refused_with_the_reason(tmp_path: Path) -> None:
    put_checkpoint(tmp_path, "a", 10)
    mark_failed(tmp_path, "a", reason="Update 7 has loss nan.")
    with pytest.raises(ConfigError, match=r"stage a, which failed in .*: Update 7 has loss nan\."):
        find_starting_point(config(tmp_path, "b", "a"))


@pytest.mark.parametrize("optimizer", [True, False])
def test_a_reset_is_noted_in_the_state(optimizer: bool) -> None:
    policy, state = ScriptedPolicy(weight=0.5), RunState(stage="a", step=40, num_updates=160, num_resets=1)
    reset_policy(policy, state, optimizer=optimizer)
    assert policy.reference_weight == 0.5
    assert policy.events == ["reset optimizer"] * optimizer
    assert (state.num_resets, state.last_reset_step, state.last_reset_update) == (2, 40, 160)
    assert state.policy_is_reference
    state.num_updates += 1
    assert not state.policy_is_reference
