"""Reads the architecture of a dense decoder from a Hugging Face config.json. Standard library only, so that the command
line can refuse a model before torch is imported.

Unsupported features are refused: ignoring one would silently build another model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_prorl.config import ConfigError, is_hub_name
from nemo_prorl.config.makers import made_by


@dataclass(frozen=True, slots=True)
class _Family:
    """How a family's attention differs from plain Llama."""

    qkv_bias: bool
    qk_norm: bool
    own_head_dim: bool = True
    """Whether head_dim may differ from hidden_size / num_attention_heads. vLLM ignores the key in other families."""


FAMILIES: dict[str, _Family] = {
    "Qwen2ForCausalLM": _Family(qkv_bias=True, qk_norm=False, own_head_dim=False),
    "Qwen3ForCausalLM": _Family(qkv_bias=False, qk_norm=True),
    "LlamaForCausalLM": _Family(qkv_bias=False, qk_norm=False),
}

_LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""The values that Megatron-Core hard-codes; only the factor can be chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The sizes and features of a dense decoder.

    Example: Architecture(name="Qwen2ForCausalLM", num_layers=28, hidden_size=1536, ffn_size=8960, num_heads=12,
    num_kv_heads=2, head_dim=128, vocab_size=151936, max_positions=131072, norm_epsilon=1e-6, rope_theta=1e4,
    rope_factor=0.0, tied=True, qkv_bias=True, qk_norm=False)
    """

    name: str
    num_layers: int
    hidden_size: int
    ffn_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    norm_epsilon: float
    rope_theta: float
    rope_factor: float
    """Factor of Llama 3's rope scaling; 0 means none."""
    tied: bool
    """Whether the output layer shares the embedding's weight."""
    qkv_bias: bool
    qk_norm: bool

    @property
    def num_parameters(self) -> int:
        """Number of weights and biases, without padding. Example: 1_777_088_000 for DeepSeek-R1-Distill-Qwen-1.5B."""
        queries, key_values = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = self.hidden_size * (2 * queries + 2 * key_values)
        attention += (queries + 2 * key_values) * self.qkv_bias + 2 * self.head_dim * self.qk_norm
        layer = attention + 3 * self.hidden_size * self.ffn_size + 2 * self.hidden_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied else 2)
        return self.num_layers * layer + embeddings + self.hidden_size

    def padded_vocab(self, tensor_parallel: int, divisible_by: int) -> int:
        """Returns the number of rows of the embedding, over all tensor-parallel ranks: `vocab_size` rounded up to a
        multiple of `divisible_by` rows per rank."""
        multiple = divisible_by * tensor_parallel
        return -(-self.vocab_size // multiple) * multiple

    def layers_per_stage(self, pipeline_parallel: int) -> list[int]:
        """Returns the number of layers of each pipeline stage, as even as possible. Remaining layers go to the middle
        stages, then to the first: the last stage has the output layer and the loss, and the first the embedding, which
        costs less."""
        each, left = divmod(self.num_layers, pipeline_parallel)
        last = pipeline_parallel - 1
        favoured = [*range(1, last), 0][:left]
        return [each + (stage in favoured) for stage in range(pipeline_parallel)]


def read_architecture(source: str | Path | Mapping[str, Any]) -> Architecture:
    """Returns the architecture that a model folder, or the content of its config.json, describes. Raises ConfigError if
    it is not supported."""
    config = source if isinstance(source, Mapping) else _read_json(Path(source) / "config.json")
    names = config.get("architectures") or ["(none)"]
    family = FAMILIES.get(names[0])
    if family is None:
        raise ConfigError(
            f"The model's architecture {names[0]} is not supported: use one of {', '.join(FAMILIES)}."
        )
    _refuse_unsupported(config)
    theta, factor = _rope(config)
    heads = _positive(config, "num_attention_heads")
    hidden = _positive(config, "hidden_size")
    head_dim = config.get("head_dim") or hidden // heads
    if not family.own_head_dim and head_dim * heads != hidden:
        raise ConfigError(
            f"The model's config.json has head_dim={head_dim}, which {names[0]} does not support: it must be "
            f"hidden_size / num_attention_heads = {hidden / heads:g}."
        )
    return Architecture(
        name=names[0],
        num_layers=_positive(config, "num_hidden_layers"),
        hidden_size=hidden,
        ffn_size=_positive(config, "intermediate_size"),
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        vocab_size=_positive(config, "vocab_size"),
        max_positions=_positive(config, "max_position_embeddings"),
        norm_epsilon=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=theta,
        rope_factor=factor,
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(_missing(path)) from None
    except NotADirectoryError:
        raise ConfigError(
            f"model.path={path.parent} is a file: write the folder of a Hugging Face checkpoint."
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is damaged (it holds no JSON object): fetch it again.")
    return content


def _missing(path: Path) -> str:
    """Returns why there is no config.json, as far as the folder's name and content tell."""
    folder = path.parent
    problem = f"There is no {path.name} in model.path={folder}"
    if (folder / "adapter_config.json").is_file():
        return (
            f"{problem}, which is an adapter (LoRA): merge it into its base model, and write the folder of the merged "
            "model."
        )
    owner, _, name = str(folder).partition("/")
    if (
        not folder.exists()
        and is_hub_name(f"{owner}/{name}")
        and "/" not in name
        and not Path(owner).exists()
    ):
        return (
            f"model.path={folder} is not a folder here, and models are not fetched from the Hugging Face hub: if it is "
            f"one, `hf download {folder} --local-dir {folder}` makes the folder."
        )
    return f"{problem}{made_by(str(folder))}: write the folder of a Hugging Face checkpoint."


def _positive(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value <= 0:
        raise ConfigError(f"The model's config.json has {key}={value}: a whole number above 0 is needed.")
    return value


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise ConfigError(f"The model's activation hidden_act={activation} is not supported: only silu is.")
    windowed = any(kind != "full_attention" for kind in config.get("layer_types") or [])
    if config.get("use_sliding_window") or windowed:
        raise ConfigError("The model uses sliding-window attention, which is not supported.")
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key):
            raise ConfigError(f"The model has {key}=true, which is not supported.")
    if config.get("quantization_config"):
        raise ConfigError("The model's weights are quantised: write model.path of an unquantised checkpoint.")
    if config.get("attention_dropout"):
        raise ConfigError(
            "The model has attention_dropout, under which log-probabilities are not reproducible."
        )


def _rope(config: Mapping[str, Any]) -> tuple[float, float]:
    """Returns (theta, factor of Llama 3's scaling). transformers 4 writes rope_theta and rope_scaling, transformers 5
    rope_parameters. A missing theta is an error: with a wrong guess the model would be wrong without any error."""
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    theta = rope.get("rope_theta", config.get("rope_theta"))
    if theta is None:
        raise ConfigError("The model's config.json has no rope_theta, which cannot be guessed: add it.")
    if float(rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) or 1.0) != 1.0:
        raise ConfigError(
            "The model rotates only a part of each head (partial_rotary_factor), which is not supported."
        )
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return float(theta), 0.0
    if kind == "llama3" and all(rope.get(key) == value for key, value in _LLAMA3_ROPE.items()):
        return float(theta), float(rope["factor"])
    raise ConfigError(
        f"The model's rope scaling {kind} is not supported: only plain rope is, and llama3 with {_LLAMA3_ROPE}."
    )
