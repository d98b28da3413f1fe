"""Tests of conversion from Hugging Face to Megatron and back: bit by bit, from any layout, with all files of a
model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from experiments.boundary.tiny_policy import build_tokenizer
from nemo_prorl import distributed
from nemo_prorl.config import ConfigError, Precision
from nemo_prorl.engines.megatron import conversion, optimizer_state, weights
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


def export(checkpoint_dir: Path, out_dir: Path, dtype: str | None = None, **options: int) -> None:
    conversion.save_hf(
        *conversion.open_checkpoint(checkpoint_dir, dtype=dtype), out_dir, dtype=dtype, **options
    )


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
    export(tmp_path / "megatron", tmp_path / "hf")
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
    export(tmp_path / "megatron", tmp_path / "hf", shard_bytes=200_000)
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
    export(tmp_path / "again", tmp_path / "hf", "bf16")
    assert_same(tensors(tmp_path / "hf"), {name: t.bfloat16() for name, t in tensors(source).items()})
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["dtype"] == "bfloat16"
    assert [file.name for file in tmp_path.glob("hf/*.safetensors*")] == ["model.safetensors"], "whole"


def export_live(policy: MegatronPolicy, source: Path, out: Path) -> None:
    """Collective, because `named_weights` is: the ranks that write nothing take part too."""
    if policy.ranks.layout.is_main:
        conversion.save_hf(policy.named_weights(), source, out)
    else:
        list(policy.named_weights())


def parallel_worker(source: Path, folder: Path) -> None:
    """Exports the live policy, before and after an update, and writes a run's checkpoint after it."""
    ranks = distributed.initialise(2, 2)
    policy = MegatronPolicy(run_config(source, tensor_parallel=2, pipeline_parallel=2), ranks)
    export_live(policy, source, folder / "live")
    policy.update(train_batch(token_batch()), loss_function)
    save(policy, folder / "step-00000001" / "policy")
    export_live(policy, source, folder / "updated")
    logprobs = policy.logprobs(token_batch())
    if ranks.layout.is_main:
        np.save(folder / "logprobs.npy", logprobs)
        config = folder / "step-00000001" / "huggingface" / "config.json"
        config.parent.mkdir()
        config.write_text((source / "config.json").read_text())


@pytest.mark.slow
def test_two_by_two_ranks_load_and_export_every_bit(models: dict[str, Path], tmp_path: Path) -> None:
    """Exports the live policy at TP2 x PP2, and its checkpoint in one process."""
    source = models["qwen2-float32"]
    run_ranks(parallel_worker, 4, source=source, folder=tmp_path)
    assert_same(tensors(tmp_path / "live"), tensors(source))
    export(tmp_path / "step-00000001", tmp_path / "exported")
    assert_same(tensors(tmp_path / "exported"), tensors(tmp_path / "updated"))
    plain = plain_logprobs(tmp_path / "exported", token_batch(), 1.2)
    np.testing.assert_allclose(np.load(tmp_path / "logprobs.npy"), plain, atol=1e-5, rtol=0)
    changed = tensors(tmp_path / "exported")
    assert all(not torch.equal(changed[name], tensor) for name, tensor in tensors(source).items())


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
        export(tmp_path / "step", tmp_path / f"hf-{dtype}", dtype=dtype)
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
small, large, out = map(Path, sys.argv[1:])

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))

def watch():
    while not ended:
        highest.append(anonymous())
        time.sleep(0.002)

def export(source, to):
    conversion.save_hf(*conversion.open_checkpoint(source), to, shard_bytes=16 << 20)

export(small, out / "warm")
ended, highest, before = [], [], anonymous()
watcher = threading.Thread(target=watch)
watcher.start()
export(large, out / "hf")
ended.append(True)
watcher.join()
print(max(highest) - before)
"""


def test_an_export_holds_a_file_and_not_the_model(models: dict[str, Path], tmp_path: Path) -> None:
    small, large = models["llama-float32"], tmp_path / "large"
    large.mkdir()
    shape = {"num_hidden_layers": 40, "hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 8}
    (large / "config.json").write_text(json.dumps(json.loads((small / "config.json").read_text()) | shape))
    random = {name: torch.randn(shape) for name, shape in hf_shapes(read_architecture(large)).items()}
    save_file(random, large / "model.safetensors")
    imported = [tmp_path / "small megatron", tmp_path / "large megatron"]
    for source, folder in zip((small, large), imported, strict=True):
        conversion.import_hf(source, folder)
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, *imported, tmp_path],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).resolve().parents[3],
    )
    assert done.returncode == 0, done.stderr
    size = sum(file.stat().st_size for file in large.glob("*.safetensors"))
    assert size > 120 << 20
    assert int(done.stdout) < size / 2
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


def test_a_folder_that_is_refused_leaves_nothing(models: dict[str, Path], tmp_path: Path) -> None:
    """What else is refused: test_weight_files.py."""
    folder = tmp_path / "broken"
    shutil.copytree(models["qwen2-float32"], folder)
    spoilt = tensors(folder) | {"model.norm.weight": torch.full((128,), torch.nan)}
    save_file(spoilt, folder / "model.safetensors")
    with pytest.raises(ConfigError, match=r"NaN or infinity in model\.norm\.weight"):
        conversion.import_hf(folder, tmp_path / "megatron")
    with pytest.raises(ConfigError, match="holds no complete checkpoint"):
        conversion.open_checkpoint(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["broken"]
