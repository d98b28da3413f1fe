"""Refits: the policy's weights are loaded into the sampler, and verified before a rollout is sampled.

Two checks find different faults. Fingerprints (algorithm/fingerprint.py) of every tensor are compared as it leaves the
policy, as it arrives, and as the engine holds it. They are exact and name the tensor, so they detect weights that are
one update old even if the difference is too small to show in log-probabilities. The canary, a few tokens that the
sampler draws and the trainer scores, tests the whole path: weights, loader, kernels, temperature, precision. It also
detects faults outside the weights, and in copies of them that cannot be read back, but only if they are large compared
with rounding.

If either check fails, everything is loaded and checked once more, which corrects a single accident before anything is
sampled. The controller's watch `sampler_mismatch` handles what that does not correct.

The canary's prompt and random numbers are always the same, so only the weights change from refit to refit. It takes no
prompt from the data, does not affect the rollouts of training, and costs little: with the defaults each engine draws
4 x 16 tokens concurrently. In a step of 256 prompts x 16 rollouts x 4,096 tokens on 64 engines these are 64 of an
engine's 262,144 tokens (0.02 %) and 16 of some 8,192 decoding steps (0.2 %).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from nemo_prorl.algorithm.fingerprint import bit_sum, read
from nemo_prorl.config import ControllerAction, SamplerConfig
from nemo_prorl.data.batch import responses, token_batch
from nemo_prorl.data.mix import Tokenizer
from nemo_prorl.engines.interface import SamplingSettings
from nemo_prorl.training.context import StepContext
from nemo_prorl.types import Prompt

CHANGED = (
    "arrived with other values than were sent, or not at all: look for code that changes weights between policy and "
    "sampler, or for a copy there that is not refreshed"
)
LEFT_OUT = (
    "arrived, but the engine's loader did not use what arrived: check how this version of vLLM loads these names "
    "(nemo_prorl/engines/vllm/weight_transfer.py)"
)
NOT_THE_WEIGHTS = (
    "The sampler holds every tensor bit for bit as the policy sent it, so look for another cause (temperature, "
    "precision, attention kernels, RoPE scaling, a quantised KV cache), or for a fault in how the policy joins its "
    "shards or updates what it sends"
)
NUM_NAMED = 6
"""Number of tensors that a message names; it only counts the others."""
TEXT = (
    "A train leaves at 9:40 and arrives at 12:05. It stops three times, for four minutes each. How long does it move? "
    "Let us think step by step."
)
RECHECK = 4
"""A repeated measurement draws this many times the rollouts, with other random numbers."""

Faults = dict[str, str]
"""Hugging Face name of a tensor -> what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryDifference:
    """|log-probability of the sampler - log-probability of the trainer| over the canary's tokens, in nats."""

    mean: float
    """Mean over the tokens of the engine that differs most."""
    max: float
    """Maximum over the tokens of all engines."""
    engine: int
    """Index of the engine that differs most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refitted:
    """The result of a refit, the same on every rank."""

    num_wrong: int = 0
    """Number of tensors that differed from the policy's on any rank after the first load."""
    num_still_wrong: int = 0
    """Number of tensors that still differed after the second load."""
    canary: CanaryDifference | None = None
    """The last measurement of the canary; None if there is no canary, or if tensors differ."""
    diagnosis: str = ""
    """The likely cause, and where to look."""
    is_lost: bool = False
    """Whether tensors still differ and the run has to stop before anything is sampled."""
    fingerprints: Mapping[str, int] = field(default_factory=dict)
    """Hugging Face name -> fingerprint of each tensor that the policy sent."""

    @property
    def metrics(self) -> dict[str, float]:
        metrics = {
            "sampler/num_wrong_tensors": float(self.num_wrong),
            "sampler/num_still_wrong_tensors": float(self.num_still_wrong),
        }
        if self.canary is not None:
            metrics["sampler/canary_abs_diff_mean"] = self.canary.mean
            metrics["sampler/canary_abs_diff_max"] = self.canary.max
        return metrics


def canary_prompt(tokenizer: Tokenizer, sampler: SamplerConfig) -> Prompt:
    """Returns a fixed text, cut to sampler.max_prompt_tokens. It has no chat template, so that the policy is less
    certain of what follows."""
    token_ids = tokenizer.encode(TEXT, add_special_tokens=False)[: sampler.max_prompt_tokens]
    return Prompt(uid="canary", domain="", source="", text=TEXT, token_ids=tuple(token_ids), task={})


@dataclass(frozen=True, eq=False)
class Canary:
    """Compares every sampling engine of the job with the trainer."""

    context: StepContext
    prompt: Prompt

    def difference(self, *, again: bool = False) -> CanaryDifference:
        """Returns the same difference on every rank. Collective. again: draws more tokens, and others than before."""
        context, config = self.context, self.context.config
        controller, sampler = config.controller, config.sampler
        settings = SamplingSettings(
            num_rollouts=controller.canary_rollouts * (RECHECK if again else 1),
            temperature=sampler.temperature,
            top_p=1.0,
            max_response_tokens=min(controller.canary_tokens, sampler.max_response_tokens),
            seed=config.seed + again,
        )
        by_engine = context.fleet.sample_on_each([self.prompt], settings)
        layout = context.ranks.layout
        mine: dict[int, tuple[float, float]] = {}
        for engine in range(layout.replica, len(by_engine), layout.data_parallel):
            (rollouts,) = by_engine[engine]
            scored = responses(context.policy.logprobs(token_batch(rollouts)), rollouts)
            sampled = [rollout.sampler_logprobs for rollout in rollouts]
            differences = np.abs(np.concatenate(sampled).astype(np.float64) - np.concatenate(scored))
            mine[engine] = float(differences.mean()), float(differences.max())
        parts = context.ranks.gather_replicas(mine)
        found = {engine: pair for part in parts for engine, pair in part.items()}
        worst = max(sorted(found), key=lambda engine: found[engine][0])
        return CanaryDifference(
            mean=found[worst][0], max=max(largest for _, largest in found.values()), engine=worst
        )


class Refit:
    """Loads and verifies the sampler's weights. Collective; nobody else may use the sampler meanwhile."""

    def __init__(self, context: StepContext, canary: Prompt | None) -> None:
        """canary: the prompt of the canary; None: there is none. The log gets a line if a check fails."""
        self._context = context
        self._canary: Canary | None = None
        if canary is not None and context.config.controller.canary_rollouts:
            self._canary = Canary(context, canary)

    def __call__(self, version: int, *, canary_limit: float) -> Refitted:
        """Loads the policy's weights, and once more if a check fails. version: number of updates that made the weights.
        canary_limit: the canary fails if its mean difference, in nats per token, is larger."""
        sent, faults, canary = self._load(version)
        remaining = faults
        if faults or (canary is not None and not canary.mean <= canary_limit):  # it may be NaN
            before = _described(faults, len(sent), canary, canary_limit)
            sent, remaining, canary = self._load(version, again=True)
            after = _described(remaining, len(sent), canary, canary_limit)
            self._context.say(
                f"refit after update {version}: {before}; everything is loaded again: now {after}."
            )
        stops = self._context.config.controller.sampler_mismatch is ControllerAction.stop
        named = remaining or faults
        cause = _sentence(named, len(sent)) if named else NOT_THE_WEIGHTS
        return Refitted(
            num_wrong=len(faults),
            num_still_wrong=len(remaining),
            canary=canary,
            diagnosis=f"{cause[0].upper()}{cause[1:]}.",
            is_lost=bool(remaining) and stops,
            fingerprints=sent,
        )

    def _load(
        self, version: int, *, again: bool = False
    ) -> tuple[dict[str, int], Faults, CanaryDifference | None]:
        """Loads the weights. Returns (fingerprints of what the policy sent, faults on any rank, and what the canary
        measures if there are none)."""
        context = self._context
        sums: dict[str, torch.Tensor] = {}

        def weights() -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in context.policy.named_weights():
                sums[name] = bit_sum(tensor)
                yield name, tensor

        loaded = context.sampler.load_weights(weights(), version=version)
        (sent,) = read(sums)
        mine = dict.fromkeys(loaded.not_held, LEFT_OUT)
        names = sent.keys() | loaded.received.keys()
        mine |= {name: CHANGED for name in names if sent.get(name) != loaded.received.get(name)}
        faults: Faults = {}
        for part in context.ranks.gather(mine):
            faults = part | faults  # if ranks disagree about a tensor, the first one counts
        if self._canary is None or faults:
            return sent, faults, None
        return sent, faults, self._canary.difference(again=again)


def _described(faults: Faults, num_all: int, canary: CanaryDifference | None, limit: float) -> str:
    if faults:
        return _sentence(faults, num_all)
    if canary is None:
        return "every tensor is right"
    return (
        f"sampler and trainer differ by {canary.mean:.3g} nats per token on the canary prompt (engine "
        f"{canary.engine}; the limit is {limit:.3g})"
    )


def _sentence(faults: Faults, num_all: int) -> str:
    """Describes the faults, with tensors of the same fault together."""
    by_fault: dict[str, list[str]] = defaultdict(list)
    for name, fault in faults.items():
        by_fault[fault].append(name)
    return "; ".join(f"{_names(names, num_all)} {fault}" for fault, names in by_fault.items())


def _names(names: Sequence[str], num_all: int) -> str:
    """Names tensors. Example: "12 of 50 tensors, all in model.layers.1 (model.layers.1.mlp.up_proj.weight, ... and 6
    more)"."""
    if len(names) == num_all:
        return f"all {num_all} tensors"
    first = ", ".join(sorted(names)[:NUM_NAMED])
    more = f" and {len(names) - NUM_NAMED} more" if len(names) > NUM_NAMED else ""
    layers = {".".join(name.split(".")[:3]) for name in names}  # such as model.layers.1
    where = f", all in {layers.pop()}" if len(layers) == 1 < len(names) else ""
    return f"{len(names)} of {num_all} tensors{where} ({first}{more})"
