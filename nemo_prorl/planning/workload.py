"""Assumptions about a step that the configuration does not contain: lengths, and how many prompts are informative."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from nemo_prorl.config import ConfigError, RunConfig
from nemo_prorl.planning.estimate import RESPONSE_SHARE
from nemo_prorl.planning.lengths import Lengths

PROMPT_TOKENS = 256
"""Mean tokens of a prompt, or sampler.max_prompt_tokens if that is less (our choice: with Qwen2.5's tokenizer MATH has
a mean of 96, CodeContests of 684 and Reasoning Gym of 275; weighted by the sizes of the paper's sets about this)."""
INFORMATIVE_SHARE = 0.6
"""Share of sampled prompts that have both good and bad rollouts (our choice: the papers do not state it)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Example: Workload(response_share=0.5, informative_share=0.6)"""

    response_share: float = RESPONSE_SHARE
    """Mean response length over the longest."""
    informative_share: float = INFORMATIVE_SHARE

    def __post_init__(self) -> None:
        if not 0 < self.response_share < 1:
            raise ConfigError(
                f"--response-share={self.response_share:g} is out of range: it must be in (0, 1)."
            )
        if not 0 < self.informative_share <= 1:
            raise ConfigError(
                f"--informative-share={self.informative_share:g} is out of range: it must be in (0, 1]."
            )

    def lengths(self, config: RunConfig) -> Lengths:
        """Returns the distribution of response lengths."""
        longest = config.sampler.max_response_tokens
        return Lengths.with_mean(self.response_share * longest, limit=longest)

    def rollout_tokens(self, config: RunConfig) -> float:
        """Returns the mean tokens of prompt and response together."""
        return prompt_tokens(config) + self.response_share * config.sampler.max_response_tokens

    def sampled_prompts(self, config: RunConfig) -> int:
        """Returns the prompts of a step's first round, as training/collector.py sizes it; further rounds are rare once
        the yield is known."""
        needed, dynamic = config.trainer.prompts_per_step, config.dynamic_sampling
        wanted = min(needed * dynamic.oversample / self.informative_share, 4 * needed)
        return ceil(wanted) if dynamic.enabled else needed

    def prepared_prompts(self, config: RunConfig) -> int:
        """Whose log-probabilities are computed: informative ones, as many as the step needs."""
        if not config.dynamic_sampling.enabled:
            return self.sampled_prompts(config)
        return min(
            round(self.sampled_prompts(config) * self.informative_share), config.trainer.prompts_per_step
        )


def prompt_tokens(config: RunConfig) -> int:
    """Returns the mean tokens of a prompt."""
    return min(PROMPT_TOKENS, config.sampler.max_prompt_tokens)
