"""Tests of prompt files: they are read as written, and any other file is refused with one sentence."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_prorl.config import ConfigError
from nemo_prorl.data.rows import (
    MAX_SOURCES,
    SCHEMA,
    Row,
    RowFile,
    check_distinct,
    names_of_sources,
    read_content,
    split_answer,
    write_rows,
)
from nemo_prorl.run_folder.storage import replacing_file
from tests.data.conftest import make_row

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
ROLES = st.sampled_from(["system", "user", "assistant"])
MESSAGE = st.fixed_dictionaries({"role": ROLES, "content": TEXT.filter(bool)})
ROWS = st.lists(
    st.builds(
        Row,
        uid=TEXT,
        domain=TEXT,
        source=TEXT,
        split=TEXT,
        messages=st.lists(MESSAGE, min_size=1, max_size=3)
        .map(tuple)
        .filter(lambda turns: split_answer(turns)[0]),
        task=st.dictionaries(TEXT, JSON, max_size=3),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda row: row.uid,
)


@pytest.mark.medium
@settings(deadline=None, max_examples=50)
@given(rows=ROWS)
def test_rows_come_back_as_they_were_written(
    rows: list[Row], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    write_rows(path, rows)
    file = RowFile(path)
    assert [file[index] for index in range(len(file))] == rows


def test_the_fingerprint_is_of_the_content_wherever_it_lies(tmp_path: Path) -> None:
    write_rows(tmp_path / "here.parquet", [make_row("a")])
    write_rows(tmp_path / "deep" / "there.parquet", [make_row("a")])
    write_rows(tmp_path / "other.parquet", [make_row("a", "another question")])
    here, there, other = (
        read_content(tmp_path / name) for name in ("here.parquet", "deep/there.parquet", "other.parquet")
    )
    assert here == there != other


def test_a_reader_never_sees_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.parquet"
    write_rows(path, [make_row("old")])

    def breaks(table: pa.Table, where: Path, **_: Any) -> None:
        Path(where).write_bytes(b"PAR1 and then the power went")
        raise OSError("no space left on device")

    monkeypatch.setattr(pq, "write_table", breaks)
    with pytest.raises(OSError, match="no space"):
        write_rows(path, [make_row("new")])
    assert RowFile(path)[0].uid == "old"
    assert os.listdir(tmp_path) == ["rows.parquet"], "nothing is left behind"


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_task_that_is_not_json_is_refused_when_written(tmp_path: Path, number: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_rows(tmp_path / "rows.parquet", [make_row("a", task={"answer": number})])
    assert list(tmp_path.iterdir()) == []


def _table(**changes: Any) -> pa.Table:
    columns: dict[str, Any] = {
        "uid": ["a", "b"],
        "domain": ["math", "math"],
        "source": ["s", "s"],
        "split": ["train", "train"],
        "messages": [[{"role": "user", "content": "2+2?"}]] * 2,
        "task": ['{"answer": "4"}'] * 2,
    }
    return pa.table({name: values for name, values in (columns | changes).items() if values is not None})


def _written(table: pa.Table) -> Callable[[Path], object]:
    return lambda path: pq.write_table(table, path)


WRONG_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: None, "does not exist"),
    "folder": (lambda path: path.mkdir(), "does not exist"),
    "empty file": (lambda path: path.write_bytes(b""), "not Parquet"),
    "jsonl": (lambda path: path.write_text('{"uid": "a"}\n'), "not Parquet"),
    "damaged": (lambda path: _damage(path), "not Parquet"),
    "no rows": (_written(_table().slice(0, 0)), "no rows"),
    "columns missing": (_written(_table(task=None, uid=None)), r"lacks the column\(s\) uid, task"),
    "question as text": (_written(_table(messages=["2+2?"] * 2)), "messages"),
    "large strings": (_written(_table(uid=pa.array(["a", "b"], pa.large_string()))), "uid as large_string"),
    "task as struct": (_written(_table(task=[{"answer": 4}] * 2)), "task"),
    "uid null": (_written(_table(uid=["a", None])), "uid"),
    "task null": (_written(_table(task=["{}", None])), "task"),
    "uid twice": (_written(_table(uid=["a", "a"])), "'a'"),
}  # fmt: skip


def _damage(path: Path) -> None:
    """Copies a file and destroys its metadata, but not its footer."""
    write_rows(path, [make_row("a")])
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + bytes(len(whole) - 12) + whole[-8:])


@pytest.mark.parametrize("name", WRONG_FILES)
def test_a_wrong_file_is_one_sentence_that_names_it(tmp_path: Path, name: str) -> None:
    prepare, words = WRONG_FILES[name]
    path = tmp_path / "prompts.parquet"
    prepare(path)
    with pytest.raises(ConfigError, match=words) as caught:
        check_distinct([RowFile(path)])
    assert "prompts.parquet" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_task_that_is_no_json_object_names_its_row(tmp_path: Path) -> None:
    path = tmp_path / "prompts.parquet"
    for text in ("{'answer': 4}", '["4"]'):
        pq.write_table(_table(task=["{}", text]), path)
        assert RowFile(path)[0].task == {}
        with pytest.raises(ConfigError, match=r"row 1 \(b\).* task"):
            RowFile(path)[1]


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "user", "content": ""}],
        [{"role": "assistant", "content": "It is"}],
        [{"role": "user", "content": ""}, {"role": "assistant", "content": "It is"}],
        [{"role": "user", "content": None}],
        [{"role": None, "content": "2+2?"}],
        [None],
    ],
)
def test_a_row_without_anything_to_ask_names_itself(tmp_path: Path, messages: list[Any]) -> None:
    path = tmp_path / "prompts.parquet"
    asks = [{"role": "user", "content": "2+2?"}]
    pq.write_table(_table(messages=[asks, messages]).cast(SCHEMA), path)
    with pytest.raises(ConfigError, match=r"row 1 \(b\) has no messages with role and content"):
        RowFile(path)[1]


def test_text_that_is_not_utf_8_names_its_row(tmp_path: Path) -> None:
    latin = pa.array([b"caf\xe9"], pa.binary()).view(pa.string())
    table = _table().slice(0, 1)
    table = table.set_column(table.column_names.index("task"), "task", latin)
    pq.write_table(table, tmp_path / "prompts.parquet")
    with pytest.raises(ConfigError, match=r"row 0 has text that is not UTF-8"):
        RowFile(tmp_path / "prompts.parquet")[0]


def test_writers_in_containers_with_the_same_process_id_do_not_meet(tmp_path: Path) -> None:
    with replacing_file(tmp_path / "rows.parquet") as one, replacing_file(tmp_path / "rows.parquet") as other:
        one.write_text("one")
        other.write_text("other")
        assert one.read_text() == "one"
    assert os.listdir(tmp_path) == ["rows.parquet"]


def test_a_uid_may_stand_in_one_file_only(tmp_path: Path) -> None:
    for name, uids in (("one", "ab"), ("two", "bc"), ("three", "cd")):
        write_rows(tmp_path / f"{name}.parquet", [make_row(uid, name) for uid in uids])
    one, two, three = (RowFile(tmp_path / f"{name}.parquet") for name in ("one", "two", "three"))
    check_distinct([one, three])
    with pytest.raises(ConfigError, match=r"'b'.*one\.parquet.*two\.parquet"):
        check_distinct([one, two])


def test_a_file_is_plain_parquet(tmp_path: Path) -> None:
    """docs/data.md promises that any tool can read it, and that the task is JSON text."""
    write_rows(tmp_path / "rows.parquet", [make_row("a", task={"answer": "½"})])
    table = pq.read_table(tmp_path / "rows.parquet")
    assert table.schema == SCHEMA
    assert json.loads(table.column("task")[0].as_py()) == {"answer": "½"}
    assert os.listdir(tmp_path) == ["rows.parquet"]


@pytest.mark.parametrize(
    ("sources", "names"),
    [
        (["math:a", "math:b"], {"a": "a", "b": "b"}),
        (["math:a", "logic:b/x", "logic:b/y"], {"a": "a", "b/x": "b.x", "b/y": "b.y"}),
        (["math:a", "logic:b"], {}),  # no more than the domains tell
        (["math:a", "logic:a"], {}),
        (
            ["math:other", *(f"math:set/{number}" for number in range(MAX_SOURCES))],
            {"other": "other", **{f"set/{number}": "set" for number in range(MAX_SOURCES)}},
        ),
        ([f"math:{number}" for number in range(MAX_SOURCES + 1)], {}),
    ],
)
def test_sources_have_names_where_they_tell_more_than_domains_and_are_few(
    sources: list[str], names: dict[str, str], tmp_path: Path
) -> None:
    rows = [make_row(text, domain=text.split(":")[0], source=text.split(":")[1]) for text in sources]
    files = [tmp_path / "first.parquet", tmp_path / "others.parquet"]
    write_rows(files[0], rows[:1])
    write_rows(files[1], rows[1:])
    assert names_of_sources([*map(str, files)]) == names


def test_a_source_has_the_same_name_in_training_and_held_out(tmp_path: Path) -> None:
    train, held_out = tmp_path / "train.parquet", tmp_path / "held_out.parquet"
    sources = ["own", *(f"set/{number}" for number in range(MAX_SOURCES))]
    write_rows(train, [make_row("x", source=source) for source in sources])
    write_rows(held_out, [make_row("x", source=source) for source in ("set/1", "other/2")])
    names = names_of_sources([str(train)], [str(held_out)])
    assert (names["set/1"], names["set/2"], names["other/2"]) == ("set", "set", "other.2")
