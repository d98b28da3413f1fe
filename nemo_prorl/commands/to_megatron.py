"""Converts a Hugging Face checkpoint into Megatron-Core's distributed format; training does not need it."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_prorl.commands.ending import show
from nemo_prorl.commands.parsing import Parser, check_vacant
from nemo_prorl.engines import environment

DESCRIPTION = """\
`train` and `evaluate` read the Hugging Face folder itself (model.path=HF_DIR) and refuse the result, which has \
weights only. It is for other programs that read such checkpoints (none has been tried); `export` converts it back. \
The whole model has to fit into memory."""


def main(arguments: Sequence[str]) -> int:
    """Writes the Megatron checkpoint and returns exit code 0."""
    from nemo_prorl.engines.megatron.architecture import read_architecture
    from nemo_prorl.engines.megatron.check import check_files

    parser = Parser("to-megatron", __doc__, DESCRIPTION)
    parser.path("hf_dir", "HF_DIR", "folder of the Hugging Face checkpoint")
    parser.path("out", "OUT", "folder to write; must be empty or not exist yet")
    options = parser.parse_args(arguments)
    check_files(options.hf_dir, read_architecture(options.hf_dir))
    check_vacant(options.out)
    environment.prepare()
    from nemo_prorl.engines.megatron import conversion

    conversion.import_hf(options.hf_dir, options.out)
    show([f"wrote {options.out}"])
    return 0
