"""An update in place gives exactly the engine that would have started from those weights; a bad one is never used."""

from __future__ import annotations

import shutil
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import vllm._custom_ops as custom_ops
from safetensors.torch import load_file, save_file
from vllm.device_allocator import cumem

from nemo_prorl import distributed
from nemo_prorl.config import ConfigError
from nemo_prorl.engines.interface import NonFiniteUpdate
from nemo_prorl.engines.vllm import sampler as vllm_sampler
from nemo_prorl.engines.vllm.sampler import VllmSampler
from tests.engines.vllm.conftest import run_config

QUERY, KEY = "model.layers.1.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight"


@pytest.fixture
def sampled(make_prompt, draw):
    def collect(sampler):
        groups = draw(sampler, [make_prompt("3+4=?"), make_prompt("abc " * 20)], num_rollouts=8)
        return [(r.token_ids.tolist(), r.sampler_logprobs.tolist()) for group in groups for r in group]

    return collect


@pytest.mark.parametrize(
    ("first", "second"), [("base", "other"), ("untied", "untied_other")], ids=["tied", "untied"]
)
def test_after_an_update_tokens_and_logprobs_are_a_fresh_engines(start, weights_of, sampled, first, second):
    updated, fresh = start(first), start(second)
    at_first, at_second = sampled(updated), sampled(fresh)
    assert at_first != at_second
    for round_ in range(2):
        updated.load_weights(weights_of(second).items(), 2 * round_ + 1)
        assert sampled(updated) == at_second
        updated.load_weights(weights_of(first).items(), 2 * round_ + 2)
        assert sampled(updated) == at_first


def test_order_head_dtype_and_later_writes_do_not_matter(sampler, weights_of, sampled, make_prompt, draw):
    sampler.load_weights(weights_of("other").items(), 41)
    expected = sampled(sampler)
    assert {r.policy_version for r in draw(sampler, [make_prompt("a")])[0]} == {41}
    shuffled = [(name, tensor.double()) for name, tensor in reversed(weights_of("other").items())]
    tied_head = ("lm_head.weight", weights_of("other")["model.embed_tokens.weight"])
    sampler.load_weights([tied_head, *shuffled], 2)
    for _, tensor in shuffled:
        tensor.zero_()
    assert sampled(sampler) == expected


def test_the_stream_is_never_held_as_a_whole(sampler, weights_of):
    """Tensors go as their layer is complete, so a GPU does not need room for a second model."""
    alive, most = 0, 0

    def gone():
        nonlocal alive
        alive -= 1

    def stream():
        nonlocal alive, most
        for name, tensor in weights_of("base").items():
            copy = tensor.clone()
            weakref.finalize(copy, gone)
            alive += 1
            most = max(most, alive)
            yield name, copy

    sampler.load_weights(stream(), 1)
    assert alive <= 1
    assert most <= 8, f"{most} tensors were alive at one time"  # the largest fused layer takes 6


@pytest.mark.parametrize("model", ["base", "untied"])
def test_the_head_is_packed_once_an_update_and_the_embedding_never(start, weights_of, monkeypatch, model):
    """Where the vocabulary is large they are the largest weights, and packing is most of an update on CPU."""
    engine, packed = start(model), []
    pack = custom_ops.create_onednn_mm
    monkeypatch.setattr(
        custom_ops,
        "create_onednn_mm",
        lambda weight, *size: packed.append(weight.shape) or pack(weight, *size),
    )
    engine.load_weights(weights_of(model).items(), 1)
    head = torch.Size(reversed(weights_of(model)["model.embed_tokens.weight"].shape))
    assert packed.count(head) == 1
    assert len(packed) > 1, "of the layers, too"


def without(name):
    return lambda weights: {key: tensor for key, tensor in weights.items() if key != name}


def replaced(name, change):
    return lambda weights: weights | {name: change(weights[name])}


def with_one(value):
    def change(tensor):
        changed = tensor.clone()
        changed.view(-1)[-1] = value
        return changed

    return change


BAD_UPDATES = {
    "missing part of a fused layer": (without(KEY), ValueError, f"lacks 1 of .*{KEY}"),
    "missing layer": (without("model.norm.weight"), ValueError, "lacks 1 of .*model.norm.weight"),
    "empty": (lambda weights: {}, ValueError, "lacks 26 of 26"),
    "unknown": (
        lambda weights: weights | {"model.extra": torch.zeros(1)},
        ValueError,
        "has no weight 'model.extra'",
    ),
    "misshaped": (replaced(QUERY, lambda t: t[:-1]), ValueError, f"{QUERY}.* has shape \\(63, 64\\)"),
    "NaN": (replaced(QUERY, with_one(float("nan"))), NonFiniteUpdate, QUERY),
    "infinity": (
        replaced("model.norm.weight", with_one(float("-inf"))),
        NonFiniteUpdate,
        "model.norm.weight",
    ),
}


@pytest.mark.parametrize("case", BAD_UPDATES)
def test_a_bad_update_is_refused_and_a_good_one_heals(sampler, weights_of, sampled, case):
    spoil, error, message = BAD_UPDATES[case]
    expected = sampled(sampler)
    with pytest.raises(error, match=message):
        sampler.load_weights(spoil(weights_of("other")).items(), 1)
    with pytest.raises(RuntimeError, match="version 1 failed"):
        sampled(sampler)
    sampler.load_weights(weights_of("base").items(), 2)
    assert sampled(sampler) == expected


def test_a_repeated_weight_is_refused(sampler, weights_of):
    weights = list(weights_of("base").items())
    with pytest.raises(ValueError, match="came twice"):
        sampler.load_weights([*weights[:3], weights[1], *weights[3:]], 1)


def test_a_stream_that_dies_half_way_leaves_nothing_behind(sampler, weights_of, sampled):
    """A fused layer that has seen one part of the dead stream must not be completed by the next stream's parts."""
    expected = sampled(sampler)
    names = list(weights_of("base"))

    def dying(after):
        for name, tensor in weights_of("other").items():
            if name == after:
                raise ConnectionError("the policy died")
            yield name, tensor

    for after in (names[2], KEY, names[-1]):
        with pytest.raises(ConnectionError):
            sampler.load_weights(dying(after), 1)
        sampler.load_weights(weights_of("base").items(), 0)
        assert sampled(sampler) == expected


def test_finite_weights_that_give_nan_do_not_poison_later_ones(sampler, weights_of, sampled):
    """NaN stays in the blocks of the KV cache, and 0 x NaN is NaN, unless it is cleared."""
    expected = sampled(sampler)
    huge = {name: tensor * 1e30 for name, tensor in weights_of("base").items()}
    sampler.load_weights(huge.items(), 1)
    with pytest.raises(RuntimeError, match="NaN log-probabilities from policy version 1"):
        sampled(sampler)
    with pytest.raises(RuntimeError, match="give NaN"):
        sampled(sampler)
    sampler.load_weights(weights_of("base").items(), 2)
    assert sampled(sampler) == expected
    assert np.isfinite([value for _, logprobs in expected for value in logprobs]).all()


def test_weights_with_nan_are_refused_before_the_engine_starts(models_dir, tokenizer, tmp_path):
    shutil.copytree(models_dir / "base", tmp_path / "bad")
    weights = load_file(tmp_path / "bad/model.safetensors")
    save_file(
        weights | {"model.norm.weight": torch.full((64,), torch.nan)}, tmp_path / "bad/model.safetensors"
    )
    ranks = distributed.initialise(1, 1)
    with pytest.raises(ConfigError, match=r"NaN or infinity in model\.norm\.weight"):
        VllmSampler(run_config(tmp_path / "bad"), ranks, tokenizer)


def test_without_the_checkpoints_weights_it_waits_for_a_refit_and_is_the_same_then(
    start, weights_of, sampled
):
    empty, fresh = start("base", reads_weights=False), start("base")
    with pytest.raises(RuntimeError, match="has no weights yet"):
        sampled(empty)
    incomplete = dict(list(weights_of("base").items())[:-1])
    with pytest.raises(ValueError, match="lacks 1 of"):
        empty.load_weights(incomplete.items(), 0)
    with pytest.raises(RuntimeError, match="failed"):
        sampled(empty)
    assert not empty.load_weights(weights_of("base").items(), 0).not_held
    assert sampled(empty) == sampled(fresh)


def test_asleep_it_has_neither_weights_nor_cache_and_gets_them_back_one_after_the_other(
    start, weights_of, sampled, monkeypatch
):
    """The order of the calls to vLLM, which sleeps on CUDA only: nothing sleeps here. The cache comes back after the
    weights, when the refit needs no memory any more, and is cleared before anything is sampled."""
    engine, calls = start("base"), []
    expected = sampled(engine)
    pieces = {
        address: SimpleNamespace(handle=(0, gib << 30), is_asleep=gib > 1)
        for address, gib in enumerate((1, 2, 3))
    }
    pool = SimpleNamespace(pointer_to_data=pieces)
    monkeypatch.setattr(cumem.CuMemAllocator, "get_instance", lambda: pool)

    def note(name):
        method = getattr(engine._llm, name)

        def call(*args, **settings):
            calls.append((name, *args, *settings.items()))
            return None if name in ("sleep", "wake_up") else method(*args, **settings)

        monkeypatch.setattr(engine._llm, name, call)

    for name in ("sleep", "wake_up", "start_weight_update", "finish_weight_update", "collective_rpc"):
        note(name)
    monkeypatch.setattr(engine, "_sleeps", True)
    for version in (1, 2):
        calls.clear()
        engine.sleep()
        engine.sleep()
        assert engine.released_gib == 5.0
        with pytest.raises(RuntimeError, match="asleep"):
            engine.load_weights(weights_of("base").items(), version)
        engine.wake()
        assert engine.released_gib == 0.0
        engine.wake()
        with pytest.raises(RuntimeError, match="weights were dropped when it fell asleep"):
            sampled(engine)
        with pytest.raises(ValueError, match="lacks"):
            engine.load_weights([], version)
        assert ("wake_up", ("tags", ["kv_cache"])) not in calls
        engine.load_weights(weights_of("base").items(), version)
        assert sampled(engine) == expected
        assert [call for call in calls if call[0] != "start_weight_update"] == [
            ("sleep", ("level", 2)),
            ("collective_rpc", vllm_sampler._asleep_gib),
            ("wake_up", ("tags", ["weights"])),
            ("finish_weight_update", str(version)),
            ("wake_up", ("tags", ["kv_cache"])),
            ("collective_rpc", vllm_sampler._zero_kv_cache),
        ]
