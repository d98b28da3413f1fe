"""Estimates what a stage costs from the paper's one number, the total of 16,000 GPU hours.

    response tokens = trainer.num_steps x trainer.prompts_per_step x sampler.num_rollouts x expected length
    expected length = RESPONSE_SHARE x sampler.max_response_tokens
    GPU hours       = response tokens / TOKENS_PER_GPU_S / 3600 x parameters / PAPER_PARAMETERS

TOKENS_PER_GPU_S is calibrated so that the paper's chain costs what it did, and so includes everything that the paper's
total includes: uninformative prompts, validation, checkpoints, restarts. It is a single data point that ignores layout
and kernels: an estimate for planning, not a promise. experiments/estimates.md says how much it depends on what the
papers leave open. The mean length of a response cancels out of the GPU hours, because it is the same share of the
longest response in every stage; the number of steps does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from nemo_prorl.config import RunConfig
from nemo_prorl.engines.megatron.architecture import Architecture

PAPER_GPU_HOURS = 16_000
"""Total GPU hours of the paper's chain on 4 x 8 H100-80GB (2507.12507 section 4.1, 2505.24864 section 3.2)."""
PAPER_PROMPTS = 256
"""Prompts per step (2507.12507 section 4.1)."""
PAPER_RUNS = ((1_400, 16, 8_192), (500, 32, 8_192), (200, 16, 16_384))
"""Steps, rollouts per prompt and longest response in tokens of runs 1 to 5, 6 and 7, and 8. Rollouts, lengths, run 8's
200 steps and a total of more than 2,000 are the papers' (2507.12507 section 4.2, 2505.24864 section 3.3); they do not
give the other steps."""
PAPER_PARAMETERS = 1.777e9
"""Parameters of DeepSeek-R1-Distill-Qwen-1.5B, both embeddings included. The cost of a token is assumed proportional to
them, as the arithmetic of every pass and the bytes of every decoding step are."""

RESPONSE_SHARE = 0.5
"""Mean response length over the longest (the papers show lengths only as curves)."""
TOKENS_PER_GPU_S = (
    RESPONSE_SHARE * sum(steps * PAPER_PROMPTS * num * longest for steps, num, longest in PAPER_RUNS)
) / (PAPER_GPU_HOURS * 3600)
"""Response tokens per GPU and second, averaged over the whole of the paper's chain: about 816."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Estimated cost of one stage at its full number of steps, or the sum of several."""

    num_steps: int = 0
    response_tokens: float = 0.0
    gpu_hours: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            num_steps=self.num_steps + other.num_steps,
            response_tokens=self.response_tokens + other.response_tokens,
            gpu_hours=self.gpu_hours + other.gpu_hours,
        )


def estimate(config: RunConfig, model: Architecture | None) -> Cost:
    """Returns the cost of a stage. Without a model, one as large as the paper's is assumed."""
    trainer, sampler = config.trainer, config.sampler
    rollouts = trainer.num_steps * trainer.prompts_per_step * sampler.num_rollouts
    tokens = rollouts * RESPONSE_SHARE * sampler.max_response_tokens
    size = 1.0 if model is None else model.num_parameters / PAPER_PARAMETERS
    return Cost(
        num_steps=trainer.num_steps, response_tokens=tokens, gpu_hours=tokens / TOKENS_PER_GPU_S / 3600 * size
    )
