"""Tests of experiments/boundary: every arm is a configuration, counts become tables and figures, and the record is read."""

from __future__ import annotations

import hashlib
import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from experiments.boundary import arms, distance, measure, report, results  # noqa: E402
from experiments.boundary.__main__ import main  # noqa: E402
from nemo_prorl.config.compose import compose  # noqa: E402
from nemo_prorl.data.mix import render  # noqa: E402
from nemo_prorl.demo import build, tasks  # noqa: E402
from nemo_prorl.demo.levels import SHOWN  # noqa: E402
from nemo_prorl.demo.solved import Counts  # noqa: E402
from nemo_prorl.demo.tiny_policy import build_tokenizer, write_random_policy  # noqa: E402

LEVELS = [(name, size) for name, task in tasks.TASKS.items() for size in task.measured]


@pytest.mark.parametrize("arm", arms.ARMS)
def test_every_arm_composes(arm: str) -> None:
    config = compose("laptop", [*arms.COMMON, *arms.ARMS[arm].overrides], conf_dir=ROOT / "conf")
    sequences = config.trainer.prompts_per_step * config.sampler.num_rollouts
    assert sequences == arms.SEQUENCES * config.trainer.updates_per_step
    assert (config.trainer.learning_rate, config.sampler.temperature, config.trainer.updates_per_step) == (
        arms.LEARNING_RATE, arms.RL_TEMPERATURE, arms.UPDATES_PER_STEP,
    ), "the control has the same settings"  # fmt: skip


def test_the_control_learns_from_complete_right_responses_to_rows_it_knows(tmp_path: Path) -> None:
    (problem,) = tasks.problems("sum", 3, count=1, split="train")
    uid = render(problem.row, build_tokenizer()).uid
    tries = [(1.0, "stop", "right"), (0.5, "stop", "half"), (1.0, "length", "cut"), (1.0, "stop", "also")]
    samples = tmp_path / "samples.jsonl"
    lines = [
        {"uid": uid, "score": score, "finish": finish, "response": text} for score, finish, text in tries
    ]
    samples.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert arms.correct_responses(samples) == {problem.row.uid: ["right", "also"]}


def counts(right: int) -> Counts:
    return {f"sum/5/held_out/{number}": (8, right) for number in range(16)}


@pytest.mark.parametrize(
    ("rights", "name", "sharpened"),
    [
        ([0, 1, 8], "sustained", False),
        ([0, 8, 8], "plateau", False),
        ([2, 4, 0], "diminish", False),
        ([7, 7, 8], "diminish", True),  # pass@4 was 1 and stays 1, pass@1 rises
    ],
)
def test_a_level_is_of_the_papers_three_kinds(rights: list[int], name: str, sharpened: bool) -> None:
    change = measure.change([counts(right) for right in rights], 4)
    assert (change.name, change.sharpened) == (name, sharpened)


def test_distances_are_those_of_each_sample_alone(tmp_path: Path) -> None:
    """Padding and batches change nothing, prompts do not count, and the end of a response does."""
    for seed in (1, 2):
        write_random_policy(tmp_path / f"{seed}", seed=seed)
    lines = [
        {
            "uid": "sum/3/held_out/0#0",
            "sibling": sibling,
            "prompt": "<|user|>1+2<|assistant|>",
            "response": response,
            "finish": finish,
        }
        for sibling, response, finish in ((0, "3", "stop"), (1, "<think>12", "length"), (99, "4", "stop"))
    ]
    samples = tmp_path / "samples.jsonl"
    samples.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = distance.distances(tmp_path / "1", tmp_path / "2", samples)["sum"]

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "1")
    models = [AutoModelForCausalLM.from_pretrained(tmp_path / f"{seed}") for seed in (1, 2)]
    kl, entropy = list[float](), list[float]()
    for line, end in zip(lines, (tokenizer.eos_token, ""), strict=False):
        prompt = tokenizer(line["prompt"], add_special_tokens=False)["input_ids"]
        whole = tokenizer(f"{line['prompt']}{line['response']}{end}", add_special_tokens=False)["input_ids"]
        for position in range(len(prompt), len(whole)):
            with torch.no_grad():
                logits = [model(torch.tensor([whole[:position]])).logits[0, -1] for model in models]
            policy, base_policy = (torch.distributions.Categorical(logits=one) for one in logits)
            kl.append(float(torch.distributions.kl_divergence(policy, base_policy)))
            entropy.append(float(policy.entropy()))
    assert found["kl_to_base"] == pytest.approx(statistics.fmean(kl), rel=1e-3)
    assert found["entropy"] == pytest.approx(statistics.fmean(entropy), rel=1e-4)
    assert found["kl_to_base"] > 0


def test_a_run_is_finished_when_its_last_checkpoint_is_measured(tmp_path: Path) -> None:
    (tmp_path / "measured").mkdir()
    names = [
        *("resets-1-0", "resets-1-1", "resets-1-2"),
        *("resets-2-0", "no_resets-3-2", "large_kl-1-1"),
        *("short-2-0", "control-1-0"),
    ]
    for name in names:
        (tmp_path / f"measured/{name}.counts.json").write_text('{"sum/5/held_out/0": [8, 3]}')
    found = measure.finished(tmp_path)
    assert {arm: {seed: len(of) for seed, of in runs.items()} for arm, runs in found.items()} == {
        "resets": {1: 3}, "no_resets": {3: 1}, "short": {2: 1}, "control": {1: 1}
    }  # fmt: skip


def a_run(*checkpoints: Counts, is_trained: bool = True) -> results.Run:
    training = results.Training(
        minutes=1.5,
        rollouts=1000,
        resets=[2],
        curves={metric: [0.25, 0.5, 0.75] for metric in results.METRICS},
        level_rates={"sum/5": [(7.5, 0.5)]},
    )
    return results.Run(
        checkpoints=checkpoints,
        distances={task: {"kl_to_base": 0.25, "entropy": 0.5} for task in SHOWN},
        creativity=None if is_trained else 0.5,
        training=training if is_trained else None,
    )


def some_results(**runs: dict[int, results.Run]) -> results.Results:
    start = {f"{task}/{size}/held_out/0": (8, size % 2) for task, size in LEVELS}
    return results.Results(policy="a", base={1.0: start}, runs=runs)


def a_measurement(right: int) -> Counts:
    return {f"{task}/{size}/held_out/0": (4, right) for task, size in LEVELS}


def test_new_solutions_are_counted_against_what_the_base_never_solved() -> None:
    start = {"sum/5/held_out/0": (8, 0), "sum/5/held_out/1": (8, 0), "sum/5/held_out/2": (8, 3)}
    end = {"sum/5/held_out/0": (8, 1), "sum/5/held_out/1": (8, 4), "sum/5/held_out/2": (8, 0)}
    found = results.Results(policy="a", base={1.0: start}, runs={"resets": {1: a_run(end)}})
    assert report.solved_table(found).splitlines()[2].split(" | ")[1:] == ["2", "1", "1 |"]


def test_results_are_read_as_they_were_written() -> None:
    found = some_results(
        resets={2: a_run(a_measurement(1), a_measurement(2))},
        control={1: a_run(a_measurement(4), is_trained=False)},
    )
    written = results.to_json(found)
    assert results.to_json(results.from_json(written)) == written
    assert report.text(results.from_json(written)) == report.text(found)


def test_recorded_runs_stand_beside_own_ones_of_the_same_base() -> None:
    recorded = some_results(
        resets={1: a_run(a_measurement(1)), 2: a_run(a_measurement(2))}, short={1: a_run(a_measurement(3))}
    )
    both = some_results(resets={2: a_run(a_measurement(4))}).beside(recorded)
    ends = {
        arm: {seed: run.end["sum/5/held_out/0"][1] for seed, run in of.items()}
        for arm, of in both.runs.items()
    }
    assert ends == {"resets": {1: 1, 2: 4}, "short": {1: 3}}, "own runs replace recorded ones"
    other = results.Results(policy="b", base=recorded.base, runs={})
    with pytest.raises(ValueError, match="another base policy"):
        other.beside(recorded)


@pytest.mark.medium
def test_figures_and_tables_are_written_about_any_arms(tmp_path: Path) -> None:
    only_control = some_results(control={1: a_run(a_measurement(4), is_trained=False)})
    report.write(tmp_path, only_control)
    assert {path.name for path in tmp_path.iterdir()} == {
        "boundary.png", "rates.png", "numbers.md", "results.json"
    }  # fmt: skip
    report.write(tmp_path, some_results(resets={1: a_run(*map(a_measurement, (0, 1, 2)))}))
    assert (tmp_path / "training.png").is_file()
    assert (tmp_path / "curves.png").is_file()


def test_the_record_is_of_the_recorded_policy() -> None:
    recorded = results.from_json((ROOT / "experiments/boundary/results.json").read_text(encoding="utf-8"))
    weights = (build.BASE_POLICY / "model.safetensors").read_bytes()
    assert recorded.policy == hashlib.sha256(weights).hexdigest()


@pytest.mark.medium
def test_the_page_of_numbers_is_that_of_the_record() -> None:
    recorded = results.from_json((ROOT / "experiments/boundary/results.json").read_text(encoding="utf-8"))
    assert (ROOT / "experiments/boundary/numbers.md").read_text(encoding="utf-8") == report.text(recorded)


@pytest.mark.parametrize(
    ("text", "error"),
    [(None, "cannot be read"), ("{", "not a results.json"), ('{"date": 1}', "not a results")],
)
def test_what_cannot_be_shown_beside_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
    error: str,
) -> None:
    file = tmp_path / "results.json"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(sys, "argv", ["boundary", "--beside", str(file)])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert error in capsys.readouterr().err


def test_a_quick_run_stands_beside_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["boundary", "--quick", "--beside", str(ROOT / "experiments/boundary/results.json")])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "--quick draws too few samples" in capsys.readouterr().err


@pytest.mark.slow
def test_a_quick_run_measures_trains_and_reports(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "experiments.boundary", "--quick", "--arms", "short", "--out", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True)
    recorded = results.from_json((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert list(recorded.runs) == ["short"]
    assert (tmp_path / "numbers.md").stat().st_size > 0
