"""Tests `evaluate` with the real engines and graders and a random policy, killed in the middle."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from nemo_prorl.evaluation import results
from nemo_prorl.run_folder.metrics_file import read_metrics
from nemo_prorl.run_folder.run import RunFolder
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


def command(case: Case, *words: str) -> list[str]:
    return [
        "evaluate", "--config-name", str(case.folder / "tiny.yaml"), f"data_dir={case.folder}",
        "benchmarks=ifeval,aime24", f"reward.urls=[{case.url}]", "evaluation.chunk_samples=5",
        "sampler.max_prompt_tokens=0", *words,
    ]  # fmt: skip


def out(case: Case, folder: Path) -> list[str]:
    return command(case, f"model.path={case.folder / 'policy'}", f"out={folder}")


def kill_once_it_samples(arguments: list[str], file: Path, log: Path) -> None:
    process = start_forked(arguments, log)
    deadline = time.monotonic() + TIMEOUT_S
    while process.is_alive() and time.monotonic() < deadline:
        if file.is_file() and file.stat().st_size:
            process.kill()
            break
        time.sleep(0.01)
    process.join()


def test_a_killed_evaluation_goes_on_to_the_same_results(case: Case, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    said = run_forked(out(case, whole))
    assert "IFEval" in said
    file = killed / "samples" / "ifeval.rank0.jsonl"
    kill_once_it_samples(out(case, killed), file, tmp_path / "killed.txt")
    run_forked(out(case, killed))
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


def test_a_follower_that_was_killed_measures_each_checkpoint_as_evaluate_does(
    case: Case, tmp_path: Path
) -> None:
    case.train_forked("run", "exp_manager.create_tensorboard_logger=true")
    run_dir = case.run_dir("run")
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    folder, suite = run_dir / "validations" / "ifeval+aime24", "ifeval+aime24"
    names = [f"step-0000000{step}-main" for step in (1, 2)]
    follow = command(case, "--follow", str(run_dir))
    samples = folder / names[1] / "samples" / "ifeval.rank0.jsonl"
    kill_once_it_samples(follow, samples, tmp_path / "follow.txt")
    assert samples.read_text().count("response") < 6 * 4, "it was killed too late for this test"
    run_forked(follow)  # ends, because the run has
    lines = read_metrics(folder / "metrics.jsonl")
    assert [(line["step"], line["stage"]) for line in lines] == [(1, "main"), (2, "main")]
    assert {path.name for path in folder.iterdir()} == {*names, "metrics.jsonl", "tensorboard"}
    model = tmp_path / "model"
    run_forked(["export", str(run_dir / "checkpoints" / names[1]), str(model)])
    run_forked(command(case, f"model.path={model}", f"out={tmp_path / 'alone'}"))
    (header, expected), (mine, found) = results.read(tmp_path / "alone"), results.read(folder / names[1])
    assert (found, mine["key"]) == (expected, header["key"])
    assert lines[1][f"{suite}/ifeval/score"] == expected["ifeval"].score.value
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    assert len(rows) == len({(row["uid"], row["sample"], "response" in row) for row in rows}) == 2 * 6 * 4
    assert f"followed/{suite}.ifeval" in RunFolder(run_dir).metric_names
    assert {path: path.read_bytes() for path in before} == before, "the run's own files are as they were"
    curve = EventAccumulator(str(folder / "tensorboard")).Reload().Scalars(f"{suite}/ifeval/score")
    assert [(point.step, point.value) for point in curve] == [
        (line["step"], pytest.approx(line[f"{suite}/ifeval/score"])) for line in lines
    ]
    run_forked([*follow, "--once"])
    assert read_metrics(folder / "metrics.jsonl") == lines
