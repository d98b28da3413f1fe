"""Functions that commands share before heavy imports: parsing of arguments and overrides, and their checks."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from nemo_prorl.commands.ending import show
from nemo_prorl.config import ConfigError, RunConfig
from nemo_prorl.config.layout import rank_from_environment, world_size_from_environment
from nemo_prorl.engines import environment
from nemo_prorl.run_folder.storage import check_writable

CONF_DIR = (Path(__file__).resolve().parents[1] / "conf").resolve()
"""conf/ of the checkout, to which the package has a link; in an installed package, its own conf/."""
PROGRAM = "nemo-prorl" if Path(sys.argv[0]).name == "nemo-prorl" else "python -m nemo_prorl"
"""The program as the user has called it."""


class Parser(argparse.ArgumentParser):
    """A parser that raises ConfigError on a wrong argument, instead of printing its usage on every rank."""

    def __init__(self, command: str, description: str | None, epilog: str = "") -> None:
        super().__init__(
            prog=f"{PROGRAM} {command}",
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def flag(self, name: str, meaning: str) -> None:
        self.add_argument(name, action="store_true", help=meaning)

    def option(self, name: str, metavar: str, meaning: str, **more: Any) -> None:
        """Adds an argument, or an option with a value; `more` as for add_argument."""
        self.add_argument(name, metavar=metavar, help=meaning, **more)

    def number(self, name: str, metavar: str, meaning: str, *, least: int = 1, **more: Any) -> None:
        """Adds an option with a whole number of at least `least`; `more` as for add_argument."""

        def parsed(text: str) -> int:
            if not re.fullmatch(r"-?\d+", text) or int(text) < least:
                raise argparse.ArgumentTypeError(
                    f"write a whole number of at least {least} instead of {text}"
                )
            return int(text)

        self.option(name, metavar, meaning, type=parsed, **more)

    def path(self, name: str, metavar: str, meaning: str, **more: Any) -> None:
        self.option(name, metavar, meaning, type=Path, **more)

    def print_help(self, file: Any = None) -> None:
        show([self.format_help().rstrip("\n")])

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: --") and "KEY=VALUE" in self.format_usage():
            message += ", and options are written KEY=VALUE, without --"
        raise ConfigError(f"{message} (`{self.prog} --help` shows the arguments).")


def parse_overrides(parser: Parser, arguments: Sequence[str]) -> argparse.Namespace:
    """Adds --config-name and the overrides to the parser and parses the arguments, which may be in any order."""
    parser.option("--config-name", "NAME", "a configuration of conf/ (default: train)", default="train")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="sets an option")
    return parser.parse_intermixed_args(arguments)


def composed(config_name: str, overrides: Sequence[str]) -> RunConfig:
    """Returns the named configuration of conf/ with the overrides on top. Raises ConfigError."""
    from nemo_prorl.config.compose import compose

    return compose(config_name, overrides, conf_dir=CONF_DIR)


def check_model(config: RunConfig, *, trains: bool = True) -> None:
    """Raises ConfigError unless the engines can train the model in model.path in the configured layout and context.
    With trains=False it only has to be sampled."""
    from nemo_prorl.engines.megatron import check

    if (Path(config.model.path) / check.CHECKPOINT_MARK).is_file():
        raise ConfigError(
            f"model.path={config.model.path} is a Megatron checkpoint, which vLLM cannot read: write the Hugging Face "
            "folder that it was made from, or make one with `python -m nemo_prorl export`."
        )
    check.check_model(config.model.path, config, world_size_from_environment(), trains=trains)


def check_functions(config: RunConfig, *, of_benchmarks: bool = False, into: Path | None = None) -> None:
    """Raises ConfigError unless the functions of reward.function can be called with the columns of the problems that
    they grade: those of `data`, or the benchmarks'. Only the main rank checks. into: as in `with_prompt_files`."""
    if config.reward.function and rank_from_environment() == 0:
        from nemo_prorl.data.inputs import with_prompt_files
        from nemo_prorl.data.rows import SCHEMA
        from nemo_prorl.reward_sources.functions import check

        columns = {"a benchmark": set(SCHEMA.names)}
        if not of_benchmarks:
            data = with_prompt_files(config, into=into)[0].data
            columns = check.columns_of([*data.train, *data.validation])
        check.check_functions(config.reward, columns)


def check_vacant(folder: Path) -> None:
    """Raises ConfigError unless the output folder of a command does not exist or is empty, and can be written."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"OUT={folder} exists: write a folder that does not exist yet, or is empty.")
    check_writable(f"OUT={folder}", folder)


def prepare_engines(*, samples: bool = True) -> None:
    """Does `environment.prepare` for a command that computes on GPUs. Raises ConfigError as `device.check_gpus`."""
    environment.prepare()
    from nemo_prorl.engines.device import check_gpus

    check_gpus(samples=samples)
