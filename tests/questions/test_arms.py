"""Tests of arms before anything trains: what an arm may change, what its folder begins with, and what is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl import __main__ as cli
from nemo_prorl.commands import fork
from nemo_prorl.config import (
    ConfigError,
    ControllerConfig,
    DataConfig,
    ExpManagerConfig,
    RewardConfig,
    RunConfig,
    StageConfig,
    StartFrom,
)
from nemo_prorl.config.compose import compose, to_dict
from nemo_prorl.engines.megatron.check import CHECKPOINT_MARK
from nemo_prorl.questions import arms
from nemo_prorl.questions.arms import Arm, ArmRun, arm_runs, checkpoint_at, prepare
from nemo_prorl.run_folder.checkpoints import find_checkpoints
from nemo_prorl.run_folder.metrics_file import append_metrics, read_metrics
from nemo_prorl.run_folder.origin import write_resolved
from nemo_prorl.run_folder.records import DigestLog
from nemo_prorl.run_folder.storage import write_manifest
from nemo_prorl.training.stages import find_starting_point
from nemo_prorl.types import RunState
from tests.conftest import ROOT
from tests.training.test_stages import put_checkpoint

NOTHING, HALF = Arm(name="nothing"), Arm(name="half", overrides=("trainer.learning_rate=1e-6",))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Writes a run of stage run2 with checkpoints of steps 20 and 30, that has gone on to step 33."""
    run = tmp_path / "run"
    manager = ExpManagerConfig(
        explicit_log_dir=str(run),
        wandb_logger_kwargs={"project": "p", "id": "x"},
    )
    config = RunConfig(
        seed=5,
        data=DataConfig(train={"a.parquet": 1.0}, validation=["b.parquet"]),
        stage=StageConfig(name="run2", parent="run1", start_from=StartFrom.best),
        exp_manager=manager,
    )
    for name in ("run1", "run2"):
        write_resolved(config, run / "stages" / f"{name}.yaml")
    for step in (20, 30):
        policy = put_checkpoint(run, "run2", step, num_records=step + 1, stage_step=step - 10) / "policy"
        policy.mkdir()
        (policy / "weights").write_bytes(bytes([step]))
        (policy / CHECKPOINT_MARK).write_text(json.dumps({"precision": "bf16", "contents": []}))
        write_manifest(policy.parent, {})
    for step in range(34):
        append_metrics(run / "metrics.jsonl", {"step": step, "stage": "run2", "time/step_s": 1.0})
    return run


def made(
    run_dir: Path, *given: Arm, step: int = 20, num_seeds: int = 1, common: tuple[str, ...] = ()
) -> list[ArmRun]:
    checkpoint = checkpoint_at(run_dir, step)
    runs = arm_runs(
        run_dir, checkpoint, given or (NOTHING, HALF), common=common, num_seeds=num_seeds, num_steps=4,
        out=run_dir.parent / "out", conf_dir=ROOT / "conf",
    )  # fmt: skip
    prepare(runs, run_dir, checkpoint, None)
    return runs


def everything(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize(
    ("text", "name", "overrides"),
    [
        ("nothing", "nothing", ()),
        (" a-1 : ", "a-1", ()),
        ("b: x=1 'y={p: 2}' z=\"a b\"", "b", ("x=1", "y={p: 2}", "z=a b")),
    ],
)
def test_an_arm_is_a_name_and_overrides(text: str, name: str, overrides: tuple[str, ...]) -> None:
    assert Arm.parsed(text) == Arm(name=name, overrides=overrides)


@pytest.mark.parametrize("text", ["", ": x=1", "a b: x=1", "a/b", "-a", "a: 'x", "ä"])
def test_a_name_that_no_folder_can_have_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--arm"):
        Arm.parsed(text)


def test_an_arm_continues_the_checkpoint_as_a_child_stage(run_dir: Path) -> None:
    """Judged by what `train` itself would do with the folder."""
    before = everything(run_dir)
    runs = made(run_dir, num_seeds=2)
    assert [run.name for run in runs] == ["nothing-5", "half-5", "nothing-6", "half-6"]
    for run in runs:
        config = compose(str(run.folder / "arm.yaml"), [], conf_dir=ROOT / "conf")
        assert config == run.config
        start = find_starting_point(config)
        assert start.checkpoint is not None
        assert (start.checkpoint.state.step, start.is_resume) == (20, False)
        stage, manager = config.stage, config.exp_manager
        assert (stage.reset_reference, stage.reset_optimizer, stage.reset_data) == (False, False, False)
        assert (config.seed, config.trainer.num_steps) == (run.seed, 4)
        assert manager.wandb_logger_kwargs == {"project": "p"}
        records = read_metrics(run.folder / "metrics.jsonl")
        assert records == read_metrics(run_dir / "metrics.jsonl")[:21]
        copy = run.folder / "checkpoints/step-00000020-run2/policy/weights"
        assert copy.samefile(run_dir / "checkpoints/step-00000020-run2/policy/weights"), "it takes no room"
    rates = [run.config.trainer.learning_rate for run in runs]
    assert rates == [RunConfig().trainer.learning_rate, 1e-6] * 2
    assert everything(run_dir) == before


def test_an_arm_may_reset_and_take_a_recipe(run_dir: Path) -> None:
    reset = Arm(name="reset", overrides=("stage.reset_reference=true", "stage.reset_optimizer=true"))
    recipe = Arm(name="dapo", overrides=("recipe=dapo",))
    first, second = made(run_dir, reset, recipe)
    assert first.config.stage.reset_reference
    assert first.config.stage.reset_optimizer
    assert second.config.algorithm.kl_beta == 0


def test_an_arm_with_other_factors_is_refused_before_another_one_trains(run_dir: Path) -> None:
    low_rank = ("lora.rank=8", "stage.reset_reference=true", "stage.reset_optimizer=true")
    with pytest.raises(ConfigError, match=r"stage low goes on with step 20 .* lora\.\* asks for rank 8"):
        made(run_dir, NOTHING, Arm(name="low", overrides=low_rank[:1]))
    assert not (run_dir.parent / "out").exists()
    assert made(run_dir, NOTHING, Arm(name="low", overrides=low_rank))[1].config.lora.rank == 8


def test_an_arm_does_not_ask_the_servers_of_a_job_that_has_ended(run_dir: Path) -> None:
    def of_arm(discovery_dir: Path, *common: str) -> tuple[str, str]:
        reward = RewardConfig(discovery_dir=str(discovery_dir), token_file=str(discovery_dir / "token"))
        file = run_dir / "stages" / "run2.yaml"
        write_resolved(replace(compose(str(file), [], conf_dir=ROOT / "conf"), reward=reward), file)
        runs = arm_runs(
            run_dir, checkpoint_at(run_dir, 20), [NOTHING], common=common, num_seeds=1, num_steps=4,
            out=run_dir.parent / "out", conf_dir=ROOT / "conf",
        )  # fmt: skip
        return runs[0].config.reward.discovery_dir, runs[0].config.reward.token_file

    others = run_dir.parent / "servers"
    assert of_arm(run_dir / "reward" / "17") == ("", "")
    assert of_arm(run_dir / "reward" / "17", f"reward.discovery_dir={others}") == (str(others), "")
    assert of_arm(others) == (str(others), str(others / "token"))


REFUSED = [
    ("arm bad changes seed from 5 to 6", ("seed=6",)),
    ("arm bad changes stage.name", ("stage.name=x",)),
    ("arm bad changes stage", ("stage.start_from=last",)),
    ("arm bad changes trainer.num_steps", ("trainer.num_steps=9",)),
    ("arm bad changes exp_manager.explicit_log_dir", ("exp_manager.explicit_log_dir=x",)),
    ("arm bad changes model.path", ("model.path=x",)),
    ("arm bad changes model.precision", ("model.precision=fp32",)),
    ("arm bad changes data.validation", ("data.validation=[x.parquet]",)),
    ("arm bad changes validation.num_rollouts", ("validation.num_rollouts=3",)),
    ("arm bad changes validation.temperature", ("validation.temperature=0.1",)),
    ("arm bad changes sampler.max_response_tokens", ("sampler.max_response_tokens=7",)),
    ("arm bad changes reward.function", ("reward.function=[a.py:b]",)),
    ("trainer.lerning_rate is not an option", ("trainer.lerning_rate=1",)),
]


@pytest.mark.parametrize(("what", "overrides"), REFUSED, ids=[what for what, _ in REFUSED])
def test_an_arm_that_changes_what_must_be_the_same_is_refused_before_any_folder(
    run_dir: Path, what: str, overrides: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError, match=what):
        made(run_dir, NOTHING, HALF, Arm(name="bad", overrides=overrides))
    assert not (run_dir.parent / "out").exists()


def test_an_arm_may_train_on_further_or_other_problems(run_dir: Path) -> None:
    arms = [
        Arm(name="more", overrides=("data.train.x.parquet=1",)),
        Arm(name="x", overrides=("data.train=x.parquet",)),
    ]
    nothing, more, others = (run.config.data for run in made(run_dir, NOTHING, *arms))
    assert more.train == {**nothing.train, "x.parquet": 1.0}
    assert others.train == {"x.parquet": 1.0}
    assert more.validation == others.validation == nothing.validation


def test_all_arms_may_change_together_what_one_may_not(run_dir: Path) -> None:
    runs = made(run_dir, common=("validation.num_rollouts=3", "sampler.max_response_tokens=7"))
    assert {run.config.validation.num_rollouts for run in runs} == {3}
    with pytest.raises(ConfigError, match="the command changes seed"):
        made(run_dir, common=("seed=6",))
    options = run_dir / "stages/run2.yaml"
    options.write_text(options.read_text().replace("start_from: best", "start_from: last"))
    with pytest.raises(ConfigError, match=r"data\.validation is empty"):
        made(run_dir, common=("data.validation=[]",))


@pytest.mark.parametrize("names", [("a", "a"), ("a", "run2"), ("run1", "a")])
def test_names_that_are_taken_are_refused(run_dir: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"name"):
        made(run_dir, *(Arm(name=name) for name in names))


def _edited(old: str, new: str) -> Callable[[ArmRun], None]:
    """Returns a function that changes the options of an arm."""

    def edit(run: ArmRun) -> None:
        file = run.folder / "arm.yaml"
        file.write_text(file.read_text().replace(old, new))

    return edit


def _other_checkpoint(run: ArmRun) -> None:
    folder = run.folder / "checkpoints/step-00000020-run2"
    (folder / "manifest.json").unlink()
    (folder / "policy/weights").unlink()
    (folder / "policy/weights").write_bytes(b"another")
    write_manifest(folder, {})


def _no_checkpoint(run: ArmRun) -> None:
    """As a training leaves it that finds it damaged."""
    folder = run.folder / "checkpoints"
    (folder / "step-00000020-run2").rename(folder / "corrupt-step-00000020-run2")


def _no_options(run: ArmRun) -> None:
    (run.folder / "arm.yaml").unlink()


@pytest.mark.parametrize(
    ("mutate", "what"),
    [
        (_edited("rate: 2.0e-06", "rate: 3.0e-06"), "learning_rate=3e-06 and would go on with .*2e-06"),
        (_edited("a.parquet: 1", "c.parquet: 1\n    a.parquet: 1"), r"c\.parquet=1.* with .*None"),
        (_other_checkpoint, "did not begin with"),
        (_no_checkpoint, "no whole step-00000020-run2, with which it began: delete that folder"),
        (_no_options, "no arm of a fork"),
    ],
)
def test_a_folder_that_was_made_otherwise_is_refused_and_nothing_is_made_beside_it(
    run_dir: Path, mutate: Callable[[ArmRun], None], what: str
) -> None:
    first, *_ = made(run_dir)
    assert first.config.trainer.learning_rate == 2e-6
    mutate(first)
    before = everything(run_dir.parent)
    with pytest.raises(ConfigError, match=what):
        made(run_dir, Arm(name="new"), NOTHING, HALF)
    assert everything(run_dir.parent) == before


@pytest.mark.parametrize("exist", [False, True])
def test_a_checkpoint_whose_content_has_changed_is_refused_before_a_folder_is_made(
    run_dir: Path, exist: bool
) -> None:
    """Nor does an arm train that exists: its files are the same."""
    if exist:
        made(run_dir, NOTHING)
    weights = run_dir / "checkpoints/step-00000020-run2/policy/weights"
    weights.write_bytes(bytes([weights.read_bytes()[0] + 1]))
    with pytest.raises(ConfigError, match=r"damaged \(policy/weights is not what was written\)"):
        made(run_dir, *([NOTHING] if exist else []))
    assert exist or not list((run_dir.parent / "out").glob("*"))


def test_an_arm_whose_training_deleted_the_moments_of_its_start_goes_on(run_dir: Path) -> None:
    policy = run_dir / "checkpoints/step-00000020-run2/policy"
    (policy / "moments").mkdir()
    (policy / "moments/first").touch()
    write_manifest(policy.parent, {})
    first, *_ = made(run_dir)
    find_checkpoints(first.folder)[0].remove_moments()
    made(run_dir)


def test_the_arms_of_a_copied_run_go_on_in_the_copy(run_dir: Path) -> None:
    made(run_dir)
    copy = shutil.copytree(run_dir.parent, run_dir.parent / "copy")
    runs = made(copy / "run")
    assert [run.folder for run in runs] == [copy / "out" / name for name in ("nothing-5", "half-5")]
    for run in runs:
        config = compose(str(run.folder / "arm.yaml"), [], conf_dir=ROOT / "conf")
        assert config.exp_manager.explicit_log_dir == str(run.folder)


def test_the_same_command_makes_what_is_missing_and_keeps_what_is_there(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after it died while it made a folder."""
    first, _ = made(run_dir)
    (first.folder / "metrics.jsonl").write_text("trained\n")

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(arms, "rewind_metrics", die)
        with pytest.raises(KeyboardInterrupt):
            made(run_dir, NOTHING, HALF, Arm(name="third"))
    assert not (run_dir.parent / "out/third-5").exists()
    runs = made(run_dir, NOTHING, HALF, Arm(name="third"), num_seeds=2)
    assert sorted(path.name for path in (run_dir.parent / "out").iterdir()) == sorted(
        run.name for run in runs
    )
    assert (first.folder / "metrics.jsonl").read_text() == "trained\n"


def test_prepare_prints_a_command_for_each_arm_that_is_not_done(
    run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """run2 has a launcher, so the commands submit jobs: its script, whose last line trains the arm."""
    monkeypatch.chdir(ROOT)
    out = run_dir.parent / "out"
    command = f"fork {run_dir} --at 30 --steps 4 --out {out} --prepare --arm nothing".split()
    assert cli.main([*command, "--arm", "half: trainer.learning_rate=1e-6"]) == 0
    (out / "half-5/stages/half.done").write_text(json.dumps({"outcome": "steps", "checkpoint": ""}))
    (out / "half-5/metrics.jsonl").write_text("")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["sbatch", "sbatch"]
    job = Path(lines[0].split()[-1])
    assert job == out / "nothing-5/job.sh"
    launcher = next(ROOT.glob("launchers/run2_*.sh")).read_text().splitlines()
    script = job.read_text().splitlines()
    assert script[:-1] == launcher[:-1]
    assert script[-1] == (
        f'run_stage nothing --config-name {out}/nothing-5/arm.yaml exp_manager.explicit_log_dir={out}/nothing-5 "$@"'
    )
    subprocess.run(["bash", "-n", str(job)], check=True)


def test_without_a_launcher_the_commands_train_on_this_machine(run_dir: Path) -> None:
    runs = made(run_dir)
    file = f"{runs[0].folder}/arm.yaml"
    assert fork.commands_of(runs, 1)[0] == f"python -m nemo_prorl train --config-name {file}"
    two = "torchrun --standalone --nproc-per-node=2 -m nemo_prorl train --config-name"
    assert [line.rpartition(" ")[0] for line in fork.commands_of(runs, 2)] == [two, two]


def test_options_that_have_changed_since_the_checkpoint_are_named(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run was resumed after step 20 with another learning rate, and after step 30 with another cool-down."""
    newest = compose(str(run_dir / "stages/run2.yaml"), [], conf_dir=ROOT / "conf")
    before = replace(newest, trainer=replace(newest.trainer, learning_rate=1e-3))
    cooled = replace(newest, controller=ControllerConfig(cooldown=3))
    log = DigestLog(run_dir, 0)
    for step in range(1, 34):
        config = before if step <= 20 else cooled if step <= 30 else newest
        log.begin(RunState(stage="run2", step=step - 1), {"options": to_dict(config)})
        log.add(RunState(stage="run2", step=step), {"phases": {}})
    for step, changed in ((19, ["trainer.learning_rate"]), (20, []), (30, []), (33, [])):
        state = RunState(stage="run2", step=step)
        assert arms.changed_since(run_dir, state, ROOT / "conf") == changed
    assert arms.changed_since(run_dir, RunState(stage="run1", step=20), ROOT / "conf") == []
    put_checkpoint(run_dir, "run2", 12, num_records=13)
    (run_dir / "checkpoints/step-00000012-run2/policy").mkdir()
    shutil.copy(run_dir / f"checkpoints/step-00000020-run2/policy/{CHECKPOINT_MARK}",
                run_dir / "checkpoints/step-00000012-run2/policy")  # fmt: skip
    assert cli.main(f"fork {run_dir} --at 12 --steps 2 --prepare --arm a --arm b".split()) == 0
    said = capsys.readouterr().out
    assert "was trained with another trainer.learning_rate: the arms have the newest" in said


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("--arm nothing", "--arm is given once"),
        ("--arm a --arm b --at 25", "no checkpoint of step 25 to go on from: write --at with one of 20, 30."),
    ],
)
def test_mistakes_are_one_sentence(
    run_dir: Path, capsys: pytest.CaptureFixture[str], words: str, what: str
) -> None:
    before = everything(run_dir.parent)
    assert cli.main(["fork", str(run_dir), "--at", "20", "--steps", "2", *words.split()]) == 2
    assert what in capsys.readouterr().err
    assert everything(run_dir.parent) == before
