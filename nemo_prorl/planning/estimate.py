"""What a stage costs, from the one number that the paper gives for all of it.

    response tokens = trainer.num_steps x trainer.prompts_per_step x sampler.num_rollouts x expected length
    expected length = RESPONSE_SHARE x sampler.max_response_tokens
    GPU hours       = response tokens / TOKENS_PER_GPU_S / 3600 x parameters / PAPER_PARAMETERS

TOKENS_PER_GPU_S is calibrated so that the paper's chain costs what it did. It therefore holds everything that the
paper's total holds: prompts sampled in vain, validation, checkpoints, restarts. It is one point, and knows nothing of
layout or kernels: an estimate for a plan, not a promise.
"""

from __future__ import annotations

from dataclasses import dataclass

from nemo_prorl.config import RunConfig, SamplerConfig
from nemo_prorl.engines.megatron.architecture import Architecture

PAPER_GPU_HOURS = 16_000
"""On 4 x 8 H100-80GB, in total (2507.12507 section 4.1, 2505.24864 section 3.2)."""
PAPER_PROMPTS = 256
"""A step (2507.12507 section 4.1)."""
PAPER_RUNS = ((1_400, 16, 8_192), (500, 32, 8_192), (200, 16, 16_384))
"""(steps, rollouts a prompt, longest response) of runs 1 to 5, 6 and 7, and 8. Rollouts, lengths, run 8's 200 steps and
the sum beyond 2,000 steps are the papers' (2507.12507 section 4.2, 2505.24864 section 3.3), the other steps our
choice."""
PAPER_PARAMETERS = 1.777e9
"""Of DeepSeek-R1-Distill-Qwen-1.5B, with its two embeddings. The cost of a token is taken to grow with them, as the
arithmetic of every pass and the bytes of every decoding step do."""

RESPONSE_SHARE = 0.5
"""Mean response over longest response (our choice: the papers show lengths as curves only. DeepScaleR, the same model
on math alone at 8k, reports 5,500 falling to 3,500 tokens; that the other domains are shorter is our guess)."""


def expected_response_tokens(sampler: SamplerConfig) -> float:
    """Mean tokens of a response, end-of-sequence included."""
    return RESPONSE_SHARE * sampler.max_response_tokens


PAPER_TOKENS = sum(
    steps
    * PAPER_PROMPTS
    * num_rollouts
    * expected_response_tokens(SamplerConfig(num_rollouts=num_rollouts, max_response_tokens=longest))
    for steps, num_rollouts, longest in PAPER_RUNS
)
TOKENS_PER_GPU_S = PAPER_TOKENS / (PAPER_GPU_HOURS * 3600)
"""Response tokens trained on, over everything: about 816."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Of one stage at its full number of steps, or of several: estimates add up."""

    num_steps: int = 0
    response_tokens: float = 0.0
    gpu_hours: float = 0.0

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(
            num_steps=self.num_steps + other.num_steps,
            response_tokens=self.response_tokens + other.response_tokens,
            gpu_hours=self.gpu_hours + other.gpu_hours,
        )


def estimate(config: RunConfig, model: Architecture | None) -> Estimate:
    """Without a model: of one as large as the paper's."""
    trainer, sampler = config.trainer, config.sampler
    rollouts = trainer.num_steps * trainer.prompts_per_step * sampler.num_rollouts
    tokens = rollouts * expected_response_tokens(sampler)
    size = 1.0 if model is None else model.num_parameters / PAPER_PARAMETERS
    return Estimate(
        num_steps=trainer.num_steps,
        response_tokens=tokens,
        gpu_hours=tokens / TOKENS_PER_GPU_S / 3600 * size,
    )
