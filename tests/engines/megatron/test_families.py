"""Every family of models, against transformers and itself in another layout. The sampler: tests/engines/vllm."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from nemo_prorl import distributed
from nemo_prorl.cluster.scale.memory import parameters_on_rank
from nemo_prorl.engines.megatron import build, conversion, weights
from nemo_prorl.engines.megatron.architecture import read_architecture
from nemo_prorl.engines.megatron.policy import MegatronPolicy
from tests.engines.conftest import FAMILIES, build_hf_model, run_ranks
from tests.engines.megatron.helpers import (
    MakePolicy,
    captured_gradients,
    loss_function,
    plain_logprobs,
    run_config,
    token_batch,
    train_batch,
)

MODELS = [name + suffix for name in FAMILIES for suffix in ("", "_tied")]


@pytest.mark.parametrize("model", MODELS)
def test_logprobs_equal_those_of_transformers(
    model: str, make_policy: MakePolicy, hf_models: dict[str, Path]
) -> None:
    """Long responses, because kinds of rotary embeddings differ little at the beginning."""
    batch = token_batch(longest=200)
    got = make_policy(model).logprobs(batch)
    np.testing.assert_allclose(got, plain_logprobs(hf_models[model], batch, 1.2), atol=1e-5, rtol=0)
    assert got.dtype == np.float32
    assert got.shape == batch.token_ids_BT.shape
    assert not got[~batch.response_mask_BT].any()


@pytest.mark.parametrize("model", MODELS)
def test_named_weights_are_complete_and_the_receivers_own(
    model: str, make_policy: MakePolicy, hf_models: dict[str, Path]
) -> None:
    policy, wanted = make_policy(model), load_file(hf_models[model] / "model.safetensors")
    for _ in range(2):
        got = dict(policy.named_weights())
        assert got.keys() == wanted.keys()
        assert all(torch.equal(got[name], tensor) for name, tensor in wanted.items())
        for tensor in got.values():
            tensor.zero_()


@pytest.mark.parametrize("model", MODELS)
def test_parameters_are_counted_as_the_weights_file_has_them(model: str, hf_models: dict[str, Path]) -> None:
    with safe_open(hf_models[model] / "model.safetensors", "np") as file:
        sizes = [file.get_tensor(name).size for name in file.keys()]  # noqa: SIM118 - no mapping
    assert read_architecture(hf_models[model]).num_parameters == sum(sizes)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name.endswith("_yarn")])
def test_yarn_is_not_fused_because_its_scale_would_be_lost(family: str, hf_models: dict[str, Path]) -> None:
    with patch.object(build, "use_transformer_engine", lambda *_: True):
        built = build.transformer_config(read_architecture(hf_models[family]), run_config(hf_models[family]))
    assert not built.apply_rope_fusion


@pytest.mark.medium
@pytest.mark.parametrize(("tied", "dtype"), [(False, "float32"), (True, "bfloat16")])
@pytest.mark.parametrize("family", FAMILIES)
def test_import_and_export_give_back_every_bit(family: str, tied: bool, dtype: str, tmp_path: Path) -> None:
    source = build_hf_model(tmp_path / "source", family, dtype=dtype, tie_word_embeddings=tied)
    conversion.import_hf(source, tmp_path / "megatron")
    conversion.export_hf(tmp_path / "megatron", tmp_path / "hf")
    wanted, got = (load_file(folder / "model.safetensors") for folder in (source, tmp_path / "hf"))
    assert got.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert got[name].dtype is tensor.dtype
        assert torch.equal(got[name], tensor), name


def step_with(policy: MegatronPolicy, gradients: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Returns the weights after an update with these gradients in place of its own. Hugging Face name -> tensor."""
    step = policy._step

    def replace_gradients(loss: float) -> float:
        parameters = list(policy.model.parameters())
        kept = [parameter.data for parameter in parameters]
        for parameter in parameters:
            parameter.data = parameter.main_grad
        with patch.object(weights, "SafetensorsReader", lambda _: gradients):
            weights.load_hf(policy.model, policy.architecture, Path())
        for parameter, weight in zip(parameters, kept, strict=True):
            parameter.data = weight
        return step(loss)

    with patch.object(policy, "_step", replace_gradients):
        policy.update(train_batch(token_batch()), loss_function)
    return {name: tensor.numpy() for name, tensor in policy.named_weights()}


def measure(
    models: dict[str, Path], gradients: dict[str, dict[str, Any]] | None
) -> dict[str, dict[str, Any]]:
    """Returns what a world of one rank or, with TP 2 and PP 2, of four computes of every model. gradients: of the first
    update, from one rank; None to measure them."""
    sizes = {} if gradients is None else {"tensor_parallel": 2, "pipeline_parallel": 2}
    measured: dict[str, dict[str, Any]] = {}
    for model in MODELS:
        config = run_config(models[model], **sizes)
        ranks = distributed.initialise(config.trainer.tensor_parallel, config.trainer.pipeline_parallel)
        policy = MegatronPolicy(config, ranks)
        batch = train_batch(token_batch())
        stage = ranks.layout.rank // 2 if sizes else 0
        result = measured[model] = {
            "logprobs": policy.logprobs(batch.tokens),
            "parameters": sum(parameter.numel() for parameter in policy.model.parameters()),
            "planned": parameters_on_rank(policy.architecture, config, stage),
        }
        with captured_gradients(policy) as own:
            policy.update(batch, loss_function)
        result["gradients"] = {name: tensor.numpy() for name, tensor in own.items()}
        given = (
            own
            if gradients is None
            else {name: torch.from_numpy(array) for name, array in gradients[model].items()}
        )
        result["after"] = step_with(MegatronPolicy(config, ranks), dict(given))
    return measured


@pytest.fixture(scope="module")
def alone(hf_models: dict[str, Path]) -> dict[str, dict[str, Any]]:
    return measure(hf_models, None)


@pytest.fixture(scope="module")
def split(hf_models: dict[str, Path], alone: dict[str, dict[str, Any]]) -> list[dict[str, dict[str, Any]]]:
    gradients = {model: result["gradients"] for model, result in alone.items()}
    results: list[dict[str, dict[str, Any]]] = run_ranks(measure, 4, models=hf_models, gradients=gradients)
    return results


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_tensor_and_pipeline_parallel_ranks_equal_one(
    model: str, alone: dict[str, dict[str, Any]], split: list[dict[str, dict[str, Any]]]
) -> None:
    """Gradients to rounding, and the step of equal gradients: Adam makes large steps of rounding errors near 0."""
    one = alone[model]
    assert one["parameters"] == one["planned"]
    assert max(np.abs(gradient).max() for gradient in one["gradients"].values()) > 1e-2
    for rank in split:
        got = rank[model]
        assert got["parameters"] == got["planned"] < one["planned"]
        np.testing.assert_allclose(got["logprobs"], one["logprobs"], atol=1e-5, rtol=0)
        for key, atol, rtol in (("gradients", 1e-5, 1e-4), ("after", 1e-6, 0)):
            assert got[key].keys() == one[key].keys()
            for name, wanted in one[key].items():
                np.testing.assert_allclose(got[key][name], wanted, atol=atol, rtol=rtol, err_msg=name)
