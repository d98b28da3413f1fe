"""Finds the limits of prompts and responses that a configuration leaves to the data and the model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from nemo_prorl.config import ConfigError, RunConfig, SamplerConfig
from nemo_prorl.config.sections.sampler import FOUND_RESPONSE_TOKENS
from nemo_prorl.engines.megatron.architecture import read_architecture
from nemo_prorl.engines.megatron.check import check_context

LIMITS = ("max_prompt_tokens", "max_response_tokens")


def with_begun_limits(config: RunConfig) -> RunConfig:
    """Returns the configuration of a stage that is resumed, with the limits that it began with in place of those that
    are 0, from RUN/stages/NAME.yaml: the data may have grown since."""
    recorded = Path(config.exp_manager.explicit_log_dir) / "stages" / f"{config.stage.name}.yaml"
    if (config.sampler.max_prompt_tokens and config.sampler.max_response_tokens) or not recorded.is_file():
        return config
    before: dict[str, Any] = yaml.safe_load(recorded.read_text(encoding="utf-8"))["sampler"]
    known = {name: getattr(config.sampler, name) or before[name] for name in LIMITS}
    return _limited(config, replace(config.sampler, **known))


def with_limits(config: RunConfig, lengths: Iterable[int]) -> tuple[RunConfig, list[str]]:
    """Returns the configuration with a number for each limit that is 0, and a sentence on what was found. `lengths`,
    the tokens of the prompts, are read only if needed. Raises ConfigError if there is no room for prompts and
    responses."""
    sampler = config.sampler
    unknown = [name for name in LIMITS if not getattr(sampler, name)]
    if not unknown:
        return config, []
    architecture = read_architecture(config.model.path)
    longest = 0 if sampler.max_prompt_tokens else max(lengths)
    found = found_limits(sampler, context_tokens=architecture.max_positions, longest=longest)
    config = _limited(config, found)
    check_context(architecture, config)
    numbers = " and ".join(f"sampler.{name}={getattr(found, name)}" for name in unknown)
    source = f"the longest prompt of {longest:,} tokens and " if longest else ""
    return config, [f"{numbers}, from {source}the model's context of {architecture.max_positions:,}."]


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
