"""How far a trained policy has moved from the base policy, and how sure it is: KL divergence and entropy of its own
samples at T = 1, from the whole distribution over the next token at every position."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence

from experiments.boundary.arms import CONTROL
from experiments.boundary.measure import in_hugging_face_format, measured_name
from nemo_prorl.run_folder.metrics_file import read_metrics
from nemo_prorl.demo.tasks import level_of
from nemo_prorl.run_folder.checkpoints import find_checkpoints
from nemo_prorl.run_folder.storage import replace_text

PER_PROBLEM = 4
"""Samples of each problem that are looked at."""
BATCH = 256


def of_run(out: Path, arm: str, seed: int, number: int) -> Mapping[str, Mapping[str, float]]:
    """Returns `distances` of the last checkpoint of a run in the benchmark's folder, and keeps them beside its samples.

    number: of that checkpoint, counted from 0.
    """
    name = measured_name(arm, seed, number)
    kept = out / f"measured/{name}.distances.json"
    if not kept.is_file():
        end = (
            out / f"{arm}-{seed}/policy"
            if arm == CONTROL
            else find_checkpoints(out / f"{arm}-{seed}")[-1].path
        )
        with in_hugging_face_format(end) as policy:
            found = distances(policy, out / "base/policy", out / f"measured/{name}.jsonl")
        replace_text(kept, json.dumps(found) + "\n")
    return json.loads(kept.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def distances(policy: Path, base: Path, samples: Path) -> dict[str, dict[str, float]]:
    """Returns, for each task, the means over the policy's tokens, in nats: `kl_to_base`, KL(policy || base), and
    `entropy`.

    policy, base: folders in Hugging Face format with the same tokenizer. samples: the policy's, as `evaluate --samples`
    writes them.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(policy)
    models = [AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in (policy, base)]
    found: dict[str, list[torch.Tensor]] = {}
    for task, lines in _by_task(samples).items():
        texts = [(line["prompt"], _response(line, tokenizer.eos_token)) for line in lines]
        ids = [
            [tokenizer(text, add_special_tokens=False)["input_ids"] for text in sample] for sample in texts
        ]
        for start in range(0, len(ids), BATCH):
            found.setdefault(task, []).append(_per_token(models, ids[start : start + BATCH]))
    means = {task: torch.cat(values, dim=1).mean(dim=1).tolist() for task, values in found.items()}
    return {task: {"kl_to_base": kl, "entropy": entropy} for task, (kl, entropy) in means.items()}


@torch.no_grad()
def _per_token(models: Sequence[torch.nn.Module], samples: Sequence[Sequence[list[int]]]) -> torch.Tensor:
    """Returns (2, tokens of all responses): KL divergence and entropy. `samples`: (prompt ids, response ids)."""
    ids = pad_sequence([torch.tensor(prompt + response) for prompt, response in samples], batch_first=True)
    is_response = pad_sequence(
        [torch.tensor([False] * len(prompt) + [True] * len(response)) for prompt, response in samples],
        batch_first=True,
    )
    # Padding stands on the right, where causal attention never sees it. Position t predicts token t + 1.
    of_policy, of_base = (model(ids).logits[:, :-1].log_softmax(-1)[is_response[:, 1:]] for model in models)
    probabilities = of_policy.exp()
    return torch.stack(
        [(probabilities * (of_policy - of_base)).sum(-1), -(probabilities * of_policy).sum(-1)]
    )


def _by_task(samples: Path) -> dict[str, list[Mapping[str, str]]]:
    found: dict[str, list[Mapping[str, str]]] = {}
    for line in read_metrics(samples):
        if line["sibling"] < PER_PROBLEM:
            found.setdefault(level_of(line["uid"])[0], []).append(line)
    return found


def _response(line: Mapping[str, str], end: str) -> str:
    return line["response"] + (end if line["finish"] == "stop" else "")
