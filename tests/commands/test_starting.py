"""What `train --check` refuses, and what it says of the size of a step and of its time."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_prorl.cluster.scale import here
from nemo_prorl.cluster.scale.here import StepHere
from nemo_prorl.commands.parsing import composed
from nemo_prorl.commands.starting import check_inputs, describe_work
from nemo_prorl.config import ConfigError, RunConfig, SamplerConfig, TrainerConfig
from nemo_prorl.engines import environment

SMALL = RunConfig(
    trainer=TrainerConfig(num_steps=200, prompts_per_step=16, updates_per_step=2),
    sampler=SamplerConfig(num_rollouts=8, max_response_tokens=1024),
)


@pytest.fixture(autouse=True)
def without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "has_cuda", lambda: False)


def test_it_names_batch_steps_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    known = StepHere(low_s=30.0, high_s=90.0, source="as the last 7 step(s) of this run")
    monkeypatch.setattr(here, "step_here", lambda *_, **place: [known])
    assert describe_work(SMALL, 1) == [
        "  batch     16 prompts x 8 rollouts a step, with responses of up to 1,024 tokens: at most 131,072 tokens, in "
        "2 update(s)",
        "  steps     200 in this stage",
        "  time      30 to 90 s a step, 100 minutes to 5 hours for all of them (as the last 7 step(s) of this run)",
    ]
    by_length = [
        StepHere(low_s=1.0, high_s=4.0, source="estimated", assumption=" if long"),
        StepHere(low_s=0.2, high_s=0.8, source="estimated", assumption=" if short"),
    ]
    monkeypatch.setattr(here, "step_here", lambda *_, **place: by_length)
    assert describe_work(SMALL, 1)[2:] == [
        "  time      1 to 4 s a step, 3 to 13 minutes for all of them if long (estimated)",
        "  time      0.2 to 0.8 s a step, 40 s to 3 minutes for all of them if short",
    ]


def test_the_papers_step_on_a_laptop_is_a_warning_that_says_what_to_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = StepHere(
        low_s=1e6, high_s=4e6, source="estimated", advice="fp32 is faster: write model.precision=fp32"
    )
    monkeypatch.setattr(here, "step_here", lambda *_, **place: [slow])
    *_, time, fp32, warning = describe_work(RunConfig(), 1)
    assert time == "  time      12 to 46 days a step, 12,000 to 46,000 days for all of them (estimated)"
    assert fp32 == "warning: fp32 is faster: write model.precision=fp32."
    assert warning.startswith("warning: a step of 256 prompts x 16 rollouts x 8,192 tokens is too much")
    assert "write --config-name small_cpu, or smaller trainer.prompts_per_step" in warning


def test_a_time_that_is_not_known_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "step_here", lambda *_, **place: [])
    assert "not known" in describe_work(SMALL, 1)[-1]


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    """A run that could start."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("{}")
    overrides = [f"data.train={prompts}", f"data.validation=[{prompts}]", "reward.urls=[http://127.0.0.1:1]"]
    return composed("train", overrides)


@pytest.mark.parametrize(
    ("option", "value", "must_say"),
    [
        ("trainer.tensor_parallel", 4, "start a multiple of 4 ranks"),
        ("data.validation", ["/no/such/file.jsonl"], "data.validation names /no/such/file.jsonl"),
        ("data.train", {"/no/such/train.jsonl": 1.0}, "data.train names /no/such/train.jsonl"),
        ("data.train", {}, "data.train is empty"),
        ("exp_manager.explicit_log_dir", f"{__file__}/run", "is a file, not a folder"),
        ("exp_manager.create_wandb_logger", True, "needs the package wandb"),
        ("reward.token_file", "/no/such/token", "reward.token_file"),
        ("reward.urls", [], "serves only one machine"),
    ],
)
def test_what_a_run_cannot_start_with_is_one_sentence(
    config: RunConfig, option: str, value: object, must_say: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # nobody has wandb
    monkeypatch.setenv("WORLD_SIZE", "6")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    check_inputs(config, 6)
    section, _, name = option.partition(".")
    setattr(getattr(config, section), name, value)
    with pytest.raises(ConfigError, match=must_say) as refused:
        check_inputs(config, 6)
    assert "\n" not in str(refused.value)


def test_a_service_of_its_own_is_for_one_machine_and_loggers_are_for_the_main_rank(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.reward.urls, config.reward.discovery_dir = [], "/shared/run/reward"
    config.exp_manager.create_wandb_logger = True
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "16")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    check_inputs(config, 16)
