"""Random policies of a given architecture, and what they should compute, in float64 and plain PyTorch.

Needs only torch and megatron-core. Neither weights nor a tokenizer are downloaded or read from files.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F

from benchmarks.gpu_check.batches import captured_gradients, loss_function
from nemo_prorl import distributed
from nemo_prorl.config import RunConfig
from nemo_prorl.engines.megatron import check, weights
from nemo_prorl.engines.megatron.architecture import Architecture, hf_shapes, read_architecture
from nemo_prorl.engines.megatron.families import FAMILIES, Rope
from nemo_prorl.engines.megatron.policy import MegatronPolicy
from nemo_prorl.types import FloatArray, Totals, TrainBatch

TINY = Architecture(
    family=FAMILIES["Qwen2ForCausalLM"],
    num_layers=2,
    hidden_size=256,
    ffn_size=512,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    vocab_size=1003,
    max_positions=8192,
    norm_epsilon=1e-6,
    rope=Rope(theta=1e6),
    tied=False,
)
"""Has widths that every FP8 recipe supports (multiples of 128), and a vocabulary that two ranks have to pad."""


def folder_of(architecture: Architecture, folder: Path) -> Path:
    """Writes a Hugging Face folder without weights, which `RandomReader` provides, and returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": [architecture.name],
        "num_hidden_layers": architecture.num_layers,
        "hidden_size": architecture.hidden_size,
        "intermediate_size": architecture.ffn_size,
        "num_attention_heads": architecture.num_heads,
        "num_key_value_heads": architecture.num_kv_heads,
        "vocab_size": architecture.vocab_size,
        "max_position_embeddings": architecture.max_positions,
        "rms_norm_eps": architecture.norm_epsilon,
        "rope_parameters": {"rope_type": "default", "rope_theta": architecture.rope.theta},
        "tie_word_embeddings": architecture.tied,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "model.safetensors").touch()
    return folder


class RandomReader:
    """Replaces weights.SafetensorsReader by random tensors, each determined by its name and exact in bf16."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._architecture = read_architecture(folder)

    def __getitem__(self, name: str) -> torch.Tensor:
        """Returns a tensor scaled so that activations stay near 1, and distributions are neither uniform nor
        deterministic."""
        device = torch.device(torch.cuda.current_device())
        generator = torch.Generator(device).manual_seed(zlib.crc32(name.encode()))
        shape = hf_shapes(self._architecture)[name]
        noise = torch.randn(shape, generator=generator, device=device)
        if name.endswith("norm.weight"):
            return (1.0 + 0.1 * noise).bfloat16()
        if len(shape) == 1:
            return (0.1 * noise).bfloat16()
        return (noise * (2.0 if "lm_head" in name else 1.0) * shape[1] ** -0.5).bfloat16()


def build(config: RunConfig, ranks: distributed.Ranks) -> MegatronPolicy:
    """Returns a policy with random weights, the same for all configurations of an architecture on one kind of
    device."""
    no_files = patch.object(check, "check_weights", lambda *_: None)
    with no_files, patch.object(weights, "SafetensorsReader", RandomReader):
        return MegatronPolicy(config, ranks)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a policy computes for a batch."""

    logprobs_BT: FloatArray
    entropy_BT: FloatArray
    gradients: dict[str, torch.Tensor]
    """Hugging Face name -> gradient, on CPU, in float64."""


def measure(policy: MegatronPolicy, batch: TrainBatch) -> Measured:
    """Makes one update, and returns what the policy computed."""
    logprobs = policy.logprobs(batch.tokens)
    with captured_gradients(policy) as gradients:
        report = policy.update(batch, loss_function)
    on_cpu = {name: gradient.double().cpu() for name, gradient in gradients.items()}
    return Measured(logprobs_BT=logprobs, entropy_BT=report.entropy_BT, gradients=on_cpu)


def exact(
    named: Mapping[str, torch.Tensor], architecture: Architecture, batch: TrainBatch, temperature: float
) -> Measured:
    """Returns what a policy with the weights `named` should compute, by transformers' formulas for Qwen2, row by row
    without padding, and automatic differentiation."""
    leaves = {name: tensor.double().requires_grad_() for name, tensor in named.items()}
    device = next(iter(leaves.values())).device
    logprobs_BT, entropy_BT = torch.zeros(
        2, *batch.tokens.token_ids_BT.shape, dtype=torch.float64, device=device
    )
    for row, length in enumerate(batch.tokens.lengths_B.tolist()):
        tokens = torch.from_numpy(batch.tokens.token_ids_BT[row, :length]).to(device)
        log_p = (_logits(leaves, architecture, tokens)[:-1] / temperature).log_softmax(-1)
        inside = torch.from_numpy(batch.tokens.response_mask_BT[row, 1:length]).to(device)
        label_log_p = log_p.gather(1, tokens[1:, None])[:, 0]
        places = (torch.tensor(row, device=device), torch.nonzero(inside)[:, 0] + 1)
        logprobs_BT = logprobs_BT.index_put(places, label_log_p[inside])
        entropy_BT = entropy_BT.index_put(places, -(log_p.exp() * log_p).sum(1)[inside])
    totals = Totals(num_tokens=batch.num_tokens, num_rollouts=len(batch))
    loss = loss_function(logprobs_BT, entropy_BT, batch, totals)
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return Measured(
        logprobs_BT=logprobs_BT.detach().float().cpu().numpy(),
        entropy_BT=entropy_BT.detach().float().cpu().numpy(),
        gradients={name: gradient.cpu() for name, gradient in zip(leaves, gradients, strict=True)},
    )


def _logits(w: Mapping[str, torch.Tensor], a: Architecture, tokens: torch.Tensor) -> torch.Tensor:
    """Returns the logits [T, V] of one sequence."""
    num_tokens, half = len(tokens), a.head_dim // 2
    frequencies = a.rope.theta ** (-torch.arange(half, dtype=torch.float64, device=tokens.device) / half)
    angles = (torch.arange(num_tokens, device=tokens.device)[:, None] * frequencies).repeat(1, 2)[:, None]
    hidden = w["model.embed_tokens.weight"][tokens]
    for layer in range(a.num_layers):
        name = f"model.layers.{layer}."
        x = _norm(hidden, w[name + "input_layernorm.weight"], a)
        q, k, v = (_project(x, w, f"{name}self_attn.{part}_proj", a.head_dim) for part in "qkv")
        q, k = (x * angles.cos() + _rotated(x) * angles.sin() for x in (q, k))
        hidden = hidden + _attend(q, k, v) @ w[name + "self_attn.o_proj.weight"].t()
        x = _norm(hidden, w[name + "post_attention_layernorm.weight"], a)
        gate, up = (x @ w[f"{name}mlp.{part}_proj.weight"].t() for part in ("gate", "up"))
        hidden = hidden + (F.silu(gate) * up) @ w[name + "mlp.down_proj.weight"].t()
    head = w["model.embed_tokens.weight" if a.tied else "lm_head.weight"]
    return _norm(hidden, w["model.norm.weight"], a) @ head.t()


def _norm(x: torch.Tensor, weight: torch.Tensor, a: Architecture) -> torch.Tensor:
    return x * (x.square().mean(-1, keepdim=True) + a.norm_epsilon).rsqrt() * weight


def _project(x: torch.Tensor, w: Mapping[str, Any], name: str, head_dim: int) -> torch.Tensor:
    """Returns queries, keys or values as [T, heads, D]."""
    return (x @ w[name + ".weight"].t() + w.get(name + ".bias", 0.0)).unflatten(-1, (-1, head_dim))


def _rotated(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Returns the output of causal attention, [T, heads * D]. Consecutive query heads share a key-value head."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) * q.shape[-1] ** -0.5
    future = torch.ones_like(scores[0], dtype=torch.bool).triu(1)
    weights_hij = scores.masked_fill(future, -torch.inf).softmax(-1)
    return torch.einsum("hij,jhd->ihd", weights_hij, v).flatten(1)
