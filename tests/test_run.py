"""Tests of what a resumed stage must not change, and of who may start a failed stage again."""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack
from pathlib import Path
from threading import get_ident
from typing import Any

import pytest

from nemo_prorl import run
from nemo_prorl.cluster.slurm_queue import is_gone
from nemo_prorl.commands.parsing import CONF_DIR
from nemo_prorl.config import (
    AlgorithmConfig,
    ConfigError,
    DataConfig,
    ExpManagerConfig,
    ModelConfig,
    Precision,
    Recompute,
    RunConfig,
    SamplerConfig,
    StageConfig,
    TrainerConfig,
    ValidationConfig,
)
from nemo_prorl.config.compose import compose
from nemo_prorl.data.mix import PromptMix
from nemo_prorl.data.rows import write_rows
from nemo_prorl.engines.interface import NonFiniteUpdate
from nemo_prorl.run import (
    load_inputs,
    record_options,
    train,
)
from nemo_prorl.run_folder.checkpoints import Checkpoint
from nemo_prorl.run_folder.lock import alone_in
from nemo_prorl.run_folder.markers import (
    ask_for_reset,
    done_marker,
    failed_marker,
    mark_done,
    mark_failed,
    reset_request,
    why_failed,
)
from nemo_prorl.run_folder.origin import write_resolved
from nemo_prorl.run_folder.starts import read_starts
from nemo_prorl.run_folder.telemetry import RunLog
from nemo_prorl.training import stages
from nemo_prorl.training.checkpoint import CheckpointNotSaved
from nemo_prorl.training.stages import (
    StartingPoint,
    check_not_beyond,
    check_not_failed,
    check_same_run,
    clear_marks,
    restore_prompts,
)
from nemo_prorl.training.trainer import StoppedByController
from nemo_prorl.types import RunState
from tests.data.conftest import FRAME_TOKENS, CharacterTokenizer, make_row
from tests.test_cli import ARCHITECTURE
from tests.training.conftest import SINGLE
from tests.training.thread_ranks import ThreadRanks, run_as_ranks


def begin_stage(run_dir: Path) -> None:
    write_resolved(RunConfig(data=DataConfig(train={"a.parquet": 1.0})), run_dir / "stages" / "main.yaml")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"seed": 2}, "seed"),
        ({"model": ModelConfig(path="other")}, "model.path"),
        ({"model": ModelConfig(precision=Precision.fp32)}, "model.precision"),
        ({"data": DataConfig(train={"b.parquet": 1.0})}, "data.train"),
        ({"data": DataConfig(train={"a.parquet": 1.0}, validation=["c.parquet"])}, "data.validation"),
    ],
)
def test_other_prompts_another_order_or_another_model_are_refused(
    tmp_path: Path, changes: dict[str, object], key: str
) -> None:
    begin_stage(tmp_path)
    config = RunConfig(**({"data": DataConfig(train={"a.parquet": 1.0})} | changes))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"was begun with {key}="):
        check_same_run(config, tmp_path)


def test_the_order_of_the_files_stays(tmp_path: Path) -> None:
    """It decides which of two files of equal weight comes first."""
    files = [("b.parquet", 1.0), ("a.parquet", 1.0)]
    begun, now = (RunConfig(data=DataConfig(train=dict(order))) for order in (files, files[::-1]))
    write_resolved(begun, tmp_path / "stages" / "main.yaml")
    check_same_run(begun, tmp_path)
    with pytest.raises(ConfigError, match=r"was begun with data\.train="):
        check_same_run(now, tmp_path)


@pytest.mark.parametrize("left", [0, 20, 300])
def test_a_damaged_record_of_the_options_is_named(tmp_path: Path, left: int) -> None:
    begin_stage(tmp_path)
    recorded = tmp_path / "stages" / "main.yaml"
    recorded.write_text(recorded.read_text()[:left])
    with pytest.raises(ConfigError, match=rf"{recorded} cannot be read .*: bring back .* remove it to go on"):
        check_same_run(RunConfig(), tmp_path)


def test_what_may_be_tuned_on_the_way_passes(tmp_path: Path) -> None:
    begin_stage(tmp_path)
    config = RunConfig(
        data=DataConfig(train={"a.parquet": 1.0}),
        algorithm=AlgorithmConfig(kl_beta=0.1),
        model=ModelConfig(recompute=Recompute.full),  # the memory was too small for longer responses
    )
    check_same_run(config, tmp_path)
    check_same_run(config, tmp_path / "never begun")


def test_a_stage_that_has_taken_more_steps_than_it_is_to_take_is_refused() -> None:
    state = RunState(stage="main", step=8, stage_step=8)
    checkpoint = Checkpoint(path=Path("step-8"), state=state, score=None, monitor="", reference_hash="")
    start = StartingPoint(checkpoint=checkpoint, is_resume=True)
    for num_steps in (8, 9):
        check_not_beyond(TrainerConfig(num_steps=num_steps), start)
    with pytest.raises(
        ConfigError, match=r"taken 8 steps already, and trainer.num_steps=5: write trainer.num_steps=8"
    ):
        check_not_beyond(TrainerConfig(num_steps=5), start)


def mix(folder: Path, num_rows: int) -> PromptMix:
    path = folder / "prompts.parquet"
    write_rows(path, [make_row(f"prompts/{index}") for index in range(num_rows)])
    return PromptMix({str(path): 1.0}, seed=1, tokenizer=CharacterTokenizer(), max_prompt_tokens=100)


def test_other_rows_under_the_same_name_are_refused(tmp_path: Path) -> None:
    """The cursor counts rows of the old content, so it would skip new rows or repeat some."""
    state = RunState(stage="main", prompts=mix(tmp_path, 5).state())
    assert restore_prompts(mix(tmp_path, 5), state, is_resume=True) == []
    with pytest.raises(
        ConfigError, match=r"content of data\.train has changed since stage main was begun"
    ) as caught:
        restore_prompts(mix(tmp_path, 6), state, is_resume=True)
    assert "\n" not in str(caught.value)
    (new,) = restore_prompts(mix(tmp_path, 6), state, is_resume=False)
    assert new == str(tmp_path / "prompts.parquet"), "the next stage may have others"


@pytest.mark.parametrize(("restarts", "refused"), [("0", False), ("1", True), ("12", True)])
def test_a_failed_stage_is_started_again_by_users_not_by_launchers(
    tmp_path: Path, restarts: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    check_not_failed(tmp_path, "main")
    mark_failed(tmp_path, "main", reason="Loss is NaN.")
    if refused:
        with pytest.raises(ConfigError, match=r"stage main in .* failed: Loss is NaN"):
            check_not_failed(tmp_path, "main")
    else:
        check_not_failed(tmp_path, "main")
    assert failed_marker(tmp_path, "main").exists(), "only a start takes it away, not a look"


def stage_config(run_dir: Path, name: str, parent: str = "") -> RunConfig:
    return RunConfig(
        stage=StageConfig(name=name, parent=parent),
        exp_manager=ExpManagerConfig(explicit_log_dir=str(run_dir)),
    )


def test_a_start_takes_away_that_the_stage_failed(tmp_path: Path) -> None:
    for stage in ("main", "other"):
        mark_failed(tmp_path, stage, reason="Loss is NaN.")
    clear_marks(tmp_path, StageConfig(name="main"), print)
    assert not failed_marker(tmp_path, "main").exists()
    assert failed_marker(tmp_path, "other").exists()


def test_what_ended_a_run_is_told_though_there_is_no_room_to_write_it_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise CheckpointNotSaved("checkpoint step-00000002-main could not be saved")

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run, "initialise", lambda *_, **__: SINGLE)
    monkeypatch.setattr(run, "run_stage", fail)
    monkeypatch.setattr(RunLog, "note", no_room)
    with pytest.raises(CheckpointNotSaved):
        train(stage_config(tmp_path, "main"))


def test_a_step_that_is_not_finite_fails_the_stage_on_a_gpu_when_it_was_so_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain of weeks must not wait for a person because of one gradient that the next process may not have."""

    def not_finite(*_: object) -> None:
        error = NonFiniteUpdate("Update 25 has loss nan.")
        error.step = 7
        raise error

    monkeypatch.setattr(run, "initialise", lambda *_, **__: SINGLE)
    monkeypatch.setattr(run, "run_stage", not_finite)
    monkeypatch.setattr(run, "has_cuda", lambda: True)
    failures = []
    for _ in range(2):
        with pytest.raises(NonFiniteUpdate):
            train(stage_config(tmp_path, "main"))
        failures.append(why_failed(tmp_path, "main"))
    assert failures == ["", "Update 25 has loss nan."]
    assert (tmp_path / "run.log").read_text().count("a restart tries the step once more") == 1


def test_loggers_are_closed_when_all_that_launchers_look_for_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may take a minute, and the launcher kills the main rank 5 s after the others have ended."""
    written: list[str] = []

    def see() -> None:
        written.append(why_failed(tmp_path, "main"))
        written.append((tmp_path / "run.log").read_text().strip().split(" ", 1)[1])
        written.extend(start.end for start in read_starts(tmp_path))

    def stop(*arguments: Any) -> None:
        at_the_end: ExitStack = arguments[-1]
        at_the_end.callback(see)
        raise StoppedByController("it stopped")

    monkeypatch.setattr(run, "initialise", lambda *_, **__: SINGLE)
    monkeypatch.setattr(run, "run_stage", stop)
    with pytest.raises(StoppedByController):
        train(stage_config(tmp_path, "main"))
    assert written == ["it stopped", "error: it stopped", "it stopped"]


@pytest.mark.parametrize(("asked_s", "withdrawn"), [(-1, True), (1, False)])
def test_a_reset_that_was_asked_of_the_parent_is_not_the_childs(
    tmp_path: Path, asked_s: int, withdrawn: bool
) -> None:
    """A request from before the parent's end is dropped; a later one is meant for the child."""
    mark_done(tmp_path, "a", outcome="steps", checkpoint="step-00000004-a")
    ended_ns = done_marker(tmp_path, "a").stat().st_mtime_ns
    clear_marks(tmp_path, StageConfig(name="b", parent="a"), print)
    ask_for_reset(tmp_path)
    os.utime(reset_request(tmp_path), ns=(0, ended_ns + asked_s * 10**9))
    clear_marks(tmp_path, StageConfig(name="a"), print)
    assert reset_request(tmp_path).exists()
    clear_marks(tmp_path, StageConfig(name="b", parent="a"), print)
    assert reset_request(tmp_path).exists() != withdrawn


def test_the_main_rank_says_for_all_that_a_stage_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shared file system may show the others an older folder, and a rank that goes on alone would wait for ever."""
    asked: list[str] = []
    monkeypatch.setattr(stages, "is_done", lambda *_: not asked.append("once"))  # type: ignore[func-returns-value]
    of_thread: dict[int, ThreadRanks] = {}
    monkeypatch.setattr(run, "initialise", lambda *_, **__: of_thread[get_ident()])

    def as_rank(ranks: ThreadRanks) -> int:
        of_thread[get_ident()] = ranks
        return train(stage_config(tmp_path, "main"))

    assert run_as_ranks(as_rank, 3, 1, 1) == [0, 0, 0]
    assert asked == ["once"]
    assert capsys.readouterr().out.count("is already done") == 1


def test_a_second_process_is_kept_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "initialise", lambda *_, **__: SINGLE)
    with alone_in(tmp_path, is_gone), pytest.raises(ConfigError, match=rf"is training in {tmp_path}"):
        train(stage_config(tmp_path, "main"))
    assert not failed_marker(tmp_path, "main").exists(), "the first one's stage has not failed"


def test_the_runs_folder_records_the_numbers_that_were_found_and_a_resume_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every option is a number there, and data is named as the user named it; the rows may change meanwhile."""
    monkeypatch.setattr(run, "load_tokenizer", lambda config: CharacterTokenizer())
    (tmp_path / "config.json").write_text(ARCHITECTURE)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"problem": "What is 1 + 1?", "answer": "2"}\n')
    config = RunConfig(
        model=ModelConfig(path=str(tmp_path)),
        data=DataConfig(train={str(rows): 1.0}),
        trainer=TrainerConfig(learning_rate=0.0),
        sampler=SamplerConfig(max_prompt_tokens=0, max_response_tokens=0),
        exp_manager=ExpManagerConfig(explicit_log_dir=str(tmp_path / "run")),
    )

    def begin(*, is_resume: bool) -> RunConfig:
        inputs = load_inputs(config, SINGLE, is_resume=is_resume)
        record_options(inputs.written, tmp_path / "run")
        return inputs.config

    first = begin(is_resume=False)
    length = len("What is 1 + 1?") + FRAME_TOKENS
    assert (first.sampler.max_prompt_tokens, first.sampler.max_response_tokens) == (length, 1024)
    for name in ("resolved.yaml", "stages/main.yaml"):
        recorded = compose(str(tmp_path / "run" / name), [], conf_dir=CONF_DIR)
        assert (recorded.sampler, recorded.trainer) == (first.sampler, first.trainer)
        assert recorded.trainer.learning_rate == 0.00015
        assert recorded.data == config.data
    with rows.open("a") as file:
        file.write('{"problem": "What is 100 + 100?", "answer": "200"}\n')
    assert begin(is_resume=True).sampler == first.sampler
    assert begin(is_resume=False).sampler.max_prompt_tokens == length + 4


@pytest.mark.parametrize(("max_prompts", "says"), [(0, []), (1, ["take 2 of 3 prompts"]), (2, [])])
def test_a_run_says_where_validations_take_a_part_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_prompts: int, says: list[str]
) -> None:
    monkeypatch.setattr(run, "load_tokenizer", lambda config: CharacterTokenizer())
    (tmp_path / "config.json").write_text(ARCHITECTURE)
    row = '{{"problem": "What is {}?", "answer": "2"}}\n'
    files = [tmp_path / name for name in ("train.jsonl", "one.jsonl", "two.jsonl")]
    for number, file in enumerate(files):
        file.write_text("".join(row.format(f"{number} + {other}") for other in range(max(1, number))))
    config = RunConfig(
        model=ModelConfig(path=str(tmp_path)),
        data=DataConfig(train={str(files[0]): 1.0}, validation=[str(files[1]), str(files[2])]),
        validation=ValidationConfig(max_prompts=max_prompts),
        sampler=SamplerConfig(max_prompt_tokens=100, max_response_tokens=100),
        exp_manager=ExpManagerConfig(explicit_log_dir=str(tmp_path / "run")),
    )
    sentences = load_inputs(config, SINGLE, is_resume=False).sentences
    assert [one[12:31] for one in sentences if one.startswith("Validations ")] == says
