"""The other side of test_checkpoints.py: a policy in the environment of a laptop, without Transformer
Engine, with Megatron's own layers and torch's AdamW.

    python -m tests.gpu.emulated.local_policy TINY PRECISION LOAD SAVE OUT

Continues from the checkpoint LOAD (`-`: from the beginning), makes an update, saves it to SAVE, and writes what `facts`
says before and after the update to OUT.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.modules["transformer_engine"] = None  # type: ignore[assignment]  # as if it were not installed

from nemo_prorl.engines import environment

if __name__ == "__main__":
    environment.prepare()  # before torch is imported

import json
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.batches import loss_function, token_batch, train_batch
from benchmarks.gpu_check.policies import build
from benchmarks.gpu_check.policy import Variant, configured
from nemo_prorl import distributed
from nemo_prorl.config import LayerSpec, Precision
from nemo_prorl.engines.megatron import optimizer_state, weights
from nemo_prorl.engines.megatron.policy import MegatronPolicy
from nemo_prorl.types import TokenBatch
from tests.engines.megatron.helpers import save


def facts(policy: MegatronPolicy, tokens: TokenBatch) -> dict[str, Any]:
    """Returns all that a checkpoint holds, in numbers and hashes that JSON can hold, and the log-probabilities."""
    slots = optimizer_state.slots(policy.optimizer, policy.model).values()
    moments = {
        moment: sorted(float(slot.state[moment].double().abs().sum()) for slot in slots)
        for moment in optimizer_state.MOMENTS
    }
    return {
        "weights": weights.content_hash(policy.named_weights()),
        "reference": policy.reference_hash(),
        "step": optimizer_state.get_step(policy.optimizer),
        "updates": policy.num_updates,
        "main": sorted(float(slot.main.detach().double().sum()) for slot in slots),
        **moments,
        "logprobs": policy.logprobs(tokens).tolist(),
    }


def main(tiny: str, precision: str, load: str, save_to: str, out: str) -> None:
    variant = Variant(name="", spec=LayerSpec.local, precision=Precision[precision])
    policy = build(configured(Path(tiny), variant), distributed.initialise(1, 1))
    batch = train_batch(token_batch(num_rows=8, longest=96))
    if load != "-":
        policy.load(Path(load))
    before = facts(policy, batch.tokens)
    policy.update(batch, loss_function)
    save(policy, Path(save_to))
    Path(out).write_text(json.dumps([before, facts(policy, batch.tokens)]))


if __name__ == "__main__":
    main(*sys.argv[1:])
