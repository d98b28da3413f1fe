"""trainer.*: the size of a step, the parallel layout and the optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from nemo_prorl.config.sections.checks import ConfigError, at_least, positive, require

Device = StrEnum("Device", ["auto", "cpu", "cuda"])
Optimizer = StrEnum("Optimizer", ["adam", "sgd"])
Decay = StrEnum("Decay", ["constant", "linear", "cosine"])


@dataclass(slots=True, kw_only=True)
class TrainerConfig:
    """The step's size, the parallel layout and the optimizer."""

    device: Device = Device.auto
    """Device that the ranks compute on. auto: the GPUs that the process can see, else the CPU, which a job with GPUs of
    Slurm uses only if it is named."""
    num_steps: int = 1000
    """Number of steps in this stage."""
    prompts_per_step: int = 256
    """Informative groups that a step trains on (ProRL: 256)."""
    updates_per_step: int = 4
    """Optimizer updates per step; the groups are split evenly between them (ProRL: mini-batch 64, hence 4)."""
    tensor_parallel: int = 1
    """Tensor-parallel size: ranks that each layer is split over."""
    pipeline_parallel: int = 1
    """Pipeline-parallel size: ranks that the layers are distributed over."""
    sequence_parallel: bool = False
    """Splits activations between the tensor-parallel regions along the sequence; needs tensor_parallel > 1."""
    distributed_optimizer: bool = True
    """Shards Adam's state over data-parallel ranks."""
    micro_batch_tokens: int = 32768
    """Tokens in one pass, with padding unless sequences are packed; a longer rollout gets a pass of its own."""
    packing: bool = True
    """Packs sequences without padding (thd layout) where attention supports it: Transformer Engine on CUDA, in bf16."""
    optimizer: Optimizer = Optimizer.adam
    """adam: AdamW; sgd: without momentum, so that there are no moments (arXiv 2602.07729), at a far larger rate."""
    learning_rate: float = 2e-6
    """Learning rate after the warm-up and before any decay (ProRL: 2e-6, constant). 0: Adam's by the number of weights
    and the rank (docs/recipes.md)."""
    warmup_updates: int = 0
    """Updates of linear warm-up from the start of the first stage; later stages have none."""
    decay: Decay = Decay.constant
    """Learning-rate schedule after the warm-up (ProRL: constant)."""
    decay_updates: int = 0
    """Updates from the start of the first stage to the end of the decay, at the earliest with the last update of this
    stage; required unless decay is constant."""
    adam_beta1: float = 0.9
    """AdamW's decay rate of the first moment."""
    adam_beta2: float = 0.999
    """AdamW's decay rate of the second moment."""
    adam_epsilon: float = 1e-8
    """Added to the root of AdamW's second moment."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    clip_grad: float = 1.0
    """Upper bound of the global gradient norm."""
    cpu_threads: int = 1
    """Threads of the policy's passes on CPU; sampling always uses one, which makes it bitwise reproducible."""
    start_timeout_s: float = 300.0
    """Seconds in which all ranks of a job must have reached each other; on a slow file system they import torch minutes
    apart."""
    hang_timeout_s: float = 1800.0
    """Seconds without progress after which a rank writes its stack traces to RUN/stacks/ and fails, so that launchers
    restart the job; 0: never."""

    def __post_init__(self) -> None:
        counts = ["num_steps", "prompts_per_step", "updates_per_step", "tensor_parallel", "pipeline_parallel"]
        at_least("trainer", self, 1, [*counts, "micro_batch_tokens", "cpu_threads"])
        rates = ["learning_rate", "weight_decay"]
        at_least("trainer", self, 0, [*rates, "warmup_updates", "decay_updates", "hang_timeout_s"])
        positive("trainer", self, ["clip_grad", "adam_epsilon", "start_timeout_s"])
        if self.optimizer is Optimizer.sgd and not self.learning_rate:
            raise ConfigError(
                "trainer.learning_rate=0 stands for a rate of Adam: with trainer.optimizer=sgd write a number, such as "
                "trainer.learning_rate=0.1."
            )
        for name in ("adam_beta1", "adam_beta2"):
            require(0 <= getattr(self, name) < 1, f"trainer.{name}", getattr(self, name), "in [0, 1)")
        if self.prompts_per_step % self.updates_per_step:
            raise ConfigError(
                f"trainer.prompts_per_step={self.prompts_per_step} cannot be split evenly over "
                f"trainer.updates_per_step={self.updates_per_step}: write a multiple of it."
            )
        if self.sequence_parallel and self.tensor_parallel == 1:
            raise ConfigError(
                "trainer.sequence_parallel=true needs tensor parallelism: "
                "write trainer.tensor_parallel=2 or more, or leave it off."
            )
        if self.decay is not Decay.constant and self.decay_updates <= self.warmup_updates:
            raise ConfigError(
                f"trainer.decay={self.decay.name} needs trainer.decay_updates greater than "
                f"trainer.warmup_updates={self.warmup_updates}."
            )
