"""Whether a stage could start here, without building anything: what `train --check` and `doctor` say of it."""

from __future__ import annotations

from functools import partial

from nemo_prorl.commands.parsing import check_functions, check_model
from nemo_prorl.config import RunConfig
from nemo_prorl.layout import world_size_from_environment


def check_inputs_of(config: RunConfig) -> None:
    """Raises ConfigError unless options, layout, files and folders fit; imports nothing heavy."""
    from nemo_prorl.compose import check_inputs

    check_inputs(config, world_size_from_environment())


def check_start(config: RunConfig) -> list[str]:
    """Everything that can be known before the engines load. Raises ConfigError."""
    check_inputs_of(config)
    check_model(config)
    check_functions(config)
    return describe_start(config)


def describe_start(config: RunConfig) -> list[str]:
    """Reads model and data and returns sentences on prompts and starting point. Raises ConfigError."""
    from nemo_prorl import run
    from nemo_prorl.data import inputs
    from nemo_prorl.distributed import alone
    from nemo_prorl.reward_service import check_tasks, refused_here
    from nemo_prorl.training.stages import best_without_checkpoint

    start = run.starting_point(config)
    config, recognised = inputs.with_prompt_files(config)
    tokenizer = inputs.load_tokenizer(config)
    *_, held_out_lengths = inputs.read_prompts(config, tokenizer, alone())
    left_out = inputs.left_out_prompts(config, tokenizer, held_out_lengths)
    check_tasks([*config.data.train, *config.data.validation], partial(refused_here, config.reward))
    how = "go on" if start.is_resume else "start"
    return [
        *recognised,
        left_out,
        f"stage {config.stage.name} can {how} in {config.exp_manager.explicit_log_dir}, with {start}",
        *filter(None, [best_without_checkpoint(start, config)]),
    ]
