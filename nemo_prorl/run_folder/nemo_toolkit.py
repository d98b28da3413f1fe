"""Creates a run's loggers with `exp_manager` of NVIDIA's NeMo toolkit if that is installed (docs/monitoring.md).

Nothing else of NeMo is used: its checkpoints, resume, timers and callbacks need Lightning's loop, and ours is another.
"""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from nemo_prorl.config import ConfigError, ExpManagerConfig, UseNemo, one_line

FOLDER = "nemo"
"""Subfolder of a run for exp_manager's files. It cannot be the run's own folder, because exp_manager moves every file
that it finds in its folder into run_0, run_1, ..."""

OURS = ("create_tensorboard_logger", "create_wandb_logger", "wandb_logger_kwargs")
"""Fields of our options that have the same name and meaning in NeMo."""

MORE = (
    "files_to_copy", "summary_writer_kwargs", "create_dllogger_logger", "dllogger_logger_kwargs",
    "create_clearml_logger", "clearml_logger_kwargs", "create_neptune_logger", "neptune_logger_kwargs",
)  # fmt: skip
"""Fields that exp_manager.nemo_kwargs may set: those that only NeMo has and that work without Lightning's loop."""

OFF = (
    "resume_if_exists", "create_checkpoint_callback", "create_preemption_callback", "log_step_timing",
    "disable_validation_on_resume", "log_tflops_per_sec_per_gpu",
)  # fmt: skip
"""Fields that are switched off, because they need Lightning's loop or because the trainer does it itself."""


def check_nemo(config: ExpManagerConfig) -> None:
    """Raises ConfigError if the run requires NeMo and cannot use it, or if nemo_kwargs has a field not in MORE."""
    reason = why_not()
    if config.use_nemo is UseNemo.always and reason:
        raise ConfigError(
            f"exp_manager.use_nemo=always, but {reason}: see docs/monitoring.md, or write auto or never."
        )
    strangers = sorted(set(config.nemo_kwargs) - set(MORE))
    if strangers:
        raise ConfigError(
            f"exp_manager.nemo_kwargs has {strangers[0]}, which NeMo's exp_manager does not do for this trainer: write "
            f"one of {', '.join(MORE)}."
        )


def wants_nemo(config: ExpManagerConfig) -> bool:
    """Returns whether NeMo creates this run's loggers. Raises ConfigError as `check_nemo` does."""
    check_nemo(config)
    return config.use_nemo is not UseNemo.never and not why_not()


def why_not() -> str:
    """Returns why NeMo's exp_manager cannot create the loggers, without importing it; empty if it can."""
    try:
        found = version("nemo-toolkit")
    except PackageNotFoundError:
        return "nemo-toolkit is not installed"
    return "" if found.startswith("3.") else f"nemo-toolkit is {found} and not 3"


def nemo_loggers(config: ExpManagerConfig, *, first_step: int) -> list[Any]:
    """Returns the loggers that NeMo's exp_manager creates from these options in RUN/nemo. TensorBoard discards its
    records of `first_step` and later.

    Raises ConfigError if exp_manager refuses the options, or if a package that one needs is missing.
    """
    more = dict(config.nemo_kwargs)
    fields = {
        "explicit_log_dir": str(Path(config.explicit_log_dir) / FOLDER),
        "summary_writer_kwargs": {"purge_step": first_step, **more.pop("summary_writer_kwargs", {})},
        **{field: getattr(config, field) for field in OURS},
        **more,
        **dict.fromkeys(OFF, False),
    }
    try:
        # NeMo logs to the stream that was sys.stdout when its handlers were created, perhaps by an engine's import.
        # Only results belong on standard output.
        with redirect_stdout(sys.stderr):
            from lightning.pytorch import Trainer
            from lightning.pytorch.plugins.environments import LightningEnvironment
            from nemo.utils import logging
            from nemo.utils.exp_manager import exp_manager

            logging.reset_stream_handler()
            # exp_manager attaches its loggers to a Trainer, which is never fitted. Its environment is named, because
            # one that Lightning detects, such as Slurm's, requires a certain number of devices.
            holder = Trainer(
                accelerator="cpu",
                devices=1,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                plugins=[LightningEnvironment()],
            )
            exp_manager(holder, fields)
    except (ImportError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"NeMo's exp_manager refuses exp_manager.* ({one_line(error)}): correct the option, or write "
            "exp_manager.use_nemo=never."
        ) from error
    return list(holder.loggers)
