"""conf/ and the user's overrides become a RunConfig; Hydra and OmegaConf end here. No torch.

A mistake becomes a ConfigError of one sentence: what, where, and what to write instead. Hydra reads the overrides and
puts the files together; options are set here, one at a time, because only then is it known which words of the user's
an error is about (and because Hydra would merge a mapping where the user means to replace it).
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib.util
import math
import re
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf, open_dict
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationResolutionError,
    MissingMandatoryValue,
    OmegaConfBaseException,
    ValidationError,
)

from nemo_prorl.config import REPLACED, ConfigError, RunConfig
from nemo_prorl.help import Option, conf_groups, conf_names, entries, options, sections, type_name, value_text
from nemo_prorl.layout import check_layout, is_one_machine
from nemo_prorl.nemo_toolkit import check_nemo
from nemo_prorl.storage import replace_text, why_not_writable

S = TypeVar("S")
SCHEMA = "run_config"
"""The name under which YAML files list RunConfig first among their defaults."""
GIVEN = "given"
"""The name under which a file outside conf/ is composed, so that it can list conf/'s groups too."""


def compose(config_name: str, overrides: Sequence[str], *, conf_dir: Path) -> RunConfig:
    """RunConfig of a YAML file in `conf_dir`, or of one given by its path, with the overrides on top.

    Raises ConfigError for anything that is misspelt, mistyped or out of range. Looks at no file but YAML; what has to
    exist where the run takes place is `check_inputs`' business.
    """
    choices, settings = _read_overrides(overrides, conf_dir)
    _store_schema()
    source = _source(config_name, conf_dir)
    if source == config_name:
        ConfigStore.instance().store(name=GIVEN, node=_load(Path(config_name)))
        config_name = GIVEN
    try:
        GlobalHydra.instance().clear()
        with initialize_config_dir(config_dir=str(conf_dir.resolve()), version_base="1.3"):
            composed = hydra_compose(config_name, overrides=choices)
        if OmegaConf.get_type(composed) is not RunConfig:
            raise ConfigError(
                f"{source} does not list {SCHEMA} first: begin it with 'defaults: [{SCHEMA}, _self_]'."
            )
        for option, entry, value in settings:
            _set(composed, option, entry, value)
        config = OmegaConf.to_object(composed)
    except ConfigError:
        raise
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
        raise ConfigError(_explain(error, source, conf_dir)) from None
    assert isinstance(config, RunConfig)
    _check_finite(config)
    return config


def settings(schema: type[S], overrides: Sequence[str], command: str) -> S:
    """The options of a command that has no YAML: `schema` of config.py with KEY=VALUE on top. Raises ConfigError."""
    known = {entry.key: entry for entry in entries(schema) if isinstance(entry, Option)}
    node = OmegaConf.structured(schema)
    for text in overrides:
        override = _parse(text)
        key = override.key_or_group
        if key not in known:
            alternative = _closest(key, known)
            hint = (
                f"did you mean {alternative}?"
                if alternative
                else f"`{command} --help` lists what can be set."
            )
            raise ConfigError(f"{key} is not an option: {hint}")
        _set(node, known[key], "", override.value())
    value: S = OmegaConf.to_object(node)  # type: ignore[assignment]
    return value


def quoted(value: str) -> str:
    """As an override's grammar takes any text."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Plain types only, enums by name: what YAML, JSON and loggers take."""
    return _plain(dataclasses.asdict(config))


def write_resolved(config: RunConfig, path: Path) -> None:
    """Every option's value, complete: `train --config-name PATH` runs the same again. Readers never see half a file."""
    text = (
        "# Every option of this run. `python -m nemo_prorl train --config-name THIS_FILE` takes it as it is.\n"
        + yaml.safe_dump({"defaults": [SCHEMA, "_self_"], **to_dict(config)}, sort_keys=False, width=110)
    )
    replace_text(path, text)


def check_inputs(config: RunConfig, world_size: int) -> None:
    """Raises ConfigError unless the ranks fit the layout and the files and packages that the run names are here.

    The model's own folder is read by `engines.megatron.check`, which this layer does not see.
    """
    trainer, reward = config.trainer, config.reward
    check_layout(world_size, trainer.tensor_parallel, trainer.pipeline_parallel)
    if not config.data.train:
        raise ConfigError(
            "data.train is empty: write data.train=problems.jsonl with your own file (docs/data.md), or several with "
            "weights as 'data.train={a.jsonl: 3, b.parquet: 1}'."
        )
    for key, files in (("data.train", config.data.train), ("data.validation", config.data.validation)):
        check_data(key, files)
    if reward.token_file:
        check_files("reward.token_file", [reward.token_file])
    starts_service = reward.asks_service and not reward.urls and not reward.discovery_dir
    if starts_service and not is_one_machine():
        raise ConfigError(
            "neither reward.urls nor reward.discovery_dir is set, and a service that train starts itself serves one "
            "machine: start `python -m reward serve` on the nodes, and write where they announce themselves."
        )
    if starts_service and not reward.interpreter.exists():
        raise ConfigError(
            f"reward.python={reward.python} does not exist, so no reward service can be started: run `make setup` in a "
            "checkout, or write reward.python=/PATH/bin/python of an environment with nemo-prorl-reward[server], or "
            "name running servers with reward.urls or reward.discovery_dir."
        )
    run_dir = config.exp_manager.explicit_log_dir
    check_writable(f"exp_manager.explicit_log_dir={run_dir}", Path(run_dir))
    for package in ("wandb", "mlflow"):
        if (
            getattr(config.exp_manager, f"create_{package}_logger")
            and importlib.util.find_spec(package) is None
        ):
            raise ConfigError(
                f"exp_manager.create_{package}_logger=true needs the package {package}: install it "
                f"(pip install {package}), or write false."
            )
    check_nemo(config.exp_manager)


def check_files(key: str, files: Iterable[str]) -> None:
    """Raises ConfigError, naming the option, for the first that is not a file."""
    for file in files:
        if not Path(file).is_file():
            raise ConfigError(f"{key} names {file}, which is not a file: write an existing path.")


def is_hub_name(text: str) -> bool:
    """Whether a text may be a data set on the Hugging Face hub, OWNER/NAME, or a folder of one, OWNER/NAME/FOLDER; a
    path to a file of data is none."""
    is_file = text.endswith((".parquet", ".json", ".jsonl", ".csv", ".gz"))
    return not is_file and bool(re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+(/[\w.-]+)*", text))


def check_data(key: str, names: Iterable[str]) -> None:
    """Raises ConfigError, naming the option, for the first that is no file, no folder, and no name of a data set."""
    for name in names:
        if not Path(name).exists() and not is_hub_name(name):
            without = ", or 'data.validation=[]' to train without" if key == "data.validation" else ""
            raise ConfigError(
                f"{key} names {name}, which is not a file: write an existing path, or OWNER/NAME of a data set on the "
                f"Hugging Face hub{without}."
            )


def check_writable(key: str, folder: Path) -> None:
    """Raises ConfigError, naming what the user wrote, unless files can be made in the folder."""
    if reason := why_not_writable(folder):
        raise ConfigError(f"{key} cannot be written, because {reason}: write a folder that you may write to.")


@functools.cache
def _store_schema() -> None:
    """Once: a plan composes many stages, and building the schema is a good part of the time that one takes."""
    ConfigStore.instance().store(name=SCHEMA, node=RunConfig)


def _read_overrides(texts: Sequence[str], conf_dir: Path) -> tuple[list[str], list[tuple[Option, str, Any]]]:
    """The choices of files, for Hydra; and (option, entry of a mapping or "", value) of each option to set."""
    choices, settings = [], []
    groups = conf_groups(conf_dir)
    for text in texts:
        override = _parse(text)
        key = override.key_or_group
        if key in groups:
            _check_choice(key, override, conf_dir)
            choices.append(text)
            continue
        if override.is_delete():
            raise ConfigError(
                f"override {text!r} deletes an option, which none can do without: write {key}=VALUE."
            )
        if key in sections():
            raise ConfigError(
                f"{key} is a section of options: set one of them, such as {_first_option(key)}=VALUE."
            )
        option = _option_of(key)
        if option is None:
            raise ConfigError(_unknown(key, groups))
        settings.append((option, key[len(option.key) + 1 :], override.value()))
    return choices, settings


def _parse(text: str) -> Override:
    try:
        override = OverridesParser.create().parse_override(text)
        if override.package is not None:
            raise HydraException("packages are not for users")
    except HydraException:
        raise ConfigError(
            f"override {text!r} cannot be read: write KEY=VALUE, with a value that holds = , {{ }} [ ] in quotes of "
            "its own, as in \"model.path='a=b'\"."
        ) from None
    if override.is_sweep_override():
        key = override.key_or_group
        raise ConfigError(
            f"override {text!r} gives several values: write one, or a list as {key}=[a,b], or a text in quotes."
        )
    return override


def _set(composed: Any, option: Option, entry: str, value: Any) -> None:
    """Replaces an option's value, or one entry of a mapping. Paths with dots are entries, not nested options. A single
    text stands for a list of one, and one file or a list of files for a mix in which each has the weight 1."""
    if option.is_list and isinstance(value, str):
        value = [value]
    if option.key == "data.train" and not entry and value and isinstance(value, str | list):
        value = dict.fromkeys([value] if isinstance(value, str) else map(str, value), 1.0)
    try:
        with open_dict(composed):
            if entry:
                OmegaConf.select(composed, option.key)[entry] = value
            else:
                OmegaConf.update(composed, option.key, value, merge=False)
    except (OmegaConfBaseException, ValueError):
        raise ConfigError(_wrong_type(option.key + (entry and "." + entry), value, option)) from None


def _option_of(key: str) -> Option | None:
    """The option that this key sets, whole or (a mapping) in part."""
    if key in options():
        return options()[key]
    return next((o for o in options().values() if o.is_mapping and key.startswith(o.key + ".")), None)


def _check_choice(group: str, override: Override, conf_dir: Path) -> None:
    """A group takes the name of one of its files."""
    names, choice = conf_names(conf_dir, group), override.value()
    if override.is_delete() or choice in (*names, None):
        return
    alternative = _closest(str(choice), names)
    hint = f"did you mean {group}={alternative}?" if alternative else f"there are {', '.join(names)}."
    raise ConfigError(f"{group}={choice} names no file of conf/{group}/: {hint}")


def _source(config_name: str, conf_dir: Path) -> str:
    """How messages call the file; a path stays as it is. Raises ConfigError when a name has no file."""
    if config_name.endswith((".yaml", ".yml")):
        return config_name
    names = conf_names(conf_dir)
    if config_name not in names:
        alternative = _closest(config_name, names)
        hint = (
            f"did you mean {alternative}?"
            if alternative
            else f"there are {', '.join(names)}, or a path to a .yaml."
        )
        raise ConfigError(f"--config-name {config_name} is not a file of {conf_dir.name}/: {hint}")
    return f"{conf_dir.name}/{config_name}.yaml"


def _load(path: Path) -> Any:
    try:
        loaded = OmegaConf.load(path)
    except FileNotFoundError:
        raise ConfigError(f"--config-name {path} does not exist: write the path of a YAML file.") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"--config-name {path} is not readable YAML: {_one_line(error)}") from None
    if not OmegaConf.is_dict(loaded):
        raise ConfigError(f"--config-name {path} must hold options as KEY: VALUE.")
    return loaded


def _unknown(key: str, groups: Sequence[str] = ()) -> str:
    """Why this key sets nothing, and what to write instead: what has replaced an option of an earlier version, or the
    option that is closest by spelling, or else the one of the same name in another section."""
    if key in REPLACED:
        return f"{key} is no longer an option: {REPLACED[key]}"
    known = [*options(), *sections(), *groups]
    name = key.rpartition(".")[2]
    alternative = _closest(key, known) or next((k for k in known if k.rpartition(".")[2] == name), None)
    hint = f"did you mean {alternative}?" if alternative else "`train --help` lists what can be set."
    return f"{key} is not an option: {hint}"


def _closest(word: str, words: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(word, words, n=1, cutoff=0.7)), None)


def _first_option(section: str) -> str:
    return next(key for key in options() if key.startswith(section + "."))


def _explain(error: BaseException, source: str, conf_dir: Path) -> str:
    """What Hydra's or OmegaConf's exception is about; Hydra names the file and keeps the reason as its cause."""
    if (named := re.match(r"In '([^']+)':", str(error))) and named[1] != GIVEN:
        source = f"{conf_dir.name}/{named[1]}.yaml"
    while not isinstance(error, OmegaConfBaseException) and (error.__cause__ or error.__context__):
        error = error.__cause__ or error.__context__ or error
    key = str(getattr(error, "full_key", None) or "")
    match error:
        case InterpolationResolutionError():
            return f"{key} refers to something that cannot be resolved: {_one_line(error)}"
        case ConfigKeyError() | ConfigAttributeError():
            return f"in {source}: {_unknown(key)}"
        case ValidationError() if option := _option_of(key):
            return f"in {source}: {_wrong_type(key, getattr(error, 'value', None), option)}"
        case MissingMandatoryValue():
            return f"{key} is not set: write {key}=VALUE."
    if group := re.match(r"Could not override '(\w+)'", str(error)):
        return f"{source} takes no {group[1]}=NAME: add '- {group[1]}: null' to its defaults."
    return f"{source} cannot be composed: {_one_line(error)}"


def _wrong_type(key: str, value: Any, option: Option) -> str:
    given = key if value is None else f"{key}={value_text(value)}"
    message = f"{given} has the wrong type: {option.key} takes {_with_article(type_name(option.type))}"
    if value is False and isinstance(option.type, type) and issubclass(option.type, Enum):
        message += " (YAML reads a bare off as false: write it in quotes)"
    return message + "."


def _with_article(name: str) -> str:
    return name if name.startswith(("one of", "true", "text", "any")) else f"a {name}"


def _one_line(error: BaseException) -> str:
    """A library's words as the end of our sentence, without the technical lines that OmegaConf appends."""
    return " ".join(str(error).partition("\n    full_key:")[0].split()).rstrip(".") + "."


def _check_finite(config: RunConfig) -> None:
    """Infinity and NaN are numbers to YAML, and would pass most range checks."""
    values = to_dict(config)
    for key, option in options().items():
        value: Any = values
        for part in key.split("."):
            value = value[part]
        for number in value.values() if option.is_mapping else [value]:
            if isinstance(number, float) and not math.isfinite(number):
                raise ConfigError(f"{key}={value_text(value)} is out of range: it must be finite.")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.name if isinstance(value, Enum) else value
