"""Reads the architecture of a dense decoder from a Hugging Face config.json. Standard library only, so that the command
line can refuse a model before torch is imported.

Unsupported features are refused: ignoring one would silently build another model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from nemo_prorl.config import ConfigError, is_hub_name
from nemo_prorl.config.makers import made_by
from nemo_prorl.engines.megatron.families import FAMILIES, Architecture, Family, Rope

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
EMBEDDING, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


@cache
def hf_shapes(architecture: Architecture) -> Mapping[str, tuple[int, ...]]:
    """Returns name -> shape of every tensor of the model in a Hugging Face checkpoint."""
    a = architecture
    layer = {name: shape for tensor in a.layer for name, shape in tensor.hf.items()}
    return {
        EMBEDDING: (a.vocab_size, a.hidden_size),
        **{f"model.layers.{i}.{name}": shape for i in range(a.num_layers) for name, shape in layer.items()},
        FINAL_NORM: (a.hidden_size,),
        **({} if a.tied else {HEAD: (a.vocab_size, a.hidden_size)}),
    }


T = TypeVar("T")
_KINDS: dict[type, tuple[str, Callable[[Any], bool]]] = {
    int: ("a whole number above 0", lambda value: type(value) is int and value > 0),
    float: ("a number above 0", lambda value: type(value) in (int, float) and 0 < value < math.inf),
    bool: ("true or false", lambda value: isinstance(value, bool)),
    str: ("a text", lambda value: isinstance(value, str)),
    list: (
        "a list of texts",
        lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
    ),
    dict: ("an object", lambda value: isinstance(value, dict)),
}
"""Type of a value in config.json -> its name, and whether a value is one."""


class _Values:
    """The values of a config.json, each checked when it is read."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = content

    def read(self, kind: type[T], key: str, default: T | None = None) -> T:
        """Returns a value. A missing key stands for the default, and is refused if there is none; so does null, except
        for a number, which the engines would not replace. Raises ConfigError for another type or range."""
        value: Any = self._content.get(key, default)
        if value is None and kind is not float:
            value = default
        name, fits = _KINDS[kind]
        if not fits(value):
            found = self.shown(key) if key in self._content else f"no {key}"
            raise ConfigError(f"The model's config.json has {found}: {name} is needed.")
        result: Any = float(value) if kind is float else value
        return result

    def with_objects(self, *keys: str) -> _Values:
        """Returns the values together with the values of objects among them, which take precedence."""
        merged = dict(self._content)
        for key in keys:
            merged |= self.read(dict, key, {})
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


def read_architecture(source: str | Path | Mapping[str, Any]) -> Architecture:
    """Returns the architecture that a model folder, or the content of its config.json, describes. Raises ConfigError if
    it is not supported."""
    config = _Values(
        source if isinstance(source, Mapping) else read_json_object(Path(source) / "config.json")
    )
    family = _family(next(iter(config.read(list, "architectures", [])), "(none)"))
    _refuse_unsupported(config, family)
    heads = config.read(int, "num_attention_heads")
    hidden = config.read(int, "hidden_size")
    head_dim = config.read(int, "head_dim", hidden // heads)
    if not family.own_head_dim and head_dim * heads != hidden:
        raise ConfigError(
            f"The model's config.json has head_dim={head_dim}, which {family.name} does not support: it must be "
            f"hidden_size / num_attention_heads = {hidden / heads:g}."
        )
    return Architecture(
        family=family,
        num_layers=config.read(int, "num_hidden_layers"),
        hidden_size=hidden,
        ffn_size=config.read(int, "intermediate_size"),
        num_heads=heads,
        num_kv_heads=config.read(int, "num_key_value_heads", heads),
        head_dim=head_dim,
        vocab_size=config.read(int, "vocab_size"),
        max_positions=config.read(int, "max_position_embeddings"),
        norm_epsilon=config.read(float, "rms_norm_eps", family.norm_epsilon),
        rope=_rope(config, family),
        tied=config.read(bool, "tie_word_embeddings", False),
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
    """Returns the family of that name. Raises ConfigError for another."""
    if name not in FAMILIES:
        raise ConfigError(
            f"The model's architecture {name} is not supported: use a dense decoder, one of {', '.join(FAMILIES)}."
        )
    return FAMILIES[name]


def _refuse_unsupported(config: _Values, family: Family) -> None:
    activation = config.read(str, "hidden_act", "silu")
    if activation != "silu":
        raise ConfigError(f"The model's activation hidden_act={activation} is not supported: only silu is.")
    if _is_windowed(config, family):
        raise ConfigError("The model uses sliding-window attention, which is not supported.")
    for key in ("attention_bias", "mlp_bias", "use_mrope"):
        if config.read(bool, key, False):
            raise ConfigError(f"The model has {key}=true, which is not supported.")
    if config.read(dict, "quantization_config", {}):
        raise ConfigError("The model's weights are quantised: write model.path of an unquantised checkpoint.")
    for key in ("attention_dropout", "resid_pdrop", "embd_pdrop"):
        if config.get(key):
            raise ConfigError(f"The model has {key}, under which log-probabilities are not reproducible.")
    known = COMMON_KEYS | _NO_MATTER | family.keys
    for key in config.set_keys():
        if key not in known and not key.startswith("_"):
            raise ConfigError(
                f"The model's config.json has {config.shown(key)}, which {family.name} does not have, and which might "
                "make it another model, such as a mixture of experts: remove the key if the model is the same without "
                "it."
            )


def _is_windowed(config: _Values, family: Family) -> bool:
    """Returns whether a layer attends to less than the whole context."""
    if any(kind != "full_attention" for kind in config.read(list, "layer_types", [])):
        return True
    if "use_sliding_window" in family.keys:
        return config.read(bool, "use_sliding_window", False)
    if "sliding_window" not in family.keys:
        return False
    if config.get("sliding_window") is None:  # null means none, and a missing key the family's default
        return family.window is not None and not config.has("sliding_window")
    return config.read(int, "sliding_window") < config.read(int, "max_position_embeddings")


def _rope(config: _Values, family: Family) -> Rope:
    """Returns the rotary embedding. transformers 4 writes rope_theta and rope_scaling, transformers 5 rope_parameters.
    A missing theta is an error: with a wrong guess the model would be wrong without any error."""
    rope = config.with_objects("rope_scaling", "rope_parameters")
    theta = rope.read(float, "rope_theta")
    if rope.get("partial_rotary_factor") is not None and rope.read(float, "partial_rotary_factor") != 1.0:
        raise ConfigError(
            "The model rotates only a part of each head (partial_rotary_factor), which is not supported."
        )
    kind = rope.read(str, "rope_type", rope.read(str, "type", "default"))
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
    for key in [*config.read(dict, "rope_scaling", {}), *config.read(dict, "rope_parameters", {})]:
        if key not in known and rope.get(key) is not None:
            raise ConfigError(
                f"The model's rope scaling {kind} has {rope.shown(key)}, which is not supported: use "
                f"{', '.join(sorted(known))}."
            )
    if kind == "llama3":
        return Rope(theta=theta, kind=kind, factor=rope.read(float, "factor"))
    factor, original = rope.read(float, "factor"), rope.read(int, "original_max_position_embeddings")
    if config.read(int, "max_position_embeddings") > factor * original:
        raise ConfigError(
            f"The model's max_position_embeddings={config.read(int, 'max_position_embeddings')} is more than what YaRN "
            f"extends it to, factor x original_max_position_embeddings = {factor * original:g}: write at most that."
        )
    return Rope(
        theta=theta,
        kind=kind,
        factor=factor,
        original_positions=original,
        beta_fast=rope.read(float, "beta_fast", 32.0),
        beta_slow=rope.read(float, "beta_slow", 1.0),
        truncate=rope.read(bool, "truncate", True),
    )
