"""What Slurm will give a job, from the options that sbatch reads: the launcher's #SBATCH lines, SBATCH_* variables, and
the command line, each before the next. Pure functions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from nemo_prorl.config import ConfigError

SHORT = {"N": "nodes", "G": "gpus", "d": "dependency", "a": "array", "M": "clusters"}
"""sbatch's short options that are read here -> their long names."""
LONG = (
    *SHORT.values(), "gpus-per-node", "gpus-per-task", "gpus-per-socket", "gres", "exclusive", "test-only", "wrap",
)  # fmt: skip
OWN = ("dependency", "array", "clusters", "test-only", "wrap")
"""Options that would change what a submission is; `submit` refuses them."""
VARIABLES = {
    f"SBATCH_{name.upper().replace('-', '_')}": name
    for name in ("gpus", "gpus-per-node", "gpus-per-task", "gres", "exclusive", "clusters")
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The nodes and GPUs of a job."""

    num_nodes: int
    gpus_per_node: int
    """As requested, at least 1: a job without GPUs has one rank on every node."""


def read_options(words: Sequence[str]) -> dict[str, str]:
    """Returns long name -> value of the options that matter here, the last of each; a flag's value is empty. Raises
    ConfigError for an abbreviation, which sbatch would take."""
    found: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--"):
            name, is_joined, value = word[2:].partition("=")
            if name not in LONG:
                if full := [known for known in LONG if len(name) > 2 and known.startswith(name)]:
                    raise ConfigError(f"{word} is an abbreviation: write --{full[0]} in full.")
                continue
        elif word[:1] == "-" and word[1:2] in SHORT:
            name, value, is_joined = SHORT[word[1]], word[2:].removeprefix("="), word[2:]
        else:
            continue
        if not is_joined and name not in ("exclusive", "test-only") and rest:
            value = rest.pop(0)
        found[name] = value
    return found


def allocation(launcher_text: str, environment: Mapping[str, str], words: Sequence[str]) -> Allocation:
    """Returns what a launcher asks for, if it is submitted with this environment and these further options of sbatch.
    Raises ConfigError unless nodes and GPUs of each are certain."""
    asked = read_options(_header(launcher_text))
    asked |= {name: environment[variable] for variable, name in VARIABLES.items() if variable in environment}
    asked |= (given := read_options(words))
    for name in OWN:
        if name in asked:
            raise ConfigError(
                f"--{name} is not for submit, which makes one job for each stage, each after the one before, on this "
                "cluster: leave it out, or call sbatch yourself."
            )
    least, _, most = asked.get("nodes", "1").partition("-")
    num_nodes = int(least) if least.isdecimal() and most in ("", least) else 0
    if num_nodes < 1:
        raise ConfigError(
            f"--nodes={asked['nodes']} is no certain number of nodes, and a run is checked for one: write --nodes=4, "
            "for example."
        )
    for name in ("gpus-per-task", "gpus-per-socket"):
        if name in asked:
            raise ConfigError(f"--{name} leaves the GPUs of a node open: write --gpus-per-node=8 instead.")
    wishes = {}  # option -> GPUs of a node
    if "gpus-per-node" in asked:
        wishes[f"--gpus-per-node={asked['gpus-per-node']}"] = _count(asked["gpus-per-node"].split(","))
    gres = [
        part.strip() for part in asked.get("gres", "").split(",") if re.match(r"\s*(gres[:/])?gpu\b", part)
    ]
    if gres:
        wishes[f"--gres={asked['gres']}"] = _count(re.sub(r"^(gres[:/])?gpu\b:?", "", part) for part in gres)
    if "gpus" in asked:
        total = _count(asked["gpus"].split(","))
        wishes[f"--gpus={asked['gpus']}"] = total // num_nodes if total % num_nodes == 0 else -1
    if -1 in wishes.values():
        raise ConfigError(
            f"{next(name for name, count in wishes.items() if count == -1)} is not the same number of GPUs for each of "
            f"{num_nodes} nodes: write --gpus-per-node=8, for example."
        )
    if len(set(wishes.values())) > 1:
        mine = next((name for name in wishes if name[2:].partition("=")[0] in given), next(iter(wishes)))
        raise ConfigError(
            f"{' and '.join(wishes)} ask for different numbers of GPUs: write only --gpus-per-node={wishes[mine]}, "
            "which replaces the launcher's."
        )
    num_gpus = max(1, next(iter(wishes.values()), 1))
    if wishes and "gpus-per-node" not in asked and asked.get("exclusive", "no") in ("", "exclusive"):
        raise ConfigError(
            f"{next(iter(wishes))} beside --exclusive gives a job all GPUs of a node, however many those are: write "
            f"--gpus-per-node={num_gpus}, by which a launcher counts its ranks."
        )
    return Allocation(num_nodes=num_nodes, gpus_per_node=num_gpus)


def _header(launcher_text: str) -> list[str]:
    """Returns the options of the #SBATCH lines, which end at the first line that is no comment."""
    comments = takewhile(lambda line: not line.strip() or line.startswith("#"), launcher_text.splitlines())
    lines = [line.removeprefix("#SBATCH") for line in comments if line.startswith("#SBATCH ")]
    try:
        return [word for line in lines for word in shlex.split(line, comments=True)]
    except ValueError as error:
        raise ConfigError(f"an #SBATCH line of the launcher cannot be read ({error}).") from None


def _count(parts: Iterable[str]) -> int:
    """Returns the sum of "h100:2", "2" or "h100", which means 1. -1 if one is no number."""
    total = 0
    for part in parts:
        last = re.sub(r"\(.*", "", part).rpartition(":")[2].strip()
        if last.isdecimal():
            total += int(last)
        elif re.fullmatch(r"[A-Za-z_][\w.-]*|", last):
            total += 1
        else:
            return -1
    return total
