"""What a step works on, as far as the configuration does not say it: lengths, and how many prompts teach something."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from nemo_prorl.config import ConfigError, RunConfig
from nemo_prorl.planning.estimate import RESPONSE_SHARE
from nemo_prorl.planning.lengths import Lengths

PROMPT_TOKENS = 256
"""Mean of a prompt, or sampler.max_prompt_tokens where that is less (our choice: with Qwen2.5's tokenizer
MATH has a mean of 96, CodeContests of 684 and Reasoning Gym of 275, and the paper's sets of their sizes about this)."""
INFORMATIVE_SHARE = 0.6
"""Of sampled prompts that have both good and bad rollouts (our choice: the papers do not print it)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Example: Workload(response_share=0.5, informative_share=0.6)"""

    response_share: float = RESPONSE_SHARE
    """Mean response over longest response."""
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
        """Of responses."""
        longest = config.sampler.max_response_tokens
        return Lengths.with_mean(self.response_share * longest, limit=longest)

    def rollout_tokens(self, config: RunConfig) -> float:
        """Mean of prompt and response together."""
        return prompt_tokens(config) + self.response_share * config.sampler.max_response_tokens

    def sampled_prompts(self, config: RunConfig) -> int:
        """In a step's first round, as training/collector.py sizes it; more are rare once the yield is known."""
        needed, dynamic = config.trainer.prompts_per_step, config.dynamic_sampling
        wanted = min(needed * dynamic.oversample / self.informative_share, 4 * needed)
        return ceil(wanted) if dynamic.enabled else needed

    def prepared_prompts(self, config: RunConfig) -> int:
        """Whose log-probabilities are computed: all informative ones, those beyond what the step needs included."""
        sampled = self.sampled_prompts(config)
        return round(sampled * self.informative_share) if config.dynamic_sampling.enabled else sampled


def prompt_tokens(config: RunConfig) -> int:
    """Mean of a prompt."""
    return min(PROMPT_TOKENS, config.sampler.max_prompt_tokens)
