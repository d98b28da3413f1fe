"""Loads a chain from conf/stage/: stages in the order in which they run, each the parent of the next."""

from __future__ import annotations

import re
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from nemo_prorl.config import ConfigError, RunConfig, did_you_mean
from nemo_prorl.config.compose import compose
from nemo_prorl.config.help import conf_names

GROUP = "stage"
PAPER_STAGE = re.compile(r"run\d+")
"""Names of the stages that are the papers' runs; a new run9.yaml is one of them by its name."""
OF_LAST_STAGE = (f"{GROUP}.name=", f"{GROUP}.parent=")
"""Beginnings of the overrides that apply to the last stage of a chain alone."""

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
    """Returns the chain of these stages and all their ancestors. The overrides apply to every stage of it.

    Overrides in OF_LAST_STAGE need a single name. Raises ConfigError if
    the stages are not one chain.
    """
    own = [text for text in overrides if text.startswith(OF_LAST_STAGE)]
    if own and len(names) != 1:
        raise ConfigError(f"{own[0]} can change one stage only: write stage=NAME beside it.")
    common = [text for text in overrides if text not in own]
    loaded: dict[str, RunConfig] = {}
    for name in names:
        extra: Sequence[str] = own
        child = ""
        while name and name not in loaded:
            _check_file(name, child, conf_dir)
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


def _check_file(name: str, child: str, conf_dir: Path) -> None:
    """Raises ConfigError unless conf/stage/ has a stage `name`. `child` is the stage that continues it; empty: the user
    named it."""
    names = conf_names(conf_dir, GROUP)
    if name in names:
        return
    hint = did_you_mean(name, names, f"there are {', '.join(names)}.")
    what = f"stage {child} continues stage {name}, for which there" if child else f"stage={name}: there"
    raise ConfigError(f"{what} is no conf/{GROUP}/{name}.yaml: {hint}")
