"""What answers earn that ignore the question, for each of the paper's 96 puzzles; and what training pays above that.

    .venv-reward/bin/python benchmarks/puzzle_constants.py                  # all tasks; about an hour on one core
    .venv-reward/bin/python benchmarks/puzzle_constants.py --only sudoku game_of_life --rounds 40
    .venv-reward/bin/python benchmarks/puzzle_constants.py --page           # docs/puzzle_rewards.md from the data

For each task, on entries of the default configuration, as the trainer's data has them:

1. Search for the best constant answer and the best shaped one (puzzle_guesses.py) by the library's score with our
   corrections: generic constants, gold answers of other entries, their majorities, and mutations of the best of these.
2. Find the lowest floor (reward.graders.puzzle_credit) that leaves such answers no more than MAX_LEFT above the share
   of entries on which one is simply right. A task pays for right answers only (floor 1) if its floor would be above
   the highest of FLOORS, or if nearly right answers would earn less than MIN_NEAR.
3. Search again, by the reward that training then pays.

Candidates come from one seed, are chosen on a second and measured on a third. The same seeds give the same result. Each
task's result is kept in the folder --work, so that an interrupted search continues; the results of all tasks become
reward/data/puzzle_constants.json, from which the service reads the floors.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from puzzle_guesses import (  # noqa: E402
    CONSTANTS,
    SHAPED,
    form,
    majorities,
    mutated,
    near_misses,
    numbers_between,
    safely,
    walks,
)
from puzzle_page import DATA, write_page  # noqa: E402

from reward.graders import grade  # noqa: E402
from reward.graders.puzzle import paper_tasks, scorer  # noqa: E402
from reward.graders.puzzle_credit import training_credit  # noqa: E402

SEEDS = {"candidates": 71, "choice": 72, "measure": 73}
COUNTS = {"candidates": 80, "choice": 120, "measure": 200}
FEW = {
    "knight_swap": 0.2, "futoshiki": 0.5, "codeio": 0.25, "arc_agi": 0.25, "intermediate_integration": 0.25,
    "simple_integration": 0.25, "zebra_puzzles": 0.2, "polynomial_multiplication": 0.1, "countdown": 0.25,
}  # fmt: skip
"""Tasks whose entries take long to make or to grade: the share of COUNTS that they get."""
FIRST_LOOK = 16
"""Entries on which all candidates are tried; the best KEPT of them are tried on all entries of the choice."""
KEPT = 40
MUTANTS = 24
"""Made in each round."""
MAX_LEFT, MIN_NEAR = 0.01, 0.2
FLOORS = [step / 20 for step in range(11)]
LIMIT_S = 2.0
"""CPU time for grading one answer; what takes longer earns 0, as in the service."""
BY_FORM = "a constant for each form of question"


@dataclass(frozen=True, slots=True)
class Guess:
    """A constant, a shaped answer, or a constant for each form of question."""

    name: str
    answers: Mapping[str, str] = field(default_factory=dict)
    """Of a constant {"": answer}; by form, and "" for others; empty for a shaped answer."""

    def answer(self, question: str) -> str:
        if not self.answers:
            return safely(SHAPED[self.name], question)
        return self.answers.get(form(question), self.answers[""])

    @property
    def is_constant(self) -> bool:
        return self.name == "constant"


def constant(text: str) -> Guess:
    """The same answer to every question."""
    return Guess("constant", {"": text})


# ------------------------------------------------------------------------------------- entries
def entries_of(task: str, part: str, work: Path) -> list[dict[str, Any]]:
    """Entries of the default configuration, through JSON, as the service gets them. Kept in `work`."""
    count = round(COUNTS[part] * FEW.get(task, 1))
    kept = work / "entries" / f"{task}.{part}.{SEEDS[part]}.{count}.json"
    if not kept.exists():
        _write(kept, json.dumps(list(made(task, SEEDS[part], count))))
    return list(json.loads(kept.read_text(encoding="utf-8")))


def made(task: str, seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Yields `count` entries with different questions, the same ones for the same seed."""
    import numpy as np
    import reasoning_gym

    dataset = reasoning_gym.create_dataset(task, seed=seed, size=20_000)
    seen: set[str] = set()
    for index in range(20 * count):
        random.seed(f"{task}/{seed}/{index}")
        np.random.seed(random.getrandbits(32))
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                entry = dataset[index]  # codeio's own programs may return what JSON cannot hold
            text = json.dumps(entry, allow_nan=False)
        except (TypeError, ValueError):  # no row of the trainer's either
            continue
        if entry["question"] not in seen:
            seen.add(entry["question"])
            yield json.loads(text)
        if len(seen) == count:
            return


def gold(entry: Mapping[str, Any]) -> str:
    """The entry's own answer, wherever it stands; "" if there is none."""
    metadata = entry["metadata"]
    found = [entry["answer"], metadata.get("example_answer"), metadata.get("example_correct_answer")]
    if "possible_answer" in metadata:
        found.append(json.dumps(metadata["possible_answer"]))
    return next((answer for answer in found if isinstance(answer, str)), "")


# ------------------------------------------------------------------------------------- scores
class Scores:
    """Library scores of guesses on entries, each computed once."""

    def __init__(self, task: str, entries: Sequence[dict[str, Any]]) -> None:
        self.task, self.entries = task, entries
        self._known: dict[tuple[str, int], float] = {}
        self._of_guess: dict[tuple[str, tuple[tuple[str, str], ...]], list[float]] = defaultdict(list)
        scorer(task)  # some read large files: not within the time limit of an answer

    def of(self, guess: Guess, count: int | None = None) -> list[float]:
        """On the first `count` entries."""
        known = self._of_guess[guess.name, tuple(guess.answers.items())]
        for index in range(len(known), len(self.entries[:count])):
            known.append(self.one(guess.answer(self.entries[index]["question"]), index))
        return known[:count]

    def one(self, answer: str, index: int) -> float:
        """Library's score, with our corrections, of one answer to one entry."""
        if (answer, index) not in self._known:
            self._known[answer, index] = self._graded(answer, self.entries[index])
        return self._known[answer, index]

    def _graded(self, answer: str, entry: dict[str, Any]) -> float:
        task = {"task": self.task, "entry": entry, "credit": "corrected"}
        try:
            with _time_limit(LIMIT_S):
                return grade("logic", f"<answer>{answer}</answer>", task).score
        except (TimeoutError, RecursionError, MemoryError, OverflowError):
            return 0.0


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


Reward = Callable[[float], float]
"""What a library score is worth."""


def paid(floor: float) -> Reward:
    """What training pays above a floor."""
    return lambda score: training_credit(score, floor)


def mean(values: Sequence[float]) -> float:
    """0 of nothing."""
    return sum(values) / max(len(values), 1)


def mean_reward(scores: Sequence[float], reward: Reward) -> float:
    """What the scores are worth on average."""
    return mean([reward(score) for score in scores])


def share_right(scores: Sequence[float]) -> float:
    """The share of entries with the full score."""
    return mean([float(score == 1.0) for score in scores])


# ------------------------------------------------------------------------------------- search
def first_guesses(golds: Sequence[str]) -> list[Guess]:
    """What the search begins with. golds: answers of other entries of the task."""
    texts = dict.fromkeys([*CONSTANTS, *walks(), *golds, *majorities(golds), *numbers_between(golds)])
    return [*map(constant, texts), *map(Guess, SHAPED)]


def best_first(
    guesses: Sequence[Guess], scores: Scores, reward: Reward, count: int | None = None
) -> list[Guess]:
    """By their mean reward on the first `count` entries."""
    return sorted(guesses, key=lambda guess: -mean_reward(scores.of(guess, count), reward))


def search(guesses: Sequence[Guess], scores: Scores, reward: Reward, rounds: int, seed: str) -> list[Guess]:
    """The best KEPT guesses by their mean reward on the entries of the choice, best first, after `rounds` of mutation
    of constants, with the best constant for each form of question among them."""
    stream = random.Random(seed)
    leaders = best_first(best_first(guesses, scores, reward, FIRST_LOOK)[:KEPT], scores, reward)
    texts = [guess.answers[""] for guess in guesses if guess.is_constant]
    for _ in range(rounds):
        parents = [guess for guess in leaders if guess.is_constant][:12] or [constant("0")]
        mutants = {mutated(stream.choice(parents).answers[""], texts, stream)[:4000] for _ in range(MUTANTS)}
        children = best_first(list(map(constant, sorted(mutants))), scores, reward, FIRST_LOOK)[:6]
        known = {guess.answers.get("") for guess in leaders if guess.is_constant}
        fresh = [guess for guess in children if guess.answers[""] not in known]
        leaders = best_first([*leaders, *fresh], scores, reward)[:KEPT]
    by_form = _best_by_form([guess for guess in leaders if guess.is_constant], guesses, scores, reward)
    return best_first([*leaders, by_form], scores, reward)


def _best_by_form(
    leaders: Sequence[Guess], guesses: Sequence[Guess], scores: Scores, reward: Reward
) -> Guess:
    """For each form that five questions or more have, the constant that is best on these."""
    of_form: dict[str, list[int]] = defaultdict(list)
    for index, entry in enumerate(scores.entries):
        of_form[form(entry["question"])].append(index)
    texts = list(dict.fromkeys(guess.answers[""] for guess in [*leaders, *guesses] if guess.is_constant))[
        :160
    ]

    def best(places: Sequence[int]) -> str:
        some = places[:6]
        likely = sorted(texts, key=lambda text: -mean([reward(scores.one(text, place)) for place in some]))[
            :8
        ]
        return max(likely, key=lambda text: mean([reward(scores.one(text, place)) for place in places]))

    forms = {name: places for name, places in of_form.items() if len(places) >= 5}
    answers = {name: best(places) for name, places in forms.items()} if 1 < len(forms) <= 30 else {}
    return Guess(BY_FORM, {**answers, "": leaders[0].answers[""] if leaders else "0"})


# ------------------------------------------------------------------------------------- the floor
def near_rewards(scores: Scores, reward: Reward) -> float:
    """The mean reward of nearly right answers, of the kind of mistake that is paid best; 0 where nothing is."""
    stream = random.Random(f"near/{scores.task}")
    paid_by_kind: dict[str, list[float]] = defaultdict(list)
    for index, entry in enumerate(scores.entries[:40]):
        for kind, answer in near_misses(gold(entry), stream).items():
            score = scores.one(answer, index)
            if score < 1.0:  # some puzzles have many right answers
                paid_by_kind[kind].append(reward(score))
    return max((mean(values) for values in paid_by_kind.values() if len(values) >= 10), default=0.0)


def chosen_floor(leaders: Sequence[Guess], scores: Scores, rounds: int) -> float:
    """The lowest of FLOORS that leaves little to answers which ignore the question, or 1."""
    pool = list(leaders)
    for floor in FLOORS:
        reward = paid(floor)
        if near_rewards(scores, reward) < MIN_NEAR:
            return 1.0
        if _left(pool, scores, reward) <= MAX_LEFT:
            pool = search(pool, scores, reward, rounds, f"{scores.task}/{floor}")  # the optimiser adapts
            if _left(pool, scores, reward) <= MAX_LEFT:
                return floor
    return 1.0


def _left(guesses: Sequence[Guess], scores: Scores, reward: Reward) -> float:
    """What the best guess earns by being partly right."""
    best = max(mean_reward(scores.of(guess), reward) for guess in guesses)
    return best - max(share_right(scores.of(guess)) for guess in guesses)


# ------------------------------------------------------------------------------------- a task
def result_of(task: str, work: Path, rounds: int) -> dict[str, Any]:
    """The task's line of the data."""
    candidates, choice, measure = (entries_of(task, part, work) for part in COUNTS)
    scores, fresh = Scores(task, choice), Scores(task, measure)
    guesses = first_guesses([answer for entry in candidates if (answer := gold(entry))])
    leaders = search(guesses, scores, float, rounds, f"{task}/library")
    floor = chosen_floor(leaders, scores, rounds)
    adapted = search([*guesses, *leaders], scores, paid(floor), rounds, f"{task}/training")
    return {
        "floor": floor,
        "entries": len(measure),
        "rounds": rounds,
        "near": round(near_rewards(scores, paid(floor)), 3),
        "library": _record(leaders, fresh, float),
        "training": _record(adapted, fresh, paid(floor)),
    }


def _record(leaders: Sequence[Guess], fresh: Scores, reward: Reward) -> dict[str, Any]:
    """The best constant and the best of all, measured on entries that they were not chosen on."""
    best = {"constant": next(guess for guess in leaders if guess.is_constant), "any": leaders[0]}
    record = {}
    for kind, guess in best.items():
        scores = fresh.of(guess)
        record[kind] = {
            "name": guess.name,
            "answers": dict(guess.answers),
            "mean": round(mean_reward(scores, reward), 4),
            "right": round(share_right(scores), 4),
        }
    return record


# ------------------------------------------------------------------------------------- the command
def main() -> None:
    """Searches, or only writes the page."""
    arguments = _arguments()
    if arguments.page:
        write_page()
        return
    if os.environ.get("PYTHONHASHSEED") != "0":  # some generators iterate over sets
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    work = Path(arguments.work).resolve()
    tasks = arguments.only or paper_tasks()
    warnings.simplefilter("ignore")  # Python's, about answers that are no Python
    os.chdir(tempfile.mkdtemp(prefix="puzzle_constants_"))  # codeio's programs write files where they run
    results = {}
    for number, task in enumerate(tasks, 1):
        kept = work / "results" / f"{task}.{arguments.rounds}.json"
        started = time.monotonic()
        if not kept.exists():
            _write(kept, json.dumps(result_of(task, work, arguments.rounds), ensure_ascii=False))
        results[task] = json.loads(kept.read_text(encoding="utf-8"))
        one = results[task]
        print(
            f"[{number}/{len(tasks)}] {task}: library {one['library']['any']['mean']:.3f} "
            f"({one['library']['any']['name']}), floor {one['floor']:g}, training "
            f"{one['training']['any']['mean']:.3f}, right {one['training']['any']['right']:.3f}, "
            f"near {one['near']:.2f}, {time.monotonic() - started:.0f} s",
            flush=True,
        )
    if arguments.only:
        results = json.loads(DATA.read_text(encoding="utf-8"))["tasks"] | results
    _write(DATA, _data(results))
    write_page()


def _data(results: Mapping[str, Any]) -> str:
    """One line a task."""
    head = {
        "library": f"reasoning-gym {version('reasoning-gym')}",
        "seeds": SEEDS,
        "entries": COUNTS,
    }
    lines = [
        f"{json.dumps(task)}: {json.dumps(results[task], ensure_ascii=False)}" for task in sorted(results)
    ]
    return json.dumps(head)[:-1] + ',\n"tasks": {\n' + ",\n".join(lines) + "\n}}\n"


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".new")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", metavar="TASK", help="these tasks; the others stay in the data as they are"
    )
    parser.add_argument("--rounds", type=int, default=6, help="rounds of mutation in each search (default 6)")
    parser.add_argument("--work", default="runs/puzzle_constants", help="folder for entries and results")
    parser.add_argument("--page", action="store_true", help="only write docs/puzzle_rewards.md from the data")
    return parser.parse_args()


if __name__ == "__main__":
    main()
