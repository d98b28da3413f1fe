"""The canary: a few tokens that the sampler draws after each refit and the trainer scores, before any rollout is drawn.

It is the whole path in small: weights, loader, kernels, temperature, precision. The prompt and the random numbers are
always the same, so that what changes from refit to refit is the weights alone. Nothing else of a run depends on it: it
takes no prompt from the data, and the sampler forgets it at the next call.

With the defaults one engine draws 4 x 16 tokens, at one time: 64 of the 262,144 tokens that it draws for a step of
256 prompts x 16 rollouts x 4,096 tokens on 64 engines (0.02 %), and 16 of some 8,192 decoding steps (0.2 %).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nemo_prorl.config import RunConfig
from nemo_prorl.data.batch import responses, token_batch
from nemo_prorl.data.mix import Tokenizer
from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.interface import Policy, SamplingSettings
from nemo_prorl.training.fleet import SamplerFleet
from nemo_prorl.types import Prompt

TEXT = (
    "A train leaves at 9:40 and arrives at 12:05. It stops three times, for four minutes each. How long does it move? "
    "Let us think step by step."
)
RECHECK = 4
"""A second look takes so many times the rollouts, with other random numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """|log-probability of the sampler - of the trainer|, in nats, over the canary's tokens."""

    mean: float
    """Of the engine that is worst."""
    max: float
    engine: int
    """The worst one."""


def canary_prompt(tokenizer: Tokenizer, config: RunConfig) -> Prompt:
    """Plain text without a chat template, which leaves the policy less certain of what follows; cut to what the context
    allows."""
    token_ids = tokenizer.encode(TEXT, add_special_tokens=False)[: config.sampler.max_prompt_tokens]
    return Prompt(uid="canary", domain="", source="", text=TEXT, token_ids=tuple(token_ids), task={})


class Canary:
    """Asks every engine of the job. Every rank calls it at the same time."""

    def __init__(
        self, prompt: Prompt, *, config: RunConfig, fleet: SamplerFleet, policy: Policy, ranks: Ranks
    ) -> None:
        self._prompt, self._config = prompt, config
        self._fleet, self._policy, self._ranks = fleet, policy, ranks

    def difference(self, *, again: bool = False) -> Difference:
        """The same on every rank. `again`: by more tokens, and others than before."""
        signal, sampler = self._config.controller.sampler_mismatch, self._config.sampler
        settings = SamplingSettings(
            num_rollouts=signal.canary_rollouts * (RECHECK if again else 1),
            temperature=sampler.temperature,
            top_p=1.0,
            max_response_tokens=min(signal.canary_tokens, sampler.max_response_tokens),
            seed=self._config.seed + again,
        )
        by_engine = self._fleet.sample_on_each([self._prompt], settings)
        layout = self._ranks.layout
        mine: dict[int, tuple[float, float]] = {}
        for engine in range(layout.replica, len(by_engine), layout.data_parallel):
            (rollouts,) = by_engine[engine]
            scored = responses(self._policy.logprobs(token_batch(rollouts)), rollouts)
            sampled = [rollout.sampler_logprobs for rollout in rollouts]
            differences = np.abs(np.concatenate(sampled).astype(np.float64) - np.concatenate(scored))
            mine[engine] = float(differences.mean()), float(differences.max())
        found = {engine: pair for part in self._ranks.gather_replicas(mine) for engine, pair in part.items()}
        worst = max(sorted(found), key=lambda engine: found[engine][0])
        return Difference(
            mean=found[worst][0], max=max(largest for _, largest in found.values()), engine=worst
        )
