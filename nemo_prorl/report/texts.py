"""The policy's texts at the first, the middle and the last validation, for readers of the page."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_prorl.run_folder.samples import read_samples, sample_files

PROMPTS_PER_DOMAIN = 3
HEAD, TAIL = 2500, 1500
"""Characters of a long response that are shown: its beginning has the idea, its end the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One rollout."""

    step: int
    score: float
    verdict: str
    note: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A held-out prompt and its responses over the validations."""

    domain: str
    source: str
    title: str
    """What tells the prompt from others of its domain."""
    prompt: str
    responses: tuple[Response, ...]


def read_conversations(run_dir: Path) -> tuple[tuple[Conversation, ...], list[str]]:
    """Returns (the first prompts of each domain that all chosen validations have, names of files that cannot be read);
    both empty for a run without samples."""
    files = sample_files(run_dir).all()
    by_step, damaged = [], []
    for index in sorted({0, len(files) // 2, len(files) - 1}) if files else ():
        path = files[index][1]
        try:
            first_of: dict[str, Mapping[str, Any]] = {}
            for record in read_samples(path):
                first_of.setdefault(str(record["uid"]), record)
        except (ValueError, KeyError, TypeError, OSError):
            damaged.append(path.name)
        else:
            by_step.append(first_of)
    by_domain: dict[str, list[str]] = {}
    for uid, first in by_step[0].items() if by_step else ():
        if all(uid in records for records in by_step):
            by_domain.setdefault(str(first["domain"]), []).append(uid)
    conversations = []
    for domain, uids in sorted(by_domain.items()):
        prompts = [str(by_step[0][uid]["prompt"]) for uid in uids]
        for uid, prompt, title in list(zip(uids, prompts, titles(prompts), strict=True))[:PROMPTS_PER_DOMAIN]:
            conversation = Conversation(
                domain=domain,
                source=str(by_step[0][uid]["source"]),
                title=title,
                prompt=shortened(prompt),
                responses=tuple(_response(records[uid]) for records in by_step),
            )
            conversations.append(conversation)
    return tuple(conversations), damaged


def titles(prompts: Sequence[str]) -> list[str]:
    """Returns each prompt without the words with which all of them begin, such as a system prompt, and end."""
    begin = _num_common(prompts)
    rests = [prompt[begin:] for prompt in prompts]
    end = _num_common([rest[::-1] for rest in rests])
    return [shortened(rest[: len(rest) - end] or prompt) for rest, prompt in zip(rests, prompts, strict=True)]


def _num_common(texts: Sequence[str]) -> int:
    """Returns the number of characters with which all texts begin, in whole words."""
    same = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*texts, strict=False))
    return len(re.sub(r"\w+\Z", "", "".join(letters[0] for letters in same)))


def _response(record: Mapping[str, Any]) -> Response:
    tokens = f"{record['num_tokens']:,} tokens{'' if record['finish'] == 'stop' else ', not ended'}"
    return Response(
        step=int(record["step"]),
        score=float(record["score"]),
        verdict=str(record["verdict"]),
        note="; ".join([tokens, *(f"{name} {value:g}" for name, value in record.get("parts", {}).items())]),
        text=shortened(str(record["response"])),
    )


def shortened(text: str) -> str:
    """Returns beginning and end of a long text, and between them how much is left out; all made `visible`."""
    if len(text) <= HEAD + TAIL:
        return visible(text)
    gap = f"\n\n[… {len(text) - HEAD - TAIL:,} characters …]\n\n"
    return visible(text[:HEAD]) + gap + visible(text[-TAIL:])


def visible(text: str) -> str:
    """Returns the text with characters that a browser obeys instead of showing (controls, direction marks), except
    newlines and tabs, spelled out as ‹U+202E›."""
    return "".join(one if one.isprintable() or one in "\n\t" else f"‹U+{ord(one):04X}›" for one in text)
