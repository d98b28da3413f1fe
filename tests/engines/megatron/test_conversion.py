"""Tests of conversion from Hugging Face to Megatron and back: bit by bit, from any layout, with all files of a
model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from experiments.boundary.tiny_policy import build_tokenizer
from nemo_prorl import distributed
from nemo_prorl.config import ConfigError, Precision
from nemo_prorl.engines.megatron import checkpoint, conversion, optimizer_state, weights
from nemo_prorl.engines.megatron.architecture import hf_shapes, read_architecture
from nemo_prorl.engines.megatron.policy import MegatronPolicy
from tests.engines.conftest import build_hf_model, run_ranks
from tests.engines.megatron.helpers import (
    loss_function,
    plain_logprobs,
    run_config,
    save,
    token_batch,
    train_batch,
)


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def assert_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert (tensor.dtype, tensor.tolist()) == (second[name].dtype, second[name].tolist()), name


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    built = {}
    for name in ("qwen2-float32", "qwen2-tied-bfloat16", "qwen3-tied-float32", "llama-float32"):
        family, *tied, dtype = name.split("-")
        path = build_hf_model(folder / name, family, dtype=dtype, tie_word_embeddings=bool(tied))
        build_tokenizer().save_pretrained(path)
        (path / "additional_chat_templates").mkdir()
        (path / "additional_chat_templates/rag.jinja").write_text("{{ documents }}")
        built[name] = path
    return built


@pytest.mark.medium
def test_import_and_export_give_back_every_bit_and_file(models: dict[str, Path], tmp_path: Path) -> None:
    """The bits of every family: test_families.py."""
    from transformers import AutoModelForCausalLM

    source = models["qwen2-tied-bfloat16"]
    conversion.import_hf(source, tmp_path / "megatron")
    conversion.export_hf(tmp_path / "megatron", tmp_path / "hf")
    assert_same(tensors(tmp_path / "hf"), tensors(source))
    for file in ("tokenizer.json", "tokenizer_config.json", "additional_chat_templates/rag.jinja"):
        assert (tmp_path / "hf" / file).read_text() == (source / file).read_text()
    assert json.loads((tmp_path / "hf" / "config.json").read_text()) == json.loads(
        (source / "config.json").read_text()
    )
    assert {file.name for file in (tmp_path / "hf").rglob("*")} == {file.name for file in source.rglob("*")}
    first, second = (
        AutoModelForCausalLM.from_pretrained(path).state_dict() for path in (source, tmp_path / "hf")
    )
    assert_same(first, second)


@pytest.mark.medium
def test_shards_are_written_as_transformers_writes_them(models: dict[str, Path], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    source = models["qwen2-float32"]
    conversion.import_hf(source, tmp_path / "megatron")
    conversion.export_hf(tmp_path / "megatron", tmp_path / "hf", shard_bytes=200_000)
    files = sorted(tmp_path.glob("hf/*.safetensors"))
    assert len(files) > 2
    assert files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    assert all(sum(t.nbytes for t in load_file(file).values()) <= 200_000 for file in files)
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in tensors(source).values())
    assert_same(tensors(tmp_path / "hf"), tensors(source))
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").state_dict()
    assert_same(reloaded, AutoModelForCausalLM.from_pretrained(source).state_dict())
    conversion.import_hf(tmp_path / "hf", tmp_path / "again")
    conversion.export_hf(tmp_path / "again", tmp_path / "hf")
    assert_same(tensors(tmp_path / "hf"), tensors(source))
    assert [file.name for file in tmp_path.glob("hf/*.safetensors*")] == ["model.safetensors"], "whole"


@pytest.mark.medium
def test_another_precision_can_be_asked_for(models: dict[str, Path], tmp_path: Path) -> None:
    source = models["qwen2-float32"]
    conversion.import_hf(source, tmp_path / "megatron")
    conversion.export_hf(tmp_path / "megatron", tmp_path / "hf", dtype="bf16")
    assert_same(tensors(tmp_path / "hf"), {name: t.bfloat16() for name, t in tensors(source).items()})
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config.get("dtype", config.get("torch_dtype")) == "bfloat16"


def policy_of(path: Path, **trainer: int) -> MegatronPolicy:
    config = run_config(path, **trainer)
    ranks = distributed.initialise(config.trainer.tensor_parallel, config.trainer.pipeline_parallel)
    return MegatronPolicy(config, ranks)


def test_a_policy_starts_from_an_imported_folder(models: dict[str, Path], tmp_path: Path) -> None:
    conversion.import_hf(models["qwen3-tied-float32"], tmp_path / "megatron")
    imported = dict(policy_of(tmp_path / "megatron").named_weights())
    assert_same(imported, dict(policy_of(models["qwen3-tied-float32"]).named_weights()))


def export_live(policy: MegatronPolicy, imported: Path, out: Path) -> None:
    """Collective, because `named_weights` is: the ranks that write nothing take part too."""
    if policy.ranks.layout.is_main:
        conversion.save_hf(policy.named_weights(), imported, out)
    else:
        list(policy.named_weights())


def parallel_worker(imported: Path, folder: Path) -> None:
    """Loads an imported folder, exports the live policy, and writes a run's checkpoint after an update."""
    policy = policy_of(imported, tensor_parallel=2, pipeline_parallel=2)
    leads = policy.ranks.layout.is_main
    export_live(policy, imported, folder / "live")
    policy.update(train_batch(token_batch()), loss_function)
    save(policy, folder / "step-00000001" / "policy")
    export_live(policy, imported, folder / "updated")
    logprobs = policy.logprobs(token_batch())
    if leads:
        np.save(folder / "logprobs.npy", logprobs)
        config = folder / "step-00000001" / "huggingface" / "config.json"
        config.parent.mkdir()
        config.write_text((imported / "config.json").read_text())


@pytest.mark.slow
def test_two_by_two_ranks_import_and_export_every_bit(models: dict[str, Path], tmp_path: Path) -> None:
    """Exports the live policy at TP2 x PP2, and its checkpoint in one process."""
    model = "qwen2-float32"
    conversion.import_hf(models[model], tmp_path / "megatron")
    run_ranks(parallel_worker, 4, imported=tmp_path / "megatron", folder=tmp_path)
    assert_same(tensors(tmp_path / "live"), tensors(models[model]))
    conversion.export_hf(tmp_path / "step-00000001", tmp_path / "exported")
    assert_same(tensors(tmp_path / "exported"), tensors(tmp_path / "updated"))
    plain = plain_logprobs(tmp_path / "exported", token_batch(), 1.2)
    np.testing.assert_allclose(np.load(tmp_path / "logprobs.npy"), plain, atol=1e-5, rtol=0)
    changed = tensors(tmp_path / "exported")
    assert all(not torch.equal(changed[name], tensor) for name, tensor in tensors(models[model]).items())


def test_fp32_weights_of_a_16_bit_policy_are_the_optimizers(models: dict[str, Path], tmp_path: Path) -> None:
    """They contain small updates that the 16-bit weights do not yet show."""
    source = models["qwen2-float32"]
    config = run_config(source, learning_rate=1e-5, warmup_updates=0)
    config.model.precision = Precision.bf16
    policy = MegatronPolicy(config, distributed.initialise(1, 1))
    policy.update(train_batch(token_batch()), loss_function)
    save(policy, tmp_path / "step" / "policy")
    (tmp_path / "step" / "config.json").write_text((source / "config.json").read_text())
    for dtype in (None, "bf16", "fp32"):
        conversion.export_hf(tmp_path / "step", tmp_path / f"hf-{dtype}", dtype=dtype)
    assert_same(tensors(tmp_path / "hf-None"), dict(policy.named_weights()))
    assert_same(tensors(tmp_path / "hf-bf16"), dict(policy.named_weights()))
    copies = {
        name: slot.main.view(parameter.shape)
        for (name, parameter) in policy.model.named_parameters()
        for slot in [optimizer_state.slots(policy.optimizer, policy.model)[name]]
    }
    whole = dict(weights.named_weights(policy.model, policy.architecture, copies))
    exported = tensors(tmp_path / "hf-fp32")
    assert_same(exported, whole)
    assert any(not torch.equal(tensor, tensor.bfloat16().float()) for tensor in exported.values())
    assert json.loads((tmp_path / "hf-fp32" / "config.json").read_text())["dtype"] == "float32"


MEMORY = """
from nemo_prorl.engines import environment; environment.prepare()
import sys, threading, time
from pathlib import Path
from nemo_prorl.engines.megatron import conversion
from nemo_prorl.engines.megatron import checkpoint
small, large, out = map(Path, sys.argv[1:])
checkpoint.FILE_BYTES = 16 << 20

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))

def watch():
    while not ended:
        highest.append(anonymous())
        time.sleep(0.002)

conversion.import_hf(small, out / "warm")
conversion.export_hf(out / "warm", out / "warm_hf")
for convert in (
    lambda: conversion.import_hf(large, out / "megatron"),
    lambda: conversion.export_hf(out / "megatron", out / "hf", shard_bytes=16 << 20),
):
    ended, highest, before = [], [], anonymous()
    watcher = threading.Thread(target=watch)
    watcher.start()
    convert()
    ended.append(True)
    watcher.join()
    print(max(highest) - before)
"""


def test_conversion_holds_a_file_and_not_the_model(models: dict[str, Path], tmp_path: Path) -> None:
    small, large = models["llama-float32"], tmp_path / "large"
    large.mkdir()
    shape = {"num_hidden_layers": 40, "hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 8}
    (large / "config.json").write_text(json.dumps(json.loads((small / "config.json").read_text()) | shape))
    architecture = read_architecture(large)
    random = {name: torch.randn(shape) for name, shape in hf_shapes(architecture).items()}
    save_file(random, large / "model.safetensors")
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, small, large, tmp_path],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).resolve().parents[3],
    )
    assert done.returncode == 0, done.stderr
    size = sum(file.stat().st_size for file in large.glob("*.safetensors"))
    to_megatron, to_hf = map(int, done.stdout.split())
    assert size > 120 << 20
    assert to_megatron < size / 2
    assert to_hf < size / 2
    exported = tensors(tmp_path / "hf")
    assert all(torch.equal(tensor, exported[name]) for name, tensor in random.items())


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_all_files_have_the_mode_of_new_files(
    umask: int, mode: int, models: dict[str, Path], tmp_path: Path
) -> None:
    """safetensors makes its files readable for their owner alone, and the model's own files may be so too."""
    before = os.umask(umask)
    try:
        source = models["qwen2-float32"]
        conversion.save_hf(
            iter([("a", torch.ones(2)), ("b", torch.ones(2))]), source, tmp_path / "hf", shard_bytes=8
        )
    finally:
        os.umask(before)
    files = [file for file in (tmp_path / "hf").rglob("*") if file.is_file()]
    assert {file.stat().st_mode & 0o777 for file in files} == {mode}
    assert len(list(tmp_path.glob("hf/*.safetensors"))) == 2


def test_a_stream_that_breaks_leaves_the_older_export(models: dict[str, Path], tmp_path: Path) -> None:
    def stream() -> Any:
        yield "model.norm.weight", torch.ones(3)
        raise RuntimeError("a rank died")

    conversion.save_hf(iter([("a", torch.ones(2))]), models["qwen2-float32"], tmp_path / "hf")
    with pytest.raises(RuntimeError, match="a rank died"):
        conversion.save_hf(stream(), models["qwen2-float32"], tmp_path / "hf")
    assert tensors(tmp_path / "hf").keys() == {"a"}
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def copy_with(source: Path, target: Path, changes: dict[str, torch.Tensor | None]) -> Path:
    target.mkdir()
    (target / "config.json").write_text((source / "config.json").read_text())
    kept = {name: tensor for name, tensor in (tensors(source) | changes).items() if tensor is not None}
    save_file(kept, target / "model.safetensors")
    return target


def cut(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-1000])


def with_another_norm(values: torch.Tensor) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        save_file(tensors(folder) | {"model.norm.weight": values}, folder / "model.safetensors")

    return spoil


@pytest.mark.parametrize(
    ("spoil", "sentence", "trains"),
    [
        (cut, r"model\.safetensors is damaged", False),
        (with_another_norm(torch.ones(3)), "of a shape that does not fit", False),
        # the first refit of a policy that is to be trained refuses it
        (with_another_norm(torch.full((128,), torch.nan)), r"NaN or infinity in model\.norm\.weight", True),
    ],
)
def test_weights_that_cannot_be_used_are_one_sentence(
    spoil: Callable[[Path], None], sentence: str, trains: bool, models: dict[str, Path], tmp_path: Path
) -> None:
    """What else is refused: test_weight_files.py."""
    folder = copy_with(models["qwen2-float32"], tmp_path / "broken", {})
    spoil(folder)
    with pytest.raises(ConfigError, match=sentence):
        conversion.import_hf(folder, tmp_path / "megatron")
    assert not (tmp_path / "megatron").exists()
    if not trains:
        with pytest.raises(ConfigError, match=sentence):
            policy_of(folder)


def test_a_tied_model_may_bring_its_output_layer_along(models: dict[str, Path], tmp_path: Path) -> None:
    source = models["qwen2-tied-bfloat16"]
    embedding = tensors(source)["model.embed_tokens.weight"].clone()
    conversion.import_hf(
        copy_with(source, tmp_path / "both", {"lm_head.weight": embedding}), tmp_path / "megatron"
    )
    assert checkpoint.is_checkpoint(tmp_path / "megatron")


def test_folders_that_hold_nothing_to_convert(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no complete checkpoint"):
        conversion.export_hf(tmp_path, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"no config\.json"):
        conversion.import_hf(tmp_path, tmp_path / "out")
