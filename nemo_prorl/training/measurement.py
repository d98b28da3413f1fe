"""What a validation measures. Values of two validations compare only if they measure the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from nemo_prorl.config import RunConfig
from nemo_prorl.training.evaluation import validation_settings
from nemo_prorl.types import Prompt, RunState


def measurement(config: RunConfig, prompts: Sequence[Prompt], grader_version: str) -> dict[str, str]:
    """Returns name -> value of all that decides what a validation measures, apart from the weights; empty without
    prompts. The seed is not part of it: another one gives other samples of the same policy."""
    if not prompts:
        return {}
    settings = validation_settings(config)
    asked = hashlib.sha256()
    for prompt in prompts:
        content = [prompt.uid, prompt.text, prompt.task, prompt.columns]
        asked.update(json.dumps(content, sort_keys=True, default=str).encode())
    return {
        "validation.num_rollouts": f"{settings.num_rollouts}",
        "validation.temperature": f"{settings.temperature:g}",
        "validation.top_p": f"{settings.top_p:g}",
        "sampler.max_response_tokens": f"{settings.max_response_tokens}",
        "held-out prompts": f"{len(prompts)} (hash {asked.hexdigest()[:8]})",
        "graders": grader_version,
    }


def begin_measuring(state: RunState, now: Mapping[str, str]) -> str:
    """Makes `now` what the run's validations measure from here on; an empty one, without prompts, changes nothing.

    Forgets the validations so far if they measured something else, and returns a sentence about it. Returns an empty
    string if nothing has changed, or if it is not known what they measured.
    """
    before = state.measurement
    if not now or before == now:
        return ""
    state.measurement = dict(now)
    if not before:
        return ""
    state.validation = []
    changes = [
        f"{name} {before.get(name)} -> {value}" for name, value in now.items() if before.get(name) != value
    ]
    return (
        f"validation measures something else from here on ({', '.join(changes)}): the reset controller, the best score "
        "and save_top_k do not compare it with earlier validations"
    )
