"""Tests `evaluate` with the real engines and graders and a random policy, killed in the middle."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from nemo_prorl.evaluation import results
from tests.training.tiny import TIMEOUT_S, Case, make_case, rows, run_forked, start_forked

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory, service: str) -> Case:
    case = make_case(tmp_path_factory.mktemp("case"), service)
    lines = [
        {
            "prompt": row.messages[0]["content"],
            **{key: row.task[key] for key in ("instruction_id_list", "kwargs")},
        }
        for row in rows("test", 6)
    ]
    (case.folder / "ifeval.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return case


def command(case: Case, out: Path) -> list[str]:
    return [
        "evaluate", "--config-name", str(case.folder / "tiny.yaml"),
        f"model.path={case.folder / 'policy'}", f"data_dir={case.folder}", "benchmarks=ifeval,aime24", f"out={out}",
        f"reward.urls=[{case.url}]", "evaluation.chunk_samples=5", "sampler.max_prompt_tokens=0",
    ]  # fmt: skip


def test_a_killed_evaluation_goes_on_to_the_same_results(case: Case, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    said = run_forked(command(case, whole))
    assert "IFEval" in said
    file = killed / "samples" / "ifeval.rank0.jsonl"
    process = start_forked(command(case, killed), tmp_path / "killed.txt")
    deadline = time.monotonic() + TIMEOUT_S
    while process.is_alive() and time.monotonic() < deadline:
        if file.is_file() and file.stat().st_size:
            process.kill()
            break
        time.sleep(0.01)
    process.join()
    run_forked(command(case, killed))
    (header, expected), (_, found) = results.read(whole), results.read(killed)
    assert found == expected
    assert list(header["missing"]) == ["aime2024"]
    assert header["grader_version"], "the service said which graders it has"
    assert header["measured"]["graders"] == header["grader_version"]
    assert header["measured"]["prompts of ifeval"].startswith("6 (hash ")
    assert found["ifeval"].num_missing == 0
    assert 0 < found["ifeval"].reward < 1, "a random policy follows some of the instructions"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert (
        len(lines) == len({(line["uid"], line["sample"], "response" in line) for line in lines}) == 2 * 6 * 4
    )


def test_two_ranks_find_the_limits_of_a_file_and_score_it_as_one(case: Case, tmp_path: Path) -> None:
    options = [
        "evaluate", "--config-name", str(case.folder / "tiny.yaml"), f"model.path={case.folder / 'policy'}",
        f"data={case.folder / 'held_out.parquet'}", f"reward.urls=[{case.url}]", "sampler.max_prompt_tokens=0",
        "sampler.max_response_tokens=0",
    ]  # fmt: skip
    said, samples = {}, {}
    for num_ranks in (1, 2):
        file = tmp_path / f"{num_ranks}.jsonl"
        said[num_ranks] = run_forked([*options, "--samples", str(file)], num_ranks=num_ranks)
        samples[num_ranks] = sorted(file.read_text().splitlines())
    assert said[1] == said[2]
    assert samples[1] == samples[2]
    assert len(samples[1]) == 2 * 4
