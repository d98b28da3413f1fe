"""All engines as one: exactly one engine samples each rollout; all ranks get its outline, and some its tokens."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from nemo_prorl.algorithm.shaping import outline
from nemo_prorl.engines.interface import SamplingSettings
from nemo_prorl.training.sampling.fleet import SamplerFleet, siblings_of
from tests.training.conftest import NUM_ROLLOUTS, ScriptedSampler, make_prompts, make_rollout
from tests.training.thread_ranks import run_as_ranks

SETTINGS = SamplingSettings(
    num_rollouts=NUM_ROLLOUTS, temperature=1.2, top_p=1.0, max_response_tokens=32, seed=1
)


@pytest.mark.parametrize(("world_size", "tensor_parallel"), [(1, 1), (2, 1), (2, 2), (4, 2), (6, 3), (4, 1)])
@pytest.mark.parametrize("num_prompts", [1, 3, 8])
def test_rollouts_are_dealt_out_and_results_brought_together(
    world_size: int, tensor_parallel: int, num_prompts: int
) -> None:
    prompts = make_prompts(*[[1.0]] * num_prompts)
    reported: list[tuple[int, str, int]] = []

    def sample(ranks: Any) -> Any:
        sampler = ScriptedSampler()
        fleet = SamplerFleet(sampler, ranks, tensor_parallel=tensor_parallel)
        assert fleet.num_engines == world_size // tensor_parallel
        share = fleet.sample_share(
            prompts,
            SETTINGS,
            lambda index, rollout: reported.append((index, rollout.prompt.uid, rollout.sibling)),
        )
        receivers = {index: [index % world_size, (index + 1) % world_size] for index in range(num_prompts)}
        tokens = fleet.tokens(share, prompts, receivers)
        got = {
            key: (row.prompt.uid, row.token_ids.tolist(), row.sampler_logprobs.tolist())
            for key, row in tokens.items()
        }
        return sampler.num_rollouts, fleet.outlines(share, prompts, NUM_ROLLOUTS), got

    results = run_as_ranks(sample, world_size, 1, 1)
    rollouts = [[make_rollout(prompt, sibling) for sibling in range(NUM_ROLLOUTS)] for prompt in prompts]
    assert all(outlines == [list(map(outline, group)) for group in rollouts] for _, outlines, _ in results)
    for rank, (*_, got) in enumerate(results):
        assert got == {
            (index, r.sibling): (r.prompt.uid, r.token_ids.tolist(), r.sampler_logprobs.tolist())
            for index, group in enumerate(rollouts)
            for r in group
            if rank in (index % world_size, (index + 1) % world_size)
        }
    shares = [num_sampled for num_sampled, *_ in results]
    for engine in range(world_size // tensor_parallel):
        members = shares[engine * tensor_parallel : (engine + 1) * tensor_parallel]
        assert all(member == members[0] for member in members), "the ranks of an engine sample together"
    leaders = [share for (share,) in shares[::tensor_parallel]]
    assert sum(leaders) == num_prompts * NUM_ROLLOUTS
    assert max(leaders) - min(leaders) <= 1
    assert Counter(reported) == Counter(
        (index, prompt.uid, sibling)
        for index, prompt in enumerate(prompts)
        for sibling in range(NUM_ROLLOUTS)
    )


@pytest.mark.parametrize(("num_engines", "num_rollouts"), [(1, 4), (3, 2), (4, 16), (32, 16), (5, 7)])
def test_every_rollout_is_dealt_once_and_siblings_are_spread(num_engines: int, num_rollouts: int) -> None:
    hands = [siblings_of(engine, num_engines, 9, num_rollouts) for engine in range(num_engines)]
    rollouts = [(i, s) for hand in hands for i, siblings in hand.items() for s in siblings]
    assert sorted(rollouts) == [(i, s) for i in range(9) for s in range(num_rollouts)]
    most = -(-num_rollouts // num_engines)
    assert max(len(siblings) for hand in hands for siblings in hand.values()) == most
