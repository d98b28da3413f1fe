"""The layouts under test. `resume` names the checkpoint of another layout that a case loads and continues from."""

from __future__ import annotations

from nemo_prorl.config import AlgorithmConfig, CorrectionLevel, CorrectionMode, RatioLevel
from tests.engines.megatron.helpers import Case

TP, PP, SP = (
    {"tensor_parallel": 2},
    {"pipeline_parallel": 2},
    {"tensor_parallel": 2, "sequence_parallel": True},
)
UNSHARDED = {"distributed_optimizer": False}
OVERLAP = {"overlap_grad_reduce": True, "bucket_size": 20_000}
"""Several buckets, each reduced while the backward pass of the last micro-batch goes on."""
OF_SEQUENCES = AlgorithmConfig(
    ratio_level=RatioLevel.sequence,
    correction_level=CorrectionLevel.geometric,
    correction_mode=CorrectionMode.drop,
    correction_low=0.95,
    correction_high=1.05,
    kl_beta=0.1,
)
"""What depends on whole responses: GSPO's ratio, and rollouts that are dropped by their geometric mean."""

ONE = [Case(name=model, model=model) for model in ("qwen2", "qwen3_tied", "llama_tied")]
ALONE = [*ONE, Case(name="qwen2-algorithm", model="qwen2", algorithm=OF_SEQUENCES)]
"""What one rank measures: what others are compared with."""
TWO = [
    Case(name="tp2", model="qwen2", trainer=TP, resume="one/qwen2"),
    Case(name="pp2", model="qwen2", trainer=PP, resume="two/tp2"),
    Case(name="dp2", model="qwen2", resume="two/pp2"),
    Case(name="dp2-unsharded", model="qwen2", trainer=UNSHARDED, resume="two/dp2"),
    Case(name="dp2-algorithm", model="qwen2", trainer=UNSHARDED, algorithm=OF_SEQUENCES),
    Case(name="dp2-overlap", model="qwen2", trainer=UNSHARDED, megatron=OVERLAP),
    Case(name="dp2-overlap-sharded", model="qwen2", megatron=OVERLAP),
    Case(name="dp2-overlap-sharded-one-empty", model="qwen2", megatron=OVERLAP, empty_replica=True),
    Case(name="dp2-machines", model="qwen2", ranks_per_machine=1),
    Case(name="pp2-overlap", model="qwen2", trainer=PP, megatron=OVERLAP),
    Case(name="tp2-sp", model="qwen2", trainer=SP, resume="two/dp2-unsharded"),
    Case(name="tied-tp2", model="qwen3_tied", trainer=TP, resume="one/qwen3_tied"),
    Case(name="tied-pp2", model="qwen3_tied", trainer=PP, resume="two/tied-tp2"),
    Case(name="tied-tp2-sp", model="qwen3_tied", trainer=SP, resume="two/tied-pp2"),
    Case(name="tied-dp2-one-empty", model="qwen3_tied", empty_replica=True, resume="two/tied-tp2-sp"),
]
FOUR = [
    Case(name="tp2-pp2", model="qwen2", trainer=TP | PP, resume="two/dp2"),
    Case(name="tied-tp2-pp2-sp", model="qwen3_tied", trainer=SP | PP, resume="one/qwen3_tied"),
    Case(name="llama-tp2-pp2", model="llama_tied", trainer=TP | PP, resume="one/llama_tied"),
    Case(name="tied-tp2-dp2", model="qwen3_tied", trainer=TP, resume="four/tied-tp2-pp2-sp"),
    Case(name="tied-pp2-dp2", model="qwen3_tied", trainer=PP | UNSHARDED, resume="four/tied-tp2-dp2"),
    Case(name="tied-pp2-dp2-one-empty", model="qwen3_tied", trainer=PP, empty_replica=True),
    Case(name="pp2-dp2-overlap", model="qwen2", trainer=PP, megatron=OVERLAP),
    Case(name="pp2-dp2-overlap-one-empty", model="qwen2", trainer=PP, megatron=OVERLAP, empty_replica=True),
    Case(name="tp2-sp-dp2-one-empty", model="qwen2", trainer=SP, empty_replica=True),
    Case(
        name="tied-tp2-sp-dp2-overlap-one-empty",
        model="qwen3_tied",
        trainer=SP,
        megatron=OVERLAP,
        empty_replica=True,
    ),
]
QUICK = [
    Case(name="tp2-pp2", model="qwen2", trainer=TP | PP),
    Case(name="tp2-dp2", model="qwen2", trainer=TP | UNSHARDED),
]
"""Layouts of four ranks that every run of the tests compares, without checkpoints."""
