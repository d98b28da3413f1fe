"""Notices imports that fail, because the libraries that graders use do not say so.

sympy and others import some modules only when they need them, and take any exception for "not equal". In a confined
process a failed import would so turn a right answer into a wrong one, with every light green.
"""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder


class Watch:
    """Stands first in `sys.meta_path`, where it is asked only for modules that are not loaded yet, and finds none. It
    must be created before the process is confined."""

    def __init__(self) -> None:
        self._installed = {module.name for module in pkgutil.iter_modules()}
        self._tried: dict[str, Sequence[str] | None] = {}
        self._optional: set[str] = set()
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        """The interface of a finder. `path`: the folders of the parent package."""
        self._tried[name] = path

    def failed(self) -> list[str]:
        """Returns the installed modules that somebody has tried to import in vain since the last call, without the
        accepted ones."""
        tried, self._tried = self._tried, {}
        failed = (name for name in tried if name not in sys.modules and name not in self._optional)
        return [name for name in failed if self._is_installed(name, tried[name])]

    def accept(self) -> None:
        """Takes every import that has failed so far for one that may fail, such as that of an optional dependency."""
        self._optional.update(self.failed())

    def _is_installed(self, name: str, path: Sequence[str] | None) -> bool:
        """Whether a module is there, or was there before the process was confined."""
        if path is None:
            return name in self._installed
        return not all(map(os.path.isdir, path)) or PathFinder.find_spec(name, path) is not None
