"""Tests of users' own files, which are converted once to a complete prompt file in the run's folder, or not at all."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nemo_prorl.config import ConfigError, DataConfig, RewardConfig, RunConfig
from nemo_prorl.data import own
from nemo_prorl.data.inputs import left_out, prompt_lengths
from nemo_prorl.data.mix import PromptMix
from nemo_prorl.data.own import Conversion
from nemo_prorl.data.rows import RowFile, check_distinct, write_rows
from nemo_prorl.reward_sources.service import check_tasks
from tests.conftest import ROOT
from tests.data.conftest import CharacterTokenizer, make_row

RECORDS = [{"prompt": f"{i} + {i}?", "answer": str(2 * i), "level": i} for i in range(5)]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS)
FORMS: dict[str, Callable[[Path], object]] = {
    "p.jsonl": lambda path: path.write_text(LINES),
    "p.jsonl.gz": lambda path: path.write_bytes(gzip.compress(LINES.encode())),
    "p.json": lambda path: path.write_text(json.dumps(RECORDS)),
    "lines.json": lambda path: path.write_text(LINES),
    "p.csv": lambda path: pandas.DataFrame(RECORDS).to_csv(path, index=False),
    "p.parquet": lambda path: pandas.DataFrame(RECORDS).to_parquet(path),
}


def converted(path: Path, folder: Path, *, needs_answer: bool = True) -> tuple[RowFile, str]:
    file, sentence = Conversion(folder=folder, needs_answer=needs_answer).file(str(path), "train")
    return RowFile(file, with_extra=True), sentence


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_a_file_is_the_same_prompts(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    FORMS[name](path)
    file, sentence = converted(path, tmp_path / "run")
    assert [(row.messages[0]["content"], row.task) for row in file] == [
        (record["prompt"], {"answer": record["answer"]}) for record in RECORDS
    ]
    assert [str(row.extra["level"]) for row in file] == list("01234")
    assert sentence.startswith(
        f"{path}: 5 rows, prompts from prompt, answers from answer, domain math. No prompt"
    )
    assert file.path.parent == tmp_path / "run" / "data"
    assert [path.name for path in file.path.parent.iterdir()] == [file.path.name], "nothing half-written"


def test_a_prompt_file_is_read_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "ours.parquet"
    write_rows(path, [make_row("a/0")])
    assert Conversion(folder=tmp_path / "run", needs_answer=True).file(str(path), "train") == (path, "")
    assert not (tmp_path / "run").exists()


def test_the_same_content_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(LINES)
    file, said = converted(path, tmp_path)
    monkeypatch.setattr(own, "_read", None)
    again, said_again = converted(path, tmp_path)
    assert (again.path, list(again), said_again) == (file.path, list(file), said)
    monkeypatch.undo()
    file.path.write_bytes(file.path.read_bytes()[:-9])  # a power cut
    assert list(converted(path, tmp_path)[0]) == list(again)
    for_functions, _ = converted(path, tmp_path, needs_answer=False)
    assert for_functions.path != file.path, "it may have rows without answers"
    path.write_text(LINES.replace("0 + 0", "0 - 0"))
    assert converted(path, tmp_path)[0].path != file.path


def test_the_rest_of_the_trainer_sees_prompts_and_weights(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "p.jsonl").write_text(LINES)
    names = [str(tmp_path / name / "p.jsonl") for name in ("a", "b")]
    (tmp_path / "b" / "p.jsonl").write_text(LINES.replace("+", "and"))
    data, said = Conversion(folder=tmp_path / "run", needs_answer=True).files(
        DataConfig(train={names[0]: 3.0, names[1]: 1.0}, validation=[names[1]])
    )
    assert len(said) == 3
    mix = PromptMix(data.train, seed=1, tokenizer=CharacterTokenizer(), max_prompt_tokens=100)
    taken = mix.take(8)
    assert sum("and" in prompt.text for prompt in taken) == 2, "weights 3 to 1, in every window"
    assert len({prompt.uid for prompt in taken}) == 8


def test_a_folder_without_a_validation_set_is_not_both(tmp_path: Path) -> None:
    """A file that is named for both purposes is used for both."""
    folder = folder_of(tmp_path, "one.jsonl", "two.jsonl")
    conversion = Conversion(folder=tmp_path / "run", needs_answer=True)
    data = DataConfig(train={str(folder): 1.0}, validation=[str(folder)])
    with pytest.raises(
        ConfigError, match=rf"data.validation={folder} and data.train={folder} are the same rows"
    ):
        conversion.files(data)
    twice = DataConfig(train={str(folder / "one.jsonl"): 1.0}, validation=[str(folder / "one.jsonl")])
    data, _ = conversion.files(twice)
    assert [*data.train] == data.validation


def test_every_row_is_a_sign_of_life(tmp_path: Path) -> None:
    path, beats = tmp_path / "p.jsonl", list[int]()
    path.write_text(LINES)
    Conversion(folder=tmp_path, needs_answer=True, beat=lambda: beats.append(1)).file(str(path), "train")
    assert len(beats) == 5


def test_values_of_no_common_type_are_text_and_labels_stay_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    records = [
        {"prompt": "a", "answer": 42, "extra": 1, "empty": {}, "big": 2**80},
        {"prompt": "b", "answer": "x+1", "extra": "one", "empty": {}, "big": 1},
        {"prompt": "c", "answer": 0.5, "extra": {"k": [1]}, "empty": {}, "other": "\ud83d"},
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    file, _ = converted(path, tmp_path)
    assert [row.task["answer"] for row in file] == ["42", "x+1", "0.5"]
    assert [row.extra["extra"] for row in file] == ["1", "one", '{"k": [1]}']
    assert [row.extra["big"] for row in file] == [str(2**80), "1", None]
    assert file[0].extra["empty"] == "{}"
    assert file[2].extra["other"] == "?"


def test_our_columns_with_other_types_are_converted(tmp_path: Path) -> None:
    """As pandas, Polars or datasets write them: a prompt as text and the task as an object, or large strings and the
    fields of a message in another order."""
    path = tmp_path / "p.parquet"
    message = pa.struct([("content", pa.large_string()), ("role", pa.large_string())])
    write_rows(path, [make_row("b", "2+2?")])
    table = pq.read_table(path)
    large = pa.array(table["messages"].to_pylist(), pa.large_list(message))
    pq.write_table(table.set_column(table.column_names.index("messages"), "messages", large), path)
    file, _ = converted(path, tmp_path / "run")
    assert (file.path != path, list(file)) == (True, [make_row("b", "2+2?")])
    rows = [
        {**make_row(f"a/{i}").columns, "messages": f"{i} + {i}?", "task": {"answer": str(2 * i)}}
        for i in range(3)
    ]
    pandas.DataFrame(rows).to_parquet(path)
    file, sentence = converted(path, tmp_path / "run")
    assert file.path != path
    assert "3 rows, prompts from messages, tasks from task" in sentence
    assert [(row.uid, row.messages[0]["content"], row.task) for row in file] == [
        (f"a/{i}", f"{i} + {i}?", {"answer": str(2 * i)}) for i in range(3)
    ]


def test_mistakes_in_a_converted_file_name_what_the_user_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(LINES)
    file, _ = converted(path, tmp_path / "run")
    assert (file.name, file.path == path) == (str(path), False)
    config = RunConfig(data=DataConfig(train={str(file.path): 1.0}))
    lengths = prompt_lengths(config, CharacterTokenizer())
    with pytest.raises(ConfigError, match=f"every prompt of {path} is longer"):
        left_out(lengths, 1)
    monkeypatch.setattr("reward.graders.registry.domains", dict)
    with pytest.raises(ConfigError, match=rf"data file {path}: 5 of 5 .* such as row 0 \(.*\): there is no"):
        check_tasks(RewardConfig(), [str(file.path)])
    path.write_text("".join(json.dumps({**record, "uid": "same"}) + "\n" for record in RECORDS))
    repeated, _ = converted(path, tmp_path / "run")
    with pytest.raises(ConfigError, match=f"such as 'same' in {path}"):
        check_distinct([repeated])


def test_a_question_with_several_answers_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    rows = [("2 + 2?", "4"), ("3 + 3?", "6"), ("2 + 2?", "5"), ("3 + 3?", "6")]
    path.write_text(
        "".join(json.dumps({"prompt": prompt, "answer": answer}) + "\n" for prompt, answer in rows)
    )
    assert " 1 question(s) stand there with several answers" in converted(path, tmp_path)[1]


def test_a_prompt_that_asks_for_the_box_gets_no_hint(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "2 + 2? Answer in \\\\boxed{}.", "answer": "4"}\n')
    assert converted(path, tmp_path)[1].endswith("domain math.")


BAD: dict[str, tuple[str, bytes]] = {
    "no_answer.jsonl": (
        "no answer is recognised among the columns prompt, reply",
        b'{"prompt": "?", "reply": "4"}',
    ),
    "half.jsonl": (
        r"1 of 2 rows cannot be used, and row 1 \(from 0\) has no answer",
        b'{"prompt": "?", "answer": "4"}\n{"prompt": "?"}\n',
    ),
    "torn.jsonl": ("line 2 is not JSON", b'{"prompt": "?", "answer": "4"}\n{"prompt": "?", "ans'),
    "list.jsonl": ("entry 0 is no object", b'["?", "4"]\n'),
    "latin.jsonl": ("cannot be read as jsonl .*utf-8", b'{"prompt": "caf\xe9", "answer": "4"}\n'),
    "empty.jsonl": ("holds no record", b""),
    "fields.csv": ("line 2 has more fields", b"prompt,answer\n?,4,5\n"),
    "twice.jsonl": ("the name answer is there twice", b'{"prompt": "?", "answer": 4, "answer": 5}\n'),
    "twice.csv": ("the name answer is there twice", b"prompt,answer,answer\n?,4,5\n"),
    "deep.jsonl": ("line 1 is not JSON", b'{"prompt": ' + b"[" * 100_000),
    "zeros.jsonl.gz": ("cannot be read as jsonl", gzip.compress(LINES.encode() * 9)[:10] + b"\xff" * 99),
    "header.csv": ("holds no record", b"prompt,answer\n"),
    "broken.parquet": ("cannot be read as parquet", b"PAR1 no PAR1"),
    "torn.jsonl.gz": ("cannot be read as jsonl", gzip.compress(LINES.encode() * 99)[:-20]),
    "notes.txt": ("is of no known kind: write a file that ends in .json, .jsonl, .csv", b"2 + 2?"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_is_one_sentence_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    words, content = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        converted(tmp_path / name, tmp_path / "run")
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_two_columns_of_one_name_in_parquet_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.parquet"
    columns = [pa.array([text]) for text in ("?", "4", "5")]
    pq.write_table(pa.table(columns, names=["prompt", "answer", "answer"]), path)
    with pytest.raises(ConfigError, match="the name answer is there twice"):
        converted(path, tmp_path / "run")


def test_a_prompt_file_with_images_is_read_row_by_row(tmp_path: Path) -> None:
    path = tmp_path / "ours.parquet"
    write_rows(path, [make_row("a/0"), make_row("a/1")])
    table = pq.read_table(path)
    pq.write_table(table.append_column("images", pa.array([[], []], pa.list_(pa.string()))), path)
    assert [row.uid for row in converted(path, tmp_path / "run")[0]] == ["a/0", "a/1"]
    pq.write_table(table.append_column("images", [[[], ["a.png"]]]), path)
    with pytest.raises(ConfigError, match=r"1 of 2 rows cannot be used, and row 1 \(from 0\) has images"):
        converted(path, tmp_path / "run")


def test_answers_of_several_sentences_are_said(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(
        '{"prompt": "\\\\boxed{}?", "answer": "We add them. It is 4."}\n{"prompt": "?", "answer": "4"}\n'
    )
    assert "The answers of 1 rows have several sentences, such as that of p-" in converted(path, tmp_path)[1]


def folder_of(tmp_path: Path, *names: str) -> Path:
    for name in names:
        path = tmp_path / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = LINES.replace("+", name.rpartition("/")[2][:4])
        path.write_text(text)
    return tmp_path / "set"


def questions_in(path: Path) -> set[str]:
    return {row.messages[0]["content"][2:6] for row in RowFile(path)}


def test_of_a_folder_each_split_is_read_by_its_name(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "train-0.jsonl", "train-1.jsonl", "test-0.jsonl", "dataset_infos.json")
    (folder / "train-1.jsonl").write_text(LINES.replace("+", "more"))
    found = {
        split: Conversion(folder=tmp_path, needs_answer=True).file(str(folder), split)
        for split in ("train", "validation")
    }
    assert {split: questions_in(path) for split, (path, _) in found.items()} == {
        "train": {"trai", "more"},
        "validation": {"test"},
    }
    assert found["train"][1].startswith(
        f"{folder} (train-0.jsonl, train-1.jsonl): 10 rows, prompts from prompt"
    )


def test_a_folder_of_several_sets_asks_for_one(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "main/train.jsonl", "socratic/train.jsonl")
    with pytest.raises(ConfigError, match=r"several folders \(main, socratic\): write one of them"):
        converted(folder, tmp_path)
    assert len(converted(folder / "main", tmp_path)[0]) == 5


def hub(home: Path, name: str) -> subprocess.CompletedProcess[str]:
    """Returns the rows of a data set, read in a process without network access."""
    program = (
        "import sys; from pathlib import Path; from nemo_prorl.config import ConfigError\n"
        "from nemo_prorl.data.own import Conversion\n"
        f"conversion = Conversion(folder=Path({str(home / 'run')!r}), needs_answer=True)\n"
        f"try: print(conversion.file({name!r}, 'train')[1])\n"
        "except ConfigError as error: sys.exit(f'ConfigError {error}')\n"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(home)}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def publish(home: Path, revision: str, text: str) -> None:
    """Writes a data set into the hub's cache as a download would."""
    cache = home / "hub" / "datasets--openai--gsm8k"
    (cache / "refs").mkdir(parents=True, exist_ok=True)
    (cache / "refs" / "main").write_text(revision)
    for name in ("main/train-00000-of-00001.jsonl", "socratic/train.jsonl"):
        path = cache / "snapshots" / revision / name
        path.parent.mkdir(parents=True)
        path.write_text(text)


def test_a_run_keeps_the_rows_of_a_data_set_of_the_hub_although_its_publisher_adds_some(
    tmp_path: Path,
) -> None:
    said = "openai/gsm8k/main (train-00000-of-00001.jsonl): {} rows, prompts from prompt"
    publish(tmp_path, "b6ae8c6", LINES)
    done = hub(tmp_path, "openai/gsm8k/main")
    assert done.stdout.startswith(said.format(5)), done.stderr
    publish(tmp_path, "c7bf9d7", LINES + '{"prompt": "6 + 6?", "answer": "12"}\n')
    assert hub(tmp_path, "openai/gsm8k/main").stdout == done.stdout
    (tmp_path / "run").rename(tmp_path / "earlier_run")
    assert hub(tmp_path, "openai/gsm8k/main").stdout.startswith(said.format(6))
