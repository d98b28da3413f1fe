"""Converts a run's checkpoint into a Hugging Face one, with configuration, tokenizer and model card."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nemo_prorl.commands.ending import show
from nemo_prorl.commands.parsing import Parser, check_vacant
from nemo_prorl.config import ConfigError, Precision
from nemo_prorl.engines import environment
from nemo_prorl.run_folder.checkpoints import locate_checkpoint


def main(arguments: Sequence[str]) -> int:
    """Writes the checkpoint as a Hugging Face folder and returns exit code 0."""
    parser = Parser("export", __doc__)
    parser.path(
        "checkpoint", "CHECKPOINT", "folder of a checkpoint, or of a run for its newest whole checkpoint"
    )
    parser.path("out", "OUT", "folder to write; must be empty or not exist yet")
    parser.add_argument(
        "--dtype",
        choices=list(Precision.__members__),
        help="precision of the weights (default: the policy's; fp32: the optimizer's main weights)",
    )
    parser.number(
        "--max-shard-mb",
        "MB",
        "size of the largest file (default: 5000); one file is held in memory",
        default=5000,
    )
    parser.add_argument(
        "--evaluation",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="folder that `evaluate` has filled, for the model card; may be given several times",
    )
    options = parser.parse_args(arguments)
    if not options.checkpoint.is_dir():
        raise ConfigError(f"CHECKPOINT={options.checkpoint} is not a folder: write that of a checkpoint.")
    check_vacant(options.out)
    environment.prepare()
    checkpoint = locate_checkpoint(options.checkpoint)
    from nemo_prorl.commands.model_card import model_card
    from nemo_prorl.engines.megatron import conversion

    card = model_card(checkpoint, options.evaluation)
    weights, side_files = conversion.open_checkpoint(checkpoint, dtype=options.dtype)
    shard_bytes = options.max_shard_mb * 10**6
    conversion.save_hf(
        weights, side_files, options.out, dtype=options.dtype, shard_bytes=shard_bytes, card=card
    )
    size = sum(file.stat().st_size for file in options.out.glob("*.safetensors"))
    show([f"wrote {options.out} ({size / 1e6:,.1f} MB of weights), from {checkpoint}"])
    return 0
