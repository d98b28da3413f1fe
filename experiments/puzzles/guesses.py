"""Answers to puzzles that ignore the question: the candidates of constants.py.

A *constant* is the same text for every entry of a task. A *shaped* answer is a function of the question's text that
adopts its form or copies parts of it, without solving anything: a grid of the same size filled with one symbol, the
input, the first number, everybody a knave. Shaped answers have names, so that a recorded one can be computed again.
"""

from __future__ import annotations

import functools
import itertools
import json
import random
import re
import string
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

Shaped = Callable[[str], str]
"""The question's text -> an answer."""

CONSTANTS = (
    "", " ", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "-1", "12", "15", "24", "60", "100", "120",
    "0.5", "True", "False", "true", "false", "Yes", "No", "yes", "no", "None", "Unknown", "infeasible", "Monday",
    "Wednesday", "Chi", "Peng", "Pass", "[]", "[[]]", "{}", "[\"\"]", "[0]", "[1]", "[[0]]", "()", "{\"0\": 1}",
    "C", "x", "0*x", "1/1", "1/2", "0x0", "0x1", "0.0 + 0.0i", "(0, 0)", "90°", "45°", "A1", "C3", "E5", "A → B",
    "A", "B → A", "A=1,B=2,C=3", "P ∨ ¬P", "P → P", "P", "¬P", "P ∧ ¬P", "P ∨ Q", "00:00", "00:00:00", "0 days",
    "0 days, 00:00", "A+1", "A+1 A+1 A+1 A+1", "A+4", "U", "R", "U U U U", "LRUD", "UDLR", "right", "down",
    "right down", "fill A", "[\"fill A\"]", "[\"fill A\", \"pour A->B\"]", "0 0 0 0 0 0", "0 0 0 0 0 0 0 0 0",
    "the", "the the the the the", "a", "aa", "e" * 20, " " * 30, "1 2 3", "2 × 2", "2 × 3", "0123456789",
    "1234567890", "TrueFalse", "FalseTrue", "YesNo", "10 11 12", "0 1 2 3 4 5 6 7 8 9", "1.0", "1e0", "0.0",
    "nan", "inf", "1e5", "Move disk 1 from Peg 1 to Peg 2", "Move disk 1 from Peg 1 to Peg 3", "$\\frac{1}{2}$",
    "1/3", "01 12 10 21", "{\"result\": 0}", "{\"result\": []}", "{\"result\": null}", "{\"result\": true}",
    "{\"\": 0}", "0,0", "mother", "brother", "sister", "father", "grandmother", "white", "red", "blue",
)  # fmt: skip


def walks() -> Iterator[str]:
    """Yields long random sequences of moves, for puzzles that ignore impossible moves."""
    stream = random.Random(0)
    for length in (20, 60, 200, 1000):
        yield "".join(stream.choices("LRUD", k=length))
        yield " ".join(stream.choices(("U", "U'", "R", "R'", "F", "F'", "L", "B", "D"), k=length))
        yield " → ".join(stream.choices("ABC", k=length // 4))
        yield " ".join(
            f"{car}{stream.choice('+-')}{stream.choice('124')}"
            for car in stream.choices("ABCDEFGHIJKLM", k=length)
        )
        moves = [f"{act} {jug}" for act in ("fill", "empty") for jug in "ABC"]
        moves += [f"pour {start}->{end}" for start in "ABC" for end in "ABC" if start != end]
        yield json.dumps(stream.choices(moves, k=length // 4))


# ------------------------------------------------------------------------------- parts of a question
def _lines(question: str) -> list[str]:
    return [line.strip() for line in question.splitlines() if line.strip()]


_NUMBER = r"-?\d+(?:\.\d+)?"
_NAME = r"(?<=[a-z,] )[A-Z]\w+"
_LIST = r"\[[^\[\]]*\]"


def _numbers(question: str) -> list[str]:
    return re.findall(_NUMBER, question)


def _grids(question: str) -> list[list[list[str]]]:
    """Returns the question's grids in their order: blocks of lines of symbols, and JSON grids of digits."""
    grids = []
    for block in re.split(r"\n\s*\n|:[ \t]*\n|\n(?=[A-Z][a-z]+)|```\w*", question):
        rows = [re.findall(r"[^\s\[\],]+", line) for line in block.splitlines() if line.strip()]
        run: list[list[str]] = []
        for row in [*rows, []]:
            is_row = len(row) > 0 and all(len(cell) <= 2 for cell in row)
            if is_row and (not run or len(row) == len(run[0])):
                run.append(row)
            else:
                if len(run) > 1:
                    grids.append(run)
                run = [row] if is_row else []
    return grids


def _last_grid(question: str) -> list[list[str]]:
    grids = _grids(question)
    return grids[-1] if grids else []


def _spaced(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(" ".join(row) for row in rows)


def _json_rows(rows: Sequence[Sequence[str]]) -> str:
    return "[" + ",".join("[" + ",".join(row) + "]" for row in rows) + "]"


def _tail(question: str) -> str:
    """Returns the text after the last colon."""
    return question.rpartition(":")[2].strip()


# ------------------------------------------------------------------------------- shaped answers
def _filled(symbol: str, write: Callable[[Sequence[Sequence[str]]], str]) -> Shaped:
    return lambda question: write([[symbol] * len(row) for row in _last_grid(question)])


def _blanks(symbol: str) -> Shaped:
    """Returns the answer that fills the blanks of the question's last block and keeps its spacing."""
    return lambda question: _last_block(question).replace("_", symbol)


def _last_block(question: str) -> str:
    blocks = [block for block in re.split(r"\n\s*\n|:[ \t]*\n", question) if "_" in block]
    lines = blocks[-1].splitlines() if blocks else []
    return "\n".join(line for line in lines if "_" in line or re.fullmatch(r"[\d\s_]+", line))


def _whole_puzzle(question: str) -> str:
    """Returns the lines from the first to the last one with a blank, including lines of constraints between them."""
    lines = question.splitlines()
    indices = [
        index
        for index, line in enumerate(lines)
        if re.search(r"(^|\s)_(\s|$)", line) and len(line.split()) > 2
    ]
    return "\n".join(lines[indices[0] : indices[-1] + 1]) if indices else ""


def _row_fill(question: str) -> str:
    """Fills every blank with the next number that its row lacks."""
    rows = []
    for line in _last_block(question).splitlines():
        cells = line.split()
        missing = iter(str(n) for n in range(1, len(cells) + 1) if str(n) not in cells)
        rows.append([next(missing, "1") if cell == "_" else cell for cell in cells])
    return _spaced(rows)


def _roles(mask: Sequence[int]) -> Shaped:
    """Returns the answer that assigns roles by the position in the list of names, whatever was said."""

    def answer(question: str) -> str:
        text = re.search(r'answer like: "([^"]*)"', question)
        places = itertools.cycle(mask)
        return re.sub(r"(\w+)/(\w+)", lambda pair: pair[1 + next(places)], text[1]) if text else ""

    return answer


def _colours(step: int) -> Shaped:
    def answer(question: str) -> str:
        text = re.search(r"Vertices: \[([^\]]*)\]", question)
        vertices = text[1].split(", ") if text else []
        return json.dumps({vertex: step * place % 3 + 1 for place, vertex in enumerate(vertices)})

    return answer


def _secret(symbol: str) -> Shaped:
    """Returns the answer that repeats a symbol for every letter that the emoji hides."""

    def answer(question: str) -> str:
        hidden = sum(0xFE00 <= ord(char) <= 0xFE0F or 0xE0100 <= ord(char) <= 0xE01EF for char in question)
        return (symbol * hidden)[:hidden]

    return answer


def _ladder(order: Callable[[int], Sequence[int]]) -> Shaped:
    """Returns the answer that turns the first word into the second letter by letter, through words or not."""

    def answer(question: str) -> str:
        words = re.findall(r"'([A-Z]+)'", question)
        if len(words) < 2:
            return ""
        now, steps = list(words[0]), [words[0]]
        for place in order(len(now)):
            if place < len(words[1]) and now[place] != words[1][place]:
                now[place] = words[1][place]
                steps.append("".join(now))
        return ",".join(steps)

    return answer


def _premise(place: int, form: str = "{}") -> Shaped:
    def answer(question: str) -> str:
        premises = re.findall(r"^\.?\d+\. (.*)$", question, re.MULTILINE)
        return form.format(premises[place]) if premises else ""

    return answer


def _digits_of_letters(question: str) -> str:
    letters = sorted(
        set(re.findall(r"[A-Z]", "\n".join(re.findall(r"^[+ ]*[A-Z]+$", question, re.MULTILINE))))
    )
    return ",".join(f"{letter}={digit}" for letter, digit in zip(letters, "1234567890", strict=False))


def _reversed_list(question: str) -> str:
    items = re.findall(_LIST, question)[-1][1:-1]
    return "[" + ", ".join(re.split(r",\s*", items)[::-1]) + "]"


def _plus_all(question: str) -> str:
    return "+".join(_numbers(question)[1:7])


def _match(pattern: str, place: int) -> Shaped:
    """Returns the answer that copies the match of a pattern at a place, counted from the end if it is negative."""

    def answer(question: str) -> str:
        found = re.findall(pattern, question)
        return found[place] if -len(found) <= place < len(found) else ""

    return answer


def _colour(place: int) -> Shaped:
    def answer(question: str) -> str:
        words = re.findall(r"- an? (\w+) ", question)
        return words[place % len(words)] if words else ""

    return answer


def _most(pick: Callable[..., str]) -> Shaped:
    return lambda question: pick(found, key=float) if (found := _numbers(question)) else ""


def _shaped() -> Iterator[tuple[str, Shaped]]:
    yield "the question copied", lambda question: question.strip()
    yield "the text behind the last colon", _tail
    yield "its lower case", lambda question: _tail(question).lower()
    yield "its upper case", lambda question: _tail(question).upper()
    yield "the last line", lambda question: _lines(question)[-1]
    yield "the line before the last", lambda question: _lines(question)[-2]
    yield "the last word", _match(r"\w+", -1)
    yield "the first name", _match(_NAME, 0)
    yield "the last name", _match(_NAME, -1)
    for word in range(6):
        yield f"colour {word}", _colour(word)
    for place, name in enumerate(("first", "second", "third")):
        yield f"the {name} number", _match(_NUMBER, place)
    yield "the last number", _match(_NUMBER, -1)
    yield "the number before the last", _match(_NUMBER, -2)
    yield "the largest number", _most(max)
    yield "the smallest number", _most(min)
    yield (
        "as many nan as there are numbers",
        lambda q: json.dumps(["nan"] * len(_numbers(_tail(q.partition("\n")[0])))),
    )
    yield "how many numbers there are", lambda question: str(len(_numbers(question)))
    yield "the first fraction", _match(r"\S*\\d?frac\{\d+\}\{\d+\}\S*|\d+/\d+", 0)
    yield "the first list", _match(_LIST, 0)
    yield "the last list", _match(_LIST, -1)
    yield "the last list reversed", _reversed_list
    yield "the last outputs", _match(r"(?m)^Output.*: (.*)$", -1)
    yield "the last JSON object", _match(r"\{[^{}]*\}", -1)
    yield (
        "each word its own group",
        lambda q: json.dumps([[w] for w in re.findall(r'"(\w+)"', q.rpartition("[")[2])]),
    )
    yield "each letter by itself", lambda question: json.dumps([list(_tail(question))])
    yield (
        "the letters behind the colon joined",
        lambda question: "".join(re.findall(r"\b\w\b", _tail(question))),
    )
    yield "the grid copied", lambda question: _spaced(_last_grid(question))
    yield "the grid copied as JSON", lambda question: _json_rows(_last_grid(question))
    yield "the grid's rows reversed", lambda question: _spaced(_last_grid(question)[::-1])
    yield "the grid's columns reversed", lambda question: _spaced([row[::-1] for row in _last_grid(question)])
    yield (
        "the grid in one line",
        lambda question: " ".join(itertools.chain.from_iterable(_last_grid(question))),
    )
    yield (
        "the first output grid",
        lambda question: _spaced(grids[1]) if len(grids := _grids(question)) > 1 else "",
    )
    for symbol in (*string.digits, "5.0", "4.5", "7.0"):
        yield f"a grid of {symbol}", _filled(symbol, _spaced)
        yield f"a JSON grid of {symbol}", _filled(symbol, _json_rows)
        yield f"blanks filled with {symbol}", _blanks(symbol)
        yield (
            f"the puzzle with blanks filled with {symbol}",
            lambda q, s=symbol: _whole_puzzle(q).replace("_", s),
        )  # type: ignore[misc]
    yield "blanks filled with what the row lacks", _row_fill
    yield "the blanks with queens", _blanks("Q")
    for mask in ((0,), (1,), (0, 1), (1, 0), (0, 0, 1), (1, 1, 0)):
        yield f"roles {mask}", _roles(mask)
    for step in (0, 1, 2):
        yield f"colours by vertex, step {step}", _colours(step)
    for symbol in ("e", " ", "the ", "t", "a "):
        yield f"as many of {symbol!r} as are hidden", _secret(symbol)
    yield "a ladder from the left", _ladder(range)
    yield "a ladder from the right", _ladder(lambda size: range(size - 1, -1, -1))
    yield "a ladder, vowels' places first", _ladder(lambda size: [1, 2, 0, 3, *range(4, size)])
    for place, form in ((0, "{}"), (-1, "{}"), (0, "({0}) ∧ ({0})"), (0, "¬(¬({}))"), (-1, "({}) ∨ P")):
        yield f"premise {place} as {form}", _premise(place, form)
    yield (
        "the premises joined",
        lambda question: " ∧ ".join(
            f"({premise})" for premise in re.findall(r"^\.?\d+\. (.*)$", question, re.MULTILINE)
        ),
    )
    yield "digits in the letters' order", _digits_of_letters
    yield "the numbers added", _plus_all


SHAPED: Mapping[str, Shaped] = dict(_shaped())


def safely(shaped: Shaped, question: str) -> str:
    """Returns the answer, or "" if the question lacks the parts that it is made of."""
    try:
        return shaped(question)
    except (ValueError, IndexError, KeyError, StopIteration):
        return ""


# ------------------------------------------------------------------------------- a constant for each form
@functools.lru_cache(maxsize=100_000)
def form(question: str) -> str:
    """Returns the form of a question, by which its task's questions are grouped: its end, without numbers."""
    return re.sub(r"[\d.\-]+", "#", question.strip().splitlines()[-1])[-24:]


# ------------------------------------------------------------------------------- drawn from gold answers
def majorities(golds: Sequence[str]) -> Iterator[str]:
    """Yields the most common symbol at each position among answers of one length, for the most common lengths, by
    characters and by words; likewise for grids of one shape."""
    for split, join in ((list, ""), (str.split, " ")):
        by_length: dict[int, list[list[str]]] = defaultdict(list)
        for gold in golds:
            by_length[len(split(gold))].append(split(gold))
        for _, group in sorted(by_length.items(), key=lambda item: -len(item[1]))[:5]:
            yield join.join(Counter(column).most_common(1)[0][0] for column in zip(*group, strict=True))
    by_shape: dict[tuple[int, ...], list[list[list[str]]]] = defaultdict(list)
    for gold in golds:
        rows = [line.split() for line in gold.splitlines()]
        by_shape[tuple(map(len, rows))].append(rows)
    for _, boards in sorted(by_shape.items(), key=lambda item: -len(item[1]))[:5]:
        columns = [list(zip(*lines, strict=True)) for lines in zip(*boards, strict=True)]
        yield "\n".join(" ".join(Counter(cell).most_common(1)[0][0] for cell in row) for row in columns)


def numbers_between(golds: Sequence[str]) -> Iterator[str]:
    """Yields quantiles and the mean of answers that are numbers, also rounded."""
    values = sorted(float(gold) for gold in golds if re.fullmatch(r"-?\d+(\.\d+)?", gold))
    if not values or len(values) < len(golds) / 10:
        return
    for share in (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9):
        middle = values[int(share * len(values))]
        yield str(round(middle))
        yield f"{middle:.4g}"
    yield str(round(sum(values) / len(values)))


def mutated(answer: str, others: Sequence[str], stream: random.Random) -> str:
    """Returns an answer with a random change: a character, number, word or line is changed, dropped, repeated or moved,
    or a part is taken from another answer."""
    kind = stream.randrange(8)
    tokens = re.findall(r"\s+|[^\s,]+|,", answer) or [""]
    place = stream.randrange(len(tokens))
    if kind == 0 and answer:
        at = stream.randrange(len(answer))
        alphabet = sorted(set("".join(others[:50]))) or list(string.digits)
        return answer[:at] + stream.choice(alphabet) + answer[at + 1 :]
    if kind == 1 and (numbers := list(re.finditer(r"\d+", answer))):
        number = stream.choice(numbers)
        value = max(0, int(number[0]) + stream.choice((-10, -5, -2, -1, 1, 2, 5, 10)))
        return answer[: number.start()] + str(value).zfill(len(number[0])) + answer[number.end() :]
    if kind == 2:
        return "".join(tokens[:place] + tokens[place + 1 :])
    if kind == 3:
        return "".join([*tokens[: place + 1], *tokens[place:]])
    if kind == 4:
        other = stream.randrange(len(tokens))
        tokens[place], tokens[other] = tokens[other], tokens[place]
        return "".join(tokens)
    other = stream.choice(others) if others else ""
    if kind == 5:
        cut = stream.randrange(len(answer) + 1)
        return answer[:cut] + other[cut:]
    if kind == 6:
        return f"{answer}{stream.choice(('', ' ', ', ', chr(10)))}{other}"
    lines = answer.splitlines() or [""]
    lines[stream.randrange(len(lines))] = stream.choice(other.splitlines() or [""])
    return "\n".join(lines)


# ------------------------------------------------------------------------------- nearly right answers
def near_misses(gold: str, stream: random.Random) -> dict[str, str]:
    """Returns kind of mistake -> an answer that is nearly right: one wrong letter or digit, two words swapped, or a
    detour."""
    made = {}
    letters = [place for place, char in enumerate(gold) if char.isalnum()]
    if letters:
        place = stream.choice(letters)
        pool = string.digits if gold[place].isdigit() else string.ascii_letters
        made["a letter off"] = gold[:place] + stream.choice(pool.replace(gold[place], "")) + gold[place + 1 :]
    words = list(re.finditer(r"[^\s,\[\]\"]+", gold))
    if len(words) > 2:
        first, second = sorted(stream.sample(words, 2), key=lambda match: match.start())
        made["two words swapped"] = (
            gold[: first.start()]
            + second[0]
            + gold[first.end() : second.start()]
            + first[0]
            + gold[second.end() :]
        )
    back = {"right": "left", "left": "right", "up": "down", "down": "up"}
    if gold.split() and gold.split()[0] in back:
        made["a detour"] = f"{gold.split()[0]} {back[gold.split()[0]]} {gold}"
    if move := re.match(r"Move disk (\d+) from Peg (\d+) to Peg (\d+)", gold):
        disk, start, end = move.groups()
        made["a detour"] = f"{move[0]}\nMove disk {disk} from Peg {end} to Peg {start}\n{gold}"
    return {kind: answer for kind, answer in made.items() if answer != gold}
