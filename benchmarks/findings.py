"""The papers' ablations on the demo's tiny policy: comparisons of one change each, a few seeds each.

    .venv/bin/python benchmarks/findings.py [--only clip temperature] [--seeds 1 2 3] [--steps 12] [--out runs/findings]

Every arm is conf/laptop.yaml with SETTING and the arm's own options; the baseline is shared, and a run that is finished
is not run again. Each comparison becomes NAME.png, NAME.md and NAME.json in the folder; docs/findings.md reads them.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from training_runs import (
    ROLLOUTS,
    UNCLAMPED,
    Panel,
    Records,
    build_tiny_policy,
    draw,
    points,
    reset_steps,
    train,
)

from nemo_prorl.config import RewardConfig
from nemo_prorl.reward_service import reward_service
from nemo_prorl.storage import replace_text

SETTING = (
    *UNCLAMPED,
    "trainer.prompts_per_step=8",
    "validation.interval=3",
    "validation.max_prompts=16",
    "exp_manager.create_checkpoint_callback=false",
)
GRPO = (
    "algorithm.clip_high=0.2",
    "algorithm.aggregation=sequence_mean_token_mean",
    "dynamic_sampling.enabled=false",
)
ARMS: Mapping[str, Sequence[str]] = {
    "baseline": (),  # the recipe's objective: clip 0.2/0.4, dynamic sampling, KL 1e-4, temperature 1.2, no reset
    "symmetric_clip": ("algorithm.clip_high=0.2",),
    "low_clip": ("algorithm.clip_low=0.1",),
    "static_sampling": ("dynamic_sampling.enabled=false",),
    "no_kl": ("algorithm.kl_beta=0",),
    "temperature_06": ("sampler.temperature=0.6",),
    "grpo_no_kl": (*GRPO, "algorithm.kl_beta=0"),
    "grpo": GRPO,
    "adaptive_entropy": (
        *GRPO,
        "algorithm.kl_beta=0",
        "algorithm.entropy_bonus=adaptive",
        "algorithm.entropy_target=0.3",
    ),
    "reset": ("controller.mode=interval", "controller.interval=7"),
    "ahead": ("sampler.ahead=true", "algorithm.correction_level=token"),
    "correction": ("algorithm.correction_level=token",),
}
"""Name of the arm's runs -> what it changes. The reset comes after step 7, so that no second one is due at step 12."""
FIRST_STAGE = ("stage.name=first", "exp_manager.create_checkpoint_callback=true")
SECOND_STAGES: Mapping[str, Sequence[str]] = {
    "second_stage": (),  # a hard reset before it, as before runs 2 and 7
    "second_stage_temperature_06": ("sampler.temperature=0.6",),
    "second_stage_no_reset": ("stage.reset_reference=false", "stage.reset_optimizer=false"),
}
"""Name of the arm's runs -> what its second stage changes; the first one is the baseline of as many steps."""
COLOURS = ("#3f6fa3", "#b0413e", "#4f8a57", "#8a6d3b")

HELD_OUT = Panel(metric="validation/reward", title="held-out reward")
ENTROPY = Panel(metric="objective/entropy", title="entropy of training rollouts (nats a token)")
KL = Panel(metric="objective/kl_to_reference", title="KL to the reference (nats a token)")
TRAINING = Panel(metric="reward/mean", title="reward of training rollouts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A figure and a table."""

    title: str
    arms: Mapping[str, str]
    """Label -> name of the arm. The others are compared with the first."""
    panels: Sequence[Panel]


COMPARISONS = {
    "clip": Comparison(
        title="Symmetric against decoupled clip",
        arms={"0.2 / 0.4": "baseline", "0.2 / 0.2": "symmetric_clip"},
        panels=(HELD_OUT, ENTROPY),
    ),
    "sampling": Comparison(
        title="Dynamic against static sampling",
        arms={"dynamic": "baseline", "static": "static_sampling"},
        panels=(
            HELD_OUT,
            Panel(
                metric="validation/reward",
                title="held-out reward at equal cost",
                over=ROLLOUTS,
                over_title="training rollouts sampled",
            ),
            Panel(
                metric="dynamic_sampling/informative_share", title="informative prompts (share of sampled)"
            ),
        ),
    ),
    "kl": Comparison(
        title="KL weight 1e-4 against 0",
        arms={"1e-4": "baseline", "0": "no_kl"},
        panels=(HELD_OUT, ENTROPY, KL),
    ),
    "temperature": Comparison(
        title="Training temperature 1.2 against 0.6",
        arms={"1.2": "baseline", "0.6": "temperature_06"},
        panels=(HELD_OUT, TRAINING, ENTROPY),
    ),
    "low_clip": Comparison(
        title="Lower clip 0.2 against 0.1",
        arms={"0.2 / 0.4": "baseline", "0.1 / 0.4": "low_clip"},
        panels=(HELD_OUT, ENTROPY),
    ),
    "late_temperature": Comparison(
        title="Temperature 1.2 against 0.6 in a second stage",
        arms={"1.2": "second_stage", "0.6": "second_stage_temperature_06"},
        panels=(HELD_OUT, TRAINING, ENTROPY),
    ),
    "going_on": Comparison(
        title="A second stage after a hard reset against going on without one",
        arms={"hard reset": "second_stage", "no reset": "second_stage_no_reset"},
        panels=(HELD_OUT, KL, ENTROPY),
    ),
    "entropy": Comparison(
        title="Against the collapse of entropy",
        arms={
            "DAPO": "no_kl",
            "GRPO, KL 0": "grpo_no_kl",
            "GRPO, KL 1e-4": "grpo",
            "GRPO, adaptive entropy": "adaptive_entropy",
        },
        panels=(HELD_OUT, ENTROPY),
    ),
    "reset": Comparison(
        title="A hard reset in mid-run against none",
        arms={"no reset": "baseline", "reset after step 7": "reset"},
        panels=(HELD_OUT, KL, ENTROPY),
    ),
    "correction": Comparison(
        title="Without and with a correction of the sampler's probabilities (token, truncated at 2)",
        arms={"off": "baseline", "token, at most 2": "correction"},
        panels=(
            HELD_OUT,
            Panel(metric="objective/importance_weight_mean", title="mean weight of a token"),
        ),
    ),
    "ahead": Comparison(
        title="Rollouts of this step's weights against those of the step before",
        arms={"this step's": "baseline", "sampled ahead": "ahead"},
        panels=(
            HELD_OUT,
            ENTROPY,
            Panel(metric="sampler/logprob_abs_diff_mean", title="sampler against old policy (nats a token)"),
        ),
    ),
}
COLUMNS = {
    "held-out reward at the end": "last",
    "mean after step 0": "mean",
    "at equal rollouts": "at_equal_rollouts",
    "entropy, last steps": "entropy",
    "KL, last steps": "kl",
    "rollouts sampled": ROLLOUTS,
}
"""Head -> key of `summary`."""
LAST_STEPS = 4


def main() -> None:
    """Seed by seed, so that an interrupted benchmark still compares."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=COMPARISONS, default=list(COMPARISONS), metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("runs/findings"))
    parser.add_argument("--reward-url", metavar="URL", help="of a running service (default: one of our own)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    build_tiny_policy()
    wanted = list(dict.fromkeys(arm for name in options.only for arm in COMPARISONS[name].arms.values()))
    runs: dict[str, list[Records]] = {arm: [] for arm in wanted}
    service = (
        nullcontext(options.reward_url) if options.reward_url else reward_service(RewardConfig(), options.out)
    )
    with service as url:
        for seed in options.seeds:
            for arm in wanted:
                print(f"\n{arm}, seed {seed}", flush=True)
                runs[arm].append(run(options.out, url, arm, seed, options.steps))
    for name in options.only:
        comparison = COMPARISONS[name]
        compared = {label: runs[arm] for label, arm in comparison.arms.items()}
        draw(options.out / f"{name}.png", comparison.title, comparison.panels, compared, COLOURS)
        numbers = summaries(compared)
        replace_text(options.out / f"{name}.json", json.dumps(numbers, indent=1) + "\n")
        text = f"{comparison.title}; seeds {', '.join(map(str, options.seeds))}\n\n{table(numbers)}"
        replace_text(options.out / f"{name}.md", text)
        print(f"\n{text}", flush=True)


def stages_of(arm: str) -> list[Sequence[str]]:
    """What each stage of an arm changes."""
    if arm in ARMS:
        return [ARMS[arm]]
    return [FIRST_STAGE, ("stage.name=second", "stage.parent=first", *SECOND_STAGES[arm])]


def run(out: Path, url: str, arm: str, seed: int, num_steps: int) -> Records:
    """Runs one arm with `num_steps` in each stage, or reads it from its folder if it is finished."""
    stages = stages_of(arm)
    names = [""] if len(stages) == 1 else ["first", "second"]
    records: Records = []
    for name, options in zip(names, stages, strict=True):
        overrides = [*SETTING, *options, f"seed={seed}", f"trainer.num_steps={num_steps}"]
        records = train(out / f"{arm}-{seed}", url, overrides, stage=name)
    return records


def summaries(runs: Mapping[str, Sequence[Records]]) -> dict[str, list[dict[str, float]]]:
    """Numbers of every run by label, in the order of the seeds. Raises ValueError for arms with different seeds."""
    found: dict[str, list[dict[str, float]]] = {label: [] for label in runs}
    for same_seed in zip(*runs.values(), strict=True):
        budget = min(records[-1][ROLLOUTS] for records in same_seed)
        for label, records in zip(runs, same_seed, strict=True):
            found[label].append(summary(records, budget))
    return found


def summary(records: Records, budget: float) -> dict[str, float]:
    """Summarises one run. `budget`: training rollouts after which its held-out reward is read as well, interpolated
    linearly between validations."""
    validation = points(records, HELD_OUT.metric)
    costs = points(records, HELD_OUT.metric, ROLLOUTS)
    steps = [record for record in records if TRAINING.metric in record][-LAST_STEPS:]
    return {
        "first": validation[0],
        "last": list(validation.values())[-1],
        "mean": statistics.fmean(value for step, value in validation.items() if step > 0),
        "at_equal_rollouts": float(np.interp(budget, list(costs), list(costs.values()))),
        "entropy": statistics.fmean(record[ENTROPY.metric] for record in steps),
        "kl": statistics.fmean(record[KL.metric] for record in steps),
        ROLLOUTS: records[-1][ROLLOUTS],
        "num_resets": len(reset_steps(records)),
    }


def table(numbers: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """In Markdown: the mean over seeds with the smallest and the largest, and what each seed says against the first
    arm."""
    first = next(iter(numbers))
    lines = ["| | " + " | ".join(COLUMNS) + f" | end against {first}, by seed |"]
    lines.append("|---" * (len(COLUMNS) + 2) + "|")
    for label, of in numbers.items():
        cells = [spread([run[key] for run in of]) for key in COLUMNS.values()]
        gains = [f"{run['last'] - other['last']:+.3f}" for run, other in zip(of, numbers[first], strict=True)]
        lines.append(f"| {label} | {' | '.join(cells)} | {', '.join(gains) if label != first else ''} |")
    return "\n".join(lines) + "\n"


def spread(values: Sequence[float]) -> str:
    """Mean (smallest to largest)."""
    mean = statistics.fmean(values)
    form = "{:.3f}" if mean < 10 else "{:,.0f}" if mean >= 1000 else "{:.1f}"
    return form.format(mean) + f" ({form.format(min(values))} to {form.format(max(values))})"


if __name__ == "__main__":
    main()
