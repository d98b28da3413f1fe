"""What every metric of metrics.jsonl means; docs/reference/metrics.md is generated from here.

A word in capitals stands for any name: `reward/DOMAIN/mean` is one metric for each domain.
"""

from __future__ import annotations

import re

METRICS = {
    # Position of the record in the run
    "step": "Steps that the run has finished, over all of its stages.",
    "stage": "Name of the stage (`stage.name`).",
    "num_resets": "Resets of the reference so far, over all stages.",
    "controller": "What the reset controller or a user's request decided after the step: action, signal, reason and "
    "numbers. Absent where nothing was decided.",
    "went_back_to_step": "Step whose weights a reset put in the policy's place (`controller.reset_to=best`). Absent in "
    "all other records.",
    # Rewards of training
    "reward/mean": "Mean reward, after shaping, over all rollouts that the step sampled, trained on or not.",
    "reward/pass_rate": "Share of all sampled rollouts with a full score (1.0, before shaping).",
    "reward/trained_mean": "Mean reward over the rollouts of the groups that the step trains on.",
    "reward/DOMAIN/mean": "`reward/mean` of one domain.",
    "reward/DOMAIN/pass_rate": "`reward/pass_rate` of one domain.",
    "reward/DOMAIN/num_rollouts": "Graded rollouts of one domain in the step.",
    "reward/part_FUNCTION": "Mean value of one function of `reward.function`, or of the service beside them "
    "(`service`), before weights.",
    # Responses of training
    "response/tokens_mean": "Mean number of tokens of a sampled response.",
    "response/tokens_p50": "Median number of tokens of a sampled response.",
    "response/tokens_p99": "99th percentile of the number of tokens of a sampled response.",
    "response/no_eos_share": "Share of sampled responses that were cut off at `sampler.max_response_tokens`.",
    # Prompts
    "data/DOMAIN/num_prompts": "Prompts of one domain that the step sampled.",
    "data/num_too_long": "Prompts left out since the stage's data began because they are longer than "
    "`sampler.max_prompt_tokens`.",
    # Dynamic sampling
    "dynamic_sampling/num_prompts": "Prompts that the step sampled.",
    "dynamic_sampling/num_informative": "Sampled prompts whose rollouts differ in reward: they can be trained on.",
    "dynamic_sampling/num_all_right": "Sampled prompts that every rollout solved.",
    "dynamic_sampling/num_all_wrong": "Sampled prompts that no rollout solved.",
    "dynamic_sampling/num_all_equal": "Sampled prompts whose rollouts all have the same reward, neither all right nor "
    "all wrong.",
    "dynamic_sampling/num_all_filtered": "Sampled prompts of which overlong filtering leaves no rollout to train on.",
    "dynamic_sampling/num_service_failure": "Sampled prompts of which fewer than two rollouts were graded.",
    "dynamic_sampling/num_kept": "Prompts that the step trains on.",
    "dynamic_sampling/num_surplus": "Informative prompts beyond those that the step needed; they are not trained on.",
    "dynamic_sampling/surplus_share": "Share of the sampled response tokens that belong to prompts, informative or "
    "not, behind the last one that the step needed: they were sampled and graded in vain. About this share of "
    "`time/sampling_s` is what the surplus costs; `dynamic_sampling.oversample` sets it.",
    "dynamic_sampling/informative_share": "`num_informative / num_prompts`: the yield of dynamic sampling.",
    "dynamic_sampling/kept_share": "`num_kept / num_prompts`.",
    "dynamic_sampling/num_rounds": "Rounds of sampling that it took to fill the step.",
    "dynamic_sampling/num_failed_rollouts": "Rollouts that were not graded because the reward service or a reward "
    "function failed; they are left out.",
    # The objective
    "objective/loss": "Mean over the step's updates of the loss that was minimised.",
    "objective/kl_to_reference": "KL penalty of the current policy to the reference (`algorithm.kl_estimator`, clamped "
    "as the loss is), mean over tokens. With `algorithm.kl_beta=0` the KL metrics are absent, unless the controller's "
    "signal `kl_spike` (`controller.mode=automatic`) or the monitored metric needs them.",
    "objective/kl_to_reference_max": "The largest KL penalty of a token.",
    "objective/kl_at_sampling": "KL penalty of the policy before the step's first update, mean over tokens; exactly 0 "
    "in the step after a reset. Absent where `objective/kl_to_reference` is.",
    "objective/kl_clamped_fraction": "Share of tokens on which a clamp of the KL penalty acts. Absent with "
    "`algorithm.kl_beta=0`.",
    "objective/approx_kl_to_old": "KL of the policy that sampled to the current one, mean over tokens of r - 1 - log r "
    "with the token's own ratio r (k3): how far the step moves the policy.",
    "objective/entropy": "Entropy of the next-token distribution, mean over tokens.",
    "objective/entropy_coefficient": "Weight of the entropy bonus in the loss of this step.",
    "objective/ratio_mean": "Ratio of current to old probability at `algorithm.ratio_level`, mean over tokens.",
    "objective/ratio_min": "The smallest ratio.",
    "objective/ratio_max": "The largest ratio.",
    "objective/ratio_p01": "1st percentile of the ratio.",
    "objective/ratio_p99": "99th percentile of the ratio.",
    "objective/clip_low_fraction": "Share of tokens on which the lower clip acts: `objective=clip` takes their "
    "gradient away, `cispo` bounds their weight.",
    "objective/clip_high_fraction": "Share of tokens on which the upper clip acts.",
    "objective/dual_clip_fraction": "Share of tokens on which the dual clip acts.",
    "objective/advantage_std": "Standard deviation of the advantage over rollouts.",
    "objective/advantage_min": "The smallest advantage of a rollout.",
    "objective/advantage_max": "The largest advantage of a rollout.",
    "objective/importance_weight_mean": "Weight that corrects for the sampler's other probabilities, after truncating, "
    "masking or dropping; mean over tokens; 1 with `algorithm.correction_level=off`.",
    "objective/importance_limited_fraction": "Share of tokens whose importance weight was truncated, "
    "masked or dropped.",
    "objective/importance_limited_rollout_fraction": "Share of rollouts with at least one such token.",
    # The optimizer
    "optimizer/grad_norm": "Norm of the gradient before clipping, mean over the step's updates.",
    "optimizer/learning_rate": "Learning rate of the step's last update.",
    "optimizer/num_updates": "Optimizer updates of the run so far.",
    # Sampler and trainer
    "sampler/logprob_abs_diff_mean": "Absolute difference between the sampler's and the trainer's log-probability of a "
    "token under the same weights, mean over tokens.",
    "sampler/logprob_abs_diff_p99": "99th percentile of that difference.",
    "sampler/logprob_abs_diff_max": "The largest such difference.",
    "sampler/canary_abs_diff_mean": "The same difference on a fixed prompt after the step's refit, mean over tokens of "
    "the engine that differs most.",
    "sampler/canary_abs_diff_max": "The largest such difference on the fixed prompt.",
    "sampler/num_wrong_tensors": "Weight tensors that did not arrive at the sampler as the policy sent them, or that "
    "its engine did not take over.",
    "sampler/num_unmended_tensors": "Those that were still wrong after everything had been loaded again.",
    "sampler/updates_behind": "Updates between the weights that sampled the step's rollouts and those that the step "
    "begins with; 0 unless `sampler.ahead`.",
    "sampler/num_preemptions": "Rollouts that vLLM removed from a full KV cache since the step before and computed "
    "again later, over all engines. Many of them call for a smaller `sampler.max_sequences`.",
    # Shaping
    "shaping/termination_factor/num_rollouts": "Rollouts whose score was multiplied because they did not end.",
    "shaping/malformed_thought_factor/num_rollouts": "Rollouts whose score was multiplied because of malformed thought "
    "tags.",
    "shaping/overlong_penalty/num_rollouts": "Rollouts that got a penalty for coming near the length limit.",
    "shaping/length_penalty/num_rollouts": "Rollouts that got a length penalty.",
    "shaping/length_penalty/on": "1 in the steps in which the scheduled length penalty is on, else 0.",
    "shaping/overlong_filtering/num_rollouts": "Rollouts that the loss leaves out because they did not end.",
    # Grading
    "grading/busy_s": "Seconds in which at least one rollout of the main rank was being graded.",
    "grading/exposed_s": "Seconds in which the main rank had nothing to do but wait for scores.",
    "grading/overlap_share": "`1 - exposed_s / busy_s`: the part of grading that hid behind other work.",
    # Held-out prompts
    "validation/reward": "Mean over held-out prompts of the mean score of a prompt's rollouts, without shaping.",
    "validation/domain_mean_reward": "Mean over domains of `validation/DOMAIN/reward`: every domain counts the same.",
    "validation/num_prompts": "Held-out prompts with at least one graded rollout.",
    "validation/num_rollouts": "Graded held-out rollouts.",
    "validation/response_tokens": "Mean number of tokens of a held-out response.",
    "validation/no_eos_share": "Share of held-out responses that were cut off at `sampler.max_response_tokens`.",
    "validation/pass_at_K": "Unbiased pass@k over held-out prompts; a rollout passes with a score of 1.",
    "validation/part_FUNCTION": "`reward/part_FUNCTION` over held-out rollouts.",
    # Throughput and time
    "throughput/num_tokens": "Response tokens that the step sampled, over all ranks.",
    "throughput/tokens_per_s": "`throughput/num_tokens / time/step_s`.",
    "throughput/exchange_mib": "MiB that the main rank received from other ranks in the step as Python objects: tokens "
    "and log-probabilities of the rollouts that it computes with, verdicts and metrics; not gradients and weights.",
    "time/step_s": "Seconds from the first prompt of the step to the end of its refit, without saving.",
    "time/sampling_s": "Seconds in which the loop waited for the sampler.",
    "time/old_logprobs_s": "Seconds for log-probabilities under the policy that sampled.",
    "time/reference_logprobs_s": "Seconds for log-probabilities under the reference, loading it included.",
    "time/exchange_s": "Seconds to bring the tokens of rollouts to the ranks that compute with them: once before "
    "the log-probability passes, once before the updates.",
    "time/updates_s": "Seconds for the optimizer updates.",
    "time/refit_s": "Seconds to bring the weights to the sampler and to check them there.",
    "time/validation_s": "Seconds of the validation after the step; it is not part of `time/step_s`.",
    "time/save_s": "Seconds that the loop waited for checkpoints since the step before.",
    "memory/PHASE_gib": "Most memory that torch had reserved on the main rank's GPU in that phase of the step, in GiB; "
    "the phases are those of `time/PHASE_s`. Absent on CPU.",
}
"""Name, or pattern of names, -> what it means."""
METRICS |= {
    name.replace("/", "/DOMAIN/"): f"`{name}` of one domain."
    for name in METRICS
    if name.startswith("validation/") and name != "validation/domain_mean_reward"
}


def metric_doc(name: str) -> str | None:
    """What the metric of this name means; None for one that nobody has documented."""
    patterns = (pattern for pattern in METRICS if re.fullmatch(re.sub("[A-Z]+", "[^/]+", pattern), name))
    pattern = name if name in METRICS else next(patterns, None)
    return METRICS[pattern] if pattern is not None else None
