"""Limits of prompts and responses that a configuration leaves to the data and the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nemo_prorl.config import (
    Aggregation,
    AlgorithmConfig,
    ConfigError,
    DataConfig,
    ExpManagerConfig,
    LoraConfig,
    ModelConfig,
    Optimizer,
    RunConfig,
    SamplerConfig,
)
from nemo_prorl.data.inputs import prompt_lengths
from nemo_prorl.data.rows import write_rows
from nemo_prorl.engines.limits import as_begun, found_limits, with_learning_rate, with_limits
from nemo_prorl.engines.megatron import check
from nemo_prorl.engines.megatron.architecture import read_architecture
from nemo_prorl.run_folder.origin import write_resolved
from tests.data.conftest import FRAME_TOKENS, CharacterTokenizer, make_row
from tests.test_cli import ARCHITECTURE


@pytest.mark.parametrize(
    ("prompt", "response", "context", "longest", "found"),
    [
        (0, 0, 512, 47, (47, 465)),  # the response gets the rest of the context, ...
        (0, 0, 32_768, 300, (300, 1024)),  # ... but no more than is usual
        (0, 0, 512, 400, (256, 256)),  # the longest prompts are left out
        (0, 400, 512, 300, (112, 400)),
        (0, 400, 512, 20, (20, 400)),
        (100, 0, 512, 0, (100, 412)),
        (511, 0, 512, 0, (511, 1)),
        (100, 50, 512, 0, (100, 50)),
    ],
)
def test_prompts_get_what_they_need_and_responses_the_rest(
    prompt: int, response: int, context: int, longest: int, found: tuple[int, int]
) -> None:
    given = SamplerConfig(max_prompt_tokens=prompt, max_response_tokens=response)
    limits = found_limits(given, context_tokens=context, longest=longest)
    assert (limits.max_prompt_tokens, limits.max_response_tokens) == found
    assert replace(limits, max_prompt_tokens=prompt, max_response_tokens=response) == given


@pytest.mark.parametrize(("prompt", "response", "other"), [(512, 0, "responses"), (0, 600, "prompts")])
def test_a_limit_that_fills_the_context_is_refused(prompt: int, response: int, other: str) -> None:
    given = SamplerConfig(max_prompt_tokens=prompt, max_response_tokens=response)
    with pytest.raises(ConfigError, match=f"leaves no room for {other} in the model's context of 512 tokens"):
        found_limits(given, context_tokens=512, longest=40)


def write(path: Path, *lengths: int) -> str:
    """Writes a prompt file with prompts of these lengths in tokens."""
    rows = [make_row(f"{path.stem}/{i}", "x" * (length - FRAME_TOKENS)) for i, length in enumerate(lengths)]
    write_rows(path, rows)
    return str(path)


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    """A run with training prompts of up to 8 tokens, a held-out one of 9, and a model with a context of 256."""
    (tmp_path / "model").mkdir()
    architecture = ARCHITECTURE.replace("32768", "256")
    (tmp_path / "model" / "config.json").write_text(architecture)
    return RunConfig(
        model=ModelConfig(path=str(tmp_path / "model")),
        data=DataConfig(
            train={write(tmp_path / "a.parquet", 7, 8): 1.0}, validation=[write(tmp_path / "b.parquet", 9)]
        ),
        sampler=SamplerConfig(max_prompt_tokens=0, max_response_tokens=0),
        exp_manager=ExpManagerConfig(explicit_log_dir=str(tmp_path / "run")),
    )


def found_from_files(config: RunConfig) -> tuple[RunConfig, str]:
    files = prompt_lengths(config, CharacterTokenizer())
    return with_limits(config, [length for file in files for length in file.lengths])


def test_the_longest_prompt_of_all_files_counts(config: RunConfig) -> None:
    found, said = found_from_files(config)
    assert (found.sampler.max_prompt_tokens, found.sampler.max_response_tokens) == (9, 247)
    assert said == (
        "sampler.max_prompt_tokens=9 and sampler.max_response_tokens=247, from the longest prompt of 9 tokens and the "
        "model's context of 256."
    )
    assert with_limits(found, iter(())) == (found, "")


def test_a_cache_without_room_for_what_was_found_is_refused_before_the_engines_load(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "has_cuda", lambda: False)
    monkeypatch.setattr(check, "CPU_BLOCK_TOKENS", 2**24)
    with pytest.raises(ConfigError, match="kv_cache_mib=512 has no room for one sequence of 256 tokens"):
        found_from_files(config)


def test_a_resumed_stage_keeps_the_limits_that_it_began_with(config: RunConfig, tmp_path: Path) -> None:
    """With the file of today, whose prompts are longer, other responses would be cut off."""
    assert as_begun(config) == config, "nothing is recorded yet"
    begun, _ = found_from_files(config)
    write_resolved(begun, Path(config.exp_manager.explicit_log_dir) / "stages" / "main.yaml")
    write(tmp_path / "b.parquet", 20)
    assert as_begun(config) == begun
    told = replace(config, sampler=replace(config.sampler, max_response_tokens=100))
    assert as_begun(told).sampler.max_response_tokens == 100, "a number on the command line has the last word"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (0.0, "trainer.learning_rate=0.00015, by the rule for 309 k weights (docs/recipes.md)."),
        (0.00015, "trainer.learning_rate=0.00015 is given; by the rule for 309 k weights it would be 0.00015 (docs/"),
        (1e-4, "trainer.learning_rate=0.0001 is given; by the rule for 309 k weights it would be 0.00015 (docs/"),
        (2e-6, "warning: trainer.learning_rate=2e-06 is given; by the rule for 309 k weights it would be 0.00015, and "
         "the policy may hardly move: trainer.learning_rate=0 stands for the rule (docs/recipes.md)."),
        (1e-2, "warning: trainer.learning_rate=0.01 is given; by the rule for 309 k weights it would be 0.00015, and "
         "the policy may collapse: trainer.learning_rate=0 stands for the rule (docs/recipes.md)."),
    ],
)  # fmt: skip
def test_a_learning_rate_of_0_is_found_and_any_other_stays_and_is_compared(
    config: RunConfig, given: float, said: str
) -> None:
    found, sentence = with_learning_rate(read_architecture(config.model.path), with_rate(config, given))
    assert found == with_rate(config, given or 0.00015)
    assert sentence.startswith(said)


def test_a_rate_of_sgd_is_not_compared_with_adams(config: RunConfig) -> None:
    given = with_rate(config, 0.5)
    given.trainer.optimizer = Optimizer.sgd
    said = "trainer.learning_rate=0.5 is given; the rule is for Adam (docs/recipes.md)."
    assert with_learning_rate(read_architecture(config.model.path), given) == (given, said)


def test_factors_have_a_rate_of_their_own(config: RunConfig) -> None:
    (at_32, said), (at_8, _), (scaled, _) = (
        with_learning_rate(read_architecture(config.model.path), replace(with_rate(config, 0.0), lora=lora))
        for lora in (LoraConfig(rank=32), LoraConfig(rank=8), LoraConfig(rank=8, alpha=16.0))
    )
    assert "by the rule for 309 k weights at rank 32" in said
    rates = [each.trainer.learning_rate for each in (at_32, at_8, scaled)]
    assert rates == pytest.approx([rates[1] / 2, rates[1], rates[1] / 2], rel=0.05)


def test_a_learning_rate_of_0_is_the_rule_in_a_resumed_stage_as_well(config: RunConfig) -> None:
    """Who began with a wrong one is told to write 0."""
    begun = with_rate(found_from_files(config)[0], 3e-2)
    write_resolved(begun, Path(config.exp_manager.explicit_log_dir) / "stages" / "main.yaml")
    assert as_begun(with_rate(config, 0.0)) == with_rate(begun, 0.0)


def with_rate(config: RunConfig, rate: float) -> RunConfig:
    return replace(config, trainer=replace(config.trainer, learning_rate=rate))


def test_a_divisor_that_is_the_longest_response_follows_it(config: RunConfig) -> None:
    """That of recipe=dr_grpo."""
    algorithm = AlgorithmConfig(aggregation=Aggregation.sequence_mean_token_sum, aggregation_constant=0.0)
    found, _ = found_from_files(replace(config, algorithm=algorithm))
    assert found.algorithm.aggregation_constant == found.sampler.max_response_tokens == 247
    write_resolved(found, Path(config.exp_manager.explicit_log_dir) / "stages" / "main.yaml")
    assert as_begun(replace(config, algorithm=algorithm)) == found
    with pytest.raises(
        ConfigError, match=r"aggregation_constant=0 stands for the response limit .*: write 8192"
    ):
        RunConfig(algorithm=algorithm)
