"""Tests of the request for a reset of a live run: the request, its refusals, and the wait for its end."""

from __future__ import annotations

import json
import shutil
import threading
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from nemo_prorl import __main__ as cli
from nemo_prorl.commands import request_reset
from nemo_prorl.run_folder.markers import (
    ask_for_reset,
    done_marker,
    mark_done,
    mark_failed,
    request_id,
    reset_request,
)
from nemo_prorl.run_folder.starts import Start, starts_file


@pytest.fixture
def run(tmp_path: Path) -> Path:
    start = Start(stage="run2", began=1e9, seen=1e9, num_ranks=1, on_gpus=False)
    starts_file(tmp_path).write_text(json.dumps([asdict(start)]))
    mark_done(tmp_path, "run1", outcome="steps", checkpoint="run1-0000010")
    return tmp_path


def test_a_request_is_a_whole_file(run: Path) -> None:
    assert not request_id(reset_request(run))
    ask_for_reset(run)
    first = request_id(reset_request(run))
    ask_for_reset(run)
    assert request_id(reset_request(run)) > first > ""
    assert [path.name for path in reset_request(run).parent.iterdir()] == ["reset"]
    assert "asked" in json.loads(reset_request(run).read_text())


def test_the_command_asks_the_stage_that_is_trained(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says whether anybody listens."""
    assert cli.main(["request-reset", str(run)]) == 0
    asked, alive = capsys.readouterr().out.splitlines()
    assert asked.startswith("asked stage run2 in ")
    assert "no sign of life" in alive
    assert reset_request(run).exists()


@pytest.mark.parametrize(
    ("prepare", "sentence"),
    [
        (lambda run: starts_file(run).unlink(), "is no run: write the exp_manager.explicit_log_dir"),
        (shutil.rmtree, "is no run: write the exp_manager.explicit_log_dir"),
        (lambda run: mark_done(run, "run2", outcome="steps", checkpoint="x"), "stage run2 in "),
        (ask_for_reset, "is requested already"),
    ],
)
def test_what_cannot_take_a_reset_says_so_in_a_sentence(
    run: Path, capsys: pytest.CaptureFixture[str], prepare: object, sentence: str
) -> None:
    assert callable(prepare)
    prepare(run)
    before = request_id(reset_request(run))
    assert cli.main(["request-reset", str(run)]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert request_id(reset_request(run)) == before
    assert run.exists() == (prepare is not shutil.rmtree)


@pytest.mark.parametrize("ends", ["", "done", "failed"])
def test_waiting_ends_with_the_reset_or_with_the_stage(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """A thread plays the run: it takes the request, or finishes the stage without it."""
    monkeypatch.setattr(request_reset, "POLL_S", 0.01)

    def train() -> None:
        while not reset_request(run).exists():
            time.sleep(0.005)
        if ends == "done":
            mark_done(run, "run2", outcome="steps", checkpoint="x")
        elif ends == "failed":
            mark_failed(run, "run2", reason="The disk is full.")
        else:
            reset_request(run).unlink()

    trainer = threading.Thread(target=train)
    trainer.start()
    code = cli.main(["request-reset", str(run), "--wait"])
    trainer.join()
    said = capsys.readouterr().out
    assert code == (1 if ends else 0)
    assert ("withdrawn" in said) == bool(ends)
    assert not reset_request(run).exists()
    assert done_marker(run, "run2").exists() == (ends == "done")
