"""Whole runs with reward functions on the real engines: on two ranks, without a reward service, and with a failing
function."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.training.tiny import TIMEOUT_S, Case, make_case, steps, timeless

pytestmark = pytest.mark.slow

SOURCE = '''
def score(responses, messages, **columns):
    """How many different letters of the prompt are in the response."""
    wanted = [set("".join(m["content"] for m in row)) & set("aehinorstu") for row in messages]
    return [float(len(letters & set(response))) for letters, response in zip(wanted, responses)]


async def brief(final_texts):
    return [-len(answer or "") / 100 for answer in final_texts]
'''


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("own_reward")
    (folder / "mine.py").write_text(SOURCE)
    return make_case(folder, "http://127.0.0.1:9")  # where nobody answers


def functions(case: Case) -> list[str]:
    return [
        f"reward.function=[{case.folder}/mine.py:score,{case.folder}/mine.py:brief]",
        "reward.weights.brief=0.5",
    ]


def test_two_ranks_train_on_functions_alone_and_repeat_themselves(case: Case) -> None:
    for name in ("once", "again"):
        case.train_forked(name, *functions(case), num_ranks=2)
    once, again = steps(case.run_dir("once")), steps(case.run_dir("again"))
    assert len(once) == 2
    assert [timeless(record) for record in once] == [timeless(record) for record in again]
    for record in once:
        mean = record["reward/part_score"] + 0.5 * record["reward/part_brief"]
        assert record["reward/mean"] == pytest.approx(mean)
        assert record["dynamic_sampling/num_failed_rollouts"] == 0
    last = once[-1]
    expected = last["validation/part_score"] + 0.5 * last["validation/part_brief"]
    assert last["validation/score"] == pytest.approx(expected)
    sample = json.loads(next(case.run_dir("once").glob("samples/*.jsonl")).read_text().splitlines()[0])
    assert sample["score"] == pytest.approx(sample["parts"]["score"] + 0.5 * sample["parts"]["brief"])
    assert (case.run_dir("once") / "reward_function.score.rank1.log").exists(), (
        "each rank that samples has its own"
    )


def test_a_failing_function_stops_the_run_with_a_sentence(case: Case, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def score(responses):\n    return [float(r.index('\\0')) for r in responses]\n")
    process = case.start("failing", f"reward.function={file}:score")
    process.join(TIMEOUT_S)
    assert process.exitcode == 1
    said = (case.folder / "failing.txt").read_text().splitlines()
    (sentence,) = [line for line in said if line.startswith("error: ")]
    assert sentence.startswith("error: grading failed on 8 of 8 rollouts")
    assert "the reward function score raised ValueError: substring not found (mine.py, line 2)" in sentence
    log = case.run_dir("failing") / "reward_function.score.log"
    assert str(log) in sentence
    assert "r.index" in log.read_text()
