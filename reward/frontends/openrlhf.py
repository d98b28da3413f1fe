"""OpenRLHF's remote reward: `--reward.remote_url http://127.0.0.1:8000/openrlhf`.

Protocol (openrlhf/utils/agent.py, `_fetch_rewards_via_http`; openrlhf/cli/serve_rm.py): {"query": [prompt and response
as one text, ...], "prompts": [...], "labels": [...]} -> {"rewards": [...], "scores": [...], "extra_logs"}. A query is
decoded text with special tokens, and its prompt may be cut off on the left. The response is what follows the prompt,
without the tokens that end a turn.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from reward.frontends.common import TheFront, UrlOptions, bad_request, object_in, request_of, scores
from reward.server import JsonBody

router = APIRouter()
_LEAST_OVERLAP = 40
"""Characters of a truncated prompt with which the query must begin."""


@router.post("/openrlhf")
async def rewards(front: TheFront, options: UrlOptions, body: JsonBody) -> dict[str, Any]:
    """Returns the rewards of a list of queries, in order."""
    fields = object_in(body)
    queries, prompts, labels = (fields.get(name) for name in ("query", "prompts", "labels"))
    if not (isinstance(queries, list) and isinstance(prompts, list) and isinstance(labels, list)):
        raise bad_request('the body must have the lists "query", "prompts" and "labels"')
    if not len(queries) == len(prompts) == len(labels):
        raise bad_request(
            f'"query", "prompts" and "labels" must be equally long; '
            f"they have {len(queries)}, {len(prompts)} and {len(labels)} items"
        )
    requests = [
        request_of(response_in(query, prompt), label, prompt, options)
        for query, prompt, label in zip(queries, prompts, labels, strict=True)
    ]
    values = await scores(front, requests, options)
    return {"rewards": values, "scores": values, "extra_logs": {}}


def response_in(query: Any, prompt: Any) -> str:
    """Returns what follows the prompt in the query. Raises HTTPException (400) if the prompt is not found: graded with
    its prompt, a response could earn a reward for what the prompt says."""
    if not isinstance(query, str) or not isinstance(prompt, str):
        raise bad_request('each item of "query" and "prompts" must be text')
    if not prompt:
        return query
    before, found, response = query.partition(prompt)
    # The tokenizer may put its first token in front of the prompt.
    if found and len(before) < _LEAST_OVERLAP:
        return response
    # Otherwise the query begins with the end of a truncated prompt; take the longest that fits.
    start = prompt.find(query[:_LEAST_OVERLAP])
    while len(query) >= _LEAST_OVERLAP and start >= 0:
        if query.startswith(prompt[start:]):
            return query[len(prompt) - start :]
        start = prompt.find(query[:_LEAST_OVERLAP], start + 1)
    raise bad_request(
        f"a query does not begin with its prompt or with the end of it, {prompt[-60:]!r}: where its response begins "
        "is unknown"
    )
