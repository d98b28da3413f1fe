"""evaluation.*: the benchmarks of `evaluate`."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date

from nemo_prorl.config.sections.checks import at_least, require


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
    num_resamples: int = 1000
    """Number of times that the prompts are resampled for bootstrap intervals."""
    chunk_samples: int = 8192
    """Samples that one engine gets at a time; the ranks synchronise between chunks."""

    def __post_init__(self) -> None:
        at_least("evaluation", self, 1, ["num_resamples", "chunk_samples"])
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
