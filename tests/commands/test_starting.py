"""What `train --check` says of the size of a step and of its time."""

from __future__ import annotations

import pytest

from nemo_prorl.cluster.scale import here
from nemo_prorl.cluster.scale.here import StepHere
from nemo_prorl.commands.starting import describe_work
from nemo_prorl.config import RunConfig, SamplerConfig, TrainerConfig
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
    monkeypatch.setattr(here, "step_here", lambda config, **place: known)
    assert describe_work(SMALL, 1) == [
        "  batch     16 prompts x 8 rollouts a step, with responses of up to 1,024 tokens: at most 131,072 tokens, in "
        "2 update(s)",
        "  steps     200 in this stage",
        "  time      30 to 90 s a step, 100 minutes to 5 hours for all of them (as the last 7 step(s) of this run)",
    ]


def test_the_papers_step_on_a_laptop_is_a_warning_that_says_what_to_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = StepHere(
        low_s=1e6, high_s=4e6, source="estimated", advice="fp32 is faster: write model.precision=fp32"
    )
    monkeypatch.setattr(here, "step_here", lambda config, **place: slow)
    *_, time, fp32, warning = describe_work(RunConfig(), 1)
    assert time == "  time      12 to 46 days a step, 12,000 to 46,000 days for all of them (estimated)"
    assert fp32 == "warning: fp32 is faster: write model.precision=fp32."
    assert warning.startswith("warning: a step of 256 prompts x 16 rollouts x 8,192 tokens is too much")
    assert "write --config-name small_cpu, or smaller trainer.prompts_per_step" in warning


def test_a_time_that_is_not_known_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "step_here", lambda config, **place: None)
    assert "not known" in describe_work(SMALL, 1)[-1]
