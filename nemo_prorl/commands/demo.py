"""Trains a small reasoning policy on this machine in minutes, and shows that it learned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nemo_prorl.commands.ending import show
from nemo_prorl.commands.parsing import Parser, composed, prepare_engines
from nemo_prorl.engines import environment
from nemo_prorl.run_folder.storage import check_writable


def main(arguments: Sequence[str]) -> int:
    """Runs the demo and returns its exit code."""
    parser = Parser("demo", __doc__)
    add_arguments(parser, Path("runs/demo"))
    options = parser.parse_intermixed_args(arguments)
    device = composed("laptop", options.overrides).trainer.device
    from nemo_prorl.demo import puzzles, run

    check_writable(f"--out {options.out}", options.out)
    show(puzzles.plan(smoke=options.smoke).splitlines())
    environment.choose_device(device)
    prepare_engines()
    return run.main(puzzles.demo(smoke=options.smoke), options)


def add_arguments(parser: Parser, out: Path) -> None:
    """Adds what every demo takes. out: the folder that it writes by default."""
    parser.flag("--smoke", "trains only a few steps, to show that everything runs")
    parser.add_argument("--seed", type=int, default=1, help="seed of data and sampling (default: 1)")
    parser.path("--out", "OUT", f"folder to write (default: {out})", default=out)
    parser.option(
        "overrides",
        "KEY=VALUE",
        "sets an option of all that is trained and measured, as in `train`, such as trainer.device=cpu",
        nargs="*",
    )
