"""Writes docs/reference/ from the code: the help of every command, every option, every metric of a run.

`make reference` runs it. tests/docs/test_reference.py fails if a page is out of date.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from nemo_prorl.__main__ import COMMANDS, load
from nemo_prorl.config import BegunConfig, DataBuildConfig, RunConfig
from nemo_prorl.config.help import Option, entries, type_name, value_text
from nemo_prorl.run_folder.metric_docs import METRICS
from nemo_prorl.run_folder.terminal import folded
from reward.__main__ import main as reward_main

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
OPTIONS_BEGIN = "Options, with type and default:"
"""The line of a command's help after which come options; these have a page of their own."""
EVERYWHERE = re.compile(
    r"^positional arguments:\n  KEY=VALUE +sets an option\n\n|^options:\n  -h, --help .*\n(?!  )\n?|^  -h, --help .*\n",
    re.MULTILINE,
)
"""Lines of a help text that the page leaves out."""
PARTS = {"data": ("list", "build", "show", "difficulty")}
"""Subcommands by command."""
REWARD_COMMANDS = ("serve", "score", "explain", "check")
HEAD = ("", "| option | default | meaning |", "|---|---|---|")
GENERATED = "Generated from the code by `make reference`: change it there."
METRICS_INTRO = """One line of `RUN/metrics.jsonl` holds the metrics of one step; the loggers get the same names.
Words in capitals stand for any name or number. A mean over tokens counts every response token once.
Log-probabilities, KL and entropy are in nats. [algorithm.md](../algorithm.md#metrics) says how several ranks
and updates become one number."""


def commands_page() -> str:
    """Returns the page with the help of every command, as a terminal shows it."""
    lines = [
        "# Commands",
        "",
        f"{GENERATED} Options that are written `KEY=VALUE` are in [options.md](options.md).",
    ]
    for name in COMMANDS:
        lines += ["", f"## {name}"]
        lines += _help(load(name).main, [])
        for part in PARTS.get(name, ()):
            lines += ["", f"### {name} {part}", *_help(load(name).main, [part])]
    lines += [
        "",
        "## The reward service",
        "",
        "`python -m reward`, or `prorl-reward` where it is installed.",
    ]
    for name in REWARD_COMMANDS:
        lines += ["", f"### reward {name}", *_help(reward_main, [name])]
    return "\n".join(lines) + "\n"


def options_page() -> str:
    """Returns the page: one table for each section."""
    lines = ["# Options", "", f"{GENERATED} They are declared in `nemo_prorl/config/sections/`."]
    lines += ["[The most used](commands.md#train) stand in the help of `train`."]
    lines += ["", "## train, evaluate, plan and submit", *_tables(RunConfig)]
    lines += ["", "## data build", *_tables(DataBuildConfig, without="reward")]
    lines += [
        "",
        "The options of [reward](#reward) as well.",
        "",
        "### data build begun",
        *_tables(BegunConfig),
    ]
    return "\n".join(lines) + "\n"


def metrics_page() -> str:
    """Returns the page with one table for each first word of the metrics' names."""
    groups: dict[str, list[str]] = {}
    for name in METRICS:
        groups.setdefault(name.partition("/")[0] if "/" in name else "position in the run", []).append(name)
    lines = ["# Metrics", "", GENERATED, METRICS_INTRO]
    for group, names in groups.items():
        lines += ["", f"## {group}", "", "| metric | meaning |", "|---|---|"]
        lines += [f"| `{name}` | {_cell(METRICS[name])} |" for name in names]
    return "\n".join(lines) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands_page,
    "options.md": options_page,
    "metrics.md": metrics_page,
}


def _help(command: Callable[[list[str]], int], words: list[str]) -> list[str]:
    """Returns the lines of a code block with what `--help` prints at 100 columns, up to the options of a run, and
    without what every command says."""
    os.environ["COLUMNS"] = "100"
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        command([*words, "--help"])
    text = EVERYWHERE.sub("", printed.getvalue().partition(OPTIONS_BEGIN)[0])
    lines = (folded(line, 100) for line in text.rstrip().splitlines())
    return ["", "```text", *"\n".join(lines).splitlines(), "```"]


def _tables(schema: type, without: str = "") -> Iterator[str]:
    """Yields the lines of the schema's tables, except for the section `without`."""
    yield from HEAD
    for entry in entries(schema):
        if entry.key.partition(".")[0] == without:
            continue
        if isinstance(entry, Option):
            yield _row(entry)
        else:
            yield from ("", f"### {entry.key}", "", entry.doc, *HEAD)


def _row(option: Option) -> str:
    """Returns a line of a table. The default shows the type, except for a choice, which the meaning begins with."""
    kind = type_name(option.type)
    choice = f"O{kind[1:]}. " if kind.startswith("one of ") else ""
    return f"| `{option.key}` | `{value_text(option.default)}` | {_cell(choice + option.doc)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    """Writes every page."""
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
