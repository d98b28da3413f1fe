"""Writes recorded rollouts of an invented run, with a small tokenizer of bytes and words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from nemo_prorl.run_folder.records import write_rollouts, write_tokenizer, write_trained
from nemo_prorl.types import TOKEN_LIMITS, Finish, Prompt, Rollout
from reward.protocol import GradeStatus, ScoreResult

DOMAINS = ("logic", "math")
IMAGE = "<img src=x onerror='hacked=1'>"
"""A token of the vocabulary that would be an element, were it taken for HTML."""
WORDS = "First add the numbers 17 + 25 = 42 so the answer is wrong because therefore check again ≈ π step"
Answer = Callable[[int, int, int], tuple[str, float | None]]
"""(number of the prompt, step, sibling) -> (response, score)."""


def byte_tokenizer() -> Tokenizer:
    """Returns a byte-level BPE that has words of one token, and splits most non-ASCII characters into bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|end|>", IMAGE],
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator([WORDS.replace("≈", "").replace("π", "")] * 3, trainer)
    return tokenizer


def plain_answer(number: int, step: int, sibling: int) -> tuple[str, float | None]:
    is_right = (number + sibling) % 4 < step // 2
    words = WORDS.split()
    text = " ".join(words[(i * 7 + sibling + step) % len(words)] for i in range(10 + 25 * step))
    return f"{text}.\nThe answer is {42 if is_right else 41}.", float(is_right)


def write_recorded(
    folder: Path,
    *,
    steps: tuple[int, ...] = (2, 4, 6),
    num_prompts: int = 8,
    num_siblings: int = 4,
    answer: Answer = plain_answer,
    with_tokenizer: bool = True,
    question: str = "What is 17 + 25? Think, then write 'The answer is N.'",
    begun: str = "",
) -> None:
    """Writes the rollouts of all steps. Prompt 0 comes at every step, the others at one; each third response is not
    trained on, and each fifth token of each second one is clipped."""
    tokenizer, rng = byte_tokenizer(), np.random.default_rng(0)
    if with_tokenizer:
        write_tokenizer(folder, SimpleNamespace(backend_tokenizer=tokenizer))
    for step in steps:
        rows, trained = [], []
        for number in (0, *range(step, num_prompts, max(steps))):
            prompt = Prompt(
                uid=f"sums/{number}#{step}", domain=DOMAINS[number // 2 % 2], source="sums", token_ids=(1,), task={},
                text=f"<user>Question 1{number}: {question}<assistant>", begun=begun,
            )  # fmt: skip
            for sibling in range(num_siblings):
                text, score = answer(number, step, sibling)
                ids = [*tokenizer.encode(text).ids, 0]
                logprobs = -rng.exponential(0.6, len(ids)).astype(np.float32)
                rollout = Rollout(
                    prompt=prompt, sibling=sibling, token_ids=np.array(ids, np.int32), sampler_logprobs=logprobs,
                    text=begun + text, finish=Finish.length if sibling == 3 else Finish.stop, policy_version=step,
                )  # fmt: skip
                status = GradeStatus.infra_error if score is None else GradeStatus.graded
                name = f"{number}-{step}-{sibling}"
                verdict = ScoreResult(
                    request_id=name,
                    status=status,
                    score=score,
                    verdict="right" if score else "wrong",
                    details={},
                )
                rows.append((name, rollout, verdict))
                if sibling % 3 == 2:
                    continue
                clipped = (np.arange(len(ids)) % 5 == 0) & (sibling % 2 == 1)
                limits = clipped.astype(np.uint8) << TOKEN_LIMITS.index("clipped_high")
                limits[-2] |= 1 << TOKEN_LIMITS.index("masked")
                old = logprobs + rng.normal(0, 0.02, len(ids)).astype(np.float32)
                one = {"uid": prompt.uid, "sibling": sibling, "advantage": (score or 0) - 0.5}
                trained.append(one | {"old_logprobs": old, "limits": limits.astype(np.uint8)})
        write_rollouts(folder, step, 0, rows)
        write_trained(folder, step, 0, trained)
