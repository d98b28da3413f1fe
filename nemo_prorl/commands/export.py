"""Converts a checkpoint of a run into a Hugging Face one, with configuration and tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nemo_prorl.commands.parsing import Parser, check_vacant, prepare
from nemo_prorl.config import ConfigError, Precision


def main(arguments: Sequence[str]) -> int:
    """Exit code."""
    parser = Parser("export", __doc__)
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="folder of the checkpoint")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write; must not exist, or be empty")
    parser.add_argument(
        "--dtype", choices=list(Precision.__members__), help="of the weights (default: as in the checkpoint)"
    )
    options = parser.parse_args(arguments)
    if not options.checkpoint.is_dir():
        raise ConfigError(f"CHECKPOINT={options.checkpoint} is not a folder: write that of a checkpoint.")
    check_vacant(options.out)
    prepare()
    from nemo_prorl import conversion

    conversion.export_hf(options.checkpoint, options.out, dtype=options.dtype)
    print(f"wrote {options.out}")
    return 0
