"""What engines share: rollouts dealt out one by one, and the memory that a plan counts for each token."""

from __future__ import annotations

from nemo_prorl.cluster.scale.memory import kv_bytes_a_token
from nemo_prorl.engines.megatron.architecture import read_architecture
from tests.engines.vllm.conftest import run_config


def test_a_rollout_is_the_same_whoever_samples_it(sampler, make_prompt, draw):
    prompts = [make_prompt("3+4=?"), make_prompt("other"), make_prompt("a third")]
    whole = draw(sampler, prompts)
    finished = []
    for siblings in ([[0, 2], [3], []], [[1, 3], [0, 1, 2], [0, 1, 2, 3]]):
        part = draw(sampler, prompts, finished.append, siblings=siblings)
        for group, wanted, expected in zip(part, siblings, whole, strict=True):
            assert [rollout.sibling for rollout in group] == wanted
            for rollout in group:
                assert rollout.token_ids.tolist() == expected[rollout.sibling].token_ids.tolist()
                assert (
                    rollout.sampler_logprobs.tolist() == expected[rollout.sibling].sampler_logprobs.tolist()
                )
    assert sorted((r.prompt.uid, r.sibling) for r in finished) == sorted(
        (r.prompt.uid, r.sibling) for group in whole for r in group
    )


def test_the_cache_of_a_token_is_as_large_as_a_plan_says(sampler, models_dir):
    cache = sampler._llm.llm_engine.vllm_config.cache_config
    held = sum(
        sampler._llm.collective_rpc(lambda worker: sum(kv.nbytes for kv in worker.model_runner.kv_caches))
    )
    expected = kv_bytes_a_token(read_architecture(models_dir / "base"), run_config(models_dir / "base"))
    assert held / (cache.num_gpu_blocks * cache.block_size) == expected
