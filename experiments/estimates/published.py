"""Times that other trainers publish, each with the work that it took: the rows to which `plan --time` is fitted, and
those on which the fit is judged.

A row is here only if model, GPUs, prompts, rollouts and mean length are published or said below to be inferred.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nemo_prorl.cluster.plan.fit import Cluster
from nemo_prorl.cluster.scale.known import GPUS, Gpu
from nemo_prorl.cluster.scale.memory import estimate_memory
from nemo_prorl.cluster.scale.roofline import FITTED, Derates, StepTime, estimate_step, updates_s
from nemo_prorl.cluster.scale.known import shape_of
from nemo_prorl.cluster.scale.workload import Case
from nemo_prorl.config import (
    AlgorithmConfig,
    DataConfig,
    DynamicSamplingConfig,
    ModelConfig,
    Recompute,
    RunConfig,
    SamplerConfig,
    TrainerConfig,
)

H20 = Gpu(
    name="h20",
    memory_gib=95.1,
    flops=148e12,
    memory_bytes_s=4.0e12,
    nvlink_bytes_s=450e9,
    network_bytes_s=50e9,
)
"""NVIDIA publishes no data sheet for it; these figures are from resellers."""

MATH = "data/deepscaler/train.parquet"
STEP = "step"
"""The key of a whole step's seconds."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was run and how long it took."""

    name: str
    source: str
    model: str
    """A shape of `plan --shape`."""
    num_gpus: int
    prompts: int
    rollouts: int
    mean_tokens: float
    """Mean length of a response."""
    longest: int
    seconds: Mapping[str, float]
    """Part of a step, as roofline.py names it, or STEP -> published seconds."""
    gpu: Gpu = GPUS["h100"]
    prompt_tokens: int = 256
    """Mean length of a prompt."""
    updates: int = 4
    pass_tokens: int = 4096
    """Tokens in a pass of one replica."""
    layout: tuple[int, int, int] = (1, 1, 1)
    """Tensor and pipeline parallelism of the trainer, tensor parallelism of the sampler."""
    recompute: Recompute = Recompute.none
    kl: bool = True
    is_update_only: bool = False
    """Whether full sequences were trained on and nothing was sampled."""
    is_held_out: bool = False
    is_small: bool = False
    """Whether it is a whole run of a 1.5B model, which takes longer than any estimate; never fitted."""

    def case(self) -> Case:
        tensor, pipeline, sampler = self.layout
        config = RunConfig(
            model=ModelConfig(recompute=self.recompute),
            algorithm=AlgorithmConfig(kl_beta=1e-3 if self.kl else 0.0),
            data=DataConfig(train={MATH: 1.0}),
            trainer=TrainerConfig(
                prompts_per_step=self.prompts,
                updates_per_step=self.updates,
                micro_batch_tokens=self.pass_tokens,
                tensor_parallel=tensor,
                pipeline_parallel=pipeline,
            ),
            sampler=SamplerConfig(
                num_rollouts=self.rollouts,
                max_prompt_tokens=self.prompt_tokens,
                max_response_tokens=self.longest,
                tensor_parallel=sampler,
                memory_fraction=0.8,
                release_memory=True,
            ),
            dynamic_sampling=DynamicSamplingConfig(enabled=False),
        )
        cluster = Cluster(num_nodes=max(1, self.num_gpus // 8), gpus_per_node=min(8, self.num_gpus))
        share = min(self.mean_tokens / self.longest, 0.9999)
        return Case(
            model=shape_of(self.model), config=config, cluster=cluster, gpu=self.gpu, response_share=share
        )

    def estimate(self, derates: Derates = FITTED) -> dict[str, float]:
        """Returns the estimated seconds of each published part."""
        case = self.case()
        if self.is_update_only:
            return {"updates": updates_s(case, derates)}
        time: StepTime = estimate_step(case, estimate_memory(case), derates)
        parts = {**time.parts, STEP: time.seconds}
        return {part: parts[part] for part in self.seconds if part in parts}

    def factors(self, derates: Derates = FITTED) -> dict[str, float]:
        """Returns published over estimated seconds, part by part."""
        return {part: self.seconds[part] / estimate for part, estimate in self.estimate(derates).items()}


def _nemo(name: str, **changes: object) -> Row:
    """NeMo RL's GRPO on Megatron with 64 prompts x 32 rollouts and passes of 4,096 tokens, as its configurations say;
    the length of prompts follows from its table, whose tokens per GPU and second include them."""
    common = {"prompts": 64, "rollouts": 32, "longest": 4096, "pass_tokens": 4096, "prompt_tokens": 132}
    return Row(name=name, **(common | changes))  # type: ignore[arg-type]


def _verl(num_gpus: int, sampling: float, logprobs: float, updates: float, **changes: object) -> Row:
    """The colocated trainer of verl's documentation of its fully asynchronous one: Qwen2.5-Math-7B, 512 prompts x 16
    rollouts of up to 28k tokens, 16 updates, on H20."""
    return Row(
        name=f"verl 7B, {num_gpus} H20",
        source="verl docs/advance/fully_async.md at 2147009",
        model="qwen2.5-7b",
        gpu=H20,
        num_gpus=num_gpus,
        prompts=512,
        rollouts=16,
        mean_tokens=VERL_MEAN_TOKENS,
        longest=28 * 1024,
        updates=16,
        pass_tokens=32_768,
        kl=False,
        seconds={"sampling": sampling, "passes": logprobs, "updates": updates},
        **changes,  # type: ignore[arg-type]
    )


def _prime(model: str, num_gpus: int, context: int, seconds: float, **changes: object) -> Row:
    """A pass of prime-rl's trainer over one full sequence per GPU; `seconds` are those of two such passes."""
    gpu = changes.get("gpu", GPUS["h100"])
    return Row(
        name=f"prime-rl {model}, {num_gpus} {gpu.name.upper()}, {context // 1024}k",  # type: ignore[attr-defined]
        source="prime-rl benchmarks/results/BENCHMARKS.md at 30bf494",
        model=model,
        num_gpus=num_gpus,
        prompts=num_gpus,
        rollouts=2,
        mean_tokens=context,
        longest=context - 1,
        updates=1,
        pass_tokens=context,
        prompt_tokens=1,
        recompute=Recompute.full,
        is_update_only=True,
        seconds={"updates": seconds},
        **changes,  # type: ignore[arg-type]
    )


def _ours(what: str, **changes: object) -> Row:
    """What was measured of this trainer."""
    common = {"model": "r1-distill-qwen-1.5b", "num_gpus": 1, "source": f"experiments/gpu.md: {what}"}
    return Row(name="this trainer 1.5B, 1 H100", **(common | changes))  # type: ignore[arg-type]


def _deepscaler(name: str, source: str, gpu: Gpu, seconds: float) -> Row:
    """The first stage of DeepScaleR, as users ran it: 128 prompts x 8 rollouts of up to 8k tokens; the mean length is
    the one that its authors give for the beginning."""
    return Row(
        name=name,
        source=source,
        model="r1-distill-qwen-1.5b",
        gpu=gpu,
        num_gpus=8,
        prompts=128,
        rollouts=8,
        mean_tokens=5_500,
        longest=8192,
        updates=2,
        pass_tokens=32_768,
        recompute=Recompute.full,
        seconds={STEP: seconds},
        is_held_out=True,
        is_small=True,
    )


VERL_MEAN_TOKENS = 1_680.0
"""Mean response length of verl's rows, which is not published: fitted together with the derates."""

ROWS = (
    _nemo(
        "NeMo RL 8B, 8 H100",
        source="NeMo-RL#959, blog of v0.3",
        model="llama3-8b",
        num_gpus=8,
        mean_tokens=795,
        layout=(1, 2, 1),
        seconds={"sampling": 58, "passes": 18, "updates": 28, "refit": 5, STEP: 112},
    ),
    _nemo(
        "NeMo RL 8B, 8 H100, a user's",
        source="NeMo-RL#959",
        model="llama3-8b",
        num_gpus=8,
        mean_tokens=811,
        layout=(1, 2, 1),
        seconds={"sampling": 56, "passes": 18, "updates": 27, "refit": 8, STEP: 116},
    ),
    _nemo(
        "NeMo RL 70B, 64 H100",
        source="NeMo-RL#959, blog of v0.3",
        model="llama3-70b",
        num_gpus=64,
        mean_tokens=398,
        layout=(4, 4, 4),
        seconds={"sampling": 84, "passes": 18, "updates": 28, "refit": 14, STEP: 147},
    ),
    _nemo(
        "NeMo RL 70B, 64 H100, a user's",
        source="NeMo-RL#959",
        model="llama3-70b",
        num_gpus=64,
        mean_tokens=396,
        layout=(4, 4, 4),
        seconds={"sampling": 87, "passes": 20, "updates": 31, "refit": 26, STEP: 178},
    ),
    _verl(32, 357.41, 107.71, 313.81),
    _verl(128, 177.85, 53.92, 113.81),
    _ours(
        "gpu-check, 131,072 tokens in rollouts of 2k to 8k",
        prompts=17,
        rollouts=2,
        mean_tokens=3_839,
        longest=8_176,
        prompt_tokens=16,
        updates=1,
        pass_tokens=8_192,
        is_update_only=True,
        seconds={"updates": 3.205},
    ),
    _ours(
        "the second step of a run",
        prompts=16,
        rollouts=16,
        mean_tokens=1_023.9,
        longest=1_024,
        prompt_tokens=32,
        pass_tokens=16_384,
        seconds={"sampling": 10.0, "passes": 3.49},
    ),
    _prime("qwen3-0.6b", 1, 16_384, 2 * 1.38),
    _prime("qwen3-4b", 8, 16_384, 2 * 5.04),
    _prime("qwen3-4b", 8, 65_536, 2 * 18.10),
    _prime("qwen3-4b", 8, 16_384, 2 * 4.78, gpu=GPUS["h200"]),
    _verl(64, 150.72, 70.26, 133.41, is_held_out=True),
    _prime("qwen3-0.6b", 1, 65_536, 2 * 6.46, is_held_out=True),
    _nemo(
        "NeMo RL 8B, 16 H100",
        source="NeMo-RL docs/about/performance-summary.md, v0.4",
        model="llama3-8b",
        num_gpus=16,
        mean_tokens=1_060,
        layout=(1, 2, 1),
        seconds={STEP: 97.7},
        is_held_out=True,
    ),
    _nemo(
        "NeMo RL 32B, 32 H100",
        source="NeMo-RL docs/about/performance-summary.md, v0.4",
        model="qwen3-32b",
        num_gpus=32,
        mean_tokens=3_206,
        layout=(4, 4, 4),
        seconds={STEP: 393},
        is_held_out=True,
    ),
    _deepscaler("DeepScaleR 1.5B at 8k, 8 H100", "rllm#6", GPUS["h100"], 394),
    _deepscaler("DeepScaleR 1.5B at 8k, 8 H200", "rllm#29", GPUS["h200"], 396),
    Row(
        name="AReaL 1.5B, 128 H800",
        source="AReaL blog v0.3 (41.0 h for 1,000 steps) and AReaL#119; a mean of 8k tokens is assumed",
        model="r1-distill-qwen-1.5b",
        num_gpus=128,
        prompts=512,
        rollouts=16,
        mean_tokens=8_000,
        longest=27_648,
        pass_tokens=32_768,
        recompute=Recompute.full,
        seconds={STEP: 147.6},
        is_held_out=True,
        is_small=True,
    ),
)
