"""Writes the files of invented runs as long as the papers', in a fraction of a second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

DOMAINS = ("code", "instruction", "logic", "math", "stem")
RESET_EVERY = 200
"""Steps between the controller's resets within a stage."""


def write_run(
    folder: Path,
    *,
    num_steps: int = 60,
    num_stages: int = 2,
    seed: int = 0,
    validation_interval: int = 20,
    is_done: bool = True,
) -> list[dict[str, Any]]:
    """Writes a healthy run with a reset at each stage's start and every RESET_EVERY steps of a stage. Returns its
    records."""
    stages = [f"run{number + 1}" for number in range(num_stages)]
    records = made_up_records(stages, num_steps, seed, validation_interval)
    (folder / "stages").mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    for number, stage in enumerate(stages):
        options = {
            "defaults": ["run_config", "_self_"],
            "stage": {"name": stage, "parent": stages[number - 1] if number else ""},
            "sampler": {"num_rollouts": 32 if number % 2 else 16, "temperature": 1.2},
            "validation": {"interval": validation_interval},
            "data": {"train": {"data/math.parquet": 1.0}},
        }
        (folder / "stages" / f"{stage}.yaml").write_text(yaml.safe_dump(options, sort_keys=False))
        if is_done or number < num_stages - 1:
            marker = {"outcome": "steps", "checkpoint": f"step-{num_steps:08d}-{stage}"}
            (folder / "stages" / f"{stage}.done").write_text(json.dumps(marker))
    return records


def made_up_records(
    stages: list[str], num_steps: int, seed: int, validation_interval: int
) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    length = num_steps // len(stages)
    records: list[dict[str, Any]] = []
    num_resets, since_reset = 0, 0
    for number, stage in enumerate(stages):
        num_resets += number > 0
        since_reset = 0
        begin = number * length
        position = {"step": begin, "stage": stage, "num_resets": num_resets}
        records.append(position | validation(rng, begin / num_steps))
        for step in range(begin + 1, begin + length + 1):
            since_reset += 1
            record = {"step": step, "stage": stage, "num_resets": num_resets}
            record |= training(rng, step / num_steps, since_reset)
            if step % validation_interval == 0:
                record |= validation(rng, step / num_steps)
            if since_reset == RESET_EVERY and step < begin + length:
                num_resets, since_reset = num_resets + 1, 0
                record["num_resets"] = num_resets
                record["controller"] = decision(step, record["objective/kl_to_reference"])
            records.append(record)
    return records


NOISY = {
    "response/tokens_mean": (2600, 6000, 0.06), "response/tokens_p50": (2100, 5200, 0.06),
    "response/tokens_p99": (6500, 6500, 0.02), "response/no_eos_share": (0.02, 0.02, 0.4),
    "objective/entropy": (0.9, 0.45, 0.04), "objective/clip_low_fraction": (0.004, 0.004, 0.3),
    "objective/clip_high_fraction": (0.008, 0.008, 0.3), "objective/approx_kl_to_old": (0.0008, 0.0008, 0.3),
    "objective/ratio_mean": (1, 1, 0.0005), "objective/ratio_p01": (0.82, 0.82, 0.02),
    "objective/ratio_p99": (1.21, 1.21, 0.02), "sampler/logprob_abs_diff_mean": (0.008, 0.008, 0.1),
    "sampler/logprob_abs_diff_p99": (0.06, 0.06, 0.15), "sampler/logprob_abs_diff_max": (1.1, 1.1, 0.4),
    "reward/trained_mean": (0.48, 0.48, 0.03), "throughput/tokens_per_s": (52e3, 52e3, 0.05),
    "grading/exposed_s": (2, 2, 0.6), "time/sampling_s": (280, 400, 0.08), "time/old_logprobs_s": (40, 40, 0.05),
    "time/reference_logprobs_s": (40, 40, 0.05), "time/exchange_s": (3, 3, 0.2), "time/updates_s": (120, 120, 0.05),
    "time/refit_s": (4, 4, 0.05),
}  # fmt: skip
"""Metric of a step -> its value at the run's begin and end, and its relative noise."""
CONSTANT = {
    "objective/dual_clip_fraction": 0.0, "objective/ratio_max": 2.0, "objective/advantage_std": 0.98,
    "objective/advantage_min": -3.75, "objective/advantage_max": 3.75, "objective/importance_weight_mean": 1.0,
    "objective/importance_limited_fraction": 0.0, "objective/importance_limited_rollout_fraction": 0.0,
    "objective/entropy_coefficient": 0.0, "optimizer/learning_rate": 2e-6, "grading/overlap_share": 0.96,
    "throughput/num_tokens": 24e6, "dynamic_sampling/num_all_filtered": 0.0, "dynamic_sampling/num_prompts": 512.0,
    "dynamic_sampling/num_service_failure": 0.0, "dynamic_sampling/kept_share": 0.5,
    "dynamic_sampling/num_failed_rollouts": 0.0,
}  # fmt: skip


def training(rng: np.random.Generator, progress: float, since_reset: int) -> dict[str, float]:
    """Returns the metrics of a step; `progress` goes from 0 to 1 through the run."""

    def noisy(value: float, share: float = 0.05) -> float:
        return abs(float(value * (1 + share * rng.standard_normal())))

    reward = 0.25 + 0.4 * progress**0.6
    record = CONSTANT | {
        "reward/mean": noisy(reward),
        "reward/pass_rate": noisy(reward - 0.04),
        "objective/kl_to_reference": noisy(0.12 * (1 - np.exp(-since_reset / 120)), 0.12),
        "objective/loss": float(0.01 * rng.standard_normal()),
        "optimizer/grad_norm": noisy(0.12, 0.25) * (6 if rng.random() < 0.003 else 1),
    }
    record |= {name: noisy(a + (b - a) * progress, share) for name, (a, b, share) in NOISY.items()}
    phases = sum(value for key, value in record.items() if key.startswith("time/"))
    record["time/step_s"] = 6 + record["grading/exposed_s"] + phases
    for number, domain in enumerate(DOMAINS):
        record[f"reward/{domain}/mean"] = noisy(reward + 0.08 * (number - 2), 0.08)
        record[f"reward/{domain}/pass_rate"] = noisy(reward + 0.07 * (number - 2), 0.08)
        record[f"reward/{domain}/num_rollouts"] = float(rng.binomial(8192, 0.2))
    shares = [0.62 - 0.15 * progress, 0.08 + 0.25 * progress, 0.28 - 0.1 * progress, 0.02]
    counts = rng.multinomial(512, np.array(shares) / sum(shares))
    for name, count in zip(("informative", "all_right", "all_wrong", "all_equal"), counts, strict=True):
        record[f"dynamic_sampling/num_{name}"] = float(count)
    record["dynamic_sampling/informative_share"] = counts[0] / 512
    record["dynamic_sampling/num_rounds"] = float(rng.integers(1, 4))
    return record


def validation(rng: np.random.Generator, progress: float) -> dict[str, float]:
    """Returns the metrics of a validation of 100 prompts a domain with 16 rollouts each, with the noise of sampling."""
    level, record = 0.3 + 0.3 * progress**0.5, {}
    for number, domain in enumerate(DOMAINS):
        share = level + 0.09 * (number - 2)
        record[f"validation/{domain}/score"] = float(rng.binomial(1600, share) / 1600)
        record[f"validation/{domain}/score_std"] = float(np.sqrt(share * (1 - share)))
        record[f"validation/{domain}/num_rollouts"] = 1600.0
        record[f"validation/{domain}/response_tokens"] = 4000.0 + 500 * number
    reward = float(np.mean([record[f"validation/{domain}/score"] for domain in DOMAINS]))
    return record | {
        "validation/score": reward,
        "validation/domain_mean_score": reward,
        "validation/score_std": float(np.sqrt(reward * (1 - reward))),
        "validation/num_prompts": 500.0,
        "validation/num_rollouts": 8000.0,
        "validation/response_tokens": 5000 + 2000 * progress,
        "validation/no_eos_share": 0.01,
        "validation/pass_at_1": reward - 0.02,
        "validation/pass_at_16": float(rng.binomial(500, 0.66 + 0.1 * progress) / 500),
        "time/validation_s": 240.0,
    }


def decision(step: int, kl: float) -> dict[str, Any]:
    return {
        "action": "reset",
        "signal": "interval",
        "reason": f"{RESET_EVERY} steps have passed since the last reset, at step {step - RESET_EVERY}.",
        "numbers": {"steps": RESET_EVERY, "kl": kl},
    }
