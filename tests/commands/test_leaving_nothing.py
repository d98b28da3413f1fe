"""Commands that only look, and evaluations of files, leave neither a run's folder nor temporary files."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from nemo_prorl import __main__ as cli
from nemo_prorl import run
from nemo_prorl.commands import evaluate
from nemo_prorl.commands.parsing import composed
from nemo_prorl.config import ConfigError
from nemo_prorl.data.inputs import with_prompt_files
from nemo_prorl.run_folder.markers import mark_done
from tests import test_cli
from tests.data.conftest import CharacterTokenizer

model = test_cli.model


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options of a run of 40 problems with a reward function; the run's folder and the temporary files would be in
    tmp_path / "here"."""
    (tmp_path / "here" / "temporary").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "here" / "temporary"))
    monkeypatch.setattr(run, "load_tokenizer", lambda config: CharacterTokenizer())
    (tmp_path / "reward.py").write_text(
        "def score(final_texts, level): return [float(one) for one in level]\n"
    )
    lines = (f'{{"prompt": "{n} + 1?", "answer": {n + 1}, "level": {n % 3}}}\n' for n in range(40))
    (tmp_path / "p.jsonl").write_text("".join(lines))
    return [
        f"data.train={tmp_path}/p.jsonl",
        "data.validation=[]",
        f"reward.function={tmp_path}/reward.py:score",
        f"exp_manager.explicit_log_dir={tmp_path}/here/run",
    ]


def left(tmp_path: Path) -> list[str]:
    return [str(path.relative_to(tmp_path / "here")) for path in (tmp_path / "here").rglob("*")]


@pytest.mark.medium
def test_a_check_calls_the_function_and_leaves_nothing(
    given: list[str], model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", "--check", f"model.path={model}", *given]) == 0
    said = capfd.readouterr().out
    assert "reward.py:score, called with made-up responses to 4 prompt(s), returned " in said
    assert "\nstage main can start" in said
    assert left(tmp_path) == ["temporary"]
    (tmp_path / "reward.py").write_text("def score(final_texts, level): return {}['gold']\n")
    assert cli.main(["train", "--check", f"model.path={model}", *given]) == 2
    assert "raised KeyError: 'gold' (reward.py, line 1): correct it" in capfd.readouterr().err
    assert left(tmp_path) == ["temporary"]
    (tmp_path / "reward.py").write_text("def score(final_texts, colour): return colour\n")
    assert cli.main(["train", "--check", f"model.path={model}", *given]) == 2
    assert f"a parameter colour, and {tmp_path}/p.jsonl has no such column" in capfd.readouterr().err


@pytest.mark.medium
def test_doctor_leaves_nothing_and_calls_no_function(
    given: list[str], model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    only = ["--only=start", "--only=folders"]
    assert cli.main(["doctor", *only, f"model.path={model}", *given]) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "stage main can start in" in said
    assert "called" not in said
    assert left(tmp_path) == ["temporary"]
    mark_done(tmp_path / "here" / "run", "main", outcome="steps", checkpoint="step-00000003-main")
    assert cli.main(["doctor", "--only=start", f"model.path={model}", *given]) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "stage main is already done in" in said
    assert "can start" not in said


def test_a_check_of_a_run_takes_what_the_run_has_converted(given: list[str], tmp_path: Path) -> None:
    config = composed("train", given)
    converted = with_prompt_files(config)[0].data.train
    (tmp_path / "here" / "aside").mkdir()
    checked = with_prompt_files(config, into=tmp_path / "here" / "aside")[0].data.train
    assert [*checked] == [*converted]
    assert list((tmp_path / "here" / "aside").iterdir()) == []


@pytest.mark.parametrize(
    ("writes", "ends_with", "is_left"),
    [
        ("reward_service.log", None, False),
        ("reward_service.log", ConfigError("no"), False),
        ("reward_service.log", KeyboardInterrupt(), False),
        ("reward_service.log", RuntimeError("a bug"), True),
        ("reward_function.score.log", None, True),
    ],
)
def test_an_evaluation_leaves_a_log_only_to_be_read(
    given: list[str],
    tmp_path: Path,
    writes: str,
    ends_with: BaseException | None,
    is_left: bool,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def evaluation() -> None:
        with evaluate._aside() as folder:
            (folder / writes).write_text("something")
            if ends_with is not None:
                raise ends_with

    if ends_with is None:
        evaluation()
    else:
        with pytest.raises(type(ends_with)):
            evaluation()
    assert any(writes in path for path in left(tmp_path)) == is_left
    assert len(left(tmp_path)) == (3 if is_left else 1)
    said = capfd.readouterr().err
    assert ("The output of a reward function is in" in said) == (ends_with is None and is_left)
