"""Mathematics: DeepScaleR's preview data, 40k competition problems with short answers.

Reads two schemas of the same authors: problem, answer, solution (the data set on the hub, and the AIME part of their
repository) and problem, answer, difficulty, type (its MATH part).
"""

from __future__ import annotations

from nemo_prorl.data.building.source import BOX_SUFFIX, Problem, Record, Source


def convert(record: Record) -> Problem:
    """Turns a record into a problem. Raises NoRow."""
    question = record.text("problem", otherwise="no_problem")
    answer = record.text("answer", otherwise="no_answer")
    return Problem(question=question, task={"answer": answer}, suffix=BOX_SUFFIX, gold=f"\\boxed{{{answer}}}")


SOURCE = Source(
    name="deepscaler",
    domain="math",
    summary="40k competition problems (AIME, AMC, Omni-MATH, STILL) with short answers",
    hub_id="agentica-org/DeepScaleR-Preview-Dataset",
    licence="MIT (dataset card)",
    columns=("problem", "answer"),
    convert=convert,
    paper_rows=40_000,
)
