"""TRL's side of bench_peer.py: trains with GRPOTrainer on CPU, as a user of TRL would. Runs in .venv-trl, under
torchrun if there are several processes.

    .venv-trl/bin/python benchmarks/peer/trl_side.py runs/peer/laptop/trl_vllm-1/work.json

work.json has the prompts, the URL of the reward service and the options of GRPOConfig. At the end events.jsonl is
written to the same folder. Its `update` counts optimizer updates, of which a step has several.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any


def main() -> None:
    """Trains, and writes the events at the end."""
    path = Path(sys.argv[1])
    work = json.loads(path.read_text(encoding="utf-8"))

    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    from nemo_prorl.engines.megatron import cpu
    from reward.client import RewardClient

    torch.set_num_threads(1)
    if work["options"]["use_vllm"]:
        make_vllm_work_on_cpu(work["kv_cache_mib"])
    end_token = AutoTokenizer.from_pretrained(work["policy"]).eos_token_id
    with RewardClient(urls=[work["reward_url"]]) as client:
        client.wait_until_ready(timeout_s=60)
        clock = clock_of_steps(work["updates_per_step"])
        trainer = GRPOTrainer(
            model=work["policy"],
            reward_funcs=reward_function(client, clock, end_token),
            args=GRPOConfig(output_dir=str(path.parent / "trl"), **work["options"]),
            train_dataset=Dataset.from_list(work["train"]),
            eval_dataset=Dataset.from_list(work["held_out"]),
            callbacks=[clock],
        )
        trainer.remove_callback(PrinterCallback)  # the clock prints one line per step
        # vLLM's packed layers and our passes compute fp32 products with oneDNN; torch by itself uses MKL, which is half
        # as fast on processors that are not Intel's.
        with cpu.passes(1):
            trainer.train()
    if trainer.is_world_process_zero():
        aside = path.with_name("events.part")
        aside.write_text("".join(json.dumps(event) + "\n" for event in clock.events), encoding="utf-8")
        os.replace(aside, path.with_name("events.jsonl"))


def make_vllm_work_on_cpu(kv_cache_mib: int) -> None:
    """Changes two things for which TRL has no option. vLLM samples in fp32, as the policy is trained, with a KV cache
    of a fixed size; TRL passes no dtype, for which vLLM would convert fp32 to bf16. And layers keep their weights: vLLM
    on CPU would pack and drop them, and TRL's load_weights would fail with "'Parameter' object has no attribute
    'weight_loader'"."""
    import torch
    import trl.generation.vllm_generation as colocated
    import vllm.model_executor.layers.utils as layers

    colocated.LLM = partial(
        colocated.LLM, dtype="float32", enforce_eager=True, kv_cache_memory_bytes=kv_cache_mib << 20
    )

    def keep_weight(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    layers.dispatch_cpu_unquantized_gemm = keep_weight


def clock_of_steps(updates_per_step: int) -> Any:
    """Returns a callback that records events. `step_s` is the time from the start of a step's first update to the end
    of its last one: sampling, rewards, passes and updates, but neither logging nor held-out prompts."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.events: list[dict[str, Any]] = []
            self.num_rollouts = 0
            self._start = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % updates_per_step == 0:
                self.num_rollouts = 0
                self._start = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % updates_per_step == 0:
                step_s = time.perf_counter() - self._start
                rollouts = self.num_rollouts * args.world_size
                self.events.append({"update": state.global_step, "step_s": step_s, "num_rollouts": rollouts})
                if state.is_world_process_zero:
                    print(f"  TRL: step {state.global_step // updates_per_step}, {step_s:.1f} s", flush=True)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            self.events.append({"update": state.global_step, "logs": dict(logs or {})})

    return Clock()


def reward_function(client: Any, clock: Any, end_token: int) -> Any:
    """Returns a function that TRL calls when all rollouts of a step are sampled, with each column of the data set as a
    list. It returns scores, shaped as our side's shaping.termination_factor does."""
    from reward.protocol import ScoreRequest

    def verdicts(
        completions: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        in_thought: Sequence[bool],
        domain: Sequence[str],
        task: Sequence[str],
        uid: Sequence[str],
        unfinished_factor: Sequence[float],
        **_: Any,
    ) -> list[float | None]:
        futures = [
            client.submit(
                ScoreRequest(
                    request_id=f"{uid}/{index}",
                    domain=domain,
                    response=text,
                    in_thought=in_thought,
                    task=json.loads(task),
                )
            )
            for index, (text, in_thought, domain, task, uid) in enumerate(
                zip(completions, in_thought, domain, task, uid, strict=True)
            )
        ]
        clock.num_rollouts += len(uid)
        scores = [future.result().score for future in futures]
        return [
            score
            if score is None or ids[-1] == end_token
            else score * factor  # TRL leaves out None, a failure
            for score, ids, factor in zip(scores, completion_ids, unfinished_factor, strict=True)
        ]

    return verdicts


if __name__ == "__main__":
    main()
