import errno
import json
import os
import re
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from nemo_prorl import __main__ as cli
from nemo_prorl.commands import ending
from nemo_prorl.config import ConfigError, RunConfig
from nemo_prorl.config.help import options
from nemo_prorl.data.rows import write_rows
from nemo_prorl.engines import environment
from nemo_prorl.training import deadline
from tests.data.conftest import make_row
from tests.model_folders import write_model

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("torch", "vllm", "megatron", "transformers", "lightning", "pyarrow", "matplotlib")
MONITOR = "exp_manager.checkpoint_callback_params.monitor"
URLS = "reward.urls=[http://x]"
ARCHITECTURE = """{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
"num_hidden_layers": 2, "vocab_size": 104, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
"tie_word_embeddings": true, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}"""


def inputs_for_submit(folder: Path) -> list[str]:
    """Returns overrides with a model and data that exist as far as `submit` checks, which reads neither."""
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(ARCHITECTURE)
    (folder / "rows.parquet").write_bytes(b"")
    data = [f"data.train={{{folder}/rows.parquet: 1}}", f"data.validation=[{folder}/rows.parquet]"]
    return [f"model.path={folder}/model", *data]


def imported_by(*commands: tuple[str, ...]) -> list[tuple[int, set[str]]]:
    """Returns for each command its exit code and the heavy packages that are imported after it. The commands run one
    after the other in a process of their own."""
    code = (
        "import sys; from nemo_prorl.__main__ import main\n"
        f"for command in {commands!r}:\n"
        "    try:\n        code = main([*command])\n    except SystemExit as end:\n        code = end.code\n"
        f"    print('imported:', code, *[name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("imported:")]
    return [(int(code), set(heavy)) for _, code, *heavy in lines]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", json.loads(ARCHITECTURE))


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("{}\n")
    return path


@pytest.fixture
def train(model: Path, prompts: Path, tmp_path: Path) -> list[str]:
    """A stage that could start."""
    data = [f"data.train={{{prompts}: 1}}", "data.validation=[]", URLS]
    return ["train", f"model.path={model}", *data, f"exp_manager.explicit_log_dir={tmp_path}/run"]


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help_without_line_breaks_in_a_paragraph(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert f"usage: python -m nemo_prorl {command}" in said
    # A terminal of 80 columns would fold such a line, and break it again after a few words.
    broken = [
        (line, following)
        for line, following in pairwise(said.splitlines())
        if len(line) > 80 and line[-1] not in ".)" and re.match(r" *[a-z](?!.*  )", following)
    ]
    assert broken == []


def test_help_of_train_lists_every_option_configuration_and_stage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    text = capsys.readouterr().out
    for option in options().values():
        assert f"  {option.key}  (" in text
        assert option.doc in text
    for name in ("laptop", "demo1", "demo2", "whole number; 256", "one of k1, k2, k3; k3"):
        assert name in text


def test_neither_help_nor_mistakes_nor_a_request_to_a_live_run_import_anything_heavy(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "stage": "run1"}\n')
    expected = {
        ("--help",): 0,
        ("train", "--help"): 0,
        ("plan",): 0,
        ("request-reset", str(tmp_path)): 0,
        ("train", "a=1"): 2,
        ("evaluate", "model.path=/no/such"): 2,
        ("request-reset", "no"): 2,
    }
    assert imported_by(*expected) == [(code, set()) for code in expected.values()]


@pytest.mark.parametrize(
    "arguments", [("--help",), ("train", "--help"), ("data", "--help"), ("plan", "--config-name", "laptop")]
)
def test_a_reader_that_has_seen_enough_is_no_mistake(arguments: tuple[str, ...]) -> None:
    """For example `| head -5`."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "nemo_prorl", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_python_without_the_packages_is_one_sentence() -> None:
    command = [sys.executable, "-S", "-E", "-m", "nemo_prorl", "plan"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert re.search(r"python has no package \w+: use the environment that `make setup` makes", done.stderr)


def test_a_module_of_ours_that_is_missing_is_no_mistake_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nemo_prorl.commands.plan", None)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["plan"])


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "a.parquet"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_one_sentence_whatever_was_written(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: object) -> int:
        raise error

    monkeypatch.setattr("nemo_prorl.commands.report.main", fail)
    assert cli.main(["report", "runs/x"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {error}: make room")
    assert said.count("\n") == 1
    monkeypatch.setattr("nemo_prorl.commands.report.main", lambda arguments: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["report", "runs/x"])


@pytest.mark.parametrize(
    ("arguments", "must_say"),
    [
        (["trian"], "trian is not a command"),
        (["train", "--foo"], "unrecognized arguments: --foo"),
        (["train", "--trainer.num_steps=3"], "options are written KEY=VALUE, without --"),
        (["train", "algorithm.clip_hihg=1"], "did you mean algorithm.clip_high?"),
        (
            ["train", "--config-name", "laptop", "data.train=runs/tiny/data/x.parquet"],
            "nemo_prorl.demo.build` makes it",
        ),
        (["train", "data.train=runs/tiny/data/*.parquet"], "names are not patterns: write the folder"),
        (["evaluate", "model.path=/no/such"], "/no/such"),
        (["evaluate", "--k", "x"], ""),
        (["to-megatron", "/no/such", "/tmp"], "/no/such"),
        (["to-megatron"], "HF_DIR"),
        (["replay", "no.jsonl"], "no.jsonl"),
        (["export", "/no/such", "/no/out"], "CHECKPOINT=/no/such is not a folder"),
        (["demo", "--out", f"{__file__}/demo"], "test_cli.py is a file, not a folder"),
        (["report", "/tmp", "--out", f"{__file__}/report.html"], "test_cli.py is a file, not a folder"),
        (["compare", "/tmp", "--out", __file__], "test_cli.py is a file, not a folder"),
        (["compare", "a/out", "b/out"], "several evaluations are called out"),
        (["data", "build", "deepscaler", "against=a.jsonl", "against=b.jsonl"], "against=[A,B]"),
        (["data", "build", "reasoning_gym", f"out={__file__}"], "test_cli.py is a file, not a folder"),
        (["submit", "--dry-run", "--sbatch='--nodes=2"], "No closing quotation"),
        (["submit", "--config-name", "laptop", "--dry-run"], "stage main has no launcher"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], must_say: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert must_say in said.err


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("exp_manager.explicit_log_dir=/proc/x", "explicit_log_dir=/proc/x cannot be written, because"),
        ("model.path={prompts}", "prompts.jsonl is a file: write the folder of a Hugging Face checkpoint."),
        ("trainer.tensor_parallel=3", "does not divide the model's 4 attention heads"),
        (f"{MONITOR}=validation/scoer", "is not a metric of a run: did you mean validation/score?"),
        (f"{MONITOR}=quux", "is not a metric of a run: docs/reference/metrics.md lists them"),
        (f"{MONITOR}=time/other_s", "is not a metric of a run: did you mean time/"),
        (
            "sampler.engine_args.kv_cache_dtyp=fp8",
            "is not a field of EngineArgs: did you mean kv_cache_dtype?",
        ),
        ("model.megatron.lr=1", "model.megatron.lr is set by trainer.learning_rate: write that instead."),
        ("seed=1", "no prompt is recognised among the columns (none)."),
    ],
)
def test_what_a_stage_lacks_is_one_sentence(
    train: list[str],
    prompts: Path,
    override: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from nemo_prorl import run

    monkeypatch.setattr(run, "load_tokenizer", lambda config: None)
    monkeypatch.setenv("WORLD_SIZE", "3" if "parallel" in override else "1")
    assert cli.main([*train, "--check", override.format(prompts=prompts)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_job_with_gpus_does_not_start_with_the_interpreter_for_cpus(
    train: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "_is_cpu_build", lambda: True)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "8")
    assert cli.main([*train, "--check"]) == 2
    assert "Slurm gave this job 8 GPU(s) per node, but torch" in capsys.readouterr().err


def test_overrides_stand_before_and_after_options_and_a_mistake_that_is_found_late_is_reported_like_any_other(
    train: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from nemo_prorl import run

    seen: list[RunConfig] = []

    def refuse(config: RunConfig) -> int:
        seen.append(config)
        raise ConfigError("this cannot be trained.")

    monkeypatch.setattr(run, "train", refuse)
    assert cli.main([*train, "--config-name", "laptop", "seed=5", "stage=demo2"]) == 2
    assert capsys.readouterr().err == "error: this cannot be trained.\n"
    assert (seen[0].seed, seen[0].stage.name, seen[0].reward.urls) == (5, "demo2", ["http://x"])
    monkeypatch.setenv("RANK", "1")
    slept: list[float] = []
    monkeypatch.setattr(ending.time, "sleep", slept.append)
    assert cli.main(train) == 2
    assert slept == [ending.SPEAKING_TIME_S], (
        "by then the launcher has ended it, if rank 0 made the mistake too"
    )
    assert capsys.readouterr().err.startswith("error on rank 1: this cannot")


def test_another_rank_that_is_slower_leaves_the_mistake_to_the_first_which_has_ended(
    handlers_restored: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended_by_the_launcher_while_it_reads_the_options() -> None:
        catch_signals()
        os.kill(os.getpid(), signal.SIGTERM)

    catch_signals = deadline.catch_signals
    monkeypatch.setattr(deadline, "catch_signals", ended_by_the_launcher_while_it_reads_the_options)
    monkeypatch.setattr(deadline, "_received", [])
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert cli.main(["train", "a=1"]) == 2
    assert capsys.readouterr().err == ""


@pytest.mark.medium
def test_check_says_how_many_prompts_are_left_out(
    train: list[str],
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from experiments.boundary.tiny_policy import build_tokenizer

    build_tokenizer().save_pretrained(model)
    for name, lengths in {"train": [1] * 9, "held_out": [1, 900, 1]}.items():
        rows = [make_row(f"{name}/{place}", "x" * length) for place, length in enumerate(lengths)]
        write_rows(tmp_path / f"{name}.parquet", rows)
    files = [f"data.train={{{tmp_path}/train.parquet: 1}}", f"data.validation=[{tmp_path}/held_out.parquet]"]
    check = [*train, "--check", *files, "sampler.max_prompt_tokens=100"]
    assert cli.main(check) == 0
    said = capsys.readouterr().out.splitlines()
    assert f"left out: 1 of 3 in {tmp_path}/held_out.parquet (the longest has 90" in said[0]
    assert said[1].startswith(
        "warning: trainer.learning_rate=2e-06 is given; by the rule for 309 k weights it"
    )
    assert said[2].startswith("stage main can start")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert (cli.main(check), capsys.readouterr().out) == (0, "")


def test_evaluate_names_model_and_data_in_short(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from nemo_prorl.evaluation import run

    files = [tmp_path / "it's.jsonl", tmp_path / "b, c.jsonl"]
    for file in files:
        file.write_text("{}\n")
    seen: list[tuple[RunConfig, list[int], Path | None]] = []

    def evaluate(config: RunConfig, ks: list[int], aside: Path, samples: Path | None) -> dict[str, float]:
        seen.append((config, ks, samples))
        return {"num_prompts": 20.0, "pass@1": 0.25}

    monkeypatch.setattr(run, "evaluate_files", evaluate)
    short = [f"model.path={model}", *[f"data={file}" for file in files], "validation.num_rollouts=8"]
    assert cli.main(["evaluate", *short, "--samples", "s.jsonl"]) == 0
    config, ks, samples = seen[0]
    assert config.data.validation == [str(file) for file in files]
    assert (ks, samples) == ([1, 2, 4, 8], Path("s.jsonl"))
    for more, most in (([], 0), (["validation.max_prompts=7"], 7)):
        assert cli.main(["evaluate", "--config-name", "small_cpu", *short, *more]) == 0
        assert seen[-1][0].validation.max_prompts == most, "16 are for validations while a policy trains"
    capsys.readouterr()
    assert cli.main(["evaluate", *short]) == 0
    assert capsys.readouterr().out.split() == ["num_prompts", "20", "pass@1", "0.2500"]
    assert cli.main(["evaluate", *short, "--samples", str(tmp_path)]) == 2
    assert f"--samples {tmp_path} is a folder: write the name of a file." in capsys.readouterr().err
    assert cli.main(["evaluate", *short, "--k", "1,9"]) == 2
    assert "from 1 to validation.num_rollouts=8" in capsys.readouterr().err
    assert cli.main(["evaluate", f"model.path={model}", "data.validation=[]"]) == 2
    assert "or data=FILE" in capsys.readouterr().err


@pytest.mark.slow
def test_under_torchrun_a_mistake_is_said_once() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "nemo_prorl"]
    done = subprocess.run(
        [*command, "train", "algorithm.clip_hihg=1"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert done.stderr.count("algorithm.clip_hihg is not an option") == 1
    assert "exitcode  : 2" in done.stderr
