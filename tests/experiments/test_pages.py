"""Tests that every study is in the notebook's index, and that no link of its pages is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docs.test_links import broken, name_of, targets

FOLDER = ROOT / "experiments"
PAGES = sorted(FOLDER.rglob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert [target for target in targets(page) if broken(page, target)] == []


def test_every_page_is_reached_from_the_index_and_every_picture_is_shown() -> None:
    linked = {(page.parent / target.partition("#")[0]).resolve() for page in PAGES for target in targets(page)}
    pictures = FOLDER.rglob("*.png")
    assert [name_of(path) for path in [*PAGES, *pictures] if path not in linked and path.parent != FOLDER] == []
