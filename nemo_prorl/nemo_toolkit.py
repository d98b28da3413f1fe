"""NVIDIA's NeMo toolkit, where it is installed: its `exp_manager` makes the loggers of a run. docs/nemo.md.

Nothing else of NeMo is used: its checkpoints, resume, timers and callbacks belong to Lightning's loop, and the loop
here is our own.
"""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from nemo_prorl.config import ConfigError, ExpManagerConfig, UseNemo

FOLDER = "nemo"
"""Subfolder of a run for what exp_manager writes. The run's own folder would not do, because exp_manager moves every
file that it finds in its folder into run_0, run_1, ..."""

OURS = (
    "create_tensorboard_logger",
    "create_wandb_logger",
    "wandb_logger_kwargs",
)
"""Fields that mean to NeMo what they mean to us."""

MORE = (
    "files_to_copy",
    "summary_writer_kwargs",
    "create_dllogger_logger",
    "dllogger_logger_kwargs",
    "create_clearml_logger",
    "clearml_logger_kwargs",
    "create_neptune_logger",
    "neptune_logger_kwargs",
)
"""Fields that only NeMo has, and that do something without Lightning's loop: what exp_manager.nemo_kwargs may name."""

OFF = {
    "resume_if_exists": False,
    "create_checkpoint_callback": False,
    "create_preemption_callback": False,
    "log_step_timing": False,
    "disable_validation_on_resume": False,
    "log_tflops_per_sec_per_gpu": False,
}
"""Fields of what only Lightning's loop would call, or what the trainer does itself."""


def check_nemo(config: ExpManagerConfig) -> None:
    """Raises ConfigError when the run needs NeMo and cannot use it, or asks it for what it does not do here."""
    reason = why_not(config)
    if config.use_nemo is UseNemo.always and reason:
        raise ConfigError(
            f"exp_manager.use_nemo=always, but {reason}: see docs/nemo.md, or write auto or never."
        )
    strangers = sorted(set(config.nemo_kwargs) - set(MORE))
    if strangers:
        raise ConfigError(
            f"exp_manager.nemo_kwargs has {strangers[0]}, which NeMo's exp_manager does not do for this trainer: write "
            f"one of {', '.join(MORE)}."
        )


def wants_nemo(config: ExpManagerConfig) -> bool:
    """Is NeMo to make this run's loggers? Raises ConfigError as `check_nemo` does."""
    check_nemo(config)
    return config.use_nemo is not UseNemo.never and not why_not(config)


def why_not(config: ExpManagerConfig) -> str:
    """Why NeMo's exp_manager cannot make these loggers, without importing it; empty when it can."""
    versions = {}
    for package in ("nemo-toolkit", "lightning"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            return f"{package} is not installed"
    if not versions["nemo-toolkit"].startswith("3."):
        return f"nemo-toolkit is {versions['nemo-toolkit']} and not 3"
    if not (2, 4) <= tuple(map(int, versions["lightning"].split(".")[:2])) < (2, 6):
        return f"lightning is {versions['lightning']}, and NeMo 3 needs one from 2.4 on and older than 2.6"
    if config.create_mlflow_logger:
        return f"NeMo {versions['nemo-toolkit']} makes no MLflow logger (it passes run_name twice)"
    return ""


def nemo_loggers(config: ExpManagerConfig, *, first_step: int) -> list[Any]:
    """The loggers that NeMo's exp_manager makes of these options, in RUN/nemo. TensorBoard takes back what it knows of
    `first_step` and later.

    Raises ConfigError when exp_manager refuses the options, or a package that one needs is missing.
    """
    more = dict(config.nemo_kwargs)
    fields = {
        "explicit_log_dir": str(Path(config.explicit_log_dir) / FOLDER),
        "summary_writer_kwargs": {"purge_step": first_step, **more.pop("summary_writer_kwargs", {})},
        **{field: getattr(config, field) for field in OURS},
        **more,
        **OFF,
    }
    try:
        # NeMo writes to the stream that it finds as its handlers are made, which an engine's imports may have caused
        # long before. Standard output belongs to results.
        with redirect_stdout(sys.stderr):
            from lightning.pytorch import Trainer
            from lightning.pytorch.plugins.environments import LightningEnvironment
            from nemo.utils import logging
            from nemo.utils.exp_manager import exp_manager

            logging.reset_stream_handler()
            # Never fitted: the shelf that exp_manager puts loggers on. Its environment is named, because the one that
            # Lightning would find, Slurm's say, has demands on the number of devices.
            shelf = Trainer(
                accelerator="cpu",
                devices=1,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                plugins=[LightningEnvironment()],
            )
            exp_manager(shelf, fields)
    except (ImportError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"NeMo's exp_manager refuses exp_manager.* ({' '.join(str(error).split())}): mend it, or write "
            "exp_manager.use_nemo=never."
        ) from error
    return list(shelf.loggers)
