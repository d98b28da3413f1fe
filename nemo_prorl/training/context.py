"""What all parts of a step work with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nemo_prorl.config import RunConfig
from nemo_prorl.data.mix import PromptMix
from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.interface import Grader, Policy, Sampler
from nemo_prorl.training.sampling.fleet import SamplerFleet
from nemo_prorl.training.timing import Stopwatch


@dataclass(kw_only=True, eq=False)
class StepContext:
    """Options, ranks, engines and prompts of a run on this rank, and whom its parts tell. One instance serves the whole
    run."""

    config: RunConfig
    ranks: Ranks
    policy: Policy
    sampler: Sampler
    grader: Grader
    prompts: PromptMix
    sources: Mapping[str, str] = field(default_factory=dict)
    """Source of a prompt -> its name, if metrics are recorded by source."""
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    say: Callable[[str], None] = lambda text: None
    """Gets lines for the log."""
    on_progress: Callable[[], None] = lambda: None
    """Called after each rollout, verdict, batch and update."""

    def __post_init__(self) -> None:
        tensor_parallel = self.config.sampler.tensor_parallel
        self.fleet = SamplerFleet(
            self.sampler, self.ranks, tensor_parallel=tensor_parallel, on_progress=self.on_progress
        )
