"""Chains of stages in the order in which they run, each the parent of the next: loads one from conf/stage/, compares
its configurations option by option, and finds the files that are still missing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from operator import attrgetter
from pathlib import Path

from nemo_prorl.config import ConfigError, RunConfig, did_you_mean, is_hub_name
from nemo_prorl.config.compose import compose
from nemo_prorl.config.help import conf_names, options, value_text
from nemo_prorl.config.makers import command_for

GROUP = "stage"
PAPER_STAGE = re.compile(r"run\d+")
"""Names of the stages that are the papers' runs; a new run9.yaml is one of them by its name."""
OF_LAST_STAGE = (f"{GROUP}.name=", f"{GROUP}.parent=")
"""Beginnings of the overrides that apply to the last stage of a chain alone."""
ABSENT = "-"
"""Shown for an entry that a mapping does not have."""

Chain = tuple[RunConfig, ...]
"""Resolved configurations, oldest first: each one's stage.parent is the stage.name of the one before."""


def paper_stages(conf_dir: Path) -> list[str]:
    """Returns run1 ... run8."""
    return [name for name in conf_names(conf_dir, GROUP) if PAPER_STAGE.fullmatch(name)]


def asked_chain(config_name: str, overrides: Sequence[str], conf_dir: Path) -> tuple[Chain, bool]:
    """Returns the chain that a user asks for, and whether it leads to a single stage: to the last stage=NAME among the
    overrides; without one, the papers' eight runs, or another named configuration alone, as it stands.

    Raises ConfigError."""
    stages = [text.partition("=")[2] for text in overrides if text.startswith(f"{GROUP}=")]
    others = [text for text in overrides if not text.startswith(f"{GROUP}=")]
    if not stages and config_name != "train":
        return (compose(config_name, others, conf_dir=conf_dir),), True
    names = stages[-1:] or paper_stages(conf_dir)
    return load_chain(names, others, config_name=config_name, conf_dir=conf_dir), bool(stages)


def load_chain(names: Sequence[str], overrides: Sequence[str], *, config_name: str, conf_dir: Path) -> Chain:
    """Returns the chain of these stages and all their ancestors. The overrides apply to every stage, except that those
    in OF_LAST_STAGE need a single name and apply to that one.

    Raises ConfigError if the stages are not one chain.
    """
    own = [text for text in overrides if text.startswith(OF_LAST_STAGE)]
    if own and len(names) != 1:
        raise ConfigError(f"{own[0]} can change one stage only: write stage=NAME beside it.")
    common = [text for text in overrides if text not in own]
    known = conf_names(conf_dir, GROUP)
    loaded: dict[str, RunConfig] = {}
    for name in names:
        extra: Sequence[str] = own
        child = ""  # the stage that continues `name`, unless the user named that one
        while name and name not in loaded:
            if name not in known:
                what = (
                    f"stage {child} continues stage {name}, for which there"
                    if child
                    else f"stage={name}: there"
                )
                hint = did_you_mean(name, known, f"there are {', '.join(known)}.")
                raise ConfigError(f"{what} is no conf/{GROUP}/{name}.yaml: {hint}")
            config = compose(config_name, [f"{GROUP}={name}", *common, *extra], conf_dir=conf_dir)
            if not extra and config.stage.name != name:
                raise ConfigError(
                    f"conf/{GROUP}/{name}.yaml calls its stage {config.stage.name}, by which no child would find it: "
                    f"write stage.name: {name}."
                )
            loaded[config.stage.name] = config
            child, name, extra = config.stage.name, config.stage.parent, ()
    return in_order(list(loaded.values()))


def in_order(stages: Sequence[RunConfig]) -> Chain:
    """Returns the stages from the first to the last, of stages with all their ancestors. Raises ConfigError unless they
    are one chain: one first stage, at most one child each.

    Two children of a stage are refused because they would continue in the same run folder (see training.stages).
    """
    children: dict[str, list[RunConfig]] = {}
    for config in stages:
        children.setdefault(config.stage.parent, []).append(config)
    by_name = {config.stage.name: config for config in stages}
    for parent, continuing in children.items():
        if len(continuing) > 1:
            *others, last = (config.stage.name for config in continuing)
            both = f"stages {', '.join(others)} and {last}"
            raise ConfigError(
                f"{both} all continue stage {parent}, but a stage of a chain has one child: change stage.parent of all "
                "but one of them."
                if parent
                else f"{both} have no parent: write stage.parent for all but the first of the chain."
            )
    parents = {name: {config.stage.parent} - {""} for name, config in by_name.items()}
    try:
        return tuple(by_name[name] for name in TopologicalSorter(parents).static_order())
    except CycleError as error:
        raise ConfigError(
            f"the stages form a circle, {' -> '.join(error.args[1])}: one of them must have no parent."
        ) from None


def differences(old: RunConfig, new: RunConfig) -> dict[str, tuple[str, str]]:
    """Returns option -> (old value, new value) in the order of the configuration, mappings entry by entry. The stage
    section is left out, because it says which stage follows which and not how they train.

    Example: {"sampler.num_rollouts": ("16", "32")}
    """
    before, after = flattened(old), flattened(new)
    return {
        key: (before.get(key, ABSENT), after.get(key, ABSENT))
        for key in [*after, *(key for key in before if key not in after)]
        if before.get(key) != after.get(key) and not key.startswith("stage.")
    }


def flattened(config: RunConfig) -> dict[str, str]:
    """Returns every option, and every entry of a mapping, by its full key."""
    flat: dict[str, str] = {}
    for key, option in options().items():
        value = attrgetter(key)(config)
        if option.is_mapping:
            flat |= {f"{key}.{entry}": value_text(item) for entry, item in value.items()}
        elif option.is_list:
            flat[key] = ", ".join(map(value_text, value)) or ABSENT
        else:
            flat[key] = value_text(value)
    return flat


def missing_files(chain: Chain) -> dict[str, str]:
    """Returns path -> what makes it, for each missing file, in the order in which the stages need them.

    Example: {"data/eurus/train.parquet": "python -m nemo_prorl data build eurus"}
    """
    wanted: dict[str, bool] = {}
    for config in chain:
        model = config.model.path
        wanted[model or "model.path"] = bool(model) and (Path(model) / "config.json").is_file()
        if not config.data.train:
            wanted["data.train"] = False
        for path in (*config.data.train, *config.data.validation):
            wanted[path] = Path(path).exists() or is_hub_name(path)
    advice = {"model.path": "write model.path=FOLDER", "data.train": "write 'data.train={FILE: 1}'"}
    other = "write another path, or the file (docs/data.md has the format)"
    missing = (path for path, is_there in wanted.items() if not is_there)
    return {path: command_for(path) or advice.get(path, other) for path in missing}
