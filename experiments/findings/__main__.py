"""Compares settings of small policies, a few seeds each: the papers' ablations, resets, and recipes.

    make experiment NAME=findings [ARGS="--only clip controller --seeds 1 --steps 6 --out runs/findings"]
    make experiment NAME=findings ARGS="--only stories --model DIR"    # with and without resets, on a pretrained model
    make experiment NAME=findings ARGS="--only recipes --model DIR"    # several recipes of conf/recipe on the same model

DIR is the folder of a Llama trained on TinyStories in Hugging Face format, such as karpathy/tinyllamas' stories260K.
Comparisons share their runs, and finished runs are not repeated. Each comparison writes NAME.png, NAME.md and NAME.json
into the folder; README.md discusses them.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.findings.stories_prompts import write_prompts
from experiments.findings.stories_text import PROMPTS, with_text_metrics
from benchmarks.runs import (
    ROLLOUTS,
    Panel,
    Records,
    build_tiny_policy,
    draw,
    points,
    reset_steps,
    train,
)
from nemo_prorl.config import RewardConfig
from nemo_prorl.data.rows import RowFile, write_rows
from nemo_prorl.demo.build import BASE
from nemo_prorl.reward_sources.service import reward_service
from nemo_prorl.run_folder.storage import replace_text

HELD_OUT, ENTROPY = "validation/score", "objective/entropy"
KL, TRAINING = "objective/kl_to_reference", "reward/mean"
LAST_STEPS = 4

Column = Callable[[Records, float], float]
"""Maps the records of a run, and the smallest number of training rollouts of any arm with this seed, to a number of the
table."""


def last(metric: str) -> Column:
    """Returns the column of a metric's last value. (The last record need not have every metric, because a run may end
    for lack of informative prompts.)"""
    return lambda records, _: list(points(records, metric).values())[-1]


def late(metric: str) -> Column:
    """Returns the column of a metric's mean over the last LAST_STEPS training steps."""
    return lambda records, _: statistics.fmean(list(points(records, metric).values())[-LAST_STEPS:])


def mean_after_start(records: Records, _: float) -> float:
    """Returns the mean held-out reward without that of the untrained policy."""
    return statistics.fmean(value for step, value in points(records, HELD_OUT).items() if step > 0)


def at_equal_rollouts(records: Records, budget: float) -> float:
    """Returns the held-out reward after `budget` training rollouts, interpolated linearly between validations."""
    found = points(records, HELD_OUT, ROLLOUTS)
    return float(np.interp(budget, list(found), list(found.values())))


# ------------------------------------------------------------------------------------- what is trained
@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Arms that differ from the same configuration. Their names are unique across families."""

    config_name: str
    setting: Sequence[str]
    """Overrides of all arms."""
    num_steps: int
    arms: Mapping[str, Sequence[str]]
    """Name of an arm -> its own overrides."""
    columns: Mapping[str, Column]


NO_DUAL_CLIP = ("algorithm.dual_clip=0",)
UNCLAMPED = ("algorithm.kl_clamp_log_ratio=0", "algorithm.kl_clamp_value=0", *NO_DUAL_CLIP)
"""Settings of the recorded runs, which were made before the KL estimate could be clamped and the dual clip was on by
default, and with an earlier policy and earlier prompts of the demo: those of commit 1ad8a83."""
GRPO = (
    "algorithm.clip_high=0.2",
    "algorithm.aggregation=sequence_mean_token_mean",
    "dynamic_sampling.enabled=false",
)
TINY_COLUMNS: Mapping[str, Column] = {
    "held-out reward at the end": last(HELD_OUT),
    "mean after step 0": mean_after_start,
    "at equal rollouts": at_equal_rollouts,
    "entropy, last steps": late(ENTROPY),
    "KL, last steps": late(KL),
    "rollouts sampled": last(ROLLOUTS),
}
TINY = Family(
    config_name="laptop",
    setting=(
        *UNCLAMPED,
        "trainer.prompts_per_step=8",
        "validation.interval=3",
        "validation.early=false",
        "validation.max_prompts=32",
        "validation.num_rollouts=16",
        "exp_manager.create_checkpoint_callback=false",
    ),
    num_steps=12,
    arms={
        "baseline": (),  # ProRL's objective: clip 0.2/0.4, dynamic sampling, KL 1e-4, temperature 1.2, no reset
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
        # After step 7, so that there is no second reset before step 12.
        "reset": ("controller.mode=interval", "controller.interval=7"),
        "ahead": ("sampler.ahead=true", "algorithm.correction_level=token", "algorithm.kl_weighted=true"),
    },
    columns=TINY_COLUMNS,
)
"""The demo's tiny policy, with one change per arm."""
STALLED = Family(
    config_name="laptop",
    setting=(
        *UNCLAMPED,
        "algorithm.kl_beta=3",
        "trainer.prompts_per_step=16",
        "validation.interval=4",
        "validation.early=false",
        "validation.max_prompts=64",
        "validation.num_rollouts=16",
        "exp_manager.create_checkpoint_callback=false",
        # Patience and cool-down suit dozens of steps; min_delta is two standard errors, each at most 0.0156 with 1,024
        # rollouts.
        "controller.cooldown=8",
        "controller.patience.validation_plateau=2",
        "controller.limits.validation_plateau=0.06",
    ),
    num_steps=32,
    arms={
        "with_controller": ("controller.mode=automatic",),
        "without_controller": ("controller.mode=manual",),
    },
    columns=TINY_COLUMNS,
)
"""The tiny policy under a KL weight of 3, which stops progress a few steps after every reset: a real plateau, although
a deliberate one."""
STORIES_COLUMNS: Mapping[str, Column] = {
    "rules kept": last(HELD_OUT),
    "all six kept": last("validation/pass_at_1"),
    "KL to the reference": last(KL),
    "KL to the pretrained model": last("base/kl"),
    "perplexity under it": last("base/perplexity"),
    "different 3-grams": last("text/distinct_3"),
    "entropy": last("text/entropy"),
}
STORIES = Family(
    config_name="stories",
    setting=UNCLAMPED,
    num_steps=48,
    arms={  # conf/stories.yaml sets a KL weight of 0.1
        "kl_small": ("algorithm.kl_beta=1e-4",),
        "kl_large": (),
        "interval": ("controller.mode=interval", "controller.interval=12"),
        "controller": ("controller.mode=automatic",),
    },
    columns=STORIES_COLUMNS,
)
RECIPES = Family(
    config_name="stories",
    setting=NO_DUAL_CLIP,
    num_steps=24,  # the fastest recipes are close to the largest reward by then
    arms={
        "prorl": ("recipe=prorl", "controller.mode=automatic"),
        "prorl_v2": ("recipe=prorl_v2", "controller.mode=automatic"),
        **{name: (f"recipe={name}",) for name in ("dapo", "gspo", "cispo", "justrl")},
    },
    columns=STORIES_COLUMNS,
)


INFORMATIVE = "dynamic_sampling/informative_share"
FEW_PROBLEMS = BASE / "data/few.parquet"
"""96 training problems of all sizes, so that epochs are short."""
MIX = Family(
    config_name="laptop",
    setting=(
        f"data.train={{{FEW_PROBLEMS}: 1}}",
        f"data.validation=[{BASE}/data/validation.parquet]",
        "trainer.prompts_per_step=8",
        "validation.interval=4",
        "validation.early=false",
        "validation.max_prompts=64",
        "validation.num_rollouts=8",
        "exp_manager.create_checkpoint_callback=false",
    ),
    num_steps=24,
    arms={"uniform": (), "difficulty": ("data.mix=difficulty",)},
    columns={
        "held-out reward at the end": last(HELD_OUT),
        "mean after step 0": mean_after_start,
        "at equal rollouts": at_equal_rollouts,
        "informative share": lambda records, _: statistics.fmean(points(records, INFORMATIVE).values()),
        "informative share, last steps": late(INFORMATIVE),
        "rollouts a step": lambda records, _: records[-1][ROLLOUTS] / records[-1]["step"],
    },
)
"""The demo's policy on few problems, of which it solves some always and some never."""


# ------------------------------------------------------------------------------------- what is compared
@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The arms of one figure and one table."""

    title: str
    arms: Mapping[str, str]
    """Label -> name of the arm. All are compared with the first."""
    panels: Sequence[Panel]
    family: Family = TINY


HELD_OUT_PANEL = Panel(metric=HELD_OUT, title="held-out reward")
ENTROPY_PANEL = Panel(metric=ENTROPY, title="entropy of training rollouts (nats per token)")
KL_PANEL = Panel(metric=KL, title="KL to the reference (nats per token)")
STORIES_PANELS = (
    Panel(metric=HELD_OUT, title="held out: share of the six rules kept"),
    Panel(metric="validation/pass_at_1", title="held out: stories that keep all six"),
    Panel(metric=KL, title="KL to the current reference, nats per token", is_logarithmic=True),
    Panel(metric="base/kl", title="KL to the pretrained model, nats per token"),
    Panel(metric="base/perplexity", title="perplexity under the pretrained model", is_logarithmic=True),
    Panel(metric="text/distinct_3", title="distinct 3-grams of a story, share"),
)
COMPARISONS = {
    "clip": Comparison(
        title="Symmetric against decoupled clip",
        arms={"0.2 / 0.4": "baseline", "0.2 / 0.2": "symmetric_clip"},
        panels=(HELD_OUT_PANEL, ENTROPY_PANEL),
    ),
    "low_clip": Comparison(
        title="Lower clip 0.2 against 0.1",
        arms={"0.2 / 0.4": "baseline", "0.1 / 0.4": "low_clip"},
        panels=(HELD_OUT_PANEL, ENTROPY_PANEL),
    ),
    "sampling": Comparison(
        title="Dynamic against static sampling",
        arms={"dynamic": "baseline", "static": "static_sampling"},
        panels=(
            HELD_OUT_PANEL,
            Panel(
                metric=HELD_OUT,
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
        panels=(HELD_OUT_PANEL, ENTROPY_PANEL, KL_PANEL),
    ),
    "temperature": Comparison(
        title="Training temperature 1.2 against 0.6",
        arms={"1.2": "baseline", "0.6": "temperature_06"},
        panels=(HELD_OUT_PANEL, Panel(metric=TRAINING, title="reward of training rollouts"), ENTROPY_PANEL),
    ),
    "entropy": Comparison(
        title="Against the collapse of entropy",
        arms={
            "DAPO": "no_kl",
            "GRPO, KL 0": "grpo_no_kl",
            "GRPO, KL 1e-4": "grpo",
            "GRPO, adaptive entropy": "adaptive_entropy",
        },
        panels=(HELD_OUT_PANEL, ENTROPY_PANEL),
    ),
    "reset": Comparison(
        title="A hard reset in mid-run against none",
        arms={"no reset": "baseline", "reset after step 7": "reset"},
        panels=(HELD_OUT_PANEL, KL_PANEL, ENTROPY_PANEL),
    ),
    "ahead": Comparison(
        title="Rollouts of this step's weights against those of the step before",
        arms={"this step's": "baseline", "sampled ahead": "ahead"},
        panels=(
            HELD_OUT_PANEL,
            ENTROPY_PANEL,
            Panel(
                metric="sampler/logprob_abs_diff_mean", title="sampler against old policy (nats per token)"
            ),
        ),
    ),
    "controller": Comparison(
        title="The tiny policy with KL weight 3, with and without the reset controller",
        arms={"without": "without_controller", "with": "with_controller"},
        panels=(HELD_OUT_PANEL, KL_PANEL),
        family=STALLED,
    ),
    "stories": Comparison(
        title="A pretrained 260K-parameter model of stories learns six rules",
        arms={
            "KL weight 1e-4": "kl_small",
            "KL weight 0.1": "kl_large",
            "0.1, a reset every 12 steps": "interval",
            "0.1, resets by the controller": "controller",
        },
        panels=STORIES_PANELS,
        family=STORIES,
    ),
    "mix": Comparison(
        title="Problems drawn by their difficulty against each once an epoch",
        arms={"uniform": "uniform", "difficulty": "difficulty"},
        panels=(
            HELD_OUT_PANEL,
            Panel(
                metric=HELD_OUT,
                title="held-out reward at equal cost",
                over=ROLLOUTS,
                over_title="training rollouts sampled",
            ),
            Panel(metric=INFORMATIVE, title="informative prompts (share of sampled)"),
        ),
        family=MIX,
    ),
    "recipes": Comparison(
        title="A pretrained 260K-parameter model of stories learns six rules by several recipes",
        arms={name: name for name in RECIPES.arms},
        panels=STORIES_PANELS,
        family=RECIPES,
    ),
}
NEED_MODEL = [name for name, one in COMPARISONS.items() if one.family.config_name == "stories"]


def main() -> None:
    """Trains all arms of one seed before the next seed, so that an interrupted benchmark still compares them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", choices=COMPARISONS, metavar="NAME", help=f"some of {', '.join(COMPARISONS)}"
    )
    parser.add_argument("--model", type=Path, help=f"the model of {' and '.join(NEED_MODEL)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, help="steps of each run (default: those of the comparison)")
    parser.add_argument("--out", type=Path, default=Path("runs/findings"))
    parser.add_argument("--reward-url", metavar="URL", help="use a running service (default: start one)")
    options = parser.parse_args()
    chosen = options.only or [name for name in COMPARISONS if name not in NEED_MODEL]
    if needing := [name for name in chosen if name in NEED_MODEL]:
        if options.model is None or not (options.model / "config.json").is_file():
            found = "" if options.model is None else f", and {options.model} holds no config.json"
            parser.error(
                f"{needing[0]} needs a pretrained model{found}: write --model DIR with the folder of a model in "
                "Hugging Face format"
            )
        write_prompts(PROMPTS)
    if len(needing) < len(chosen):
        build_tiny_policy()
        files = [RowFile(BASE / f"data/train-{number}.parquet") for number in (1, 2, 3)]
        write_rows(FEW_PROBLEMS, [row for file in files for _, row in file.sample(32)])
    options.out.mkdir(parents=True, exist_ok=True)
    wanted = {arm: COMPARISONS[name].family for name in chosen for arm in COMPARISONS[name].arms.values()}
    runs: dict[str, list[Records]] = {arm: [] for arm in wanted}
    service = (
        nullcontext(options.reward_url) if options.reward_url else reward_service(RewardConfig(), options.out)
    )
    with service as url:
        for seed in options.seeds:
            for arm, family in wanted.items():
                print(f"\n{arm}, seed {seed}", flush=True)
                folder = options.out / f"{arm}-{seed}"
                overrides = overrides_of(family, arm, seed, options.steps, options.model)
                records = train(folder, url, overrides, config_name=family.config_name)
                if family.config_name == "stories":
                    records = with_text_metrics(records, folder, options.model)
                runs[arm].append(records)
    for name in chosen:
        comparison = COMPARISONS[name]
        compared = {label: runs[arm] for label, arm in comparison.arms.items()}
        draw(options.out / f"{name}.png", comparison.title, comparison.panels, compared)
        numbers = summaries(compared, comparison.family.columns)
        replace_text(options.out / f"{name}.json", json.dumps(numbers, indent=1) + "\n")
        text = f"{comparison.title}; seeds {', '.join(map(str, options.seeds))}\n\n{table(numbers)}"
        replace_text(options.out / f"{name}.md", text)
        print(f"\n{text}", flush=True)


def overrides_of(
    family: Family, arm: str, seed: int, num_steps: int | None, model: Path | None
) -> list[str]:
    """Returns the overrides of a run. num_steps: None for the family's. model: for families of a pretrained model."""
    of_model = [f"model.path={model}"] if family.config_name == "stories" else []
    steps = f"trainer.num_steps={num_steps or family.num_steps}"
    return [*family.setting, f"seed={seed}", steps, *of_model, *family.arms[arm]]


# ------------------------------------------------------------------------------------- what is reported
def summaries(
    runs: Mapping[str, Sequence[Records]], columns: Mapping[str, Column]
) -> dict[str, list[dict[str, Any]]]:
    """Returns label -> summaries of its runs, in the order of the seeds: the numbers of the table, the held-out reward
    by step, and every decision of the reset controller. Raises ValueError if arms have different numbers of seeds."""
    numbers: dict[str, list[dict[str, Any]]] = {label: [] for label in runs}
    for same_seed in zip(*runs.values(), strict=True):
        budget = min(records[-1][ROLLOUTS] for records in same_seed)
        for label, records in zip(runs, same_seed, strict=True):
            numbers[label].append(
                {
                    "columns": {title: column(records, budget) for title, column in columns.items()},
                    "rewards": points(records, HELD_OUT),
                    "resets": reset_steps(records),
                    "decisions": [
                        {"step": r["step"], **r["controller"]} for r in records if "controller" in r
                    ],
                }
            )
    return numbers


def table(numbers: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Returns a Markdown table of means over the seeds with the smallest and largest values, of the differences to the
    first arm at the end, and of the steps after which the controller reset the reference, both seed by seed."""
    first = next(iter(numbers))
    columns = list(numbers[first][0]["columns"])
    lines = ["| | " + " | ".join(columns) + f" | end against {first}, by seed | resets after step |"]
    lines.append("|---" * (len(columns) + 3) + "|")
    for label, runs in numbers.items():
        cells = [spread([run["columns"][column] for run in runs]) for column in columns]
        ends, bases = ([run["columns"][columns[0]] for run in some] for some in (runs, numbers[first]))
        gains = ", ".join(f"{end - base:+.3f}" for end, base in zip(ends, bases, strict=True))
        resets = "; ".join(", ".join(map(str, run["resets"])) for run in runs if run["resets"])
        lines.append(f"| {label} | {' | '.join(cells)} | {gains if label != first else ''} | {resets} |")
    return "\n".join(lines) + "\n"


def spread(values: Sequence[float]) -> str:
    """Returns the text "mean (smallest to largest)"."""
    mean = statistics.fmean(values)
    form = "{:.3f}" if mean < 10 else "{:,.0f}" if mean >= 1000 else "{:.1f}"
    return form.format(mean) + f" ({form.format(min(values))} to {form.format(max(values))})"


if __name__ == "__main__":
    main()
