"""What training makes of a verdict's score."""

from __future__ import annotations

from nemo_prorl.config import ShapingConfig
from nemo_prorl.types import Finish


def shape_reward(
    score: float, *, finish: Finish, num_tokens: int, max_response_tokens: int, config: ShapingConfig
) -> float:
    """The score, lowered for a rollout that does not end (ProRL section 4.2, runs 4 and 5) or almost does not.

    reward = score * (termination_factor if it ran out of tokens else 1)
             + overlong_penalty * R_length (DAPO eq. 13, see `overlong_ramp`)

    ProRL does not say how it punishes; a factor keeps a rollout that never earned anything at 0. Both parts are off
    by default.

    score: the verdict's, 0 to 1. num_tokens, max_response_tokens: tokens of the response, end-of-sequence included.
    Raises ValueError on a score outside [0, 1] or NaN (a missing score is no score: drop the rollout instead) and on
    a buffer that is longer than a response may be.
    """
    if not 0.0 <= score <= 1.0:
        raise ValueError(f"a score must be in [0, 1], got {score}")
    factor = config.termination_factor if finish is Finish.length else 1.0
    ramp = overlong_ramp(num_tokens, max_response_tokens, config.overlong_buffer_tokens)
    return score * factor + config.overlong_penalty * ramp


def overlong_ramp(num_tokens: int, max_response_tokens: int, buffer_tokens: int) -> float:
    """DAPO eq. 13, R_length: 0 up to the buffer, then down linearly to -1 at the limit, and -1 beyond it.

    buffer_tokens: L_cache of the paper, the tokens before the limit that are punished; 0 punishes nothing.
    """
    if not 0 <= buffer_tokens <= max_response_tokens:
        raise ValueError(f"a buffer of {buffer_tokens} tokens does not fit into {max_response_tokens}")
    if buffer_tokens == 0:
        return 0.0
    num_over = num_tokens - (max_response_tokens - buffer_tokens)
    return -min(max(num_over / buffer_tokens, 0.0), 1.0)
