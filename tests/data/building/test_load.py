"""Tests of the reader of local files and of the hub's cache; what cannot be read is an error of one sentence."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

from nemo_prorl.config import ConfigError
from nemo_prorl.data.building import load
from nemo_prorl.data.building.load import check, files, locate, read, split_of
from nemo_prorl.data.building.source import get
from tests.conftest import ROOT

RECORDS = [{"problem": f"{i}+{i}?", "answer": str(2 * i), "difficulty": 1.5} for i in range(5)]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS)


def test_a_folder_is_read_in_the_order_of_names_each_file_in_its_own_schema(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text(json.dumps([{"problem": "p", "answer": "1", "year": 1983}]))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.jsonl").write_text('{"problem": "q", "answer": 2, "type": "Algebra"}\n')
    (tmp_path / "README.md").write_text("not data")
    origin = locate(get("deepscaler"), str(tmp_path), "")
    records = list(read(get("deepscaler"), origin))
    assert [(record.origin, record.values["answer"]) for record in records] == [
        ("x.jsonl:0", 2),
        ("b.json:0", "1"),
    ]
    assert origin.name == "x.jsonl, b.json"


def test_the_revision_of_local_files_is_their_content(tmp_path: Path) -> None:
    for folder, text in (("one", LINES), ("same", LINES), ("other", LINES + "\n" + LINES)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rows.jsonl").write_text(text)
    one, same, other = (
        locate(get("deepscaler"), str(tmp_path / n), "").revision for n in ("one", "same", "other")
    )
    assert one == same != other


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train.parquet", "train"),
        ("validation.parquet", "validation"),
        ("test-00000-of-00002.parquet", "validation"),
        ("math.json", "train"),
        ("latest.json", "train"),
        ("contest.jsonl", "train"),
        ("code_val.jsonl", "validation"),
    ],
)
def test_the_split_is_in_the_name(name: str, split: str) -> None:
    assert split_of(name) == split


def test_what_is_not_there_or_not_data_is_one_sentence(tmp_path: Path) -> None:
    """tests/data/test_own.py has files that cannot be read."""
    (tmp_path / "notes.txt").write_text("no data")
    (tmp_path / "empty").mkdir()
    for name, words in (("none", "does not exist"), ("notes.txt", r"not \.json"), ("empty", "holds no")):
        with pytest.raises(ConfigError, match=words):
            files(tmp_path / name)


def test_a_source_that_is_nowhere_wants_files() -> None:
    nowhere = dataclasses.replace(get("deepscaler"), hub_id="")
    with pytest.raises(ConfigError, match="deepscaler names no data set on the hub: write source=FILE"):
        check(nowhere, "")


@pytest.mark.parametrize(
    ("name", "record", "missing"),
    [
        ("deepscaler", {"question": "q", "answer": "a"}, "problem"),
        ("eurus", {"prompt": [], "ability": "code", "data_source": "x"}, "reward_model"),
        (
            "scp116k",
            {"problem": "p", "r1_response": "r"},
            "extracted_solution or extract_solution or matched_solution",
        ),
        ("llama_nemotron_if", {"input": []}, "args"),
    ],
)
def test_another_schema_is_one_sentence_that_names_the_missing_column(
    tmp_path: Path, name: str, record: dict[str, object], missing: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(record) + "\n")
    with pytest.raises(ConfigError, match=rf"rows\.jsonl lacks the column\(s\) {missing}"):
        list(read(get(name), locate(get(name), str(path), "")))


def offline(home: Path, given: str) -> subprocess.CompletedProcess[str]:
    """Reads deepscaler in a process that may not use the network."""
    program = (
        "import sys; from nemo_prorl.config import ConfigError\n"
        "from nemo_prorl.data.building.load import locate, read; from nemo_prorl.data.building.source import get\n"
        "source = get('deepscaler')\n"
        f"try: origin = locate(source, {given!r}, '')\n"
        "except ConfigError as error: sys.exit(f'ConfigError {error}')\n"
        "print(origin.name, origin.revision, [record.values['answer'] for record in read(source, origin)])"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_data_set_of_the_hub_is_read_from_its_cache_at_its_commit(tmp_path: Path) -> None:
    cache = tmp_path / "hub" / "datasets--agentica-org--DeepScaleR-Preview-Dataset"
    (cache / "snapshots" / "b6ae8c6").mkdir(parents=True)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("b6ae8c6")
    (cache / "snapshots" / "b6ae8c6" / "deepscaler.json").write_text(json.dumps(RECORDS))
    done = offline(tmp_path, "")
    assert done.stdout.strip() == (
        "agentica-org/DeepScaleR-Preview-Dataset b6ae8c6 ['0', '2', '4', '6', '8']"
    ), done.stderr


def test_a_hub_that_cannot_be_reached_is_one_sentence(tmp_path: Path) -> None:
    done = offline(tmp_path, "someone/something")
    assert done.returncode == 1
    assert "ConfigError someone/something is not a local path and could not be read" in done.stderr
    assert "write the folder's path" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.count("(") == done.stderr.count(")"), "nothing is cut off in the middle"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (GatedRepoError, "is a gated data set: accept its terms"),
        (RepositoryNotFoundError, "is neither a local path nor a public data set"),
    ],
)
def test_a_data_set_that_the_hub_refuses(
    kind: type[HfHubHTTPError], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise kind("403 Client Error", response=httpx.Response(403, request=httpx.Request("GET", "http://x")))

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(ConfigError, match=f"^someone/something {words}.*`hf auth login`"):
        load.download("someone/something")
