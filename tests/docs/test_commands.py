"""Tests that every command on the pages can be typed: it exists, its arguments are parsed, and its options exist."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import pytest

from nemo_prorl.__main__ import load
from nemo_prorl.commands import evaluate
from nemo_prorl.commands.parsing import composed
from reward.__main__ import main as reward_main
from tests.conftest import ROOT
from tests.docs.commands import sessions_of

PAGES = (*(ROOT / "docs").glob("*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")))


class Parsed(Exception):
    """Ends a command that has parsed its arguments."""


def ending(real: Callable[..., argparse.Namespace]) -> Callable[..., NoReturn]:
    """Returns a method that parses as the real one, and then ends the command."""

    def parse(self: argparse.ArgumentParser, arguments: Sequence[str]) -> NoReturn:
        raise Parsed(real(self, arguments))

    return parse


def typed() -> list[Any]:
    """Returns program and arguments of each command of ours, without the dots that stand for any options."""
    return [
        pytest.param(
            program, [word for word in arguments if word != "..."], id=f"{page.name}: {' '.join(arguments)}"
        )
        for page in PAGES
        for words, _ in sessions_of(page.read_text())
        for program in ("nemo_prorl", "reward")
        if f"-m {program}" in " ".join(words)
        for arguments in (words[words.index(program) + 1 :],)
    ]


@pytest.mark.parametrize(("program", "arguments"), typed())
def test_arguments_are_right(program: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("parse_args", "parse_intermixed_args"):
        monkeypatch.setattr(argparse.ArgumentParser, name, ending(getattr(argparse.ArgumentParser, name)))
    with pytest.raises(Parsed) as parsed:
        reward_main(arguments) if program == "reward" else load(arguments[0]).main(arguments[1:])
    (options,) = parsed.value.args
    if hasattr(options, "config_name") and not options.config_name.endswith("resolved.yaml"):
        overrides = (
            evaluate._overrides(options.overrides) if arguments[0] == "evaluate" else options.overrides
        )
        composed(options.config_name, overrides)
