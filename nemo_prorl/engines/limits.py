"""Finds the numbers that a configuration leaves to the data and the model, and writes as 0: the limits of prompts and
responses, and the learning rate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from nemo_prorl.algorithm.learning_rate import chosen_rate
from nemo_prorl.config import ConfigError, Optimizer, RunConfig, SamplerConfig
from nemo_prorl.config.sections.sampler import FOUND_RESPONSE_TOKENS
from nemo_prorl.engines.megatron.architecture import Architecture, read_architecture
from nemo_prorl.engines.megatron.check import check_context
from nemo_prorl.run_folder.formats import large

LIMITS = ("max_prompt_tokens", "max_response_tokens")
FAR = 5.0
"""How many times a given learning rate may be above or below the rule's without a warning."""


def as_begun(config: RunConfig) -> RunConfig:
    """Returns the configuration of a stage that is resumed, with the limits that it began with in place of those that
    are 0, from RUN/stages/NAME.yaml: the data may have grown since."""
    recorded = Path(config.exp_manager.explicit_log_dir) / "stages" / f"{config.stage.name}.yaml"
    sampler = config.sampler
    if all(getattr(sampler, name) for name in LIMITS) or not recorded.is_file():
        return config
    before: dict[str, Any] = yaml.safe_load(recorded.read_text(encoding="utf-8"))
    known = {name: getattr(sampler, name) or before["sampler"][name] for name in LIMITS}
    return _limited(config, replace(sampler, **known))


def with_learning_rate(model: Architecture, config: RunConfig) -> tuple[RunConfig, str]:
    """Returns the configuration with a learning rate where it is 0, and a sentence on where it comes from: a warning if
    it is far from the one that 0 stands for."""
    given, lora = config.trainer.learning_rate, config.lora
    found = chosen_rate(model.num_parameters, hidden_size=model.hidden_size, rank=lora.rank, scale=lora.scale)
    of = f"{large(model.num_parameters)} weights" + (f" at rank {lora.rank}" if lora.rank else "")
    if not given:
        said = f"trainer.learning_rate={found:g}, by the rule for {of} (docs/recipes.md)."
        return replace(config, trainer=replace(config.trainer, learning_rate=found)), said
    if config.trainer.optimizer is Optimizer.sgd:
        return config, f"trainer.learning_rate={given:g} is given; the rule is for Adam (docs/recipes.md)."
    said = f"trainer.learning_rate={given:g} is given; by the rule for {of} it would be {found:g}"
    for times, danger in ((found / given, "hardly move"), (given / found, "collapse")):
        if times > FAR:
            said = (
                f"warning: {said}, and the policy may {danger}: trainer.learning_rate=0 stands for the rule"
            )
    return config, f"{said} (docs/recipes.md)."


def with_limits(config: RunConfig, lengths: Iterable[int]) -> tuple[RunConfig, str]:
    """Does `with_limits_of` for the model in model.path. Raises ConfigError also if vLLM's cache here has no room."""
    architecture = read_architecture(config.model.path)
    found, said = with_limits_of(architecture, config, lengths)
    if said:
        check_context(architecture, found)
    return found, said


def with_limits_of(
    architecture: Architecture, config: RunConfig, lengths: Iterable[int]
) -> tuple[RunConfig, str]:
    """Returns the configuration with a number for each limit that is 0, and a sentence on what was found, empty if
    nothing. `lengths`, the tokens of the prompts, are read only if needed. Raises ConfigError if the model's context
    has no room for prompts and responses."""
    sampler, context = config.sampler, architecture.max_positions
    unknown = [name for name in LIMITS if not getattr(sampler, name)]
    if not unknown:
        return config, ""
    longest = 0 if sampler.max_prompt_tokens else max(lengths)
    found = found_limits(sampler, context_tokens=context, longest=longest)
    numbers = " and ".join(f"sampler.{name}={getattr(found, name)}" for name in unknown)
    source = f"the longest prompt of {longest:,} tokens and " if longest else ""
    return _limited(config, found), f"{numbers}, from {source}the model's context of {context:,}."


def found_limits(sampler: SamplerConfig, *, context_tokens: int, longest: int) -> SamplerConfig:
    """Returns the sampler's options with a number for each limit that is 0. `longest`: tokens of the longest prompt.

    A prompt gets at most what a given response leaves of the context, or half of it; a response gets what the prompt
    leaves, but not more than FOUND_RESPONSE_TOKENS. Raises ConfigError if a given limit fills the context."""
    prompt, response = sampler.max_prompt_tokens, sampler.max_response_tokens
    for given, name, other in ((prompt, "prompt", "responses"), (response, "response", "prompts")):
        if given >= context_tokens:
            raise ConfigError(
                f"sampler.max_{name}_tokens={given} leaves no room for {other} in the model's context of "
                f"{context_tokens:,} tokens: reduce it."
            )
    prompt = prompt or min(longest, context_tokens - (response or context_tokens // 2))
    response = response or min(FOUND_RESPONSE_TOKENS, context_tokens - prompt)
    return replace(sampler, max_prompt_tokens=prompt, max_response_tokens=response)


def _limited(config: RunConfig, sampler: SamplerConfig) -> RunConfig:
    """Returns the configuration with these limits, on which Dr. GRPO's divisor depends."""
    algorithm = config.algorithm
    if not algorithm.aggregation_constant:
        algorithm = replace(algorithm, aggregation_constant=float(sampler.max_response_tokens))
    return replace(config, sampler=sampler, algorithm=algorithm)
