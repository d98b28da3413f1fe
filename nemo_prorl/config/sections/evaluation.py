"""validation.* and evaluation.*: held-out prompts during training, and the benchmarks of `evaluate`."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date

from nemo_prorl.config.sections.checks import at_least, positive, require


@dataclass(slots=True, kw_only=True)
class ValidationConfig:
    """Held-out prompts, sampled and graded as in training."""

    interval: int = 20
    """Steps between validations; 0: only before the first and after the last step."""
    early: bool = False
    """Whether a run also validates after its steps 1, 2, 4, 8, ... below the interval, which the controller ignores."""
    num_rollouts: int = 16
    """Rollouts per prompt (ProRL: 16)."""
    temperature: float = 0.6
    """Sampling temperature of validation and `evaluate` (ProRL: 0.6)."""
    top_p: float = 0.95
    """Nucleus sampling threshold of validation and `evaluate` (ProRL: 0.95)."""
    max_prompts: int = 0
    """Prompts taken from each file, and by `evaluate` from each benchmark, evenly spaced; 0: all."""
    stop_at: float = 0.0
    """Mean over domains of the held-out reward at which the stage is done before trainer.num_steps; 0: never."""
    num_kept: int = 64
    """Rollouts per validation whose text is kept in RUN/samples/; 0: none."""

    def __post_init__(self) -> None:
        at_least("validation", self, 0, ["interval", "max_prompts", "stop_at", "num_kept"])
        at_least("validation", self, 1, ["num_rollouts"])
        positive("validation", self, ["temperature"])
        require(0 < self.top_p <= 1, "validation.top_p", self.top_p, "in (0, 1]")

    def is_due(self, stage_step: int) -> bool:
        """Whether a validation follows this step of a stage; its last step has one anyway."""
        return self.interval > 0 and stage_step % self.interval == 0

    def is_early(self, step: int) -> bool:
        """Whether one follows this step of the run because of `early`."""
        return self.early and step < self.interval and step.bit_count() == 1


@dataclass(slots=True, kw_only=True)
class EvaluationConfig:
    """Benchmarks of `evaluate suite=NAME`, their files and the folder of the results. The options of sampling are under
    validation and sampler."""

    benchmarks: list[str] = field(default_factory=list)
    """Names of benchmarks; `evaluate --list` prints all of them."""
    data_dir: str = "data/benchmarks"
    """Folder with the benchmarks' files, as published."""
    livecodebench_dates: str = "2024-08-01..2025-02-01"
    """Window of contest dates for LiveCodeBench, FIRST..LAST, both included; empty: all (DeepCoder's window: the papers
    name none)."""
    puzzles: list[str] = field(default_factory=list)
    """Reasoning Gym tasks that the benchmark reasoning_gym is limited to; empty: all in its file."""
    out: str = ""
    """Folder for samples and results; empty: evaluations/ and the name of the model's folder."""
    chunk_samples: int = 8192
    """Samples that one engine gets at a time; the ranks synchronise between chunks."""

    def __post_init__(self) -> None:
        at_least("evaluation", self, 1, ["chunk_samples"])
        first, _, last = self.livecodebench_dates.partition("..")
        try:
            in_order = date.fromisoformat(first) <= date.fromisoformat(last)
        except ValueError:
            in_order = False
        require(
            not self.livecodebench_dates or (in_order and len(first) == len(last) == 10),
            "evaluation.livecodebench_dates",
            self.livecodebench_dates,
            "empty, or FIRST..LAST in order, such as 2024-08-01..2025-02-01",
        )
