"""Tests of the reader of local files and of the hub's cache; what cannot be read is an error of one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

from nemo_prorl.config import ConfigError
from nemo_prorl.data.building.load import files, locate, read, split_of
from nemo_prorl.data.building.source import get

FORBIDDEN = httpx.Response(403, request=httpx.Request("GET", "http://x"))
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
    (tmp_path / "empty").mkdir()
    for name, words in (("none", "does not exist"), ("empty", "holds no")):
        with pytest.raises(ConfigError, match=words):
            files(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "record", "missing"),
    [
        ("deepscaler", {"question": "q", "answer": "a"}, "problem"),
        ("eurus", {"prompt": [], "ability": "code", "data_source": "x"}, "reward_model"),
        ("scp116k", {"problem": "p", "r1_response": "r"}, "extracted_solution or extract_solution"),
    ],
)
def test_another_schema_is_one_sentence_that_names_the_missing_column(
    tmp_path: Path, name: str, record: dict[str, object], missing: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(record) + "\n")
    with pytest.raises(ConfigError, match=rf"rows\.jsonl lacks the column\(s\) {missing}"):
        list(read(get(name), locate(get(name), str(path), "")))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (GatedRepoError("403", response=FORBIDDEN), "is a gated data set: accept its terms.*`hf auth login`"),
        (RepositoryNotFoundError("404", response=FORBIDDEN), "is neither a local path nor a.*`hf auth login`"),
        (OSError("no route\nto host. Try again."), r"could not be read .*\(OSError: no route to host\).*folder's path"),
    ],
)  # fmt: skip
def test_a_data_set_that_the_hub_refuses_or_that_cannot_be_reached_is_one_sentence(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tests/data/test_own.py reads one from the hub's cache."""

    def refuse(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(ConfigError, match=f"^someone/something .*{words}") as caught:
        locate(get("deepscaler"), "someone/something", "")
    assert "\n" not in str(caught.value)


def test_the_revision_of_a_data_set_of_the_hub_is_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b6ae8c6").mkdir()
    (tmp_path / "b6ae8c6" / "rows.json").write_text(json.dumps(RECORDS))
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(tmp_path / "b6ae8c6"))
    origin = locate(get("deepscaler"), "", "")
    assert (origin.name, origin.revision) == ("agentica-org/DeepScaleR-Preview-Dataset", "b6ae8c6")
    assert len(list(read(get("deepscaler"), origin))) == len(RECORDS)
