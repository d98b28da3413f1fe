"""slime's and miles' remote reward: `--rm-type remote_rm --rm-url http://127.0.0.1:8000/slime`.

Protocol (slime/rollout/rm_hub/__init__.py and miles/rollout/rm_hub/__init__.py, `remote_rm`): one sample per request,
{"prompt": text or messages, "response": text, "label": any}; the JSON of the answer is the sample's reward. Both raise
on a status of 400 or more, slime after ten tries over some minutes, miles at once. So no failure becomes a reward.
"""

from __future__ import annotations

from fastapi import APIRouter

from reward.frontends.common import TheFront, UrlOptions, object_in, request_of, scores
from reward.server import JsonBody

router = APIRouter()


@router.post("/slime")
async def reward(front: TheFront, options: UrlOptions, body: JsonBody) -> float:
    """Returns the reward of one sample as a bare number."""
    sample = object_in(body)
    request = request_of(sample.get("response"), sample.get("label"), sample.get("prompt"), options)
    return (await scores(front, [request], options))[0]
