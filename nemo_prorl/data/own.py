"""Data files as people have them -> prompt files, so that everything else reads one format.

What `data.train` and `data.validation` name is a file, a folder, or a data set on the Hugging Face hub, in one of the
layouts of layouts.py. It is converted once, into FOLDER/data/NAME-KEY.parquet, where KEY stands for the content: the
same files give the same name. A data set on the hub is fetched for the first conversion only, so that a run that is
resumed takes the same rows although its publisher has changed it. A check before a run uses what is converted already,
and converts the rest into another folder, which it deletes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from nemo_prorl.config import ConfigError, DataConfig, is_hub_name
from nemo_prorl.data import records
from nemo_prorl.data.building import load
from nemo_prorl.data.layouts import BadRecord, is_media, is_prose, recognise, row_of
from nemo_prorl.data.rows import CONVERTED_FROM, SCHEMA, Row, read_content, table_of, write_table
from nemo_prorl.run_folder.storage import read_json, replace_text
from reward.rows import ANSWER_DOMAINS

VERSION = "2"
"""Changes with what a conversion makes of the same files."""
DESCRIPTION = b"nemo_prorl.description"
"""The entry of the Parquet metadata that holds the sentence on what was recognised."""
FROM_HUB = "hub.json"
"""Beside the converted files: the name of the file that was made of each data set on the hub."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """Makes prompt files of data files as people have them."""

    folder: Path
    """The run's, whose files are not converted again."""
    needs_answer: bool
    """Whether the reward service grades."""
    into: Path | None = None
    """Where new files go, by default the run's folder."""
    beat: Callable[[], object] = lambda: None
    """Is called for every row that is converted."""

    def files(self, data: DataConfig) -> tuple[DataConfig, list[str]]:
        """Returns `data` with prompt files in place of everything else, and a sentence on each file that was converted.

        Raises ConfigError, one sentence, for what cannot be read, or for a folder or data set that is not divided into
        training and validation and is named for both."""
        training = {name: self.file(name, "train") for name in data.train}
        validation = {name: self.file(name, "validation") for name in data.validation}
        for held_out, name in itertools.product(validation, training):
            is_same = validation[held_out][0] == training[name][0]
            if is_same and not (_is_one_file(held_out) and _is_one_file(name)):
                raise ConfigError(
                    f"data.validation={held_out} and data.train={name} are the same rows, because the names of the "
                    "data files do not tell training from validation: write one file, or one folder, for each."
                )
        train = {str(training[name][0]): weight for name, weight in data.train.items()}
        held_out_files = [str(validation[name][0]) for name in data.validation]
        sentences = [sentence for _, sentence in (*training.values(), *validation.values()) if sentence]
        return dataclasses.replace(data, train=train, validation=held_out_files), sentences

    def file(self, name: str, split: str) -> tuple[Path, str]:
        """Returns the prompt file with what `name` holds, and what was recognised, or an empty text if nothing had to
        be converted. Raises ConfigError."""
        if Path(name).is_file() and is_prompt_file(Path(name)):
            return Path(name), ""
        if Path(name).exists() or not is_hub_name(name):
            return self._converted(name, split)
        entry = f"{name} {split}{'' if self.needs_answer else ' without answers'}"
        for place in self._places:
            known = read_json(place / FROM_HUB).get(entry, "")
            if known and (sentence := _description(place / known)):
                return place / known, sentence
        path, sentence = self._converted(name, split)
        record = self._places[-1] / FROM_HUB
        replace_text(record, json.dumps({**read_json(record), entry: path.name}, indent=1) + "\n")
        return path, sentence

    @property
    def _places(self) -> tuple[Path, Path]:
        return self.folder / "data", (self.into or self.folder) / "data"

    def _converted(self, name: str, split: str) -> tuple[Path, str]:
        """Converts the files of a name, unless there is a file of their content, and returns what `file` does."""
        files = _files(name, split)
        digest = hashlib.sha256(f"{VERSION}/{self.needs_answer}".encode())
        for file in files:
            digest.update(bytes.fromhex(read_content(file).sha256))
        stem = f"{_stem(name)}-{digest.hexdigest()[:12]}"
        for path in (place / f"{stem}.parquet" for place in self._places):
            if sentence := _description(path):
                return path, sentence
        reading = _read(name, files, split=split, needs_answer=self.needs_answer, stem=stem, beat=self.beat)
        if reading.refusal:
            raise ConfigError(f"data file {name}: {reading.refusal}.")
        rows = [row for row in reading.rows if isinstance(row, Row)]
        metadata = {DESCRIPTION: reading.sentence.encode(), CONVERTED_FROM: name.encode()}
        write_table(path, table_of(rows).replace_schema_metadata(metadata))
        return path, _description(path)


def is_prompt_file(path: Path) -> bool:
    """Returns whether a file has our columns, in our types, and no images. A file with the names alone, such as one
    whose tasks are objects, is converted like any other."""
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError):
        return False
    names = set(schema.names)
    if not set(SCHEMA.names) <= names or len(names) < len(schema.names) or any(map(is_media, names)):
        return False
    return all(schema.field(field.name).type == field.type for field in SCHEMA)


def _files(name: str, split: str) -> list[Path]:
    """Returns the data files behind a name: a file itself, or the files of one kind in a folder or a data set on the
    hub. Leaves out those whose names say that they belong to another split."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedRow:
    """A row that a run refuses."""

    where: str
    """Such as "row 3 (from 0)"."""
    why: str
    """Completes the sentence that begins with `where`."""
    row: Row | None
    """What reward functions would get, which need no answer; None if it has no prompt either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReading:
    """What a run makes of the rows of a data file."""

    sentence: str
    """What was recognised, for people."""
    rows: tuple[Row | RejectedRow, ...]

    @property
    def refusal(self) -> str:
        """How many rows are refused, with an example; empty if a run takes all of them."""
        refused = [row for row in self.rows if isinstance(row, RejectedRow)]
        if not refused:
            return ""
        return (
            f"{len(refused):,} of {len(self.rows):,} rows cannot be used, and {refused[0].where} {refused[0].why}: "
            "correct such rows, or leave them out"
        )


def read(name: str, *, needs_answer: bool) -> FileReading:
    """Reads what `name` holds without writing anything. Raises ConfigError for what cannot be read, or if no layout is
    recognised, and not for rows that cannot be used."""
    return _read(name, _files(name, "train"), split="train", needs_answer=needs_answer, stem=_stem(name))


def _read(
    name: str,
    files: Sequence[Path],
    *,
    split: str,
    needs_answer: bool,
    stem: str,
    beat: Callable[[], object] = lambda: None,
) -> FileReading:
    """Reads the rows of files. stem: the beginning of the uids of rows that have none. Raises ConfigError."""
    found = ((file, index, values) for file in files for index, values in enumerate(load.rows_of(file)))
    first = next(found)
    try:
        layout = recognise(first[2], needs_answer=needs_answer)
    except ConfigError as error:
        raise ConfigError(f"data file {name}: {error}") from None
    rows: list[Row | RejectedRow] = []
    for number, (file, index, values) in enumerate(itertools.chain([first], found)):
        beat()
        make = partial(row_of, values, layout, uid=f"{stem}/{number}", source=_stem(name), split=split)
        try:
            extra = {key: value for key, value in values.items() if key not in SCHEMA.names}
            rows.append(dataclasses.replace(make(needs_answer=needs_answer), extra=extra))
        except BadRecord as error:
            row = None
            with suppress(BadRecord):
                row = make(needs_answer=False)
            where = f"row {index} (from 0){f' of {file.name}' if len(files) > 1 else ''}"
            rows.append(RejectedRow(where=where, why=str(error), row=row))
    names = [file.name for file in files]
    listed = ", ".join(names) if len(names) <= 3 else f"{names[0]} to {names[-1]}, {len(names)} files"
    taken = "" if _is_one_file(name) else f" ({listed})"
    num_rows = f"{len(rows):,} row{'s' if len(rows) > 1 else ''}"
    whole = [row for row in rows if isinstance(row, Row)]
    return FileReading(
        sentence=f"{name}{taken}: {num_rows}, {layout}, {_described(whole, needs_answer)}",
        rows=tuple(rows),
    )


def _described(rows: Sequence[Row], needs_answer: bool) -> str:
    """Domains, and a hint where the service looks for answers in a box that no prompt asks for, where a question has
    several answers, or where answers are no answers that stand in a box."""
    domains = sorted({row.domain for row in rows})
    text = f"domain {', '.join(domains)}." if domains else "no row of use."
    boxed = [row for row in rows if needs_answer and row.domain in ANSWER_DOMAINS]
    if boxed and not any("boxed" in message["content"] for row in boxed for message in row.messages):
        text += (
            " No prompt asks for the answer within \\boxed{}, and the graders of math and stem look for it there: "
            "unless the model does so by itself, add that to the prompts, or grade another form by reward.function."
        )
    answers = defaultdict[str, set[str]](set)
    for row in boxed:
        answers[json.dumps(row.messages)].add(str(row.task.get("answer", "")))
    if contradictory := sum(len(of_question) > 1 for of_question in answers.values()):
        text += (
            f" {contradictory:,} question(s) stand there with several answers, as after a broken join: what one row "
            "pays, another does not."
        )
    prose = [row for row in boxed if is_prose(str(row.task.get("answer", "")))]
    if prose:
        text += (
            f" The answers of {len(prose):,} rows have several sentences, such as that of {prose[0].uid}, which hardly "
            "any response repeats: give the answer alone, or the working with the answer in \\boxed{}."
        )
    return text


def _is_one_file(name: str) -> bool:
    return name.endswith(records.KINDS)


def _description(path: Path) -> str:
    """The sentence in a converted file; empty where there is no such file, or a torn one."""
    try:
        return (pq.read_schema(path).metadata or {}).get(DESCRIPTION, b"").decode()
    except (pa.ArrowException, OSError):
        return ""


def _stem(name: str) -> str:
    """The name of a file or data set, without what it ends in, as part of other names."""
    last = Path(name).name or Path(name).resolve().name
    for kind in sorted(records.KINDS, key=len, reverse=True):
        last = last.removesuffix(kind)
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in last)
