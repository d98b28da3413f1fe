"""Functions of all sections: the error for a user's mistake, and checks of ranges."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class ConfigError(ValueError):
    """A user's mistake, in one sentence: what, where, and what to write instead."""


def one_line(error: object) -> str:
    """Returns the message of another library's error, as a part of a sentence of ours."""
    return " ".join(str(error).split()) or type(error).__name__


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """Returns the end of a message about an unknown name: the known one that is spelt most alike, or `otherwise` if
    none is like it."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else otherwise


def require(condition: bool, key: str, value: Any, allowed: str) -> None:
    """Raises ConfigError unless the condition holds; the message says that `key` must be what `allowed` says."""
    if not condition:
        raise ConfigError(f"{key}={value} is out of range: it must be {allowed}.")


def at_least(prefix: str, config: object, minimum: float, names: Iterable[str]) -> None:
    """Raises ConfigError for the first of the named options of `config` that is below the minimum. prefix: the
    section; empty for the options of a command."""
    for name in names:
        value = getattr(config, name)
        require(value >= minimum, f"{prefix}.{name}".lstrip("."), value, f"at least {minimum:g}")


def positive(prefix: str, config: object, names: Iterable[str]) -> None:
    """Raises ConfigError for the first of the named options of `config` that is not greater than 0."""
    for name in names:
        value = getattr(config, name)
        require(value > 0, f"{prefix}.{name}".lstrip("."), value, "greater than 0")
