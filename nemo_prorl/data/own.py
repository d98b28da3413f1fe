"""Data files as people have them -> prompt files, so that everything else reads one format.

What `data.train` and `data.validation` name is a file, a folder, or a data set on the Hugging Face hub, in one of the
layouts of layouts.py. It is converted once, into FOLDER/data/NAME-KEY.parquet, where KEY stands for the content: the
same files give the same name, and a file that is there is whole.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nemo_prorl.compose import is_hub_name
from nemo_prorl.config import ConfigError, DataConfig
from nemo_prorl.data import records
from nemo_prorl.data.building import load
from nemo_prorl.data.layouts import BadRecord, recognise, row_of
from nemo_prorl.data.rows import SCHEMA, Row, table_of, write_table

VERSION = "1"
"""Changes with what a conversion makes of the same files."""
DESCRIPTION = b"nemo_prorl.description"
"""The entry of the Parquet metadata that holds the sentence on what was recognised."""


def prompt_files(data: DataConfig, folder: Path, *, needs_answer: bool) -> tuple[DataConfig, list[str]]:
    """(data with prompt files in place of everything else, a sentence on each file that was converted).

    needs_answer: whether the reward service grades. Raises ConfigError, one sentence, for what cannot be read."""
    said: list[str] = []

    def converted(name: str, split: str) -> str:
        path, sentence = prompt_file(name, folder, split=split, needs_answer=needs_answer)
        said.extend([sentence] if sentence else [])
        return str(path)

    return (
        dataclasses.replace(
            data,
            train={converted(name, "train"): weight for name, weight in data.train.items()},
            validation=[converted(name, "validation") for name in data.validation],
        ),
        said,
    )


def prompt_file(name: str, folder: Path, *, split: str, needs_answer: bool) -> tuple[Path, str]:
    """(the prompt file with what `name` holds, what was recognised or an empty text). Raises ConfigError."""
    if Path(name).is_file() and set(SCHEMA.names) <= set(_parquet_columns(Path(name))):
        return Path(name), ""
    files = _files(name, split)
    digest = hashlib.sha256(f"{VERSION}/{needs_answer}".encode())
    for file in files:
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    key = digest.hexdigest()[:12]
    path = folder / "data" / f"{_stem(name)}-{key}.parquet"
    if not path.is_file():
        _convert(name, files, path, split=split, needs_answer=needs_answer)
    return path, pq.read_schema(path).metadata[DESCRIPTION].decode()


def _files(name: str, split: str) -> list[Path]:
    """The data files behind a name: a file itself; of a folder or a data set on the hub those of one kind whose names
    say that they are of this split, or all where no name does."""
    if Path(name).is_file():
        return [Path(name)]
    folder = Path(name)
    if not folder.exists() and is_hub_name(name):
        owner, repository, *inside = name.split("/")
        folder = load.download(f"{owner}/{repository}").joinpath(*inside)
    found = load.files(folder)
    if found == [folder]:
        return found
    kinds = [records.kind_of(file) for file in found]
    kind = next(kind for kind in (".parquet", ".jsonl", ".csv", ".json") if kind in kinds)
    found = [file for file in found if records.kind_of(file) == kind]
    of_split = [file for file in found if load.split_of(str(file.relative_to(folder))) == split] or found
    places = sorted({str(file.relative_to(folder).parent) for file in of_split})
    if len(places) > 1:
        raise ConfigError(
            f"{name} holds data in several folders ({', '.join(places)}): write one of them, such as "
            f"{name}/{places[-1]}."
        )
    return of_split


def _convert(name: str, files: Sequence[Path], path: Path, *, split: str, needs_answer: bool) -> None:
    """Writes the prompt file aside and renames it. Raises ConfigError."""
    rows, raw = [], []
    found = itertools.chain.from_iterable(load.rows_of(file) for file in files)
    first = next(found)
    try:
        layout = recognise(first.keys() - {None}, needs_answer=needs_answer)
    except ConfigError as error:
        raise ConfigError(f"data file {name}: {error}") from None
    bad: list[str] = []
    for index, values in enumerate(itertools.chain([first], found)):
        uid = f"{path.stem}/{index}"
        try:
            row = row_of(values, layout, uid=uid, source=_stem(name), split=split, needs_answer=needs_answer)
            rows.append(row)
            raw.append({key: value for key, value in values.items() if key not in SCHEMA.names})
        except BadRecord as error:
            bad.append(f"row {index} {error}")
    if bad:
        raise ConfigError(
            f"data file {name}: {len(bad)} of {len(rows) + len(bad)} rows cannot be used, and {bad[0]}: correct such "
            "rows, or leave them out."
        )
    table = table_of(rows)
    for column in dict.fromkeys(key for values in raw for key in values):
        table = table.append_column(column, _column([values.get(column) for values in raw]))
    sentence = (
        f"{name}: {len(rows):,} row{'s' if len(rows) > 1 else ''}, {layout}, {_described(rows, needs_answer)}"
    )
    table = table.replace_schema_metadata({DESCRIPTION: sentence.encode()})
    write_table(path, table)


def _column(values: list[Any]) -> pa.Array:
    """Values of one type as they are, others as text: JSON knows no types of columns."""
    with suppress(pa.ArrowException, OverflowError, TypeError, ValueError):
        array = pa.array(values)
        if not _is_empty(array.type):
            return array
    texts = [value if isinstance(value, str | None) else json.dumps(value, default=str) for value in values]
    return pa.array([text and text.encode(errors="replace").decode() for text in texts], type=pa.string())


def _is_empty(kind: pa.DataType) -> bool:
    """Whether it is an object without fields, or nothing but null, somewhere inside: Parquet cannot hold the one, and
    readers disagree about the other."""
    if pa.types.is_struct(kind):
        return kind.num_fields == 0 or any(_is_empty(field.type) for field in kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _is_empty(kind.value_type)
    return bool(pa.types.is_null(kind))


def _described(rows: Sequence[Row], needs_answer: bool) -> str:
    """Domains, and a hint where the service looks for answers in a box that no prompt asks for."""
    domains = sorted({row.domain for row in rows})
    text = f"domain {', '.join(domains)}."
    boxed = [row for row in rows if needs_answer and row.domain in ("math", "stem")]
    if boxed and not any("boxed" in message["content"] for row in boxed for message in row.messages):
        text += (
            " No prompt asks for the answer within \\boxed{}, and the graders of math and stem look for it there: "
            "unless the model does so by itself, add that to the prompts."
        )
    return text


def _parquet_columns(path: Path) -> list[str]:
    try:
        return list(pq.read_schema(path).names)
    except (pa.ArrowException, OSError):
        return []


def _stem(name: str) -> str:
    """The name of a file or data set, without what it ends in, as part of other names."""
    last = Path(name).name or Path(name).resolve().name
    for kind in sorted(records.KINDS, key=len, reverse=True):
        last = last.removesuffix(kind)
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in last)
