"""Tests of the changes that `make docs` makes to pages."""

from __future__ import annotations

import pytest

from scripts.mkdocs_hooks import without_outside_links


@pytest.mark.parametrize(
    ("page", "markdown", "wanted"),
    [
        ("data.md", "see [the code](../nemo_prorl/config).", "see the code."),
        ("data.md", "see [the words](../CONTRIBUTING.md#words).", "see the words."),
        ("reference/a.md", "see [data](../data.md#validation).", "see [data](../data.md#validation)."),
        ("reference/a.md", "see [the README](../../README.md).", "see the README."),
        ("data.md", "[one](../a.md) and [two](b.md)", "one and [two](b.md)"),
        ("data.md", "![a picture](images/a.png)", "![a picture](images/a.png)"),
        ("data.md", "[the web](https://example.org/../x)", "[the web](https://example.org/../x)"),
        ("data.md", "[here](#below)", "[here](#below)"),
    ],
)
def test_links_that_lead_out_of_the_folder_become_text(page: str, markdown: str, wanted: str) -> None:
    assert without_outside_links(markdown, page) == wanted
