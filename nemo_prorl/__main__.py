"""The command line: python -m nemo_prorl COMMAND ...

Arguments, options and files are checked before torch or vLLM is imported, so a mistake costs a second. It is one line
on standard error and exit code 2, and is said once however many ranks make it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from nemo_prorl.commands import COMMANDS, load, summary
from nemo_prorl.commands.ending import say
from nemo_prorl.config import ConfigError


def main(arguments: Sequence[str]) -> int:
    """Exit code of the command: 0, 1 when a run had to stop, 2 for a user's mistake, 130 for Ctrl-C. Anything else
    rises."""
    try:
        if not arguments or arguments[0] in ("-h", "--help"):
            print(_usage())
            return 0 if arguments else 2
        if arguments[0] not in COMMANDS:
            raise ConfigError(f"{arguments[0]} is not a command: write one of {', '.join(COMMANDS)}.")
        code: int = load(arguments[0]).main(arguments[1:])
        return code
    except ConfigError as error:
        return say(error, 2)
    except KeyboardInterrupt:
        return say("interrupted; what is finished is kept, and the same command goes on from there.", 130)


def _usage() -> str:
    commands = [f"  {name:<9} {summary(name)}" for name in COMMANDS]
    return "\n".join(
        [
            "usage: python -m nemo_prorl COMMAND ...",
            "",
            "Prolonged reinforcement learning with verifiable rewards, on Megatron-Core and vLLM.",
            "",
            *commands,
            "",
            "`python -m nemo_prorl COMMAND --help` shows what it takes.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
