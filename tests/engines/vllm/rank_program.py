"""One rank of a small job: samples with the checkpoint, takes the weights of another, samples again, closes, and shows
that the job's process group is alive. Rank 0 writes what each rank got.

    rank_program.py CHECKPOINT OTHER_CHECKPOINT TENSOR_PARALLEL PROMPTS_OF_EACH_RANK.json RESULT.json
"""

from __future__ import annotations

from nemo_prorl.engines import environment

environment.prepare()

import json  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

from nemo_prorl import distributed  # noqa: E402
from nemo_prorl.config import ModelConfig, Precision, RunConfig, SamplerConfig  # noqa: E402
from nemo_prorl.engines.interface import SamplingSettings  # noqa: E402
from nemo_prorl.engines.vllm_sampler import VllmSampler  # noqa: E402
from nemo_prorl.types import Prompt  # noqa: E402


def main(checkpoint: str, other: str, tensor_parallel: str, prompts: str, result: str) -> None:
    """See above."""
    ranks = distributed.initialise(1, 1)
    rank = ranks.layout.rank
    config = RunConfig(
        model=ModelConfig(path=checkpoint, precision=Precision.fp32),
        sampler=SamplerConfig(
            context_tokens=512, max_prompt_tokens=256, kv_cache_mib=64, tensor_parallel=int(tensor_parallel)
        ),
    )
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    sampler = VllmSampler(config, ranks, tokenizer)
    settings = SamplingSettings(num_rollouts=4, temperature=1.2, top_p=1.0, max_response_tokens=24, seed=7)
    mine = [
        Prompt(uid=text, domain="", source="", text=text, token_ids=tuple(tokenizer.encode(text)), task={})
        for text in json.loads(Path(prompts).read_text())[rank]
    ]

    def sample() -> dict[str, list[list[list[float]]]]:
        groups = sampler.sample(mine, settings, lambda rollout: None)
        return {
            g[0].prompt.uid: [[r.token_ids.tolist(), r.sampler_logprobs.tolist()] for r in g] for g in groups
        }

    before = sample()
    sampler.load_weights(load_file(Path(other) / "model.safetensors").items(), 1)
    after = sample()
    sampler.close()
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    engine = [sampler.engine, sampler.num_engines]
    everything = ranks.gather(
        {"before": before, "after": after, "engine": engine, "sum_after_close": total.item()}
    )
    if ranks.layout.is_main:
        Path(result).write_text(json.dumps(everything))


if __name__ == "__main__":
    main(*sys.argv[1:])
