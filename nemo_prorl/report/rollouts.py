"""What the page of recorded rollouts shows: a prompt's responses at several steps, token by token.

All of it is untrusted text. It is data of the page, not HTML, and characters that a browser would obey instead of
showing (controls, direction marks) are spelled out.
"""

from __future__ import annotations

import json
import math
import os
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from nemo_prorl.report.texts import shortened
from nemo_prorl.run_folder.records import TOKENIZER, rollout_files, trained_files
from nemo_prorl.run_folder.storage import StepFiles

MAX_TOKENS = 200_000
"""Tokens on the page, which needs up to 30 bytes for each."""
HEAD, TAIL = 600, 300
"""Tokens of a long response that are shown: its beginning has the idea, its end the answer."""
MAX_STEPS, MAX_SIBLINGS = 5, 4
"""Steps of a prompt, and rollouts of a step, that are shown."""
SPELLED_OUT = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
"""Unicode's categories of characters that have no shape of their own."""

Prompts = Mapping[tuple[str, str], Mapping[int, Sequence[dict[str, Any]]]]
"""(domain, uid without the epoch) -> step -> its rollouts."""


def read_recorded(run_dir: Path) -> dict[str, Any] | None:
    """Returns what page/rollouts.html and page/rollouts.js show; None for a run that has recorded no rollouts."""
    files, left_out = rollout_files(run_dir), dict[str, str]()
    if not files.all():
        return None
    prompts: dict[tuple[str, str], dict[int, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for step, row in _rows(files, ("uid", "sibling", "domain", "num_tokens", "finish", "verdict"), left_out):
        verdict = json.loads(row.pop("verdict"))
        row |= {"score": verdict["score"], "verdict": visible(shortened(str(verdict["verdict"]))), "tokens": []}
        prompts[row.pop("domain"), row["uid"].rpartition("#")[0]][step].append(row)
    chosen, tokenizer = choose(prompts), _tokenizer(run_dir)
    wanted = {
        (visit["step"], one["uid"], one["sibling"]): (prompt, one)
        for prompt in chosen
        for visit in prompt["visits"]
        for one in visit["rollouts"]
    }
    columns = ("uid", "sibling", "source", "prompt", "text", "token_ids", "logprobs")
    for step, row in _rows(files, columns, left_out, wanted):
        prompt, one = wanted[step, row["uid"], row["sibling"]]
        prompt |= {"source": row["source"], "text": visible(shortened(row["prompt"]))}
        if tokenizer is None:
            one["tokens"] = [visible(shortened(row["text"]))]
        else:
            one |= {"tokens": token_texts(tokenizer, row["token_ids"]), "sampler": _numbers(row["logprobs"])}
    columns = ("uid", "sibling", "advantage", "old_logprobs", "limits")
    for step, row in _rows(trained_files(run_dir), columns, left_out, wanted):
        _, one = wanted[step, row["uid"], row["sibling"]]
        one |= {"advantage": row["advantage"], "trainer": _numbers(row["old_logprobs"]), "limits": _cut(row["limits"])}
    shown = [prompt for prompt in chosen if "text" in prompt]
    return {
        "prompts": shown,
        "num_common": len(os.path.commonprefix([prompt["text"] for prompt in shown])),  # such as a system prompt
        "num_shown": len(wanted),
        "num_rollouts": sum(len(rollouts) for visits in prompts.values() for rollouts in visits.values()),
        "num_prompts": len(prompts),
        "has_tokenizer": tokenizer is not None,
        "left_out": left_out,
    }


def choose(prompts: Prompts, limit: int = MAX_TOKENS) -> list[dict[str, Any]]:
    """Returns prompts with the best and the worst rollouts of their first, their last and some steps between. Last
    steps and domains take turns, beginning with the newest, and prompts that most steps have come first, until there
    are `limit` tokens."""
    turns = defaultdict[tuple[int, str], list[tuple[str, str]]](list)
    for domain, name in sorted(prompts, key=lambda key: (-max(prompts[key]), -len(prompts[key]), key)):
        turns[max(prompts[domain, name]), domain].append((domain, name))
    chosen: list[dict[str, Any]] = []
    for key in filter(None, chain.from_iterable(zip_longest(*turns.values()))):
        if limit <= 0:
            break
        steps, visits = sorted(prompts[key]), []
        for place in np.linspace(0, len(steps) - 1, min(len(steps), MAX_STEPS)).round().astype(int):
            rollouts = sorted(prompts[key][steps[place]], key=_rank)
            scores = [one["score"] for one in rollouts if one["score"] is not None]
            mean = sum(scores) / len(scores) if scores else None
            best, worst = rollouts[: MAX_SIBLINGS // 2], rollouts[MAX_SIBLINGS // 2 :][-(MAX_SIBLINGS // 2) :]
            limit -= sum(min(one["num_tokens"], HEAD + TAIL) for one in best + worst)
            visits.append({"step": steps[place], "num": len(rollouts), "mean": mean, "rollouts": best + worst})
        chosen.append({"domain": key[0], "name": key[1], "visits": visits})
    return chosen


def _rank(rollout: Mapping[str, Any]) -> tuple[float, int]:
    """Puts the best score first, and last what could not be graded."""
    return math.inf if rollout["score"] is None else -rollout["score"], rollout["sibling"]


def _rows(
    files: StepFiles,
    columns: Sequence[str],
    left_out: dict[str, str],
    wanted: Collection[tuple[int, str, int]] | None = None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (step, row) of all rollouts, or of those in `wanted` (step, uid, sibling). Adds the files that have no such
    rows, with the reason, to `left_out`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for step, path in files.all():
        uids = {uid for of_step, uid, _ in wanted or () if of_step == step}
        if wanted is not None and not uids:
            continue
        try:
            is_whole = set(columns) <= set(pq.read_schema(path).names)
            filters = None if wanted is None else [("uid", "in", uids)]
            rows = pq.read_table(path, columns=list(columns), filters=filters).to_pylist() if is_whole else []
        except (pa.ArrowException, OSError):
            left_out[f"{path.parent.name}/{path.name}"] = "they cannot be read"
            continue
        if not is_whole:
            left_out[f"{path.parent.name}/{path.name}"] = "an earlier version of nemo_prorl wrote them without prompts"
        yield from ((step, row) for row in rows if wanted is None or (step, row["uid"], row["sibling"]) in wanted)


def _cut(values: list[Any]) -> list[Any]:
    """Returns the values of the tokens that are shown, and between HEAD and TAIL a None."""
    return values if len(values) <= HEAD + TAIL else [*values[:HEAD], None, *values[-TAIL:]]


def _numbers(logprobs: list[float]) -> list[float | None]:
    """Returns what JSON can hold, to four decimals; -1,000 for a log-probability that is no finite number."""
    finite = np.nan_to_num(np.array(logprobs, np.float64), nan=-1e3, posinf=-1e3, neginf=-1e3)
    return _cut(finite.round(4).tolist())


def _tokenizer(run_dir: Path) -> Any:
    """Returns the run's tokenizer; None if none was recorded, or it cannot be read."""
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(run_dir / TOKENIZER))
    except Exception:  # the library raises Exception itself
        return None


def token_texts(tokenizer: Any, token_ids: list[int]) -> list[str]:
    """Returns the text of each token that is shown. A character of several tokens belongs to the last of them, and the
    others have the empty text."""
    from tokenizers.decoders import DecodeStream

    stream, texts = DecodeStream(skip_special_tokens=False), []
    for token in _cut(token_ids):
        if token is None:
            piece = f" [… {len(token_ids) - HEAD - TAIL:,} tokens …] "
        else:
            try:
                piece = stream.step(tokenizer, token) or ""
            except Exception:  # bytes that are no text; the library raises Exception itself
                stream = DecodeStream([token], skip_special_tokens=False)
                piece = tokenizer.decode([token], skip_special_tokens=False)
        texts.append(visible(piece))
    return texts


def visible(text: str) -> str:
    """Returns the text with each character that has no shape of its own, except the newline, as ‹U+202E›."""
    return "".join(
        f"‹U+{ord(one):04X}›" if one != "\n" and unicodedata.category(one) in SPELLED_OUT else one
        for one in text
    )
