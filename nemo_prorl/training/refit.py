"""A refit: the sampler gets the policy's weights, and shows that it has them before a rollout is drawn from it.

Two checks that find different faults. Fingerprints (algorithm/fingerprint.py) of every tensor are compared as it
leaves the policy, as it arrives, and as the engine holds it: exact, so that they see a refit that is one update late
even where an update moves the weights by less than the rounding of bf16, and they name the tensor. The canary
(training/canary.py) compares log-probabilities: it sees what is wrong beside the weights, and faults behind the place
where weights can be read, but only if they are large against rounding.

When either fails, everything is loaded once more and looked at again. What was a single accident is mended by that,
with nothing sampled meanwhile; what is not mended is for the signal `sampler_mismatch` to act upon.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from nemo_prorl.algorithm.fingerprint import fingerprint
from nemo_prorl.config import ControllerAction, RunConfig
from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.interface import Policy, Sampler
from nemo_prorl.training.canary import Canary, Difference
from nemo_prorl.training.fleet import SamplerFleet
from nemo_prorl.types import Prompt

CHANGED = "arrived with other values than were sent: look for what changes weights between policy and sampler"
STALE = (
    "arrived with the values of update {version}, {age} late: look for a copy between policy and sampler that is not "
    "refreshed"
)
LEFT_OUT = (
    "arrived, and the engine's loader did not take over what arrived: check how this version of vLLM loads these names "
    "(nemo_prorl/engines/weight_transfer.py)"
)
NOT_THE_WEIGHTS = (
    "The sampler holds every tensor bit for bit as the policy sent it, so look for what is not in the weights "
    "(temperature, precision, attention kernels, RoPE scaling, a quantised KV cache), or for a fault in how the policy "
    "joins its shards"
)
NUM_REMEMBERED = 4
"""Refits whose fingerprints are kept, to say how old a stale tensor is."""
NUM_NAMED = 6
"""Tensors that a sentence names; it counts the others."""

Faults = dict[str, str]
"""What is wrong with a tensor, by its Hugging Face name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refitted:
    """How a refit went; the same on every rank."""

    num_wrong: int = 0
    """Tensors that the sampler, on any rank, did not have as the policy has them when they were first loaded."""
    num_unmended: int = 0
    """Those that were still wrong after everything had been loaded again."""
    canary: Difference | None = None
    """The last look at it; None where there is no canary, or a tensor is wrong anyway."""
    diagnosis: str = ""
    """What is known of the cause, and where to look."""
    is_lost: bool = False
    """Whether nothing may be drawn from the sampler, since tensors are wrong for certain."""

    @property
    def metrics(self) -> dict[str, float]:
        metrics = {
            "sampler/num_wrong_tensors": float(self.num_wrong),
            "sampler/num_unmended_tensors": float(self.num_unmended),
        }
        if self.canary is not None:
            metrics["sampler/canary_abs_diff_mean"] = self.canary.mean
            metrics["sampler/canary_abs_diff_max"] = self.canary.max
        return metrics


class Refit:
    """Every rank calls it at the same time, when nobody else uses the sampler."""

    def __init__(
        self,
        canary: Prompt | None,
        *,
        config: RunConfig,
        policy: Policy,
        sampler: Sampler,
        fleet: SamplerFleet,
        ranks: Ranks,
        say: Callable[[str], None],
    ) -> None:
        """`canary`: what every engine is asked after each refit; None: nothing. `say`: gets what is found, and what it
        leads to, if anything."""
        self._policy, self._sampler, self._ranks, self._say = policy, sampler, ranks, say
        signal = config.controller.sampler_mismatch
        self._stops = signal.action is ControllerAction.stop
        self._canary: Canary | None = None
        if canary is not None and signal.canary_rollouts:
            self._canary = Canary(canary, config=config, fleet=fleet, policy=policy, ranks=ranks)
        self._sent: deque[tuple[int, dict[str, int]]] = deque(maxlen=NUM_REMEMBERED)
        """(version, fingerprints) of earlier refits, the newest last."""

    def __call__(self, version: int, *, canary_limit: float) -> Refitted:
        """`version`: number of updates behind the weights; `canary_limit`: up to this mean difference, in nats a token,
        the canary finds nothing."""
        sent, faults = self._load(version)
        canary = self._look(faults)
        still = faults
        if faults or (canary is not None and canary.mean > canary_limit):
            before = _described(faults, len(sent), canary, canary_limit)
            sent, still = self._load(version)
            canary = self._look(still, again=True)
            after = _described(still, len(sent), canary, canary_limit)
            self._say(f"refit after update {version}: {before}; everything is loaded again: now {after}.")
        named = still or faults
        cause = f"{_sentence(named, len(sent))}." if named else self._not_the_weights(sent)
        if self._earlier(sent) == list(self._sent):  # not the same weights once more
            self._sent.append((version, sent))
        return Refitted(
            num_wrong=len(faults),
            num_unmended=len(still),
            canary=canary,
            diagnosis=cause[0].upper() + cause[1:],
            is_lost=bool(still) and self._stops,
        )

    def _look(self, faults: Faults, *, again: bool = False) -> Difference | None:
        return self._canary.difference(again=again) if self._canary is not None and not faults else None

    def _load(self, version: int) -> tuple[dict[str, int], Faults]:
        """(fingerprints of what the policy sent, what is wrong on any rank)"""
        sent: dict[str, int] = {}
        stream = _noted(self._policy.named_weights(), sent)
        loaded = self._sampler.load_weights(stream, version=version)
        mine = dict.fromkeys(loaded.not_held, LEFT_OUT)
        for name, received in loaded.received.items():
            if received != sent.get(name):
                mine[name] = self._fault(name, received, sent)
        faults: Faults = {}
        for part in self._ranks.gather(mine):
            faults = part | faults  # the first rank that finds one says what it is
        return sent, faults

    def _fault(self, name: str, received: int, sent: Mapping[str, int]) -> str:
        """Of a tensor that did not arrive as it was sent."""
        for age, (of_version, sent_then) in enumerate(reversed(self._earlier(sent)), start=1):
            if sent_then.get(name) == received:
                return STALE.format(version=of_version, age="one refit" if age == 1 else f"{age} refits")
        return CHANGED

    def _earlier(self, sent: Mapping[str, int]) -> list[tuple[int, dict[str, int]]]:
        """Refits of other weights than these."""
        return [(version, sent_then) for version, sent_then in self._sent if sent_then != sent]

    def _not_the_weights(self, sent: Mapping[str, int]) -> str:
        """Where to look when every tensor is as it was sent. A policy that sends old values can be told by that."""
        earlier = self._earlier(sent)
        same = [name for name, value in sent.items() if earlier and earlier[-1][1].get(name) == value]
        if not same:
            return f"{NOT_THE_WEIGHTS}."
        return (
            f"{NOT_THE_WEIGHTS}: {_names(same, len(sent))} left the policy exactly as after update {earlier[-1][0]} "
            "(in bf16 norms and biases may stay the same for some updates, large matrices do not)."
        )


def _noted(
    weights: Iterable[tuple[str, torch.Tensor]], sent: dict[str, int]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The stream as it is; fingerprints go into `sent`."""
    for name, tensor in weights:
        sent[name] = fingerprint(tensor)
        yield name, tensor


def _described(faults: Faults, num_all: int, canary: Difference | None, limit: float) -> str:
    if faults:
        return _sentence(faults, num_all)
    if canary is None:
        return "every tensor is right"
    return (
        f"sampler and trainer differ by {canary.mean:.3g} nats a token of the canary on engine {canary.engine}, "
        f"where the limit is {limit:.3g}"
    )


def _sentence(faults: Faults, num_all: int) -> str:
    """Tensors with the same fault are named together."""
    by_fault: dict[str, list[str]] = defaultdict(list)
    for name, fault in faults.items():
        by_fault[fault].append(name)
    return "; ".join(f"{_names(names, num_all)} {fault}" for fault, names in by_fault.items())


def _names(names: Sequence[str], num_all: int) -> str:
    """Example: "12 of 50 tensors, all in model.layers.1 (model.layers.1.mlp.up_proj.weight, ... and 6 more)" """
    if len(names) == num_all:
        return f"all {num_all} tensors"
    first = ", ".join(sorted(names)[:NUM_NAMED])
    more = f" and {len(names) - NUM_NAMED} more" if len(names) > NUM_NAMED else ""
    layers = {".".join(name.split(".")[:3]) for name in names}  # such as model.layers.1
    where = f", all in {layers.pop()}" if len(layers) == 1 < len(names) else ""
    return f"{len(names)} of {num_all} tensors{where} ({first}{more})"
