"""What `reward check` says to people and to programs."""

from __future__ import annotations

import json

import pytest

from reward.__main__ import main
from reward.sandbox import probe
from reward.sandbox.cell import Level


@pytest.mark.parametrize(
    ("found", "answer", "grades_code"),
    [
        ((Level.landlock, ["namespaces: not permitted"]), "yes: this machine can grade all domains", True),
        (
            (None, ["landlock: missing", "namespaces: not permitted"]),
            "no: this machine cannot grade code",
            False,
        ),
    ],
)
def test_people_get_a_plain_answer_and_programs_everything(
    found: tuple[Level | None, list[str]],
    answer: str,
    grades_code: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "strongest", lambda: found)
    assert main(["check"]) == 0
    first, domains, *rest = capsys.readouterr().out.splitlines()
    assert first == answer
    assert ("code" in domains) == grades_code
    assert [line.strip() for line in rest[1:]] == found[1]
    assert max(map(len, [first, domains, *rest])) <= 80
    assert main(["check", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["reasons"] == found[1]
    assert "code" in report["domains"]
    assert report["version"]
