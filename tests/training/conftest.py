"""Scripted engines: a sampler, a policy and graders that do what a test says, in the order that it says. They test the
loop; the real engines have tests of their own.

A prompt carries its script: task={"scores": [1, 0, None, ...], "lengths": [...], "unfinished": [2, ...]}. These are a
score and a length for each sibling, and the siblings that run out of tokens. A score of None is a failure of the
service.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nemo_prorl.algorithm.fingerprint import fingerprint
from nemo_prorl.algorithm.shaping import outline
from nemo_prorl.config import (
    BestMode,
    CheckpointCallbackParams,
    DynamicSamplingConfig,
    Precision,
    RewardConfig,
    RunConfig,
    SamplerConfig,
    ShapingConfig,
    TrainerConfig,
)
from nemo_prorl.config import ModelConfig as Model
from nemo_prorl.distributed import Layout, Ranks
from nemo_prorl.engines.interface import LoadedWeights, LossFunction, PendingSave, SamplingSettings
from nemo_prorl.run_folder.checkpoints import find_checkpoints
from nemo_prorl.training.checkpoint import CheckpointWriter
from nemo_prorl.training.context import StepContext
from nemo_prorl.training.sampling import grading
from nemo_prorl.training.sampling.rounds import Collector
from nemo_prorl.types import (
    Finish,
    FloatArray,
    Prompt,
    Rollout,
    RolloutGroup,
    RunState,
    ScoredRollout,
    TokenBatch,
    Totals,
    TrainBatch,
    UpdateReport,
)
from reward.protocol import GradeStatus, ScoreRequest, ScoreResult
from tests.training.tiny import Case, make_case

NUM_ROLLOUTS = 4
RIGHT, WRONG, MIXED = [1.0] * NUM_ROLLOUTS, [0.0] * NUM_ROLLOUTS, [1.0, 0.0, 0.0, 1.0]
FAILED = [None] * NUM_ROLLOUTS
SINGLE = Ranks(layout=Layout(rank=0, world_size=1, tensor_parallel=1, pipeline_parallel=1))


def make_prompt(
    uid: str, scores: Sequence[float | None] = MIXED, *, domain: str = "math", **task: Any
) -> Prompt:
    return Prompt(
        uid=uid,
        domain=domain,
        source="script",
        text=f"{uid}?",
        token_ids=(7,) * (1 + zlib.crc32(uid.encode()) % 4),
        task={"scores": list(scores), **task},
    )


def make_prompts(*scripts: Sequence[float | None]) -> list[Prompt]:
    return [make_prompt(f"p{index}", scores) for index, scores in enumerate(scripts)]


def make_rollout(
    prompt: Prompt, sibling: int, *, weight: float = 0.0, version: int = 0, finish: Finish = Finish.stop
) -> Rollout:
    """Returns a rollout whose tokens depend on prompt and sibling, and whose text is the sibling's index."""
    stream = np.random.default_rng(zlib.crc32(f"{prompt.uid}/{sibling}".encode()))
    lengths = prompt.task.get("lengths")
    length = lengths[sibling] if lengths else int(stream.integers(1, 7))
    token_ids = stream.integers(3, 40, length)
    return Rollout(
        prompt=prompt,
        sibling=sibling,
        token_ids=token_ids,
        sampler_logprobs=logprobs_of(torch.from_numpy(token_ids), torch.tensor(weight)).numpy(),
        text=str(sibling),
        finish=Finish.length if sibling in prompt.task.get("unfinished", ()) else finish,
        policy_version=version,
    )


def logprobs_of(token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The scripted model, which has one weight: it makes some tokens more likely and others less."""
    return (-0.1 * (1 + token_ids % 5) + weight * (token_ids % 3 - 1)).float()


def verdict(request_id: str, score: float | None, reason: str = "out of order") -> ScoreResult:
    if score is None:
        return ScoreResult(
            request_id=request_id,
            status=GradeStatus.infra_error,
            score=None,
            verdict="missing",
            details={"reason": reason},
        )
    return ScoreResult(request_id=request_id, status=GradeStatus.graded, score=score, verdict="scripted")


def make_group(
    uid: str, scores: Sequence[float | None], *, finish: Finish = Finish.stop, domain: str = "math"
) -> RolloutGroup:
    """Returns a graded group."""
    prompt = make_prompt(uid, scores, domain=domain)
    members = tuple(
        ScoredRollout(
            rollout=outline(make_rollout(prompt, sibling, finish=finish)),
            verdict=verdict("r", score),
            reward=score,
        )
        for sibling, score in enumerate(scores)
        if score is not None
    )
    return RolloutGroup(prompt=prompt, members=members, num_failed=len(scores) - len(members))


class ListedPrompts:
    """A replacement for PromptMix that yields the listed prompts, and fails a test that takes more."""

    num_too_long = 0

    def __init__(self, prompts: Iterable[Prompt]) -> None:
        self.all = list(prompts)
        self.num_taken = 0
        self.again: list[Prompt] = []

    def take(self, count: int) -> list[Prompt]:
        again, self.again = self.again[:count], self.again[count:]
        count -= len(again)
        taken = self.all[self.num_taken : self.num_taken + count]
        assert len(taken) == count, f"{self.num_taken + count} prompts are wanted, {len(self.all)} listed"
        self.num_taken += count
        return again + taken

    def give_back(self, prompts: Sequence[Prompt]) -> None:
        self.again = [*prompts, *self.again]

    def note(self, groups: Sequence[RolloutGroup]) -> None:
        self.noted = uids(groups)

    def state(self) -> dict[str, Any]:
        again = [prompt.uid for prompt in self.again]
        return {"taken": self.num_taken, **({"again": again} if again else {})}

    def restore(self, state: dict[str, Any]) -> None:
        of_uid = {prompt.uid: prompt for prompt in self.all}
        self.num_taken, self.again = state["taken"], [of_uid[uid] for uid in state.get("again", [])]


@dataclass
class ScriptedSampler:
    finishing_order: Callable[[list[Rollout]], Sequence[Rollout]] = lambda rollouts: rollouts
    after_sampling: Callable[[], None] = lambda: None
    events: list[str] = field(default_factory=list)
    settings: list[SamplingSettings] = field(default_factory=list)
    num_sampled: list[int] = field(default_factory=list)
    """Number of prompts of each call."""
    num_rollouts: list[int] = field(default_factory=list)
    """Number of rollouts of each call."""
    version: int = 0
    weight: float = 0.0
    num_preemptions: int = 0
    released_gib: float = 0.0

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> LoadedWeights:
        received = dict(weights)
        self.weight, self.version = float(received["weight"]), version
        self.events.append(f"load {version}")
        return LoadedWeights(received={name: fingerprint(tensor) for name, tensor in received.items()})

    def sample(
        self,
        prompts: Sequence[Prompt],
        settings: SamplingSettings,
        on_finish: Callable[[Rollout], None],
        siblings: Sequence[Sequence[int]] | None = None,
    ) -> list[list[Rollout]]:
        wanted = siblings or [range(settings.num_rollouts)] * len(prompts)
        self.events.append("sample")
        self.settings.append(settings)
        self.num_sampled.append(len(prompts))
        groups = [
            [make_rollout(prompt, sibling, weight=self.weight, version=self.version) for sibling in mine]
            for prompt, mine in zip(prompts, wanted, strict=True)
        ]
        self.num_rollouts.append(sum(len(group) for group in groups))
        for rollout in self.finishing_order([rollout for group in groups for rollout in group]):
            on_finish(rollout)
        self.after_sampling()
        return groups

    def wake(self) -> None:
        self.events.append("wake")

    def sleep(self) -> None:
        self.events.append("sleep")

    def close(self) -> None:
        self.events.append("close")


@dataclass
class ScriptedSave:
    directory: Path
    text: str
    name: str = "weights.json"

    def write(self) -> list[Path]:
        file = self.directory / self.name
        # Tensor-parallel ranks that are threads write the same text here; none may find another's file half
        # written.
        aside = file.with_name(f".{threading.get_ident()}")
        aside.write_text(self.text)
        aside.replace(file)
        return [file]

    def finish(self) -> None: ...


@dataclass
class ScriptedPolicy:
    weight: float = 0.0
    reference_weight: float = 0.0
    learning_rate: float = 0.5
    entropy: float = 0.5
    on_logprobs: Callable[[], None] = lambda: None
    take_peak_gib: Callable[[], float] = lambda: 0.0
    events: list[str] = field(default_factory=list)
    batches: list[TrainBatch] = field(default_factory=list)
    num_prepared: int = 0
    """Number of rollouts whose log-probabilities under the current weights were computed."""
    num_references: int = 0
    """How often the reference weights were loaded."""

    def logprobs(self, batch: TokenBatch) -> FloatArray:
        self.num_prepared += len(batch)
        self.on_logprobs()
        values = logprobs_of(torch.from_numpy(batch.token_ids_BT), torch.tensor(self.weight)).numpy()
        return np.where(batch.response_mask_BT, values, np.float32(0))

    @contextmanager
    def reference(self) -> Iterator[None]:
        self.num_references += 1
        prepared, current, self.weight = self.num_prepared, self.weight, self.reference_weight
        yield
        self.num_prepared, self.weight = prepared, current

    def update(self, batch: TrainBatch, loss_function: LossFunction) -> UpdateReport:
        self.events.append("update")
        self.batches.append(batch)
        weight = torch.tensor(self.weight, requires_grad=True)
        mask = torch.from_numpy(batch.tokens.response_mask_BT)
        logprobs = logprobs_of(torch.from_numpy(batch.tokens.token_ids_BT), weight) * mask
        entropy = torch.full_like(logprobs, self.entropy) * mask
        totals = Totals(num_tokens=batch.num_tokens, num_rollouts=len(batch))
        loss = loss_function(logprobs, entropy, batch, totals)
        loss.backward()
        assert weight.grad is not None
        self.weight -= self.learning_rate * float(weight.grad)
        return UpdateReport(
            loss=float(loss.detach()),
            grad_norm=abs(float(weight.grad)),
            learning_rate=self.learning_rate,
            current_logprobs_BT=logprobs.detach().numpy(),
            entropy_BT=entropy.numpy(),
        )

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield "weight", torch.tensor(self.weight)

    def adopt_as_reference(self) -> None:
        self.reference_weight = self.weight

    def reset_optimizer(self) -> None:
        self.events.append("reset optimizer")

    def begin_save(self, directory: Path) -> PendingSave:
        self.events.append("save")
        return ScriptedSave(
            directory, json.dumps({"weight": self.weight, "reference": self.reference_weight})
        )

    def reference_hash(self) -> str:
        return f"{self.reference_weight!r}"

    def load(self, directory: Path, *, reference: bool = True, **_: Any) -> None:
        saved = json.loads((directory / "weights.json").read_text())
        self.weight = saved["weight"]
        self.events += [] if reference else ["load policy"]
        self.reference_weight = saved["reference"] if reference else self.reference_weight

    def prepare_for_training(self) -> None:
        self.events.append("prepare")

    def finish_training(self) -> None:
        self.events.append("finish")


class ScriptedVerdict(Future[ScoreResult]):
    grader: ScriptedGrader


@dataclass
class ScriptedGrader:
    """Returns the verdicts of the script: at once, or one each time that the loop waits. Then `choose` picks which of
    the waiting ones."""

    at_once: bool = False
    choose: Callable[[int], int] = lambda num_waiting: 0
    seconds_each: float = 1.0
    reason: str = "out of order"
    requests: list[ScoreRequest] = field(default_factory=list)
    waiting: list[tuple[ScoreRequest, ScriptedVerdict]] = field(default_factory=list)

    def submit(self, request: ScoreRequest, prompt: Prompt) -> ScriptedVerdict:
        future = ScriptedVerdict()
        future.grader = self
        self.requests.append(request)
        self.waiting.append((request, future))
        if self.at_once:
            self.release()
        return future

    def check(self) -> None: ...

    def release(self) -> None:
        """Sets the result of one waiting verdict."""
        request, future = self.waiting.pop(self.choose(len(self.waiting)))
        future.set_result(
            verdict(request.request_id, request.task["scores"][int(request.response)], self.reason)
        )

    def release_all(self) -> None:
        while self.waiting:
            self.release()


@dataclass
class Clock:
    """A clock that advances only in `sleep`."""

    now: float = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replaces the clock of grading: each wait for a scripted grader advances it by `seconds_each`."""
    clock = Clock()

    def wait(pending: Iterable[ScriptedVerdict], timeout: float, return_when: str) -> None:
        grader = next(iter(pending)).grader
        clock.sleep(grader.seconds_each)
        grader.release()

    monkeypatch.setattr(grading, "time", clock)
    monkeypatch.setattr(grading, "wait", wait)
    return clock


def make_config(
    *,
    prompts_per_step: int = 4,
    updates_per_step: int = 1,
    num_steps: int = 3,
    num_rollouts: int = NUM_ROLLOUTS,
    max_failed_share: float = 0.0,
    shaping: ShapingConfig | None = None,
    **dynamic: Any,
) -> RunConfig:
    """Returns a small configuration. Rounds sample exactly as many prompts as are missing, unless `oversample` is
    given."""
    return RunConfig(
        model=Model(path="", precision=Precision.fp32),
        trainer=TrainerConfig(
            prompts_per_step=prompts_per_step, updates_per_step=updates_per_step, num_steps=num_steps
        ),
        sampler=SamplerConfig(num_rollouts=num_rollouts, max_prompt_tokens=32, max_response_tokens=32),
        dynamic_sampling=DynamicSamplingConfig(**({"oversample": 1.0} | dynamic)),
        reward=RewardConfig(max_failed_share=max_failed_share),
        shaping=shaping or ShapingConfig(),
    )


def make_collector(
    config: RunConfig,
    prompts: Sequence[Prompt] | ListedPrompts,
    *,
    sampler: ScriptedSampler | None = None,
    policy: ScriptedPolicy | None = None,
    grader: Any = None,
    ranks: Any = SINGLE,
) -> Collector:
    """Returns a Collector on scripted engines. Those that are not given have no special behaviour."""
    return Collector(
        StepContext(
            config=config,
            ranks=ranks,
            policy=policy or ScriptedPolicy(),
            sampler=sampler or ScriptedSampler(),
            grader=grader or ScriptedGrader(at_once=True),
            prompts=prompts if isinstance(prompts, ListedPrompts) else ListedPrompts(prompts),  # type: ignore[arg-type]
        )
    )


def new_state(**values: Any) -> RunState:
    """Returns a state. With num_updates=1, for example, the policy is no longer its reference."""
    return RunState(stage="main", **values)


def uids(groups: Iterable[RolloutGroup]) -> list[str]:
    return [group.prompt.uid for group in groups]


# A writer of a scripted policy's checkpoints


def writer(
    tmp_path: Path,
    *,
    keep: int = 2,
    best: int = 0,
    mode: str = "max",
    asynchronous: bool = False,
    ranks: Any = SINGLE,
    **more: Any,
) -> CheckpointWriter:
    return CheckpointWriter(
        tmp_path / "run",
        model_dir=tmp_path / "model",
        params=CheckpointCallbackParams(
            save_last_k=keep, save_top_k=best, mode=BestMode(mode), async_save=asynchronous, **more
        ),
        ranks=ranks,
        provenance={"commit": "abc"},
    )


def save(
    tmp_path: Path, step: int, stage: str = "main", *, policy: Any = None, keep: int = 2, **state: Any
) -> Path:
    return writer(tmp_path, keep=keep).save(
        policy or ScriptedPolicy(weight=float(step)),
        RunState(stage=stage, step=step, stage_step=step, **state),
    )


def found(tmp_path: Path) -> list[tuple[str, int]]:
    return [(c.state.stage, c.state.step) for c in find_checkpoints(tmp_path / "run")]


def folders(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())


@pytest.fixture(scope="session")
def case(tmp_path_factory: pytest.TempPathFactory, service: str) -> Case:
    return make_case(tmp_path_factory.mktemp("case"), service)


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in (
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt",
        "chat_template.jinja", "spiece.model", "model.safetensors", "model.safetensors.index.json",
        "pytorch_model.bin", "README.md",
    ):  # fmt: skip
        (folder / name).write_text(name)
    return folder
