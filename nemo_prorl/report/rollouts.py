"""A page of recorded rollouts: each token with its log-probabilities, and a prompt's answers at several steps.

Everything that it shows is untrusted text. It is data of the page, not HTML, and characters that a browser would obey
instead of showing (controls, direction marks) are spelled out.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from nemo_prorl.report.texts import shortened
from nemo_prorl.run_folder.records import TOKENIZER, rollout_files, trained_files
from nemo_prorl.run_folder.storage import StepFiles

MAX_ROLLOUTS = 300
HEAD, TAIL = 600, 300
"""Tokens of a long response that are shown: its beginning has the idea, its end the answer."""
MAX_STEPS, MAX_SIBLINGS = 5, 4
"""Steps of a prompt, and rollouts of a step, that are shown."""
SPELLED_OUT = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
"""Unicode's categories of characters that have no shape of their own."""

Member = tuple[str, int]
"""A rollout of a step: its prompt's uid, which contains the epoch, and its index among the siblings."""
Visits = dict[int, dict[Member, float | None]]
"""Step -> score of each rollout of a prompt, None if it could not be graded."""
_Item = TypeVar("_Item")


def read_recorded(run_dir: Path) -> dict[str, Any] | None:
    """Returns what page/rollouts.js shows, as JSON; None for a run that has recorded no rollouts.

    Log-probabilities are in hundredths of a nat, differences in thousandths. Lists with a value a token hold those of
    the shown tokens: of the first HEAD and the last TAIL."""
    files, unread = rollout_files(run_dir), set[str]()
    if not files.all():
        return None
    prompts: dict[str, Visits] = defaultdict(lambda: defaultdict(dict))
    domains: dict[str, str] = {}
    for step, row in _rows(files, unread, columns=["uid", "sibling", "domain", "verdict"]):
        prompts[_name(row)][step][row["uid"], row["sibling"]] = json.loads(row["verdict"])["score"]
        domains[_name(row)] = row["domain"]
    chosen = choose(prompts, domains)
    wanted: dict[int, set[Member]] = defaultdict(set)
    for visits in chosen.values():
        for step, members in visits.items():
            wanted[step].update(members)
    trained = {
        (step, row["uid"], row["sibling"]): row
        for step, row in _rows(trained_files(run_dir), unread, wanted=wanted)
    }
    pieces = Pieces(run_dir)
    shown: dict[str, dict[str, Any]] = {}
    for step, row in _rows(files, unread, wanted=wanted):
        prompt = shown.setdefault(
            _name(row),
            {
                "name": _name(row),
                "domain": row["domain"],
                "source": row["source"],
                "text": visible(shortened(row["prompt"])),
                "steps": {},
            },
        )
        of_step = prompts[_name(row)][step].values()
        scores = [score for score in of_step if score is not None]
        mean = float(np.mean(scores)) if scores else None
        visit: dict[str, Any] = {"step": step, "num": len(of_step), "mean": mean, "rollouts": []}
        of_updates = trained.get((step, row["uid"], row["sibling"]))
        prompt["steps"].setdefault(step, visit)["rollouts"].append(_rollout(row, of_updates, pieces))
    for prompt in shown.values():
        prompt["steps"] = [prompt["steps"][step] for step in sorted(prompt["steps"])]
    return {
        "prompts": [shown[name] for name in chosen if name in shown],
        "pieces": list(pieces.numbers),
        "num_rollouts": sum(len(members) for visits in prompts.values() for members in visits.values()),
        "num_prompts": len(prompts),
        "num_shown": sum(len(visit["rollouts"]) for prompt in shown.values() for visit in prompt["steps"]),
        "has_tokens": pieces.tokenizer is not None,
        "unread": sorted(unread),
    }


def choose(
    prompts: Mapping[str, Visits], domains: Mapping[str, str], limit: int = MAX_ROLLOUTS
) -> dict[str, dict[int, list[Member]]]:
    """Returns prompt -> step -> rollouts to show, at most `limit` rollouts. Half of them are of prompts that several
    steps have, those with most steps first; the others are spread over steps and domains, the newest step first."""
    several = sorted((n for n in prompts if len(prompts[n]) > 1), key=lambda name: -len(prompts[name]))
    newest_first = sorted(prompts, key=lambda name: -max(prompts[name]))
    chosen: dict[str, dict[int, list[Member]]] = {}
    room = limit
    for names, until in (
        (_in_turn(several, lambda name: domains[name]), limit // 2),
        (_in_turn(newest_first, lambda name: (max(prompts[name]), domains[name])), 0),
    ):
        for name in names:
            visits = {step: _extremes(prompts[name][step]) for step in _spread(sorted(prompts[name]))}
            size = sum(map(len, visits.values()))
            if name not in chosen and size <= room - until:
                chosen[name] = visits
                room -= size
    return chosen


def _in_turn(items: Iterable[_Item], kind: Callable[[_Item], Hashable]) -> Iterator[_Item]:
    """Yields the first item of each kind, then the second of each, and so on."""
    kinds: dict[Hashable, list[_Item]] = defaultdict(list)
    for item in items:
        kinds[kind(item)].append(item)
    missing = object()
    for turn in zip_longest(*kinds.values(), fillvalue=missing):
        yield from (item for item in turn if item is not missing)  # type: ignore[misc]


def _spread(steps: list[int]) -> list[int]:
    places = np.linspace(0, len(steps) - 1, min(len(steps), MAX_STEPS)).round().astype(int)
    return [steps[place] for place in places]


def _extremes(scores: Mapping[Member, float | None]) -> list[Member]:
    """Returns rollouts with the best and the worst scores, in turn: best, worst, second best, ..."""
    ordered = sorted(scores, key=lambda one: (-math.inf if scores[one] is None else scores[one], one))
    picked: list[Member] = []
    while ordered and len(picked) < MAX_SIBLINGS:
        picked.append(ordered.pop(-1 if len(picked) % 2 == 0 else 0))
    return picked


def _name(row: Mapping[str, Any]) -> str:
    """Returns a prompt's uid without the epoch, which is the same at every step."""
    return str(row["uid"]).rpartition("#")[0]


def _rows(
    files: StepFiles,
    unread: set[str],
    *,
    columns: Sequence[str] = (),
    wanted: Mapping[int, set[Member]] | None = None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (step, row), by default of all rollouts with all columns. Adds the names of files that cannot be read, and
    of those by versions that wrote fewer columns, to `unread`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for step, path in files.all():
        members = None if wanted is None else wanted.get(step, set())
        if members == set():
            continue
        try:
            table = pq.read_table(path, columns=list(columns) or None)
            if members is not None:
                keys = table.select(["uid", "sibling"]).to_pylist()
                places = [place for place, key in enumerate(keys) if (key["uid"], key["sibling"]) in members]
                table = table.take(places)
            rows = (table.select(columns) if columns else table).to_pylist()
        except (pa.ArrowException, KeyError, OSError):
            unread.add(path.name)
        else:
            yield from ((step, row) for row in rows)


def _rollout(row: Mapping[str, Any], trained: Mapping[str, Any] | None, pieces: Pieces) -> dict[str, Any]:
    verdict, num_tokens = json.loads(row["verdict"]), len(row["token_ids"])
    head, tail = (HEAD, TAIL) if num_tokens > HEAD + TAIL else (num_tokens, 0)

    def shown(values: list[Any], scale: float = 1) -> list[int]:
        return [_scaled(value, scale) for value in values[:head] + values[num_tokens - tail :]]

    found = {
        "sibling": row["sibling"],
        "score": verdict["score"],
        "verdict": visible(shortened(str(verdict["verdict"]))),
        "finish": row["finish"],
        "num_tokens": num_tokens,
        "left_out": num_tokens - head - tail,
        "head": head,
        "logprobs": shown(row["logprobs"], 100),
    }
    if pieces.tokenizer is None:
        found["text"] = visible(shortened(row["text"]))
    else:
        found["tokens"] = shown(pieces.of(row["token_ids"]))
    if trained is not None:
        found |= {
            "advantage": trained["advantage"],
            "update": trained["update"],
            "trainer": shown(trained["old_minus_sampler"], 1000),
            "change": shown(trained["current_minus_old"], 1000),
            "limits": shown(trained["limits"]),
        }
    return found


def _scaled(value: float, scale: float) -> int:
    """Returns a number that JSON has: NaN and infinity are not in it."""
    bounded = min(max(float(value), -1e6), 1e6)
    return 0 if math.isnan(bounded) else round(bounded * scale)


class Pieces:
    """Cuts responses into the texts of their tokens, each of which gets a number."""

    def __init__(self, run_dir: Path) -> None:
        """Without the tokenizer's file, or with one that cannot be read, `tokenizer` is None."""
        self.tokenizer: Any = None
        self.numbers: dict[str, int] = {"": 0}
        """Text, with special characters spelled out -> its number."""
        if (file := run_dir / TOKENIZER).is_file():
            from tokenizers import Tokenizer

            try:
                self.tokenizer = Tokenizer.from_file(str(file))
            except Exception:  # the library raises Exception itself
                self.tokenizer = None

    def of(self, token_ids: list[int]) -> list[int]:
        """Returns the number of each token's text. A character of several tokens belongs to the last of them, and the
        others have the empty text."""
        from tokenizers.decoders import DecodeStream

        stream, found = DecodeStream(skip_special_tokens=False), []
        for token in token_ids:
            try:
                piece = stream.step(self.tokenizer, token) or ""
            except Exception:  # bytes that are no text; the library raises Exception itself
                stream = DecodeStream([token], skip_special_tokens=False)
                piece = self.tokenizer.decode([token], skip_special_tokens=False)
            found.append(self.numbers.setdefault(visible(piece), len(self.numbers)))
        return found


def visible(text: str) -> str:
    """Returns the text with each character that has no shape of its own, except the newline, as ‹U+202E›."""
    return "".join(
        f"‹U+{ord(one):04X}›" if one != "\n" and unicodedata.category(one) in SPELLED_OUT else one
        for one in text
    )
