"""Composes a RunConfig from conf/ and the user's overrides. The only module that uses Hydra and OmegaConf; no torch.

Every mistake is a ConfigError of one sentence: what, where, and what to write instead. Hydra parses the overrides and
composes the files. The options are set here one by one, so that an error can name the override that caused it, and
because Hydra would merge a mapping that the user wants to replace.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, Node, OmegaConf, errors, open_dict

from nemo_prorl.config import ConfigError, RunConfig, did_you_mean
from nemo_prorl.config.help import (
    Option,
    conf_groups,
    conf_names,
    entries,
    options,
    sections,
    type_name,
    value_text,
)
from nemo_prorl.config.sections.checks import one_line, require

T = TypeVar("T")

SCHEMA = "run_config"
"""Name of RunConfig in the defaults of YAML files, where it comes first."""
ConfigStore.instance().store(name=SCHEMA, node=RunConfig)
GIVEN = "given"
"""Hydra's name for a file outside conf/, which can use the groups of conf/ too."""
OTHERS: Mapping[str, str] = yaml.safe_load(Path(__file__).with_name("other_trainers.yaml").read_text("utf-8"))
"""Names of options in TRL and verl -> ours, for the error message that refuses them."""


def compose(config_name: str, overrides: Sequence[str], *, conf_dir: Path) -> RunConfig:
    """Returns the RunConfig of a YAML file, with the overrides on top.

    config_name: the name of a file in `conf_dir`, or a path. Raises ConfigError for anything that is misspelt, of the
    wrong type or out of range. Reads only YAML files; commands/starting.py checks the other files and the machine.
    """
    choices, settings = _read_overrides(overrides, conf_dir)
    if config_name.endswith((".yaml", ".yml")):
        ConfigStore.instance().store(name=GIVEN, node=_load(Path(config_name)))
        source, config_name = config_name, GIVEN
    else:
        names, source = conf_names(conf_dir), f"{conf_dir.name}/{config_name}.yaml"
        if config_name not in names:
            hint = did_you_mean(config_name, names, f"there are {', '.join(names)}, or a path to a .yaml.")
            raise ConfigError(f"--config-name {config_name} is not a file of {conf_dir.name}/: {hint}")
    try:
        composed = _of_files(config_name, choices, conf_dir)
        if OmegaConf.get_type(composed) is not RunConfig:
            raise ConfigError(
                f"{source} does not list {SCHEMA} first: begin it with 'defaults: [{SCHEMA}, _self_]'."
            )
        for option, entry, value in settings:
            _set(composed, option, entry, value)
        whole = {option.key for option, entry, _ in settings if not entry}
        has_stage = any(choice.startswith("stage=") for choice in choices)
        if "data.train" in whole and "data.validation" not in whole and not has_stage:
            # The configuration's held-out files belong to other problems, and may not exist. With a stage they stay.
            OmegaConf.update(composed, "data.validation", [], merge=False)
        config = OmegaConf.to_object(composed)
    except ConfigError:
        raise
    except (HydraException, errors.OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
        raise ConfigError(_explain(error, source, conf_dir)) from None
    assert isinstance(config, RunConfig)
    # Infinity and NaN are numbers in YAML and would pass most range checks.
    for key, option in options().items():
        value = attrgetter(key)(config)
        for number in value.values() if option.is_mapping else [value]:
            is_finite = not isinstance(number, float) or math.isfinite(number)
            require(is_finite, key, value_text(value), "finite")
    return config


def data_build_options(overrides: Sequence[str], schema: type[T]) -> T:
    """Returns the options of `data build`, a dataclass without YAML files: the defaults with the overrides on top.
    Raises ConfigError."""
    known = {entry.key: entry for entry in entries(schema) if isinstance(entry, Option)}
    node = OmegaConf.structured(schema)
    seen: set[str] = set()
    for text in overrides:
        override = _parse(text)
        key = override.key_or_group
        if key not in known:
            hint = did_you_mean(key, known, "`data build --help` lists what can be set.")
            raise ConfigError(f"{key} is not an option: {hint}")
        if key in seen:
            raise ConfigError(f"{key} is given twice: leave one out, or write {key}=[A,B] for a list.")
        seen.add(key)
        _set(node, known[key], "", override.value())
    config = OmegaConf.to_object(node)
    assert isinstance(config, schema)
    return config


def quoted(value: str) -> str:
    """Returns any text as Hydra's grammar of overrides reads it: a plain path as it is, others in quotes."""
    if re.fullmatch(r"[\w.-]*/[\w./-]*", value, re.ASCII):
        return value
    # Before a quote, backslashes are escaped; elsewhere they stand for themselves.
    return "'" + re.sub(r"(\\*)('|$)", lambda end: 2 * end[1] + ("\\'" if end[2] else ""), value) + "'"


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Returns nested dicts of plain types for YAML, JSON and loggers; enums become their names."""

    def plain(fields: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name: value.name if isinstance(value, Enum) else value for name, value in fields}

    return dataclasses.asdict(config, dict_factory=plain)


def _of_files(config_name: str, choices: Sequence[str], conf_dir: Path) -> DictConfig:
    """Returns what Hydra makes of the files alone."""
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(config_dir=str(conf_dir.resolve()), version_base="1.3"):
        return hydra.compose(config_name, overrides=list(choices))


def _read_overrides(texts: Sequence[str], conf_dir: Path) -> tuple[list[str], list[tuple[Option, str, Any]]]:
    """Returns (GROUP=NAME choices for Hydra, one (option, entry, value) per option to set). The entry is the key in a
    mapping, or "" to set the whole option. Raises ConfigError."""
    choices, settings = [], []
    groups = conf_groups(conf_dir)
    for text in texts:
        override = _parse(text)
        key = override.key_or_group
        if key in groups:
            names, choice = conf_names(conf_dir, key), override.value()
            if not override.is_delete() and choice not in (*names, None):
                hint = did_you_mean(str(choice), names, f"there are {', '.join(names)}.")
                raise ConfigError(f"{key}={choice} names no file of conf/{key}/: {hint}")
            choices.append(text)
            continue
        if override.is_delete():
            raise ConfigError(
                f"override {text!r} deletes an option, which none can do without: write {key}=VALUE."
            )
        if key in sections():
            first = next(name for name in options() if name.startswith(key + "."))
            raise ConfigError(f"{key} is a section of options: set one of them, such as {first}=VALUE.")
        option = _option_of(key)
        if option is None:
            raise ConfigError(_unknown(key, groups))
        settings.append((option, key[len(option.key) + 1 :], override.value()))
    return choices, settings


def _parse(text: str) -> Override:
    if "=" not in text and not text.startswith("~"):
        raise ConfigError(f"override {text!r} sets nothing: write KEY=VALUE, without spaces around =.")
    if "=~" in text:
        raise ConfigError(
            f"override {text!r} begins a path with ~, which shells do not expand here: write $HOME."
        )
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
    """Replaces an option's value, or one entry of a mapping, whose key may be a path with dots. A single text becomes a
    list of one; for data.train, a file or a list of files becomes a mix with weight 1 each."""
    if option.is_list and isinstance(value, str):
        value = [value]
    if option.type is int and isinstance(value, float) and value.is_integer():  # 1e3
        value = int(value)
    if option.key == "data.train" and not entry and value and isinstance(value, str | list):
        value = dict.fromkeys([value] if isinstance(value, str) else map(str, value), 1.0)
    try:
        with open_dict(composed):
            if entry:
                OmegaConf.select(composed, option.key)[entry] = value
            else:
                OmegaConf.update(composed, option.key, value, merge=False)
    except (errors.OmegaConfBaseException, ValueError):
        raise ConfigError(_wrong_type(option.key + (entry and "." + entry), value, option)) from None


def _option_of(key: str) -> Option | None:
    """Returns the option that this key sets: the whole of it, or an entry if it is a mapping."""
    if key in options():
        return options()[key]
    return next((o for o in options().values() if o.is_mapping and key.startswith(o.key + ".")), None)


def _load(path: Path) -> Any:
    try:
        loaded = OmegaConf.load(path)
    except FileNotFoundError:
        raise ConfigError(f"--config-name {path} does not exist: write the path of a YAML file.") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"--config-name {path} is not readable YAML: {_sentence(error)}") from None
    if not OmegaConf.is_dict(loaded):
        raise ConfigError(f"--config-name {path} must hold options as KEY: VALUE.")
    return loaded


def _unknown(key: str, groups: Sequence[str] = ()) -> str:
    """Returns a sentence that says what to write instead of an unknown key: our name of another trainer's option, or
    the option, in whichever section, whose name is spelt most alike."""
    section, _, name = key.rpartition(".")
    alternative = OTHERS.get(name)
    if alternative is None:
        known = [*options(), *sections(), *groups]
        names = {other.rpartition(".")[2] for other in known}
        namesakes = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
        alternative = max(  # ties go to the most similar section
            (other for other in known if other.rpartition(".")[2] in namesakes),
            key=lambda other: difflib.SequenceMatcher(None, section, other.rpartition(".")[0]).ratio(),
            default=None,
        )
    hint = f"did you mean {alternative}?" if alternative else "`train --help` lists what can be set."
    return f"{key} is not an option: {hint}"


def _explain(error: BaseException, source: str, conf_dir: Path) -> str:
    """Returns one sentence for an exception of Hydra or OmegaConf. An exception of Hydra names the file; the one that
    caused it has the reason."""
    if (named := re.match(r"In '([^']+)':", str(error))) and named[1] != GIVEN:
        source = f"{conf_dir.name}/{named[1]}.yaml"
    while not isinstance(error, errors.OmegaConfBaseException) and (error.__cause__ or error.__context__):
        error = error.__cause__ or error.__context__ or error
    key = str(getattr(error, "full_key", None) or "")
    match error:
        case errors.InterpolationResolutionError():
            return f"{key} refers to something that cannot be resolved: {_sentence(error)}"
        case errors.ConfigKeyError() | errors.ConfigAttributeError():
            return f"in {source}: {_unknown(key)}"
        case errors.ValidationError() if option := _option_of(key):
            value = getattr(error, "value", None)
            value = value._value() if isinstance(value, Node) else value
            return f"in {source}: {_wrong_type(key, value, option)}"
        case errors.MissingMandatoryValue():
            return f"{key} is not set: write {key}=VALUE."
    if group := re.match(r"Could not override '(\w+)'", str(error)):
        return f"{source} takes no {group[1]}=NAME: add '- {group[1]}: null' to its defaults."
    return f"{source} cannot be composed: {_sentence(error)}"


def _wrong_type(key: str, value: Any, option: Option) -> str:
    given = key if value is None else f"{key}={value_text(value)}"
    wanted = type_name(option.type)
    article = "" if wanted.startswith(("one of", "true", "text", "any")) else "a "
    message = f"{given} has the wrong type: {option.key} takes {article}{wanted}"
    if value is False and isinstance(option.type, type) and issubclass(option.type, Enum):
        message += " (YAML reads a bare off as false: write it in quotes)"
    if isinstance(value, str) and option.is_list:
        message += f", such as [{value}]"
    if isinstance(value, str) and option.key == "data.train":
        message += f", such as {{{value}: 1}}"
    return message + "."


def _sentence(error: BaseException) -> str:
    """Returns a library's message as the end of our sentence, without the technical lines that OmegaConf appends."""
    return one_line(str(error).partition("\n    full_key:")[0]).rstrip(".") + "."
