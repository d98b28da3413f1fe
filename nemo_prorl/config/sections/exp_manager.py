"""exp_manager.*: the folder of a run, its checkpoints and its loggers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from re import fullmatch
from typing import Any

from nemo_prorl.config.sections.checks import ConfigError, at_least, require

BestMode = StrEnum("BestMode", ["max", "min"])
UseNemo = StrEnum("UseNemo", ["auto", "always", "never"])


@dataclass(slots=True, kw_only=True)
class CheckpointCallbackParams:
    """When checkpoints are written and which are kept. The field names are those of NeMo's exp_manager."""

    every_n_train_steps: int = 20
    """Steps between checkpoints; 0: only by the clock. Has to divide validation.interval if the best validation is to
    have a checkpoint."""
    every_minutes: float = 15.0
    """A step that is expected to end more than so many minutes after the last checkpoint is saved, too; 0: never. The
    end of a stage is always saved."""
    save_last_k: int = 2
    """Number of the stage's newest checkpoints that are kept, beside the last of every other stage."""
    save_top_k: int = 1
    """Number of best checkpoints by `monitor` that are also kept, for the run and for the current stage; 0: none."""
    monitor: str = "validation/domain_mean_score"
    """Metric by which checkpoints are compared; those of steps without a validation are not."""
    mode: BestMode = BestMode.max
    """Whether a larger or a smaller value of `monitor` is better."""
    keep_moments: bool = True
    """false: all but the save_last_k newest of the run lose the optimizer's moments, half of their size; a stage can
    begin there only if it resets the optimizer."""
    async_save: bool = True
    """Writes files in the background while training continues, from a copy in host memory."""

    def __post_init__(self) -> None:
        prefix = "exp_manager.checkpoint_callback_params"
        at_least(prefix, self, 0, ["every_n_train_steps", "every_minutes", "save_top_k"])
        at_least(prefix, self, 1, ["save_last_k"])
        metric = "the name of a metric, such as validation/domain_mean_score"
        require(bool(self.monitor), f"{prefix}.monitor", self.monitor, metric)


@dataclass(slots=True, kw_only=True)
class ExpManagerConfig:
    """Where a run's files go and which loggers it uses. The field names are those of NeMo's exp_manager."""

    explicit_log_dir: str = "runs/prorl"
    """Folder of the run, with metrics.jsonl, checkpoints/ and stages/."""
    resume_if_exists: bool = True
    """Continues from the newest checkpoint of the folder; false refuses a folder that has one."""
    create_tensorboard_logger: bool = False
    """Writes TensorBoard events to RUN/tensorboard (docs/monitoring.md)."""
    create_wandb_logger: bool = False
    """Logs to Weights & Biases; needs the package wandb, and an API key or offline: true."""
    wandb_logger_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of Lightning's WandbLogger, such as project, name and offline."""
    create_checkpoint_callback: bool = True
    """false: no checkpoint is ever written."""
    checkpoint_callback_params: CheckpointCallbackParams = field(default_factory=CheckpointCallbackParams)
    """When checkpoints are written and how many are kept."""
    record_rollouts: int = 0
    """Every so many steps the step's rollouts and verdicts are kept in RUN/rollouts, for `verify` and `report`; 0:
    never."""
    max_time_per_run: str = ""
    """Time from the start of the process, as DD:HH:MM:SS, by which the run has saved and paused; empty: only a Slurm
    job's own limit counts."""
    use_nemo: UseNemo = UseNemo.auto
    """Who creates the loggers. auto: NeMo's exp_manager if nemo-toolkit 3 is installed, else Lightning; always: NeMo;
    never: Lightning."""
    nemo_kwargs: dict[str, Any] = field(default_factory=dict)
    """Further fields of NeMo's exp_manager; needs use_nemo=always."""

    def __post_init__(self) -> None:
        at_least("exp_manager", self, 0, ["record_rollouts"])
        if not self.explicit_log_dir.strip():
            raise ConfigError(
                "exp_manager.explicit_log_dir is empty, so the run would be scattered over the working folder: write a "
                "folder for it, such as runs/mine."
            )
        if not fullmatch(r"(\d+:[0-5]?\d:[0-5]?\d:[0-5]?\d)?", self.max_time_per_run):
            raise ConfigError(
                f"exp_manager.max_time_per_run={self.max_time_per_run} is no time: write DD:HH:MM:SS, such as "
                "00:03:55:00."
            )
        if self.nemo_kwargs and self.use_nemo is not UseNemo.always:
            raise ConfigError(
                f"exp_manager.nemo_kwargs is read by NeMo only, and exp_manager.use_nemo={self.use_nemo.value}: write "
                "use_nemo=always."
            )

    @property
    def max_time_per_run_s(self) -> float:
        """`max_time_per_run` in seconds; 0: no limit."""
        seconds = 0
        for part, unit in zip(self.max_time_per_run.split(":"), (86400, 3600, 60, 1), strict=False):
            seconds += int(part or 0) * unit
        return float(seconds)
