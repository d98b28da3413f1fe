"""Tests of the overlap with evaluation problems: against a brute-force oracle, and on the cases that motivated the
rule."""

from __future__ import annotations

import random

import pytest

from nemo_prorl.data.building.overlap import (
    MAX_DOCUMENTS,
    EvaluationIndex,
    Match,
    identity,
    report,
    words,
)

LONG = (
    "Every morning Aya goes for a nine kilometre long walk and stops at a coffee shop afterwards for as long as she "
    "likes to, before she walks all the way home again."
)


def match(question: str, problem: str, **options: bool) -> Match | None:
    index = EvaluationIndex([("e.jsonl:0", problem)])
    found = index.matches([("uid", "origin", question)], **options)
    return found[0] if found else None


def overlaps(question: str, problem: str, **options: bool) -> bool:
    found = match(question, problem, **options)
    return found is not None and found.is_overlap


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"Compute $\frac{3}{4}+x$", r"compute \( \dfrac {3} {4} + x \)"),
        (r"$a^3-15a^2 = 0 \quad \text{and} \quad 8b$", r"a^{3}-15 a^{2}=0 and 8 b"),
        ("Größe_1", "größe 1"),
        ("计算 x 的值", "计算x的值"),
    ],
)
def test_words_are_the_same_however_they_are_typeset(one: str, other: str) -> None:
    assert words(one) == words(other)


def test_identity_ignores_white_space_and_case_and_nothing_that_matters() -> None:
    assert identity("Find  $x\\,+1$.\n") == identity("find $x +1$.")
    assert identity("Find $x+1$.") != identity("Find $x-1$.")


def test_the_same_problem_in_another_dress_overlaps() -> None:
    assert overlaps(LONG.upper().replace(" ", "\n"), LONG)
    assert overlaps(f"Story time! {LONG} How long does it take?", LONG)


def test_half_of_a_problem_overlaps_and_less_is_only_near() -> None:
    """20 words have 8 runs of 13 words: sharing 16 words shares 4 of these runs, 15 words 3."""
    tokens = [f"v{chr(97 + i)}" for i in range(20)]
    problem = " ".join(tokens)
    assert match(" ".join([*tokens[:16], "other", "words"]), problem).share == 0.5  # type: ignore[union-attr]
    near = match(" ".join([*tokens[:15], "other", "words"]), problem)
    assert near is not None
    assert near.share == 0.375
    assert not near.is_overlap


def test_a_phrase_of_the_trade_does_not_count() -> None:
    """With a rule of one shared run, such phrases dropped unrelated competition problems."""
    phrase = (
        "The answer can be written as m/n, where m and n are relatively prime positive integers. Find m + n."
    )
    assert not overlaps(
        f"A fair coin is tossed until heads shows thrice in a row. {phrase}", f"{LONG} {phrase}"
    )


def test_a_run_that_stands_everywhere_does_not_count() -> None:
    template = " ".join(f"template{chr(97 + i)}" for i in range(14))
    problem = ("e:0", template)
    few = [(str(i), "", f"{template} {i}") for i in range(MAX_DOCUMENTS)]
    many = [*few, ("last", "", f"{template} last")]
    assert len(EvaluationIndex([problem]).matches(few)) == MAX_DOCUMENTS
    assert EvaluationIndex([problem]).matches(many) == []


@pytest.mark.parametrize(("count", "found"), [(7, False), (8, True), (12, True)])
def test_short_problems_are_looked_for_as_a_whole(count: int, found: bool) -> None:
    problem = " ".join(f"w{chr(97 + i)}" for i in range(count))
    assert overlaps(f"before {problem} after", problem) is found
    assert overlaps(problem.upper(), problem)  # equal is equal at any length


def test_questions_made_from_templates_only_equal() -> None:
    assert not overlaps(f"{LONG} And back.", LONG, templated=True)
    assert overlaps(LONG, LONG, templated=True)


def test_against_brute_force() -> None:
    stream = random.Random(3)
    vocabulary = [f"{a}{b}" for a in "abcdefg" for b in "hijk"]
    problems = [" ".join(stream.choices(vocabulary, k=stream.randint(13, 40))) for _ in range(20)]
    questions = []
    for number in range(60):
        source = stream.choice(problems).split()
        start = stream.randrange(len(source))
        cut = source[start : start + stream.randint(1, 30)]
        questions.append((str(number), "", " ".join([*stream.choices(vocabulary, k=9), *cut, "end"])))
    index = EvaluationIndex((f"e:{i}", problem) for i, problem in enumerate(problems))
    found = {match.uid: match for match in index.matches(questions)}

    def runs(text: str) -> set[tuple[str, ...]]:
        split = text.split()
        return {tuple(split[i : i + 13]) for i in range(len(split) - 12)}

    for uid, _, question in questions:
        shares = [len(runs(question) & runs(problem)) / len(runs(problem)) for problem in problems]
        if max(shares) == 0.0:
            assert uid not in found
        else:
            assert found[uid].share == round(max(shares), 3)
            assert shares[int(found[uid].evaluation.split(":")[1])] == max(shares)


def test_the_report_counts_rows_and_problems_by_file() -> None:
    problems = [(f"{name}.jsonl:{i}", f"{name} {LONG} {i}") for name in "ab" for i in (0, 1)]
    index = EvaluationIndex(problems)
    matches = index.matches(
        [("u0", "s:0", f"a {LONG} 0"), ("u1", "s:1", f"a {LONG} 0 again"), ("u2", "s:2", "no")]
    )
    made = report("source", index, matches, 3)
    assert made["num_matched_rows"] == 2
    assert made["evaluation"] == {
        "a.jsonl": {"num_problems": 2, "num_matched_problems": 1, "num_matched_rows": 2},
        "b.jsonl": {"num_problems": 2, "num_matched_problems": 0, "num_matched_rows": 0},
    }
    assert [(m["uid"], m["evaluation"], m["origin"]) for m in made["matches"]] == [
        ("u0", "a.jsonl:0", "s:0"),
        ("u1", "a.jsonl:0", "s:1"),
    ]
