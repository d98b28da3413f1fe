"""The policy's texts at the first, the middle and the last validation, for readers of the page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_prorl.run_folder.metrics_file import read_metrics
from nemo_prorl.run_folder.storage import read_or_skip, step_files

PROMPTS_PER_DOMAIN = 3
HEAD, TAIL = 2500, 1500
"""Characters of a long response that are shown: its beginning has the idea, its end the answer."""


def read_conversations(run_dir: Path) -> list[dict[str, Any]]:
    """Returns the prompts of each domain that all chosen validations have, those with the lowest score at the last one
    first, for page/page.html: domain, source, uid, prompt, and responses with step, score, verdict, note and text.
    Empty for a run without samples."""
    files = step_files(run_dir, "samples").all()
    chosen = sorted({0, len(files) // 2, len(files) - 1}) if files else []
    by_step = [found for index in chosen if (found := read_or_skip(files[index][1], _worst_of_prompts))]
    by_domain: dict[str, list[str]] = {}
    for uid, worst in by_step[-1].items() if by_step else ():
        if all(uid in records for records in by_step):
            by_domain.setdefault(str(worst["domain"]), []).append(uid)
    return [
        {
            "domain": domain,
            "source": by_step[0][uid]["source"],
            "uid": uid,
            "prompt": shortened(by_step[0][uid]["prompt"]),
            "responses": [_response(records[uid]) for records in by_step],
        }
        for domain, uids in sorted(by_domain.items())
        for uid in uids[:PROMPTS_PER_DOMAIN]
    ]


def _worst_of_prompts(path: Path) -> dict[str, dict[str, Any]]:
    """Returns uid -> its first response with the lowest score, the lowest of all first."""
    found: dict[str, dict[str, Any]] = {}
    for record in sorted(read_metrics(path), key=lambda record: record["score"]):
        found.setdefault(record["uid"], record)
    return found


def _response(record: Mapping[str, Any]) -> dict[str, Any]:
    begun = " after a begun answer" if record.get("begun") else ""
    tokens = f"{record['num_tokens']:,} tokens{begun}{'' if record['finish'] == 'stop' else ', not ended'}"
    parts = (f"{name} {value:g}" for name, value in record.get("parts", {}).items())
    text = shortened(record["response"])
    return {**record, "note": "; ".join([tokens, *parts]), "text": text}


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
