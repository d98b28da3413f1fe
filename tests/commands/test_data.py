"""`data show`: rows as a run reads them, and what a run would refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nemo_prorl.commands import data
from nemo_prorl.config import ConfigError
from nemo_prorl.data.own import Conversion
from nemo_prorl.data.rows import SCHEMA, write_rows
from nemo_prorl.run_folder.difficulty import write_prompts
from tests.data.conftest import make_row
from tests.training.conftest import make_group


def shown(capsys: pytest.CaptureFixture[str], file: Path, *arguments: str) -> str:
    assert data.main(["show", str(file), *arguments]) == 0
    return capsys.readouterr().out


def test_rows_that_a_run_takes_are_shown_as_it_reads_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"problem": "2 + 2?", "solution": "so\\n#### 4"}\n' * 3)
    said = shown(capsys, file, "--rows=1", "--from=2")
    assert f"{file}: 3 rows, prompts from problem, answers from solution, domain math." in said
    assert "--- 2 of 3  p/2  math  p  train\nuser:\n    2 + 2?\ntask:\n    answer: 4\n" in said
    assert "refuse" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["p.jsonl"], "it writes nothing"
    with pytest.raises(ConfigError, match=r"--from 3 is out of range: .* has rows 0 to 2"):
        data.main(["show", str(file), "--from=3"])


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ([{"prompt": "?", "answer": "4"}, {"prompt": "?", "answer": None}], "has no answer"),
        ([{"prompt": "?", "answer": "4"}, {"prompt": "?", "answer": [4]}], "has a label in answer that is no task"),
        ([{"prompt": "?", "answer": "4"}, {"prompt": "?", "answer": True}], "has a label in answer that is no task"),
        ([{"prompt": "?", "answer": "4"}, {"prompt": "", "answer": "4"}], "has an empty prompt"),
        ([{"question": "?", " answer": "4"}], "no answer is recognised among the columns ' answer', question"),
    ],
)  # fmt: skip
def test_what_a_run_refuses_is_said_in_its_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], records: list[dict[str, object]], says: str
) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    said = shown(capsys, file)
    assert "A run refuses this file: " in said
    with pytest.raises(ConfigError) as refused:
        Conversion(folder=tmp_path / "run", needs_answer=True).file(str(file), "train")
    for text in (said, str(refused.value)):
        assert says in text
    if len(records) > 1:
        assert f"--- 1 of 2  a run refuses it: {says}" in said
        assert "Reward functions alone" in said or "empty" in says


def test_difficulty_without_torn_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (1, 2):
        write_prompts(tmp_path, "difficulty", step, [make_group(f"a#{step}", [1.0, 0.0])])
    torn = tmp_path / "difficulty" / "step-00000002.parquet"
    torn.write_bytes(torn.read_bytes()[:-5])
    assert data.main(["difficulty", str(tmp_path)]) == 0
    assert "math          1       1  0.500" in capsys.readouterr().out
    (tmp_path / "difficulty" / "step-00000001.parquet").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"no file of .* can be read: restore the folder"):
        data.main(["difficulty", str(tmp_path)])


def test_a_prompt_file_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ours.parquet"
    write_rows(file, [make_row("a/0"), make_row("a/1")])
    assert "--- 1 of 2  a/1  " in shown(capsys, file)
    table = pq.read_table(file)
    broken = pa.array([table["task"][0].as_py(), '{"answer": NaN}'])
    pq.write_table(table.set_column(SCHEMA.get_field_index("task"), "task", broken), file)
    assert "--- 1 of 2  a run refuses it: " in (said := shown(capsys, file))
    assert "the task is not a JSON object" in said
