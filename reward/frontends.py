"""Routes for other trainers' clients, on the same server and the same pools.

* OpenRLHF's remote reward, `--reward.remote_url http://127.0.0.1:8000/openrlhf` (openrlhf/utils/agent.py,
  `_fetch_rewards_via_http`; openrlhf/cli/serve_rm.py): {"query": [prompt and response as one text, ...], "prompts":
  [...], "labels": [...]} -> {"rewards": [...], "scores": [...], "extra_logs"}. A query is decoded text with special
  tokens, and its prompt may be cut off on the left. The response is what follows the prompt, without the tokens that
  end a turn.
* slime's and miles' remote reward, `--rm-type remote_rm --rm-url http://127.0.0.1:8000/slime` (slime/rollout/rm_hub and
  miles/rollout/rm_hub, `remote_rm`): one sample per request, {"prompt": text or messages, "response": text, "label":
  any}; the JSON of the answer is the sample's reward.

None of these protocols can say "not graded". Such a request waits here as long as its client does, and is then answered
with 503 and Retry-After, which the client does not take for a reward. Grading continues meanwhile, and the client's
next try gets the result. A reward is never 0 because the service was busy, broken or stopped. docs/other_trainers.md
says what each client then does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, HTTPException, Query, Request
from pydantic import BaseModel, Field, field_validator

from reward.graders.registry import domains
from reward.protocol import GradeStatus, ScoreRequest, ScoreResult
from reward.rows import BadLabel, opens_thought, request_of_label, without_end_tokens
from reward.server import Front, JsonBody

DEFAULT_WAIT_S = 100.0
"""Less than the 120 s after which slime gives up on a request, and than OpenRLHF's 180 s."""
RETRY_AFTER_S = 2
_PAUSE_S, _MAX_PAUSE_S = 0.5, 8.0
_LEAST_OVERLAP = 40
"""Characters of a truncated prompt with which the query must begin."""

router = APIRouter()


class Options(BaseModel, frozen=True, extra="forbid"):
    """The options in the query of a front end's URL. Example:
    http://127.0.0.1:8000/slime?domain=stem&in_thought=true"""

    domain: str = "math"
    """The domain of labels that do not name one (reward.rows)."""
    in_thought: Literal["auto", "true", "false"] = "auto"
    """Whether responses begin inside a thought; "auto": if the prompt ends with <think>."""
    wait_s: float = Field(default=DEFAULT_WAIT_S, gt=0, le=3600)
    """Seconds that a request waits for its result before the client is told to retry; must be less than the client
    waits."""

    @field_validator("domain")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in domains():
            raise ValueError(f"{name[:40]} is none of the domains {', '.join(domains())}")
        return name


# A coroutine, because FastAPI runs plain functions in a thread pool, which costs more than the function does.
async def _front(request: Request) -> Front:
    return request.app.state.front


UrlOptions = Annotated[Options, Query()]
TheFront = Annotated[Front, Depends(_front)]


def object_in(body: Any) -> dict[str, Any]:
    """Returns the body if it is a JSON object. Raises HTTPException (400)."""
    if not isinstance(body, dict):
        raise HTTPException(400, "the body must be a JSON object")
    return body


def request_of(response: Any, label: Any, prompt: Any, options: Options) -> ScoreRequest:
    """Builds the request for one response from its label (reward.rows). Raises HTTPException (400)."""
    if not isinstance(response, str):
        raise HTTPException(400, f"the response must be text, not {type(response).__name__}")
    in_thought = opens_thought(prompt) if options.in_thought == "auto" else options.in_thought == "true"
    try:
        return request_of_label(
            without_end_tokens(response), label, domain=options.domain, in_thought=in_thought
        )
    except BadLabel as error:
        raise HTTPException(400, str(error)) from error


async def scores(front: Front, requests: Sequence[ScoreRequest], options: Options) -> list[float]:
    """Returns the score of each request, in order. Raises HTTPException: 400 if one is invalid, 503 if one is not
    graded in time. Grading then continues, and the result is there when the same request comes again."""
    bodies = [request.to_json() for request in requests]
    reason, pause_s = f"not graded within {options.wait_s:g} s: the service is busy", _PAUSE_S
    try:
        async with asyncio.timeout(options.wait_s):
            while True:
                results = await front.score_all(bodies)
                if invalid := _first(results, GradeStatus.invalid_request):
                    raise HTTPException(400, str(invalid.details["reason"]))
                if failed := _first(results, GradeStatus.infra_error):
                    reason = f"not graded: {failed.details['reason']}"
                    if failed.verdict == "no_sandbox":  # retrying cannot help
                        break
                elif _first(results, GradeStatus.overloaded) is None:
                    return [float(result.score or 0.0) for result in results]
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
    except TimeoutError:
        pass
    raise HTTPException(503, reason, {"Retry-After": str(RETRY_AFTER_S)})


def _first(results: Sequence[ScoreResult], status: GradeStatus) -> ScoreResult | None:
    return next((result for result in results if result.status is status), None)


# ------------------------------------------------------------------------------------- the routes
@router.post("/openrlhf")
async def openrlhf(front: TheFront, options: UrlOptions, body: JsonBody) -> dict[str, Any]:
    """Returns the rewards of a list of queries, in order."""
    fields = object_in(body)
    queries, prompts, labels = (fields.get(name) for name in ("query", "prompts", "labels"))
    if not (isinstance(queries, list) and isinstance(prompts, list) and isinstance(labels, list)):
        raise HTTPException(400, 'the body must have the lists "query", "prompts" and "labels"')
    if not len(queries) == len(prompts) == len(labels):
        raise HTTPException(
            400,
            f'"query", "prompts" and "labels" must be equally long; '
            f"they have {len(queries)}, {len(prompts)} and {len(labels)} items",
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
        raise HTTPException(400, 'each item of "query" and "prompts" must be text')
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
    raise HTTPException(
        400,
        f"a query does not begin with its prompt or with the end of it, {prompt[-60:]!r}: where its response begins "
        "is unknown",
    )


@router.post("/slime")
async def slime(front: TheFront, options: UrlOptions, body: JsonBody) -> float:
    """Returns the reward of one sample as a bare number."""
    sample = object_in(body)
    request = request_of(sample.get("response"), sample.get("label"), sample.get("prompt"), options)
    return (await scores(front, [request], options))[0]
