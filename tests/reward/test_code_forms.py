"""Tests that every row of docs/code_forms.md gets the verdict given there, and that every form has a row."""

import re
from pathlib import Path
from typing import Any

import pytest

from reward.graders.code.grader import grade
from reward.graders.grade import InvalidTask
from reward.sandbox.execution import Sandbox
from tests.reward import code_forms

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "code_forms.md"
_ROW = re.compile(r"\| (?P<form>.+) \| \w+ \| (?P<now>\w+) \|")
ROWS = {
    row["form"]: row["now"]
    for line in _PAGE.read_text(encoding="utf-8").splitlines()
    if (row := _ROW.fullmatch(line)) and row["form"] != "form"
}
FORMS: dict[str, tuple[str, dict[str, Any]]] = (
    code_forms.BLOCKS | code_forms.OUTPUTS | code_forms.RESULTS | code_forms.TEST_PROGRAMS
)


def test_the_page_has_every_form() -> None:
    assert list(ROWS) == list(FORMS)


@pytest.mark.parametrize("form", FORMS)
def test_form(form: str, sandbox: Sandbox) -> None:
    response, task = FORMS[form]
    try:
        found = grade(sandbox, response, task)
    except InvalidTask:
        verdict = "invalid"
    else:
        verdict = "right" if found.score == 1 else found.verdict
    assert verdict == ROWS[form]
