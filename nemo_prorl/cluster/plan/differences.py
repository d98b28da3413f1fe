"""Differences between two resolved configurations, option by option."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nemo_prorl.config import RunConfig
from nemo_prorl.config.compose import to_dict
from nemo_prorl.config.help import options, value_text

ABSENT = "-"
"""Shown for an entry that a mapping does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Values as a user writes them. Example: Difference(key="sampler.num_rollouts", old="16", new="32")"""

    key: str
    old: str
    new: str


def differences(old: RunConfig, new: RunConfig) -> list[Difference]:
    """Returns the differences in the order of the configuration, mappings entry by entry. The stage section is left
    out, because it says which stage follows which and not how they train."""
    before, after = flattened(old), flattened(new)
    return [
        Difference(key=key, old=before.get(key, ABSENT), new=after.get(key, ABSENT))
        for key in [*after, *(key for key in before if key not in after)]
        if before.get(key) != after.get(key) and not key.startswith("stage.")
    ]


def flattened(config: RunConfig) -> dict[str, str]:
    """Returns every option, and every entry of a mapping, by its full key."""
    values = to_dict(config)
    flat: dict[str, str] = {}
    for key, option in options().items():
        value: Any = values
        for part in key.split("."):
            value = value[part]
        if option.is_mapping:
            flat |= {f"{key}.{entry}": value_text(item) for entry, item in value.items()}
        elif isinstance(value, list):
            flat[key] = ", ".join(value_text(item) for item in value) or ABSENT
        else:
            flat[key] = value_text(value)
    return flat
