"""Tests of the output of `plan`."""

from pathlib import Path

import pytest

from nemo_prorl import __main__ as cli
from nemo_prorl import run
from nemo_prorl.cluster.plan.chain import missing_files
from nemo_prorl.cluster.plan.text import range_text, rounded
from nemo_prorl.commands.parsing import CONF_DIR
from nemo_prorl.config import DataConfig, ModelConfig, RunConfig
from nemo_prorl.config.compose import compose
from nemo_prorl.distributed import alone
from nemo_prorl.engines import tokenizer
from tests.data.conftest import CharacterTokenizer
from tests.test_cli import ARCHITECTURE


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["plan", *arguments]) == 0
    return capsys.readouterr().out


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(ARCHITECTURE)
    return tmp_path


def test_the_recipe_at_a_glance(capsys: pytest.CaptureFixture[str]) -> None:
    said = plan(capsys)
    lines = said.splitlines()
    assert lines[0] == " -> ".join(f"run{i}" for i in range(1, 9))
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.startswith("  run")}
    assert rows["run6"][:3] == ["8,192", "32", "250"]
    assert rows["run8"][:3] == ["16,384", "16", "200"]
    total = next(line.split() for line in lines if line.startswith("  total"))
    assert total == ["total", "2,100", "47.0", "B", "16,000", "20.8"]
    explained = " ".join(said.split())
    assert "at 816 response tokens per GPU and second" in explained
    after = said.split("run3: run2's best weights, reference and optimizer reset, data going on.\n")[1].split(
        "run4:"
    )[0]
    added = "data.train.data/llama_nemotron_if/train.parquet"
    assert [added, "-", "->", "10000"] in [line.split() for line in after.splitlines()]


@pytest.mark.medium
@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("stage=run6",),
        ("stage=demo2", "--config-name", "laptop"),
        ("--memory", "--time"),
        ("stage=run8", "--memory", "--time"),
    ],
)
def test_tables_fit_the_terminal(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    rows = [line for line in plan(capsys, *arguments).splitlines() if line.startswith("  ")]
    assert max(map(len, rows)) <= 80


@pytest.mark.parametrize(
    ("arguments", "of_papers", "of_steps"),
    [((), "16,000", "1,698-6,021"), (("stage=run1",), "2,286", "233-828")],
)
def test_both_estimates_of_the_gpu_hours_stand_side_by_side(
    arguments: tuple[str, ...], of_papers: str, of_steps: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second number is that of the table of `plan --time`, the first that of the table of `plan`."""
    said, timed = plan(capsys, *arguments), plan(capsys, *arguments, "--time")
    sentences = [
        line for text in (said, timed) for line in text.splitlines() if line.startswith("GPU hours:")
    ]
    assert len(sentences) == 2
    assert len({*sentences}) == 1
    assert sentences[0].startswith(f"GPU hours: {of_papers} on H100")
    assert f"{of_steps} for the steps alone" in sentences[0]
    assert f"Ask for {of_papers} in an allocation request" in sentences[0]
    rows = [row.split()[-2].replace(",", "") for row in timed.splitlines() if row.startswith("  run")]
    for end, hours in enumerate(of_steps.replace(",", "").split("-")):
        assert sum(float(row.split("-")[end]) for row in rows) == pytest.approx(float(hours), abs=4)


def test_hours_of_steps_that_do_not_fit_are_not_estimated(capsys: pytest.CaptureFixture[str]) -> None:
    said = plan(capsys, "stage=run1", "trainer.micro_batch_tokens=65536")
    assert "The time of a step is not estimated (plan --time): stage run1: updates would need" in said


def test_one_stage_says_how_it_begins_what_it_changes_and_what_it_keeps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = plan(capsys, "stage=run6")
    assert said.startswith("run1 -> run2 -> run3 -> run4 -> run5 -> run6\n")
    beginning = "run6: run5's last weights, reference and optimizer reset, data going on.\n"
    changed, kept = said.split(beginning)[1].split("As in run5, and other than the default\n")
    assert changed.split() == ["sampler.num_rollouts", "16", "->", "32"]
    kept = kept.split("\n\n")[0]
    assert "shaping.termination_factor" in kept
    assert "sampler.num_rollouts" not in kept
    assert "algorithm.clip_high" not in kept  # the default
    flags = ["stage.reset_reference=false", "stage.reset_optimizer=false", "stage.reset_data=true"]
    beginning = "run2: run1's best weights, data reset, reference and optimizer going on."
    assert beginning in plan(capsys, "stage=run2", *flags)
    own = plan(capsys, "stage=demo1", "--config-name", "laptop", "--nodes", "1", "--gpus-per-node", "2")
    assert own.startswith("demo1\non 1 x 2 GPUs, in runs/laptop\n")
    assert "Other than the default\n" in own


@pytest.mark.medium
def test_without_the_model_it_says_what_it_did_not_check(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Not checked, because the model is not here" in plan(capsys, "model.path=no/such")
    said = plan(capsys, f"model.path={model}")
    assert "Not checked" not in said
    assert "parameters" in said
    assert cli.main(["plan", f"model.path={model}", "sampler.max_response_tokens=28673"]) == 2
    assert "max_position_embeddings=32768" in capsys.readouterr().err


def test_missing_files_come_with_what_makes_them(tmp_path: Path) -> None:
    there = tmp_path / "there.parquet"
    there.write_bytes(b"")
    data = DataConfig(
        train={str(there): 1.0, "data/eurus/train.parquet": 1.0, "mine.parquet": 1.0},
        validation=["data/reasoning_gym/validation.parquet", "data/eval/ifeval.parquet"],
    )
    first = RunConfig(model=ModelConfig(path="models/DeepSeek-R1-Distill-Qwen-1.5B"), data=data)
    makers = missing_files((first, first))
    assert list(makers) == [
        "models/DeepSeek-R1-Distill-Qwen-1.5B",
        "data/eurus/train.parquet",
        "mine.parquet",
        "data/reasoning_gym/validation.parquet",
        "data/eval/ifeval.parquet",
    ]
    assert makers["data/eurus/train.parquet"] == "python -m nemo_prorl data build eurus"
    assert makers["data/reasoning_gym/validation.parquet"] == "python -m nemo_prorl data build reasoning_gym"
    assert "data build" not in makers["data/eval/ifeval.parquet"]
    assert makers["models/DeepSeek-R1-Distill-Qwen-1.5B"].startswith("hf download deepseek-ai/DeepSeek-R1")
    assert list(missing_files((RunConfig(),))) == ["model.path", "data.train"], "nobody has named them"


def test_memory_and_time_of_the_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a model `plan` uses the paper's; the unchanged recipe fits the paper's cluster."""
    said = plan(capsys, "--memory", "--time")
    assert said.startswith("1.78 B parameters on 4 x 8 GPUs, H100\n")
    rows = [line.split() for line in said.splitlines() if line.startswith("  ")]
    heads = [row for row in rows if row[1:] == ["sampling", "passes", "updates", "refit"]]
    assert [row[0] for row in heads] == ["run1", "run8"]
    assert sum(row[0] == "total" for row in rows) == 2
    times = {row[0]: row[-1] for row in rows if len(row) == 8}
    assert times == {f"run{i}": "sampling" for i in range(1, 9)}


@pytest.mark.medium
def test_one_stage_comes_with_the_layouts_that_fit(capsys: pytest.CaptureFixture[str]) -> None:
    said = plan(capsys, "stage=run8", "--time", "--shape", "qwen2.5-7b", "trainer.tensor_parallel=4")
    assert "Layouts that fit: " in said
    fastest = said.split("The fastest: ")[1].split()
    again = plan(capsys, "stage=run8", "--time", "--shape", "qwen2.5-7b", *fastest)
    assert said.split("Layouts that fit")[1] == again.split("Layouts that fit")[1]


def test_a_configuration_for_own_problems_has_the_limits_that_train_finds(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one GPU, if nothing else is written. With config.json alone the prompts are assumed."""
    rows = model / "rows.jsonl"
    rows.write_text('{"problem": "What is 1 + 1?", "answer": "2"}\n{"problem": "And 2?", "answer": "3"}\n')
    small = ["--config-name", "small", f"model.path={model}", f"data.train={rows}"]
    said = plan(capsys, *small)
    assert said.startswith("sampler.max_prompt_tokens=1024 and sampler.max_response_tokens=1024, from the")
    assert "The prompts are assumed" in said
    assert "on 1 x 1 GPUs, in runs/small\n" in said
    assert "trainer.learning_rate 0.00015" in " ".join(said.split())
    (model / "tokenizer.json").write_text("{}")
    for module in (run, tokenizer):
        monkeypatch.setattr(module, "load_tokenizer", lambda config: CharacterTokenizer())
    config = compose("small", small[2:], conf_dir=CONF_DIR)
    inputs = run.load_inputs(config, alone(), is_resume=False, into=model)
    said = plan(capsys, *small)
    assert said.startswith(next(line for line in inputs.sentences if "max_prompt_tokens=" in line))
    assert "assumed" not in said
    assert not list(model.glob("*.parquet")), "what was converted is not kept"


@pytest.mark.medium
@pytest.mark.parametrize(
    ("shape", "gib", "change"),
    [
        ("qwen3-0.6b", "24", ["trainer.micro_batch_tokens=4096"]),
        ("qwen2.5-1.5b", "24", ["lora.rank=32", "trainer.micro_batch_tokens=4096"]),
        (
            "qwen2.5-7b",
            "48",
            ["lora.rank=32", "trainer.micro_batch_tokens=4096", "sampler.memory_fraction=0.4"],
        ),
        ("qwen2.5-7b", "80", ["lora.rank=32"]),
    ],
)
def test_a_model_that_does_not_fit_comes_with_the_smallest_change_that_makes_it_fit(
    shape: str, gib: str, change: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--config-name", "small", "--shape", shape, "--gpu-gib", gib]
    assert cli.main(["plan", *asked]) == 2
    assert capsys.readouterr().err.endswith(f": write {' '.join(change)}.\n")
    assert f"on 1 x 1 GPUs, of {gib} GiB, as fast as H100\n\nGiB of the fullest GPU, of {gib}\n" in plan(
        capsys, *asked, *change
    )
    assert cli.main(["plan", *asked, *change[:-1]]) == 2, "nothing of it is superfluous"
    capsys.readouterr()


def test_more_responses_than_an_engine_holds_come_with_what_to_write(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = " ".join(plan(capsys, "--memory", "stage=run1", "--nodes", "1").split())
    assert "An engine gets 956 responses per step" in said
    wanted = said.split("write sampler.max_sequences=")[1].split(".")[0]
    said = " ".join(
        plan(capsys, "--memory", "stage=run1", "--nodes", "1", f"sampler.max_sequences={wanted}").split()
    )
    assert "vLLM would start" not in said


def test_memory_that_is_released_in_vain_comes_with_what_to_write(capsys: pytest.CaptureFixture[str]) -> None:
    """Which fits, and which a configuration that needs to release it is not told."""
    change, asked = "sampler.release_memory=false", ("--memory", "stage=run1")
    small = (*asked, "sampler.memory_fraction=0.3", "trainer.micro_batch_tokens=10240")
    assert f"write {change}, " in " ".join(plan(capsys, *small).split())
    assert change not in plan(capsys, *small, change)
    assert change not in plan(capsys, *asked)
    assert cli.main(["plan", *asked, change]) == 2


@pytest.mark.medium
@pytest.mark.parametrize(
    ("arguments", "must_say"),
    [
        (["stage=run3", "stage.parent=nope"], "stage run3 continues stage nope"),
        (["--nodes", "3", "trainer.pipeline_parallel=16"], "cannot hold whole replicas"),
        (["--nodes", "0"], "--nodes=0"),
        (["--nodes", "many"], "--nodes"),
        (["--memory", "trainer.micro_batch_tokens=65536"], "write trainer.micro_batch_tokens=16384"),
        (["--memory", "--shape", "gpt5"], "is not a known shape: write one of"),
        (["--time", "--gpu", "tpu"], "--gpu=tpu is not known"),
        (["--time", "--informative-share", "2"], "--informative-share=2"),
        (["--gpu-gib", "0"], "--gpu-gib=0 is out of range"),
        (["--time", "--shape", "llama3-70b", "--nodes", "1"], "no layout of this model fits on this cluster"),
        (
            ["--time", "--shape", "llama3-70b", "--nodes", "32"],
            "cache of one response: write model.recompute=full trainer.tensor",
        ),
    ],
)
def test_a_plan_or_an_estimate_that_cannot_be_is_one_sentence_and_exit_code_2(
    arguments: list[str], must_say: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", *arguments]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert must_say in said.err


def test_little_is_not_called_nothing(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = (0.0, 0.04, 0.05, 4.24, 9.94, 10.4, 2286.0)
    assert [rounded(number) for number in numbers] == ["<0.1", "<0.1", "0.1", "4.2", "9.9", "10", "2,286"]
    assert (range_text((0.01, 0.02)), range_text((4.2, 13.0))) == ("<0.1", "4.2-13")
    cluster = ["--nodes", "1", "--gpus-per-node", "1"]
    said = plan(capsys, "--config-name", "laptop", *cluster, f"model.path={model}", "trainer.num_steps=1")
    assert "GPU hours: <0.1 on H100" in said
    assert "allocation" not in said
