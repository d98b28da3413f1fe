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

from nemo_prorl.engines.megatron import build, conversion
from nemo_prorl.engines.megatron.architecture import read_architecture
from tests.engines.conftest import FAMILIES, build_hf_model, run_ranks
from tests.engines.megatron.helpers import (
    Case,
    MakePolicy,
    measure,
    measure_all,
    plain_logprobs,
    run_config,
    token_batch,
)
from tests.engines.megatron.layouts import PP, TP
from tests.engines.megatron.test_parallel import assert_close

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
    conversion.save_hf(*conversion.open_checkpoint(tmp_path / "megatron"), tmp_path / "hf")
    wanted, got = (load_file(folder / "model.safetensors") for folder in (source, tmp_path / "hf"))
    assert got.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert got[name].dtype is tensor.dtype
        assert torch.equal(got[name], tensor), name


CASES = [Case(name=model, model=model, trainer=TP | PP) for model in MODELS]


@pytest.fixture(scope="module")
def split(hf_models: dict[str, Path]) -> list[dict[str, dict[str, Any]]]:
    found: list[dict[str, dict[str, Any]]] = run_ranks(
        measure_all, 4, cases=CASES, models=hf_models, checkpoints=None, world=""
    )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_tensor_and_pipeline_parallel_ranks_equal_one(
    model: str, hf_models: dict[str, Path], split: list[dict[str, dict[str, Any]]]
) -> None:
    """Not the weights after a step, because Adam makes large steps of rounding errors near 0: test_parallel.py has
    models without such gradients."""
    one = measure(Case(name=model, model=model), hf_models, None, "")
    assert max(np.abs(gradient).max() for gradient in one["gradients"].values()) > 1e-2
    for rank in split:
        got = rank[model]
        np.testing.assert_allclose(got["logprobs"], one["logprobs"], atol=1e-5, rtol=0)
        np.testing.assert_allclose(got["grad_norms"][0], one["grad_norms"][0], rtol=1e-5)
        assert_close(got["gradients"], one["gradients"], rtol=1e-4)
