"""What is estimated, and the assumptions that the configuration does not contain: lengths, and how many prompts are
informative."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from nemo_prorl.cluster.plan.estimate import RESPONSE_SHARE
from nemo_prorl.cluster.plan.fit import Cluster
from nemo_prorl.cluster.scale.known import Gpu
from nemo_prorl.config import RunConfig
from nemo_prorl.config.sections.checks import require
from nemo_prorl.engines.megatron.architecture import Architecture

PROMPT_TOKENS = 256
"""Mean tokens of a prompt, or sampler.max_prompt_tokens if that is less. With Qwen2.5's tokenizer MATH has a mean of
96, CodeContests of 684 and Reasoning Gym of 275; weighted by the sizes of the paper's sets about this."""
INFORMATIVE_SHARE = 0.6
"""Share of sampled prompts that have both good and bad rollouts (the papers do not state it)."""
SPREAD = 1.4
"""Mean square of a response's length over the square of its mean: a log-normal with a mean of half the longest response
of which 14 % are cut off has 1.4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is estimated: training this model with this configuration on this cluster."""

    model: Architecture
    config: RunConfig
    cluster: Cluster
    gpu: Gpu
    response_share: float = RESPONSE_SHARE
    """Mean response length over the longest."""
    informative_share: float = INFORMATIVE_SHARE

    def __post_init__(self) -> None:
        require(0 < self.response_share < 1, "--response-share", f"{self.response_share:g}", "in (0, 1)")
        share = self.informative_share
        require(0 < share <= 1, "--informative-share", f"{share:g}", "in (0, 1]")

    @property
    def data_parallel(self) -> int:
        trainer = self.config.trainer
        return self.cluster.num_gpus // (trainer.tensor_parallel * trainer.pipeline_parallel)

    @property
    def num_engines(self) -> int:
        return self.cluster.num_gpus // self.config.sampler.tensor_parallel

    @property
    def prompt_tokens(self) -> int:
        return min(PROMPT_TOKENS, self.config.sampler.max_prompt_tokens)

    @property
    def response_tokens(self) -> float:
        """Returns the mean length of a response."""
        return self.response_share * self.config.sampler.max_response_tokens

    @property
    def rollout_tokens(self) -> float:
        """Returns the mean tokens of prompt and response together."""
        return self.prompt_tokens + self.response_tokens

    @property
    def response_context(self) -> float:
        """Returns the mean context of a response's token: half of E[L^2] / E[L], after the prompt."""
        return self.prompt_tokens + self.response_tokens * min(SPREAD, 1 / self.response_share) / 2

    @property
    def rollout_context(self) -> float:
        """Returns the mean number of tokens that a token of a rollout attends to, in a causal mask."""
        prompt = self.prompt_tokens
        return (prompt**2 / 2 + self.response_tokens * self.response_context) / self.rollout_tokens

    @property
    def sampled_prompts(self) -> int:
        """Returns the prompts of a step's first round, as the collector sizes it; further rounds are rare once the
        yield is known."""
        needed, dynamic = self.config.trainer.prompts_per_step, self.config.dynamic_sampling
        wanted = min(needed * dynamic.oversample / self.informative_share, 4 * needed)
        return ceil(wanted) if dynamic.enabled else needed

    @property
    def sampled_rollouts(self) -> int:
        return self.sampled_prompts * self.config.sampler.num_rollouts

    @property
    def trained_rollouts(self) -> int:
        return self.config.trainer.prompts_per_step * self.config.sampler.num_rollouts

    @property
    def prepared_rollouts(self) -> int:
        """Returns the rollouts whose log-probabilities are computed: those of informative prompts, as many as the step
        needs."""
        if not self.config.dynamic_sampling.enabled:
            return self.sampled_rollouts
        informative = round(self.sampled_prompts * self.informative_share)
        return min(informative, self.config.trainer.prompts_per_step) * self.config.sampler.num_rollouts
