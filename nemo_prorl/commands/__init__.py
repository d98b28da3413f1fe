"""The commands: one module each, whose first line says what it does and whose `main` takes the arguments."""

from __future__ import annotations

import importlib
from types import ModuleType

COMMANDS = {
    "doctor": "doctor",
    "plan": "plan",
    "train": "train",
    "submit": "submit",
    "status": "status",
    "reset": "reset",
    "replay": "replay",
    "demo": "demo",
    "import": "import_",
    "export": "export",
    "evaluate": "evaluate",
    "compare": "compare",
    "data": "data",
    "report": "report",
}
"""Name on the command line -> module here, in the order in which the usage lists them."""


def load(name: str) -> ModuleType:
    """The module of a command. None of them imports anything heavy before it has checked what the user wrote."""
    return importlib.import_module(f"{__name__}.{COMMANDS[name]}")


def summary(name: str) -> str:
    """One sentence for the usage."""
    return (load(name).__doc__ or "").split("\n\n")[0].strip()
