"""Converts a Hugging Face checkpoint into a Megatron one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nemo_prorl.commands.parsing import Parser, check_vacant, prepare


def main(arguments: Sequence[str]) -> int:
    """Exit code."""
    from nemo_prorl.engines.megatron.architecture import read_architecture

    parser = Parser("import", __doc__)
    parser.add_argument("hf_dir", type=Path, metavar="HF_DIR", help="folder of the Hugging Face checkpoint")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write; must not exist, or be empty")
    options = parser.parse_args(arguments)
    read_architecture(options.hf_dir)
    check_vacant(options.out)
    prepare()
    from nemo_prorl import conversion

    conversion.import_hf(options.hf_dir, options.out)
    print(f"wrote {options.out}")
    return 0
