"""Tests the verdict of every form in which a model may write a program."""

import json
from pathlib import Path
from typing import Any

import pytest

from reward.graders.code.grader import grade
from reward.graders.grade import InvalidTask
from reward.sandbox.execution import Sandbox
from tests.reward import code_forms

_DATA = Path(__file__).parent / "data" / "code_forms.jsonl"
VERDICTS = {
    row["form"]: row["verdict"] for row in map(json.loads, _DATA.read_text(encoding="utf-8").splitlines())
}
FORMS: dict[str, tuple[str, dict[str, Any]]] = code_forms.BLOCKS | code_forms.OUTPUTS | code_forms.RESULTS


def test_every_form_has_a_verdict() -> None:
    assert list(VERDICTS) == list(FORMS)


@pytest.mark.parametrize("form", FORMS)
def test_form(form: str, sandbox: Sandbox) -> None:
    response, task = FORMS[form]
    try:
        found = grade(sandbox, response, task)
    except InvalidTask:
        verdict = "invalid"
    else:
        verdict = "right" if found.score == 1 else found.verdict
    assert verdict == VERDICTS[form]
