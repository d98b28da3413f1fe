"""Tests on other people's original files: the training source with its two schemas, the evaluation sets with their
six."""

from __future__ import annotations

import gzip
import json
from contextlib import suppress
from pathlib import Path

import pytest

from nemo_prorl import __main__ as cli
from nemo_prorl.data import records
from nemo_prorl.data.building.source import BOX_SUFFIX, NoRow
from nemo_prorl.data.rows import RowFile
from nemo_prorl.evaluation import catalogue
from nemo_prorl.evaluation.prompts import load
from nemo_prorl.evaluation.schemas import human_eval
from reward.graders.code import grader
from reward.sandbox.execution import Sandbox
from reward.sandbox.probe import strongest

pytestmark = pytest.mark.slow

EVALUATION = {
    "aime2024": "aime24.jsonl",
    "amc": "amc23.jsonl",
    "minerva": "minerva_math.jsonl",
    "olympiadbench": "olympiadbench.jsonl",
    "codecontests": "code_contests_60.json",
    "codeforces": "codeforces_60.json",
    "humaneval": "HumanEval.jsonl.gz",
    "ifeval": "ifeval_outputs.jsonl",
}
"""Benchmark -> the file that it must find by itself."""
SUFFIXES = {
    "math": BOX_SUFFIX,
    "code": "```",
    "instruction": "",
}
"""Domain -> text that its prompts must contain; instruction prompts get no addition."""


@pytest.fixture(scope="module")
def benchmarks_dir(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with all evaluation files, as a user would put them there."""
    folder = tmp_path_factory.mktemp("benchmarks")
    for path in (*(real_data / "eval").iterdir(), real_data / "ifeval_outputs.jsonl"):
        (folder / path.name).symlink_to(path)
    return folder


def num_records(path: Path) -> int:
    if path.suffix == ".json":
        return len(json.loads(path.read_text()))
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return sum(bool(line.strip()) for line in content.splitlines())


@pytest.mark.parametrize("name", EVALUATION)
def test_an_evaluation_set_is_read_as_it_is(name: str, benchmarks_dir: Path) -> None:
    """Every record becomes a problem, except for a few duplicates, and HumanEval's whose tests are not literal."""
    (loaded,), missing = load([catalogue.get(name)], benchmarks_dir)
    assert not missing
    found = num_records(benchmarks_dir / EVALUATION[name])
    assert (0.94 if name == "humaneval" else 0.98) * found <= len(loaded.rows) <= found
    suffix = SUFFIXES[loaded.benchmark.domain]
    assert all(suffix in row.messages[0]["content"] for row in loaded.rows)
    assert all(row.task for row in loaded.rows)


def test_the_canonical_solutions_of_human_eval_pass_its_tests(real_data: Path) -> None:
    problems = []
    for record in records.read(real_data / "eval" / EVALUATION["humaneval"]):
        with suppress(NoRow):
            problems.append(human_eval.convert(record))
    assert len(problems) == 155
    level, reasons = strongest()
    if level is None:
        pytest.skip("; ".join(reasons))
    sandbox = Sandbox(level)
    grades = [grader.grade(sandbox, problem.gold or "", problem.task) for problem in problems]
    sandbox.close()
    assert [grade.verdict for grade in grades] == ["correct"] * len(problems)


def test_the_training_source_is_built_from_both_of_its_schemas(
    real_data: Path, service: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = real_data / "deepscaler", tmp_path / "data"
    found = sum(num_records(path) for path in source.glob("*.json"))
    against = f"against=[{','.join(map(str, sorted((real_data / 'eval').glob('*.jsonl'))))}]"
    options = [f"source={source}", f"out={out}", f"reward.urls=[{service}]", against]
    code = cli.main(["data", "build", "deepscaler", *options])
    assert code == 0
    assert "deepscaler: " in capsys.readouterr().out
    manifest = json.loads((out / "deepscaler" / "manifest.json").read_text())
    kept = len(RowFile(out / "deepscaler" / "train.parquet"))
    assert manifest["num_read"] == found
    assert kept + sum(manifest["dropped"].values()) == found
    assert manifest["num_proved_by_gold"] == kept
    # Some MATH problems are AIME problems, and a few of the evaluation problems are among them.
    assert set(manifest["dropped"]) <= {
        "duplicate", "duplicate_with_other_answer", "evaluation_overlap", "no_answer",
    }  # fmt: skip
    assert kept > 0.93 * found
