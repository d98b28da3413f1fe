"""The version of everything that decides scores: equal versions give equal scores."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from importlib import metadata
from pathlib import Path

from reward.graders import plugins

RELEASE = "0.1.0"
"""The release of the distribution nemo-prorl-reward; reward/pyproject.toml reads it here."""
_VERDICT_PACKAGES = ("sympy", "reasoning-gym", "langdetect")
_PAPERS = ("math-verify", "latex2sympy2_extended", "antlr4-python3-runtime")
"""Packages of the extra `papers`. Others may have brought some of them, which decides nothing without math-verify."""


def version() -> str:
    """Returns `release+hash` over this package's sources, the versions of libraries that decide scores, plug-ins, and
    Python's minor version: `sum([0.1] * 10)` is 1.0 in 3.12 only, and only 3.11 has `distutils`."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")) + sorted(root.rglob("data/*")):
        name = path.relative_to(root).as_posix()
        # pip leaves copies of the sources in build/ when it installs a checkout
        if not name.startswith("build/"):
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    has_papers = importlib.util.find_spec("math_verify") is not None
    for name in (*_VERDICT_PACKAGES, *(_PAPERS if has_papers else ())):
        try:
            digest.update(f"{name}=={metadata.version(name)}\0".encode())
        except metadata.PackageNotFoundError:
            digest.update(f"{name} is missing\0".encode())
    digest.update("python=={}.{}\0".format(*sys.version_info).encode())
    for part in plugins.fingerprint():
        digest.update(part)
    return f"{RELEASE}+{digest.hexdigest()[:12]}"
