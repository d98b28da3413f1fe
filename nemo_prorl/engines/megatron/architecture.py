"""Reads the architecture of a dense decoder from a Hugging Face config.json. Standard library only, so that the command
line can refuse a model before torch is imported.

Unsupported features are refused: ignoring one would silently build another model.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from nemo_prorl.config import ConfigError, is_hub_name
from nemo_prorl.config.makers import made_by
from nemo_prorl.engines.megatron.families import FAMILIES
from nemo_prorl.engines.megatron.families.family import Architecture, Family, Rope

__all__ = ["Architecture"]

_LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""The values that Megatron-Core hard-codes; only the factor can be chosen."""
_ROPE_KEYS = {
    "default": frozenset({"rope_theta", "rope_type", "type", "partial_rotary_factor"}),
    "llama3": frozenset({"factor", *_LLAMA3_ROPE}),
    "yarn": frozenset({"factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "truncate"}),
}
"""Kind of rotary embedding -> the keys that it has, besides those of the default."""

_COMMON, _OTHERS = Path(__file__).with_name("config_keys.txt").read_text(encoding="utf-8").split("\n\n")
COMMON_KEYS = frozenset(_COMMON.split())
"""Keys of config.json that every family has, and that are read or must be off."""
_NO_MATTER = frozenset(_OTHERS.split())
"""Keys that do not change what the model computes for given tokens: of files, training, generation and tokenizers.
Those that begin with an underscore do not either."""
_FEATURES = (
    (r"expert|moe(_|$)|router", "a mixture of experts"),
    (
        r"mamba|ssm|conv|linear_(key|value|num)|attn_layer|block_type|layer_pattern|full_attention_interval",
        "a hybrid",
    ),
    (r"vision|image|audio|text_config|mrope", "multimodal"),
    (r"latent|lora_rank", "latent attention"),
)
"""Pattern of a key -> the feature that it belongs to."""


EMBEDDING, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


@cache
def hf_shapes(architecture: Architecture) -> Mapping[str, tuple[int, ...]]:
    """Returns name -> shape of every tensor of the model in a Hugging Face checkpoint."""
    a = architecture
    layer = {name: shape for tensor in a.layer for name, shape in zip(tensor.hf, tensor.shapes, strict=True)}
    return {
        EMBEDDING: (a.vocab_size, a.hidden_size),
        **{f"model.layers.{i}.{name}": shape for i in range(a.num_layers) for name, shape in layer.items()},
        FINAL_NORM: (a.hidden_size,),
        **({} if a.tied else {HEAD: (a.vocab_size, a.hidden_size)}),
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

        return float(self._read(key, default, fits, "a number above 0", takes_null=False))

    def flag(self, key: str, default: bool = False) -> bool:
        return self._read(key, default, lambda value: isinstance(value, bool), "true or false")

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

    def has(self, key: str) -> bool:
        return key in self._content

    def get(self, key: str) -> Any:
        return self._content.get(key)

    def set_keys(self) -> list[str]:
        """Returns the keys whose value is not null."""
        return [key for key, value in self._content.items() if value is not None]

    def shown(self, key: str) -> str:
        """Returns "KEY=VALUE", shortened."""
        value = json.dumps(self.get(key))
        return f"{key}={value if len(value) <= 40 else value[:37] + '...'}"

    def _read(
        self, key: str, default: T | None, fits: Callable[[Any], bool], kind: str, *, takes_null: bool = True
    ) -> T:
        value: Any = self._content.get(key, default)
        if value is None and takes_null:
            value = default
        if not fits(value):
            found = f"{key}={json.dumps(self.get(key))}" if key in self._content else f"no {key}"
            raise ConfigError(f"The model's config.json has {found}: {kind} is needed.")
        return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def read_architecture(source: str | Path | Mapping[str, Any]) -> Architecture:
    """Returns the architecture that a model folder, or the content of its config.json, describes. Raises ConfigError if
    it is not supported."""
    config = _Values(
        source if isinstance(source, Mapping) else read_json_object(Path(source) / "config.json")
    )
    family = _family(next(iter(config.texts("architectures")), "(none)"))
    _refuse_unsupported(config, family)
    heads = config.whole("num_attention_heads")
    hidden = config.whole("hidden_size")
    head_dim = config.whole("head_dim", hidden // heads)
    if not family.own_head_dim and head_dim * heads != hidden:
        raise ConfigError(
            f"The model's config.json has head_dim={head_dim}, which {family.name} does not support: it must be "
            f"hidden_size / num_attention_heads = {hidden / heads:g}."
        )
    return Architecture(
        family=family,
        num_layers=config.whole("num_hidden_layers"),
        hidden_size=hidden,
        ffn_size=config.whole("intermediate_size"),
        num_heads=heads,
        num_kv_heads=config.whole("num_key_value_heads", heads),
        head_dim=head_dim,
        vocab_size=config.whole("vocab_size"),
        max_positions=config.whole("max_position_embeddings"),
        norm_epsilon=config.number("rms_norm_eps", family.norm_epsilon),
        rope=_rope(config, family),
        tied=config.flag("tie_word_embeddings"),
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


def _family(name: str) -> Family:
    """Returns the family of that name. Raises ConfigError for another, with the nearest."""
    if name in FAMILIES:
        return FAMILIES[name]
    feature = " (a mixture of experts)" if re.search(r"Moe|MoE|Mixtral", name) else ""
    nearest = difflib.get_close_matches(name, FAMILIES, 1, 0.6)
    hint = f"; {nearest[0]} is nearest" if nearest else ""
    raise ConfigError(
        f"The model's architecture {name}{feature} is not supported: use one of {', '.join(FAMILIES)}{hint}."
    )


def _refuse_unsupported(config: _Values, family: Family) -> None:
    activation = config.text("hidden_act", "silu")
    if activation != "silu":
        raise ConfigError(f"The model's activation hidden_act={activation} is not supported: only silu is.")
    if _is_windowed(config, family):
        raise ConfigError("The model uses sliding-window attention, which is not supported.")
    for key in ("attention_bias", "mlp_bias", "use_mrope"):
        if config.flag(key):
            raise ConfigError(f"The model has {key}=true, which is not supported.")
    if config.object("quantization_config"):
        raise ConfigError("The model's weights are quantised: write model.path of an unquantised checkpoint.")
    for key in ("attention_dropout", "resid_pdrop", "embd_pdrop"):
        if config.get(key):
            raise ConfigError(f"The model has {key}, under which log-probabilities are not reproducible.")
    known = COMMON_KEYS | _NO_MATTER | family.keys
    for key in config.set_keys():
        if key not in known and not key.startswith("_"):
            raise _unknown(config, key, family)


def _is_windowed(config: _Values, family: Family) -> bool:
    """Returns whether a layer attends to less than the whole context."""
    if any(kind != "full_attention" for kind in config.texts("layer_types")):
        return True
    if "use_sliding_window" in family.keys:
        return config.flag("use_sliding_window")
    if "sliding_window" not in family.keys:
        return False
    if config.get("sliding_window") is None:  # null means none, and a missing key the family's default
        return family.window is not None and not config.has("sliding_window")
    return config.whole("sliding_window") < config.whole("max_position_embeddings")


def _unknown(config: _Values, key: str, family: Family) -> ConfigError:
    """Returns the error for a key that the family does not have, and that might change what the model computes."""
    feature = next((what for pattern, what in _FEATURES if re.search(pattern, key)), "")
    others = [name for name, other in FAMILIES.items() if key in other.keys]
    found = f"The model's config.json has {config.shown(key)}, which"
    if feature:
        return ConfigError(f"{found} makes it {feature}: only dense decoders are supported ({family.name}).")
    hint = f" ({', '.join(others)} has)" if others else ""
    return ConfigError(
        f"{found} {family.name} does not have{hint}, and which might make it another model: remove the key if "
        "the model is the same without it."
    )


def _rope(config: _Values, family: Family) -> Rope:
    """Returns the rotary embedding. transformers 4 writes rope_theta and rope_scaling, transformers 5 rope_parameters.
    A missing theta is an error: with a wrong guess the model would be wrong without any error."""
    rope = config.with_objects("rope_scaling", "rope_parameters")
    theta = rope.number("rope_theta")
    if rope.get("partial_rotary_factor") is not None and rope.number("partial_rotary_factor") != 1.0:
        raise ConfigError(
            "The model rotates only a part of each head (partial_rotary_factor), which is not supported."
        )
    kind = rope.text("rope_type", rope.text("type", "default"))
    is_known = kind in family.ropes and (
        kind != "llama3" or all(rope.get(key) == value for key, value in _LLAMA3_ROPE.items())
    )
    if not is_known:
        with_values = [f"llama3 with {_LLAMA3_ROPE}" if name == "llama3" else name for name in family.ropes]
        raise ConfigError(
            f"The model's rope scaling {kind} is not supported: {family.name} takes {' or '.join(with_values)}."
        )
    if kind == "default":
        return Rope(theta=theta)
    known = _ROPE_KEYS["default"] | _ROPE_KEYS[kind]
    for key in [*config.object("rope_scaling"), *config.object("rope_parameters")]:
        if key not in known and rope.get(key) is not None:
            raise ConfigError(
                f"The model's rope scaling {kind} has {rope.shown(key)}, which is not supported: use "
                f"{', '.join(sorted(known))}."
            )
    if kind == "llama3":
        return Rope(theta=theta, kind=kind, factor=rope.number("factor"))
    factor, original = rope.number("factor"), rope.whole("original_max_position_embeddings")
    if config.whole("max_position_embeddings") > factor * original:
        raise ConfigError(
            f"The model's max_position_embeddings={config.whole('max_position_embeddings')} is more than what YaRN "
            f"extends it to, factor x original_max_position_embeddings = {factor * original:g}: write at most that."
        )
    return Rope(
        theta=theta,
        kind=kind,
        factor=factor,
        original_positions=original,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", default=True),
    )
