"""Checks whether a chain can run on a cluster, with everything that is known before a GPU is requested."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

from nemo_prorl.cluster.plan.chain import Chain
from nemo_prorl.config import ConfigError, RunConfig
from nemo_prorl.config.layout import check_layout
from nemo_prorl.config.sections.checks import require
from nemo_prorl.engines.megatron.architecture import Architecture, read_architecture
from nemo_prorl.engines.megatron.check import check_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Example: Cluster(num_nodes=4, gpus_per_node=8)"""

    num_nodes: int
    gpus_per_node: int

    def __post_init__(self) -> None:
        for name, value in (("--nodes", self.num_nodes), ("--gpus-per-node", self.gpus_per_node)):
            require(value >= 1, name, value, "at least 1")

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.gpus_per_node

    def __str__(self) -> str:
        return f"{self.num_nodes} x {self.gpus_per_node} GPUs"


def model_of(config: RunConfig) -> Architecture | None:
    """Returns the architecture of model.path; None if there is no such folder yet. Raises ConfigError for a model that
    is not supported."""
    if not (Path(config.model.path) / "config.json").is_file():
        return None
    return read_architecture(config.model.path)


def check_stage(config: RunConfig, cluster: Cluster, model: Architecture | None) -> None:
    """Raises ConfigError, one sentence that names the stage, unless it can run on the cluster.

    Without a model its limits (heads, layers, context) stay unchecked; `train` checks them in any case.
    """
    try:
        # Tensor parallelism needs NVLink's bandwidth.
        for key in ("trainer.tensor_parallel", "sampler.tensor_parallel"):
            value = attrgetter(key)(config)
            if cluster.gpus_per_node % value:
                raise ConfigError(
                    f"{key}={value} does not divide the {cluster.gpus_per_node} GPUs of a node, within which it must "
                    "stay: write a divisor of them, or other --gpus-per-node."
                )
        trainer = config.trainer
        check_layout(cluster.num_gpus, trainer.tensor_parallel, trainer.pipeline_parallel)
        # A replica without a rollout of an update would only wait.
        num_replicas = cluster.num_gpus // (trainer.tensor_parallel * trainer.pipeline_parallel)
        num_prompts = trainer.prompts_per_step // trainer.updates_per_step
        if num_prompts * config.sampler.num_rollouts < num_replicas:
            raise ConfigError(
                f"an update of {num_prompts} prompts (trainer.prompts_per_step / updates_per_step) x "
                f"{config.sampler.num_rollouts} rollouts cannot feed {num_replicas} replicas: write more prompts, "
                "fewer updates, or fewer nodes."
            )
        if model is not None:
            check_shape(model, config, cluster.num_gpus)
    except ConfigError as error:
        raise ConfigError(f"stage {config.stage.name}: {error}") from None


def check_handovers(chain: Chain) -> None:
    """Raises ConfigError unless all stages have the same run folder, in which a child finds its parent's checkpoint,
    and the same model."""
    for parent, child in pairwise(chain):
        for key in ("exp_manager.explicit_log_dir", "model.path"):
            before, after = attrgetter(key)(parent), attrgetter(key)(child)
            if before != after:
                raise ConfigError(
                    f"stage {child.stage.name} has {key}={after}, but continues stage {parent.stage.name}, which has "
                    f"{before}: write the same for both."
                )
