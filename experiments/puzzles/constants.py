"""Measures what answers earn that ignore the question, for each of the paper's 96 puzzles, and sets the scores above
which training rewards an answer.

    .venv/bin/python experiments/puzzles/constants.py  # all tasks; about an hour on one core
    .venv/bin/python experiments/puzzles/constants.py --only sudoku game_of_life --rounds 40
    .venv/bin/python experiments/puzzles/constants.py --page  # README.md from the data

For each task, on entries of the default configuration, as in the trainer's data:

1. Search for the best constant answer and the best shaped one (guesses.py) by the library's score with our
   corrections: generic constants, gold answers of other entries, their majorities, and mutations of the best of these.
2. Find the lowest floor (reward.graders.puzzle) with which such an answer earns at most MAX_LEFT more than the
   share of entries on which it is simply right. Only right answers are rewarded (floor 1) if the floor would be above
   the highest of FLOORS, or if nearly right answers would earn less than MIN_NEAR.
3. Search again, by the reward in training with this floor.

Candidates are drawn from entries of one seed, chosen on those of a second and measured on those of a third. The same
seeds give the same result. Each task's result is kept in the folder --work, so that an interrupted search continues.
The results of all tasks become reward/data/puzzle_constants.json, from which the service reads the floors.
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

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from experiments.puzzles.guesses import (  # noqa: E402
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
from experiments.puzzles.page import DATA, write_page  # noqa: E402
from reward.graders import grade  # noqa: E402
from reward.graders.puzzle import paper_tasks, scorer  # noqa: E402
from reward.graders.puzzle import training_credit  # noqa: E402

SEEDS = {"candidates": 71, "choice": 72, "measure": 73}
COUNTS = {"candidates": 80, "choice": 120, "measure": 200}
FEW = {
    "knight_swap": 0.2, "futoshiki": 0.5, "codeio": 0.25, "arc_agi": 0.25, "intermediate_integration": 0.25,
    "simple_integration": 0.25, "zebra_puzzles": 0.2, "polynomial_multiplication": 0.1, "countdown": 0.25,
}  # fmt: skip
"""Task whose entries take long to make or to grade -> the fraction of COUNTS that it gets."""
FIRST_LOOK = 16
"""Entries on which all candidates are tried; only the best KEPT are tried on all entries of the choice."""
KEPT = 40
MUTANTS = 24
"""Mutations per round."""
MAX_LEFT, MIN_NEAR = 0.01, 0.2
FLOORS = [step / 20 for step in range(11)]
LIMIT_S = 2.0
"""CPU time limit for grading one answer; a longer one earns 0, as in the service."""
BY_FORM = "a constant for each form of question"


@dataclass(frozen=True, slots=True)
class Guess:
    """A constant, a shaped answer, or a constant for each form of question."""

    name: str
    answers: Mapping[str, str] = field(default_factory=dict)
    """Form of question -> answer, with "" for all other forms. A constant has only "", a shaped answer nothing."""

    def answer(self, question: str) -> str:
        if not self.answers:
            return safely(SHAPED[self.name], question)
        return self.answers.get(form(question), self.answers[""])

    @property
    def is_constant(self) -> bool:
        return self.name == "constant"


def constant(text: str) -> Guess:
    """Returns the guess that answers every question with `text`."""
    return Guess("constant", {"": text})


# ------------------------------------------------------------------------------------- entries
def entries_of(task: str, part: str, work: Path) -> list[dict[str, Any]]:
    """Returns entries of the default configuration, after JSON, as the service gets them. Keeps them in `work`."""
    count = round(COUNTS[part] * FEW.get(task, 1))
    file = work / "entries" / f"{task}.{part}.{SEEDS[part]}.{count}.json"
    if not file.exists():
        _write(file, json.dumps(list(made(task, SEEDS[part], count))))
    return list(json.loads(file.read_text(encoding="utf-8")))


def made(task: str, seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Yields up to `count` entries with different questions, the same ones for the same seed."""
    import numpy as np
    import reasoning_gym

    dataset = reasoning_gym.create_dataset(task, seed=seed, size=20_000)
    seen: set[str] = set()
    for index in range(20 * count):
        random.seed(f"{task}/{seed}/{index}")
        np.random.seed(random.getrandbits(32))
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                entry = dataset[index]
            text = json.dumps(entry, allow_nan=False)
        except (
            TypeError,
            ValueError,
        ):  # codeio's results may not fit into JSON; the trainer's data lacks them too
            continue
        if entry["question"] not in seen:
            seen.add(entry["question"])
            yield json.loads(text)
        if len(seen) == count:
            return


def gold(entry: Mapping[str, Any]) -> str:
    """Returns the entry's own answer from wherever the task keeps it; "" if there is none."""
    metadata = entry["metadata"]
    found = [entry["answer"], metadata.get("example_answer"), metadata.get("example_correct_answer")]
    if "possible_answer" in metadata:
        found.append(json.dumps(metadata["possible_answer"]))
    return next((answer for answer in found if isinstance(answer, str)), "")


# ------------------------------------------------------------------------------------- scores
class Scores:
    """The library's scores of guesses on entries, each computed once."""

    def __init__(self, task: str, entries: Sequence[dict[str, Any]]) -> None:
        self.task, self.entries = task, entries
        self._known: dict[tuple[str, int], float] = {}
        self._of_guess: dict[tuple[str, tuple[tuple[str, str], ...]], list[float]] = defaultdict(list)
        scorer(task)  # some read large files, which should not count for the time limit of an answer

    def of(self, guess: Guess, count: int | None = None) -> list[float]:
        """Returns the scores of a guess on the first `count` entries."""
        known = self._of_guess[guess.name, tuple(guess.answers.items())]
        for index in range(len(known), len(self.entries[:count])):
            known.append(self.one(guess.answer(self.entries[index]["question"]), index))
        return known[:count]

    def one(self, answer: str, index: int) -> float:
        """Returns the library's score, with our corrections, of an answer to the entry `index`."""
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
    def raise_timeout(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGVTALRM, raise_timeout)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


Reward = Callable[[float], float]
"""The library's score -> the reward."""


def training_reward(floor: float) -> Reward:
    """Returns the reward in training with a floor."""
    return lambda score: training_credit(score, floor)


def mean(values: Sequence[float]) -> float:
    """Returns the mean, or 0 of no values."""
    return sum(values) / max(len(values), 1)


def mean_reward(scores: Sequence[float], reward: Reward) -> float:
    """Returns the mean reward of scores."""
    return mean([reward(score) for score in scores])


def share_right(scores: Sequence[float]) -> float:
    """Returns the share of scores that are 1."""
    return mean([float(score == 1.0) for score in scores])


# ------------------------------------------------------------------------------------- search
def first_guesses(golds: Sequence[str]) -> list[Guess]:
    """Returns the candidates with which the search starts. golds: answers of other entries of the task."""
    texts = dict.fromkeys([*CONSTANTS, *walks(), *golds, *majorities(golds), *numbers_between(golds)])
    return [*map(constant, texts), *map(Guess, SHAPED)]


def best_first(
    guesses: Sequence[Guess], scores: Scores, reward: Reward, count: int | None = None
) -> list[Guess]:
    """Returns the guesses sorted by their mean reward on the first `count` entries, best first."""
    return sorted(guesses, key=lambda guess: -mean_reward(scores.of(guess, count), reward))


def search(guesses: Sequence[Guess], scores: Scores, reward: Reward, rounds: int, seed: str) -> list[Guess]:
    """Returns the best KEPT guesses by mean reward on the entries of the choice, best first, after `rounds` rounds of
    mutating constants. Adds a guess made of the best constant for each form of question."""
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
    """Returns a guess made of the best constant for each form of question that occurs at least five times."""
    by_form: dict[str, list[int]] = defaultdict(list)
    for index, entry in enumerate(scores.entries):
        by_form[form(entry["question"])].append(index)
    texts = list(dict.fromkeys(guess.answers[""] for guess in [*leaders, *guesses] if guess.is_constant))[
        :160
    ]

    def best(indices: Sequence[int]) -> str:
        def mean_on(text: str, some: Sequence[int]) -> float:
            return mean([reward(scores.one(text, index)) for index in some])

        likely = sorted(texts, key=lambda text: -mean_on(text, indices[:6]))[:8]
        return max(likely, key=lambda text: mean_on(text, indices))

    forms = {name: indices for name, indices in by_form.items() if len(indices) >= 5}
    answers = {name: best(indices) for name, indices in forms.items()} if 1 < len(forms) <= 30 else {}
    return Guess(BY_FORM, {**answers, "": leaders[0].answers[""] if leaders else "0"})


# ------------------------------------------------------------------------------------- the floor
def near_rewards(scores: Scores, reward: Reward) -> float:
    """Returns the mean reward of nearly right answers, for the kind of mistake that earns most; 0 without any."""
    stream = random.Random(f"near/{scores.task}")
    rewards_by_kind: dict[str, list[float]] = defaultdict(list)
    for index, entry in enumerate(scores.entries[:40]):
        for kind, answer in near_misses(gold(entry), stream).items():
            score = scores.one(answer, index)
            if score < 1.0:  # some puzzles have many right answers
                rewards_by_kind[kind].append(reward(score))
    return max((mean(values) for values in rewards_by_kind.values() if len(values) >= 10), default=0.0)


def chosen_floor(leaders: Sequence[Guess], scores: Scores, rounds: int) -> float:
    """Returns the lowest of FLOORS with which answers that ignore the question earn little, or 1."""
    pool = list(leaders)
    for floor in FLOORS:
        reward = training_reward(floor)
        if near_rewards(scores, reward) < MIN_NEAR:
            return 1.0
        if _left(pool, scores, reward) <= MAX_LEFT:
            # Other guesses may be better with this reward.
            pool = search(pool, scores, reward, rounds, f"{scores.task}/{floor}")
            if _left(pool, scores, reward) <= MAX_LEFT:
                return floor
    return 1.0


def _left(guesses: Sequence[Guess], scores: Scores, reward: Reward) -> float:
    """Returns what the best guess earns beyond the largest share of entries on which a guess is right."""
    best = max(mean_reward(scores.of(guess), reward) for guess in guesses)
    return best - max(share_right(scores.of(guess)) for guess in guesses)


# ------------------------------------------------------------------------------------- a task
def result_of(task: str, work: Path, rounds: int) -> dict[str, Any]:
    """Returns the task's entry of the data."""
    candidates, choice, measure = (entries_of(task, part, work) for part in COUNTS)
    scores, fresh = Scores(task, choice), Scores(task, measure)
    guesses = first_guesses([answer for entry in candidates if (answer := gold(entry))])
    leaders = search(guesses, scores, float, rounds, f"{task}/library")
    floor = chosen_floor(leaders, scores, rounds)
    adapted = search([*guesses, *leaders], scores, training_reward(floor), rounds, f"{task}/training")
    return {
        "floor": floor,
        "entries": len(measure),
        "rounds": rounds,
        "near": round(near_rewards(scores, training_reward(floor)), 3),
        "library": _record(leaders, fresh, float),
        "training": _record(adapted, fresh, training_reward(floor)),
    }


def _record(leaders: Sequence[Guess], fresh: Scores, reward: Reward) -> dict[str, Any]:
    """Returns the best constant and the best of all guesses, measured on entries other than those of the choice."""
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
    """Searches and writes the data and the page, or only the page."""
    arguments = _arguments()
    if arguments.page:
        write_page()
        return
    if os.environ.get("PYTHONHASHSEED") != "0":  # some generators of puzzles iterate over sets
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    work = Path(arguments.work).resolve()
    tasks = arguments.only or paper_tasks()
    warnings.simplefilter("ignore")  # Python warns when answers are parsed as code
    os.chdir(tempfile.mkdtemp(prefix="puzzle_constants_"))  # codeio's programs write files where they run
    results = {}
    for number, task in enumerate(tasks, 1):
        file = work / "results" / f"{task}.{arguments.rounds}.json"
        started = time.monotonic()
        if not file.exists():
            _write(file, json.dumps(result_of(task, work, arguments.rounds), ensure_ascii=False))
        results[task] = json.loads(file.read_text(encoding="utf-8"))
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
    """Returns the data as JSON with one line per task."""
    head = {"library": f"reasoning-gym {version('reasoning-gym')}", "seeds": SEEDS, "entries": COUNTS}
    lines = [
        f"{json.dumps(task)}: {json.dumps(results[task], ensure_ascii=False)}" for task in sorted(results)
    ]
    return json.dumps(head)[:-1] + ',\n"tasks": {\n' + ",\n".join(lines) + "\n}}\n"


def _write(path: Path, text: str) -> None:
    """Writes a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".new")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", metavar="TASK", help="search these tasks only; others keep their data"
    )
    parser.add_argument("--rounds", type=int, default=6, help="rounds of mutation in each search (default 6)")
    parser.add_argument("--work", default="runs/puzzle_constants", help="folder for entries and results")
    parser.add_argument("--page", action="store_true", help="only write README.md from the data")
    return parser.parse_args()


if __name__ == "__main__":
    main()
