"""What `verify` plans and refuses, from the files of a run alone. tests/training has steps that are computed again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nemo_prorl.__main__ import main
from nemo_prorl.config import DataConfig, ExpManagerConfig, RunConfig, StageConfig
from nemo_prorl.config.compose import to_dict
from nemo_prorl.questions import rerun
from nemo_prorl.run import step_inputs
from nemo_prorl.run_folder.metrics_file import append_metrics
from nemo_prorl.run_folder.records import DigestLog, read_digests
from nemo_prorl.run_folder.storage import write_manifest
from nemo_prorl.run_folder.validation_metrics import WENT_BACK
from nemo_prorl.types import RunState
from tests.training.conftest import SINGLE
from tests.training.test_stages import put_checkpoint

FILES = {"z.parquet": 1.0, "a.parquet": 1.0}


@pytest.fixture
def resumed(tmp_path: Path) -> Path:
    """Writes a run that trained steps 1 and 2 on one rank and 3 and 4 on two, and has no checkpoint any more."""
    manager = ExpManagerConfig(explicit_log_dir=str(tmp_path))
    inputs = step_inputs(RunConfig(data=DataConfig(train=FILES), exp_manager=manager), SINGLE)
    for step in range(1, 5):
        state = RunState(stage="main", step=step)
        if step in (1, 3):
            log = DigestLog(tmp_path, step - 1)
            log.begin(RunState(stage="main", step=step - 1), {**inputs, "ranks": 1 + step // 3})
        log.add(state, {"phases": {}, "was_ahead": False, "ahead": False})
        append_metrics(tmp_path / "metrics.jsonl", {"step": step, "stage": "main", "reward/mean": 0.5})
    return tmp_path


def test_a_step_is_exact_only_if_every_step_that_is_computed_had_the_same_circumstances(
    resumed: Path,
) -> None:
    """Its checkpoint is pruned, so that step 4 is computed through steps that one rank trained."""
    assert rerun.other_circumstances(rerun.plan(resumed, 2, 2), SINGLE) == []
    assert rerun.other_circumstances(rerun.plan(resumed, 4, 4), SINGLE) == ["ranks 2 then, 1 now"]
    two = rerun.plan(resumed, 1, 4)
    assert [inputs["ranks"] for inputs in two.inputs] == [1, 1, 2, 2]


def test_a_lost_checkpoint_is_named_before_anything_is_computed(resumed: Path) -> None:
    """The reset after step 2 went back to it."""
    file = resumed / "metrics.jsonl"
    lines = file.read_text().splitlines()
    lines[1] = json.dumps({**json.loads(lines[1]), WENT_BACK: 1})
    file.write_text("\n".join(lines) + "\n")
    assert rerun.plan(resumed, 2, 2).last == 2
    with pytest.raises(rerun.CannotVerify, match=r"went back to step 1 of stage main, and that checkpoint"):
        rerun.plan(resumed, 3, 3)
    folder = put_checkpoint(resumed, "main", 1, num_records=1)
    (folder / "weights").write_bytes(b"1234")
    write_manifest(folder, {})
    assert rerun.plan(resumed, 3, 3).begins_after == 1
    (folder / "weights").write_bytes(b"1235")
    with pytest.raises(
        rerun.CannotVerify, match=r"went back to step 1 of stage main, .*step-00000001-main, and"
    ):
        rerun.plan(resumed, 3, 3)


def test_a_checkpoint_whose_content_has_changed_is_not_begun_with(resumed: Path) -> None:
    """The next older one is, or none of the stage's; a checkpoint of the parent stage has no such substitute."""
    folders = [put_checkpoint(resumed, "main", step, num_records=step) for step in (1, 3)]
    for folder in folders:
        (folder / "weights").write_bytes(b"1234")
        write_manifest(folder, {})
    assert rerun.plan(resumed, 4, 4).begins_after == 3
    (folders[1] / "weights").write_bytes(b"1235")
    assert rerun.plan(resumed, 4, 4).begins_after == 1
    child = RunConfig(stage=StageConfig(name="child", parent="main"))
    with pytest.raises(rerun.CannotVerify, match=r"stage child began with .*step-00000003-main, and"):
        rerun._start(resumed, child, 5)


def test_a_step_behind_others_with_other_options_is_refused(resumed: Path) -> None:
    options = to_dict(RunConfig(data=DataConfig(train=FILES)))
    options["trainer"]["learning_rate"] = 1e-3
    log = DigestLog(resumed, 4)
    log.begin(RunState(stage="main", step=4), {"options": options})
    log.add(RunState(stage="main", step=5), {"phases": {}, "was_ahead": False})
    with pytest.raises(
        rerun.CannotVerify, match=r"step 1 on the way was trained with another trainer\.learning_rate"
    ):
        rerun.plan(resumed, 5, 5)


@pytest.mark.parametrize(
    ("change", "matters"),
    [
        ({"controller": {"mode": "automatic"}}, True),  # the KL to the reference is measured from here on
        ({"controller": {"reset_reference": False}}, True),
        ({"controller": {"reset_optimizer": False}}, True),
        ({"stage": {"reset_reference": False}}, True),
        ({"controller": {"cooldown": 3}}, False),
        ({"exp_manager": {"record_rollouts": 1}}, False),
        ({"lora": {"rank": 1}}, True),
    ],
)
def test_options_that_change_on_the_way_are_named_if_numbers_depend_on_them(
    change: dict[str, dict[str, Any]], matters: bool
) -> None:
    before = to_dict(RunConfig())
    now = {name: {**options, **change.get(name, {})} if isinstance(options, dict) else options
           for name, options in before.items()}  # fmt: skip
    ((section, values),) = change.items()
    assert rerun.changed_options(before, now) == [f"{section}.{name}" for name in values if matters]


def test_the_files_of_the_data_keep_their_order(resumed: Path) -> None:
    """It decides between files of equal weight."""
    assert list(rerun.plan(resumed, 1, 1).config.data.train) == list(FILES)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--step", "9"], "has no digest of step 9: write a step of 1 to 4."),
        (["--step", "3..2"], "--step 3..2 is no step"),
        (["--tolerance", "-0.1"], "--tolerance -0.1 is no difference: write 0 or more"),
        (["--tolerance", "nan"], "--tolerance nan is no difference"),
        (["--tolerance", "inf"], "--tolerance inf is no difference"),
    ],
)
def test_mistakes_are_one_sentence(
    resumed: Path, capsys: pytest.CaptureFixture[str], words: list[str], what: str
) -> None:
    assert main(["verify", str(resumed), *words]) == 2
    assert what in capsys.readouterr().err


def test_an_error_of_ours_is_no_verdict(
    resumed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python would end with 1, which means that the step is different."""

    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(rerun, "plan", fail)
    assert main(["verify", str(resumed)]) == 2
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert said.endswith("nothing was verified: by zero.\n")


def test_a_step_is_sampled_again_with_the_seed_of_its_attempt(resumed: Path) -> None:
    """Also from a checkpoint that is older than the attempts that failed."""
    log = DigestLog(resumed, 2)
    for step, num_attempts in ((3, 2), (4, 0)):
        log.add(
            RunState(stage="main", step=step, num_attempts=num_attempts), {"was_ahead": False, "phases": {}}
        )
    lines = read_digests(resumed).steps
    plan = replace(rerun.plan(resumed, 1, 2), last=4, lines=lines)
    state, seen = RunState(stage="main"), []

    def step(state: RunState, **_: Any) -> None:
        seen.append(state.num_attempts)
        state.step += 1

    def nothing(*_: Any, **__: Any) -> None: ...

    collector = SimpleNamespace(drop_ahead=nothing)
    stepper: Any = SimpleNamespace(refit=nothing, step=step, collector=collector)
    list(rerun.steps_again(plan, stepper, state))
    assert seen == [0, 0, 2, 0]
    assert [plan.num_attempts(step) for step in plan.steps] == seen
