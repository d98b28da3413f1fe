"""The meaning of every metric of metrics.jsonl, for the report and for docs/reference/metrics.md, which is generated.

A word in capitals stands for any name: `reward/DOMAIN/mean` is one metric for each domain.
"""

from __future__ import annotations

import re

METRICS = {
    # Position of the record in the run
    "step": "Steps that the run has finished, over all of its stages.",
    "stage": "Name of the stage (`stage.name`).",
    "num_resets": "Resets of the reference so far, over all stages.",
    "controller": "Decision of the reset controller, or a user's request, after the step: action, signal (its watch), "
    "reason and numbers. Absent if there was none.",
    "went_back_to_step": "Step whose weights the policy was given, in a reset (`controller.reset_to=best`) or at the "
    "start of a stage (`stage.start_from=best`). Absent in all other records.",
    "is_early_validation": "1 in the record of a validation that is due only because of `validation.early`, which the "
    "reset controller ignores. Absent in all other records.",
    "measurement": "Name of what the record's validation measured: a hash of its prompts, its settings "
    "(`validation.num_rollouts`, `temperature`, `top_p`, `sampler.max_response_tokens`) and the version of the "
    "graders. Values of validations with different names do not compare.",
    # Rewards of training
    "reward/mean": "Mean reward, after shaping, over all rollouts that the step sampled, trained on or not.",
    "reward/pass_rate": "Share of all sampled rollouts with a full score (1.0, before shaping).",
    "reward/trained_mean": "Mean reward over the rollouts of the groups that the step trains on.",
    "reward/DOMAIN/mean": "`reward/mean` of one domain.",
    "reward/DOMAIN/pass_rate": "`reward/pass_rate` of one domain.",
    "reward/DOMAIN/num_rollouts": "Graded rollouts of one domain in the step.",
    "reward/part_FUNCTION": "Mean value, before weights, of one function of `reward.function`, or of the reward "
    "service (`service`) if both are used.",
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
    "dynamic_sampling/num_informative": "Sampled prompts whose rollouts differ in reward, so that they can be trained "
    "on.",
    "dynamic_sampling/num_all_right": "Sampled prompts that every rollout solved.",
    "dynamic_sampling/num_all_wrong": "Sampled prompts that no rollout solved.",
    "dynamic_sampling/num_all_equal": "Sampled prompts whose rollouts all have the same reward, neither all right nor "
    "all wrong.",
    "dynamic_sampling/num_all_filtered": "Sampled prompts of which overlong filtering leaves out every rollout.",
    "dynamic_sampling/num_service_failure": "Sampled prompts of which fewer than two rollouts were graded.",
    "dynamic_sampling/num_kept": "Prompts that the step trains on.",
    "dynamic_sampling/num_surplus": "Informative prompts beyond those that the step needed; they are not trained on.",
    "dynamic_sampling/surplus_share": "Share of the sampled response tokens that belong to prompts, informative or "
    "not, after the last one that the step needed. The surplus costs about this share of `time/sampling_s`; "
    "`dynamic_sampling.oversample` determines it.",
    "dynamic_sampling/informative_share": "`num_informative / num_prompts`: the yield of dynamic sampling.",
    "dynamic_sampling/kept_share": "`num_kept / num_prompts`.",
    "dynamic_sampling/num_rounds": "Rounds of sampling until the step had enough prompts.",
    "dynamic_sampling/num_failed_rollouts": "Rollouts that were left out because the reward service or a reward "
    "function failed to grade them.",
    # The objective
    "objective/loss": "Mean over the step's updates of the loss that was minimised.",
    "objective/kl_to_reference": "KL penalty of the current policy to the reference (`algorithm.kl_estimator`, clamped "
    "as the loss is), mean over tokens. With `algorithm.kl_beta=0` the KL metrics are absent, unless the controller's "
    "watch `kl_spike` (`controller.mode=automatic`) or the monitored metric needs them.",
    "objective/kl_to_reference_max": "The largest KL penalty of a token.",
    "objective/kl_at_sampling": "KL penalty of the policy before the step's first update, mean over tokens; exactly 0 "
    "in the step after a reset. Absent where `objective/kl_to_reference` is.",
    "objective/kl_clamped_fraction": "Share of tokens on which a clamp of the KL penalty acts. Absent with "
    "`algorithm.kl_beta=0`.",
    "objective/approx_kl_to_old": "KL of the policy that sampled to the current one: how far the step moves the "
    "policy. Mean over tokens of r - 1 - log r with the token's own ratio r (k3).",
    "objective/entropy": "Entropy of the next-token distribution, mean over tokens.",
    "objective/entropy_target": "Target of the adaptive entropy bonus at this step, in nats a token; absent with "
    "`algorithm.entropy_bonus=fixed`.",
    "objective/entropy_coefficient": "Weight of the entropy bonus in the loss of this step.",
    "objective/ratio_mean": "Ratio of current to old probability at `algorithm.ratio_level`, mean over tokens.",
    "objective/ratio_min": "The smallest ratio of current to old probability.",
    "objective/ratio_max": "The largest ratio of current to old probability, at most 1e30; an alarm above 10.",
    "objective/ratio_p01": "1st percentile of the ratio of current to old probability.",
    "objective/ratio_p99": "99th percentile of the ratio of current to old probability.",
    "objective/clip_low_fraction": "Share of tokens on which the lower clip acts: `algorithm.objective=clip` removes "
    "their gradient, `cispo` bounds their weight.",
    "objective/clip_high_fraction": "Share of tokens on which the upper clip acts, in the same way.",
    "objective/dual_clip_fraction": "Share of tokens on which the dual clip acts: their advantage is negative, and "
    "they have no gradient.",
    "objective/advantage_std": "Standard deviation of the advantage over rollouts.",
    "objective/advantage_min": "The smallest advantage of a rollout.",
    "objective/advantage_max": "The largest advantage of a rollout.",
    "objective/importance_weight_mean": "Importance weight that corrects for the difference between sampler and "
    "trainer, after truncating, masking or dropping; mean over tokens; 1 with `algorithm.correction_level=off`.",
    "objective/importance_limited_fraction": "Share of tokens whose importance weight was truncated, "
    "masked or dropped.",
    "objective/importance_limited_rollout_fraction": "Share of rollouts with at least one token whose importance "
    "weight was truncated, masked or dropped.",
    "objective/effective_sample_share": "Effective sample size of the step's tokens, as a share of their number: "
    "(sum w)^2 / (n sum w^2) with w = current / sampler probability, unbounded. 1 if the policy that sampled is the "
    "one that is trained.",
    "objective/effective_sample_share_age_AGE": "The same over tokens whose sampler was AGE updates older than the "
    "weights that they trained.",
    # The optimizer
    "optimizer/grad_norm": "Norm of the gradient before clipping, mean over the step's updates.",
    "optimizer/learning_rate": "Learning rate of the step's last update.",
    "lora/GROUP/relative_change": "Low-rank training: norm of the difference to the reference over the norm of the "
    "weights, for a group of matrices (`qkv`, `attention_out`, `mlp_up`, `mlp_down`), after the step's last update.",
    "optimizer/num_updates": "Optimizer updates of the run so far.",
    # Sampler and trainer
    "sampler/logprob_abs_diff_mean": "Absolute difference between the sampler's and the trainer's log-probability of a "
    "token under the same weights, mean over tokens.",
    "sampler/logprob_abs_diff_p99": "99th percentile over tokens of the difference of `logprob_abs_diff_mean`.",
    "sampler/logprob_abs_diff_max": "Maximum over tokens of the difference of `logprob_abs_diff_mean`.",
    "sampler/canary_abs_diff_mean": "The difference of `logprob_abs_diff_mean` on a fixed prompt after the step's "
    "refit, mean over tokens of the engine that differs most.",
    "sampler/canary_abs_diff_max": "The difference on the fixed prompt, maximum over the tokens of all engines.",
    "sampler/num_wrong_tensors": "Weight tensors that did not arrive at the sampler as the policy sent them, or that "
    "its engine did not use.",
    "sampler/num_still_wrong_tensors": "Weight tensors that were still wrong after all weights had been loaded again.",
    "sampler/updates_behind": "Updates between the weights that sampled the step's rollouts and those that the step "
    "begins with; 0 unless `sampler.ahead`.",
    "sampler/num_preemptions": "Rollouts that vLLM removed from a full KV cache since the step before and computed "
    "again later, over all engines. If there are many, lower `sampler.max_sequences`.",
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
    "grading/exposed_s": "Seconds in which the main rank only waited for scores.",
    "grading/overlap_share": "`1 - exposed_s / busy_s`: the share of grading that overlapped with other work.",
    # Held-out prompts
    "validation/score": "Mean over held-out prompts of the mean score of a prompt's rollouts, without shaping.",
    "validation/domain_mean_score": "Mean over domains of `validation/DOMAIN/score`: domains count equally.",
    "validation/num_prompts": "Held-out prompts with at least one graded rollout.",
    "validation/num_rollouts": "Graded held-out rollouts.",
    "validation/response_tokens": "Mean number of tokens of a held-out response.",
    "validation/no_eos_share": "Share of held-out responses that were cut off at `sampler.max_response_tokens`.",
    "validation/pass_at_K": "Unbiased pass@k over held-out prompts; a rollout passes with a score of 1.",
    "validation/part_FUNCTION": "`reward/part_FUNCTION`, over held-out rollouts.",
    # Throughput and time
    "throughput/num_tokens": "Response tokens that the step sampled, over all ranks.",
    "throughput/tokens_per_s": "`throughput/num_tokens / time/step_s`.",
    "throughput/exchange_mib": "MiB that the main rank received from other ranks in the step as Python objects: tokens "
    "and log-probabilities of the rollouts that it computes with, verdicts and metrics; not gradients and weights.",
    "time/step_s": "Seconds from the first prompt of the step to the end of its refit, without saving.",
    "time/sampling_s": "Seconds in which the loop waited for the sampler.",
    "time/old_logprobs_s": "Seconds for log-probabilities under the policy that sampled; the step's first update "
    "computes those of its rollouts itself.",
    "time/reference_logprobs_s": "Seconds for log-probabilities under the reference, loading it included.",
    "time/exchange_s": "Seconds to bring the tokens of rollouts to the ranks that compute with them: once before "
    "the log-probability passes, once before the updates.",
    "time/updates_s": "Seconds for the optimizer updates.",
    "time/refit_s": "Seconds to load the weights into the sampler and to verify them there.",
    "time/validation_s": "Seconds of the validation after the step; it is not part of `time/step_s`.",
    "time/save_s": "Seconds that the loop waited for checkpoints since the step before.",
    "memory/PHASE_gib": "Most memory that torch had reserved on the main rank's GPU in that phase of the step, in GiB; "
    "the phases are those of `time/PHASE_s`. Absent on CPU.",
}
"""Name of a metric, or pattern of names -> its meaning, in Markdown."""
METRICS |= {
    name.replace("/", "/DOMAIN/"): f"`{name}` of one domain."
    for name in METRICS
    if name.startswith("validation/") and name != "validation/domain_mean_score"
}


def metric_doc(name: str) -> str:
    """Returns the meaning of a metric, in Markdown; empty if it is not documented (in a run of another version)."""
    if name in METRICS:
        return METRICS[name]
    of_patterns = (
        text for key, text in METRICS.items() if re.fullmatch(re.sub("[A-Z]+", "[^/]+", key), name)
    )
    return next(of_patterns, "")
