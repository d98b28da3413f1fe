"""The text of `train --help`: every option, read from sections/, where each is declared and documented.

Docstrings below fields do not exist at run time, so they are read from the source. Imports only the standard library.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import sys
import typing
from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from nemo_prorl.config import RunConfig

MOST_USED = (
    "model.path", "data.train", "data.validation", "reward.function", "exp_manager.explicit_log_dir",
    "trainer.num_steps", "trainer.prompts_per_step", "trainer.learning_rate", "sampler.num_rollouts",
    "sampler.max_prompt_tokens", "sampler.max_response_tokens", "algorithm.kl_beta", "validation.interval",
)  # fmt: skip
"""Options that most runs set, which `train --help` lists first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option.

    Example: Option(key="algorithm.clip_high", type=float, default=0.4, doc="eps_high of the ratio clip ...")
    """

    key: str
    type: Any
    default: Any
    doc: str

    @property
    def is_list(self) -> bool:
        return typing.get_origin(self.type) is list

    @property
    def is_mapping(self) -> bool:
        return typing.get_origin(self.type) is dict


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionGroup:
    """A dataclass of options. Example: OptionGroup(key="model", doc="The policy and how Megatron-Core builds it.")"""

    key: str
    doc: str


def entries(owner: type = RunConfig, prefix: str = "") -> list[Option | OptionGroup]:
    """Returns the options of a dataclass, then its sections with theirs, so that the options of a section are
    contiguous; in the order of declaration."""
    hints = typing.get_type_hints(owner)
    own, nested = list[Option | OptionGroup](), list[Option | OptionGroup]()
    for declared in dataclasses.fields(owner):
        key, annotation = prefix + declared.name, hints[declared.name]
        if dataclasses.is_dataclass(annotation):
            section = typing.cast(type, annotation)
            first_paragraph = (section.__doc__ or "").partition("\n\n")[0]
            nested.append(OptionGroup(key=key, doc=" ".join(first_paragraph.split())))
            nested += entries(section, key + ".")
            continue
        default = declared.default if declared.default_factory is MISSING else declared.default_factory()
        doc = field_docs(owner.__module__).get((owner.__name__, declared.name), "")
        own.append(Option(key=key, type=annotation, default=default, doc=doc))
    return own + nested


@functools.cache
def options() -> dict[str, Option]:
    """Returns every option by its full key."""
    return {entry.key: entry for entry in entries() if isinstance(entry, Option)}


@functools.cache
def sections() -> dict[str, OptionGroup]:
    """Returns every section by its full key."""
    return {entry.key: entry for entry in entries() if isinstance(entry, OptionGroup)}


def type_name(annotation: Any) -> str:
    """Returns a type in plain words: `whole number`, `one of fp32, bf16`, `list of text`."""
    if typing.get_origin(annotation) is list:
        return "list of " + type_name(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) is dict:
        return "mapping of text to " + type_name(typing.get_args(annotation)[1])
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "one of " + ", ".join(annotation.__members__)
    return {bool: "true or false", int: "whole number", float: "number", str: "text"}.get(
        annotation, "anything"
    )


def value_text(value: Any) -> str:
    """Returns a value as written on the command line."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bool):
        return str(value).lower()
    if value == "":
        return '""'
    return f"{value:g}" if isinstance(value, float) else str(value)


def conf_names(conf_dir: Path, group: str = "") -> list[str]:
    """Returns the names of the YAML files in conf/ or in one of its groups."""
    return sorted(path.stem for path in (conf_dir / group).glob("*.yaml"))


def conf_groups(conf_dir: Path) -> list[str]:
    """Returns the folders of conf/ that contain YAML files."""
    return sorted(
        path.name for path in conf_dir.glob("*") if path.is_dir() and conf_names(conf_dir, path.name)
    )


def options_text(conf_dir: Path) -> str:
    """Returns the part of `train --help` that lists configurations and options."""
    lines = [
        "Overrides:",
        "  KEY=VALUE   sets an option, such as algorithm.clip_high=0.28 or data.train=problems.jsonl; quote "
        "brackets and braces for the shell: 'data.train={a.jsonl: 3, b.parquet: 1}' 'reward.urls=[http://127.0.0.1:8000]'",
        "  GROUP=NAME  adds a file of conf/GROUP/ on top of the configuration",
        "",
        "Several ranks: torchrun --nproc-per-node 4 -m nemo_prorl train ...",
        "",
        f"Configurations (--config-name): {', '.join(conf_names(conf_dir))}, or the path of a YAML file, such as the "
        "resolved.yaml of a run",
    ]
    for group in conf_groups(conf_dir):
        lines.append(f"{group.capitalize()}s ({group}=NAME): {', '.join(conf_names(conf_dir, group))}")
    lines += ["", "Most used, of the options below:"]
    for key in MOST_USED:
        option = options()[key]
        meaning = re.split(r"[.;:,]? [(]|[.;:,] |[.]$", option.doc)[0]
        lines.append(f"  {f'{key}={value_text(option.default)}':<39}  {meaning}")
    return "\n".join([*lines, "", *entries_text(entries())])


def entries_text(listed: Sequence[Option | OptionGroup]) -> list[str]:
    """Returns options with type, default and meaning, as lines."""
    lines = ["Options, with type and default:"]
    for entry in listed:
        if isinstance(entry, OptionGroup):
            lines += ["", f"{entry.key}: {entry.doc}"]
        else:
            lines.append(f"  {entry.key}  ({type_name(entry.type)}; {value_text(entry.default)})")
            lines.append(f"      {entry.doc}")
    return lines


@functools.cache
def field_docs(module: str) -> dict[tuple[str, str], str]:
    """Returns (class, field) -> the string below the field's declaration in the module, on one line."""
    docs = {}
    for owner in ast.parse(inspect.getsource(sys.modules[module])).body:
        if not isinstance(owner, ast.ClassDef):
            continue
        for declared, below in zip(owner.body, owner.body[1:], strict=False):
            if isinstance(declared, ast.AnnAssign) and isinstance(declared.target, ast.Name):
                match below:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        docs[owner.name, declared.target.id] = " ".join(text.split())
    return docs
