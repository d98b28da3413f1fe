"""What a rollout is: the tokens vLLM sampled, their log-probabilities at temperature, and why it ended."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from vllm.exceptions import VLLMValidationError
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

from nemo_prorl.engines.megatron.check import CPU_HEAD_DIMS
from nemo_prorl.engines.vllm.sampler import rollout_seed
from nemo_prorl.types import Finish

LONG = "Every sibling shares a prefix that is longer than one block of the cache. "
EOS = 1


def keyed(groups):
    return {(r.prompt.uid, r.sibling): r for group in groups for r in group}


def reference_logprobs(model, rollout, temperature):
    ids = torch.tensor([[*rollout.prompt.token_ids, *rollout.token_ids]])
    with torch.no_grad():
        logits = model(ids).logits[0, len(rollout.prompt.token_ids) - 1 : -1]
    logprobs = torch.log_softmax(logits / temperature, dim=-1)
    return logprobs.gather(1, torch.tensor(rollout.token_ids)[:, None])[:, 0].numpy()


@pytest.mark.parametrize("temperature", [1.2, 0.6])
def test_logprobs_are_those_of_transformers_at_temperature(sampler, hf_model, make_prompt, draw, temperature):
    rollouts = keyed(
        draw(sampler, [make_prompt("3+4=?"), make_prompt(LONG)], temperature=temperature)
    ).values()
    model = hf_model("base")

    def worst(reference_temperature):
        return max(
            np.abs(r.sampler_logprobs - reference_logprobs(model, r, reference_temperature)).max()
            for r in rollouts
        )

    assert worst(temperature) < 1e-4
    assert worst(1.0) > 0.1, "the comparison would not notice a forgotten temperature"


def test_rollouts_carry_what_was_sampled(sampler, make_prompt, draw, tokenizer):
    prompts = [make_prompt("one"), make_prompt("two")]
    groups = draw(sampler, prompts, num_rollouts=8, max_response_tokens=40)
    for prompt, group in zip(prompts, groups, strict=True):
        assert [r.sibling for r in group] == list(range(8))
        for rollout in group:
            assert rollout.prompt is prompt
            assert rollout.policy_version == 0
            assert rollout.token_ids.dtype == np.int64
            assert rollout.sampler_logprobs.dtype == np.float32
            assert rollout.token_ids.shape == rollout.sampler_logprobs.shape
            ended = rollout.token_ids[-1] == EOS
            assert rollout.finish == (Finish.stop if ended else Finish.length)
            assert EOS not in rollout.token_ids[:-1]
            assert ended or len(rollout.token_ids) == 40
    assert {r.finish for group in groups for r in group} == {Finish.stop, Finish.length}, (
        "both ends must occur"
    )


def test_text_shows_every_token_but_the_stop_token_at_the_end(sampler, make_prompt, draw, tokenizer):
    """A pad token too, because somebody may have declared one that answers are made of."""
    rollouts = [r for group in draw(sampler, [make_prompt("think")], num_rollouts=64) for r in group]
    for rollout in rollouts:
        shown = [token for token in rollout.token_ids.tolist() if token != EOS]
        assert rollout.text == "".join(tokenizer.decode([token]) for token in shown)
    for special in ("<pad>", "<think>", "</think>"):
        assert any(special in r.text for r in rollouts), special


@pytest.mark.parametrize("decoder", ["ByteLevel", "Metaspace"])
def test_text_is_the_begun_answer_and_what_the_policy_adds(
    sampler, make_prompt, draw, tokenizer, monkeypatch, decoder
):
    """Decoded alone, what is added would lose its first space with the decoder of SentencePiece."""
    if decoder == "Metaspace":
        words = {token.replace("Ġ", "▁"): index for token, index in tokenizer.get_vocab().items()}
        spelled = Tokenizer(models.BPE(words, merges=[]))
        spelled.pre_tokenizer, spelled.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        monkeypatch.setattr(sampler, "_tokenizer", PreTrainedTokenizerFast(tokenizer_object=spelled))
    prompts = [
        replace(make_prompt(f"3+4=?Two{end}", f"{i}"), text="3+4=?", begun=f"Two{end}")
        for i, end in enumerate(LONG)
    ]
    first = set()
    for rollout in keyed(draw(sampler, prompts, temperature=2.0)).values():
        added = [tokenizer.decode([token]) for token in rollout.token_ids.tolist() if token != EOS]
        assert rollout.text == "".join([rollout.prompt.begun, *added])
        first |= {*added[:1]}
    assert " " in first


def test_a_response_ends_where_the_context_is_full(sampler, make_prompt, draw):
    prompt = make_prompt("x" * 500)
    for rollout in draw(sampler, [prompt], num_rollouts=8, max_response_tokens=100)[0]:
        assert len(rollout.token_ids) <= 12
        assert rollout.finish is Finish.stop or len(rollout.token_ids) == 12


def test_seed_uid_and_sibling_decide_every_token(sampler, make_prompt, draw):
    prompts = [make_prompt("3+4=?"), make_prompt(LONG), make_prompt("other"), make_prompt("x" * 70)]
    all_together = keyed(draw(sampler, prompts))
    variants = {
        "the same call again": draw(sampler, prompts),
        "prompts in another order": draw(sampler, prompts[::-1]),
        "each prompt alone": [group for prompt in prompts for group in draw(sampler, [prompt])],
        "fewer siblings": draw(sampler, prompts, num_rollouts=2),
    }
    for what, groups in variants.items():
        for key, rollout in keyed(groups).items():
            assert rollout.token_ids.tolist() == all_together[key].token_ids.tolist(), what
            np.testing.assert_allclose(
                rollout.sampler_logprobs, all_together[key].sampler_logprobs, atol=1e-5, err_msg=what
            )
    another_seed = keyed(draw(sampler, prompts, seed=8))
    assert any(
        r.token_ids.tolist() != another_seed[key].token_ids.tolist() for key, r in all_together.items()
    )
    siblings = [tuple(all_together["3+4=?", i].token_ids) for i in range(4)]
    assert len(set(siblings)) > 1


def test_earlier_calls_leave_no_trace(sampler, make_prompt, draw):
    """Bit for bit, although these prompts share their first blocks with those: a resumed run has made no such calls."""
    beginning = "the same long beginning of all the prompts of a run, longer than a block of the cache: "
    prompts = [make_prompt(f"{beginning}{i}+4=?") for i in range(6)]
    others = [make_prompt(f"{beginning}what is {i}?") for i in range(5)]

    def bits(groups):
        return [(r.token_ids.tobytes(), r.sampler_logprobs.tobytes()) for group in groups for r in group]

    first = bits(draw(sampler, prompts))
    draw(sampler, others, seed=8)
    assert bits(draw(sampler, prompts)) == first


def test_rollout_seed_is_stable_across_processes_and_tells_its_parts_apart():
    assert rollout_seed(1, "chain_sum/train/17", 0) == 8462014492556018026
    parts = [(1, "a", 0), (1, "a", 1), (2, "a", 0), (1, "b", 0), (11, "a", 0), (1, "1/a", 0)]
    seeds = {rollout_seed(*part) for part in parts}
    assert len(seeds) == len(parts)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_on_finish_sees_each_rollout_once_and_as_soon_as_it_ends(sampler, make_prompt, draw):
    seen = []
    groups = draw(
        sampler, [make_prompt("a"), make_prompt("b")], seen.append, num_rollouts=8, max_response_tokens=64
    )
    assert sorted(map(id, seen)) == sorted(id(r) for group in groups for r in group)
    lengths = [len(r.token_ids) for r in seen]
    assert lengths == sorted(lengths), "short rollouts must not wait for long ones"
    assert lengths[0] < lengths[-1]


def test_more_prompt_tokens_than_a_step_takes(sampler, make_prompt, draw):
    """With chunked prefill vLLM cuts the prompt at the border in two and fails to rewind its CPU generator."""
    prompts = [make_prompt(f"{index:03d}" + "x" * 247) for index in range(40)]
    groups = draw(sampler, prompts, num_rollouts=8, max_response_tokens=4)
    budget = sampler._llm.llm_engine.vllm_config.scheduler_config.max_num_batched_tokens
    assert sum(len(p.token_ids) for p in prompts) > budget
    assert all(len(r.token_ids) for group in groups for r in group)


def test_rollouts_that_wait_for_cache_get_the_same_tokens(sampler, start, make_prompt, draw):
    """vLLM throws out running rollouts when the KV cache is full and computes them again later."""
    prompts = [make_prompt(f"{index:03d}" + "x" * 97) for index in range(8)]
    small, before = start("base", kv_cache_mib=1), sampler.num_preemptions
    got, expected = (keyed(draw(s, prompts, max_response_tokens=60)) for s in (small, sampler))
    assert small.num_preemptions > 0, "the cache was large enough for all"
    assert sampler.num_preemptions == before
    for key, rollout in got.items():
        assert rollout.token_ids.tolist() == expected[key].token_ids.tolist()
        np.testing.assert_allclose(rollout.sampler_logprobs, expected[key].sampler_logprobs, atol=1e-5)


@pytest.mark.parametrize(("length", "sentence"), [(0, "cannot be empty"), (512, "longer|max_tokens")])
def test_unusable_prompts_are_refused_before_any_is_sampled(sampler, make_prompt, draw, length, sentence):
    good = make_prompt("good")
    bad = type(good)(uid="bad", domain="", source="", text="", token_ids=(5,) * length, task={})
    seen = []
    with pytest.raises(VLLMValidationError, match=sentence):
        draw(sampler, [good, bad], seen.append)
    assert not seen
    assert not sampler._llm.llm_engine.has_unfinished_requests()


def test_an_exception_in_on_finish_leaves_the_engine_usable(sampler, make_prompt, draw):
    prompts = [make_prompt("a"), make_prompt("b")]
    expected = keyed(draw(sampler, prompts, num_rollouts=16, max_response_tokens=48))
    assert len({len(r.token_ids) for r in expected.values()}) > 1, "no rollout would be left over"

    def fail(rollout):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        draw(sampler, prompts, fail, num_rollouts=16, max_response_tokens=48)
    assert not sampler._llm.llm_engine.has_unfinished_requests()
    for key, rollout in keyed(draw(sampler, prompts, num_rollouts=16, max_response_tokens=48)).items():
        assert rollout.token_ids.tolist() == expected[key].token_ids.tolist()


def test_the_host_process_is_left_as_it_was(sampler, start, make_prompt, draw, monkeypatch):
    def state():
        return random.random(), np.random.rand(), torch.rand(1).item()

    def seed_all():
        random.seed(5), np.random.seed(5), torch.manual_seed(5)

    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    seed_all()
    expected = state()
    seed_all()
    start("base")
    draw(sampler, [make_prompt("a")])
    assert state() == expected
    assert os.environ["LOCAL_WORLD_SIZE"] == "8"
    assert "LD_PRELOAD" not in os.environ
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        draw(sampler, [make_prompt("a")])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_the_head_sizes_that_pass_our_check_are_those_of_vllm():
    """vLLM itself would refuse another size only at the first sample; check.py does before anything is loaded."""
    assert list(CPU_HEAD_DIMS) == CPUAttentionBackend.get_supported_head_sizes()
