"""A resources server for NeMo Gym. It grades rows of NeMo Gym's own resources servers for math, multiple choice, code,
instructions and Reasoning Gym, and rows of this service.

Protocol (nemo_gym/base_resources_server.py): POST /seed_session returns {}; POST /verify takes the row's fields with
"responses_create_params" and "response" (OpenAI's Responses API) and returns all of them with "reward"; POST
/aggregate_metrics takes {"verify_responses": [...]} and returns statistics. On a status of 400 or more an agent raises
and ends the collection of rollouts, so no failure becomes a reward.

The first of these fields that a row has decides how it is graded:

    domain and task                          a row of this service
    verifier_metadata.unit_tests             code: {"inputs", "outputs", "fn_name"?}
    instruction_id_list, kwargs              instruction; "grading_mode" is "binary" (all rules must be followed, the
                                             default) or "fraction"; "strict": true closes the official evaluator's
                                             holes (reward/graders/constraints.py)
    metadata.source_dataset, answer          logic: an entry of Reasoning Gym; "credit" is "corrected" (the library's
                                             score with its partial credit, the default here, as NeMo Gym pays it),
                                             "training" or "library" (reward/graders/puzzle.py)
    options, expected_answer                 stem: the letter of the right option
    expected_answer                          math

NeMo Gym's URLs have no query, so the row itself says that its responses begin inside a thought: "in_thought": true.
This is needed where the chat template opens the thought and the model server does not split off the reasoning.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Response

from reward.frontends.common import TheFront, UrlOptions, bad_request, object_in, request_of, scores
from reward.server import JsonBody

router = APIRouter()


@router.post("/seed_session")
async def seed_session() -> dict[str, Any]:
    """Returns {}: there are no sessions, each response is graded by its row alone."""
    return {}


@router.post("/verify")
async def verify(front: TheFront, options: UrlOptions, body: JsonBody) -> Response:
    """Returns everything that came in, with the reward of the response."""
    row = object_in(body)
    if isinstance(row.get("in_thought"), bool):
        options = replace(options, in_thought=row["in_thought"])
    request = request_of(answer_text(row), label_of(row), None, options)
    (reward,) = await scores(front, [request], options)
    return Response(json.dumps({**row, "reward": reward}), media_type="application/json")


@router.post("/aggregate_metrics")
async def aggregate_metrics(body: JsonBody) -> dict[str, Any]:
    """Returns the mean reward over all tasks."""
    rows = object_in(body).get("verify_responses")
    if not isinstance(rows, list):
        raise bad_request('the body must have the list "verify_responses"')
    rewards = [
        row["reward"] for row in rows if isinstance(row, dict) and isinstance(row.get("reward"), int | float)
    ]
    metrics = {"mean/reward": sum(rewards) / len(rewards)} if rewards else {}
    return {"group_level_metrics": [], "agent_metrics": metrics, "key_metrics": metrics}


def answer_text(row: dict[str, Any]) -> str:
    """Returns the text of the assistant's messages. Leaves out reasoning that the model server has split off into items
    of its own; a response of reasoning alone has no answer. Raises HTTPException (400)."""
    response = row.get("response")
    output = response.get("output") if isinstance(response, dict) else None
    if not isinstance(output, list):
        raise bad_request('the body must have a "response" of the Responses API, with the list "output"')
    parts: list[str] = []
    for item in output:
        if not isinstance(item, dict) or item.get("type") != "message":
            continue
        content = item.get("content")
        if isinstance(content, str):
            parts.append(content)
        for piece in content if isinstance(content, list) else []:
            if isinstance(piece, dict) and piece.get("type") == "output_text":
                parts.append(str(piece.get("text", "")))
    return "".join(parts)


def label_of(row: dict[str, Any]) -> Any:
    """Returns the row's task as a label (see reward.rows). Raises HTTPException (400)."""
    if "domain" in row and isinstance(row.get("task"), dict):
        return {"domain": row["domain"], "task": row["task"]}
    verifier, metadata = row.get("verifier_metadata"), row.get("metadata")
    if isinstance(verifier, dict) and isinstance(verifier.get("unit_tests"), dict):
        tests = verifier["unit_tests"]
        task = {name: tests[name] for name in ("inputs", "outputs", "fn_name") if name in tests}
        return {"domain": "code", "task": task}
    if "instruction_id_list" in row:
        aggregate = "fraction" if row.get("grading_mode") == "fraction" else "all"
        rules = {"instruction_id_list": row["instruction_id_list"], "kwargs": row.get("kwargs")}
        how = {"aggregate": aggregate, "strict": row.get("strict", False)}
        return {"domain": "instruction", "task": rules | how}
    if isinstance(metadata, dict) and "source_dataset" in metadata and "answer" in row:
        entry = {"question": row.get("question"), "answer": row["answer"], "metadata": metadata}
        credit = row.get("credit", "corrected")
        task = {"task": metadata["source_dataset"], "entry": entry, "credit": credit}
        return {"domain": "logic", "task": task}
    if row.get("options") and isinstance(row.get("expected_answer"), str):
        return {"domain": "stem", "answer": row["expected_answer"]}
    if "expected_answer" in row:
        return row["expected_answer"]
    raise bad_request(
        "the row has none of the fields that say how to grade it: expected_answer, verifier_metadata.unit_tests, "
        "instruction_id_list, metadata.source_dataset, or domain and task"
    )
