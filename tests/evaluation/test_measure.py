"""Tests that the journal ends with the same samples after a kill at any point, with any number of ranks, and if more
samples are added later."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nemo_prorl.engines.interface import SamplingSettings
from nemo_prorl.evaluation import journal, results
from nemo_prorl.evaluation.catalogue import get
from nemo_prorl.evaluation.journal import Known
from nemo_prorl.evaluation.measure import Machinery, measure
from nemo_prorl.evaluation.prompts import Loaded
from nemo_prorl.training.sampling.fleet import SamplerFleet
from nemo_prorl.training.sampling.grading import RewardServiceFailing
from nemo_prorl.types import Finish, Prompt, Rollout
from tests.training.conftest import SINGLE, ScriptedGrader, ScriptedSampler, make_prompt
from tests.training.thread_ranks import run_as_ranks

SETTINGS = SamplingSettings(num_rollouts=99, temperature=0.6, top_p=0.95, max_response_tokens=32, seed=3)
MATH = Loaded(benchmark=get("math"), rows=(), num_found=0)
SCORES = [1.0, 0.0, 0.5, 1.0, 0.0, 0.0, 1.0, 0.25]


class Killed(Exception):
    """Raised in place of a kill in the middle of sampling."""


class NamedSampler(ScriptedSampler):
    """A sampler whose samples depend only on the prompt's name, as the real one's do; the text determines the score."""

    def __init__(self, kill_after: int | None = None) -> None:
        super().__init__()
        self.kill_after, self.sampled = kill_after, list[str]()

    def sample(
        self, prompts: Sequence[Prompt], settings: SamplingSettings, on_finish: Any, siblings: Any = None
    ) -> list[list[Rollout]]:
        assert settings.num_rollouts == 1
        groups = []
        for prompt in prompts:
            if self.kill_after is not None and len(self.sampled) >= self.kill_after:
                raise Killed
            self.sampled.append(prompt.uid)
            number = int(prompt.uid.rpartition("@")[2])
            rollout = Rollout(
                prompt=prompt,
                sibling=0,
                token_ids=np.arange(len(prompt.uid)),
                sampler_logprobs=np.zeros(len(prompt.uid), dtype=np.float32),
                text=str(number % len(SCORES)),
                finish=Finish.length if number == 2 else Finish.stop,
                policy_version=0,
            )
            groups.append([rollout])
            on_finish(rollout)
        return groups


def prompts(count: int = 5) -> list[Prompt]:
    return [make_prompt(f"p{index}", SCORES) for index in range(count)]


def run(
    folder: Path,
    *,
    num_samples: int = 4,
    sampler: NamedSampler | None = None,
    grader: Any = None,
    ranks: Any = SINGLE,
    key: str = "k",
    chunk: int = 3,
    max_failed_share: float = 0.0,
    version: str = "1",
    asked: Sequence[Prompt] | None = None,
    say: Any = lambda text: None,
) -> Known:
    machinery = Machinery(
        fleet=SamplerFleet(sampler or NamedSampler(), ranks, tensor_parallel=1),
        grader=grader or ScriptedGrader(at_once=True),
        grader_version=version,
        ranks=ranks,
        max_failed_share=max_failed_share,
        chunk_samples=chunk,
        say=say,
    )
    wanted = prompts() if asked is None else asked
    return measure("math", wanted, num_samples, SETTINGS, folder=folder, key=key, machinery=machinery)


def summary(known: Known) -> Any:
    return dataclasses.asdict(
        results.summarise(
            MATH,
            known,
            {prompt.uid: "math" for prompt in prompts()},
            num_samples=4,
            num_too_long=0,
        )
    )


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Known:
    return run(tmp_path_factory.mktemp("uninterrupted"))


def test_all_samples_of_all_prompts(uninterrupted: Known) -> None:
    assert set(uninterrupted.samples) == {(f"p{index}", number) for index in range(5) for number in range(4)}
    assert [uninterrupted.samples["p1", number].score for number in range(4)] == SCORES[:4]


@pytest.mark.parametrize("kill_after", range(0, 20, 3))
def test_a_kill_costs_only_what_was_under_way(tmp_path: Path, uninterrupted: Known, kill_after: int) -> None:
    with pytest.raises(Killed):
        run(tmp_path, sampler=NamedSampler(kill_after))
    again = NamedSampler()
    assert run(tmp_path, sampler=again).samples == uninterrupted.samples
    assert len(again.sampled) == 20 - kill_after, "what was sampled is not sampled again"


@pytest.mark.parametrize("num_bytes", [1, 40, 90, 150, 333, 700, 1500])
def test_a_file_torn_anywhere_is_mended(tmp_path: Path, uninterrupted: Known, num_bytes: int) -> None:
    run(tmp_path)
    file = tmp_path / "math.rank0.jsonl"
    file.write_bytes(file.read_bytes()[:-num_bytes])
    assert run(tmp_path).samples == uninterrupted.samples


@pytest.mark.parametrize(
    "damaged", ["{", "\0" * 99, "[1]", '{"sample": 1, "key": "k"}', '{"uid": ["p1"], "sample": 1}']
)
@pytest.mark.parametrize("place", [0, 5, 1000])
def test_a_damaged_line_costs_itself_alone(
    tmp_path: Path, uninterrupted: Known, place: int, damaged: str
) -> None:
    run(tmp_path)
    file = tmp_path / "math.rank0.jsonl"
    lines = file.read_text().splitlines()
    lines[place : place + 1] = [damaged]
    file.write_text("\n".join(lines) + "\n")
    sampler, said = NamedSampler(), list[str]()
    assert run(tmp_path, sampler=sampler, say=said.append).samples == uninterrupted.samples
    assert len(sampler.sampled) <= 1
    assert said == [
        f"math: 1 damaged line(s) in {tmp_path} are left out, and what they held is sampled or graded again"
    ]


@pytest.mark.parametrize("rank", [0, 1])
def test_samples_without_a_verdict_are_graded_and_not_sampled_again(
    tmp_path: Path, uninterrupted: Known, rank: int
) -> None:
    """Another rank than the one that sampled may grade; its file comes first, so verdicts are read before samples."""
    run(tmp_path)
    file = tmp_path / "math.rank0.jsonl"
    lines = [line for line in file.read_text().splitlines() if '"response"' in line]
    file.unlink()
    (tmp_path / f"math.rank{rank}.jsonl").write_text("\n".join(lines) + "\n")
    for num_requests in (20, 0):  # what is graded once is not graded again
        sampler, grader = NamedSampler(), ScriptedGrader(at_once=True)
        assert run(tmp_path, sampler=sampler, grader=grader).samples == uninterrupted.samples
        assert (sampler.sampled, len(grader.requests)) == ([], num_requests)


OTHER_SCORES = [0.0, 1.0, 1.0, 0.25, *SCORES[4:]]


@pytest.mark.parametrize("what", ["task", "version", "thought", "old file"])
def test_verdicts_of_another_grading_are_not_reused(tmp_path: Path, uninterrupted: Known, what: str) -> None:
    """The responses are reused, so nothing is sampled again; the new verdicts are then kept."""
    run(tmp_path)
    asked, version = prompts(), "1"
    if what == "task":
        asked[1] = make_prompt("p1", OTHER_SCORES)
    elif what == "version":
        version = "2"
    elif what == "thought":
        asked[1] = dataclasses.replace(asked[1], opens_thought=True)
    else:
        file = tmp_path / "math.rank0.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text(
            "".join(json.dumps({k: v for k, v in line.items() if k != "grading"}) + "\n" for line in lines)
        )
    num_again = 4 if what in ("task", "thought") else 20
    sampler, grader, said = NamedSampler(), ScriptedGrader(at_once=True), list[str]()
    found = run(tmp_path, sampler=sampler, grader=grader, version=version, asked=asked, say=said.append)
    assert (sampler.sampled, len(grader.requests)) == ([], num_again)
    assert said == [
        f"math: {num_again} stored responses are graded again, because the graders or the problems have changed since"
    ]
    scores = OTHER_SCORES if what == "task" else SCORES
    assert [found.samples["p1", number].score for number in range(4)] == scores[:4]
    assert found.samples["p0", 0] == uninterrupted.samples["p0", 0]
    settled = ScriptedGrader(at_once=True)
    assert run(tmp_path, grader=settled, version=version, asked=asked).samples == found.samples
    assert settled.requests == []


def test_a_service_that_fails_at_the_second_grading_leaves_no_old_verdict(tmp_path: Path) -> None:
    run(tmp_path)
    known = run(tmp_path, version="2", grader=FailsOn(at_once=True), max_failed_share=1.0)
    assert [known.samples["p0", number].score for number in range(4)] == [1.0, None, 0.5, 1.0]


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_the_work_and_change_nothing(
    tmp_path: Path, uninterrupted: Known, world_size: int
) -> None:
    samplers = [NamedSampler() for _ in range(world_size)]
    found = run_as_ranks(
        lambda ranks: run(tmp_path, ranks=ranks, sampler=samplers[ranks.layout.rank]),
        world_size,
        1,
        1,
    )
    assert all(summary(known) == summary(uninterrupted) for known in found)
    assert sorted(uid for sampler in samplers for uid in sampler.sampled) == sorted(
        f"p{index}@{number}" for index in range(5) for number in range(4)
    )
    assert all(sampler.sampled for sampler in samplers)
    alone = NamedSampler()
    assert run(tmp_path, sampler=alone).samples == uninterrupted.samples, (
        "one rank goes on where several stopped"
    )
    assert alone.sampled == []


def test_more_samples_later_begin_with_those_that_are_there(tmp_path: Path) -> None:
    before = run(tmp_path, num_samples=4)
    sampler = NamedSampler()
    after = run(tmp_path, num_samples=8, sampler=sampler)
    assert len(sampler.sampled) == 20
    assert {where: after.samples[where] for where in before.samples} == before.samples
    assert run(tmp_path, num_samples=4).samples == before.samples


def test_another_model_or_setting_begins_anew(tmp_path: Path) -> None:
    run(tmp_path)
    sampler = NamedSampler()
    run(tmp_path, sampler=sampler, key="other")
    assert len(sampler.sampled) == 20


def test_the_key_is_of_the_files_and_the_settings(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    key = journal.key_of(tmp_path, {"temperature": 0.6})
    assert key == journal.key_of(tmp_path, {"temperature": 0.6})
    assert key != journal.key_of(tmp_path, {"temperature": 0.7})
    (tmp_path / "model.safetensors").write_bytes(b"weightz")
    assert key != journal.key_of(tmp_path, {"temperature": 0.6})


class FailsOn(ScriptedGrader):
    """A grader that fails to grade one response."""

    def submit(self, request: Any, prompt: Any) -> Any:
        scores = [None if index == 1 else score for index, score in enumerate(SCORES)]
        task = {"scores": scores}
        return super().submit(dataclasses.replace(request, task=task), prompt)


def test_a_failing_service_is_no_score_and_is_asked_again(tmp_path: Path, uninterrupted: Known) -> None:
    with pytest.raises(RewardServiceFailing, match="5 of 20"):
        run(tmp_path, grader=FailsOn(at_once=True))
    known = run(tmp_path, grader=FailsOn(at_once=True), max_failed_share=1.0)
    assert summary(known)["num_missing"] == 5
    assert run(tmp_path).samples == uninterrupted.samples


def test_numbers_by_hand(uninterrupted: Known) -> None:
    found = summary(uninterrupted)
    assert found["score"]["value"] == pytest.approx(0.5)
    assert found["reward"] == pytest.approx(2.5 / 4)
    assert {k: one["value"] for k, one in found["pass_at_k"].items()} == pytest.approx(
        {1: 0.5, 2: 5 / 6, 4: 1.0}
    )
    assert found["no_eos_share"] == 0.25
    assert found["prompts"]["p0"] == {"source": "math", "num_samples": 4, "num_correct": 2, "reward": 0.625}
