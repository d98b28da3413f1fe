"""Converts a Hugging Face checkpoint into a Megatron one."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_prorl.commands.parsing import Parser, check_vacant
from nemo_prorl.engines import environment


def main(arguments: Sequence[str]) -> int:
    """Writes the Megatron checkpoint and returns exit code 0."""
    from nemo_prorl.engines.megatron.architecture import read_architecture
    from nemo_prorl.engines.megatron.check import check_files

    parser = Parser("import", __doc__)
    parser.path("hf_dir", "HF_DIR", "folder of the Hugging Face checkpoint")
    parser.path("out", "OUT", "folder to write; must be empty or not exist yet")
    options = parser.parse_args(arguments)
    check_files(options.hf_dir, read_architecture(options.hf_dir))
    check_vacant(options.out)
    environment.prepare()
    from nemo_prorl.engines.megatron import conversion

    conversion.import_hf(options.hf_dir, options.out)
    print(f"wrote {options.out}")
    return 0
