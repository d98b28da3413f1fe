"""Turns a source into prompt files: read, convert, drop duplicates and overlaps, refine, verify, write.

The same source and options give the same bytes: order is the source's, and rows are chosen by uid.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from nemo_prorl.config import ConfigError, DataBuildConfig
from nemo_prorl.data.building import load, overlap
from nemo_prorl.data.building.source import Candidate, Ledger, NoRow, Source, Submit, get, sources
from nemo_prorl.data.building.verify import verify
from nemo_prorl.data.rows import Row, RowFile, read_content, split_answer, write_rows
from nemo_prorl.run_folder.storage import read_or_refuse, replacing_folder

T = TypeVar("T")

MANIFEST, OVERLAP = "manifest.json", "overlap.json"
QUESTION_COLUMNS = (
    "messages", "problem", "question", "Question", "question_content", "prompt", "description", "input", "text",
)  # fmt: skip
"""Columns in which evaluation sets keep the question, the most specific first."""


def build(source: Source, options: DataBuildConfig, submit: Submit) -> dict[str, Any]:
    """Builds options.out/NAME and returns its manifest. Raises ConfigError or GradingFailed, and then writes
    nothing."""
    if options.rows < 0:
        options = replace(options, rows=source.paper_rows)
    origin = load.locate(source, options.source, options.revision)
    evaluation = overlap.EvaluationIndex(evaluation_problems(options.against))
    ledger = Ledger()
    candidates = _distinct(_converted(source, origin, options, ledger), ledger, templated=source.templated)
    compared = _drop_known(source, Path(options.out), candidates, ledger)
    questions = [(c.row.uid, c.origin, c.problem.question) for c in candidates.values()]
    matches = evaluation.matches(questions, templated=source.templated) if evaluation.problems else []
    for match in filter(lambda match: match.is_overlap, matches):
        candidates.pop(match.uid)
        ledger.drop("evaluation_overlap", match.origin, f"{match.evaluation}: {match.shared}")
    kept = list(candidates.values())
    if source.refine is not None:
        place = {candidate.row.uid: index for index, candidate in enumerate(kept)}
        kept = list(source.refine(kept, options, submit, ledger))
        kept.sort(key=lambda candidate: place[candidate.row.uid])
    graders: set[str] = set()
    kept = list(verify(_watched(kept, "checking", len(kept)), submit, graders, ledger))
    splits = _splits(kept, source, options) | ledger.apart
    found = overlap.report(source.name, evaluation, matches, len(questions))
    about = {
        "domain": source.domain,
        "source": {"name": origin.name, "revision": origin.revision},
        "licence": source.licence,
        "num_proved_by_gold": sum(c.problem.gold is not None for c in kept),
        "num_by_judge_only": sum(c.by_judge_only for c in kept),
        "num_chosen_from": len(kept),
        "compared_with": compared,
        "options": {
            # Not those about where and how fast it is built, which do not change the content.
            **{name: getattr(options, name) for name in ("limit", "rows", "held_out", "seed", "model")},
            "credit": options.credit.name,
            "against": [Path(path).name for path in options.against],
        },
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in ("pyarrow", "reasoning-gym")},
            "reward_service": ", ".join(sorted(graders)),
        },
    }
    return write_set(Path(options.out) / source.name, splits if kept else {}, ledger, found, about)


def write_set(
    place: Path,
    splits: Mapping[str, Sequence[Row]],
    ledger: Ledger,
    found: Mapping[str, Any],
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """Writes the files of a set, all or none, and returns its manifest. found: its overlap report; about: what only
    this set's manifest has. Raises ConfigError if there are no rows."""
    if not splits:
        reasons = ", ".join(f"{reason} {count}" for reason, count in ledger.dropped.most_common())
        raise ConfigError(f"{place.name}: none of {ledger.num_read} records became a row ({reasons}).")
    manifest = {
        "name": place.name,
        **about,
        "num_read": ledger.num_read,
        "num_rows": {split: len(rows) for split, rows in splits.items()},
        "dropped": dict(ledger.dropped.most_common()),
        "examples_of_dropped": dict(ledger.examples),
        "overlap": {key: found[key] for key in ("num_rows", "num_matched_rows", "evaluation")},
    }
    with replacing_folder(place) as folder:
        hashes = {}
        for split, rows in splits.items():
            path = folder / f"{split}.parquet"
            write_rows(path, rows)
            hashes[path.name] = read_content(path).sha256
        _dump(folder / OVERLAP, found)
        text = json.dumps(hashes, sort_keys=True)
        manifest |= {
            "files": hashes,
            "content_hash": hashlib.sha256(text.encode()).hexdigest(),
            "seconds": round(time.monotonic() - ledger.began, 1),
        }
        _dump(folder / MANIFEST, manifest)
    return manifest


def evaluation_problems(paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields (file and index, text) of the problems of the evaluation files, from whichever column holds them. Raises
    ConfigError if none does."""
    found = [path for where in paths for path in load.files(Path(where))]
    for path in _watched(found, "reading evaluation sets", len(found)) if found else ():
        for index, values in enumerate(load.rows_of(path)):
            text = ""
            for column in QUESTION_COLUMNS:
                value = values.get(column)
                if isinstance(value, list):
                    value = question(value)
                if isinstance(value, str) and value.strip():
                    text = value
                    break
            if not text and index == 0:
                raise ConfigError(
                    f"{path} has none of the columns that hold a question ({', '.join(QUESTION_COLUMNS)}): it has "
                    f"{', '.join(values)}."
                )
            if text:
                yield f"{path.name}:{index}", text


def question(messages: Sequence[Mapping[str, str]]) -> str:
    """Returns what the user says in a conversation."""
    return "\n".join(turn["content"] for turn in messages if turn["role"] == "user")


def _converted(
    source: Source, origin: load.Origin, options: DataBuildConfig, ledger: Ledger
) -> Iterator[Candidate]:
    if origin.files or source.generate is None:
        records = _watched(load.read(source, origin), "reading", None)
    else:
        records = _watched(source.generate(options), "making", None)
    for record in records:
        if options.limit and ledger.num_read == options.limit:
            return
        ledger.num_read += 1
        try:
            yield source.candidate(record)
        except NoRow as dropped:
            ledger.drop(str(dropped), record.origin)


def _distinct(candidates: Iterable[Candidate], ledger: Ledger, *, templated: bool) -> dict[str, Candidate]:
    """Returns, by uid, the first of all candidates with the same question: the same text, or the same words with the
    same task, however they are typeset. Held-out rows come first, so they keep what both splits have."""
    asked: dict[str, Candidate] = {}
    worded: dict[str, Candidate] = {}
    by_uid: dict[str, Candidate] = {}
    for candidate in sorted(candidates, key=lambda one: one.row.split == "train"):  # stable
        question, task = candidate.problem.question, json.dumps(candidate.row.task, sort_keys=True)
        text, wording = overlap.identity(question), " ".join([*overlap.words(question), task])
        first = asked.get(text) or (None if templated else worded.get(wording))
        if first is None:
            asked[text] = worded[wording] = by_uid[candidate.row.uid] = candidate
            continue
        same = first.row.task == candidate.row.task
        reason = "duplicate" if same else "duplicate_with_other_answer"
        ledger.drop(reason, candidate.origin, f"as {first.origin}: {question}")
    return by_uid


def _drop_known(
    source: Source, out: Path, candidates: dict[str, Candidate], ledger: Ledger
) -> dict[str, str]:
    """Drops what an earlier source's set asks too, if that set is there; returns their content hashes by name."""
    compared = {}
    for name in list(sources())[: list(sources()).index(source.name)]:
        folder = out / name
        if get(name).templated or source.templated or not (folder / MANIFEST).is_file():
            continue
        built = read_or_refuse(
            folder / MANIFEST, lambda path: json.loads(path.read_bytes()), f"build {name} again"
        )
        compared[name] = built["content_hash"]
        known = {_asks(row) for file in built["files"] for row in RowFile(folder / file)}
        for uid, candidate in list(candidates.items()):
            if _asks(candidate.row) in known:
                del candidates[uid]
                ledger.drop(f"duplicate_of_{name}", candidate.origin, candidate.problem.question)
    return compared


def _asks(row: Row) -> str:
    """Returns the text by which two rows are recognised as the same question."""
    return overlap.identity(split_answer(row.messages)[0][-1]["content"])


def _splits(kept: Sequence[Candidate], source: Source, options: DataBuildConfig) -> dict[str, list[Row]]:
    """Returns rows by split, in the source's order. `rows` and `held_out` choose by uid, so neighbours in the source
    may be separated like any two rows; generated rows already have the requested numbers."""
    splits: dict[str, list[Row]] = {"train": []}
    for candidate in kept:
        splits.setdefault(candidate.row.split, []).append(candidate.row)
    if source.generate is None:
        drawn = sorted(row.uid for row in splits["train"])
        drawn.sort(key=lambda uid: hashlib.sha256(f"{options.seed}/{uid}".encode()).digest())
        num_held_out = max(0, options.held_out)
        held_out = set(drawn[:num_held_out])
        train = set(drawn[num_held_out:][: options.rows or None])
        splits.setdefault("validation", []).extend(
            replace(row, split="validation") for row in splits["train"] if row.uid in held_out
        )
        splits["train"] = [row for row in splits["train"] if row.uid in train]
    return {split: rows for split, rows in splits.items() if rows}


def _watched(items: Iterable[T], what: str, total: int | None) -> Iterable[T]:
    """Yields the items, and shows on a terminal how many have passed."""
    return tqdm(items, desc=what, total=total, unit=" rows", disable=None, dynamic_ncols=True)


def _dump(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
