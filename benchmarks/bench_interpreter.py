"""How far two loops in Python slow each other down in one process, as sampling ahead has them, and in two.

    .venv/bin/python benchmarks/bench_interpreter.py [--sequences 256] [--seconds 1] [--rounds 6]

One loop is vLLM's engine: its scheduler and its processing of outputs, for so many sequences at a time, with nothing in
the place of the model, so that every microsecond of it is Python's. The other loop stands for the trainer, which drives
its GPU from Python: `launches` calls one small tensor operation after the other, as a pass does that launches kernels;
`python` is arithmetic in Python, the worst case. Prints the steps a second of both, alone and beside each other, in one
process (a thread each) and in two, and the same as shares of the rates alone. Needs two idle cores.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from random_model import write_random_model  # noqa: E402

from nemo_prorl.engines import environment  # noqa: E402

environment.prepare()  # before torch and vLLM are imported

import torch  # noqa: E402

PROMPT_TOKENS, RESPONSE_TOKENS = 200, 100_000


def launches() -> None:
    """Some hundred launches of next to no work."""
    value = torch.zeros(1)
    for _ in range(100):
        value = value + 1


def python() -> None:
    """About as long, in bytecode alone."""
    total = 0
    for number in range(2_000):
        total += number * number


TRAINERS: dict[str, Callable[[], None]] = {"launches": launches, "python": python}


def main() -> None:
    """Everything in turns, some rounds; the best of each, since other work on the machine only ever slows it down."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, default=256, help="decoded at a time (default 256)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement (default 1)")
    parser.add_argument("--rounds", type=int, default=6, help="of all measurements (default 6)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_random_model(Path(folder), features=64, num_layers=1, vocab_size=256)
        step = engine_step(folder, options.sequences)
    other = Other()
    best: dict[str, float] = defaultdict(float)
    for _ in range(options.rounds):
        found = {"engine alone": rate(step, options.seconds)}
        for name, work in TRAINERS.items():
            found[f"{name} alone"] = rate(work, options.seconds)
            for where, beside in (("one process", in_a_thread), ("two processes", other.beside)):
                engine, trainer = beside(step, name, options.seconds)
                found |= {f"engine, {name}, {where}": engine, f"{name}, {where}": trainer}
        best |= {key: max(best[key], value) for key, value in found.items()}
    other.end()
    print(f"engine of {options.sequences} sequences, alone: {best['engine alone']:.0f} steps/s")
    for name in TRAINERS:
        for where in ("one process", "two processes"):
            engine, trainer = best[f"engine, {name}, {where}"], best[f"{name}, {where}"]
            print(
                f"beside {name}, {where}: engine {engine:.0f} steps/s ({engine / best['engine alone']:.0%}), trainer "
                f"{trainer:.0f} steps/s ({trainer / best[f'{name} alone']:.0%})"
            )


def engine_step(model: str, num_sequences: int) -> Callable[[], Any]:
    """One step of a vLLM engine that decodes so many sequences, whose model answers at once."""
    import numpy as np
    from vllm import LLM, SamplingParams
    from vllm.inputs import tokens_input
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput

    llm = LLM(
        model=model, dtype="float32", load_format="dummy", skip_tokenizer_init=True, enforce_eager=True,
        max_model_len=RESPONSE_TOKENS, max_num_seqs=num_sequences, kv_cache_memory_bytes=2 << 30,
        disable_log_stats=True, logprobs_mode="processed_logprobs",
        hf_overrides={"max_position_embeddings": RESPONSE_TOKENS},
    )  # fmt: skip

    def answer(scheduled: Any, non_block: bool = False) -> Future[ModelRunnerOutput]:
        ids = list(scheduled.num_scheduled_tokens)
        count = len(ids)
        logprobs = LogprobsLists(
            np.full((count, 1), 5, np.int32), np.full((count, 1), -0.5, np.float32), np.zeros(count, np.int32)
        )
        done: Future[ModelRunnerOutput] = Future()
        done.set_result(
            ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={name: index for index, name in enumerate(ids)},
                sampled_token_ids=[[5]] * count,
                logprobs=logprobs,
            )
        )
        return done

    llm.llm_engine.engine_core.engine_core.model_executor.execute_model = answer  # type: ignore[attr-defined]
    for number in range(num_sequences):
        params = SamplingParams(
            max_tokens=RESPONSE_TOKENS - PROMPT_TOKENS - 1, seed=number, logprobs=0, flat_logprobs=True,
            detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY, stop_token_ids=[2],
        )  # fmt: skip
        llm.llm_engine.add_request(str(number), tokens_input([7] * PROMPT_TOKENS), params)
    for _ in range(50):  # all prompts have been read by then
        llm.llm_engine.step()
    return llm.llm_engine.step


def rate(work: Callable[[], Any], seconds: float, go_on: Callable[[], bool] = lambda: True) -> float:
    """Calls a second."""
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds and go_on():
        work()
        count += 1
    return count / (time.perf_counter() - start)


def in_a_thread(step: Callable[[], Any], trainer: str, seconds: float) -> tuple[float, float]:
    """(steps a second of the engine, of the trainer): the engine in a thread, as training/ahead.py has it."""
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(rate(step, seconds)))
    thread.start()
    of_trainer = rate(TRAINERS[trainer], seconds, thread.is_alive)
    thread.join()
    return found[0], of_trainer


class Other:
    """A process of its own for the trainer's loop."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        self._pipe.recv()  # it has started

    def beside(self, step: Callable[[], Any], trainer: str, seconds: float) -> tuple[float, float]:
        """As `in_a_thread`, with the trainer over there."""
        self._pipe.send((trainer, seconds))
        of_engine = rate(step, seconds)
        of_trainer: float = self._pipe.recv()
        return of_engine, of_trainer

    def end(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.join()


def _serve(pipe: Any) -> None:
    torch.set_num_threads(1)
    pipe.send("ready")
    while True:
        trainer, seconds = pipe.recv()
        pipe.send(rate(TRAINERS[trainer], seconds))


if __name__ == "__main__":
    main()
