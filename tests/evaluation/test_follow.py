"""What `evaluate --follow` measures, with a stub of the processes that export and evaluate. test_end_to_end.py has the
real ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from nemo_prorl import __main__ as cli
from nemo_prorl.config import ConfigError, RunConfig
from nemo_prorl.evaluation import follow as module
from nemo_prorl.evaluation import results
from nemo_prorl.evaluation.follow import follow
from nemo_prorl.run_folder.checkpoints import find_checkpoints
from nemo_prorl.run_folder.lock import alone_at
from nemo_prorl.run_folder.metrics_file import read_metrics
from nemo_prorl.run_folder.origin import write_resolved
from tests.evaluation.test_comparison import result
from tests.training.test_stages import put_checkpoint


class Processes:
    """Exports and evaluates in no time: the score is a tenth of the checkpoint's step."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir, self.folder = run_dir, run_dir / "validations" / "smoke"
        self.measured: list[tuple[str, str]] = []
        """Content of state.json of each model that was evaluated, and the name of the output folder."""
        self.fails = ""
        self.on_export: Callable[[], object] = lambda: None

    def run(self, arguments: Sequence[str], num_ranks: int = 1) -> int:
        command, *words = arguments[1:]
        if command == "export":
            self.on_export()
            if not Path(words[0], "state.json").is_file():
                return 2
            shutil.copytree(words[0], words[1])
        elif command != self.fails:
            given = dict(word.split("=", 1) for word in words if "=" in word)
            out = Path(given["evaluation.out"])
            out.mkdir(parents=True)
            self.measured.append(((Path(given["model.path"]) / "state.json").read_text(), out.name))
            step = int(out.name.split("-")[1])
            results.write(out / results.RESULTS, {}, [result("aime2024", [step, 0], num_samples=10)])
        return int(command == self.fails)


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Processes:
    write_resolved(RunConfig(), tmp_path / "resolved.yaml")
    made = Processes(tmp_path)
    monkeypatch.setattr(module, "run_ranks", made.run)
    return made


def look(processes: Processes) -> list[tuple[int, float]]:
    """Measures what there is; returns step and score of each line."""
    follow(processes.run_dir, "smoke", ["suite=smoke"], num_ranks=1, once=True)
    lines = read_metrics(processes.folder / "metrics.jsonl") if processes.measured else []
    return [(line["step"], line["smoke/aime2024/score"]) for line in lines]


def test_each_checkpoint_is_measured_once_the_oldest_first(
    processes: Processes, capsys: pytest.CaptureFixture[str]
) -> None:
    assert look(processes) == []
    assert "is left to measure; results are in " in capsys.readouterr().err
    for step in (4, 2):
        put_checkpoint(processes.run_dir, "main", step)
    (processes.run_dir / "checkpoints" / "step-00000003-main").mkdir()  # a torn one
    assert look(processes) == [(2, 0.1), (4, 0.2)]
    put_checkpoint(processes.run_dir, "main", 6)
    assert look(processes) == [(2, 0.1), (4, 0.2), (6, 0.3)]
    assert [name for _, name in processes.measured] == [f"step-0000000{step}-main" for step in (2, 4, 6)]
    assert {path.name for path in processes.folder.iterdir() if path.is_file()} == {"metrics.jsonl"}


def test_one_that_the_run_deletes_while_it_is_read_is_measured_and_one_before_is_left_out(
    processes: Processes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (put_checkpoint(processes.run_dir, "main", step) for step in (2, 4))

    def delete() -> None:
        for one in (first, second):
            shutil.rmtree(one, ignore_errors=True)

    processes.on_export = delete
    assert look(processes) == [(2, 0.1)]
    assert not find_checkpoints(processes.run_dir)
    third = put_checkpoint(processes.run_dir, "main", 6)

    def refuse(source: str, target: str) -> None:
        raise PermissionError("no hard links here")

    monkeypatch.setattr(module.os, "link", refuse)
    processes.on_export = lambda: shutil.rmtree(third)
    assert look(processes) == [(2, 0.1)]
    assert "step-00000006-main was deleted before it was read: it is left out" in capsys.readouterr().err


def test_a_step_that_was_trained_again_is_measured_again(processes: Processes) -> None:
    put_checkpoint(processes.run_dir, "main", 2)
    look(processes)
    shutil.rmtree(processes.run_dir / "checkpoints")
    shutil.rmtree(processes.folder / "step-00000002-main")
    put_checkpoint(processes.run_dir, "main", 2, entropy=0.7)
    assert look(processes) == [(2, 0.1), (2, 0.1)]
    assert "0.7" in processes.measured[1][0]


@pytest.mark.parametrize("fails", ["export", "evaluate"])
def test_a_failure_ends_it_and_the_next_start_goes_on(processes: Processes, fails: str) -> None:
    put_checkpoint(processes.run_dir, "main", 2)
    processes.fails = fails
    with pytest.raises(ConfigError, match="step-00000002-main cannot be measured"):
        look(processes)
    assert not (processes.folder / "metrics.jsonl").exists()
    processes.fails = ""
    assert look(processes) == [(2, 0.1)]


def test_options_that_cannot_be_read_are_named_before_anything_is_measured(processes: Processes) -> None:
    put_checkpoint(processes.run_dir, "main", 2)
    (processes.run_dir / "resolved.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match=r"resolved\.yaml is not readable YAML"):
        look(processes)
    assert not processes.measured


def test_one_at_a_time_follows_with_a_suite(processes: Processes) -> None:
    with (
        alone_at(processes.folder / "lock", ""),
        pytest.raises(ConfigError, match="another evaluate follows"),
    ):
        look(processes)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--once", "suite=smoke"],
            "evaluate with benchmarks does not read --once, which belongs to --follow",
        ),
        (["--follow", "RUN", "data=a.jsonl"], "does not read data, which belongs to data=FILE"),
        (["--follow", "RUN", "suite=smoke", "out=a"], "does not read out, which belongs to benchmarks"),
        (["--follow", "RUN", "suite=smoke", "model.path=a"], "leave model.path out"),
        (["--follow", "RUN"], "--follow needs benchmarks"),
        (["--follow", "RUN", "suite=smoke"], "write --ranks N instead of torchrun"),
        (["--follow", "suite=smoke"], "--follow suite=smoke is no run that has begun"),
    ],
)
def test_what_cannot_be_followed_is_one_sentence(
    processes: Processes,
    words: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2" if "--ranks N" in said else "1")
    assert cli.main(["evaluate", *(word.replace("RUN", str(processes.run_dir)) for word in words)]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
