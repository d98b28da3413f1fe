"""Reads the architecture of a dense decoder from a Hugging Face config.json. Standard library only, so that the command
line can refuse a model before torch is imported.

Unsupported features are refused: ignoring one would silently build another model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

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
        return sum(math.prod(shape) for shape in hf_shapes(self).values())

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


EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@cache
def hf_shapes(architecture: Architecture) -> Mapping[str, tuple[int, ...]]:
    """Returns name -> shape of every tensor of the model in a Hugging Face checkpoint."""
    a = architecture
    hidden, queries, keys = a.hidden_size, a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (a.ffn_size, hidden),
        "mlp.up_proj.weight": (a.ffn_size, hidden),
        "mlp.down_proj.weight": (hidden, a.ffn_size),
    }
    if a.qkv_bias:
        layer |= {f"self_attn.{x}_proj.bias": (queries if x == "q" else keys,) for x in "qkv"}
    if a.qk_norm:
        layer |= {f"self_attn.{x}_norm.weight": (a.head_dim,) for x in "qk"}
    return {
        EMBEDDING: (a.vocab_size, hidden),
        **{f"model.layers.{i}.{name}": shape for i in range(a.num_layers) for name, shape in layer.items()},
        "model.norm.weight": (hidden,),
        **({} if a.tied else {HEAD: (a.vocab_size, hidden)}),
    }


T = TypeVar("T")


class _Values:
    """The values of a config.json, each checked when it is read: ConfigError for one of another type or range. A
    missing key stands for the default, and is refused if there is none; so does null, except for a number, which the
    engines would not replace."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = content

    def whole(self, key: str, default: int | None = None) -> int:
        def fits(value: Any) -> bool:
            return isinstance(value, int) and _is_number(value) and value > 0

        return self._read(key, default, fits, "a whole number above 0")

    def number(self, key: str, default: float | None = None) -> float:
        def fits(value: Any) -> bool:
            return _is_number(value) and value > 0

        found: float = self._read(key, default, fits, "a number above 0", takes_null=False)
        return float(found)

    def flag(self, key: str) -> bool:
        return self._read(key, False, lambda value: isinstance(value, bool), "true or false")

    def text(self, key: str, default: str) -> str:
        return self._read(key, default, lambda value: isinstance(value, str), "a text")

    def texts(self, key: str) -> list[str]:
        def fits(value: Any) -> bool:
            return isinstance(value, list) and all(isinstance(item, str) for item in value)

        return self._read(key, [], fits, "a list of texts")

    def object(self, key: str) -> dict[str, Any]:
        return self._read(key, {}, lambda value: isinstance(value, dict), "an object")

    def with_objects(self, *keys: str) -> _Values:
        """Returns the values together with the values of objects among them, which take precedence."""
        merged = dict(self._content)
        for key in keys:
            merged |= self.object(key)
        return _Values(merged)

    def get(self, key: str) -> Any:
        return self._content.get(key)

    def _read(
        self, key: str, default: T | None, fits: Callable[[Any], bool], kind: str, *, takes_null: bool = True
    ) -> T:
        value: Any = self._content.get(key, default)
        if value is None and takes_null:
            value = default
        if not fits(value):
            found = f"{key}={json.dumps(self.get(key))}" if key in self._content else f"no {key}"
            raise ConfigError(f"The model's config.json has {found}: {kind} is needed.")
        read: T = value
        return read


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def read_architecture(source: str | Path | Mapping[str, Any]) -> Architecture:
    """Returns the architecture that a model folder, or the content of its config.json, describes. Raises ConfigError if
    it is not supported."""
    config = _Values(
        source if isinstance(source, Mapping) else read_json_object(Path(source) / "config.json")
    )
    name = next(iter(config.texts("architectures")), "(none)")
    family = FAMILIES.get(name)
    if family is None:
        raise ConfigError(
            f"The model's architecture {name} is not supported: use one of {', '.join(FAMILIES)}."
        )
    _refuse_unsupported(config)
    theta, factor = _rope(config)
    heads = config.whole("num_attention_heads")
    hidden = config.whole("hidden_size")
    head_dim = config.whole("head_dim", hidden // heads)
    if not family.own_head_dim and head_dim * heads != hidden:
        raise ConfigError(
            f"The model's config.json has head_dim={head_dim}, which {name} does not support: it must be "
            f"hidden_size / num_attention_heads = {hidden / heads:g}."
        )
    return Architecture(
        name=name,
        num_layers=config.whole("num_hidden_layers"),
        hidden_size=hidden,
        ffn_size=config.whole("intermediate_size"),
        num_heads=heads,
        num_kv_heads=config.whole("num_key_value_heads", heads),
        head_dim=head_dim,
        vocab_size=config.whole("vocab_size"),
        max_positions=config.whole("max_position_embeddings"),
        norm_epsilon=config.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_factor=factor,
        tied=config.flag("tie_word_embeddings"),
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
    )


def read_json_object(path: Path) -> dict[str, Any]:
    """Returns the content of a JSON file of a model folder. Raises ConfigError unless it is an object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(_missing(path)) from None
    except NotADirectoryError:
        raise ConfigError(
            f"model.path={path.parent} is a file: write the folder of a Hugging Face checkpoint."
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged ({error}): fetch it again.") from None
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


def _refuse_unsupported(config: _Values) -> None:
    activation = config.text("hidden_act", "silu")
    if activation != "silu":
        raise ConfigError(f"The model's activation hidden_act={activation} is not supported: only silu is.")
    windowed = any(kind != "full_attention" for kind in config.texts("layer_types"))
    if config.flag("use_sliding_window") or windowed:
        raise ConfigError("The model uses sliding-window attention, which is not supported.")
    for key in ("attention_bias", "mlp_bias"):
        if config.flag(key):
            raise ConfigError(f"The model has {key}=true, which is not supported.")
    if config.object("quantization_config"):
        raise ConfigError("The model's weights are quantised: write model.path of an unquantised checkpoint.")
    if config.get("attention_dropout"):
        raise ConfigError(
            "The model has attention_dropout, under which log-probabilities are not reproducible."
        )


def _rope(config: _Values) -> tuple[float, float]:
    """Returns (theta, factor of Llama 3's scaling). transformers 4 writes rope_theta and rope_scaling, transformers 5
    rope_parameters. A missing theta is an error: with a wrong guess the model would be wrong without any error."""
    rope = config.with_objects("rope_scaling", "rope_parameters")
    theta = rope.number("rope_theta")
    if rope.get("partial_rotary_factor") is not None and rope.number("partial_rotary_factor") != 1.0:
        raise ConfigError(
            "The model rotates only a part of each head (partial_rotary_factor), which is not supported."
        )
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind == "default":
        return theta, 0.0
    if kind == "llama3" and all(rope.get(key) == value for key, value in _LLAMA3_ROPE.items()):
        return theta, rope.number("factor")
    raise ConfigError(
        f"The model's rope scaling {kind} is not supported: only plain rope is, and llama3 with {_LLAMA3_ROPE}."
    )
