"""How a stage ends whose data teaches nothing more, and how one whose reward or data is broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.run import POINTLESS_TO_REPEAT, STOPS
from nemo_prorl.run_folder.checkpoints import find_checkpoints
from nemo_prorl.run_folder.markers import save_request
from nemo_prorl.run_folder.records import read_digests
from nemo_prorl.training.sampling.rounds import NothingToLearn, sampling_seed
from tests.training.conftest import MIXED, RIGHT, WRONG, ListedPrompts, make_prompt, new_state
from tests.training.scripted_run import Run, nearly_exhausted, running_out
from tests.training.tiny import timeless


@pytest.mark.parametrize("num_steps", [1, 2])
def test_a_saturated_stage_ends_with_a_checkpoint_and_a_sentence(
    tmp_path: Path, num_steps: int, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(
        tmp_path,
        prompts=running_out(num_steps),
        num_steps=99,
        every=1,
        max_rounds=2,
        state=nearly_exhausted(),
    )
    assert run.fit() == "saturated"
    assert run.saved_steps == [6, 7][:num_steps]
    assert f"stage main ends after step {5 + num_steps}: a step found 0 of 4" in capsys.readouterr().err
    assert run.state.validation[-1]["step"] == 5 + num_steps


@pytest.mark.parametrize(
    ("scores", "advice"),
    [(RIGHT, "solves most of these prompts. Train on harder ones"), (WRONG, "train on easier ones")],
)
@pytest.mark.parametrize(
    "state", [{}, {"step": 7, "sampling_yield": 0.02}], ids=["first stage", "later stage"]
)
def test_a_stage_that_finds_nothing_to_learn_at_its_start_fails(
    tmp_path: Path, scores: list[float], advice: str, state: dict[str, Any]
) -> None:
    """Whatever the share at the end of the stage before. The stage is not done, because a chain must not continue with
    a policy that has learned nothing, and nothing is saved, so that its data may still be changed."""
    prompts = [make_prompt(f"p{i}", scores) for i in range(100)]
    run = Run(tmp_path, prompts=prompts, state=new_state(**state), max_rounds=2)
    with pytest.raises(NothingToLearn, match=f"stage main finds nothing to learn from: .*{advice}"):
        run.fit()
    assert run.saved_steps == []
    assert NothingToLearn in STOPS
    assert NothingToLearn in POINTLESS_TO_REPEAT


@pytest.mark.parametrize("scores", [RIGHT, WRONG, [0.5] * 4])
@pytest.mark.parametrize("num_steps", [1, 3])
def test_a_reward_that_breaks_fails_the_stage_and_once_mended_leaves_no_trace(
    tmp_path: Path, scores: list[float], num_steps: int
) -> None:
    healthy = [make_prompt(f"p{index}", MIXED if index % 3 else RIGHT) for index in range(200)]
    whole = Run(tmp_path / "whole", prompts=healthy, num_steps=5)
    whole.fit()
    run = Run(tmp_path / "broken", prompts=healthy, num_steps=5)
    run.on_phase = lambda phase: run.state.step < num_steps or break_all(run.prompts, scores)
    with pytest.raises(
        NothingToLearn, match=rf"step {num_steps}: .*trainer\.num_steps={num_steps} the stage ends"
    ):
        run.fit()
    assert run.saved_steps == [num_steps]
    resumed = run.resume()
    assert resumed.state.num_attempts == 1
    resumed.on_phase = lambda phase: None
    resumed.prompts = ListedPrompts(healthy)
    resumed.prompts.restore(resumed.state.prompts)
    assert resumed.fit() == "steps"
    assert list(map(timeless, resumed.records)) == list(map(timeless, whole.records))
    assert resumed.policy.weight == whole.policy.weight
    attempts = {step: line["num_attempts"] for step, line in read_digests(run.folder).steps.items()}
    assert attempts == {step: int(step == num_steps + 1) for step in range(1, 6)}
    assert resumed.sampler.settings[0].seed == sampling_seed(1, num_steps, 1)


def break_all(prompts: ListedPrompts, scores: list[float]) -> None:
    """Makes a grader of every prompt that has not been taken yet give these scores."""
    prompts.all[prompts.num_taken :] = [
        make_prompt(prompt.uid, scores) for prompt in prompts.all[prompts.num_taken :]
    ]


def test_a_broken_stage_ends_where_the_user_says_so(tmp_path: Path) -> None:
    """trainer.num_steps, as the sentence says: validated, and done."""
    run = Run(
        tmp_path, prompts=[make_prompt(f"p{i}", MIXED if i < 8 else WRONG) for i in range(100)], num_steps=9
    )
    with pytest.raises(NothingToLearn):
        run.fit()
    ended = run.resume(num_steps=2)
    assert ended.fit() == "steps"
    assert ended.state.validation[-1]["step"] == 2


def test_a_stage_that_saturates_at_once_keeps_score_and_mark_of_its_last_checkpoint(tmp_path: Path) -> None:
    """It writes that checkpoint again, under the same step, and it must remain a candidate for the best, and kept if a
    user has asked for it."""
    run = Run(tmp_path, prompts=running_out(1), num_steps=6, max_rounds=2, state=nearly_exhausted())
    save_request(tmp_path).parent.mkdir()
    save_request(tmp_path).touch()
    run.fit()
    (before,) = find_checkpoints(tmp_path)
    assert before.score is not None
    assert run.resume(num_steps=99).fit() == "saturated"
    (checkpoint,) = find_checkpoints(tmp_path)
    assert (checkpoint.state.step, checkpoint.score, checkpoint.is_requested) == (6, before.score, True)
