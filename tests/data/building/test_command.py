"""Tests of `data list`, `build`, `show` and `difficulty` as a user runs them."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nemo_prorl import __main__ as cli
from nemo_prorl.commands.data import _chosen
from nemo_prorl.config import BegunConfig, DataBuildConfig
from nemo_prorl.config.help import Option, entries
from nemo_prorl.data.rows import RowFile, write_rows
from nemo_prorl.reward_sources.service import RewardService
from nemo_prorl.run_folder.difficulty import write_prompts
from tests.data.building.conftest import math_record
from tests.data.conftest import make_row
from tests.reward.fake_server import fake_servers
from tests.training.conftest import make_group


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source" / "rows.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps(math_record(f"{i}+10?", str(i + 10))) + "\n" for i in range(6)))
    return path


def test_a_set_is_built_listed_and_shown(
    source: Path, service: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "data"
    bench = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    bench[0].write_text('{"problem": "3+10?"}\n')
    bench[1].write_text('{"problem": "5+10?"}\n{"problem": "99+10?"}\n')
    options = [f"source={source}", f"out={out}", "held_out=1", f"reward.urls=[{service}]"]
    code = cli.main(["data", "build", "deepscaler", *options, f"against=[{bench[0]},{bench[1]}]"])
    said = capsys.readouterr().out
    assert code == 0
    assert "deepscaler: 3 train, 1 validation of 6 read" in said
    assert "dropped       2  evaluation_overlap" in said
    assert "against two.jsonl: 1 rows match 1 of 2 problems" in said
    assert len(RowFile(out / "deepscaler" / "train.parquet")) == 3
    assert cli.main(["data", "list", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "deepscaler         math         3 train, 1 validation" in said
    assert "eurus              code         not built" in said
    assert cli.main(["data", "show", str(out / "deepscaler" / "train.parquet"), "--rows", "1"]) == 0
    said = capsys.readouterr().out
    assert "--- 0 of 3  deepscaler/" in said
    assert "output the final answer within \\boxed{}." in said
    assert "--- 1" not in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bild"], "data bild is not a command: write data list, data build"),
        (["build", "limit=3"], "names no source: write one of deepscaler"),
        (["build", "deepscalr"], "deepscalr is not a source"),
        (["build", "deepscaler", "sorce=x"], "sorce is not an option: did you mean source?"),
        (["build", "deepscaler", "limit=many"], "limit=many has the wrong type: limit takes a whole number"),
        (["build", "deepscaler", "limit=-1"], "limit=-1 is out of range: it must be at least 0"),
        (["build", "scp116k", "model=x"], "write endpoint=URL and model=NAME"),
        (["build", "deepscaler", "against=/no/such"], "/no/such does not exist"),
        (["build", "deepscaler", "eurus", "source=x"], "source= belongs to a single data set"),
        (["build", "all", "source=x", "endpoint=y", "model=z"], "source= belongs to a single data set"),
        (["build", "deepscaler", "source={rows}"], "lacks the column(s) problem"),
        (["show", "/no/such.parquet"], "/no/such.parquet does not exist"),
        (
            ["show", "{rows}", "--rows", "0"],
            "argument --rows: write a whole number of at least 1 instead of 0",
        ),
        (["show", "{rows}", "--from", "3"], "has rows 0 to 2"),
        (["difficulty", "/no/run"], "/no/run has no difficulty/"),
    ],
)
def test_a_mistake_is_one_sentence_and_code_2(
    arguments: list[str], words: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.parquet"
    write_rows(rows, [make_row(f"sums/{index}") for index in range(3)])
    filled = [argument.format(source=source, rows=rows) for argument in arguments]
    out = [f"out={tmp_path / 'data'}"] if arguments[0] == "build" else []
    assert cli.main(["data", *filled, *out]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (tmp_path / "data" / "deepscaler").exists()


def test_all_are_the_papers_sets(tmp_path: Path) -> None:
    options = DataBuildConfig(out=str(tmp_path), endpoint="http://127.0.0.1:1/v1", model="m")
    names = [source.name for source in _chosen(["all"], options)]
    assert names == ["deepscaler", "eurus", "scp116k", "reasoning_gym", "llama_nemotron_if"]


def test_help_of_build_lists_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["data", "build", "--help"])
    text = capsys.readouterr().out
    listed = [*entries(DataBuildConfig), *entries(BegunConfig)]
    options = [entry for entry in listed if isinstance(entry, Option)]
    assert len(options) > 25
    for option in options:
        assert len(option.doc) > 5
        assert f"  {option.key}  (" in text


def test_difficulty_is_a_table_by_domain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_prompts(tmp_path, "difficulty", 1, [make_group("a#0", [1.0, 0.0]), make_group("b#0", [0.0, 0.0])])
    assert cli.main(["data", "difficulty", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["domain", "prompts", "visits", "first", "last", "never", "always"]
    assert lines[1].split() == ["math", "2", "2", "0.250", "0.250", "50.0%", "0.0%"]


def test_a_service_that_dies_while_it_grades_ends_the_build_with_its_last_words(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its requests would otherwise wait for a service that may come back."""
    released, log = threading.Event(), tmp_path / "log"
    log.write_text("out of memory\n")

    @contextmanager
    def running(*_: object) -> Iterator[RewardService]:
        with fake_servers() as make, subprocess.Popen(["sleep", "600"]) as process:
            url = make(lambda items: (500, str(released.wait(60)).encode())).url
            threading.Timer(0.3, process.kill).start()
            try:
                yield RewardService(url=url, process=process, log=log)
            finally:
                released.set()

    monkeypatch.setattr("nemo_prorl.reward_sources.service.running_service", running)
    assert cli.main(["data", "build", "deepscaler", f"source={source}", f"out={tmp_path / 'data'}"]) == 1
    said = capsys.readouterr()
    assert re.search(r"ended with code -9 .*out of memory", said.out + said.err)
