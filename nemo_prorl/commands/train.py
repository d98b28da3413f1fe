"""Trains one stage, from a Hugging Face checkpoint or from where an earlier run stopped."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from nemo_prorl.commands import parsing
from nemo_prorl.commands.ending import say, show
from nemo_prorl.config.layout import rank_from_environment, world_size_from_environment
from nemo_prorl.engines import environment
from nemo_prorl.run_folder import terminal
from nemo_prorl.training import deadline


def main(arguments: Sequence[str]) -> int:
    """Trains the stage on every rank and returns the exit code: 130 after Ctrl-C. With --check, only says whether it
    could start."""
    deadline.catch_signals()
    from nemo_prorl.commands.starting import check_inputs, describe_start, describe_work
    from nemo_prorl.config.help import options_text

    parser = parsing.Parser("train", __doc__, options_text(parsing.CONF_DIR))
    parser.flag(
        "--check", "only says whether the stage could start here, how large a step is and how long it takes"
    )
    given = parsing.parse_overrides(parser, arguments)
    config = parsing.composed(given.config_name, given.overrides)
    check_inputs(config, world_size_from_environment())
    with terminal.shown(speaks=rank_from_environment() == 0), ExitStack() as stack:
        check_in = None
        if given.check:  # the only folder that a check may write to
            check_in = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nemo_prorl-")))
        terminal.wait_for("checking model and data")
        environment.choose_device(config.trainer.device)
        environment.order_launches(tensor_parallel=config.trainer.tensor_parallel, ahead=config.sampler.ahead)
        environment.set_allocator(sampler_tensor_parallel=config.sampler.tensor_parallel)
        parsing.check_model(config)
        parsing.check_functions(config, into=check_in)
        terminal.wait_for("loading PyTorch and the engines")
        parsing.prepare_engines(samples=check_in is None)
        if check_in is not None:
            is_main = rank_from_environment() == 0
            # On every rank, because each has to find the files.
            lines, found = describe_start(config, check_in, tries_functions=is_main)
            if is_main:
                show([*lines, *describe_work(found, world_size_from_environment())])
            return 0
        from nemo_prorl import run

        try:
            return run.train(config)
        except KeyboardInterrupt:
            from nemo_prorl.training.stages import resume_message

            return say(f"interrupted: {resume_message(Path(config.exp_manager.explicit_log_dir))}", 130)
