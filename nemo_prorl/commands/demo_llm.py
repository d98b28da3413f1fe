"""Trains a real language model of 135 million parameters on this machine, and shows what it learned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nemo_prorl.commands.demo import add_arguments
from nemo_prorl.commands.ending import show
from nemo_prorl.commands.parsing import Parser, composed, prepare_engines
from nemo_prorl.engines import environment
from nemo_prorl.run_folder.storage import check_writable


def main(arguments: Sequence[str]) -> int:
    """Runs the demo and returns its exit code."""
    from nemo_prorl.demo import language, run

    parser = Parser("demo-llm", __doc__)
    add_arguments(parser, Path("runs/demo_llm"))
    default = language.NUM_STEPS
    parser.number("--steps", "N", f"steps of training (default: {default})", default=default)
    options = parser.parse_intermixed_args(arguments)
    device = composed("smollm2", options.overrides).trainer.device
    check_writable(f"--out {options.out}", options.out)
    show(language.plan(smoke=options.smoke, num_steps=options.steps).splitlines())
    environment.choose_device(device)
    prepare_engines()
    return run.main(language.demo(smoke=options.smoke, num_steps=options.steps), options)
