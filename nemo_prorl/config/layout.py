"""The number of ranks and the check of the parallel layout, without torch: the command line needs both early."""

from __future__ import annotations

import os

from nemo_prorl.config import ConfigError


def world_size_from_environment() -> int:
    """Returns the number of ranks that torchrun has set; 1 without torchrun. Slurm's variables are ignored, because
    they are also set in an allocation in which a single process runs."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank_from_environment() -> int:
    """Returns the rank that torchrun has set; 0 without torchrun."""
    return int(os.environ.get("RANK", "0"))


def is_one_machine(num_ranks: int | None = None) -> bool:
    """Returns whether so many ranks (default: all) are on one machine, according to torchrun."""
    local = os.environ.get("LOCAL_WORLD_SIZE")
    return local is None or int(local) >= (num_ranks or world_size_from_environment())


def check_layout(world_size: int, tensor_parallel: int, pipeline_parallel: int) -> None:
    """Raises ConfigError unless the ranks can be split into whole replicas."""
    model_ranks = tensor_parallel * pipeline_parallel
    if world_size % model_ranks:
        raise ConfigError(
            f"{world_size} rank(s) cannot hold whole replicas of trainer.tensor_parallel={tensor_parallel} x "
            f"trainer.pipeline_parallel={pipeline_parallel}: start a multiple of {model_ranks} ranks "
            f"(torchrun --nproc-per-node {model_ranks}) or write a smaller layout."
        )
