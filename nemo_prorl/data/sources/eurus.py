"""Code: the programming problems of PRIME's Eurus-2-RL-Data (APPS, CodeContests, TACO, Codeforces), with their tests.

A record is in verl's form: `prompt` (turns), `ability`, `data_source`, and `reward_model.ground_truth`, for code the
JSON text of {"inputs", "outputs", "fn_name"?}. The system turn teaches PRIME's own action format and is dropped. If a
record has a reference solution (`extra_info.solution`), it must pass every test; otherwise the tests must be well
formed.
"""

from __future__ import annotations

import json

from nemo_prorl.data.building.source import NoRow, Problem, Record, Source, only_user_turn

SUFFIX = (
    "\n\nWrite Python code to solve the problem. Present the code in \n```python\nYour code\n```\nat the end."
)
"""How the set's own prompts end."""


def convert(record: Record) -> Problem:
    """Turns a record into a problem. Raises NoRow, and ConfigError for a damaged one."""
    if record.values["ability"] != "code":
        raise NoRow("not_code")
    question, suffix = only_user_turn(record.values["prompt"], otherwise="no_problem").strip(), ""
    if question.endswith(SUFFIX.strip()):
        question = question.removesuffix(SUFFIX.strip()).rstrip()
        suffix = SUFFIX
    elif "```" not in question[-200:]:  # the question does not say how to present the code
        suffix = SUFFIX
    solution = record.object("extra_info").get("solution")
    reward_model = record.object("reward_model")
    try:
        tests = json.loads(reward_model["ground_truth"])
    except (TypeError, KeyError, ValueError, RecursionError):
        raise NoRow("tests_not_json") from None
    if not isinstance(tests, dict) or not {"inputs", "outputs"} <= tests.keys():
        raise NoRow("no_tests")
    names = ("inputs", "outputs", "fn_name")
    return Problem(
        question=question,
        task={name: tests[name] for name in names if tests.get(name) is not None},
        suffix=suffix,
        kind=str(record.values["data_source"]),
        gold=f"```python\n{solution}\n```" if solution else None,
    )


SOURCE = Source(
    name="eurus",
    domain="code",
    summary="27k programming problems (APPS, CodeContests, TACO, Codeforces) with tests; ProRL used 24k",
    hub_id="PRIME-RL/Eurus-2-RL-Data",
    licence="MIT (dataset card); the problems come from APPS, CodeContests, TACO and Codeforces",
    columns=("data_source", "prompt", "ability", "reward_model"),
    convert=convert,
    paper_rows=24_000,
)
