"""Opens the safetensors files of a Hugging Face folder without torch, so that the command line can refuse damaged ones
before torch is imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nemo_prorl.config import ConfigError

INDEX = "model.safetensors.index.json"
_POINTER = b"version https://git-lfs"
"""First bytes of the file that Git checks out if Git LFS has not fetched the content."""


def open_weights(folder: Path, framework: str) -> list[Any]:
    """Returns safetensors' handles of all weight files, for tensors of `framework` ("pt" or "np"). Reads only the
    headers, which reveal truncated files. Raises ConfigError for files that are missing or damaged."""
    return [_opened(folder / name, framework) for name in _names(folder)]


def _names(folder: Path) -> list[str]:
    """Returns the names of the weight files: one, or those that the index of a sharded model lists."""
    index = folder / INDEX
    if not index.exists():
        return ["model.safetensors"]
    try:
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{index} is damaged ({error}): fetch it again.") from None


def _opened(path: Path, framework: str) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework)
    except FileNotFoundError:
        raise ConfigError(f"{path.parent} lacks {path.name}: fetch it again.") from None
    except (SafetensorError, OSError) as error:
        if _is_pointer(path):
            raise ConfigError(
                f"{path} is a pointer of Git LFS instead of the weights: run `git lfs pull` in {path.parent}."
            ) from None
        raise ConfigError(f"{path} is damaged ({error}): fetch it again.") from None


def _is_pointer(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_POINTER)) == _POINTER
    except OSError:
        return False
