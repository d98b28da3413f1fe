"""VllmSampler: the Sampler protocol (engines/interface.py) on vLLM, in the policy's process, on CPU and on CUDA.

Every rank constructs one; `sampler.tensor_parallel` consecutive ranks form one engine. The ranks of an engine pass the
same prompts, settings and weights, and each gets all results. Different engines are independent of each other.
`environment.prepare()` has to be called before this module is imported. Written for vLLM 0.32.
"""

from __future__ import annotations

import hashlib
import os
import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import vllm
import vllm.v1.engine.core as engine_core
from transformers import PreTrainedTokenizerBase
from vllm import LLM, SamplingParams
from vllm.config import WeightTransferConfig
from vllm.distributed.device_communicators.cpu_communicator import _CPUSHMDistributed
from vllm.inputs import tokens_input
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.outputs import RequestOutput
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind

from nemo_prorl.config import Precision, RunConfig
from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.interface import LoadedWeights, NonFiniteUpdate, SamplingSettings
from nemo_prorl.engines.megatron.architecture import read_architecture
from nemo_prorl.engines.megatron.check import CPU_BLOCK_TOKENS
from nemo_prorl.engines.megatron.weight_files import check_finite
from nemo_prorl.engines.passthrough import check_engine_args, refusals
from nemo_prorl.engines.tokenizer import stop_ids
from nemo_prorl.engines.vllm import weight_transfer
from nemo_prorl.types import Finish, Prompt, Rollout

DEFAULT_LARGEST_GRAPH = 512
"""Sequences of vLLM's largest CUDA graph on GPUs before Blackwell unless it is told otherwise; steps of more have none
(vllm/config/vllm.py, 0.32)."""


class VllmSampler:
    """See `engines.interface.Sampler`.

    tokenizer: the one that made the prompts; it has to be the same object, since transformers may load one folder as
    different classes. reads_weights: whether to start with the weights of `config.model.path`, as policy version 0. If
    not, the sampler refuses to sample before the first `load_weights`.

    Raises ConfigError if vLLM cannot run the model on this machine.
    """

    def __init__(
        self,
        config: RunConfig,
        ranks: Ranks,
        tokenizer: PreTrainedTokenizerBase,
        *,
        reads_weights: bool = True,
    ) -> None:
        if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") != "0" or not dist.is_initialized():
            # Otherwise vLLM would start its own processes, or create a default process group that conflicts with ours.
            raise RuntimeError(
                "Call environment.prepare() and distributed.initialise() before building a sampler."
            )
        sampler = config.sampler
        self.engine = ranks.layout.rank // sampler.tensor_parallel
        """Index of this rank's engine."""
        self.num_engines = ranks.layout.world_size // sampler.tensor_parallel
        """Number of engines. Each may be given different prompts."""
        self.num_preemptions = 0
        self.released_gib = 0.0
        """See `engines.interface.Sampler`."""
        self._on_cpu = current_platform.is_cpu()
        # Sampling ahead runs concurrently with the policy, hence on another stream. It has to be the same stream every
        # time: vLLM's runner keeps the first one and waits for it before it copies sampled tokens to the host.
        self._stream = torch.cuda.Stream() if sampler.ahead and not self._on_cpu else None
        self._context_tokens = sampler.context_tokens
        self._sleeps = sampler.release_memory and not self._on_cpu
        self._asleep = False
        self._has_kv_cache = True  # False from `sleep` to the end of the refit
        self._policy_version = 0 if reads_weights else -1
        self._unusable = "" if reads_weights else "it has no weights yet; load a complete set"
        """Why the sampler must not sample; empty if it may."""
        self._kv_cache_is_poisoned = False
        """Whether the KV cache may contain NaN."""

        folder = Path(config.model.path)
        self._architecture = read_architecture(folder)
        self._tokenizer = tokenizer
        self._stop_ids = stop_ids(folder, tokenizer)
        if reads_weights:
            share, num_shares = ranks.layout.rank, ranks.layout.world_size
            ranks.together(lambda: check_finite(folder, share=share, num_shares=num_shares))
        weight_transfer.register()
        check_engine_args(config.sampler)
        job = ranks.from_main(uuid.uuid4().hex)
        with (
            _host_process_undisturbed(),
            self._one_thread(),
            self._own_stream(),
            _shared_memory_of(job),
            refusals("sampler.engine_args", sampler.engine_args),
        ):
            settings = _settings(config, reads_weights=reads_weights, on_cpu=self._on_cpu)
            self._llm = LLM(**settings, **sampler.engine_args)
            self._llm.init_weight_transfer_engine({"init_info": {}})
        self._count_preemptions()

    def sample(
        self,
        prompts: Sequence[Prompt],
        settings: SamplingSettings,
        on_finish: Callable[[Rollout], None],
        siblings: Sequence[Sequence[int]] | None = None,
    ) -> list[list[Rollout]]:
        """See `engines.interface.Sampler`.

        Every rollout has its own random generator, seeded by (settings.seed, prompt.uid, sibling), so in fp32 the
        result does not depend on order, batch or engine. A response ends after `max_response_tokens` tokens or where
        the context is full. Its text includes special tokens, since graders look for tags such as `</think>`, but not
        the stop token at its end.

        Raises vLLM's VLLMValidationError for a prompt that is empty or fills the context, and RuntimeError if there are
        no usable weights. After any exception, also one from `on_finish`, the engine is idle and can be used again.
        """
        if self._unusable or self._asleep:
            raise RuntimeError(
                f"The sampler cannot sample: {self._unusable or 'it is asleep, call wake() first'}."
            )
        wanted = siblings or [range(settings.num_rollouts)] * len(prompts)
        groups: list[dict[int, Rollout]] = [{} for _ in prompts]
        waiting: set[str] = set()
        engine = self._llm.llm_engine
        # A resumed run has no prefixes cached by earlier calls, and would get different results if they were used here.
        self._llm.reset_prefix_cache()
        # vLLM draws from torch's global generator at each step, even for requests that have their own seed.
        with self._one_thread(), self._own_stream(), torch.random.fork_rng(devices=[]):
            try:
                for index, (prompt, mine) in enumerate(zip(prompts, wanted, strict=True)):
                    for sibling in mine:
                        waiting.add(f"{index}/{sibling}")
                        engine.add_request(
                            f"{index}/{sibling}",
                            tokens_input(list(prompt.token_ids)),
                            self._params(prompt, sibling, settings),
                        )
                while waiting:
                    for output in engine.step():
                        assert isinstance(output, RequestOutput)
                        waiting.remove(output.request_id)
                        index, sibling = map(int, output.request_id.split("/"))
                        rollout = self._rollout(prompts[index], sibling, output)
                        groups[index][sibling] = rollout
                        on_finish(rollout)
            finally:
                engine.abort_request(list(waiting))
        return [[group[sibling] for sibling in mine] for group, mine in zip(groups, wanted, strict=True)]

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> LoadedWeights:
        """See `engines.interface.Sampler`. `weights` may be of any float dtype, on CPU or this rank's GPU. They are
        read one by one and not kept; none may be written to until this returns.

        Raises ValueError for a missing, unknown, repeated or misshaped tensor and NonFiniteUpdate for NaN or infinity.
        Other tensors have been loaded by then, since a second model may not fit into memory; after any exception the
        engine refuses to sample until a load succeeds.
        """
        if self._asleep:
            raise RuntimeError("The sampler cannot load weights: it is asleep, call wake() first.")
        self._kv_cache_is_poisoned |= bool(self._unusable) and self._policy_version >= 0
        self._unusable = f"loading weights of version {version} failed; load a complete set"
        checked = weight_transfer.checked(weights, self._architecture)
        loaded: list[LoadedWeights] = []
        with self._one_thread(), self._own_stream():
            self._llm.start_weight_update()
            self._llm.update_weights({"update_info": {"weights": checked, "loaded": loaded}})
            self._llm.finish_weight_update(str(version))
            if bad := loaded[0].not_finite:
                raise NonFiniteUpdate(f"The weight {bad[0]!r} holds NaN or infinity.")
            if not self._has_kv_cache:
                self._llm.wake_up(tags=["kv_cache"])
                self._has_kv_cache = True
            if not self._llm.reset_prefix_cache():
                raise RuntimeError("vLLM kept its prefix cache: requests are still running.")
            if self._kv_cache_is_poisoned:
                # NaN stays in freed blocks and would reach later rollouts: at masked positions attention adds 0 x NaN.
                self._llm.collective_rpc(_zero_kv_cache)
                self._kv_cache_is_poisoned = False
        self._policy_version = version
        self._unusable = ""
        return loaded[0]

    def wake(self) -> None:
        """Allocates memory for the weights again, which the next `load_weights` has to fill. That load needs the KV
        cache's memory for its own tensors, and allocates the cache at its end. Has no effect on CPU or without
        `sampler.release_memory`."""
        if self._asleep:
            self._llm.wake_up(tags=["weights"])
            self._asleep, self.released_gib = False, 0.0

    def sleep(self) -> None:
        """Frees the GPU memory of weights and KV cache (vLLM's sleep level 2). The engine refuses to sample until it is
        awake and a complete set of weights is loaded. Has no effect on CPU or without `sampler.release_memory`."""
        if self._sleeps and not self._asleep:
            self._llm.sleep(level=2)
            self._asleep, self._has_kv_cache = True, False
            (self.released_gib,) = self._llm.collective_rpc(_asleep_gib)
            self._kv_cache_is_poisoned = True  # memory that is allocated later may hold anything
            self._unusable = "its weights were dropped when it fell asleep; load a complete set"

    def in_use(self) -> dict[str, str]:
        """See `engines.interface.Sampler`. Describes this rank's worker only."""
        (facts, *_) = self._llm.collective_rpc(_facts)
        config = self._llm.llm_engine.vllm_config
        asynchronous = config.scheduler_config.async_scheduling
        return facts | {
            "scheduling": "asynchronous" if asynchronous else "synchronous",
            "KV cache": f"{config.cache_config.kv_cache_size_tokens:,} tokens",
            "CUDA graphs": str(config.compilation_config.cudagraph_mode.name).lower(),
        }

    def close(self) -> None:
        """Stops the engine. The default process group, which vLLM would destroy, stays."""
        cleanup = engine_core.cleanup_dist_env_and_memory
        engine_core.cleanup_dist_env_and_memory = lambda *args, **kwargs: None
        try:
            self._llm.llm_engine.engine_core.shutdown()
        finally:
            engine_core.cleanup_dist_env_and_memory = cleanup
        self._unusable = "it is closed"

    def _params(self, prompt: Prompt, sibling: int, settings: SamplingSettings) -> SamplingParams:
        return SamplingParams(
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=-1,
            max_tokens=min(settings.max_response_tokens, self._context_tokens - len(prompt.token_ids)),
            stop_token_ids=self._stop_ids,
            seed=rollout_seed(settings.seed, prompt.uid, sibling),
            logprobs=0,  # the sampled token's only
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _rollout(self, prompt: Prompt, sibling: int, output: RequestOutput) -> Rollout:
        (completion,) = output.outputs
        token_ids = np.asarray(completion.token_ids, dtype=np.int64)
        logprobs = np.asarray(completion.logprobs.logprobs, dtype=np.float32)  # type: ignore[union-attr]
        if not np.isfinite(logprobs).all():
            self._kv_cache_is_poisoned = True
            self._unusable = f"its weights of version {self._policy_version} give NaN; load other weights"
            raise RuntimeError(
                f"The sampler got NaN log-probabilities from policy version {self._policy_version}."
            )
        # Decoded together: a decoder of SentencePiece drops the space of the first token.
        begun = self._tokenizer.encode(prompt.begun, add_special_tokens=False)
        text = self._tokenizer.decode(
            [*begun, *(token for token in completion.token_ids if token not in self._stop_ids)],
            skip_special_tokens=False,
            clean_up_tokenization_spaces=False,
        )
        return Rollout(
            prompt=prompt,
            sibling=sibling,
            token_ids=token_ids,
            sampler_logprobs=logprobs,
            text=text,
            finish=Finish(str(completion.finish_reason)),
            policy_version=self._policy_version,
        )

    def _count_preemptions(self) -> None:
        """Makes `num_preemptions` count the scheduler's preemptions. vLLM counts them only together with expensive
        statistics of every token."""
        scheduler = self._llm.llm_engine.engine_core.engine_core.scheduler
        preempt = scheduler._preempt_request

        def counted(*args: Any, **kwargs: Any) -> None:
            self.num_preemptions += 1
            preempt(*args, **kwargs)

        scheduler._preempt_request = counted

    @contextmanager
    def _one_thread(self) -> Iterator[None]:
        """Uses one CPU thread inside the `with` block, because with several, which the policy may use, the result of a
        sum depends on how it is split. Has no effect on CUDA."""
        threads = torch.get_num_threads()
        if self._on_cpu:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            if self._on_cpu:
                torch.set_num_threads(threads)

    @contextmanager
    def _own_stream(self) -> Iterator[None]:
        """Runs the GPU work of the `with` block on the sampler's stream, if it has one: after all work that the policy
        has launched so far, and completed on exit. Any thread may use it."""
        if self._stream is None:
            yield
            return
        with torch.cuda.device(self._stream.device):  # a new thread starts on the first GPU
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                try:
                    yield
                finally:
                    self._stream.synchronize()


@contextmanager
def _host_process_undisturbed() -> Iterator[None]:
    """Restores on exit what vLLM changes in the process while it starts: it seeds all random generators, disables
    torch.set_num_threads and rewrites environment variables that child processes and launchers read."""
    variables = ("LD_PRELOAD", "LD_LIBRARY_PATH", "LOCAL_WORLD_SIZE")
    before = {name: os.environ.get(name) for name in variables}
    set_num_threads = torch.set_num_threads
    states = random.getstate(), np.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_num_threads = set_num_threads
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _shared_memory_of(job: str) -> Iterator[None]:
    """Gives the shared memory through which the ranks of an engine communicate on CPU a name that is unique to `job`,
    and unlinks it on exit, when all ranks have opened it.

    vLLM derives the name from the engine's address, which is the same for every job under an external launcher: two
    jobs on one machine would share the memory, and the file of a killed job would keep all later ones from starting.
    """
    name = _CPUSHMDistributed.make_group_name
    _CPUSHMDistributed.make_group_name = staticmethod(
        lambda communicator: f"nemo_prorl-{job}{name(communicator).lstrip('/')}"
    )
    try:
        yield
    finally:
        _CPUSHMDistributed.make_group_name = staticmethod(name)
        for file in Path("/dev/shm").glob(f"nemo_prorl-{job}*"):
            file.unlink(missing_ok=True)


def rollout_seed(seed: int, uid: str, sibling: int) -> int:
    """Returns a 63-bit seed, the same in every process (unlike Python's `hash`)."""
    digest = hashlib.blake2b(f"{seed}/{sibling}/{uid}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _settings(config: RunConfig, *, reads_weights: bool, on_cpu: bool) -> dict[str, Any]:
    """Returns the arguments of `vllm.LLM`."""
    sampler = config.sampler
    settings = {
        "model": config.model.path,
        "load_format": "auto" if reads_weights else "dummy",
        "dtype": "float32" if config.model.precision is Precision.fp32 else "bfloat16",
        # Logits in fp32, as in the trainer: in 16 bits they would be rounded to steps of up to 0.1 nats.
        "hf_overrides": {"head_dtype": "float32"},
        # Log-probabilities under the distribution that is sampled from: after temperature and top-p.
        "logprobs_mode": "processed_logprobs",
        # Each request defines its sampling completely; the checkpoint's generation_config.json is ignored.
        "generation_config": "vllm",
        "max_model_len": sampler.context_tokens,
        "max_num_seqs": sampler.max_sequences,
        "tensor_parallel_size": sampler.tensor_parallel,
        "distributed_executor_backend": "external_launcher",
        "skip_tokenizer_init": True,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "seed": 0,
        "weight_transfer_config": WeightTransferConfig(backend=weight_transfer.BACKEND),
    }
    if not on_cpu:
        # vLLM captures every 16th size, and refuses a largest one beside sizes that are given.
        sizes_given = "cudagraph_capture_size" in str(sampler.engine_args)
        if sampler.max_sequences > DEFAULT_LARGEST_GRAPH and not sizes_given:
            settings["max_cudagraph_capture_size"] = -(-sampler.max_sequences // 16) * 16
        return settings | {
            "enforce_eager": sampler.enforce_eager,
            "gpu_memory_utilization": sampler.memory_fraction,
            "enable_sleep_mode": sampler.release_memory,
        }
    return settings | {
        "enforce_eager": True,
        "kv_cache_memory_bytes": sampler.kv_cache_mib << 20,
        "block_size": CPU_BLOCK_TOKENS,
        # If a prompt is prefilled in two parts, vLLM rewinds its random generator. CPU generators cannot do that, and
        # vLLM raises an error. So prompts are prefilled whole, and a step has room for the longest one.
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(8192, sampler.context_tokens, sampler.max_sequences),
    }


def _asleep_gib(worker: Any) -> float:
    """Returns the GiB of vLLM's memory pool that have no memory behind them. Runs in the worker."""
    from vllm.device_allocator.cumem import CuMemAllocator

    pieces = CuMemAllocator.get_instance().pointer_to_data.values()
    return sum(piece.handle[1] for piece in pieces if piece.is_asleep) / 2**30


def _facts(worker: Any) -> dict[str, str]:
    """Returns what a worker computes with. Runs in the worker."""
    layers = worker.vllm_config.compilation_config.static_forward_context.values()
    backends = {layer.get_attn_backend().get_name() for layer in layers if hasattr(layer, "get_attn_backend")}
    heads = {
        module.head_dtype for module in worker.get_model().modules() if isinstance(module, LogitsProcessor)
    }
    return {
        "sampler": f"vLLM {vllm.__version__}",
        "model runner": "V2" if worker.use_v2_model_runner else "V1",
        "sampler's attention": ", ".join(sorted(backends)),
        "sampler's head": ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in heads)),
    }


def _zero_kv_cache(worker: Any) -> None:
    for cache in worker.model_runner.kv_caches:
        cache.zero_()
