import functools
import json
import random
import sys
from pathlib import Path

import pytest

reasoning_gym = pytest.importorskip("reasoning_gym")

from reasoning_gym.factory import DATASETS  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments.puzzles.guesses import near_misses  # noqa: E402
from reward.graders import grade  # noqa: E402
from reward.graders.grade import InvalidTask  # noqa: E402
from reward.graders.puzzle import EXPRESSION_TASKS, LITERAL_TASKS, paper_tasks  # noqa: E402

NO_ORACLE = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
"""Tasks whose entries carry no answer to test with."""
SLOW_TO_MAKE = {"knight_swap", "futoshiki", "puzzle24"}
TASKS = sorted(set(DATASETS) - {"composite"})


@functools.cache
def _made(name: str, seed: int) -> str:
    return json.dumps(reasoning_gym.create_dataset(name, size=1, seed=seed)[0], default=str)


def entry_of(name: str, seed: int = 11) -> dict[str, object]:
    """Returns an entry as the service receives it: after JSON."""
    return json.loads(_made(name, seed))


def score(name: str, entry: dict[str, object], answer: str, **options: object) -> float:
    return grade(
        "logic", f"<think>so</think><answer>{answer}</answer>", {"task": name, "entry": entry, **options}
    ).score


@pytest.mark.medium
@pytest.mark.parametrize("name", sorted(set(TASKS) - NO_ORACLE - SLOW_TO_MAKE))
def test_the_right_answer_scores_1_and_garbage_or_more_than_it_does_not(name: str) -> None:
    entry = entry_of(name)
    assert score(name, entry, str(entry["answer"])) == 1.0
    assert score(name, entry, "zzz") == 0.0
    assert score(name, entry, "zzz", credit="corrected") <= 0.05
    for around in ("{} zzz", "zzz {}", "{} or 7", "It is not true that {}", "{}\nzzz", "# {}"):
        assert score(name, entry, around.format(entry["answer"]), credit="corrected") < 1, around
    assert grade("logic", "no tags", {"task": name, "entry": entry}).verdict == "no_answer"


AROUND = (
    *(
        "**{}**",
        "__{}__",
        "`{}`",
        "```\n{}\n```",
        "```text\n{}\n```",
        "${}$",
        "$${}$$",
        r"\({}\)",
        "\\[\n{}\n\\]",
    ),
    *(
        '"{}"',
        "“{}”",
        r"\boxed{{{}}}",
        r"\text{{{}}}",
        "<b>{}</b>",
        "\n{}  \n",
        "{}.",
        "Answer: {}",
        "The final answer is {}",
    ),
)
NUM_LAYERS = 3


@pytest.mark.medium
@pytest.mark.parametrize("name", sorted(set(TASKS) - NO_ORACLE - SLOW_TO_MAKE))
def test_typography_around_an_answer_changes_nothing(name: str) -> None:
    stream, entry = random.Random(name), entry_of(name)
    right = str(entry["answer"])
    wrong = [answer for answer in near_misses(right, stream).values() if score(name, entry, answer) < 1]
    for _ in range(6):
        layers = stream.choices(AROUND, k=stream.randint(1, NUM_LAYERS))
        for answer in [right, *wrong]:
            text = functools.reduce(lambda inner, layer: layer.format(inner), layers, answer)
            assert (score(name, entry, text) == 1) is (answer == right), text


@pytest.mark.medium
@pytest.mark.parametrize("name", sorted(NO_ORACLE))
@pytest.mark.parametrize("answer", ["None", "none", "null", "**None**", "0", "zzz"])
def test_an_entry_without_an_answer_has_none_that_is_the_same(name: str, answer: str) -> None:
    entry = entry_of(name) | {"answer": None}
    assert score(name, entry, answer) == 0.0


PAYLOADS = ("__import__('os').getcwd()", "[print('PWNED')]", "(lambda: 0).__class__", "[x for x in 'PWNED']")


@pytest.mark.parametrize("name", TASKS)
def test_no_scorer_executes_what_a_model_wrote(name: str) -> None:
    executed: list[str] = []
    _HOOK.append(executed)
    entry = (
        entry_of(name)
        if name not in SLOW_TO_MAKE | NO_ORACLE
        else {"answer": "1", "metadata": {"numbers": [1], "target": 1}}
    )
    try:
        for payload in PAYLOADS:
            grade("logic", f"<answer>{payload}</answer>", {"task": name, "entry": entry})
    finally:
        _HOOK.pop()
    assert not [
        one for one in executed if any(sign in one for sign in ("PWNED", "__import__", "(lambda: 0)"))
    ]


_HOOK: list[list[str]] = []


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if _HOOK and event == "compile":
        source = arguments[0]
        text = source.decode(errors="replace") if isinstance(source, bytes) else str(source)
        if arguments[1] in ("<string>", None):
            _HOOK[-1].append(text)
    if _HOOK and event == "os.system":
        _HOOK[-1].append("PWNED os.system")


sys.addaudithook(_audit)


@pytest.mark.parametrize("name", sorted(LITERAL_TASKS | EXPRESSION_TASKS))
@pytest.mark.parametrize(
    "answer",
    [
        "9**9**9**9",
        "[0]*10**10",
        "open('/etc/passwd').read()",
        "().__class__",
        "getattr(getattr(chr,chr(95)+chr(95)),chr(101))(chr(49))",
    ],
)
def test_hostile_answers_are_refused_before_the_scorer(name: str, answer: str) -> None:
    entry = {"answer": "1", "metadata": {}}
    result = grade("logic", f"<answer>{answer}</answer>", {"task": name, "entry": entry})
    assert (result.score, result.verdict) == (0.0, "refused_answer")


def test_the_paper_names_96_tasks_without_its_out_of_distribution_ones() -> None:
    tasks = paper_tasks()
    assert len(tasks) == len(set(tasks)) == 96
    assert not {"acre", "boxnet", "game_of_life_halting", "composite"} & set(tasks)
    assert set(tasks) - {"palindrome"} <= set(DATASETS)


@pytest.mark.parametrize(
    "task",
    [
        {},
        {"task": "no_such_task", "entry": {"answer": "1"}},
        {"task": "composite", "entry": {"answer": "1"}},
        {"task": "chain_sum"},
        {"task": "chain_sum", "entry": {}},
        {"task": "chain_sum", "entry": {"answer": "1", "metadata": 3}},
        {"task": ["chain_sum"], "entry": {"answer": "1"}},
        {"task": "chain_sum", "entry": {"answer": "1"}, "credit": "none"},
        {"task": "chain_sum", "entry": {"answer": "1"}, "credit": None},
        {"task": "chain_sum", "entry": {"answer": "1"}, "credit": ["training"]},
    ],
)
def test_unknown_tasks_and_broken_entries_are_invalid_never_a_pass(task: dict[str, object]) -> None:
    with pytest.raises(InvalidTask):
        grade("logic", "<answer>1</answer>", task)


def test_a_scorer_that_raises_gives_0() -> None:
    entry = {"answer": "2 × 3", "metadata": {"factors": [2, 3]}}
    assert grade("logic", "<answer>two</answer>", {"task": "prime_factorization", "entry": entry}).score == 0
