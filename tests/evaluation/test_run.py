"""Tests that an evaluation finds its limits as training does, and that its results name their graders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_prorl.config import (
    ConfigError,
    DataConfig,
    ModelConfig,
    RewardConfig,
    RunConfig,
    SamplerConfig,
    ValidationConfig,
)
from nemo_prorl.data.rows import write_rows
from nemo_prorl.evaluation import run
from nemo_prorl.evaluation.catalogue import get
from nemo_prorl.evaluation.prompts import load
from nemo_prorl.evaluation.run import _write, evaluate_files, evaluate_suite, graded_by, measured
from tests.data.conftest import FRAME_TOKENS, CharacterTokenizer, make_row
from tests.evaluation.test_comparison import result
from tests.test_cli import ARCHITECTURE
from tests.training.conftest import MIXED, SINGLE, make_prompt


class SamplerWanted(Exception):
    """Carries the configuration of the sampler that an evaluation would start."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with questions of 7 and 9 tokens and a model with a context of 32, where no engine starts."""

    def start(config: RunConfig, *arguments: object) -> None:
        raise SamplerWanted(config)

    monkeypatch.setattr(run, "initialise", lambda *layout, **options: SINGLE)
    monkeypatch.setattr(run, "load_tokenizer", lambda config: CharacterTokenizer())
    monkeypatch.setattr(run, "_machinery", start)
    (tmp_path / "config.json").write_text(ARCHITECTURE.replace("32768", "32"))
    questions = ["x" * (length - FRAME_TOKENS) for length in (7, 9)]
    write_rows(tmp_path / "rows.parquet", [make_row(question, question) for question in questions])
    rule = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    lines = [json.dumps({"prompt": question, **rule}) for question in questions]
    (tmp_path / "ifeval.jsonl").write_text("\n".join(lines))
    return tmp_path


def start(folder: Path, of: str, prompt: int, response: int, max_prompts: int = 0) -> SamplerConfig:
    """Returns the sampler's options of an evaluation of the questions, as a prompt file or as a benchmark, with these
    limits."""
    config = RunConfig(
        model=ModelConfig(path=str(folder)),
        data=DataConfig(train={}, validation=[str(folder / "rows.parquet")]),
        sampler=SamplerConfig(max_prompt_tokens=prompt, max_response_tokens=response),
        validation=ValidationConfig(max_prompts=max_prompts),
    )
    loaded, _ = load([get("ifeval")], folder, max_prompts)
    with pytest.raises(SamplerWanted) as wanted:
        evaluate_files(config, [1], folder) if of == "a file" else evaluate_suite(config, loaded, [])
    found: SamplerConfig = wanted.value.args[0].sampler
    return found


@pytest.mark.parametrize("of", ["a file", "a benchmark"])
@pytest.mark.parametrize(
    ("given", "found", "source"),
    [
        ((0, 0, 0), (9, 23), "response_tokens=23, from the longest prompt of 9 tokens and the model's context of 32."),
        ((0, 0, 1), (7, 25), "response_tokens=25, from the longest prompt of 7 tokens and the model's context of 32."),
    ],
)  # fmt: skip
def test_limits_that_are_0_follow_from_the_prompts_that_are_asked(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    of: str,
    given: tuple[int, int, int],
    found: tuple[int, int],
    source: str,
) -> None:
    sampler = start(folder, of, *given)
    assert (sampler.max_prompt_tokens, sampler.max_response_tokens) == found
    assert source in capsys.readouterr().err


@pytest.mark.parametrize(
    ("of", "limits", "said"),
    [
        ("a benchmark", (0, 32), "max_response_tokens=32 leaves no room for prompts"),
        ("a file", (6, 8), r"rows\.parquet is longer than sampler.max_prompt_tokens=6"),
    ],
)
def test_limits_that_cannot_be_are_refused_before_the_engines_load(
    folder: Path, of: str, limits: tuple[int, int], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        start(folder, of, *limits)


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        (RewardConfig(), ""),
        (RewardConfig(function=["a.py:f"]), "Graded by a.py:f with weight 1 (reward.function)"),
        (
            RewardConfig(function=["a.py:f"], weights={"f": 0.5, "service": 2.0}),
            "Graded by a.py:f with weight 0.5, and the reward service with weight 2 (reward.function)",
        ),
    ],
)
def test_scores_of_functions_do_not_pass_for_those_of_the_benchmarks(
    tmp_path: Path, reward: RewardConfig, said: str
) -> None:
    one = result("aime2024", [8, 0])
    _write(tmp_path, {"graded_by": graded_by(reward)}, {one.name: one}, "model")
    table, record = (
        (tmp_path / "results.md").read_text(),
        json.loads((tmp_path / "results.json").read_text()),
    )
    assert record["graded_by"] in table
    assert record["graded_by"] in record["note"]
    assert record["graded_by"].startswith(said)
    assert bool(record["graded_by"]) == ("do not compare with the paper's" in table) == bool(said)


def test_what_is_measured_has_its_prompts_by_benchmark_and_no_number_of_samples() -> None:
    few, many = (RunConfig(validation=ValidationConfig(num_rollouts=number)) for number in (1, 256))
    prompts = [make_prompt("p", MIXED), make_prompt("q", MIXED)]
    assert measured(few, "aime2024", prompts, "1") == (named := measured(many, "aime2024", prompts, "1"))
    assert list(named) == [
        "validation.temperature", "validation.top_p", "sampler.max_response_tokens", "graders",
        "prompts of aime2024",
    ]  # fmt: skip
    assert named["graders"] == "1"
    assert named["prompts of aime2024"] != measured(few, "aime2024", prompts[:1], "1")["prompts of aime2024"]
