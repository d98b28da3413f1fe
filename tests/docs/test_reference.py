"""Tests that docs/reference/ is complete and what `make reference` would write."""

from __future__ import annotations

import pytest

from nemo_prorl.__main__ import COMMANDS
from nemo_prorl.config.help import options
from scripts import reference
from tests.conftest import ROOT

FOLDER = ROOT / "docs" / "reference"


@pytest.mark.parametrize("name", ["commands.md", "options.md", "metrics.md"])
def test_a_page_is_up_to_date(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")  # the page does not depend on the terminal
    assert (FOLDER / name).read_text() == reference.PAGES[name](), "run `make reference`"


def test_there_are_no_other_pages() -> None:
    assert {page.name for page in FOLDER.iterdir()} == set(reference.PAGES)


def test_every_command_and_option_is_there() -> None:
    commands, listed = (FOLDER / "commands.md").read_text(), (FOLDER / "options.md").read_text()
    assert [name for name in COMMANDS if f"usage: python -m nemo_prorl {name} " not in commands] == []
    assert [key for key in options() if f"| `{key}` |" not in listed] == []
