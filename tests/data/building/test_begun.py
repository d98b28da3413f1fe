"""Tests of `data build begun`: which recorded answers become rows, where they are cut, and what a run has to have
recorded. The oracle reads the records with pyarrow and json alone."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from nemo_prorl import __main__ as cli
from nemo_prorl.config import BegunConfig, ConfigError
from nemo_prorl.config.sections.data import Prefixes
from nemo_prorl.data.building.begun import beginning, build
from nemo_prorl.data.mix import render
from nemo_prorl.data.rows import Row, RowFile, write_rows
from nemo_prorl.run_folder.records import write_rollouts
from nemo_prorl.run_folder.storage import step_files
from nemo_prorl.types import Finish, Prompt, Rollout
from reward.protocol import GradeStatus, ScoreResult
from tests.data.conftest import CharacterTokenizer, make_row

RIGHT, WRONG = (1.0, 1.5), (0.0, 0.99)
WORKING = "First, we add {0}.\nThen we take {0} away. So\nthe rest is {0}.\nIt is \\boxed{{{0}}}."


def recorded(
    uid: str, sibling: int, score: float | None, text: str, *, begun: str = "", finish: Finish = Finish.stop
) -> tuple[str, Rollout, ScoreResult]:
    prompt = Prompt(uid=uid, domain="math", source="s", text="?", token_ids=(7,), task={}, begun=begun)
    rollout = Rollout(
        prompt=prompt,
        sibling=sibling,
        token_ids=[5, 6],  # type: ignore[arg-type]
        sampler_logprobs=[-0.5, -0.5],  # type: ignore[arg-type]
        text=text,
        finish=finish,
        policy_version=0,
    )
    status = GradeStatus.infra_error if score is None else GradeStatus.graded
    return "id", rollout, ScoreResult(request_id="id", status=status, score=score, verdict="")


def group(uid: str, scores: Sequence[float | None], **changes: Any) -> list[tuple[str, Rollout, ScoreResult]]:
    """Returns an answer of its own for each score."""
    texts = (WORKING.format(f"{uid} {sibling}") for sibling in range(len(scores)))
    return [
        recorded(uid, sibling, score, text, **changes)
        for sibling, (score, text) in enumerate(zip(scores, texts, strict=True))
    ]


class Recording:
    """The folder of a run: its stages with their files of problems, and records of steps."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data, self.out = folder / "run", folder / "problems", folder / "data"
        self.data.mkdir()

    def stage(self, name: str, train: Sequence[Row], held_out: Sequence[Row] = ()) -> None:
        files = {part: self.data / f"{name}-{part}.parquet" for part in ("train", "held_out")}
        write_rows(files["train"], [*train])
        write_rows(files["held_out"], [*held_out, make_row(f"{name}/held", "An unrelated problem?")])
        data = {"train": {str(files["train"]): 1.0}, "validation": [str(files["held_out"])]}
        path = self.folder / "stages" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump({"defaults": ["run_config", "_self_"], "data": data}))

    def step(self, step: int, *groups: Sequence[tuple[str, Rollout, ScoreResult]], rank: int = 0) -> None:
        write_rollouts(self.folder, step, rank, [one for members in groups for one in members])

    def build(self, prefixes: str = "failures", **options: Any) -> dict[str, Any]:
        given = {"run": str(self.folder), "out": str(self.out), **options}
        return build(BegunConfig(prefixes=Prefixes[prefixes], **given))

    def rows(self, prefixes: str = "failures") -> list[Row]:
        return list(RowFile(self.out / f"begun_{prefixes}" / "train.parquet", with_extra=True))


@pytest.fixture
def run(tmp_path: Path) -> Recording:
    return Recording(tmp_path)


def question_of(row: Row) -> str:
    return row.messages[0]["content"]


@pytest.mark.parametrize(
    ("text", "share", "begun"),
    [
        ("One.\nTwo.\nThree.\nFour.\n", 0.5, "One.\nTwo.\n"),
        ("One.\nTwo.\nThree.\nFour.\n", 0.01, "One.\n"),
        ("One.\nTwo.\nThree.\nFour.\n", 0.99, "One.\nTwo.\nThree.\n"),  # something is left
        ("<think>\nWe add.\nWe stop.\n</think>\nLine.\nLine.\nLine.", 0.5, "<think>\nWe add.\n"),
        ("We add. It is \\boxed{4}. Really. It is. \\boxed{4}", 0.99, "We add."),
        ("Put it in \\boxed{}. We add. So \\boxed{4}", 0.99, "Put it in \\boxed{}. We add."),
        ("We add.\n<answer>4</answer>\nIt is 4.\n", 0.9, ""),  # a sentence that is all of the working
        ("A line\n\n\nand more of it", 0.5, "A line\n\n\n"),
        ("\n\nA line\nand more of it", 0.01, "\n\nA line\n"),
        ("They are 3.14 and e.g. 2.7.", 0.9, "They are 3.14 and e.g."),
        ("先加一。再加二。得三", 0.7, "先加一。再加二。"),
        ("先加一。再加二。", 0.99, "先加一。"),
        ("<think>2*4+1*4,8+4,12</think><answer>12</answer>", 0.5, "<think>2*4+1*4,"),
        ("No end at all", 0.5, ""),
        ("", 0.5, ""),
        ("</think>\nIt is 4.\nIt is.", 0.5, ""),
        ("<think>\nWe add and that is all.\nSo", 0.01, "<think>\nWe add and that is all.\n"),
    ],
)
def test_an_answer_is_cut_where_a_line_or_sentence_of_its_working_ends(
    text: str, share: float, begun: str
) -> None:
    assert beginning(text, share) == begun


def test_what_was_begun_stays_and_the_share_is_of_what_follows() -> None:
    begun = "A.\nB.\nC.\nD.\n"
    assert beginning(f"{begun}E.\nF.\nG.\n\\boxed{{4}}", 0.5, begun) in (f"{begun}E.\n", f"{begun}E.\nF.\n")
    assert beginning(f"{begun}No end", 0.5, begun) == ""
    assert beginning("It is \\boxed{3}, no.\nWe add.\nSo \\boxed{4}", 0.5, "It is \\boxed{3}, no.\n") == (
        "It is \\boxed{3}, no.\nWe add.\n"
    )


def test_an_answer_begins_a_row_where_half_of_those_that_begin_so_end_like_it() -> None:
    text = "A.\nB.\nC.\nD.\nE.\n"
    own, near, far = (True, text), (False, "A.\nX.\n"), (False, "A.\nB.\nC.\nX.\n")
    assert beginning(text, 0.01, "", [own, near]) == "A.\n"
    assert beginning(text, 0.01, "", [own, near, far]) == "A.\nB.\n"
    assert beginning(text, 0.01, "", [own, far, far]) == "A.\nB.\nC.\nD.\n"
    assert beginning(text, 0.01, "", [own, (True, "A.\nB.\nX"), far, far]) == "A.\n"
    assert beginning(text, 0.01, "", [own, *[(False, f"{text}So")] * 2]) == ""


@pytest.mark.parametrize("prefixes", ["failures", "successes"])
def test_rows_are_those_that_a_script_finds_in_the_records(run: Recording, prefixes: str) -> None:
    """Rates over all steps and ranks; ungraded answers count for nothing; scores of 1 and above are right."""
    problems = [make_row(f"p/{index}", f"Problem {index}?", split=f"part{index}") for index in range(7)]
    run.stage("main", problems)
    many_right, many_wrong = [RIGHT[0]] * 3 + [WRONG[1]], [WRONG[0]] * 3 + [RIGHT[1]]
    run.step(3, group("p/0#0", many_right), group("p/1#0", many_wrong), group("p/2#0", [1, 1, 0, 0]))
    run.step(3, group("p/3#0", [1.0] * 4), group("p/4#0", [0.0] * 4), rank=1)
    run.step(9, group("p/0#1", [None, *many_right]), group("p/5#0", [None, 1, 0]))
    run.step(9, group("p/1#1", [*many_wrong, None]), group("p/6#0", [1, 1, 1, None]), rank=1)
    run.build(prefixes)

    answers: dict[str, list[tuple[int, Any]]] = {}
    for path in sorted((run.folder / "rollouts").glob("*.parquet")):
        for one in pq.read_table(path).to_pylist():
            score = json.loads(one["verdict"])["score"]
            if score is not None:
                step = int(re.findall(r"step-(\d+)", path.name)[0])
                answers.setdefault(one["uid"].split("#")[0], []).append((step, one | {"right": score >= 1}))
    expected = {}
    for uid, of_problem in answers.items():
        right = sum(one["right"] for _, one in of_problem)
        rate = right / len(of_problem)
        is_wanted = 0.75 <= rate < 1 if prefixes == "failures" else 0 < rate <= 0.25
        for step, one in of_problem if is_wanted else []:
            if one["right"] == (prefixes == "successes"):
                cut = one["text"].index(" away.") + len(" away.")  # the end nearest to the middle
                visit = one["uid"].split("#")[1]
                name = f"{uid}/begun-{step}.{visit}.{one['sibling']}.{cut}"
                expected[name] = (one["text"][:cut], step, one["uid"], rate)
    assert len(expected) == 2

    by_uid = {row.uid: row for row in problems}
    found = run.rows(prefixes)
    assert {row.uid for row in found} == expected.keys()
    for row in found:
        text, step, uid, rate = expected[row.uid]
        problem = by_uid[uid.split("#")[0]]
        assert row.messages == (*problem.messages, {"role": "assistant", "content": text})
        assert render(row, CharacterTokenizer()).begun == text
        assert (row.task, row.domain, row.source, row.split) == (
            problem.task, problem.domain, problem.source, problem.split,
        )  # fmt: skip
        assert row.extra == {
            "begun_from": prefixes,
            "begun_run": str(run.folder),
            "begun_step": step,
            "begun_pass_rate": pytest.approx(rate),
        }
    assert [row.extra["begun_step"] for row in found] == [9, 3]


def test_the_same_records_give_the_same_bytes_and_since_forgets_earlier_steps(run: Recording) -> None:
    run.stage("main", [make_row("a", "A?"), make_row("b", "B?")])
    run.step(1, group("a#0", [0.0] * 4), group("b#0", [1, 1, 1, 0]))
    run.step(2, group("a#1", [1, 1, 1, 0]), group("b#1", [1, 1, 0, 0]))
    assert run.build(rare=0.4)["files"] == run.build(rare=0.4)["files"]
    assert {row.uid[:11] for row in run.rows()} == {"b/begun-1.0", "b/begun-2.1"}
    run.build(since=2)
    assert [row.uid[:11] for row in run.rows()] == ["a/begun-2.1"]


def test_what_makes_no_row_is_counted(run: Recording) -> None:
    same = "One.\nTwo.\nThree.\n"
    answers = [
        recorded("a#0", 0, 0.0, same),
        recorded("a#0", 1, 0.0, same + "Four.\n"),  # begins in the same way
        recorded("a#0", 2, 0.0, "No end"),
        recorded("a#0", 3, 0.0, " \n "),
        recorded("a#0", 4, 0.0, "1.\n2.\n3.\n", finish=Finish.length),
        recorded("a#0", 5, 0.0, "Other.\nWay.\nHere.\n"),
        recorded("a#0", 6, 0.0, "Third.\nWay.\nHere.\n"),
        *(recorded("a#0", sibling, 1.0, "Right.") for sibling in range(7, 40)),
    ]
    run.stage("main", [make_row("a", "A?"), make_row("c", "a? ")])
    run.step(1, answers, group("gone#0", [1, 1, 1, 0]), group("c#0", [1, 1, 1, 0]))
    manifest = run.build(per_problem=2)
    assert manifest["num_rows"] == {"train": 2}
    assert manifest["num_read"] == 9
    assert manifest["dropped"] == {
        "nothing_to_begin_with": 2,
        "enough_of_the_problem": 2,  # one of another row with the same question
        "duplicate": 1,
        "unfinished": 1,
        "not_in_the_files": 1,
    }


@pytest.mark.parametrize("prefixes", ["failures", "successes"])
def test_only_siblings_tell_where_an_answer_turned(run: Recording, prefixes: str) -> None:
    """Whichever rank has sampled them: answers of other visits are of another policy."""
    most, few = (1.0, 0.0) if prefixes == "failures" else (0.0, 1.0)
    run.stage("main", [make_row("a", "A?")])
    text = "One.\nTwo.\nThree.\nFour.\n"
    run.step(3, [recorded("a#0", 0, few, text), *group("a#0", [most] * 9)[1:6]])
    run.step(3, [recorded("a#0", 8 + n, most, "One.\nTwo.\nOther.\n") for n in (0, 1)], rank=1)
    run.step(4, [recorded("a#1", sibling, most, text) for sibling in range(6)])
    run.build(prefixes)
    assert [row.messages[-1]["content"] for row in run.rows(prefixes)] == ["One.\nTwo.\nThree.\n"]


def test_held_out_problems_of_any_stage_get_no_row_whatever_their_file_or_uid(run: Recording) -> None:
    held = "How many ways are there to seat nine people around a round table if two of them must not meet?"
    run.stage(
        "one", [make_row("a", f"{held} Think."), make_row("b", f"{held[:65]} alone?")], [make_row("x", held)]
    )
    run.stage("two", [make_row("c", "C? "), make_row("d", "D?")], [make_row("y", "c?")])
    run.step(1, *(group(f"{uid}#0", [1, 1, 1, 0]) for uid in "abcd"))
    manifest = run.build()
    assert [question_of(row)[-6:] for row in run.rows()] == ["alone?", "D?"]  # a shared phrase is no overlap
    assert manifest["dropped"] == {"evaluation_overlap": 2}
    (run.data / "more.jsonl").write_text('{"question": "d?"}\n')
    run.build(against=[str(run.data / "more.jsonl")])
    assert len(run.rows()) == 1


def test_a_begun_answer_is_begun_further_and_other_columns_stay(run: Recording) -> None:
    first = "We add.\n" * 5
    asked = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "A?"})
    row = make_row(
        "a/begun-3",
        messages=(*asked, {"role": "assistant", "content": first}),
        extra={"level": 3, "begun_step": 3},
    )
    run.stage("main", [row])
    text = f"{first}Then we take.\nThen we add.\nSo 4"
    run.step(
        8,
        [
            recorded("a/begun-3#2", 0, 0.0, text, begun=first),
            *group("a/begun-3#2", [1] * 5, begun=first),
        ],
    )
    run.build()
    (found,) = run.rows()
    assert found.messages == (*asked, {"role": "assistant", "content": f"{first}Then we take.\n"})
    assert found.uid == f"a/begun-3/begun-8.2.0.{len(first) + len('Then we take.') + 1}"
    assert (found.extra["level"], found.extra["begun_step"]) == (3, 8)


def test_solutions_of_a_file_begin_rows_and_held_out_problems_of_a_run_do_not(run: Recording) -> None:
    run.stage("main", [make_row("z", "Z?")], [make_row("y", "Held out?")])
    path = run.data / "solved.jsonl"
    solved: list[Mapping[str, Any]] = [
        {"problem": "A?", "answer": "4", "working": "We add.\nWe take.\nIt is \\boxed{4}."},
        {"problem": "Held out?", "answer": "4", "working": "We add.\nWe take.\nIt is 4."},
        {"problem": "B?", "answer": "4", "working": None},
    ]
    path.write_text("".join(json.dumps(one) + "\n" for one in solved))
    manifest = run.build("solutions", source=str(path), column="working")
    (row,) = run.rows("solutions")
    assert row.messages[-1] == {"role": "assistant", "content": "We add.\n"}
    assert re.fullmatch(r"solved-\w+/0/begun-working\.8", row.uid)
    assert row.task == {"answer": "4"}
    assert row.extra["working"] == solved[0]["working"]
    assert manifest["dropped"] == {"evaluation_overlap": 1, "nothing_to_begin_with": 1}
    build(BegunConfig(prefixes=Prefixes.solutions, source=str(path), column="working", out=str(run.out)))
    assert len(run.rows("solutions")) == 2


def test_what_a_run_must_have_recorded(run: Recording) -> None:
    run.stage("main", [make_row("a", "A?")])
    with pytest.raises(ConfigError, match=r"no rollouts since step 0: .* exp_manager.record_rollouts=1\."):
        run.build()
    run.step(2, group("a#0", [1, 1, 0, 0]))
    with pytest.raises(ConfigError, match="no rollouts since step 3"):
        run.build(since=3)
    for prefixes in ("failures", "successes"):
        with pytest.raises(ConfigError, match=rf"no problem with {prefixes} .* rare=0\.25 .*: raise rare"):
            run.build(prefixes)
    run.build(rare=0.5)
    ((_, path),) = step_files(run.folder, "rollouts").all()
    path.write_bytes(path.read_bytes()[:-9])
    before = run.rows()
    with pytest.raises(ConfigError, match=f"{path} cannot be read"):
        run.build(rare=0.5)
    assert run.rows() == before


def test_the_command_says_what_it_made(run: Recording, capsys: pytest.CaptureFixture[str]) -> None:
    run.stage("main", [make_row("a", "A?")])
    run.step(2, group("a#0", [1, 1, 1, 0]))
    assert cli.main(["data", "build", "begun", f"run={run.folder}", f"out={run.out}"]) == 0
    assert "begun_failures: 1 train of 1 read" in capsys.readouterr().out
    assert cli.main(["data", "show", str(run.out / "begun_failures" / "train.parquet")]) == 0
    assert "assistant:\n    First, we add a#0 3." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "run=RUN is missing"),
        (["deepscaler", "run=x"], "begun has options of its own: build it alone"),
        (["run=x", "limit=3"], "limit is not an option"),
        (["run=x", "prefixes=failure"], "prefixes"),
        (["run=x", "cut=1"], "cut=1.0 is out of range: it must be between 0 and 1"),
        (["run=x", "rare=0"], "rare=0.0 is out of range"),
        (["run=x", "per_problem=0"], "per_problem=0 is out of range: it must be at least 1"),
        (["run=x", "source=y"], "source=FILE and prefixes=solutions belong together"),
        (["prefixes=solutions"], "source=FILE and prefixes=solutions belong together"),
        (["prefixes=solutions", "source={rows}"], "{rows} has no column solution: it has no further ones"),
        (
            ["prefixes=solutions", "source={rows}", "column=uid", "run=/no/run"],
            "run=/no/run holds no stages/*.yaml",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_code_2(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.parquet"
    write_rows(rows, [make_row("a")])
    filled = [word.format(rows=rows) for word in words]
    assert cli.main(["data", "build", "begun", *filled, f"out={tmp_path / 'data'}"]) == 2
    error = capsys.readouterr().err
    assert said.format(rows=rows) in error
    assert error.count("\n") == 1
    assert not (tmp_path / "data").exists()
