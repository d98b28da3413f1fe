"""Converts a run's checkpoint into a Hugging Face one, with configuration, tokenizer and model card."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nemo_prorl.commands.ending import show
from nemo_prorl.commands.parsing import Parser, check_vacant
from nemo_prorl.config import ConfigError, Precision
from nemo_prorl.engines import environment
from nemo_prorl.run_folder.checkpoints import locate_checkpoint

SIZE_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def main(arguments: Sequence[str]) -> int:
    """Writes the checkpoint as a Hugging Face folder and returns exit code 0."""
    parser = Parser("export", __doc__)
    parser.path("checkpoint", "CHECKPOINT", "folder of a checkpoint, or of a run for its newest checkpoint")
    parser.path("out", "OUT", "folder to write; must be empty or not exist yet")
    parser.add_argument(
        "--dtype",
        choices=list(Precision.__members__),
        help="precision of the weights (default: the policy's; fp32: the optimizer's main weights)",
    )
    parser.add_argument(
        "--max-shard-size",
        default="5GB",
        metavar="SIZE",
        help="size of the largest file, such as 500MB (default: 5GB); one file is held in memory",
    )
    parser.add_argument(
        "--evaluation",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="folder that `evaluate` has filled, for the model card; may be given several times",
    )
    parser.add_argument(
        "--push",
        metavar="OWNER/NAME",
        help="also uploads the folder to a private repository of the Hugging Face hub, which is made if need be",
    )
    options = parser.parse_args(arguments)
    if not options.checkpoint.is_dir():
        raise ConfigError(f"CHECKPOINT={options.checkpoint} is not a folder: write that of a checkpoint.")
    shard_bytes = parse_size(options.max_shard_size)
    check_vacant(options.out)
    hub = _hub(options.push) if options.push else None
    environment.prepare()
    checkpoint = locate_checkpoint(options.checkpoint)
    from nemo_prorl.commands.model_card import model_card
    from nemo_prorl.engines.megatron import conversion

    if checkpoint != options.checkpoint:
        show([f"exporting {checkpoint}"])
    card = model_card(checkpoint, options.evaluation)
    weights, side_files = conversion.open_checkpoint(checkpoint, dtype=options.dtype)
    if hub is not None:  # the checkpoint can be exported: a mistake must not leave a repository behind
        _make_repository(hub, options.push)
    conversion.save_hf(
        weights, side_files, options.out, dtype=options.dtype, shard_bytes=shard_bytes, card=card
    )
    size = sum(file.stat().st_size for file in options.out.glob("*.safetensors"))
    show([f"wrote {options.out} ({size / 1e6:,.1f} MB of weights)"])
    if hub is not None:
        _push(hub, options.push, options.out)
    return 0


def _hub(repository: str) -> Any:
    """Returns a client of the hub. Raises ConfigError if it could not upload to the repository; asks nobody."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise ConfigError(f"--push {repository} is no repository: write OWNER/NAME.")
    # A run has to work offline (engines/environment.py), and the library reads this variable when it is imported.
    if os.environ.setdefault("HF_HUB_OFFLINE", "0") not in ("0", ""):
        raise ConfigError("--push needs the network, but HF_HUB_OFFLINE is set: unset it.")
    from huggingface_hub import HfApi, get_token

    if get_token() is None:
        raise ConfigError("--push needs a token of the Hugging Face hub: `hf auth login`, or set HF_TOKEN.")
    return HfApi()


def _make_repository(hub: Any, repository: str) -> None:
    """Makes the repository, if it is not there yet. Raises ConfigError if that fails."""
    try:
        hub.create_repo(repository, private=True, exist_ok=True)
    except Exception as error:  # httpx's and the library's own
        raise ConfigError(f"--push {repository} is not possible: {_reason(error)}.") from error


def _push(hub: Any, repository: str, folder: Path) -> None:
    """Uploads the folder. Raises ConfigError if that fails; the folder stays."""
    try:
        commit = hub.upload_folder(
            repo_id=repository, folder_path=folder, commit_message="Upload by nemo_prorl"
        )
    except Exception as error:
        raise ConfigError(
            f"{folder} is complete, but was not uploaded ({_reason(error)}): run `hf upload {repository} {folder}`."
        ) from error
    show([f"uploaded to {commit.repo_url} (a new repository is private)"])


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}".rstrip(".: ")


def parse_size(text: str) -> int:
    """Returns the number of bytes. Raises ConfigError if `text` is not a size."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]i?B)", text)
    size = int(float(match[1]) * SIZE_UNITS[match[2]]) if match else 0
    if not size:
        raise ConfigError(
            f"--max-shard-size {text} is no size: write a number and a unit, such as 500MB or 5GB."
        )
    return size
