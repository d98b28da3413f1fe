"""An engine knows which of the weights that arrived it computes with, and names those that it does not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from vllm import _custom_ops as custom_ops

from nemo_prorl.algorithm.fingerprint import fingerprint
from nemo_prorl.engines.vllm import held_weights
from nemo_prorl.engines.vllm.held_weights import HeldWeights
from tests.waits import Waits


def model_of(sampler):
    return sampler._llm.collective_rpc(lambda worker: worker.model_runner.model)[0]


@pytest.mark.parametrize("name", ["base", "untied"])
def test_all_that_arrives_is_held(start, weights_of, name):
    engine = start(name)
    for round_ in range(2):
        loaded = engine.load_weights(weights_of(name).items(), round_)
        assert loaded.received == {key: fingerprint(tensor) for key, tensor in weights_of(name).items()}
        assert loaded.not_held == ()


def test_a_load_reads_everything_at_once(sampler, weights_of, monkeypatch):
    """On a GPU each number that the host reads waits for all work that was launched before."""
    # On CPU alone vLLM reads a pointer for each packed layer that it drops.
    monkeypatch.delattr(custom_ops.CPUDNNLGEMMHandler, "__del__")
    weights = weights_of("other")
    with Waits() as waits:
        sampler.load_weights(weights.items(), 1)
    assert waits.count == 1


@pytest.mark.parametrize(
    "left_out", ["layers.1.", "q_proj", "norm.weight", "embed_tokens", "layers.0.mlp.down_proj"]
)
def test_what_the_loader_leaves_out_is_named_every_time(sampler, weights_of, monkeypatch, left_out):
    model = model_of(sampler)
    load = model.load_weights
    monkeypatch.setattr(
        model, "load_weights", lambda weights: load((n, t) for n, t in weights if left_out not in n)
    )
    for version in (1, 2):
        # Values that no test has loaded before: vLLM leaves the memory of what is missing uninitialised, so that memory
        # may hold the values of an earlier update.
        weights = {name: tensor + torch.rand(()) for name, tensor in weights_of("other").items()}
        loaded = sampler.load_weights(weights.items(), version)
        named = {name for name in weights if left_out in name}
        fused = {
            name.replace("q_proj", part)
            for name in named
            for part in ("k_proj", "v_proj")
            if "q_proj" in name
        }
        assert set(loaded.not_held) == named | fused
        assert loaded.received.keys() == weights.keys()
    monkeypatch.undo()
    assert sampler.load_weights(weights_of("other").items(), 3).not_held == ()


def test_what_the_loader_changes_is_named(sampler, weights_of, monkeypatch):
    model = model_of(sampler)
    load = model.load_weights
    norm = "model.layers.1.input_layernorm.weight"
    monkeypatch.setattr(
        model, "load_weights", lambda weights: load((n, 2 * t if n == norm else t) for n, t in weights)
    )
    assert sampler.load_weights(weights_of("other").items(), 1).not_held == (norm,)


@pytest.mark.parametrize("spoiled", [None, 0, 1])
def test_a_key_value_head_may_be_held_by_several_ranks(monkeypatch, spoiled):
    """Two ranks share the query heads of a layer, and each has a copy of its only key-value head."""
    query, key, value = torch.rand(4, 8), torch.rand(2, 8), torch.rand(2, 8)
    pieces = [torch.cat([part, key, value]) for part in query.chunk(2)]
    if spoiled is not None:
        pieces[spoiled][-1, -1] += 1
    model = torch.nn.Module()
    model.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    model.attn = torch.nn.Module()
    model.attn.qkv_proj = torch.nn.Linear(8, 6, bias=False)
    model.attn.qkv_proj.weight.data = pieces[0]
    model.attn.qkv_proj.num_kv_head_replicas = 2
    held = HeldWeights(model, torch.float32)
    names = [f"attn.{part}.weight" for part in ("q_proj", "k_proj", "v_proj")]
    list(held.recording(zip(names, (query, key, value), strict=True)))

    def gather(shards, mine, group):
        shards[:] = [mine, {"attn.qkv_proj.weight": fingerprint(pieces[1])}]

    monkeypatch.setattr(held_weights, "get_tp_group", lambda: SimpleNamespace(world_size=2, cpu_group=None))
    monkeypatch.setattr(held_weights.dist, "all_gather_object", gather)
    assert held.loaded().not_held == (() if spoiled is None else tuple(sorted(names)))


def test_another_precision_is_compared_after_the_cast(sampler, weights_of):
    doubles = {name: tensor.double() for name, tensor in weights_of("other").items()}
    assert sampler.load_weights(doubles.items(), 1).not_held == ()
