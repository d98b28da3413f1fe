"""Compares the gradient of the KL term with and without algorithm.kl_weighted, update by update, with that of the exact
KL, on a pretrained model that is trained meanwhile.

    make experiment NAME=kl_weighted ARGS="--model DIR"    # DIR: karpathy/tinyllamas' stories260K in Hugging Face format

The task, its prompts and the settings are those of conf/stories.yaml; the loss is the project's, the engine is plain
transformers, so that whole distributions are at hand. Writes results.json beside this file unless --out names another.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from experiments.findings.stories_prompts import openings
from nemo_prorl.algorithm.advantage import group_advantages
from nemo_prorl.algorithm.kl import kl_estimate, weighted_kl_penalty
from nemo_prorl.algorithm.objective import policy_loss
from nemo_prorl.config import AlgorithmConfig, KlEstimator
from nemo_prorl.types import TokenBatch, Totals, TrainBatch

TEMPERATURE, MAX_TOKENS = 1.2, 96
NUM_PROMPTS, NUM_ROLLOUTS, NUM_UPDATES = 8, 16, 4
ARMS = {
    "plain": AlgorithmConfig(kl_beta=0.1),
    "weighted": AlgorithmConfig(kl_beta=0.1, kl_weighted=True),
}


def score(text: str) -> float:
    """Returns the share of the task's six rules (stories_prompts.RULES) that a text keeps."""
    lower = text.lower()
    words = re.findall(r"\w+", lower)
    kept = (
        "," not in text,
        words.count("happy") >= 2,
        "friend" in words,
        lower.count("o") >= 15,
        "was" not in words,
        len(re.findall(r"[.!?](?=\s|$)", text)) >= 8,
    )
    return sum(kept) / len(kept)


def log_probabilities(model: Any, batch: TokenBatch) -> torch.Tensor:
    """Returns [B, T, V]: at t the distribution from which the token at t was drawn (zeros at 0)."""
    ids = torch.tensor(batch.token_ids_BT)
    mask = torch.arange(ids.shape[1]) < torch.tensor(batch.lengths_B).unsqueeze(1)
    logits = model(input_ids=ids, attention_mask=mask).logits / TEMPERATURE
    return torch.nn.functional.pad(logits.log_softmax(-1)[:, :-1], (0, 0, 1, 0))


def of_tokens(all_BTV: torch.Tensor, batch: TokenBatch) -> torch.Tensor:
    return all_BTV.gather(-1, torch.tensor(batch.token_ids_BT).unsqueeze(-1)).squeeze(-1)


def sample(model: Any, tokenizer: Any, prompts: Sequence[str]) -> tuple[TokenBatch, list[str]]:
    """Samples NUM_ROLLOUTS responses to each prompt, and returns them right-padded, with their texts."""
    starts = [tokenizer(prompt).input_ids for prompt in prompts for _ in range(NUM_ROLLOUTS)]
    end, width = tokenizer.eos_token_id, max(map(len, starts))
    padded = torch.tensor([[end] * (width - len(start)) + start for start in starts])
    found = model.generate(
        padded,
        attention_mask=torch.tensor([[0] * (width - len(start)) + [1] * len(start) for start in starts]),
        do_sample=True,
        temperature=TEMPERATURE,
        top_k=0,
        top_p=1.0,
        max_new_tokens=MAX_TOKENS,
        pad_token_id=end,
    )
    rows = []
    for start, row in zip(starts, found[:, width:].tolist(), strict=True):
        rows.append((start, row[: row.index(end) + 1] if end in row else row))
    lengths = [len(start) + len(response) for start, response in rows]
    batch = TokenBatch(
        token_ids_BT=np.array([s + r + [end] * (max(lengths) - len(s + r)) for s, r in rows]),
        response_mask_BT=np.array([[len(s) <= t < len(s + r) for t in range(max(lengths))] for s, r in rows]),
        lengths_B=np.array(lengths),
    )
    return batch, [tokenizer.decode(s + r, skip_special_tokens=True) for s, r in rows]


def flat(loss: torch.Tensor, model: Any) -> torch.Tensor:
    found = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    return torch.cat([part.flatten() for part in found]).double()


def measure(model: Any, old: torch.Tensor, reference: torch.Tensor, rows: TokenBatch) -> dict[str, float]:
    """Returns the estimates of the KL on an update's rows, and how their gradients are to that of the exact KL:
    cosine and norm. old, reference: whole distributions, [B, T, V]."""
    mask = torch.tensor(rows.response_mask_BT)
    current = log_probabilities(model, rows)
    mean = lambda values: values[mask].mean()  # noqa: E731
    chosen = [of_tokens(one, rows) for one in (current, old, reference)]
    ratio = (chosen[0] - chosen[1]).exp()
    terms = {
        "exact": mean((current.exp() * (current - reference)).sum(-1)),
        "plain": mean(kl_estimate(chosen[2] - chosen[0], KlEstimator.k3)),
        "weighted": mean(weighted_kl_penalty(chosen[0], chosen[2], ratio, torch.ones(()), ARMS["weighted"])),
        # What the plain term pulls towards in expectation, over all tokens that the old policy might have drawn.
        "plain_expected": mean((old.exp() * kl_estimate(reference - current, KlEstimator.k3)).sum(-1)),
    }
    gradients = {name: flat(term, model) for name, term in terms.items()}
    found = {f"{name}_kl": term.item() for name, term in terms.items()}
    for name in ("plain", "weighted", "plain_expected"):
        one, other = gradients[name], gradients["exact"]
        found[f"{name}_cosine"] = torch.nn.functional.cosine_similarity(one, other, dim=0).item()
        found[f"{name}_norm"] = (one.norm() / other.norm()).item()
    weights = ratio[mask].detach()
    found["effective_share"] = (weights.mean().square() / weights.square().mean()).item()
    return found


def train(arm: str, seed: int, model_dir: Path, num_steps: int, every: int) -> dict[str, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    base = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, betas=(0.9, 0.95))
    prompts, config = openings(), ARMS[arm]
    steps: list[dict[str, Any]] = []
    for step in range(num_steps):
        chosen = [prompts[(seed * 1000 + step * NUM_PROMPTS + i) % 1024] for i in range(NUM_PROMPTS)]
        with torch.no_grad():
            tokens, texts = sample(model, tokenizer, chosen)
            old, reference = log_probabilities(model, tokens), log_probabilities(base, tokens)
        scores = [score(text) for text in texts]
        groups = np.array(scores).reshape(NUM_PROMPTS, NUM_ROLLOUTS)
        advantages = np.concatenate([group_advantages(group.tolist(), config.advantage) for group in groups])
        kl = (old.exp() * (old - reference)).sum(-1)[torch.tensor(tokens.response_mask_BT)].mean().item()
        record: dict[str, Any] = {"score": fmean(scores), "kl": kl, "updates": []}
        for rows in np.array_split(np.arange(len(tokens)), NUM_UPDATES):
            part = tokens.select(rows.tolist())
            width = part.token_ids_BT.shape[1]
            of_old, of_reference = old[rows, :width], reference[rows, :width]
            if (step + 1) % every == 0:
                record["updates"].append(measure(model, of_old, of_reference, part))
            batch = TrainBatch(
                tokens=part,
                advantages_B=advantages[rows].astype(np.float32),
                sampler_logprobs_BT=of_tokens(of_old, part).numpy(),
                old_logprobs_BT=of_tokens(of_old, part).numpy(),
                reference_logprobs_BT=of_tokens(of_reference, part).numpy(),
            )
            loss_of = partial(policy_loss, config=config, entropy_coefficient=0.0)
            current = of_tokens(log_probabilities(model, part), part)
            totals = Totals(num_tokens=batch.num_tokens, num_rollouts=len(batch))
            optimizer.zero_grad()
            loss_of(current, torch.zeros_like(current), batch, totals).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        steps.append(record)
        print(arm, seed, step + 1, f"score {record['score']:.3f} kl {kl:.3f}", flush=True)
    return {"arm": arm, "seed": seed, "steps": steps}


def table(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the tables of README.md."""
    lines = ["| update of a step | effective sample share | plain in expectation | plain | weighted |"]
    lines.append("|---|---|---|---|---|")
    for update in range(NUM_UPDATES):
        found = [step["updates"][update] for run in runs for step in run["steps"] if step["updates"]]
        mean = {key: fmean(one[key] for one in found) for key in found[0]}
        cells = [
            f"{mean[f'{name}_cosine']:.3f}, {mean[f'{name}_norm']:.2f}"
            for name in ("plain_expected", "plain", "weighted")
        ]
        lines.append(f"| {update + 1} | {mean['effective_share']:.3f} | {' | '.join(cells)} |")
    lines += ["", "| trained with | score of the last 2 steps, by seed | exact KL to the reference there |"]
    lines.append("|---|---|---|")
    for arm in dict.fromkeys(run["arm"] for run in runs):
        ends = [run["steps"][-2:] for run in runs if run["arm"] == arm]
        scores = ", ".join(f"{fmean(step['score'] for step in end):.3f}" for end in ends)
        kls = ", ".join(f"{fmean(step['kl'] for step in end):.3f}" for end in ends)
        lines.append(f"| {arm} | {scores} | {kls} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), help="with which term is trained")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--every", type=int, default=4, help="steps between two measurements")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results.json"))
    options = parser.parse_args()
    runs = []
    for seed in options.seeds:
        for arm in options.arms:
            runs.append(train(arm, seed, options.model, options.steps, options.every))
            options.out.write_text(json.dumps(runs) + "\n", encoding="utf-8")
    print("\n".join(table(runs)))


if __name__ == "__main__":
    main()
