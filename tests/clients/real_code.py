"""Imports single modules of other trainers from their packages."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from types import ModuleType
from unittest.mock import MagicMock


def import_alone(name: str, *, unused: tuple[str, ...] = ()) -> ModuleType:
    """Returns the module `name` without running the __init__ of the packages above it, which would import the whole
    trainer with Ray and engines. `unused`: packages that neighbouring modules import and the client code does not use;
    a stand-in replaces a missing one."""
    above = name.split(".")[:-1]
    for depth in range(1, len(above) + 1):
        package = ".".join(above[:depth])
        if package not in sys.modules:
            spec = importlib.util.find_spec(package)
            assert spec is not None, f"{package} is not installed"
            module = types.ModuleType(package)
            module.__path__ = list(spec.submodule_search_locations or [])
            sys.modules[package] = module
    for missing in unused:
        if missing not in sys.modules and importlib.util.find_spec(missing) is None:
            sys.modules[missing] = MagicMock()
    return importlib.import_module(name)
