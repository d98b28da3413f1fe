"""The command line: nemo-prorl COMMAND ..., or python -m nemo_prorl COMMAND ...

Arguments, options and files are checked before torch or vLLM is imported, so a mistake costs a second. It is reported
by one rank, as one line on standard error, with exit code 2.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from nemo_prorl import __version__
from nemo_prorl.commands.ending import expected_errors, is_disk_full, say, show
from nemo_prorl.commands.parsing import PROGRAM
from nemo_prorl.config import ConfigError

COMMANDS = (
    "doctor", "plan", "train", "submit", "status", "request-reset", "rewind", "fork", "replay", "verify", "forecast",
    "demo", "demo-llm", "to-megatron", "export", "evaluate", "compare", "data", "report",
)  # fmt: skip
"""In the order of the usage text; each is the module of its name in nemo_prorl/commands/."""


def load(name: str) -> ModuleType:
    """Returns the module of a command. Commands import heavy packages only after they have checked their arguments."""
    return importlib.import_module(f"nemo_prorl.commands.{name.replace('-', '_')}")


def summary(name: str) -> str:
    """Returns one sentence about a command for the usage text."""
    return (load(name).__doc__ or "").split("\n\n")[0].strip()


def main(arguments: Sequence[str]) -> int:
    """Runs a command and returns its exit code: 0, 1 if a run had to stop or the disk is full, 2 for a user's mistake,
    130 for Ctrl-C. Other errors propagate."""
    try:
        if not arguments or arguments[0] in ("-h", "--help"):
            commands = [f"  {name:<9} {summary(name)}" for name in COMMANDS]
            about = "Prolonged reinforcement learning with verifiable rewards, on Megatron-Core and vLLM."
            hint = (
                f"`{PROGRAM} COMMAND --help` shows a command's arguments, `{PROGRAM} --version` the version."
            )
            show([f"usage: {PROGRAM} COMMAND ...", "", about, "", *commands, "", hint])
            return 0 if arguments else 2
        if arguments[0] == "--version":
            print(f"nemo-prorl {__version__}")
            return 0
        if arguments[0] not in COMMANDS:
            raise ConfigError(f"{arguments[0]} is not a command: write one of {', '.join(COMMANDS)}.")
        return int(load(arguments[0]).main(arguments[1:]))
    except ConfigError as error:
        return say(error, 2)
    except KeyboardInterrupt:
        return say(
            "interrupted. The same command continues a run from its last checkpoint and an evaluation of a suite from "
            "its last samples. Other commands start again; none leaves incomplete files.",
            130,
        )
    except ModuleNotFoundError as error:
        if (error.name or "nemo_prorl").startswith("nemo_prorl"):
            raise
        return say(
            f"{sys.executable} has no package {error.name}: use the environment that `make setup` makes "
            "(.venv/bin/python -m nemo_prorl), or one into which nemo-prorl is installed with its extras.",
            2,
        )
    except Exception as error:
        if isinstance(error, expected_errors()):
            return say(error, 1)
        if not is_disk_full(error):
            raise
        return say(
            f"{error}: make room and repeat the command. Training continues from the last checkpoint; no incomplete "
            "files are left.",
            1,
        )


def command() -> NoReturn:
    """Runs the program nemo-prorl with the arguments of the process, and exits."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    command()
