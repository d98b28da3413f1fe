"""Checks whether a stage could start here, without building the engines, for `train --check` and `doctor`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nemo_prorl.config import ConfigError, RunConfig, did_you_mean, is_hub_name
from nemo_prorl.config.layout import check_layout, is_one_machine, rank_from_environment
from nemo_prorl.config.makers import made_by
from nemo_prorl.run_folder.loggers import check_loggers
from nemo_prorl.run_folder.metric_docs import METRICS, metric_doc
from nemo_prorl.run_folder.nemo_toolkit import check_nemo
from nemo_prorl.run_folder.run import OTHER
from nemo_prorl.run_folder.storage import check_writable

LONG_STEP_S = 3600.0
"""A step that takes longer is a mistake: the papers' take minutes."""


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
    if reward.starts_service and not is_one_machine():
        raise ConfigError(
            "neither reward.urls nor reward.discovery_dir is set, but a reward service that train starts itself serves "
            "only one machine: start `python -m reward serve` on the nodes, and set one of the two options."
        )
    run_dir = config.exp_manager.explicit_log_dir
    check_writable(f"exp_manager.explicit_log_dir={run_dir}", Path(run_dir))
    if rank_from_environment() == 0:  # the only one that has loggers
        check_loggers(config.exp_manager)
    check_nemo(config.exp_manager)
    monitor = config.exp_manager.checkpoint_callback_params.monitor
    if not metric_doc(monitor) or monitor == OTHER:  # the run would keep no best checkpoint
        hint = did_you_mean(
            monitor, sorted(METRICS.keys() - {OTHER}), "docs/reference/metrics.md lists them."
        )
        raise ConfigError(
            f"exp_manager.checkpoint_callback_params.monitor={monitor} is not a metric of a run: {hint}"
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


def describe_start(
    config: RunConfig, into: Path, *, tries_functions: bool = False
) -> tuple[list[str], RunConfig]:
    """Reads model and data. Returns sentences on prompts and starting point, and the configuration with the limits that
    were found. Raises ConfigError.

    into: a folder for data files that have to be converted. tries_functions: whether to call reward functions once."""
    from nemo_prorl import run
    from nemo_prorl.distributed import alone
    from nemo_prorl.reward_sources.functions.check import TRIED_PROMPTS, try_functions
    from nemo_prorl.reward_sources.service import check_tasks
    from nemo_prorl.training.stages import done_message

    start = run.starting_point(config)
    inputs = run.load_inputs(config, alone(), is_resume=start.is_resume, into=into)
    config = inputs.config
    check_tasks(config.reward, [*config.data.train, *config.data.validation])
    tried = try_functions(config.reward, inputs.prompts.take(TRIED_PROMPTS)) if tries_functions else []
    stage, run_dir = config.stage.name, Path(config.exp_manager.explicit_log_dir)
    how = "go on" if start.is_resume else "start"
    begins = start if start.checkpoint else f"the weights in {config.model.path}"
    return [
        *inputs.sentences,
        *tried,
        done_message(run_dir, stage) or f"stage {stage} can {how} in {run_dir}, with {begins}",
    ], config


def describe_work(config: RunConfig, num_ranks: int) -> list[str]:
    """Returns lines on the size of a step and on how long it takes here; as a warning if that is hours. Needs torch,
    which `prepare_engines` has to have prepared."""
    import torch

    from nemo_prorl.cluster.scale.here import step_here
    from nemo_prorl.engines.environment import has_cuda

    trainer, sampler = config.trainer, config.sampler
    size = f"{trainer.prompts_per_step:,} prompts x {sampler.num_rollouts} rollouts"
    most = trainer.prompts_per_step * sampler.num_rollouts * sampler.max_response_tokens
    gpu_name = torch.cuda.get_device_name() if has_cuda() else ""
    found = step_here(config, num_ranks=num_ranks, gpu_name=gpu_name)
    lines = [
        f"  batch     {size} a step, with responses of up to {sampler.max_response_tokens:,} tokens: at most {most:,} "
        f"tokens, in {trainer.updates_per_step} update(s)",
        f"  steps     {trainer.num_steps:,} in this stage",
    ]
    if not found:
        return [*lines, f"  time      not known for this model and batch on {gpu_name}: the first steps tell"]
    here = found[0]
    times = [
        f"  time      {each.times(1)} a step, {each.times(trainer.num_steps)} for all of them{each.assumption}"
        for each in found
    ]
    lines += [f"{times[0]} ({here.source})", *times[1:]]
    lines += [f"warning: {here.advice}."] if here.advice else []
    if here.low_s > LONG_STEP_S:
        smaller = "small" if gpu_name else "small_cpu"
        lines.append(
            f"warning: a step of {size} x {sampler.max_response_tokens:,} tokens is too much for this machine: write "
            f"--config-name {smaller}, or smaller trainer.prompts_per_step, sampler.num_rollouts and "
            "sampler.max_response_tokens."
        )
    return lines
