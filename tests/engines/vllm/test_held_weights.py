"""An engine knows which of the weights that arrived it computes with, and names those that it does not."""

from __future__ import annotations

import pytest
import torch

from nemo_prorl.algorithm.fingerprint import fingerprint


def model_of(sampler):
    return sampler._llm.collective_rpc(lambda worker: worker.model_runner.model)[0]


@pytest.mark.parametrize("name", ["base", "untied"])
def test_all_that_arrives_is_held(start, weights_of, name):
    engine = start(name)
    for round_ in range(2):
        loaded = engine.load_weights(weights_of(name).items(), round_)
        assert loaded.received == {key: fingerprint(tensor) for key, tensor in weights_of(name).items()}
        assert loaded.not_held == ()


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


def test_another_precision_is_compared_after_the_cast(sampler, weights_of):
    doubles = {name: tensor.double() for name, tensor in weights_of("other").items()}
    assert sampler.load_weights(doubles.items(), 1).not_held == ()
