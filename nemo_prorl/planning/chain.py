"""The files of conf/stage/ -> a chain: stages in the order in which they run, each the parent of the next."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path

from nemo_prorl.compose import compose
from nemo_prorl.config import ConfigError, RunConfig
from nemo_prorl.help import conf_names

GROUP = "stage"
PAPER_STAGE = re.compile(r"run\d+")
"""Names of the stages that are the papers' runs; a run9.yaml joins them by its name."""

Chain = tuple[RunConfig, ...]
"""Resolved configurations, oldest first: stage.parent of each is stage.name of the one before."""


def paper_stages(conf_dir: Path) -> list[str]:
    """run1 ... run8."""
    return [name for name in conf_names(conf_dir, GROUP) if PAPER_STAGE.fullmatch(name)]


def load_chain(names: Sequence[str], overrides: Sequence[str], *, config_name: str, conf_dir: Path) -> Chain:
    """The chain of these stages and all that they continue. The overrides hold for every stage of it.

    stage.name and stage.parent make another stage of the one that they are given with, so they need a single name.
    Raises ConfigError, one sentence, for stages that are no chain.
    """
    own = [text for text in overrides if text.startswith((f"{GROUP}.name=", f"{GROUP}.parent="))]
    if own and len(names) != 1:
        raise ConfigError(f"{own[0]} says which stage a single one is: write stage=NAME beside it.")
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
    """Raises ConfigError unless the stages are one chain: one beginning, one child each, none left over.

    A run's folder goes from one stage to the next (see training.stages), so two children of a stage are no chain.
    """
    children: dict[str, list[RunConfig]] = {}
    for config in stages:
        children.setdefault(config.stage.parent, []).append(config)
    names = {config.stage.name for config in stages}
    for parent, continuing in children.items():
        if parent and parent not in names:
            raise ConfigError(
                f"stage {continuing[0].stage.name} continues stage {parent}, which is not there."
            )
        if len(continuing) > 1:
            both = _joined([config.stage.name for config in continuing])
            raise ConfigError(
                f"stages {both} all continue stage {parent}: a chain has one after the other, so write stage.parent "
                "of all but one anew."
                if parent
                else f"stages {both} have no parent: write stage.parent for all but the first of the chain."
            )
    ordered: list[RunConfig] = []
    name = ""
    while next_ones := children.pop(name, None):
        ordered += next_ones
        name = next_ones[0].stage.name
    if children:
        circle = _circle({c.stage.name: c.stage.parent for cs in children.values() for c in cs})
        raise ConfigError(
            f"the stages go round in a circle, {' -> '.join(circle)}: one of them must have no parent."
        )
    return tuple(ordered)


def _check_file(name: str, child: str, conf_dir: Path) -> None:
    """`child` continues the stage of this name, or nobody does: the user named it."""
    names = conf_names(conf_dir, GROUP)
    if name in names:
        return
    close = next(iter(difflib.get_close_matches(name, names, n=1, cutoff=0.7)), None)
    hint = f"did you mean {close}?" if close else f"there are {', '.join(names)}."
    what = f"stage {child} continues stage {name}, for which there" if child else f"stage={name}: there"
    raise ConfigError(f"{what} is no conf/{GROUP}/{name}.yaml: {hint}")


def _circle(parents: dict[str, str]) -> list[str]:
    """Of stages that all have a parent among themselves: the names once round, oldest first, the first one twice."""
    seen: list[str] = []
    name = min(parents)
    while name not in seen:
        seen.append(name)
        name = parents[name]
    return [name, *reversed(seen[seen.index(name) :])]


def _joined(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]])
