"""Rollouts from vLLM, in this process, beside the policy (Sampler of engines/interface.py). On CPU and on CUDA.

Every rank constructs one; `sampler.tensor_parallel` consecutive ranks form one engine. The ranks of an engine pass the
same prompts, settings and weights, and each gets all results; different engines are independent of each other.
`environment.prepare()` has to run before this module is imported. Written for vLLM 0.32.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import vllm
import vllm.v1.engine.core as engine_core
from transformers import AutoConfig, GenerationConfig, PreTrainedTokenizerBase
from vllm import LLM, SamplingParams
from vllm.config import WeightTransferConfig
from vllm.inputs import tokens_input
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.outputs import RequestOutput
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

from nemo_prorl.config import ConfigError, Precision, RunConfig
from nemo_prorl.distributed import Ranks
from nemo_prorl.engines import weight_transfer
from nemo_prorl.engines.interface import LoadedWeights, SamplingSettings
from nemo_prorl.engines.megatron.check import CPU_BLOCK_TOKENS
from nemo_prorl.engines.passthrough import check_engine_args, refusals
from nemo_prorl.engines.vllm_guest import host_process_undisturbed, shared_memory_of
from nemo_prorl.types import Finish, Prompt, Rollout


class VllmSampler:
    """Starts with the weights of the checkpoint `config.model.path`, as policy version 0; with `reads_weights` False it
    does not read them, and refuses to sample before the first `load_weights`. `tokenizer` is the one that made the
    prompts: one object, since transformers picks different classes for one folder.

    Raises ConfigError when the ranks cannot be split into engines or vLLM cannot run the model here.
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
            # Else vLLM would start processes of its own, or a default group that ours then clashes with.
            raise RuntimeError(
                "Call environment.prepare() and distributed.initialise() before building a sampler."
            )
        sampler = config.sampler
        if ranks.layout.world_size % sampler.tensor_parallel:
            raise ConfigError(
                f"{ranks.layout.world_size} rank(s) cannot be split into engines of "
                f"sampler.tensor_parallel={sampler.tensor_parallel}: write a divisor of the number of ranks."
            )
        self.engine = ranks.layout.rank // sampler.tensor_parallel
        """Index of this rank's engine."""
        self.num_engines = ranks.layout.world_size // sampler.tensor_parallel
        """Engines that may be given different prompts."""
        self.num_preemptions = 0
        """Rollouts that vLLM has removed from a full KV cache so far, to compute them again later."""
        self._on_cpu = current_platform.is_cpu()
        # Sampling ahead goes on beside the policy's work, so not on its stream. One stream for good: vLLM's runner
        # keeps the one that it finds at first, and copies sampled tokens out when that one has got so far.
        self._stream = torch.cuda.Stream() if sampler.ahead and not self._on_cpu else None
        self._context_tokens = sampler.context_tokens
        self._sleeps = sampler.release_memory and not self._on_cpu
        self._asleep = False
        self._has_kv_cache = True  # between `wake` and the refit it does not
        self._policy_version = 0 if reads_weights else -1
        self._unusable = "" if reads_weights else "it has no weights yet; load a complete set"
        """Why it may not sample; empty when it may."""
        self._kv_cache_is_poisoned = False

        hf_config = AutoConfig.from_pretrained(config.model.path).get_text_config()
        if self._on_cpu:
            _check_head_size(hf_config)
        self._vocab_size = int(hf_config.vocab_size)
        self._tied_head = bool(hf_config.tie_word_embeddings)
        self._shapes = weight_transfer.checkpoint_shapes(config.model.path)
        self._tokenizer = tokenizer
        self._stop_ids = _stop_ids(config.model.path, hf_config, tokenizer)
        self._silent_ids = {*self._stop_ids, self._tokenizer.pad_token_id}
        weight_transfer.register()
        check_engine_args(config)
        job = ranks.from_main(uuid.uuid4().hex)
        with (
            host_process_undisturbed(),
            self._one_thread(),
            self._own_stream(),
            shared_memory_of(job),
            refusals("sampler.engine_args", sampler.engine_args),
        ):
            settings = _settings(config, reads_weights=reads_weights)
            device_settings = _cpu_settings(config) if self._on_cpu else _cuda_settings(config)
            self._llm = LLM(**settings, **device_settings, **sampler.engine_args)
            self._llm.init_weight_transfer_engine({"init_info": {}})
        self._count_preemptions()

    def sample(
        self,
        prompts: Sequence[Prompt],
        settings: SamplingSettings,
        on_finish: Callable[[Rollout], None],
        siblings: Sequence[Sequence[int]] | None = None,
    ) -> list[list[Rollout]]:
        """`num_rollouts` rollouts of each prompt, or those of its `siblings`, in the order of `prompts` and siblings.

        `on_finish` gets each rollout from within the call, as soon as it ends. Every rollout has a random stream of
        its own, made from (settings.seed, prompt.uid, sibling): order, batch and engine do not matter in fp32.
        A response ends at `max_response_tokens` or where the context is full, whichever is first.

        `text` is decoded from the sampled ids with special tokens shown, since graders look for tags such as
        `</think>`; only end-of-sequence and padding tokens are left out.

        Raises ValueError on a prompt that is empty, fills the context or has ids outside the vocabulary, and
        RuntimeError when the weights are not usable. After any exception, one of `on_finish` included, the engine
        is idle and can be used again.
        """
        if self._unusable or self._asleep:
            raise RuntimeError(
                f"The sampler cannot sample: {self._unusable or 'it is asleep, call wake() first'}."
            )
        for prompt in prompts:
            self._check(prompt)
        wanted = siblings or [range(settings.num_rollouts)] * len(prompts)
        groups: list[dict[int, Rollout]] = [{} for _ in prompts]
        waiting: set[str] = set()
        engine = self._llm.llm_engine
        # What earlier calls have left there would make this one depend on them; a resumed run has had none.
        self._llm.reset_prefix_cache()
        # vLLM draws from torch's generator at each step, even for requests that have a seed of their own.
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
        """Replaces all weights in place by the complete set of Hugging-Face-named tensors, any float dtype, on CPU or
        this rank's GPU. They are read one by one and not kept; none may be written to until this returns.

        Raises ValueError on a missing, unknown, repeated or misshaped tensor and NonFiniteUpdate on NaN or infinity.
        A stream can be read only once and a second model may not fit, so tensors before the bad one are in place by
        then: after any exception the engine refuses to sample until a load succeeds.
        """
        if self._asleep:
            raise RuntimeError("The sampler cannot load weights: it is asleep, call wake() first.")
        self._kv_cache_is_poisoned |= bool(self._unusable) and self._policy_version >= 0
        self._unusable = f"loading weights of version {version} failed; load a complete set"
        checked = weight_transfer.checked(weights, self._shapes, self._tied_head)
        loaded: list[LoadedWeights] = []
        with self._one_thread(), self._own_stream():
            self._llm.start_weight_update()
            self._llm.update_weights({"update_info": {"weights": checked, "loaded": loaded}})
            self._llm.finish_weight_update(str(version))
            if not self._has_kv_cache:
                self._llm.wake_up(tags=["kv_cache"])
                self._has_kv_cache = True
            if not self._llm.reset_prefix_cache():
                raise RuntimeError("vLLM kept its prefix cache: requests are still running.")
            if self._kv_cache_is_poisoned:
                # NaN in a freed block outlives the weights that made it: 0 x NaN is NaN where attention masks.
                self._llm.collective_rpc(_zero_kv_cache)
                self._kv_cache_is_poisoned = False
        self._policy_version = version
        self._unusable = ""
        return loaded[0]

    def wake(self) -> None:
        """Allocates the memory of the weights again, for the refit that has to follow. The KV cache is allocated at the
        end of the refit, which needs room for tensors of its own. No effect on CPU or without
        `sampler.release_memory`."""
        if self._asleep:
            self._llm.wake_up(tags=["weights"])
            self._asleep = False

    def sleep(self) -> None:
        """Frees the GPU memory of weights and KV cache (vLLM's sleep level 2). The engine refuses to sample until it is
        awake and a complete set of weights is loaded."""
        if self._sleeps and not self._asleep:
            self._llm.sleep(level=2)
            self._asleep, self._has_kv_cache = True, False
            self._kv_cache_is_poisoned = True  # the memory that it gets may hold anything
            self._unusable = "its weights were dropped when it fell asleep; load a complete set"

    def in_use(self) -> dict[str, str]:
        """See `engines.interface.Sampler`. Of the worker of this rank alone."""
        (facts, *_) = self._llm.collective_rpc(_facts)
        config = self._llm.llm_engine.vllm_config
        asynchronous = config.scheduler_config.async_scheduling
        return facts | {
            "scheduling": "asynchronous" if asynchronous else "synchronous",
            "KV cache": f"{config.cache_config.kv_cache_size_tokens:,} tokens",
            "CUDA graphs": str(config.compilation_config.cudagraph_mode.name).lower(),
        }

    def close(self) -> None:
        """Ends the engine; the process group, which is ours, stays."""
        cleanup = engine_core.cleanup_dist_env_and_memory
        # vLLM takes the default process group for its own and would destroy it.
        engine_core.cleanup_dist_env_and_memory = lambda *args, **kwargs: None
        try:
            self._llm.llm_engine.engine_core.shutdown()
        finally:
            engine_core.cleanup_dist_env_and_memory = cleanup
        self._unusable = "it is closed"

    def _check(self, prompt: Prompt) -> None:
        length = len(prompt.token_ids)
        if not length:
            raise ValueError(f"Prompt {prompt.uid} has no tokens.")
        if length >= self._context_tokens:
            raise ValueError(
                f"Prompt {prompt.uid} has {length} tokens, which leaves no room for a response in a context of "
                f"{self._context_tokens} tokens."
            )
        if not 0 <= min(prompt.token_ids) <= max(prompt.token_ids) < self._vocab_size:
            raise ValueError(
                f"Prompt {prompt.uid} has token ids outside the vocabulary of {self._vocab_size}."
            )

    def _params(self, prompt: Prompt, sibling: int, settings: SamplingSettings) -> SamplingParams:
        return SamplingParams(
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=-1,
            max_tokens=min(settings.max_response_tokens, self._context_tokens - len(prompt.token_ids)),
            stop_token_ids=self._stop_ids,
            seed=rollout_seed(settings.seed, prompt.uid, sibling),
            logprobs=0,  # of the sampled token alone
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
            self._unusable = f"its weights of version {self._policy_version} give NaN; load others"
            raise RuntimeError(
                f"The sampler got NaN log-probabilities from policy version {self._policy_version}."
            )
        text = self._tokenizer.decode(
            [token for token in completion.token_ids if token not in self._silent_ids],
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
        """Counts calls of the scheduler: vLLM itself counts preemptions only along with statistics of every token."""
        scheduler = self._llm.llm_engine.engine_core.engine_core.scheduler
        preempt = scheduler._preempt_request

        def counted(*args: Any, **kwargs: Any) -> None:
            self.num_preemptions += 1
            preempt(*args, **kwargs)

        scheduler._preempt_request = counted

    @contextmanager
    def _one_thread(self) -> Iterator[None]:
        """On CPU: the policy may use more threads, but sums over several threads depend on how they are split."""
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
        """What the engine does in the body, in whichever thread, comes after all that the policy has been told to do so
        far, and is done on return."""
        if self._stream is None:
            yield
            return
        with torch.cuda.device(self._stream.device):  # threads begin with the first GPU
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                try:
                    yield
                finally:
                    self._stream.synchronize()


def rollout_seed(seed: int, uid: str, sibling: int) -> int:
    """63 bits, the same in every process (Python's own hash is not)."""
    digest = hashlib.blake2b(f"{seed}/{sibling}/{uid}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _settings(config: RunConfig, *, reads_weights: bool) -> dict[str, Any]:
    """Arguments of `vllm.LLM` that do not depend on the device."""
    sampler = config.sampler
    return {
        "model": config.model.path,
        "load_format": "auto" if reads_weights else "dummy",
        "dtype": "float32" if config.model.precision is Precision.fp32 else "bfloat16",
        # Logits in fp32, as the trainer has them: in 16 bits they would be rounded to steps of up to 0.1 nats.
        "hf_overrides": {"head_dtype": "float32"},
        # Log-probabilities of the distribution sampled from: temperature and top-p applied.
        "logprobs_mode": "processed_logprobs",
        # Sampling is given in full by each request, never by the checkpoint.
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


def _cpu_settings(config: RunConfig) -> dict[str, Any]:
    sampler = config.sampler
    return {
        "enforce_eager": True,
        "kv_cache_memory_bytes": sampler.kv_cache_mib << 20,
        "block_size": CPU_BLOCK_TOKENS,
        # A prompt that is prefilled in two parts has its generator rewound, which CPU generators cannot do: vLLM
        # raises in the middle of a step. So prompts are prefilled whole, and a step has room for the longest one.
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(8192, sampler.context_tokens, sampler.max_sequences),
    }


def _cuda_settings(config: RunConfig) -> dict[str, Any]:
    sampler = config.sampler
    return {
        "enforce_eager": sampler.enforce_eager,
        "gpu_memory_utilization": sampler.memory_fraction,
        "enable_sleep_mode": sampler.release_memory,
    }


def _check_head_size(hf_config: Any) -> None:
    """vLLM itself notices at the first sample."""
    size = getattr(hf_config, "head_dim", None) or hf_config.hidden_size // hf_config.num_attention_heads
    sizes = CPUAttentionBackend.get_supported_head_sizes()
    if size not in sizes:
        raise ConfigError(
            f"The model's attention heads have size {size}; vLLM on CPU runs sizes {sizes} only."
        )


def _stop_ids(path: str, hf_config: Any, tokenizer: Any) -> list[int]:
    """Every token that ends a response: of generation_config.json if there is one, else of config.json; and the
    tokenizer's end of sequence. Raises ConfigError when there is none: no response would ever end."""
    try:
        declared = GenerationConfig.from_pretrained(path).eos_token_id
    except OSError:
        declared = hf_config.eos_token_id
    ids = {*(declared if isinstance(declared, list) else [declared]), tokenizer.eos_token_id} - {None}
    if not ids:
        raise ConfigError(
            f"model.path={path} names no end-of-sequence token, in its tokenizer or its configuration."
        )
    return sorted(ids)


def _facts(worker: Any) -> dict[str, str]:
    """Reads from a worker what it computes with."""
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
