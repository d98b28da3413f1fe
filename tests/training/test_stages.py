"""Where a stage begins, what it inherits, and the log's last line."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl import run
from nemo_prorl.config import (
    BestMode,
    CheckpointCallbackParams,
    ConfigError,
    ControllerConfig,
    DataConfig,
    Decay,
    ExpManagerConfig,
    ResetTo,
    RunConfig,
    StageConfig,
    StartFrom,
    TrainerConfig,
    ValidationConfig,
)
from nemo_prorl.questions.arms import checkpoint_at
from nemo_prorl.run_folder.checkpoints import Checkpoint, find_checkpoints
from nemo_prorl.run_folder.markers import mark_done, mark_failed
from nemo_prorl.run_folder.storage import write_manifest
from nemo_prorl.run_folder.validation_metrics import DOMAIN_MEAN
from nemo_prorl.training import stages
from nemo_prorl.training.rewinding import rewind
from nemo_prorl.training.stages import (
    StartingPoint,
    find_intact_start,
    find_starting_point,
    resume_message,
)
from nemo_prorl.types import RunState
from tests.training.conftest import SINGLE, ScriptedPolicy


def put_checkpoint(
    run_dir: Path,
    stage: str,
    step: int,
    *,
    score: float | None = None,
    monitor: str = DOMAIN_MEAN,
    **state: Any,
) -> Path:
    folder = run_dir / "checkpoints" / f"step-{step:08d}-{stage}"
    folder.mkdir(parents=True)
    record = {"score": score, "monitor": monitor, "reference_hash": ""}
    record["state"] = asdict(RunState(stage=stage, step=step, **state))
    (folder / "state.json").write_text(json.dumps(record))
    write_manifest(folder, {})
    return folder


def config(
    run_dir: Path,
    stage: str,
    parent: str = "",
    *,
    resume: bool = True,
    start_from: StartFrom = StartFrom.last,
    **params: Any,
) -> RunConfig:
    return RunConfig(
        stage=StageConfig(name=stage, parent=parent, start_from=start_from),
        data=DataConfig(validation=["held_out.parquet"]),
        exp_manager=ExpManagerConfig(
            explicit_log_dir=str(run_dir),
            resume_if_exists=resume,
            checkpoint_callback_params=CheckpointCallbackParams(**params),
        ),
    )


def run_with(run_dir: Path, checkpoints: str, done: str) -> Path:
    """Writes a run's folder. Example: run_with(folder, "a5 a10", "a"): stage a has two checkpoints, and is done"""
    for name in checkpoints.split():
        put_checkpoint(run_dir, name[0], int(name[1:]))
    for stage in done:
        mark_done(run_dir, stage, outcome="steps", checkpoint="")
    return run_dir


@pytest.mark.parametrize(
    ("checkpoints", "done", "stage", "parent", "expected"),
    [
        pytest.param("", "", "a", "", (None, False), id="new run"),
        pytest.param("a5 a10", "", "a", "", (10, True), id="resume"),
        pytest.param("a5 a10", "a", "b", "a", (10, False), id="child of a finished stage"),
        pytest.param("a10 b15", "a", "b", "a", (15, True), id="resume of a child"),
        pytest.param("a10 b20", "ab", "c", "b", (20, False), id="grandchild"),
    ],
)
def test_a_stage_begins_at_its_own_newest_or_its_parents_last_checkpoint(
    tmp_path: Path, checkpoints: str, done: str, stage: str, parent: str, expected: tuple[int | None, bool]
) -> None:
    start = find_starting_point(config(run_with(tmp_path, checkpoints, done), stage, parent))
    step = None if start.checkpoint is None else start.checkpoint.state.step
    assert (step, start.is_resume) == expected


@pytest.mark.parametrize(
    ("checkpoints", "done", "stage", "parent", "words"),
    [
        pytest.param("", "", "b", "a", "stage=a first", id="parent never ran"),
        pytest.param("a5", "", "b", "a", "has not finished", id="parent is not done"),
        pytest.param("", "a", "b", "a", "has not finished", id="parent is done but left nothing"),
        pytest.param("x5", "", "a", "", "holds checkpoints of stage x", id="folder of another run"),
        pytest.param("a10 b20", "ab", "c", "a", "has gone on", id="a second child would overwrite the first"),
        pytest.param("a10 b20", "", "a", "", "has gone on", id="the records of a later stage would be lost"),
        pytest.param("f5", "", "b", "f", r"stage f, which failed in .*: Loss is NaN\.", id="parent failed"),
    ],
)
def test_a_folder_that_does_not_fit_is_one_sentence(
    tmp_path: Path, checkpoints: str, done: str, stage: str, parent: str, words: str
) -> None:
    mark_failed(tmp_path, "f", reason="Loss is NaN.")
    with pytest.raises(ConfigError, match=words) as caught:
        find_starting_point(config(run_with(tmp_path, checkpoints, done), stage, parent))
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_without_moments_begins_only_a_stage_that_clears_them(tmp_path: Path) -> None:
    run_with(tmp_path, "a5 a10", "a")
    for checkpoint in find_checkpoints(tmp_path):
        checkpoint.policy.mkdir()
        (checkpoint.policy / "without_moments").touch()
    with pytest.raises(
        ConfigError, match=r"step 10 of stage a was kept without .*get back a newer one, or export it"
    ):
        find_starting_point(config(tmp_path, "a"))
    child = config(tmp_path, "b", "a")
    assert find_starting_point(child).checkpoint is not None
    keeping = replace(child, stage=replace(child.stage, reset_optimizer=False))
    with pytest.raises(ConfigError, match=r"write stage\.reset_optimizer=true"):
        find_starting_point(keeping)
    with pytest.raises(ConfigError, match="no checkpoint of step 5 to go on from: without --step"):
        rewind(tmp_path, "a", 5)
    with pytest.raises(ConfigError, match="has no checkpoints yet"):
        checkpoint_at(tmp_path, 5)


def test_a_resume_that_is_not_wanted_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="resume_if_exists=false"):
        find_starting_point(config(run_with(tmp_path, "a5", ""), "a", resume=False))


@pytest.mark.parametrize("is_resume", [False, True])
@pytest.mark.parametrize(("reference", "optimizer", "data"), list(product([True, False], repeat=3)))
def test_each_switch_of_a_stage_resets_its_own_part_only_and_a_resume_resets_nothing(
    monkeypatch: pytest.MonkeyPatch, reference: bool, optimizer: bool, data: bool, is_resume: bool
) -> None:
    monkeypatch.setattr(stages, "load_policy", lambda policy, *_, **__: setattr(policy, "weight", 0.5))
    state = RunState(
        stage="b" if is_resume else "a", step=40, stage_step=20, num_updates=160, prompts={"cursor": 7},
        recent_prompts=64.0, recent_informative=9.0, highest_score=4.0,
    )  # fmt: skip
    checkpoint = Checkpoint(path=Path("any"), state=state, score=None, monitor="", reference_hash="")
    stage = StageConfig(
        name="b", parent="a", reset_reference=reference, reset_optimizer=optimizer, reset_data=data
    )
    policy = ScriptedPolicy(reference_weight=0.25)
    begun = stages.load_start(policy, StartingPoint(checkpoint=checkpoint, is_resume=is_resume), stage)
    resets = [switch and not is_resume for switch in (reference, optimizer, data)]
    assert (policy.weight, policy.reference_weight) == (0.5, 0.5 if resets[0] else 0.25)
    assert policy.events == ["reset optimizer"] * resets[1]
    assert begun.prompts == ({} if resets[2] else {"cursor": 7})
    assert begun.policy_is_reference is resets[0]
    assert (begun.num_resets, begun.last_reset_step) == ((1, 40) if any(resets[:2]) else (0, 0))
    assert (begun.stage, begun.step, begun.num_updates) == ("b", 40, 160)
    assert begun.stage_step == (20 if is_resume else 0)
    seen = begun.recent_prompts, begun.recent_informative, begun.highest_score
    assert seen == ((64.0, 9.0, 4.0) if is_resume else (0.0, 0.0, 1.0)), "of this stage's prompts"


@pytest.mark.parametrize(
    ("checkpoints", "done", "stage", "parent", "decay_updates", "end"),
    [
        pytest.param("", "", "a", "", 40, 40, id="new run"),
        pytest.param("", "", "a", "", 39, 40, id="ends in the last step"),
        pytest.param("a6", "", "a", "", 40, 40, id="resume"),
        pytest.param("a6", "a", "b", "a", 64, 64, id="child"),
        pytest.param("a6", "a", "b", "a", 40, 64, id="child of a stage that has decayed"),
    ],
)
def test_a_learning_rate_that_would_be_0_before_the_last_update_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    checkpoints: str,
    done: str,
    stage: str,
    parent: str,
    decay_updates: int,
    end: int,
) -> None:
    monkeypatch.setattr(run, "check_same_weights", lambda *_: None)  # these checkpoints have no weights
    run_with(tmp_path, "", done)
    for step in (int(name[1:]) for name in checkpoints.split()):
        put_checkpoint(tmp_path, "a", step, stage_step=step, num_updates=4 * step)
    asked = config(tmp_path, stage, parent)
    asked.trainer = TrainerConfig(num_steps=10, decay=Decay.cosine, decay_updates=decay_updates)
    is_0, words = decay_updates < end, rf"write trainer\.decay_updates={end}, or fewer"
    with pytest.raises(ConfigError, match=words) if is_0 else nullcontext():
        run.starting_point(asked)


# At the parent's best checkpoint


def validations(**rewards: float) -> list[dict[str, Any]]:
    """Returns records of validations. Example: validations(at_20=0.5) == [{"step": 20, "domain_mean_score": 0.5}]"""
    return [
        {"step": int(name.removeprefix("at_")), "domain_mean_score": value} for name, value in rewards.items()
    ]


PEAK_AT_20 = {"at_0": 0.3, "at_20": 0.5, "at_40": 0.2}


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """Writes stage a: it is best after step 20, with the reference of step 10, and has degraded after step 40, after a
    reset at step 30."""
    at_20 = {"at_0": 0.3, "at_20": 0.5}
    put_checkpoint(
        tmp_path, "a", 20, score=0.5, stage_step=20, num_updates=80, num_resets=1, last_reset_step=10,
        last_reset_update=40, entropy=0.6, sampling_yield=0.7, prompts={"cursor": 200}, num_records=21,
        recent_prompts=64.0, recent_informative=9.0,
        validation=validations(**at_20),
    )  # fmt: skip
    put_checkpoint(
        tmp_path, "a", 40, score=0.2, stage_step=40, num_updates=160, num_resets=2, last_reset_step=30,
        last_reset_update=120, entropy=0.1, sampling_yield=0.2, prompts={"cursor": 400}, num_records=41,
        last_reset_request="17", validation=validations(**PEAK_AT_20),
    )  # fmt: skip
    mark_done(tmp_path, "a", outcome="end_stage", checkpoint="")
    return tmp_path


def test_the_policy_is_the_best_and_the_run_goes_on_behind_the_last_step(parent: Path) -> None:
    start = find_starting_point(config(parent, "b", "a", start_from=StartFrom.best))
    assert start.checkpoint is not None
    assert (start.checkpoint.state.step, start.is_resume) == (20, False)
    state = start.state()
    assert (state.step, state.num_updates, state.num_records) == (40, 160, 41), (
        "nothing that happened is undone"
    )
    assert state.prompts == {"cursor": 400}, "no prompt comes twice"
    assert (state.num_resets, state.last_reset_request, state.went_back_to) == (2, "17", 20)
    assert (state.entropy, state.sampling_yield) == (0.6, 0.7), "of the policy that it is now"
    assert (state.recent_prompts, state.recent_informative) == (64.0, 9.0)
    assert state.steps_since_reset == 20 - 10, "the schedules since then go on"
    assert state.num_updates - state.last_reset_update == 80 - 40, "as far from its reference as it was"
    assert state.validation == validations(at_0=0.3, at_20=0.5, at_40=0.5)
    assert str(start) == "step 20 of stage a, the stage's best by validation/domain_mean_score (0.5000)"


def test_a_policy_that_was_its_reference_still_is(tmp_path: Path) -> None:
    put_checkpoint(tmp_path, "a", 20, score=0.5, num_updates=80, last_reset_update=80)
    put_checkpoint(tmp_path, "a", 40, score=0.2, num_updates=160, last_reset_update=80)
    mark_done(tmp_path, "a", outcome="steps", checkpoint="")
    assert (
        find_starting_point(config(tmp_path, "b", "a", start_from=StartFrom.best)).state().policy_is_reference
    )


@pytest.mark.parametrize(
    ("others", "mode", "step", "goes_back"),
    [
        pytest.param([("z", 1, 0.9)], BestMode.max, 20, True, id="of the parent, not of the run"),
        pytest.param([], BestMode.min, 40, False, id="the last one itself"),
        pytest.param([("a", 30, 0.5)], BestMode.max, 30, True, id="of equal ones the newest"),
        pytest.param([("a", 60, 0.5)], BestMode.max, 60, False, id="the last one is as good"),
    ],
)
def test_the_best_is_an_earlier_checkpoint_of_the_parent_only_if_that_gains_something(
    parent: Path, others: list[tuple[str, int, float]], mode: BestMode, step: int, goes_back: bool
) -> None:
    for stage, at, score in others:
        put_checkpoint(parent, stage, at, score=score, stage_step=at)
    start = find_starting_point(config(parent, "b", "a", start_from=StartFrom.best, mode=mode))
    assert start.checkpoint is not None
    assert (start.checkpoint.state.step, start.last is not None) == (step, goes_back)
    assert (start.state() == start.checkpoint.state, start.state().went_back_to == -1) == (
        not goes_back,
        not goes_back,
    )


def test_a_corrupt_best_gives_way_to_the_next(parent: Path) -> None:
    asked = config(parent, "b", "a", start_from=StartFrom.best)
    start = find_starting_point(asked)
    assert start.checkpoint is not None
    state_file = start.checkpoint.path / "state.json"
    state_file.write_text(state_file.read_text().replace("0.6", "0.7"))
    found = find_intact_start(asked, start, SINGLE)
    assert found.checkpoint is not None
    assert found.checkpoint.state.step == 40


@pytest.mark.parametrize(
    ("monitor", "words"),
    [
        (
            "validation/math/score",
            "monitor=validation/domain_mean_score, which they have, or write stage.start_from=last",
        ),
        ("validation/score", "has a value of validation/score, so none is the best"),
    ],
)
def test_scores_by_another_metric_do_not_say_what_is_best(parent: Path, monitor: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_starting_point(config(parent, "b", "a", start_from=StartFrom.best, monitor=monitor))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_parent_that_was_never_validated_has_no_best(tmp_path: Path) -> None:
    put_checkpoint(tmp_path, "a", 40)
    mark_done(tmp_path, "a", outcome="steps", checkpoint="")
    with pytest.raises(ConfigError, match=r"so none is the best: write stage\.start_from=last\."):
        find_starting_point(config(tmp_path, "b", "a", start_from=StartFrom.best))


BEST = {"controller": ControllerConfig(reset_to=ResetTo.best)}
WITH_MOMENTS = {"controller": ControllerConfig(reset_to=ResetTo.best, reset_optimizer=False)}
CHILD = {"stage": StageConfig(name="b", parent="a", start_from=StartFrom.best)}


@pytest.mark.parametrize(
    ("asked", "validation", "interval", "params", "words"),
    [
        (BEST, ["v"], 20, {"save_top_k": 0}, "save_top_k=1"),
        (CHILD, ["v"], 0, {"save_top_k": 0}, "save_top_k=1"),
        (BEST, [], 20, {}, "needs held-out prompts"),
        (CHILD, [], 0, {}, "needs held-out prompts"),
        (BEST, ["v"], 20, {"monitor": "reward/mean"}, "is a metric of training"),
        (CHILD, ["v"], 0, {"monitor": "reward/mean"}, "is a metric of training"),
        # Otherwise a run that paused, which saves, could go back to what an uninterrupted run does not have.
        (BEST, ["v"], 20, {"every_n_train_steps": 20}, ""),
        (BEST, ["v"], 20, {"every_n_train_steps": 10}, ""),
        (BEST, ["v"], 20, {"every_n_train_steps": 25}, "needs a checkpoint at every validation"),
        (BEST, ["v"], 10, {"every_n_train_steps": 20}, "needs a checkpoint at every validation"),
        (BEST, ["v"], 0, {"every_n_train_steps": 20}, "needs a checkpoint at every validation"),
        (BEST, ["v"], 20, {"every_n_train_steps": 0}, "needs a checkpoint at every validation"),
        (BEST, ["v"], 20, {"keep_moments": False}, ""),
        (WITH_MOMENTS, ["v"], 20, {}, ""),
        (WITH_MOMENTS, ["v"], 20, {"keep_moments": False}, "keep_moments=false deletes"),
        # The first stage of a chain has no parent; a recipe that sets it for all stages is accepted for it.
        ({"stage": StageConfig(start_from=StartFrom.best)}, [], 0, {}, ""),
    ],
)
def test_best_needs_what_says_what_is_best(
    asked: dict[str, Any], validation: list[str], interval: int, params: dict[str, Any], words: str
) -> None:
    with nullcontext() if not words else pytest.raises(ConfigError, match=words):
        RunConfig(
            **asked,
            data=DataConfig(validation=validation),
            validation=ValidationConfig(interval=interval),
            exp_manager=ExpManagerConfig(checkpoint_callback_params=CheckpointCallbackParams(**params)),
        )


@pytest.mark.parametrize(
    ("files", "interval", "words"), [([], 20, r"data\.validation=\["), (["v"], 0, r"validation\.interval=20")]
)
def test_a_target_needs_validations(files: list[str], interval: int, words: str) -> None:
    with pytest.raises(ConfigError, match=f"needs validations during the stage: write {words}"):
        RunConfig(
            data=DataConfig(validation=files), validation=ValidationConfig(interval=interval, stop_at=0.5)
        )


def test_who_ends_a_run_at_once_learns_what_is_left_of_it(tmp_path: Path) -> None:
    assert resume_message(tmp_path) == "nothing is saved yet: the same command begins again."
    put_checkpoint(tmp_path, "a", 5)
    put_checkpoint(tmp_path, "a", 10)
    assert resume_message(tmp_path) == "the same command goes on after step 10, the last that is saved."


@pytest.mark.parametrize("is_resume", [True, False])
def test_a_stage_that_goes_on_knows_the_score_of_its_weights(tmp_path: Path, is_resume: bool) -> None:
    """Otherwise a checkpoint that is saved again before the next step would lose it, and with it its place."""
    state = RunState(stage="run1", step=7)
    checkpoint = Checkpoint(path=tmp_path, state=state, reference_hash="", score=0.5, monitor="reward/mean")
    start = StartingPoint(checkpoint=checkpoint, is_resume=is_resume)
    assert start.measured(state) == ({"reward/mean": 0.5} if is_resume else {})
