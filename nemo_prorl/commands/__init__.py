"""The commands. Each is a module with a docstring for its help and a function `main(arguments) -> exit code`."""

from __future__ import annotations

import importlib
from types import ModuleType

COMMANDS = {
    "doctor": "doctor",
    "plan": "plan",
    "train": "train",
    "submit": "submit",
    "status": "status",
    "request-reset": "request_reset",
    "rewind": "rewind",
    "replay": "replay",
    "demo": "demo",
    "to-megatron": "to_megatron",
    "export": "export",
    "evaluate": "evaluate",
    "compare": "compare",
    "data": "data",
    "report": "report",
}
"""Name on the command line -> module in this package, in the order of the usage text."""


def load(name: str) -> ModuleType:
    """Returns the module of a command. Commands import heavy packages only after they have checked their arguments."""
    return importlib.import_module(f"{__name__}.{COMMANDS[name]}")


def summary(name: str) -> str:
    """Returns one sentence about a command for the usage text."""
    return (load(name).__doc__ or "").split("\n\n")[0].strip()
