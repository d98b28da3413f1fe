"""Which layouts of a model fit on a cluster, how fast each would be, and what to change if a configuration does not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from math import ceil

from nemo_prorl.cluster.plan.chain import differences
from nemo_prorl.cluster.plan.fit import Cluster, check_stage
from nemo_prorl.cluster.scale.memory import GIB, PLANNED_SHARE, Memory, NoRoom, estimate_memory
from nemo_prorl.cluster.scale.roofline import StepTime, estimate_step
from nemo_prorl.cluster.scale.workload import Case
from nemo_prorl.config import ConfigError, LoraConfig, Recompute, RunConfig

LOW_RANK = 32
"""The rank that is proposed where no layout has room to train all weights."""

MEMORY_FRACTIONS = (0.4, 0.3, 0.6, 0.7)
"""Shares of the GPU that are proposed for the sampler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """A configuration that fits, with its estimated memory and time."""

    config: RunConfig
    memory: Memory
    time: StepTime
    rollouts_per_engine: int
    """Rollouts that one engine samples in a step's first round."""
    releases_in_vain: bool
    """Whether the configuration would fit without its sampler.release_memory, too."""


def plan_of(case: Case) -> StagePlan:
    """Returns the plan. Raises ConfigError, with the stage and what to change, unless the configuration fits."""
    stage = f"stage {case.config.stage.name}"
    check_stage(case.config, case.cluster, case.model)
    try:
        memory = estimate_memory(case)
    except NoRoom as error:
        raise ConfigError(f"{stage}: {error}: {_way_out(case)}") from None
    phase = memory.fullest_phase
    if not _has_room(memory, case):
        parts = sorted(memory.phases[phase].items(), key=lambda part: -part[1])[:2]
        largest = " and ".join(f"{name} {size / GIB:.1f}" for name, size in parts)
        raise ConfigError(
            f"{stage}: {phase} would need {memory.total(phase) / GIB:.1f} GiB, of which {largest}, and a plan may fill "
            f"{PLANNED_SHARE:.0%} of the GPU's {case.gpu.memory_gib:g}: {_way_out(case)}"
        )
    sampler = case.config.sampler
    beside = replace(case, config=replace(case.config, sampler=replace(sampler, release_memory=False)))
    return StagePlan(
        config=case.config,
        memory=memory,
        time=estimate_step(case, memory),
        rollouts_per_engine=ceil(case.sampled_rollouts / case.num_engines),
        releases_in_vain=sampler.release_memory and fits(beside),
    )


def fits(case: Case) -> bool:
    """Returns whether the configuration fits."""
    try:
        check_stage(case.config, case.cluster, case.model)
        return _has_room(estimate_memory(case), case)
    except ConfigError:
        return False


def _has_room(memory: Memory, case: Case) -> bool:
    return memory.total(memory.fullest_phase) <= PLANNED_SHARE * case.gpu.memory_gib * GIB


def fitting_layouts(case: Case) -> list[StagePlan]:
    """Returns every layout that fits, fastest first, and of equally fast ones the one with the fewest ranks first. Each
    has the least recomputation that fits, since more is never faster."""
    plans = []
    for layout in _layouts(case.config, case.cluster):
        for recompute in Recompute:
            candidate = replace(case, config=_recomputing(layout, recompute))
            if fits(candidate):
                plans.append(plan_of(candidate))
                break
    return sorted(plans, key=lambda plan: (plan.time.seconds, _num_ranks(plan.config)))


def overrides(config: RunConfig) -> str:
    """Returns the layout as overrides of the command line."""
    trainer = config.trainer
    return (
        f"trainer.tensor_parallel={trainer.tensor_parallel} trainer.pipeline_parallel={trainer.pipeline_parallel} "
        f"trainer.sequence_parallel={str(trainer.sequence_parallel).lower()} "
        f"sampler.tensor_parallel={config.sampler.tensor_parallel} model.recompute={config.model.recompute.name}"
    )


def _layouts(config: RunConfig, cluster: Cluster) -> Iterator[RunConfig]:
    """Yields powers of two, up to a node for tensor and up to 16 for pipeline parallelism; with sequence parallelism,
    which makes activations smallest."""
    within = [2**power for power in range(10) if 2**power <= cluster.gpus_per_node]
    samplers = [1] if config.sampler.ahead else within
    for tensor, pipeline, sampler in product(within, (1, 2, 4, 8, 16), samplers):
        trainer = replace(
            config.trainer, tensor_parallel=tensor, pipeline_parallel=pipeline, sequence_parallel=tensor > 1
        )
        yield replace(config, trainer=trainer, sampler=replace(config.sampler, tensor_parallel=sampler))


def _way_out(case: Case) -> str:
    """Returns the first change that fits, cheapest first, as the end of an error message."""
    for change in _changes(case):
        if fits(replace(case, config=change)):
            changed = differences(case.config, change)
            return f"write {' '.join(f'{key}={new}' for key, (_, new) in changed.items())}."
    return "no layout of this model fits on this cluster: write more --nodes, or another --gpu."


def _changes(case: Case) -> Iterator[RunConfig]:
    """Yields changes to a configuration that does not fit, cheapest first: smaller passes cost kernel launches,
    releasing the sampler's memory a copy of its weights, another share of the GPU for it cache or room for the policy,
    recomputation a third of an update. Then other layouts, and at last the same with low rank."""
    config = case.config
    # Sampling ahead needs the sampler's memory at all times.
    released = replace(config.sampler, release_memory=True, ahead=False)
    tokens = [config.trainer.micro_batch_tokens]
    while config.sampler.context_tokens < tokens[-1]:
        tokens.append(tokens[-1] // 2)
    shares = [replace(released, memory_fraction=share) for share in MEMORY_FRACTIONS]
    for recompute, sampler, micro_batch in product(
        (config.model.recompute, Recompute.full), (config.sampler, released, *shares), tokens
    ):
        trainer = replace(config.trainer, micro_batch_tokens=micro_batch)
        yield replace(_recomputing(config, recompute), sampler=sampler, trainer=trainer)
    layouts = sorted(_layouts(replace(config, sampler=released), case.cluster), key=_num_ranks)
    for recompute, layout in product(Recompute, layouts):
        yield _recomputing(layout, recompute)
    if not config.lora.rank:
        with suppress(ConfigError):  # a stage whose reset keeps the moments cannot have low rank
            low = replace(config, lora=LoraConfig(rank=LOW_RANK))
            yield from _changes(replace(case, config=low))


def _recomputing(config: RunConfig, recompute: Recompute) -> RunConfig:
    return replace(config, model=replace(config.model, recompute=recompute))


def _num_ranks(config: RunConfig) -> int:
    return config.trainer.tensor_parallel * config.trainer.pipeline_parallel * config.sampler.tensor_parallel
