"""sampler.* and dynamic_sampling.*: sampling of training rollouts, and which prompts are replaced."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from nemo_prorl.config.sections.checks import ConfigError, at_least, positive, require

InformativeBy = StrEnum("InformativeBy", ["score", "reward"])
FOUND_RESPONSE_TOKENS = 1024
"""The longest response where sampler.max_response_tokens=0 and the model's context has room for it."""


@dataclass(slots=True, kw_only=True)
class SamplerConfig:
    """Sampling of training rollouts with vLLM."""

    num_rollouts: int = 16
    """Rollouts per prompt, n (ProRL: 16; 32 in runs 6 and 7)."""
    temperature: float = 1.2
    """Sampling temperature of training rollouts (ProRL: 1.2); the trainer divides its logits by it as well."""
    max_prompt_tokens: int = 4096
    """Longest prompt in tokens; longer prompts are removed from the data, and counted. 0: as long as the data's, but at
    most half of the model's context."""
    max_response_tokens: int = 8192
    """Longest response in tokens, end-of-sequence included; longer ones are cut off (ProRL: 8192, and 16384 in run 8).
    0: what the longest prompt leaves of the context, at most 1024."""
    tensor_parallel: int = 1
    """Ranks of each vLLM engine, so there are ranks / this many engines; must divide the ranks of a node."""
    memory_fraction: float = 0.5
    """Fraction of the GPU's memory for vLLM's weights and KV cache; the policy has the rest."""
    kv_cache_mib: int = 512
    """MiB of KV cache on CPU, where memory_fraction does not apply."""
    max_sequences: int = 1024
    """Maximum number of sequences that one engine decodes concurrently."""
    enforce_eager: bool = False
    """Skips CUDA graph capture; always true on CPU."""
    release_memory: bool = False
    """Frees the sampler's weights and KV cache while the policy trains (vLLM's sleep level 2). No effect on CPU."""
    ahead: bool = False
    """Samples the next step's first round while the policy trains on the current one. These rollouts are one step
    off-policy, which algorithm.correction_level and algorithm.kl_weighted correct."""
    engine_args: dict[str, Any] = field(default_factory=dict)
    """Further fields of vLLM's EngineArgs, such as {kv_cache_dtype: fp8}, except those that the trainer sets
    (docs/gpu.md)."""

    def __post_init__(self) -> None:
        positive("sampler", self, ["temperature", "kv_cache_mib", "max_sequences"])
        at_least("sampler", self, 2, ["num_rollouts"])
        at_least("sampler", self, 0, ["max_prompt_tokens", "max_response_tokens"])
        at_least("sampler", self, 1, ["tensor_parallel"])
        require(0 < self.memory_fraction < 1, "sampler.memory_fraction", self.memory_fraction, "in (0, 1)")
        if self.ahead and (self.release_memory or self.tensor_parallel > 1):
            # Engines and policy would run collectives on the same ranks at the same time, in no common order.
            raise ConfigError(
                "sampler.ahead=true needs the sampler beside the policy at all times, on one rank each: write "
                "sampler.release_memory=false and sampler.tensor_parallel=1 (and perhaps a smaller "
                "sampler.memory_fraction), or leave it off."
            )

    @property
    def context_tokens(self) -> int:
        """Returns the tokens of the longest prompt and the longest response together, which the model must support."""
        return self.max_prompt_tokens + self.max_response_tokens


@dataclass(slots=True, kw_only=True)
class DynamicSamplingConfig:
    """DAPO's dynamic sampling: prompts whose rollouts are all equally good teach nothing and are replaced."""

    enabled: bool = True
    """Whether uninformative groups are replaced. false trains on every sampled prompt."""
    by: InformativeBy = InformativeBy.score
    """What has to differ within a group. score: the task's score (ProRL, DAPO); reward: the reward after shaping, so
    that length penalties alone can make a group informative."""
    max_rounds: int = 8
    """Maximum number of rounds of a step. One that finds no informative group at all goes on until that is no chance at
    the recent share, and no longer."""
    oversample: float = 1.12
    """Prompts of a round, as a multiple of the missing groups divided by the recent share of informative groups, but at
    most four for each missing group. Surplus groups are sampled in vain, missing ones cost another round."""
    min_fill: float = 0.5
    """Share of a step's groups that is enough to train on when max_rounds is reached. With less it trains on these if
    so few may be chance; otherwise the stage is done (`saturated`) or fails."""

    def __post_init__(self) -> None:
        at_least("dynamic_sampling", self, 1, ["max_rounds", "oversample"])
        require(0 <= self.min_fill <= 1, "dynamic_sampling.min_fill", self.min_fill, "in [0, 1]")
