"""Checks whether a stage could start here, without building the engines, for `train --check` and `doctor`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from nemo_prorl.config import ConfigError, RunConfig, did_you_mean, is_hub_name
from nemo_prorl.config.layout import (
    check_layout,
    is_one_machine,
    rank_from_environment,
)
from nemo_prorl.config.makers import made_by
from nemo_prorl.run_folder.loggers import check_loggers
from nemo_prorl.run_folder.metric_docs import METRICS, metric_doc
from nemo_prorl.run_folder.nemo_toolkit import check_nemo
from nemo_prorl.run_folder.storage import check_writable


def check_inputs(config: RunConfig, world_size: int) -> None:
    """Raises ConfigError unless the ranks fit the layout and the files and packages that the run names are here.

    The model's own folder is read by `engines.megatron.check`, see `check_model`.
    """
    trainer, reward = config.trainer, config.reward
    check_layout(world_size, trainer.tensor_parallel, trainer.pipeline_parallel)
    if not config.data.train:
        raise ConfigError(
            "data.train is empty: write data.train=problems.jsonl with your own file (docs/data.md), or several with "
            "weights as 'data.train={a.jsonl: 3, b.parquet: 1}'."
        )
    for key, files in (("data.train", config.data.train), ("data.validation", config.data.validation)):
        check_data(key, files)
    if reward.token_file and not Path(reward.token_file).is_file():
        raise ConfigError(
            f"reward.token_file names {reward.token_file}, which is not a file: write an existing path."
        )
    starts_service = reward.asks_service and not reward.urls and not reward.discovery_dir
    if starts_service and not is_one_machine():
        raise ConfigError(
            "neither reward.urls nor reward.discovery_dir is set, but a reward service that train starts itself serves "
            "only one machine: start `python -m reward serve` on the nodes, and set one of the two options."
        )
    if starts_service and not (reward.interpreter.is_file() and os.access(reward.interpreter, os.X_OK)):
        what = "is no program" if reward.interpreter.exists() else "does not exist"
        raise ConfigError(
            f"reward.python={reward.python} {what}, so no reward service can be started: run `make setup` in a "
            "checkout, or write reward.python=/PATH/bin/python of an environment with nemo-prorl-reward[server], or "
            "name running servers with reward.urls or reward.discovery_dir."
        )
    run_dir = config.exp_manager.explicit_log_dir
    check_writable(f"exp_manager.explicit_log_dir={run_dir}", Path(run_dir))
    if rank_from_environment() == 0:  # the only one that has loggers
        check_loggers(config.exp_manager)
    check_nemo(config.exp_manager)
    check_monitor(config.exp_manager.checkpoint_callback_params.monitor)


def check_monitor(name: str) -> None:
    """Raises ConfigError for a metric that no run has, because a run would then keep no best checkpoint."""
    if not metric_doc(name):
        hint = did_you_mean(name, METRICS, "docs/reference/metrics.md lists them.", cutoff=0.6)
        raise ConfigError(
            f"exp_manager.checkpoint_callback_params.monitor={name} is not a metric of a run: {hint}"
        )


def check_data(key: str, names: Iterable[str]) -> None:
    """Raises ConfigError, naming the option, for the first that is neither a path nor the name of a data set."""
    for name in names:
        if not Path(name).exists() and not is_hub_name(name):
            if any(mark in name for mark in "*?["):
                raise ConfigError(
                    f"{key} names {name}, but names are not patterns: write the folder, which stands for all its data "
                    "files, or a list of files."
                )
            without = ", or 'data.validation=[]' to train without" if key == "data.validation" else ""
            raise ConfigError(
                f"{key} names {name}, which is not a file{made_by(name)}: write an existing path, or OWNER/NAME of a "
                f"data set on the Hugging Face hub{without}."
            )


def describe_start(config: RunConfig, into: Path, *, tries_functions: bool = False) -> list[str]:
    """Reads model and data and returns sentences on prompts and starting point. Raises ConfigError.

    into: a folder for data files that have to be converted. tries_functions: whether to call reward functions once."""
    from nemo_prorl import run
    from nemo_prorl.data import inputs
    from nemo_prorl.distributed import alone
    from nemo_prorl.reward_sources.functions.check import TRIED_PROMPTS, try_functions
    from nemo_prorl.reward_sources.service import check_tasks, refused_here
    from nemo_prorl.training.stages import best_without_checkpoint

    start = run.starting_point(config)
    config, recognised = inputs.with_prompt_files(config, into=into)
    tokenizer = inputs.load_tokenizer(config)
    prompts, _, held_out_lengths = inputs.read_prompts(config, tokenizer, alone())
    left_out = inputs.left_out_prompts(config, tokenizer, held_out_lengths)
    check_tasks([*config.data.train, *config.data.validation], partial(refused_here, config.reward))
    tried = try_functions(config.reward, prompts.take(TRIED_PROMPTS)) if tries_functions else []
    how = "go on" if start.is_resume else "start"
    return [
        *recognised,
        left_out,
        *tried,
        f"stage {config.stage.name} can {how} in {config.exp_manager.explicit_log_dir}, with {start}",
        *filter(None, [best_without_checkpoint(start, config)]),
    ]
