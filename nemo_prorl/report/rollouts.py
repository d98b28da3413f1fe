"""What the page of recorded rollouts shows: a prompt's responses at several steps, token by token.

All of it is untrusted text, which is data of the page, not HTML.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from nemo_prorl.report.texts import shortened, visible
from nemo_prorl.run_folder.records import TOKENIZER
from nemo_prorl.run_folder.storage import StepFiles, read_or_skip, step_files
from nemo_prorl.run_folder.tables import read_table

MAX_TOKENS = 200_000
"""Tokens on the page, which needs up to 30 bytes for each."""
HEAD, TAIL = 600, 300
"""Tokens of a long response that are shown: its beginning has the idea, its end the answer."""
MAX_STEPS, BEST, WORST = 5, 2, 2
"""Steps of a prompt, and rollouts of a step, that are shown of a run with more than MAX_TOKENS."""

Prompts = Mapping[tuple[str, str], Mapping[int, Sequence[dict[str, Any]]]]
"""Domain and uid without the epoch -> step -> its rollouts."""


def read_recorded(run_dir: Path) -> dict[str, Any] | None:
    """Returns what page/rollouts.html and page/rollouts.js show; None for a run that has recorded no rollouts."""
    from tokenizers import Tokenizer

    files = step_files(run_dir, "rollouts")
    if not files.all():
        return None
    prompts: dict[Any, Any] = defaultdict(lambda: defaultdict(list))
    for step, row in _rows(files, "uid sibling domain num_tokens finish verdict"):
        verdict = json.loads(row.pop("verdict"))
        row |= {"score": verdict["score"], "verdict": shortened(str(verdict["verdict"]))}
        prompts[row.pop("domain"), row["uid"].rpartition("#")[0]][step].append(row)
    chosen = choose(prompts)
    wanted: dict[int, dict[tuple[str, int], Any]] = defaultdict(dict)
    for prompt in chosen:
        for visit in prompt["visits"]:
            for one in visit["rollouts"]:
                wanted[visit["step"]][one["uid"], one["sibling"]] = prompt, one
    try:
        tokenizer = Tokenizer.from_file(str(run_dir / TOKENIZER))
    except Exception:  # the library raises Exception itself
        tokenizer = None
    for step, row in _rows(files, "uid sibling source prompt begun text token_ids logprobs", wanted):
        prompt, one = wanted[step][row["uid"], row["sibling"]]
        prompt |= {
            "source": row["source"],
            "text": shortened(row["prompt"]),
            "begun": shortened(row["begun"]),
        }
        if tokenizer is None:
            one["tokens"] = [shortened(row["text"].removeprefix(row["begun"]))]
        else:
            one["tokens"] = token_texts(tokenizer, row["token_ids"], row["prompt"] + row["begun"])
            one["sampler"] = _numbers(row["logprobs"])
    columns = "uid sibling advantage old_logprobs limits"
    for step, row in _rows(step_files(run_dir, "rollouts/trained"), columns, wanted):
        _, one = wanted[step][row["uid"], row["sibling"]]
        one |= {"advantage": row["advantage"], "limits": _cut(row["limits"])}
        one["trainer"] = _numbers(row["old_logprobs"])
    num_rollouts = sum(len(rollouts) for visits in prompts.values() for rollouts in visits.values())
    num_shown = sum(map(len, wanted.values()))
    summary = "All" if num_shown == num_rollouts else f"{num_shown:,} of"
    summary += f" {num_rollouts:,} recorded rollouts"
    if num_shown < num_rollouts:
        summary += f": up to {MAX_STEPS} steps of a prompt, and the {BEST} best and {WORST} worst of each. All are in "
        summary += "RUN/rollouts/*.parquet, for example for pandas.read_parquet"
    return {
        "prompts": [prompt for prompt in chosen if "text" in prompt],
        "summary": summary,
        "head": HEAD,
        "tail": TAIL,
        "has_tokenizer": tokenizer is not None,
    }


def choose(prompts: Prompts, limit: int = MAX_TOKENS) -> list[dict[str, Any]]:
    """Returns all prompts, steps and rollouts if they have up to `limit` tokens. Otherwise prompts with the best and
    the worst rollouts of their first, their last and some steps between: last steps and domains take turns, the newest
    and the prompts of most steps first."""
    visits_of_all = [rollouts for steps in prompts.values() for rollouts in steps.values()]
    shows_all = sum(map(_num_shown, chain.from_iterable(visits_of_all))) <= limit
    turns = defaultdict[tuple[int, str], list[tuple[str, str]]](list)
    for key in sorted(prompts, key=lambda key: (-max(prompts[key]), -len(prompts[key]), key)):
        turns[max(prompts[key]), key[0]].append(key)
    chosen: list[dict[str, Any]] = []
    for key in filter(None, chain.from_iterable(zip_longest(*turns.values()))):
        if limit <= 0 and not shows_all:
            break
        steps, visits = sorted(prompts[key]), []
        num_steps = len(steps) if shows_all else min(len(steps), MAX_STEPS)
        for place in np.linspace(0, len(steps) - 1, num_steps).round().astype(int):
            rollouts = sorted(prompts[key][steps[place]], key=_rank)
            scores = [one["score"] for one in rollouts if one["score"] is not None]
            mean = sum(scores) / len(scores) if scores else None
            shown = rollouts if shows_all else rollouts[:BEST] + rollouts[BEST:][-WORST:]
            visits.append({"step": steps[place], "num": len(rollouts), "mean": mean, "rollouts": shown})
            limit -= sum(map(_num_shown, shown))
        chosen.append({"domain": key[0], "name": key[1], "visits": visits})
    return chosen


def _num_shown(rollout: Mapping[str, Any]) -> int:
    return min(rollout["num_tokens"], HEAD + TAIL)


def _rank(rollout: Mapping[str, Any]) -> tuple[bool, float, int]:
    return rollout["score"] is None, -(rollout["score"] or 0), rollout["sibling"]


def _rows(
    files: StepFiles, columns: str, wanted: Mapping[int, Any] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (step, row) of all rollouts, or of those in `wanted`: step -> (uid, sibling). Skips files that cannot be
    read."""
    names = columns.split()
    for step, path in files.all():
        if wanted is not None and step not in wanted:
            continue
        filters = None if wanted is None else [("uid", "in", {uid for uid, _ in wanted[step]})]
        read = partial(read_table, columns=names, filters=filters)
        table = read_or_skip(path, read)
        for row in table.to_pylist() if table is not None else ():
            if wanted is None or (row["uid"], row["sibling"]) in wanted[step]:
                yield step, row


def _cut(values: list[Any]) -> list[Any]:
    """Returns the values of the tokens that are shown, and between HEAD and TAIL a None."""
    return values if len(values) <= HEAD + TAIL else [*values[:HEAD], None, *values[-TAIL:]]


def _numbers(logprobs: list[float]) -> list[float | None]:
    """Returns numbers that JSON has, to four decimals; NaN becomes -1,000."""
    return _cut([round(min(max(-1e3, value), 1e3), 4) for value in logprobs])


def token_texts(tokenizer: Any, token_ids: list[int], prompt: str) -> list[str]:
    """Returns the text of each token of a response to `prompt` that is shown. A character of several tokens belongs to
    the last of them, and the others have the empty text."""
    from tokenizers.decoders import DecodeStream

    # A decoder of SentencePiece drops the space of the first token, so the end of the prompt comes before it.
    before = tokenizer.encode(prompt[-100:], add_special_tokens=False).ids
    stream, texts = DecodeStream(before, skip_special_tokens=False), []
    for token in _cut(token_ids):
        if token is None:
            stream = DecodeStream(before, skip_special_tokens=False)
            texts.append(f" [… {len(token_ids) - HEAD - TAIL:,} tokens …] ")
            continue
        try:
            piece = stream.step(tokenizer, token) or ""
        except Exception:  # bytes that are no text; the library raises Exception itself
            stream = DecodeStream([token], skip_special_tokens=False)
            piece = tokenizer.decode([token], skip_special_tokens=False)
        # A model's vocabulary may be larger than its tokenizer's.
        texts.append(f"‹token {token}›" if tokenizer.id_to_token(token) is None else visible(piece))
    return texts
