"""The canary: a few tokens that the sampler draws after each refit and the trainer scores, before any rollout is drawn.

It tests the whole path: weights, loader, kernels, temperature, precision. Prompt and random numbers are always the
same, so only the weights change from refit to refit. The canary takes no prompt from the data and does not affect the
rollouts of training.

It costs little: with the defaults each engine draws 4 x 16 tokens concurrently. In a step of 256 prompts x 16 rollouts
x 4,096 tokens on 64 engines these are 64 of an engine's 262,144 tokens (0.02 %) and 16 of some 8,192 decoding steps
(0.2 %).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nemo_prorl.config import RunConfig
from nemo_prorl.data.batch import responses, token_batch
from nemo_prorl.data.mix import Tokenizer
from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.interface import Policy, SamplingSettings
from nemo_prorl.training.sampling.fleet import SamplerFleet
from nemo_prorl.types import Prompt

TEXT = (
    "A train leaves at 9:40 and arrives at 12:05. It stops three times, for four minutes each. How long does it move? "
    "Let us think step by step."
)
RECHECK = 4
"""A repeated measurement draws this many times the rollouts, with other random numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """|log-probability of the sampler - log-probability of the trainer| over the canary's tokens, in nats."""

    mean: float
    """Mean over the tokens of the engine that differs most."""
    max: float
    """Maximum over the tokens of all engines."""
    engine: int
    """Index of the engine that differs most."""


def canary_prompt(tokenizer: Tokenizer, config: RunConfig) -> Prompt:
    """Returns a fixed text, cut to sampler.max_prompt_tokens. It has no chat template, so that the policy is less
    certain of what follows."""
    token_ids = tokenizer.encode(TEXT, add_special_tokens=False)[: config.sampler.max_prompt_tokens]
    return Prompt(uid="canary", domain="", source="", text=TEXT, token_ids=tuple(token_ids), task={})


@dataclass(frozen=True, kw_only=True, eq=False)
class Canary:
    """Compares every sampling engine of the job with the trainer."""

    prompt: Prompt
    config: RunConfig
    fleet: SamplerFleet
    policy: Policy
    ranks: Ranks

    def difference(self, *, again: bool = False) -> Difference:
        """Returns the same difference on every rank. Collective. again: draws more tokens, and others than before."""
        signal, sampler = self.config.controller.sampler_mismatch, self.config.sampler
        settings = SamplingSettings(
            num_rollouts=signal.canary_rollouts * (RECHECK if again else 1),
            temperature=sampler.temperature,
            top_p=1.0,
            max_response_tokens=min(signal.canary_tokens, sampler.max_response_tokens),
            seed=self.config.seed + again,
        )
        by_engine = self.fleet.sample_on_each([self.prompt], settings)
        layout = self.ranks.layout
        mine: dict[int, tuple[float, float]] = {}
        for engine in range(layout.replica, len(by_engine), layout.data_parallel):
            (rollouts,) = by_engine[engine]
            scored = responses(self.policy.logprobs(token_batch(rollouts)), rollouts)
            sampled = [rollout.sampler_logprobs for rollout in rollouts]
            differences = np.abs(np.concatenate(sampled).astype(np.float64) - np.concatenate(scored))
            mine[engine] = float(differences.mean()), float(differences.max())
        found = {engine: pair for part in self.ranks.gather_replicas(mine) for engine, pair in part.items()}
        worst = max(sorted(found), key=lambda engine: found[engine][0])
        return Difference(
            mean=found[worst][0], max=max(largest for _, largest in found.values()), engine=worst
        )
