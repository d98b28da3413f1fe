"""Measures the stories of a policy with transformers, independently of trainer and sampler."""

from __future__ import annotations

import functools
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.runs import Records
from nemo_prorl.run_folder.storage import replace_text

TEMPERATURE, RESPONSE_TOKENS = 1.2, 96
"""The values of conf/stories.yaml."""
PROMPTS = Path("runs/stories/data")
"""The prompts' folder that conf/stories.yaml names."""


def with_text_metrics(records: Records, folder: Path, model: Path) -> Records:
    """Returns the records; those of checkpoints also have the `text_metrics` of the exported policy, which are measured
    once and kept in the folder."""
    file = folder / "text_metrics.json"
    if not file.is_file():
        replace_text(file, json.dumps(measure_checkpoints(folder, model), indent=1) + "\n")
    metrics = json.loads(file.read_text(encoding="utf-8"))
    return [{**record, **metrics.get(str(record["step"]), {})} for record in records]


def measure_checkpoints(folder: Path, model: Path) -> dict[str, dict[str, float]]:
    """Returns step -> text metrics, with the pretrained model as step 0."""
    from nemo_prorl.engines.megatron import conversion
    from nemo_prorl.run_folder.checkpoints import find_checkpoints

    found = {"0": text_metrics(model, model)}
    for checkpoint in find_checkpoints(folder):
        with tempfile.TemporaryDirectory() as aside:
            exported = Path(aside) / "policy"
            conversion.save_hf(*conversion.open_checkpoint(checkpoint.path), exported)
            found[str(checkpoint.state.step)] = text_metrics(exported, model)
        print(f"{folder.name}: measured the policy of step {checkpoint.state.step}", file=sys.stderr)
    return found


@functools.cache
def text_metrics(policy_dir: Path, base_dir: Path) -> dict[str, float]:
    """Returns metrics of one story per held-out opening, sampled at T = 1.2, as in training.

    All are means over the tokens of the stories. base/perplexity: exp of the mean negative log-probability under the
    pretrained model at T = 1. base/kl, text/entropy: exact over the vocabulary at T = 1.2, in nats per token.
    text/distinct_3: mean over the stories.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)  # the model is so small that more threads only slow it down
    tokenizer = AutoTokenizer.from_pretrained(base_dir, padding_side="left")
    policy, base = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for folder in (policy_dir, base_dir)
    )
    with torch.inference_mode():
        ids_BT, mask_BT, attention_BT = sample_stories(policy, tokenizer)
        positions_BT = (attention_BT.cumsum(1) - 1).clamp(min=0)
        # Token t + 1 was sampled from the logits at position t.
        policy_logits, base_logits = (
            model(ids_BT, attention_mask=attention_BT, position_ids=positions_BT).logits[:, :-1]
            for model in (policy, base)
        )
        mask = mask_BT[:, 1:]
        chosen = base_logits.log_softmax(-1).gather(-1, ids_BT[:, 1:, None])[..., 0]
        log_p, log_q = ((logits / TEMPERATURE).log_softmax(-1) for logits in (policy_logits, base_logits))
        return {
            "base/perplexity": float(torch.exp(-chosen[mask].mean())),
            "base/kl": float((log_p.exp() * (log_p - log_q)).sum(-1)[mask].mean()),
            "text/entropy": float(-(log_p.exp() * log_p).sum(-1)[mask].mean()),
            "text/distinct_3": statistics.fmean(
                distinct(tokenizer.decode(ids[keep], skip_special_tokens=True), 3)
                for ids, keep in zip(ids_BT, mask_BT, strict=True)
            ),
        }


def sample_stories(policy: Any, tokenizer: Any) -> tuple[Any, Any, Any]:
    """Samples a story for every held-out opening, rendered as by the trainer. Returns three tensors [B, T]: the tokens
    of openings and stories, whether a token is of the story (including its end-of-sequence token), and whether it is no
    padding."""
    import torch

    from nemo_prorl.data.mix import render
    from nemo_prorl.data.rows import RowFile

    rows = RowFile(PROMPTS / "openings.held_out.parquet")
    prompts = [list(render(row, tokenizer).token_ids) for row in rows]
    padded = tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
    torch.manual_seed(1)
    ids = policy.generate(
        **padded, do_sample=True, temperature=TEMPERATURE, top_k=0, top_p=1.0, max_new_tokens=RESPONSE_TOKENS,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    prompt = padded.attention_mask
    ends = (ids[:, prompt.shape[1] :] == tokenizer.eos_token_id).long()
    is_story = ends.cumsum(1) - ends == 0
    mask = torch.cat([torch.zeros_like(prompt).bool(), is_story], 1)
    return ids, mask, torch.cat([prompt, is_story.long()], 1)


def distinct(text: str, n: int) -> float:
    """Returns the number of distinct n-grams of words over that of all n-grams (Li et al., arXiv 1510.03055); 1 for a
    text of fewer than n words."""
    words = text.lower().split()
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0
