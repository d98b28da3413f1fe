"""Bounds what sampling further ahead than `sampler.ahead` could win: engines that decode as many responses at any time
as they can, instead of waiting for the last ones of a step.

Whoever samples n - 1 steps ahead has the responses of n steps in flight, so the longest may take n steps. The bound
keeps every response's keys and values from step to step, and lets nothing else grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import ceil, exp, log
from random import Random
from statistics import NormalDist, fmean

from nemo_prorl.cluster.scale.memory import Memory
from nemo_prorl.cluster.scale.roofline import FITTED, DecodeCost, decode_cost, estimate_step
from nemo_prorl.cluster.scale.workload import Case

STEPS_AHEAD = (1, 3, 7)
"""How many further steps' responses are in flight, in the columns of `plan --tail`."""
SIGMA = 0.8
"""Standard deviation of the log length; with a mean of half the longest response 14 % are cut off."""


def gains(case: Case, memory: Memory) -> dict[int, float]:
    """Returns for each of STEPS_AHEAD how many times faster whole steps could be at most, by the formulas of `plan
    --time`, on an engine that gets its mean share of the responses."""
    cost, places = decode_cost(case), memory.num_places
    num = ceil(case.sampled_rollouts / case.num_engines)
    lengths = typical_lengths(case.response_share, case.config.sampler.max_response_tokens, num)
    parts = dict(estimate_step(case, memory).parts)
    prefill_s = min(num, case.sampled_prompts) * cost.prefill_s
    meanwhile_s = parts["log-probabilities"] + parts["grading"] + parts["updates"]

    def step_s(decoding_s: float) -> float:
        sampling_s = (decoding_s + prefill_s) / FITTED.sampling
        hidden_s = min(sampling_s, meanwhile_s) if case.config.sampler.ahead else 0.0
        return sampling_s + meanwhile_s + parts["refit"] - hidden_s

    today_s = step_s(one_step_s(lengths, places, cost, case.prompt_tokens))
    return {
        ahead: today_s / step_s(steady_s(lengths, places, cost, case.prompt_tokens, num_steps=ahead + 1))
        for ahead in STEPS_AHEAD
    }


def typical_lengths(share: float, limit: int, num: int) -> list[int]:
    """Returns `num` tokens of responses, in random order: quantiles of a log-normal that is cut off at `limit`, with
    the mean `share` x limit."""
    z = [NormalDist().inv_cdf((index + 0.5) / num) for index in range(num)]
    low, high = -10.0, log(limit) + 20 * SIGMA
    for _ in range(60):
        mu = (low + high) / 2
        mean = fmean(min(limit, exp(mu + SIGMA * value)) for value in z)
        low, high = (mu, high) if mean < share * limit else (low, mu)
    lengths = [max(1, min(limit, round(exp(low + SIGMA * value)))) for value in z]
    Random(0).shuffle(lengths)
    return lengths


def one_step_s(lengths: Sequence[int], num_places: int, cost: DecodeCost, prompt_tokens: int) -> float:
    """Returns the seconds, at peak rates, in which an engine decodes the responses of one step and nothing else. A
    response starts when there is a place, in their order."""
    queue, active = list(reversed(lengths)), list[tuple[int, int]]()  # (decoding step of its end, length)
    now = context = 0  # decoding steps made; tokens in the contexts of the active responses
    seconds = 0.0
    while queue or active:
        while queue and len(active) < num_places:
            length = queue.pop()
            heappush(active, (now + length, length))
            context += prompt_tokens
        num, (end, length) = len(active), heappop(active)
        steps = end - now
        # The contexts' mean over these steps: they grow by one token each per step.
        seconds += steps * _decoding_step_s(cost, num, context + num * (steps - 1) / 2)
        context += steps * num - prompt_tokens - length
        now = end
    return seconds


def steady_s(
    lengths: Sequence[int], num_places: int, cost: DecodeCost, prompt_tokens: int, *, num_steps: int
) -> float:
    """Returns the seconds per training step, at peak rates, of an engine that gets the responses of one step in each
    and may take `num_steps` for each: it always decodes the same number of them, as many as it has places for."""
    num_tokens = sum(lengths)
    steps = max(max(lengths) / num_steps, num_tokens / num_places)
    in_context = prompt_tokens + sum(length**2 for length in lengths) / 2 / num_tokens
    num = num_tokens / steps
    return steps * _decoding_step_s(cost, num, num * in_context)


def _decoding_step_s(cost: DecodeCost, num_sequences: float, context_tokens: float) -> float:
    gpu_s = cost.step_s + cost.sequence_s * num_sequences + cost.context_token_s * context_tokens
    return max(gpu_s, cost.loop_step_s + cost.loop_sequence_s * num_sequences)
