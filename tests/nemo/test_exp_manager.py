"""Tests runs whose loggers NeMo's exp_manager creates. They have an environment of their own: `make test-nemo`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.config import ConfigError, ExpManagerConfig, RunConfig, UseNemo
from nemo_prorl.run_folder.loggers import lightning_loggers
from nemo_prorl.run_folder.metrics_file import read_metrics
from nemo_prorl.run_folder.nemo_toolkit import MORE, OFF, OURS, nemo_loggers
from nemo_prorl.run_folder.telemetry import RunLog, Telemetry
from nemo_prorl.types import RunState
from tests.training.tiny import Case, assert_close, make_case, steps

if importlib.util.find_spec("nemo") is None:
    pytest.skip("`make test-nemo` runs these, with NeMo installed", allow_module_level=True)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory, service: str) -> Case:
    return make_case(tmp_path_factory.mktemp("nemo"), service)


def telemetry(folder: Path, state: RunState | None = None, **options: Any) -> Telemetry:
    return Telemetry(
        RunConfig(
            exp_manager=ExpManagerConfig(
                explicit_log_dir=str(folder), create_tensorboard_logger=True, **options
            )
        ),
        log=RunLog(folder, speaks=True),
        state=state or RunState(stage="main"),
    )


def record(step: int, **numbers: float) -> dict[str, Any]:
    return {"step": step, "stage": "main", "num_resets": 0, **numbers}


def scalars(folder: Path, key: str) -> list[tuple[int, float]]:
    """Returns the scalars as TensorBoard shows them, which reads all event files of a folder as one."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder)).Reload()
    return [(event.step, event.value) for event in accumulator.Scalars(key)]


def test_every_field_is_one_of_nemos() -> None:
    from nemo.utils.exp_manager import ExpManagerConfig as NemoConfig

    assert {*OURS, *MORE, *OFF, "explicit_log_dir"} <= set(NemoConfig.__dataclass_fields__)


def test_nemos_logger_gets_every_number_and_forgets_what_a_resumed_run_does_again(tmp_path: Path) -> None:
    with telemetry(tmp_path) as log:
        for step in range(5):
            log.step(record(step, loss=1.0), stage_step=step)
    assert scalars(tmp_path / "nemo", "loss") == [(step, 1.0) for step in range(5)]
    with telemetry(tmp_path, RunState(stage="main", step=2, num_records=3)) as log:
        for step in (3, 4):
            log.step(record(step, loss=2.0), stage_step=step)
    assert scalars(tmp_path / "nemo", "loss") == [(0, 1.0), (1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0)]


def test_exp_manager_moves_no_file_of_the_run(tmp_path: Path) -> None:
    """exp_manager moves all files of its folder into run_0, which would include the metrics."""
    for state in (RunState(stage="main"), RunState(stage="main", step=0, num_records=1)):
        with telemetry(tmp_path, state) as log:
            log.step(record(state.num_records), stage_step=state.num_records)
    assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [0, 1]
    assert list(tmp_path.glob("run_*")) == []
    assert (tmp_path / "nemo" / "run_0" / "cmd-args.log").is_file()


def test_nemo_adds_nothing_that_checkpoints_resumes_or_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the folder has something that it could resume from."""
    import nemo.utils.exp_manager as nemos

    shelves: list[Any] = []

    def watched(shelf: Any, fields: dict[str, Any], really: Any = nemos.exp_manager) -> None:
        shelves.append(shelf)
        really(shelf, fields)

    monkeypatch.setattr(nemos, "exp_manager", watched)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "x-last.ckpt").touch()
    nemo_loggers(
        ExpManagerConfig(explicit_log_dir=str(tmp_path), max_time_per_run="00:00:00:01"), first_step=0
    )
    (shelf,) = shelves
    assert shelf.ckpt_path is None
    assert [callback for callback in shelf.callbacks if type(callback).__module__.startswith("nemo")] == []
    assert shelf.checkpoint_callback is None
    assert not (tmp_path / "nemo" / "checkpoints").exists()


def test_a_slurm_job_of_many_tasks_makes_no_demands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning's own Slurm environment refuses one device if a node has eight tasks."""
    job = {
        "JOB_NAME": "prorl",
        "NTASKS": "32",
        "NTASKS_PER_NODE": "8",
        "NNODES": "4",
        "PROCID": "0",
        "LOCALID": "0",
    }
    for name, value in job.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    (logger,) = nemo_loggers(
        ExpManagerConfig(explicit_log_dir=str(tmp_path), create_tensorboard_logger=True), first_step=0
    )
    assert Path(logger.log_dir) == tmp_path / "nemo"


def test_nemo_is_silent_on_standard_output_even_if_it_was_imported_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from nemo.utils import logging

    logging.reset_stream_handler()
    nemo_loggers(ExpManagerConfig(explicit_log_dir=str(tmp_path)), first_step=0)
    logging.info("said later")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Experiments will be logged" in printed.err
    assert "said later" in printed.err


def test_fields_that_only_nemo_has_are_passed_on(tmp_path: Path) -> None:
    (tmp_path / "recipe.txt").write_text("why")
    more = {
        "files_to_copy": [str(tmp_path / "recipe.txt")],
        "summary_writer_kwargs": {"filename_suffix": ".mine"},
    }
    with telemetry(tmp_path, use_nemo=UseNemo.always, nemo_kwargs=more) as log:
        log.step(record(0, loss=1.0), stage_step=0)
    assert (tmp_path / "nemo" / "recipe.txt").read_text() == "why"
    assert list((tmp_path / "nemo").glob("events.*.mine"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"create_wandb_logger": True}, "name and project are required"),
        ({"nemo_kwargs": {"create_neptune_logger": True}}, "name and project are required"),
        ({"nemo_kwargs": {"summary_writer_kwargs": {"log_dir": "elsewhere"}}}, "log_dir"),
    ],
)
def test_what_exp_manager_refuses_is_one_sentence(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        telemetry(tmp_path, use_nemo=UseNemo.always, **options)
    assert "\n" not in str(caught.value)


def test_the_same_numbers_reach_both_tensorboards(tmp_path: Path) -> None:
    for maker, folder in ((nemo_loggers, "nemo"), (lightning_loggers, "tensorboard")):
        config = ExpManagerConfig(explicit_log_dir=str(tmp_path), create_tensorboard_logger=True)
        (logger,) = maker(config, first_step=0)
        logger.log_metrics({"loss": 0.5}, step=3)
        logger.finalize("success")
        assert scalars(tmp_path / folder, "loss") == [(3, 0.5)]


RUN = ["trainer.num_steps=1", "validation.max_prompts=1", "exp_manager.create_tensorboard_logger=true"]


@pytest.fixture(scope="module")
def trained(case: Case) -> Path:
    """Folder of a run on the real engines with NeMo's loggers."""
    printed = case.train("with", *RUN, "exp_manager.use_nemo=always")
    assert "NeMo" not in printed, "standard output belongs to results"
    return case.run_dir("with")


@pytest.mark.slow
def test_train_runs_beside_nemo(trained: Path) -> None:
    rewards = [(step["step"], pytest.approx(step["reward/mean"])) for step in steps(trained)]
    assert scalars(trained / "nemo", "reward/mean") == rewards
    assert [path.name for path in (trained / "checkpoints").iterdir()] == ["step-00000001-main"]
    assert not (trained / "tensorboard").exists()


@pytest.mark.slow
def test_a_run_takes_the_very_same_steps_without_nemo(case: Case, trained: Path) -> None:
    """NeMo must not change any random state, thread count or default: the steps are equal bit by bit."""
    case.train("without", *RUN, "exp_manager.use_nemo=never")
    (actual,), (expected,) = steps(trained), steps(case.run_dir("without"))
    assert_close(actual, expected, 0.0)
