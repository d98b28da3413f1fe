"""Metrics that nobody logged: a user's function measures the steps of a recorded run, which are computed again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import module_from_spec, spec_from_file_location
from math import isfinite
from pathlib import Path
from typing import Any, cast

from nemo_prorl.algorithm.metrics import UpdateStatistics, merge_statistics
from nemo_prorl.config import ConfigError
from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.interface import LossFunction, Policy
from nemo_prorl.training.step import StepResult
from nemo_prorl.types import TrainBatch, UpdateReport

Measured = UpdateStatistics | Sequence[UpdateStatistics]


@dataclass(kw_only=True, eq=False)
class StepMetric:
    """A user's function, and what it has measured in the present step on this replica."""

    name: str
    function: Callable[[Any, Policy], Measured]
    of_updates: bool
    """Whether it is called before every update with its batch; otherwise after every step with its result."""
    parts: list[UpdateStatistics] = field(default_factory=list)

    def measure(self, what: StepResult | TrainBatch, policy: Policy) -> None:
        """Calls the function. Raises ConfigError if it returns something else than statistics."""
        found = self.function(what, policy)
        parts = [found] if isinstance(found, UpdateStatistics) else found
        if not isinstance(parts, Sequence) or not all(isinstance(part, UpdateStatistics) for part in parts):
            raise ConfigError(
                f"metric {self.name} returned {found!r}: return an UpdateStatistics of nemo_prorl.algorithm.metrics, "
                "such as UpdateStatistics(means={'my/metric': (sum, count)})."
            )
        self.parts += parts

    def take(self, ranks: Ranks) -> dict[str, float]:
        """Returns the step's metrics, merged over updates and replicas, and forgets them. Collective. Numbers that are
        not finite are left out, as in metrics.jsonl."""
        mine, self.parts = self.parts, []
        found = merge_statistics([part for parts in ranks.gather_replicas(mine) for part in parts])
        return {name: value for name, value in found.items() if isfinite(value)}

    def watching(self, policy: Policy) -> Policy:
        """Returns the policy, which calls the metric before each of its updates if the metric is one of updates."""
        return cast(Policy, _WatchedPolicy(policy, self)) if self.of_updates else policy


class _WatchedPolicy:
    """A policy that lets a metric see each batch before the update on it."""

    def __init__(self, policy: Policy, metric: StepMetric) -> None:
        self._policy, self._metric = policy, metric

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def update(self, batch: TrainBatch, loss_function: LossFunction) -> UpdateReport:
        whole = batch
        if batch.old_logprobs_BT is None:  # the update would compute them
            old = self._policy.logprobs(batch.tokens)
            reference = old if batch.reference_logprobs_BT is None else batch.reference_logprobs_BT
            whole = replace(batch, old_logprobs_BT=old, reference_logprobs_BT=reference)
        self._metric.measure(whole, self._policy)
        return self._policy.update(batch, loss_function)


def load_metric(text: str) -> StepMetric:
    """Returns the metric that FILE.py:NAME names. Raises ConfigError."""
    file, _, name = text.rpartition(":")
    path = Path(file)
    if not path.is_file() or path.suffix != ".py" or not name.isidentifier():
        raise ConfigError(f"--metric {text} names no function: write FILE.py:NAME with an existing file.")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{path} cannot be imported: {type(error).__name__}: {error}.") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"{path} has no function {name}.")
    parameters = list(inspect.signature(function).parameters)
    if len(parameters) != 2 or parameters[0] not in ("step", "batch"):
        raise ConfigError(
            f"{name} in {path} takes ({', '.join(parameters)}): write `def {name}(step, policy)` to be called after "
            f"every step, or `def {name}(batch, policy)` to be called before every update."
        )
    return StepMetric(name=name, function=function, of_updates=parameters[0] == "batch")
