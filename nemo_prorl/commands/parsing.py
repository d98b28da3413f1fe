"""What commands share before anything heavy is imported: arguments, overrides, the checks of what a user wrote."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from nemo_prorl.commands.output import show
from nemo_prorl.config import ConfigError, RunConfig
from nemo_prorl.layout import rank_from_environment, world_size_from_environment

CONF_DIR = (Path(__file__).resolve().parents[1] / "conf").resolve()
"""conf/ of a checkout, to which the package has a link, or the package's own where that is installed."""
PROGRAM = "nemo-prorl" if Path(sys.argv[0]).name == "nemo-prorl" else "python -m nemo_prorl"
"""How the user has called this."""


class Parser(argparse.ArgumentParser):
    """Reports a wrong argument like every other mistake, instead of printing its usage on every rank."""

    def __init__(self, command: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=f"{PROGRAM} {command}",
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def print_help(self, file: Any = None) -> None:
        """Also into a pipe that nobody reads to its end."""
        show([self.format_help().rstrip("\n")])

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (`{self.prog} --help` shows what can be given).")


def parse_overrides(parser: Parser, arguments: Sequence[str]) -> argparse.Namespace:
    """--config-name and overrides in any order."""
    parser.add_argument(
        "--config-name", default="train", metavar="NAME", help="a configuration of conf/ (default: train)"
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="sets an option")
    return parser.parse_intermixed_args(arguments)


def composed(config_name: str, overrides: Sequence[str]) -> RunConfig:
    """The configuration that a user named, with the overrides on top. Raises ConfigError."""
    from nemo_prorl.compose import compose

    return compose(config_name, overrides, conf_dir=CONF_DIR)


def check_model(config: RunConfig, *, trains: bool = True) -> None:
    """Raises ConfigError unless the engines can train (or only sample) what is in model.path, in the layout and context
    asked for."""
    from nemo_prorl.engines.megatron import check

    if (Path(config.model.path) / check.CHECKPOINT_MARK).is_file():
        raise ConfigError(
            f"model.path={config.model.path} is a Megatron checkpoint, which vLLM does not read: write the Hugging "
            "Face folder, or make one with `python -m nemo_prorl export`."
        )
    check.check_model(config.model.path, config, world_size_from_environment(), trains=trains)


def check_functions(config: RunConfig, *, of_benchmarks: bool = False) -> None:
    """Raises ConfigError unless the functions of reward.function can be called with the columns of the problems that
    they are to grade: those of `data`, or the benchmarks'. The main rank looks for all."""
    if config.reward.function and rank_from_environment() == 0:
        from nemo_prorl.data.inputs import with_prompt_files
        from nemo_prorl.data.rows import SCHEMA
        from nemo_prorl.reward_function import check

        columns = {"a benchmark": set(SCHEMA.names)}
        if not of_benchmarks:
            data = with_prompt_files(config)[0].data
            columns = check.columns_of([*data.train, *data.validation])
        check.check_functions(config.reward, columns)


def check_vacant(folder: Path) -> None:
    """Raises ConfigError unless the folder that a command is to write is still to be made, or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"OUT={folder} exists: write a folder that does not exist yet, or is empty.")
    from nemo_prorl.compose import check_writable

    check_writable(f"OUT={folder}", folder)


def choose_device(config: RunConfig) -> None:
    """Makes trainer.device hold for this process. Raises ConfigError when a job with GPUs would compute on the CPU."""
    from nemo_prorl.engines import environment

    environment.choose_device(config.trainer.device)


def prepare() -> None:
    """Sets what torch and vLLM read from the environment while they are imported; import them only after it."""
    from nemo_prorl.engines import environment

    environment.prepare()


def prepare_engines() -> None:
    """`prepare`, for a command that computes on the GPUs. Raises ConfigError when torch cannot use them."""
    prepare()
    from nemo_prorl.engines.device import check_gpus

    check_gpus()
