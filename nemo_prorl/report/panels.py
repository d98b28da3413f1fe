"""Every chart of the report, as data: its metrics, its unit, and how to read it.

To add a chart, add a Panel to a section; the page, the pictures, comparisons and alternative texts follow. A panel is
left out if a run has no numbers for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from nemo_prorl.run_folder.difficulty import BANDS, BEFORE, NOW
from nemo_prorl.run_folder.records import REMEASURED
from nemo_prorl.run_folder.run import OTHER, OUTSIDE_STEP, PHASES
from nemo_prorl.run_folder.validation_metrics import DOMAIN_MEAN, PROMPT_MEAN


class Kind(StrEnum):
    """How a panel's series are drawn."""

    lines = "lines"
    areas = "areas"
    """Stacked, in their unit."""
    shares = "shares"
    """Stacked, as shares of their sum."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart."""

    name: str
    title: str
    unit: str
    series: Mapping[str, str]
    """Metric -> label, the most important first. {} in a metric stands for every name found there, {} in the label for
    that name: {"reward/{}/mean": "{}"} is one line per domain."""
    reading: str
    """What the chart shows, what is good and what is bad: a sentence or two."""
    kind: Kind = Kind.lines
    log: bool = False
    has_forecast: bool = False
    """Whether a single run's chart goes on with `report.forecast`, as a band; its metric is the panel's first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelSection:
    """A heading with its charts."""

    name: str
    title: str
    intro: str
    panels: tuple[Panel, ...]


# fmt: off
DYNAMICS = PanelSection(
    name="dynamics", title="Training dynamics",
    intro="As figure 1 of ProRL (arXiv 2505.24864): how far the policy has moved, how much it still explores, how "
    "long its responses are, and what that gains on held-out prompts.",
    panels=(
        Panel("kl", "KL to the reference", "nats a token",
            {"objective/kl_to_reference": "mean"},
            "Rises slowly and falls to 0 at a reset. A plateau together with flat validation means that the "
            "reference holds the policy back: time for a reset. A sudden spike is a sign of instability."),
        Panel("entropy", "Entropy", "nats a token",
            {"objective/entropy": "mean", "objective/entropy_target": "target of the bonus"},
            "A slow decline is normal. Near 0 the policy no longer explores and learning ends; a "
            "steep rise means that the policy is breaking down."),
        Panel("length", "Response length", "tokens",
            {"response/tokens_mean": "mean", "response/tokens_p50": "median",
             "response/tokens_p99": "99th percentile"},
            "Growth together with validation is longer reasoning. A jump without it is "
            "repetition: look at the rollouts without an end."),
        Panel("validation", "Held-out reward", "mean score",
            {DOMAIN_MEAN: "all", "validation/{}/score": "{}"},
            "The main result; 'all' is the mean over domains. If it is flat or falling over several "
            "validations, consider a hard reset; if one domain falls while others rise, change the mix."),
    ),
)

REWARD = PanelSection(
    name="reward", title="Reward",
    intro="Scores of training rollouts (all that were sampled, at the training temperature) and of held-out ones.",
    panels=(
        Panel("reward_by_domain", "Training reward", "mean reward",
            {"reward/mean": "all", "reward/{}/mean": "{}"},
            "Rises while the policy learns. A domain stuck at 0 or at 1 teaches nothing; after a "
            "jump to 1, check what is being rewarded."),
        Panel("pass_rate", "Pass rate in training", "share of rollouts solved",
            {"reward/pass_rate": "all", "reward/{}/pass_rate": "{}"},
            "Counts full scores only. If it lags behind the reward, the policy collects partial credit. The "
            "band goes on to the stage's end: there the mean of ten steps lies with a probability of 80 %, if the "
            "curve stays the sigmoid that it has been since the last reset (see forecast --help).",
            has_forecast=True),
        Panel("reward_parts", "Parts of the reward", "mean value",
            {"reward/part_{}": "{}", "validation/part_{}": "{}, held out"},
            "Each reward function's value, before weights. If one rises while another falls, the "
            "policy trades one for the other."),
        Panel("pass_at_k", "Held-out pass@k", "share of prompts",
            {"validation/pass_at_{}": "pass@{}"},
            "If pass@1 rises towards a flat pass@k, the policy gets more reliable at what it could solve "
            "before; if pass@k rises too, it solves new problems, which is the goal of prolonged training."),
        Panel("held_out_means", "Held-out reward, two means", "mean score",
            {DOMAIN_MEAN: "mean over domains", PROMPT_MEAN: "mean over prompts"},
            "The mean over domains weighs each domain equally; in the mean over prompts the "
            "largest domain dominates. If they diverge, that domain does better or worse than the others."),
        Panel("trained_reward", "Reward of what was trained on", "mean reward",
            {"reward/trained_mean": "groups kept", "reward/mean": "all sampled"},
            "Dynamic sampling keeps groups with both right and wrong answers, so the reward of "
            "kept groups stays in the middle while that of all rises."),
        Panel("no_eos", "Rollouts without an end", "share",
            {"response/no_eos_share": "training", "validation/no_eos_share": "held out"},
            "Responses cut off at sampler.max_response_tokens. Should stay near 0; growth means "
            "repetition: use termination shaping, or a larger limit."),
        Panel("validation_length", "Held-out response length", "tokens",
            {"validation/response_tokens": "all", "validation/{}/response_tokens": "{}"},
            "Compare with the held-out reward: tokens that gain no reward are wasted."),
    ),
)

SAMPLING = PanelSection(
    name="sampling", title="Dynamic sampling",
    intro="Prompts whose rollouts all get the same reward teach nothing and are replaced. The yield "
    "determines the cost of a step.",
    panels=(
        Panel("yield", "Yield", "share of prompts",
            {"dynamic_sampling/informative_share": "informative", "dynamic_sampling/kept_share": "trained on"},
            "At 50 % a step samples twice what it trains on. Falling towards 0 means that the data is used "
            "up (all right) or out of reach (all wrong): change the mix."),
        Panel("kinds", "Where sampled prompts go", "share of prompts",
            {"dynamic_sampling/num_informative": "informative", "dynamic_sampling/num_all_right": "all right",
             "dynamic_sampling/num_all_wrong": "all wrong", "dynamic_sampling/num_all_equal": "all equal",
             "dynamic_sampling/num_all_filtered": "all filtered",
             "dynamic_sampling/num_service_failure": "not graded"},
            "If “all right” grows, the policy needs harder prompts; “all wrong” prompts are "
            "beyond the policy; “not graded” should not occur.",
            kind=Kind.shares),
        Panel("rounds", "Rounds of sampling", "a step",
            {"dynamic_sampling/num_rounds": "rounds"},
            "1 or 2 is good. At dynamic_sampling.max_rounds a step continues with fewer groups, "
            "or the stage ends."),
        Panel("mix", "Mix of sampled rollouts", "share of rollouts",
            {"reward/{}/num_rollouts": "{}"},
            "Should follow the weights of data.train, apart from chance.",
            kind=Kind.shares),
        Panel("failed", "Rollouts that were not graded", "a step",
            {"dynamic_sampling/num_failed_rollouts": "failed"},
            "Failures of the reward service or of reward functions; these rollouts are left out, "
            "never counted as wrong. 0 is good; a step above reward.max_failed_share stops the run."),
    ),
)

DIFFICULTY = PanelSection(
    name="difficulty", title="Difficulty",
    intro="Pass rates of single prompts, over everything that was sampled (data difficulty summarises them by domain).",
    panels=(
        Panel("pass_rate_bands", "How often a prompt was solved", "share of sampled prompts",
            BANDS,
            "Learning moves prompts upwards through the bands. If “no rollout” stays constant "
            "while “every rollout” grows, no prompts of medium difficulty are left: the policy has "
            "learned what it can from the data.",
            kind=Kind.shares),
        Panel("revisits", "Prompts that came again", "mean pass rate",
            {NOW: "at this visit", BEFORE: "the same prompts, one visit before"},
            "Both lines show the same prompts, so the mix cannot distort the comparison. Above "
            "the older line is progress; below it, something is being forgotten."),
    ),
)

OPTIMISATION = PanelSection(
    name="optimisation", title="Optimisation",
    intro="How far each update moves the policy, and what limits it.",
    panels=(
        Panel("clip", "Clipped tokens", "share of tokens",
            {"objective/clip_high_fraction": "above 1 + clip_high",
             "objective/clip_low_fraction": "below 1 − clip_low", "objective/dual_clip_fraction": "dual clip"},
            "Up to a few per cent is usual. Exactly 0 means that updates are very small; more than about 10 % "
            "means that much of each update is wasted. Ratios of whole responses (GSPO) are clipped far more often, "
            "and with CISPO such a token keeps its gradient, with a bounded weight."),
        Panel("ratio", "Probability ratio", "current / old",
            {"objective/ratio_mean": "mean", "objective/ratio_p01": "1st percentile",
             "objective/ratio_p99": "99th percentile"},
            "The mean stays at 1, the percentiles in a steady band around the clip range. A widening band "
            "calls for a smaller learning rate or fewer updates a step."),
        Panel("grad_norm", "Gradient norm", "before clipping",
            {"optimizer/grad_norm": "mean of updates"},
            "Steady is good, and a brief spike is harmless (trainer.clip_grad bounds it). Steady "
            "growth precedes instability.",
            log=True),
        Panel("approx_kl", "KL of a step", "nats a token",
            {"objective/approx_kl_to_old": "old to current"},
            "How far the policy moves in one step. Should be small and steady; growth precedes most collapses."),
        Panel("loss", "Loss", "",
            {"objective/loss": "mean of updates"},
            "Near 0 by construction, because advantages have mean 0, so only jumps are informative."),
        Panel("advantage", "Advantages", "",
            {"objective/advantage_std": "standard deviation", "objective/advantage_min": "smallest",
             "objective/advantage_max": "largest"},
            "With normalisation the deviation is 1. Extremes of several units come from groups with one right "
            "or one wrong rollout."),
        Panel("learning_rate", "Learning rate", "",
            {"optimizer/learning_rate": "last update"},
            "Should follow the configuration, also after a reset."),
        Panel("entropy_coefficient", "Entropy bonus", "coefficient",
            {"objective/entropy_coefficient": "coefficient"},
            "Changes only with algorithm.entropy_bonus=adaptive: it grows while entropy is below its target."),
    ),
)

MISMATCH = PanelSection(
    name="mismatch", title="Sampler and trainer",
    intro="Both compute the log-probability of the same tokens under the same weights. Differences are "
    "errors that the loss cannot see.",
    panels=(
        Panel("logprob_difference", "Log-probability difference", "nats, absolute",
            {"sampler/logprob_abs_diff_mean": "mean", "sampler/logprob_abs_diff_p99": "99th percentile",
             "sampler/logprob_abs_diff_max": "largest", "sampler/canary_abs_diff_mean": "canary"},
            "In fp32 on CPU the largest stays below 1e-4; in bf16 it is much larger. The canary "
            "is a fixed prompt, sampled after each refit. Growth over the run is drift: check "
            "temperature, precision and the refit first.",
            log=True),
        Panel("importance", "Importance weight", "old / sampler, as bounded",
            {"objective/importance_weight_mean": "mean"},
            "1 if sampler and trainer agree, or with algorithm.correction_level=off. If the mean differs from "
            "1 by more than a few per cent, the policy trains on rollouts of a different policy."),
        Panel("effective_sample", "Effective sample size", "share of tokens",
            {"objective/effective_sample_share": "all",
             "objective/effective_sample_share_age_{}": "sampled {} updates before"},
            "1 if the policy that is trained is the one that sampled. It falls with every update of a step and "
            "with sampler.ahead; below one half most tokens hardly count, and the gradient is noise of the others."),
        Panel("importance_limited", "Importance weights outside their bounds", "share truncated, masked or dropped",
            {"objective/importance_limited_fraction": "of tokens",
             "objective/importance_limited_rollout_fraction": "of rollouts"},
            "Near 0 is good; a larger share means that the correction itself is biased."),
    ),
)

TIME = PanelSection(
    name="time", title="Time",
    intro="Where the time goes, and what it yields.",
    panels=(
        Panel("phases", "Time of a step", "seconds",
            {**PHASES, OTHER: "other", **OUTSIDE_STEP},
            "Sampling dominates for long responses. “Waiting for grading” is grading that does "
            "not overlap with other work: give the reward service more workers.",
            kind=Kind.areas),
        Panel("throughput", "Throughput", "sampled tokens a second",
            {"throughput/tokens_per_s": "tokens a second"},
            "Falls when response lengths spread (stragglers) and when grading or validation "
            "interferes. A sudden drop points to a machine, not the policy."),
        Panel("grading", "Hidden grading", "share behind other work",
            {"grading/overlap_share": "hidden"},
            "1 is ideal: grading adds no time."),
    ),
)
# fmt: on

SECTIONS = (DYNAMICS, REWARD, SAMPLING, DIFFICULTY, OPTIMISATION, MISMATCH, TIME)


def remeasured(metrics: Iterable[str]) -> PanelSection:
    """Returns a section with a chart of each metric that `verify --metric` has measured."""
    names = names_in(f"{REMEASURED}/{{}}", metrics)
    return PanelSection(
        name=REMEASURED,
        title="Measured afterwards",
        intro="Metrics of your own, from steps that verify --metric has computed again.",
        panels=tuple(
            Panel(
                f"{REMEASURED}-{number}",
                name,
                name,
                {f"{REMEASURED}/{name}": name},
                "Your function says what it means; steps that it did not measure are left out.",
            )
            for number, name in enumerate(names)
        ),
    )


def expand(panel: Panel, metrics: Iterable[str]) -> list[tuple[str, str]]:
    """Returns (metric, label) for every series of the panel among these metrics."""
    known = set(metrics)
    found = []
    for pattern, label in panel.series.items():
        if "{}" in pattern:
            names = names_in(pattern, known)
            found += [(pattern.replace("{}", name), label.replace("{}", name)) for name in names]
        elif pattern in known:
            found.append((pattern, label))
    return found


def names_in(pattern: str, metrics: Iterable[str]) -> list[str]:
    """Returns what {} stands for in the metrics that fit the pattern, numerically or alphabetically sorted."""
    regex = re.compile(re.escape(pattern).replace(r"\{\}", "([^/]+)"))
    names = {match.group(1) for metric in metrics if (match := regex.fullmatch(metric))}
    return sorted(names, key=lambda name: (int(name), "") if name.isdigit() else (0, name))
