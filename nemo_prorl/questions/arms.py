"""Arms: trainings that go on from one checkpoint of a run with other options, each with several seeds.

OUT/ARM-SEED/           a run's folder. It begins with the checkpoint (hard links), which counts as a finished stage
OUT/ARM-SEED/arm.yaml   every option of the arm, which is a child stage of that name
OUT/ARM-SEED/job.sh     the launcher of the run's stage, for the arm; only if the stage has one
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

import yaml

from nemo_prorl.config import ConfigError, RunConfig, StartFrom
from nemo_prorl.config.compose import compose, quoted, to_dict
from nemo_prorl.questions.rerun import changed_options
from nemo_prorl.run import check_same_weights
from nemo_prorl.run_folder import markers
from nemo_prorl.run_folder.checkpoints import CHECKPOINTS_FOLDER, Checkpoint, find_checkpoints
from nemo_prorl.run_folder.metrics_file import rewind_metrics
from nemo_prorl.run_folder.origin import flatten, write_resolved
from nemo_prorl.run_folder.run import RunFolder
from nemo_prorl.run_folder.slurm_jobs import without_servers_of_its_job
from nemo_prorl.run_folder.storage import ASIDE, changed_content, missing_or_torn, read_manifest, replace_text
from nemo_prorl.run_folder.validation_metrics import MEASURED_OPTIONS
from nemo_prorl.training.stages import StartingPoint
from nemo_prorl.types import RunState

ARM_FILE, JOB_FILE, FOLDER = "arm.yaml", "job.sh", "exp_manager.explicit_log_dir"
SET_BY_FORK = ("seed", "trainer.num_steps", "stage.name", "stage.parent", "stage.start_from", FOLDER)
"""Options that follow from --seeds, --steps, --at and --out. All others may be changed for all arms together."""
SAME_IN_ALL = (
    "model.path", "model.precision", "data.validation", "reward.function", "reward.weights",
    *MEASURED_OPTIONS,
)  # fmt: skip
"""Options that one arm alone may not change: the model, what is measured, and by whom. All others may differ."""
GOES_ON = ("stage.reset_reference=false", "stage.reset_optimizer=false", "stage.reset_data=false")
"""Overrides of every arm before its own: a child stage that only goes on."""
LOGGER_IDS = ("id", "version", "run_id", "resume")
"""Arguments of loggers that name the run at W&B to write to, which is the parent's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A name, and the overrides that make the difference."""

    name: str
    overrides: tuple[str, ...] = ()

    @staticmethod
    def parsed(text: str) -> Arm:
        """Returns the arm of `NAME` or `NAME: KEY=VALUE ...`. Raises ConfigError."""
        name, _, overrides = text.partition(":")
        if not re.fullmatch(r"\w[\w-]*", name.strip(), re.ASCII):
            raise ConfigError(
                f"--arm {text!r} has no name of letters, digits, '-' and '_': write 'NAME: KEY=VALUE ...', such as "
                "'half_lr: trainer.learning_rate=1e-6'."
            )
        try:
            return Arm(name=name.strip(), overrides=tuple(shlex.split(overrides)))
        except ValueError as error:
            raise ConfigError(
                f"--arm {text!r} cannot be read ({error}): close its quotation marks."
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArmRun:
    """One seed of an arm. It equals only itself."""

    arm: Arm
    seed: int
    folder: Path
    config: RunConfig

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def is_done(self) -> bool:
        return markers.is_done(self.folder, self.arm.name)

    @property
    def why_failed(self) -> str:
        """Returns why it cannot be trained to its end; empty unless it failed."""
        return markers.why_failed(self.folder, self.arm.name)

    @property
    def arguments(self) -> list[str]:
        """Returns the arguments of `python -m nemo_prorl` that train it."""
        return ["train", "--config-name", str(self.folder / ARM_FILE)]


def checkpoint_at(run_dir: Path, step: int) -> Checkpoint:
    """Returns the run's newest checkpoint of this step that has everything to go on from. Raises ConfigError."""
    checkpoints = [checkpoint for checkpoint in find_checkpoints(run_dir) if checkpoint.has_moments]
    found = [checkpoint for checkpoint in checkpoints if checkpoint.state.step == step]
    if not found:
        has = ", ".join(dict.fromkeys(str(checkpoint.state.step) for checkpoint in checkpoints))
        raise ConfigError(
            f"{run_dir} has no checkpoint of step {step} to go on from: write --at with one of {has}."
            if has
            else f"{run_dir} has no checkpoints yet: write the folder of a run that has saved one."
        )
    return found[-1]


def changed_since(run_dir: Path, state: RunState, conf_dir: Path) -> list[str]:
    """Returns the names of options of the stage, which its arms take over, that were others in the step after `state`;
    without such a step, in the step before."""
    digests = RunFolder(run_dir).digests
    lines = (digests.steps.get(step, {}) for step in (state.step + 1, state.step))
    line = next((line for line in lines if line.get("stage") == state.stage), {})
    then = digests.inputs.get(line.get("of_inputs", ""))
    now = to_dict(compose(str(run_dir / "stages" / f"{state.stage}.yaml"), [], conf_dir=conf_dir))
    return changed_options(then["options"], now) if then else []


def arm_runs(
    run_dir: Path,
    checkpoint: Checkpoint,
    arms: Sequence[Arm],
    *,
    common: Sequence[str],
    num_seeds: int,
    num_steps: int,
    out: Path,
    conf_dir: Path,
) -> list[ArmRun]:
    """Returns the trainings to compare, all arms of one seed before the next seed, the run's own seed first. common:
    overrides of all arms. Raises ConfigError for options that do not exist or that an arm may not change."""
    names = [arm.name for arm in arms]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"two arms are called {repeated[0]}: give each a name of its own.")
    state = checkpoint.state
    if taken := {file.stem for file in run_dir.glob("stages/*.yaml")}.intersection(names):
        raise ConfigError(f"an arm is called {min(taken)}, as a stage of the run: write another name.")
    recorded = str(run_dir / "stages" / f"{state.stage}.yaml")
    begun = compose(recorded, [], conf_dir=conf_dir)
    common = [*GOES_ON, *common]
    base = compose(recorded, common, conf_dir=conf_dir)
    _check_same("the command", base, begun, SET_BY_FORK, "--at, --seeds, --steps and --out set it")
    if not base.data.validation:
        raise ConfigError(
            "data.validation is empty, and arms are compared by their held-out rewards: write data.validation=FILE."
        )
    configs = {}
    # Written out, because an arm's data.train alone would empty it.
    held_out = f"data.validation=[{','.join(map(quoted, base.data.validation))}]"
    for arm in arms:
        configs[arm] = compose(recorded, [*common, held_out, *arm.overrides], conf_dir=conf_dir)
        _check_same(
            f"arm {arm.name}",
            configs[arm],
            base,
            (*SET_BY_FORK, *SAME_IN_ALL),
            "the arms would not compare, so leave it out, or write it outside of --arm, for all of them",
        )
    seeds = range(base.seed, base.seed + num_seeds)
    return [
        _arm_run(arm, seed, without_servers_of_its_job(config), state.stage, num_steps, out)
        for seed in seeds
        for arm, config in configs.items()
    ]


def _arm_run(arm: Arm, seed: int, config: RunConfig, parent: str, num_steps: int, out: Path) -> ArmRun:
    folder, manager = out / f"{arm.name}-{seed}", config.exp_manager
    wandb = {name: value for name, value in manager.wandb_logger_kwargs.items() if name not in LOGGER_IDS}
    whole = replace(
        config,
        seed=seed,
        stage=replace(config.stage, name=arm.name, parent=parent, start_from=StartFrom.last),
        trainer=replace(config.trainer, num_steps=num_steps),
        exp_manager=replace(
            manager,
            explicit_log_dir=str(folder),
            wandb_logger_kwargs=wandb,
        ),
    )
    return ArmRun(arm=arm, seed=seed, folder=folder, config=whole)


def _check_same(who: str, config: RunConfig, other: RunConfig, options: Sequence[str], instead: str) -> None:
    """Raises ConfigError for the first of the options that differs. instead: what to do about it."""
    for key in options:
        before, now = (attrgetter(key)(each) for each in (other, config))
        if before != now:
            raise ConfigError(f"{who} changes {key} from {before} to {now}: {instead}.")


def prepare(runs: Sequence[ArmRun], run_dir: Path, checkpoint: Checkpoint, launcher: Path | None) -> None:
    """Makes the folders that do not exist yet, each complete or not at all. Raises ConfigError, before it makes any, if
    one exists that was made from another checkpoint or with other options, if the checkpoint's content has changed, or
    for other low-rank factors than the checkpoint's without a reset. launcher: of the run's stage, if any."""
    for run in runs:
        check_same_weights(run.config, StartingPoint(checkpoint=checkpoint, is_resume=False))
    moved = [run for run in runs if run.folder.exists() and _was_moved(run, checkpoint)]
    if not all(run.is_done for run in runs) and (damage := changed_content(checkpoint.path)):
        raise ConfigError(
            f"{checkpoint.path} is damaged ({damage}): bring back a copy of it, or write --at with another step."
        )
    for run in runs:
        if not run.folder.exists():
            _make(run, run_dir, checkpoint, launcher)
        elif run in moved:
            _write_options(run, run.folder, launcher)


def _make(run: ArmRun, run_dir: Path, checkpoint: Checkpoint, launcher: Path | None) -> None:
    state, aside = checkpoint.state, run.folder.with_name(f"{ASIDE}{run.name}")
    shutil.rmtree(aside, ignore_errors=True)
    (aside / "stages").mkdir(parents=True)
    _write_options(run, aside, launcher)
    shutil.copytree(checkpoint.path, _copy_of(checkpoint, aside), copy_function=_link)
    markers.mark_done(aside, state.stage, outcome="forked", checkpoint=checkpoint.path.name)
    for file in run_dir.glob("stages/*.yaml"):
        shutil.copy2(file, aside / "stages")
    shutil.copy2(run_dir / "metrics.jsonl", aside)
    rewind_metrics(aside / "metrics.jsonl", state.num_records, state.step)
    os.replace(aside, run.folder)


def _write_options(run: ArmRun, folder: Path, launcher: Path | None) -> None:
    write_resolved(run.config, folder / ARM_FILE)
    if launcher is not None:
        replace_text(folder / JOB_FILE, _job_script(run, launcher))


def _copy_of(checkpoint: Checkpoint, folder: Path) -> Path:
    return folder / CHECKPOINTS_FOLDER / checkpoint.path.name


def _was_moved(run: ArmRun, checkpoint: Checkpoint) -> bool:
    """Returns whether an existing folder was made elsewhere, or under another spelling of its path. Raises ConfigError
    unless it has these options and began with this checkpoint."""
    recorded = run.folder / ARM_FILE
    if not recorded.is_file():
        raise ConfigError(f"{run.folder} exists and is no arm of a fork: write another --out.")
    # Through YAML as well, which makes lists of tuples and the like.
    options = (recorded.read_text(encoding="utf-8"), yaml.safe_dump(to_dict(run.config)))
    before, now = (dict(flatten(yaml.safe_load(text))) for text in options)
    different = [key for key in {**now, **before} if key != "defaults" and before.get(key) != now.get(key)]
    if key := next((key for key in different if key != FOLDER), None):
        raise ConfigError(
            f"{run.folder} was begun with {key}={before.get(key)} and would go on with {key}={now.get(key)}: repeat "
            "the same command, or write another --out, or another name for the arm."
        )
    mine, given = _copy_of(checkpoint, run.folder), read_manifest(checkpoint.path)
    if missing_or_torn(mine):
        raise ConfigError(
            f"{run.folder} has no whole {checkpoint.path.name}, with which it began: delete that folder, to train the "
            "arm again, or write another --out."
        )
    # An arm's training may have deleted the moments of its copy (keep_moments=false).
    if any(given.get(name, found) != found for name, found in read_manifest(mine).items()):
        raise ConfigError(
            f"{run.folder} did not begin with {checkpoint.path}: write another --out, or the step that it began with."
        )
    return FOLDER in different


def _link(source: str, target: str) -> None:
    """Makes a hard link, or a copy where the file system has none. Nothing writes into a file of a checkpoint."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _job_script(run: ArmRun, launcher: Path) -> str:
    """Returns the launcher, with a last line that trains the arm."""
    words = [run.arm.name, *run.arguments[1:], f"exp_manager.explicit_log_dir={run.folder}"]
    line = f'run_stage {shlex.join(words)} "$@"'
    return re.sub(r"^run_stage .*$", lambda _: line, launcher.read_text(encoding="utf-8"), flags=re.MULTILINE)
