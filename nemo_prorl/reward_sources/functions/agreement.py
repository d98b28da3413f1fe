"""Checks that every rank of a run has the same reward functions, and reports a change when a stage is resumed."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from pathlib import Path

from nemo_prorl.config import ConfigError, RewardConfig
from nemo_prorl.distributed import Ranks


def agreed_digests(config: RewardConfig, ranks: Ranks) -> dict[str, str]:
    """Returns the SHA-256 of each function's file, by FILE.py:NAME. Collective. Raises ConfigError on every rank if a
    machine lacks a file, or has another one."""
    mine = ranks.together(lambda: {text: digest(text) for text in config.function})
    (first_host, first), *others = ranks.gather((platform.node(), mine))
    for other_host, other in others:
        for text in config.function:
            if other[text] != first[text]:
                raise ConfigError(
                    f"reward.function={text} is another file on {other_host} than on {first_host}: copy one of them to "
                    "every machine that trains, because one run must have one reward."
                )
    return mine


def digest(text: str) -> str:
    """Returns the SHA-256 of the file of FILE.py:NAME. Raises ConfigError on a machine that does not have it."""
    try:
        return hashlib.sha256(Path(text.rpartition(":")[0]).read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(
            f"reward.function={text} cannot be read on {platform.node()} ({error.strerror}): it has to be on every "
            "machine that trains, under the same path."
        ) from None


def what_changed(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Says in one sentence how two rewards differ, each given as descriptions of its parts by name
    (`MixedGrader.parts`); empty if they are the same, or if the earlier one is unknown."""
    if not before or before == now:
        return ""
    was, is_now = (" + ".join(f"{name} ({how})" for name, how in of.items()) for of in (before, now))
    return f"the reward has changed since the last checkpoint: it was {was}, and is now {is_now}"
