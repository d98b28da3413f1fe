"""What Slurm will give a job, from the options that sbatch reads: the launcher's #SBATCH lines, SBATCH_* variables, and
the command line, each before the next. Pure functions."""

from __future__ import annotations

import re
import shlex
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, NoReturn

from nemo_prorl.cluster.plan.fit import Cluster
from nemo_prorl.config import ConfigError

OWN = ("dependency", "array", "clusters", "test-only", "wrap")
"""Options that would change what a submission is; `submit` refuses them."""
OPEN = ("gpus", "gpus-per-task", "gpus-per-socket", "gres")
"""Options beside --gpus-per-node that ask for GPUs; a launcher counts its ranks by that one alone."""
_SHORT = {"nodes": "-N", "gpus": "-G", "dependency": "-d", "array": "-a", "clusters": "-M"}
VARIABLES = {
    f"SBATCH_{name.upper().replace('-', '_')}": name
    for name in ("gpus", "gpus-per-node", "gpus-per-task", "gres", "clusters")
}


class _Sbatch(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"options of sbatch cannot be read: {message}.")


def read_options(words: Sequence[str]) -> dict[str, str]:
    """Returns long name -> value of the options that matter here, the last of each, also of one that is abbreviated as
    sbatch allows; a flag's value is empty. Raises ConfigError."""
    parser = _Sbatch(add_help=False)
    for name in ("nodes", "gpus-per-node", *OWN, *OPEN):
        spellings = [f"--{name}", *([_SHORT[name]] if name in _SHORT else [])]
        how: dict[str, Any] = {"action": "store_const", "const": ""} if name == "test-only" else {}
        parser.add_argument(*spellings, dest=name, default=SUPPRESS, **how)
    return vars(parser.parse_known_args(words)[0])


def cluster_of(launcher_text: str, environment: Mapping[str, str], words: Sequence[str]) -> Cluster:
    """Returns the nodes that a launcher asks for and the GPUs of each, if it is submitted with this environment and
    these further options of sbatch; a job without GPUs has one rank on every node. Raises ConfigError unless both
    numbers are certain."""
    asked = read_options(_header(launcher_text))
    asked |= {name: environment[variable] for variable, name in VARIABLES.items() if variable in environment}
    asked |= read_options(words)
    for name in OWN:
        if name in asked:
            raise ConfigError(
                f"--{name} is not for submit, which makes one job for each stage, each after the one before, on this "
                "cluster: leave it out, or call sbatch yourself."
            )
    for name in OPEN:
        if name in asked and (name != "gres" or re.search(r"\bgpu\b", asked[name])):
            raise ConfigError(
                f"--{name} leaves open how many GPUs of a node the launcher has to use: write --gpus-per-node=8 "
                "instead, for example."
            )
    least, _, most = asked.get("nodes", "1").partition("-")
    # "8", "h100:8" or "h100:2,a100:6"
    gpus = [part.rpartition(":")[2] for part in asked.get("gpus-per-node", "1").split(",")]
    for name, parts in (("nodes", [least, most or least]), ("gpus-per-node", gpus)):
        if not all(part.isdecimal() for part in parts) or (name == "nodes" and parts[0] != parts[1]):
            raise ConfigError(
                f"--{name}={asked[name]} is no certain number, and a run is checked for one: write --{name}=4, for "
                "example."
            )
    return Cluster(num_nodes=int(least), gpus_per_node=max(1, sum(map(int, gpus))))


def _header(launcher_text: str) -> list[str]:
    """Returns the options of the #SBATCH lines, which end at the first line that is no comment."""
    comments = takewhile(lambda line: not line.strip() or line.startswith("#"), launcher_text.splitlines())
    lines = [line.removeprefix("#SBATCH") for line in comments if line.startswith("#SBATCH ")]
    try:
        return [word for line in lines for word in shlex.split(line, comments=True)]
    except ValueError as error:
        raise ConfigError(f"an #SBATCH line of the launcher cannot be read ({error}).") from None
