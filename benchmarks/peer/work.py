"""The work that both sides of bench_peer.py do, as options of each side."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_prorl.commands.parsing import composed
from nemo_prorl.config import RunConfig
from nemo_prorl.config.compose import quoted


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is trained on what, and the size of the work; the same on both sides."""

    config_name: str
    """Our configuration in conf/, from which the options below differ."""
    policy: str
    train: Mapping[str, int]
    """Weight of each prompt file."""
    held_out_file: str
    num_steps: int
    max_response_tokens: int
    validation_interval: int
    prompts_per_step: int = 16
    num_rollouts: int = 16
    updates_per_step: int = 4
    max_prompt_tokens: int = 80
    temperature: float = 1.2
    learning_rate: float = 1e-4
    held_out: int = 112
    held_out_rollouts: int = 4
    trl_pass_rollouts: int = 0
    """Rollouts that a process of TRL's takes in a pass, accumulating gradients over an update; 0: all of the update."""
    num_processes: int = 2
    """Processes on each side, with one thread each."""

    @property
    def context_tokens(self) -> int:
        return self.max_prompt_tokens + self.max_response_tokens


ROWS = (
    ("steps, updates per step", "trainer.num_steps trainer.updates_per_step", "max_steps steps_per_generation"),
    ("prompts per step", "trainer.prompts_per_step", ""),
    ("rollouts per prompt", "sampler.num_rollouts", "num_generations"),
    ("rollouts per pass and process", "", "per_device_train_batch_size gradient_accumulation_steps"),
    ("padded tokens per pass", "trainer.micro_batch_tokens", ""),
    ("length of prompt and response", "sampler.max_prompt_tokens sampler.max_response_tokens", "max_completion_length"),
    ("temperature", "sampler.temperature", "temperature top_p top_k"),
    ("weights and activations", "model.precision", "bf16 model_init_kwargs"),
    ("learning rate, constant", "trainer.learning_rate trainer.warmup_updates", "learning_rate lr_scheduler_type"),
    ("AdamW", "trainer.adam_beta1 trainer.adam_beta2 trainer.weight_decay", "adam_beta1 adam_beta2 weight_decay"),
    ("gradient norm clipped to", "trainer.clip_grad", "max_grad_norm"),
    ("clip of the ratio", "algorithm.clip_low algorithm.clip_high", "epsilon epsilon_high"),
    ("dual clip", "algorithm.dual_clip", "delta"),
    ("mean over the tokens of", "algorithm.aggregation", "loss_type"),
    ("KL penalty (k3) to the reference", "algorithm.kl_beta", "beta use_bias_correction_kl"),
    ("advantage by the group's deviation", "algorithm.advantage", "scale_rewards"),
    ("correction for the sampler", "algorithm.correction_level", "vllm_importance_sampling_correction"),
    ("dynamic sampling", "dynamic_sampling.enabled", ""),
    ("gradient checkpointing", "model.recompute", "gradient_checkpointing"),
    ("sampler", "sampler.kv_cache_mib sampler.max_sequences", "use_vllm vllm_mode generation_kwargs"),
    ("held out: interval in steps (updates)", "validation.interval", "eval_steps"),
    ("held out: rollouts, temperature, top-p", "validation.num_rollouts validation.temperature validation.top_p",
     "num_generations_eval"),
    ("checkpoints", "exp_manager.create_checkpoint_callback", "save_strategy"),
)  # fmt: skip
"""Rows of the printed table: a name, options of RunConfig, and options of GRPOConfig; empty if a side has none."""


def configured(work: Work, overrides: Sequence[str]) -> str:
    """Returns a table of the options of both sides, read from the configurations that they are given."""
    ours = our_config(work, overrides)
    theirs = trl_options(work, seed=1, use_vllm=True)

    def ours_of(key: str) -> Any:
        value = functools.reduce(getattr, key.split("."), ours)
        return getattr(value, "value", value)

    lines = [f"{'':<42}{'ours':<84}TRL's GRPOConfig"]
    for what, our_keys, their_keys in ROWS:
        ours_text = ", ".join(f"{key}={ours_of(key)}" for key in our_keys.split())
        their_text = ", ".join(f"{key}={theirs[key]}" for key in their_keys.split())
        lines.append(f"{what:<42}{ours_text or 'no such option':<84}{their_text or 'no such option'}")
    return "\n".join(lines)


def our_config(work: Work, overrides: Sequence[str] = ()) -> RunConfig:
    """Returns our side's configuration."""
    return composed(
        work.config_name, [*(f"{key}={value}" for key, value in our_options(work).items()), *overrides]
    )


def our_options(work: Work) -> dict[str, Any]:
    """Returns our side's differences from its configuration."""
    files = ", ".join(f"{quoted(path)}: {weight}" for path, weight in work.train.items())
    return {
        "model.path": work.policy,
        "data.train": f"{{{files}}}",
        "data.validation": f"[{quoted(work.held_out_file)}]",
        "trainer.num_steps": work.num_steps,
        "trainer.prompts_per_step": work.prompts_per_step,
        "trainer.updates_per_step": work.updates_per_step,
        "trainer.learning_rate": work.learning_rate,
        "trainer.warmup_updates": 0,
        "sampler.num_rollouts": work.num_rollouts,
        "sampler.temperature": work.temperature,
        "sampler.max_response_tokens": work.max_response_tokens,
        "sampler.max_prompt_tokens": work.max_prompt_tokens,
        "validation.interval": work.validation_interval,
        "validation.early": "false",
        "validation.max_prompts": work.held_out,
        "validation.num_rollouts": work.held_out_rollouts,
        "validation.temperature": work.temperature,
        "validation.top_p": 1.0,
        "exp_manager.create_checkpoint_callback": "false",
    }


def trl_options(work: Work, seed: int, *, use_vllm: bool) -> dict[str, Any]:
    """Returns the arguments of GRPOConfig that correspond to our side's configuration."""
    ours = our_config(work)
    trainer, algorithm = ours.trainer, ours.algorithm
    update_rollouts = work.prompts_per_step * work.num_rollouts // work.updates_per_step // work.num_processes
    num_passes = max(1, update_rollouts // work.trl_pass_rollouts) if work.trl_pass_rollouts else 1
    held_out = work.held_out * work.held_out_rollouts // work.num_processes
    vllm = {
        "vllm_mode": "colocate",
        "vllm_max_model_length": work.context_tokens,
        "vllm_importance_sampling_correction": False,
        "generation_kwargs": {"detokenize": False},  # TRL decodes the tokens itself
    }
    return {
        "seed": seed,
        "use_cpu": True,
        "bf16": False,
        "model_init_kwargs": {"dtype": "float32"},
        "gradient_checkpointing": False,
        "max_steps": work.num_steps * work.updates_per_step,
        "per_device_train_batch_size": update_rollouts // num_passes,
        "gradient_accumulation_steps": num_passes,
        "ddp_find_unused_parameters": False,
        "steps_per_generation": work.updates_per_step * num_passes,
        "num_iterations": 1,
        "num_generations": work.num_rollouts,
        "max_completion_length": work.max_response_tokens,
        "temperature": ours.sampler.temperature,
        "top_p": 1.0,
        "top_k": 0,
        "shuffle_dataset": False,
        "learning_rate": trainer.learning_rate,
        "lr_scheduler_type": "constant",
        "adam_beta1": trainer.adam_beta1,
        "adam_beta2": trainer.adam_beta2,
        "adam_epsilon": trainer.adam_epsilon,
        "weight_decay": trainer.weight_decay,
        "max_grad_norm": trainer.clip_grad,
        "loss_type": "dapo",
        "epsilon": algorithm.clip_low,
        "epsilon_high": algorithm.clip_high,
        "delta": algorithm.dual_clip or None,
        "beta": algorithm.kl_beta,
        "use_bias_correction_kl": False,
        "scale_rewards": "group",
        "eval_strategy": "steps",
        "eval_steps": work.validation_interval * work.updates_per_step,
        "eval_on_start": True,
        "per_device_eval_batch_size": held_out // num_passes,
        "num_generations_eval": work.held_out_rollouts,
        "logging_steps": work.updates_per_step,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "use_vllm": use_vllm,
        **(vllm if use_vllm else {}),
    }
