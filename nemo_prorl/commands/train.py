"""Trains one stage, from a Hugging Face checkpoint or from where an earlier run stopped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nemo_prorl.commands.ending import run_unless_stopped, say
from nemo_prorl.commands.parsing import (
    CONF_DIR,
    Parser,
    check_functions,
    check_model,
    choose_device,
    composed,
    parse_overrides,
    prepare_engines,
)
from nemo_prorl.layout import world_size_from_environment


def main(arguments: Sequence[str]) -> int:
    """Exit code."""
    from nemo_prorl.training import deadline

    deadline.catch_signals()
    from nemo_prorl.compose import check_inputs
    from nemo_prorl.engines import environment
    from nemo_prorl.help import options_text

    parser = Parser("train", __doc__, options_text(CONF_DIR))
    parser.add_argument("--check", action="store_true", help="only says whether the stage could start here")
    given = parse_overrides(parser, arguments)
    config = composed(given.config_name, given.overrides)
    check_inputs(config, world_size_from_environment())
    choose_device(config)
    check_model(config)
    check_functions(config)
    environment.order_launches(tensor_parallel=config.trainer.tensor_parallel, ahead=config.sampler.ahead)
    environment.let_segments_grow(sampler_tensor_parallel=config.sampler.tensor_parallel)
    prepare_engines()
    if given.check:
        from nemo_prorl.commands.starting import describe_start

        print(*describe_start(config), sep="\n")
        return 0
    from nemo_prorl import run

    try:
        return run_unless_stopped(lambda: run.train(config))
    except KeyboardInterrupt:
        from nemo_prorl.training.stages import where_it_goes_on

        return say(f"interrupted: {where_it_goes_on(Path(config.exp_manager.explicit_log_dir))}", 130)
