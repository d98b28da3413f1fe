"""Makes prompts that begin the answer, from recorded answers of a run or from written solutions.

A problem that is nearly always solved teaches again if its answer begins like a rare wrong one (failure prefixes, arXiv
2601.20829), and one that is hardly ever solved if it begins like a right one (POPE, arXiv 2601.18779).
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

from nemo_prorl.config import BegunConfig, ConfigError
from nemo_prorl.config.compose import compose
from nemo_prorl.data.building import overlap
from nemo_prorl.data.building.pipeline import evaluation_problems, question, write_set
from nemo_prorl.data.building.source import Ledger
from nemo_prorl.data.own import Conversion
from nemo_prorl.data.rows import Row, RowFile, split_answer
from nemo_prorl.run_folder.storage import read_or_refuse, step_files
from nemo_prorl.run_folder.tables import read_table
from nemo_prorl.types import CORRECT, Finish
from reward.extract import THINK_END, THINK_START, boxes

_ENDS = (re.compile(r"\n+|[.!?](?= )|[。！？]"), re.compile(r"[,;]"))
"""Ends of lines and sentences; of clauses, for a text that has neither."""

Siblings = Sequence[tuple[bool, str]]
"""The answers of a group: whether each has the outcome that is wanted, and its text."""
Answer = tuple[Row, str, str, str, Siblings]
"""The row of its problem, with columns about the answer; a name for uids; its text; how its prompt had begun it; its
group."""


def beginning(text: str, share: float, begun: str = "", siblings: Siblings = ()) -> str:
    """Returns a text up to the end of a line or sentence that is nearest to this share of its working, of those where
    at least half of the siblings that begin so have its outcome; empty if there is none. The working follows `begun`
    and precedes the end of the thought, `<answer>` and the first box."""
    start = len(begun)
    marks = [text.find(mark, start) for mark in (THINK_END, "<answer>")]
    marks += [place for place, *_ in boxes(text) if place >= start]
    working = text[: min((mark for mark in marks if mark >= 0), default=len(text))].rstrip()
    wanted = start + share * (len(working) - start)
    for pattern in _ENDS:
        ends = [match.end() for match in pattern.finditer(working, start) if match.end() < len(working)]
        if ends := [end for end in ends if working[start:end].replace(THINK_START, "").strip()]:
            ends = [end for end in ends if _is_telling(working[:end], siblings)]
            return working[: min(ends, key=lambda end: abs(end - wanted), default=0)]
    return ""


def _is_telling(begun: str, siblings: Siblings) -> bool:
    return sum(1 if is_wanted else -1 for is_wanted, text in siblings if text.startswith(begun)) >= 0


def build(options: BegunConfig) -> dict[str, Any]:
    """Builds options.out/begun_PREFIXES and returns its manifest. Raises ConfigError, and then writes nothing."""
    ledger = Ledger()
    with tempfile.TemporaryDirectory(prefix="nemo_prorl-") as aside:
        train, held_out = _files(options, Path(aside))
        answers = [*(_solutions if options.source else _recorded)(options, train, ledger)]
        evaluation = overlap.EvaluationIndex(evaluation_problems([*held_out, *options.against]))
    asked = {row.uid: question(row.messages) for row, *_ in answers}
    matches = evaluation.matches([(uid, uid, text) for uid, text in asked.items()])
    known = {match.uid for match in matches if match.is_overlap}
    rows, texts = list[Row](), defaultdict[str, set[str]](set)
    for row, name, answer, begun, siblings in answers:
        text = beginning(answer, options.cut, begun, siblings)
        of_problem = texts[overlap.identity(asked[row.uid])]
        reason = (
            "evaluation_overlap" if row.uid in known
            else "nothing_to_begin_with" if not text
            else "duplicate" if text in of_problem
            else "enough_of_the_problem" if len(of_problem) == options.per_problem
            else ""
        )  # fmt: skip
        if reason:
            ledger.drop(reason, f"{row.uid}/{name}", answer)
            continue
        of_problem.add(text)
        messages = (*split_answer(row.messages)[0], {"role": "assistant", "content": text})
        rows.append(replace(row, uid=f"{row.uid}/begun-{name}.{len(text)}", messages=messages))
    place = Path(options.out) / f"begun_{options.prefixes.name}"
    about = {"options": asdict(options) | {"prefixes": options.prefixes.name}}
    found = overlap.report(place.name, evaluation, matches, len(asked))
    return write_set(place, {"train": rows} if rows else {}, ledger, found, about)


def _files(options: BegunConfig, aside: Path) -> tuple[list[str], list[str]]:
    """Returns the file of problems with solutions, or those that the run has trained on, and its held-out ones, as
    prompt files. aside: a folder for those that have to be converted."""
    train, held_out, run = list[Path](), list[Path](), Path(options.run)
    stages = sorted(run.glob("stages/*.yaml")) if options.run else []
    if options.run and not stages:
        raise ConfigError(f"run={run} holds no stages/*.yaml: write the folder of a run.")
    if options.source:
        train.append(Conversion(folder=aside, needs_answer=True).file(options.source, "train")[0])
    for stage in stages:
        config = compose(str(stage), [], conf_dir=run)
        conversion = Conversion(folder=run, needs_answer=config.reward.asks_service, into=aside)
        held_out += [conversion.file(name, "validation")[0] for name in config.data.validation]
        train += [conversion.file(name, "train")[0] for name in config.data.train if not options.source]
    return [*dict.fromkeys(map(str, train))], [*dict.fromkeys(map(str, held_out))]


def _solutions(options: BegunConfig, files: Sequence[str], ledger: Ledger) -> Iterator[Answer]:
    for row in RowFile(Path(files[0]), with_extra=True):
        if options.column not in row.extra:
            known = ", ".join(row.extra) or "no further ones"
            raise ConfigError(f"{options.source} has no column {options.column}: it has {known}.")
        ledger.num_read += 1
        extra = {**row.extra, "begun_from": options.prefixes.name}
        text = row.extra[options.column]
        yield replace(row, extra=extra), options.column, text if isinstance(text, str) else "", "", []


def _recorded(options: BegunConfig, files: Sequence[str], ledger: Ledger) -> Iterator[Answer]:
    """Yields rare answers, the newest first, in two passes over the records: all texts may not fit into memory."""
    is_right = options.prefixes.name == "successes"
    outcomes = defaultdict[str, list[bool]](list)
    for _, answer in _answers(options, "uid verdict"):
        outcomes[answer["of"]].append(answer["is_right"])
    shares = {uid: fmean(one is is_right for one in found) for uid, found in outcomes.items()}
    rare = {uid for uid, share in shares.items() if 0 < share <= options.rare}
    if not rare:
        raise ConfigError(
            f"{options.run} has recorded no problem with {options.prefixes.name} that are at most rare="
            f"{options.rare:g} of its answers: raise rare, or record more steps."
        )
    opened = [RowFile(Path(file), with_extra=True) for file in files]
    places = [(file, *one) for file in opened for one in enumerate(file.uids.to_pylist())]
    rows = {uid: file[index] for file, index, uid in places if uid in rare}
    read = _answers(options, "uid sibling begun text finish verdict")
    for step, of_step in groupby(read, key=itemgetter(0)):
        answers = [answer for _, answer in of_step if answer["of"] in rare]
        siblings = defaultdict[str, list[tuple[bool, str]]](list)
        for answer in answers:
            siblings[answer["uid"]].append((answer["is_right"] is is_right, answer["text"]))
        for answer in (answer for answer in answers if answer["is_right"] is is_right):
            ledger.num_read += 1
            uid, text, name = answer["of"], answer["text"], f"{step}.{answer['visit']}.{answer['sibling']}"
            if uid not in rows or answer["finish"] != Finish.stop:
                ledger.drop("unfinished" if uid in rows else "not_in_the_files", f"{uid}/{name}", text)
                continue
            about = {"begun_from": options.prefixes.name, "begun_run": options.run, "begun_step": step}
            extra = {**rows[uid].extra, **about, "begun_pass_rate": fmean(outcomes[uid])}
            yield replace(rows[uid], extra=extra), name, text, answer["begun"], siblings[answer["uid"]]


def _answers(options: BegunConfig, columns: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (step, answer) of every graded answer since step `since`, the newest step first, with its row's uid."""
    found = [one for one in step_files(Path(options.run), "rollouts").all() if one[0] >= options.since]
    if not found:
        raise ConfigError(
            f"{options.run} has recorded no rollouts since step {options.since}: write the folder of a run that has "
            "trained with exp_manager.record_rollouts=1."
        )
    for step, path in sorted(found, key=lambda one: -one[0]):
        table = read_or_refuse(path, partial(read_table, columns=columns.split()), "move it elsewhere")
        for answer in table.to_pylist():
            score = json.loads(answer["verdict"])["score"]
            if score is not None:
                uid, _, visit = answer["uid"].rpartition("#")
                yield step, {**answer, "of": uid, "visit": visit, "is_right": score >= CORRECT}
