"""The table of a fork: what each arm's last validation measured, and how sure the difference to the first arm is."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nemo_prorl.config import ConfigError
from nemo_prorl.evaluation.tables import ABSENT, Table, as_text
from nemo_prorl.questions.arms import ArmRun
from nemo_prorl.questions.paired import MOST_SEEDS, Gain, Rewards, gain, mean_reward
from nemo_prorl.run_folder.difficulty import read_rewards
from nemo_prorl.run_folder.formats import duration
from nemo_prorl.run_folder.metrics_file import METRICS_FILE
from nemo_prorl.run_folder.run import RunFolder
from nemo_prorl.run_folder.validation_metrics import MEASUREMENT, PROMPT_MEAN

KL, TOKENS = "objective/kl_to_reference", "validation/response_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """The finished seeds of an arm."""

    name: str
    rewards: Rewards
    """Rewards of the last validation."""
    tokens: float
    """Mean length of its responses."""
    kl: float | None
    """KL to the arm's reference in its last step, in nats a token; None if it is not measured."""
    steps: Sequence[int]
    """Steps of the run after which they ended, without repetitions."""
    measurement: str
    """Name of what the validations measure."""
    gain: Gain | None
    """Over the first arm; None: it is the first arm, or the two have no seed in common."""

    @property
    def seeds(self) -> list[int]:
        return sorted(self.rewards)


def results_of(runs: Sequence[ArmRun]) -> list[ArmResult]:
    """Returns the results of the arms that have a finished seed, in the order of the arms. Raises ConfigError if their
    validations measure different things, so that they do not compare."""
    found: list[ArmResult] = []
    base: Rewards = {}
    for name in dict.fromkeys(run.arm.name for run in runs):
        done = [run for run in runs if run.arm.name == name and run.is_done]
        if not done:
            continue
        records = [[one for one in RunFolder(run.folder).records if one["stage"] == name] for run in done]
        lasts = [next((one for one in reversed(of_run) if PROMPT_MEAN in one), {}) for of_run in records]
        if {} in lasts:
            folder = done[lasts.index({})].folder
            raise ConfigError(
                f"{folder / METRICS_FILE} has no validation of {name}: bring back a copy of it, or delete {folder}, to "
                "train it again."
            )
        rewards = {
            run.seed: read_rewards(run.folder, name, last["step"])
            for run, last in zip(done, lasts, strict=True)
        }
        base = base or (rewards if name == runs[0].arm.name else {})
        kls = [kl for of_run in records for kl in [one[KL] for one in of_run if KL in one][-1:]]
        found.append(
            ArmResult(
                name=name,
                rewards=rewards,
                tokens=statistics.fmean(last[TOKENS] for last in lasts),
                kl=statistics.fmean(kls) if kls else None,
                steps=sorted({last["step"] for last in lasts}),
                measurement="/".join(sorted({last[MEASUREMENT] for last in lasts})),
                gain=gain(rewards, base)
                if name != runs[0].arm.name and base.keys() & rewards.keys()
                else None,
            )
        )
    if others := [one.name for one in found if one.measurement != found[0].measurement]:
        raise ConfigError(
            f"the validations of {found[0].name} and {others[0]} measure different things (prompts, graders or their "
            "settings have changed meanwhile), so the arms do not compare: write another --out to train them again."
        )
    return found


def table_lines(results: Sequence[ArmResult], runs: Sequence[ArmRun]) -> Iterator[str]:
    """Yields the table and what to know when reading it, in at most 80 columns. runs: all that were asked for."""
    base = runs[0].arm.name
    rows = [
        (
            one.name,
            f"{mean_reward(one.rewards):.3f}",
            *(_difference(one.gain) if one.gain else ("", "")),
            f"{one.tokens:,.1f}",
            f"{one.kl:.4f}" if one.kl is not None else ABSENT,
        )
        for one in results
    ]
    ends = sorted({step for one in results for step in one.steps})
    prompts = min(len(of_seed) for one in results for of_seed in one.rewards.values())
    seeds = sorted({seed for one in results for seed in one.seeds})
    which = f"seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"seed {seeds[0]}"
    title = f"held-out reward after step {ends[-1]}, mean over {prompts:,} prompts; {which}"
    columns = ("arm", "reward", f"against {base}", "95 % interval", "tokens", "KL")
    yield from as_text(Table(title=title, columns=columns, rows=tuple(rows)))
    for one in results:
        if one.gain is not None and (remark := _remark(one.gain)):
            yield f"{one.name}: {remark}."
        if one.seeds != seeds:
            yield f"{one.name}: only seed(s) {', '.join(map(str, one.seeds))}; compared by those that both arms have."
        if one.steps != ends[-1:]:
            yield f"{one.name}: ended after step {', '.join(map(str, one.steps))}."
    for run in runs:
        if run.why_failed:
            yield f"{run.arm.name}, seed {run.seed}: failed. {run.why_failed}"
    if any(one.gain and one.gain.num_seeds == 1 for one in results):
        yield "With one seed, intervals are over prompts: without the luck of training, which only more seeds show."
    elif len(results) > 1:
        yield "Intervals are over seeds, of the difference in the mean over prompts."


def _difference(one: Gain) -> tuple[str, str]:
    return f"{one.value:+.3f}", f"{one.low:+.3f} to {one.high:+.3f}"


def _remark(one: Gain) -> str:
    """Returns what a difference that is not certain lacks; empty for a certain one."""
    if one.is_certain:
        return ""
    if one.low == one.high == 0:
        return f"every prompt's reward is that of the other arm with {one.num_seeds} seed(s)"
    if one.seeds_needed is None:
        return "cannot tell; more seeds may"
    if one.seeds_needed > MOST_SEEDS:
        return f"cannot tell, nor would {MOST_SEEDS:,} seeds if the difference is as small as it looks"
    return f"cannot tell: about {one.seeds_needed:,} seeds would, if the difference is as large as it looks"


def as_json(results: Sequence[ArmResult]) -> list[dict[str, Any]]:
    """Returns the results, with every prompt's reward, for a file."""
    return [asdict(one) for one in results]


def unfinished(runs: Sequence[ArmRun]) -> list[ArmRun]:
    """Returns the runs that are neither done nor failed."""
    return [run for run in runs if not run.is_done and not run.why_failed]


def cost_sentence(step_s: float, *, num_runs: int, num_steps: int, num_ranks: int) -> str:
    """Returns how long the runs will take if each of their steps takes `step_s` seconds."""
    whole = duration(num_runs * num_steps * step_s)
    return (
        f"by the run's last steps ({step_s:.1f} s each) {whole} on {num_ranks} rank(s), without their starts"
    )
