"""Hooks of `make docs`: replace links to files outside docs/ by their text, because the site does not have them."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#]+)(?:#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Returns the text of a page as MkDocs converts it to HTML; MkDocs calls it."""
    return without_outside_links(markdown, page.file.src_uri)


def without_outside_links(markdown: str, page: str) -> str:
    """Returns the text with links that leave docs/ replaced by their text.

    page: the page's path below docs/, such as tutorials/read_a_report.md.
    """

    def text_or_link(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), link[2]))
        return link[1] if target.startswith("..") else link[0]

    return _LINK.sub(text_or_link, markdown)
