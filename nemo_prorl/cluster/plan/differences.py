"""Differences between two resolved configurations, option by option, with values as a user writes them."""

from __future__ import annotations

from operator import attrgetter

from nemo_prorl.config import RunConfig
from nemo_prorl.config.help import options, value_text

ABSENT = "-"
"""Shown for an entry that a mapping does not have."""


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
