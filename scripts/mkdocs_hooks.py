"""What `make docs` does to each page: links to files of the repository outside docs/ become plain text."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#]+)(?:#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called by MkDocs with the text of a page, before it becomes HTML."""
    return without_outside_links(markdown, page.file.src_uri)


def without_outside_links(markdown: str, page: str) -> str:
    """`page`: path of the page below docs/, such as tutorials/read_a_report.md."""

    def text_or_link(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), link[2]))
        return link[1] if target.startswith("..") else link[0]

    return _LINK.sub(text_or_link, markdown)
