"""Trains a small reasoning policy on this machine in minutes, and shows that it learned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nemo_prorl.commands.parsing import Parser, choose_device, composed, prepare_engines


def main(arguments: Sequence[str]) -> int:
    """Exit code."""
    parser = Parser("demo", __doc__)
    parser.add_argument("--smoke", action="store_true", help="a few steps only: shows that everything runs")
    parser.add_argument("--seed", type=int, default=1, help="seed of data and sampling (default: 1)")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder (default: runs/demo)")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="KEY=VALUE",
        help="sets an option of both stages, as in `train`, such as trainer.device=cpu",
    )
    options = parser.parse_intermixed_args(arguments)
    choose_device(composed("laptop", options.overrides))
    prepare_engines()
    from nemo_prorl import demo as demonstration

    return demonstration.main(options)
