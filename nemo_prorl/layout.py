"""How many ranks there are and whether the model fits on them. No torch: the command line asks before it is loaded."""

from __future__ import annotations

import os

from nemo_prorl.config import ConfigError


def world_size_from_environment() -> int:
    """As torchrun sets it; 1 without it. Slurm's variables do not count: they describe the allocation as well, in which
    a command may well be alone."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank_from_environment() -> int:
    """As torchrun sets it; 0 without it."""
    return int(os.environ.get("RANK", "0"))


def is_one_machine() -> bool:
    """torchrun says how many ranks are on this machine; without it there is one rank."""
    local = os.environ.get("LOCAL_WORLD_SIZE")
    return local is None or int(local) == world_size_from_environment()


def check_layout(world_size: int, tensor_parallel: int, pipeline_parallel: int) -> None:
    """Raises ConfigError unless the ranks can be split into whole replicas."""
    model_ranks = tensor_parallel * pipeline_parallel
    if world_size % model_ranks:
        raise ConfigError(
            f"{world_size} rank(s) cannot hold whole replicas of trainer.tensor_parallel={tensor_parallel} x "
            f"trainer.pipeline_parallel={pipeline_parallel}: start a multiple of {model_ranks} ranks "
            f"(torchrun --nproc-per-node {model_ranks}) or write a smaller layout."
        )
