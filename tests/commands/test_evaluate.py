"""`evaluate`: no option is taken and then not used."""

from __future__ import annotations

from dataclasses import fields

import pytest

from nemo_prorl.__main__ import main
from nemo_prorl.commands import evaluate
from nemo_prorl.config.sections.evaluation import EvaluationConfig

FORMS = {
    "--list": ["--list"],
    "--write-prompts": ["suite=smoke", "--write-prompts", "prompts"],
    "benchmarks": ["suite=smoke"],
    "--follow": ["suite=smoke", "--follow", "run"],
    "data=FILE": ["data=held_out.jsonl"],
}
OPTIONS = {
    "benchmarks": ["benchmarks=ifeval"],
    "data_dir": ["data_dir=files"],
    "out": ["out=results"],
    "evaluation.out": ["evaluation.out=results"],
    "livecodebench_dates": ["evaluation.livecodebench_dates="],
    "puzzles": ["evaluation.puzzles=[basic/sum]"],
    "chunk_samples": ["evaluation.chunk_samples=9"],
    "data": ["data=held_out.jsonl"],
    "data.validation": ["data.validation=[held_out.jsonl]"],
    "--k": ["--k", "1"],
    "--samples": ["--samples", "samples.jsonl"],
    "--write-prompts": ["--write-prompts", "prompts"],
    "--follow": ["--follow", "run"],
    "--once": ["--once"],
    "--ranks": ["--ranks", "2"],
}
USED = {
    "--list": ["benchmarks", "data_dir"],
    "--write-prompts": ["benchmarks", "data_dir", "livecodebench_dates", "puzzles", "--write-prompts"],
    "benchmarks": [
        "benchmarks",
        "data_dir",
        "out",
        "evaluation.out",
        "livecodebench_dates",
        "puzzles",
        "chunk_samples",
    ],
    "--follow": [
        "benchmarks",
        "data_dir",
        "livecodebench_dates",
        "puzzles",
        "chunk_samples",
        "--once",
        "--ranks",
    ],
    "data=FILE": ["data", "data.validation", "--k", "--samples"],
}


def test_the_pairs_below_are_all_pairs() -> None:
    assert {option.name for option in fields(EvaluationConfig)} <= OPTIONS.keys()
    assert FORMS.keys() == USED.keys() == evaluate.READS.keys()
    assert set().union(*evaluate.READS.values()) <= OPTIONS.keys()


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("form", FORMS)
def test_an_option_is_used_or_refused(
    form: str, option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluate.parsing, "check_model", lambda config, trains: None)
    monkeypatch.setattr(evaluate, "_load", lambda config: ([], []))
    for started in ("_evaluate_suite", "_evaluate_files", "_follow"):
        monkeypatch.setattr(evaluate, started, lambda *arguments: 0)
    code = main(["evaluate", *FORMS[form], *OPTIONS[option]])
    says = capsys.readouterr().err
    if option in USED[form] or form == option:
        assert (code, says) == (0, "")
    elif form != "benchmarks" or option not in FORMS:  # together they are the option's form
        assert (code, says.endswith(": leave it out.\n")) == (2, True)
