"""Tests that every page of docs/ is in the table of contents, that no link is broken, and that the pages stay short."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "reward" / "README.md",
    ROOT / "requirements" / "README.md",
    *sorted(DOCS.rglob("*.md")),
    *sorted((ROOT / "experiments").rglob("*.md")),
]

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)|(?:href|src|srcset)=\"([^\"]+)\"")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """Returns the text of a page without its code."""
    return re.sub(
        r"^```.*?^```$|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )


def targets(page: Path) -> list[str]:
    """Returns the targets of a page's links, except links to the web."""
    found = [first or second for first, second in LINK.findall(prose(page))]
    return [target for target in found if not re.match(r"https?:|mailto:", target)]


def anchors(page: Path) -> set[str]:
    """Returns the anchors that GitHub gives the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    seen: Counter[str] = Counter()
    names = set()
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        names.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return names


def broken(page: Path, target: str) -> bool:
    """Returns whether a link of this page leads to a file that does not exist, or to a missing heading."""
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.is_relative_to(ROOT) or not file.exists():
        return True
    return bool(anchor) and anchor not in anchors(file)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert [target for target in targets(page) if broken(page, target)] == []


def test_every_page_is_in_the_table_of_contents() -> None:
    contents = DOCS / "README.md"
    linked = {(DOCS / target.partition("#")[0]).resolve() for target in targets(contents)}
    assert [
        name_of(page) for page in sorted(DOCS.rglob("*.md")) if page != contents and page not in linked
    ] == []


def test_every_picture_and_every_study_is_on_a_page() -> None:
    linked = {
        (page.parent / target.partition("#")[0]).resolve() for page in PAGES for target in targets(page)
    }
    studies = [path for kind in ("md", "png") for path in (ROOT / "experiments").glob(f"*/**/*.{kind}")]
    assert [name_of(path) for path in [*studies, *(DOCS / "images").iterdir()] if path not in linked] == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_a_front_page_is_short(name: str) -> None:
    assert len((ROOT / name).read_text(encoding="utf-8").split()) <= 950


def test_the_docs_are_few_and_short() -> None:
    pages = sorted(DOCS.rglob("*.md"))
    words = {name_of(page): len(page.read_text(encoding="utf-8").split()) for page in pages}
    assert len(words) <= 26
    assert sum(words.values()) <= 39_900, words
