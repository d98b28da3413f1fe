"""Which layouts of a model fit on a cluster, how fast each would be, and what to change if a configuration does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import ceil

from nemo_prorl.config import ConfigError, Recompute, RunConfig, SamplerConfig
from nemo_prorl.engines.megatron.architecture import Architecture
from nemo_prorl.planning.differences import differences
from nemo_prorl.planning.fit import Cluster, check_chain
from nemo_prorl.planning.hardware import GIB, Gpu
from nemo_prorl.planning.memory import PLANNED_SHARE, Memory, NoRoom, estimate_memory
from nemo_prorl.planning.step_time import StepTime, estimate_step
from nemo_prorl.planning.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A configuration that fits, with its estimated memory and time."""

    config: RunConfig
    memory: Memory
    time: StepTime
    rollouts_per_engine: int
    """Rollouts that one engine samples in a step's first round."""


def plan_of(
    model: Architecture,
    config: RunConfig,
    cluster: Cluster,
    gpu: Gpu,
    workload: Workload,
) -> Plan:
    """Returns the plan. Raises ConfigError, with the stage and what to change, unless the configuration fits."""
    try:
        check_chain((config,), cluster, model)
        memory = estimate_memory(model, config, cluster, gpu, workload)
    except NoRoom as error:
        way_out = _way_out(model, config, cluster, gpu, workload)
        raise ConfigError(f"stage {config.stage.name}: {error}: {way_out}") from None
    except ConfigError as error:
        text = str(error)
        named = text.startswith("stage ")
        raise ConfigError(text if named else f"stage {config.stage.name}: {text}") from None
    phase = memory.fullest_phase
    if not _has_room(memory, gpu):
        parts = sorted(memory.phases[phase].items(), key=lambda part: -part[1])[:2]
        largest = " and ".join(f"{name} {size / GIB:.1f}" for name, size in parts)
        raise ConfigError(
            f"stage {config.stage.name}: {phase} would need {memory.total(phase) / GIB:.1f} GiB, of which {largest}, "
            f"and a plan may fill {PLANNED_SHARE:.0%} of the GPU's {gpu.memory_gib:g}: "
            f"{_way_out(model, config, cluster, gpu, workload)}"
        )
    time = estimate_step(model, config, cluster, gpu, workload, memory)
    num_engines = cluster.num_gpus // config.sampler.tensor_parallel
    return Plan(
        config=config, memory=memory, time=time, rollouts_per_engine=ceil(time.num_sampled / num_engines)
    )


def fits(model: Architecture, config: RunConfig, cluster: Cluster, gpu: Gpu, workload: Workload) -> bool:
    """Returns whether the configuration fits, without estimating the time of a step, which takes longer."""
    try:
        check_chain((config,), cluster, model)
        memory = estimate_memory(model, config, cluster, gpu, workload)
    except ConfigError:
        return False
    return _has_room(memory, gpu)


def _has_room(memory: Memory, gpu: Gpu) -> bool:
    return memory.total(memory.fullest_phase) <= PLANNED_SHARE * gpu.memory_gib * GIB


def fitting_layouts(
    model: Architecture,
    config: RunConfig,
    cluster: Cluster,
    gpu: Gpu,
    workload: Workload,
) -> list[Plan]:
    """Returns every layout that fits, fastest first, and of equally fast ones the one with the fewest ranks first. Each
    has the least recomputation that fits, since more is never faster."""
    plans = []
    for layout in _layouts(config, cluster):
        for recompute in Recompute:
            candidate = replace(layout, model=replace(layout.model, recompute=recompute))
            if fits(model, candidate, cluster, gpu, workload):
                plans.append(plan_of(model, candidate, cluster, gpu, workload))
                break
    return sorted(plans, key=lambda plan: (plan.time.seconds, _num_ranks(plan.config)))


def overrides(config: RunConfig) -> str:
    """Returns the layout as overrides of the command line."""
    trainer = config.trainer
    parts = [
        f"trainer.tensor_parallel={trainer.tensor_parallel}",
        f"trainer.pipeline_parallel={trainer.pipeline_parallel}",
        f"trainer.sequence_parallel={str(trainer.sequence_parallel).lower()}",
        f"sampler.tensor_parallel={config.sampler.tensor_parallel}",
        f"model.recompute={config.model.recompute.name}",
    ]
    return " ".join(parts)


def _layouts(config: RunConfig, cluster: Cluster) -> Iterator[RunConfig]:
    """Yields powers of two, up to a node for tensor and up to 16 for pipeline parallelism; with sequence parallelism,
    which makes activations smallest."""
    within = [2**power for power in range(10) if 2**power <= cluster.gpus_per_node]
    samplers = [1] if config.sampler.ahead else within
    for tensor, pipeline, sampler in product(within, (1, 2, 4, 8, 16), samplers):
        yield replace(
            config,
            trainer=replace(
                config.trainer,
                tensor_parallel=tensor,
                pipeline_parallel=pipeline,
                sequence_parallel=tensor > 1,
            ),
            sampler=replace(config.sampler, tensor_parallel=sampler),
        )


def _way_out(model: Architecture, config: RunConfig, cluster: Cluster, gpu: Gpu, workload: Workload) -> str:
    """Returns the first change that fits, cheapest first, as the end of an error message."""
    for change in _changes(config):
        if fits(model, change, cluster, gpu, workload):
            return f"write {_written(config, change)}."
    smaller = replace(config, sampler=_asleep(config.sampler))
    layouts = sorted(_layouts(smaller, cluster), key=_num_ranks)
    for recompute, layout in product(Recompute, layouts):
        change = replace(layout, model=replace(layout.model, recompute=recompute))
        if fits(model, change, cluster, gpu, workload):
            return f"write {_written(config, change)}."
    return "no layout of this model fits on this cluster: write more --nodes, or another --gpu."


def _changes(config: RunConfig) -> Iterator[RunConfig]:
    """Yields changes to a configuration that does not fit, cheapest first: smaller passes cost kernel launches,
    releasing the sampler's memory a copy of its weights, recomputation a third of an update."""
    released = _asleep(config.sampler)
    tokens = {config.trainer.micro_batch_tokens}
    while max(min(tokens) // 2, config.sampler.context_tokens) < min(tokens):
        tokens.add(min(tokens) // 2)
    for recompute in (config.model.recompute, Recompute.full):
        for sampler in (config.sampler, released):
            for micro_batch in sorted(tokens, reverse=True):
                yield replace(
                    config,
                    sampler=sampler,
                    trainer=replace(config.trainer, micro_batch_tokens=micro_batch),
                    model=replace(config.model, recompute=recompute),
                )


def _asleep(sampler: SamplerConfig) -> SamplerConfig:
    """Returns a sampler that releases its memory while the policy trains, which excludes sampling ahead."""
    return replace(sampler, release_memory=True, ahead=False)


def _written(config: RunConfig, change: RunConfig) -> str:
    return " ".join(f"{one.key}={one.new}" for one in differences(config, change))


def _num_ranks(config: RunConfig) -> int:
    return config.trainer.tensor_parallel * config.trainer.pipeline_parallel * config.sampler.tensor_parallel
