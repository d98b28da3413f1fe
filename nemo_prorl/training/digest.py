"""What a step has computed, as hashes by phase, so that a later computation of the same step can be compared with it.

A phase depends only on the phases before it, so the first that differs is where to look.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Any

import numpy as np

from nemo_prorl.distributed import Ranks
from nemo_prorl.training.sampling.fleet import Key
from nemo_prorl.training.step import StepResult
from nemo_prorl.types import PARTS, Rollout
from reward.protocol import ScoreResult


class Phase(StrEnum):
    """The phases of a step, in the order in which they depend on each other."""

    start = "weights at the start"
    prompts = "prompts"
    rollouts = "rollouts"
    sampler_logprobs = "sampler's log-probabilities"
    verdicts = "verdicts"
    selection = "rewards and selection"
    old_logprobs = "old log-probabilities"
    reference_logprobs = "reference's log-probabilities"
    advantages = "advantages"
    updates = "updates"
    weights = "weights"


UNITS = {Phase.start: "tensors", Phase.updates: "updates", Phase.weights: "tensors"}
"""What a phase consists of, where it is not prompts."""
NUM_DIGITS = 4
"""Hexadecimal digits that a line keeps of each item's hash, to find the one that differs; 16 of all items together say
whether one does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDigest:
    """The hashes of one step."""

    items: Mapping[Phase, Mapping[str, bytes]]
    """Phase -> name of a prompt, an update or a tensor -> hash, in the step's order."""
    numbers: tuple[Mapping[str, float], ...]
    """Loss, gradient norm and learning rate of each update."""
    was_ahead: bool
    """Whether the first round of rollouts was sampled during the step before."""
    ahead: bool
    """Whether the next step's first round was drawn during this step. A checkpoint or a reset may have dropped it."""

    def as_record(self) -> dict[str, Any]:
        """Returns what a line of digests.jsonl keeps of it: for each phase the hash of all items, and the beginning of
        each item's own."""
        phases = {
            phase.name: [_hash(*items.values()).hex(), "".join(h.hex()[:NUM_DIGITS] for h in items.values())]
            for phase, items in self.items.items()
        }
        return {
            "was_ahead": self.was_ahead,
            "ahead": self.ahead,
            "phases": phases,
            "updates": [dict(numbers) for numbers in self.numbers],
        }


def digest_of(result: StepResult, ranks: Ranks) -> StepDigest:
    """Returns the step's digest, the same on every rank. Collective; only hashes are sent."""
    collection, layout = result.collection, ranks.layout
    prepared = collection.prepared if layout.leads_replica else {}
    mine: dict[str, Any] = {
        Phase.rollouts: {key: _tokens(row) for key, row in collection.rollouts.items()},
        Phase.sampler_logprobs: {
            key: _hash(row.sampler_logprobs) for key, row in collection.rollouts.items()
        },
        Phase.old_logprobs: {key: _hash(row.logprobs[0]) for key, row in prepared.items()},
        Phase.reference_logprobs: {key: _hash(row.logprobs[1]) for key, row in prepared.items()},
        Phase.advantages: _advantages(result) if layout.leads_replica else [],
        Phase.updates: [
            _hash(report.current_logprobs_BT, report.entropy_BT) if layout.leads_replica else b""
            for report in result.reports
        ],
    }
    parts = ranks.gather(mine)

    def by_prompt(phase: Phase) -> dict[str, bytes]:
        found: dict[Key, bytes] = {}
        for part in parts:
            found |= part[phase]
        return _joined((collection.sampled[index].prompt.uid, found[index, s]) for index, s in sorted(found))

    groups, kept = collection.sampled, set(collection.kept)
    verdicts = (
        (groups[index].prompt.uid, _verdict(found)) for (index, _), found in collection.verdicts.items()
    )
    numbers = tuple(
        {"loss": r.loss, "gradient norm": r.grad_norm, "learning rate": r.learning_rate}
        for r in result.reports
    )
    return StepDigest(
        items={
            Phase.start: _fingerprints(result.began_with),
            Phase.prompts: {
                g.prompt.uid: _hash(g.prompt.uid, np.array(g.prompt.token_ids, np.int32)) for g in groups
            },
            Phase.rollouts: by_prompt(Phase.rollouts),
            Phase.sampler_logprobs: by_prompt(Phase.sampler_logprobs),
            Phase.verdicts: _joined(verdicts),
            Phase.selection: {
                group.prompt.uid: _hash(
                    repr((index in kept, [(m.reward, m.in_loss, m.shaped_by) for m in group.members]))
                )
                for index, group in enumerate(groups)
            },
            Phase.old_logprobs: by_prompt(Phase.old_logprobs),
            Phase.reference_logprobs: by_prompt(Phase.reference_logprobs),
            Phase.advantages: _joined(sorted(pair for part in parts for pair in part[Phase.advantages])),
            Phase.updates: {
                f"update {index + 1}": _hash(
                    repr(list(numbers[index].values())), *(part[Phase.updates][index] for part in parts)
                )
                for index in range(len(result.reports))
            },
            Phase.weights: _fingerprints(result.refitted.fingerprints),
        },
        numbers=numbers,
        was_ahead=collection.was_ahead,
        ahead=result.ahead,
    )


def differences(recorded: Mapping[str, Any], again: StepDigest) -> dict[Phase, str]:
    """Returns the phases in which a line of digests.jsonl differs from the step's new digest, the first one first, and
    of each how many prompts, updates or tensors differ, and which."""
    found, new = {}, again.as_record()["phases"]
    for phase, items in again.items.items():
        (whole_before, before), (whole_now, now) = recorded["phases"][phase.name], new[phase.name]
        if whole_before == whole_now:
            continue
        unit = UNITS.get(phase, "prompts")
        found[phase] = f"{len(before) // NUM_DIGITS} {unit} recorded, {len(items)} now"
        if len(before) == len(now):
            starts = range(0, len(now), NUM_DIGITS)
            pairs = zip(items, starts, strict=True)
            names = [
                name for name, at in pairs if before[at : at + NUM_DIGITS] != now[at : at + NUM_DIGITS]
            ] or list(items)  # their order may differ, or an item by chance not in these digits
            first = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            found[phase] = f"{len(names)} of {len(items)} {unit} ({first})"
            if phase is Phase.updates and (values := _changed(recorded["updates"], again.numbers)):
                found[phase] += f": {values}"
    return found


def _changed(before: Sequence[Mapping[str, float]], now: Sequence[Mapping[str, float]]) -> str:
    """Returns the numbers of the first update that differs, recorded and new."""
    for old, new in zip(before, now, strict=False):
        changed = [f"{name} {old[name]!r} -> {new[name]!r}" for name in new if old[name] != new[name]]
        if changed:
            return ", ".join(changed)
    return ""


def _advantages(result: StepResult) -> list[tuple[str, bytes]]:
    """Returns (uid of the prompt, hash of update, tokens and advantage) of each row."""
    return [
        (
            row.rollout.prompt.uid,
            _hash(repr((update, row.advantage)), np.asarray(row.rollout.token_ids, np.int32)),
        )
        for update, rows in enumerate(result.rows)
        for row in rows
    ]


def _fingerprints(weights: Mapping[str, int]) -> dict[str, bytes]:
    return {name: _hash(name, value.to_bytes(8)) for name, value in weights.items()}


def _tokens(row: Rollout) -> bytes:
    return _hash(np.asarray(row.token_ids, np.int32), row.finish.value, str(row.policy_version))


def _verdict(found: ScoreResult) -> bytes:
    return _hash(repr((found.status.value, found.score, sorted(found.details.get(PARTS, {}).items()))))


def _joined(pairs: Iterable[tuple[str, bytes]]) -> dict[str, bytes]:
    """Returns name -> one hash of all of its hashes, in the order in which names and hashes come."""
    found: dict[str, list[bytes]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return {name: _hash(*values) for name, values in found.items()}


def _hash(*parts: bytes | str | np.ndarray[Any, Any]) -> bytes:
    """Returns a hash of 8 bytes of the parts and of their lengths."""
    state = blake2b(digest_size=8)
    for part in parts:
        data = part.tobytes() if isinstance(part, np.ndarray) else part
        data = data.encode() if isinstance(data, str) else data
        state.update(len(data).to_bytes(8))
        state.update(data)
    return state.digest()
