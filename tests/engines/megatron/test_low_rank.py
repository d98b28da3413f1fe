"""Low-rank training: what its factors learn, in any layout, and that a reset merges them without changing a bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nemo_prorl import distributed
from nemo_prorl.config import LoraConfig, LoraTargets, Precision, Recompute
from nemo_prorl.engines.megatron import optimizer_state
from nemo_prorl.engines.megatron.low_rank import LowRank
from nemo_prorl.engines.megatron.policy import MegatronPolicy
from tests.engines.conftest import run_ranks
from tests.engines.megatron.helpers import (
    MakePolicy,
    as_numpy,
    loss_function,
    reference_logprobs,
    run_config,
    save,
    token_batch,
    train_batch,
)
from tests.engines.megatron.layouts import PP, SP, TP

RANK = 4
LORA = LoraConfig(rank=RANK, alpha=2.0 * RANK)


def low_rank(policy: MegatronPolicy) -> LowRank:
    assert isinstance(policy.trainable, LowRank)
    return policy.trainable


def expected_weights(policy: MegatronPolicy) -> dict[str, torch.Tensor]:
    """reference + scale B A in float64, rounded to the weights' precision, by parameter name."""
    expected = {name: tensor.double() for name, tensor in policy._reference.items()}
    for target in low_rank(policy).targets:
        b = target.b.detach().double().reshape(-1, RANK)
        expected[target.name] += LORA.scale * b @ target.a.detach().double()
    return expected


def factors(policy: MegatronPolicy) -> dict[str, torch.Tensor]:
    """Returns the factors and their moments."""
    module = low_rank(policy).module
    found = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    for name, slot in optimizer_state.slots(policy.optimizer, module).items():
        found |= {f"{name} {moment}": slot.state[moment].clone() for moment in optimizer_state.MOMENTS}
    return found


def weights(policy: MegatronPolicy) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in policy.model.named_parameters()}


def assert_equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def in_bf16(policy_of: MakePolicy, path: Path, **changes: Any) -> MegatronPolicy:
    config = run_config(path, lora=LORA, **changes)
    config = replace(config, model=replace(config.model, precision=Precision.bf16))
    return MegatronPolicy(config, distributed.initialise(1, 1))


@pytest.mark.parametrize("recompute", list(Recompute))
def test_the_gradients_of_the_factors_are_those_of_autograd_through_the_weights(
    recompute: Recompute, make_policy: MakePolicy
) -> None:
    batch = train_batch(token_batch())
    policy = make_policy("qwen3_tied", lora=LORA, recompute=recompute)
    policy.update(batch, loss_function)  # so that B is not 0
    full = make_policy("qwen3_tied")
    for mine, other in zip(full.model.parameters(), policy.model.parameters(), strict=True):
        mine.data.copy_(other.data)
    found: list[dict[str, torch.Tensor]] = []

    def captured(policy: MegatronPolicy, parameters: dict[str, Any]) -> None:
        step = policy._step

        def capture(loss: float) -> float:
            found.append({name: p.main_grad.detach().clone() for name, p in parameters.items()})
            return step(loss)

        policy._step = capture  # type: ignore[method-assign]
        policy.update(batch, loss_function)

    captured(full, dict(full.model.named_parameters()))
    targets = low_rank(policy).targets
    before = {t.name: (t.a.detach().clone(), t.flat_b.clone()) for t in targets}
    captured(policy, {f"{t.name} {x}": getattr(t, x) for t in targets for x in "ab"})
    of_weights, of_factors = found
    assert len(targets) == 4 * len(policy.model.decoder.layers)
    for name, (a, b) in before.items():
        gradient = of_weights[name].double()
        for got, wanted in (
            (of_factors[f"{name} a"], LORA.scale * b.double().t() @ gradient),
            (of_factors[f"{name} b"], LORA.scale * gradient @ a.double().t()),
        ):
            largest = float(wanted.abs().max())
            assert largest > 1e-5, name
            np.testing.assert_allclose(got.reshape(wanted.shape), wanted, rtol=0, atol=1e-6 * largest)
    assert all(parameter.grad is None for parameter in policy.model.parameters())


@pytest.mark.parametrize("targets", list(LoraTargets))
def test_the_weights_are_the_reference_plus_the_difference_and_the_rest_stays(
    targets: LoraTargets, make_policy: MakePolicy
) -> None:
    policy = make_policy("qwen2", lora=replace(LORA, targets=targets))
    batch, before = train_batch(token_batch()), weights(policy)
    for _ in range(3):
        report = policy.update(batch, loss_function)
        after, expected = weights(policy), expected_weights(policy)
        for name, wanted in expected.items():
            np.testing.assert_allclose(after[name], wanted, rtol=2e-7, atol=1e-8, err_msg=name)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {target.name for target in low_rank(policy).targets}
    assert all((".mlp." in name) or targets is not LoraTargets.mlp for name in changed)
    assert all((".self_attention." in name) or targets is not LoraTargets.attention for name in changed)
    groups = {"qkv": "linear_qkv", "attention_out": "linear_proj", "mlp_up": "fc1", "mlp_down": "fc2"}
    assert report.relative_change
    for group, change in report.relative_change.items():
        names = [name for name in changed if f"{groups[group]}.weight" in name]
        difference = torch.cat([(after[name] - before[name]).double().flatten() for name in names])
        size = torch.cat([after[name].double().flatten() for name in names])
        assert change == pytest.approx(float(difference.norm() / size.norm()), rel=1e-4)


def test_bf16_weights_are_the_rounded_sum(hf_models: dict[str, Path], make_policy: MakePolicy) -> None:
    policy = in_bf16(make_policy, hf_models["qwen2"])
    for _ in range(2):
        policy.update(train_batch(token_batch()), loss_function)
    for name, wanted in expected_weights(policy).items():
        got, rounded = policy.model.get_parameter(name).detach(), wanted.to(torch.bfloat16)
        assert got.dtype == torch.bfloat16
        # The sum in fp32 falls on the other side of a tie of bf16 once in thousands of times.
        assert (got != rounded).float().mean() < 1e-3, name
        np.testing.assert_allclose(got.double(), wanted, rtol=2**-8, atol=1e-9)


def test_a_reset_merges_without_changing_a_bit(make_policy: MakePolicy) -> None:
    policy, batch = make_policy("llama_tied", lora=LORA), train_batch(token_batch())
    for _ in range(2):
        policy.update(batch, loss_function)
    before, logprobs, old = weights(policy), policy.logprobs(batch.tokens), factors(policy)
    assert np.abs(logprobs - reference_logprobs(policy, batch.tokens)).max() > 1e-3
    assert_equal(weights(policy), before)  # after the reference was in their place
    policy.adopt_as_reference()
    assert_equal(weights(policy), before)
    assert np.array_equal(policy.logprobs(batch.tokens), logprobs)
    assert np.array_equal(reference_logprobs(policy, batch.tokens), logprobs)
    new = factors(policy)
    for name, tensor in new.items():
        is_zero = not tensor.any()
        assert is_zero == (name.startswith("b.") or " " in name), name
        assert not torch.equal(tensor, old[name]) or is_zero
    assert optimizer_state.get_step(policy.optimizer) == 0
    low_rank(policy).put(policy._reference)
    assert_equal(weights(policy), before)
    policy.update(batch, loss_function)
    changed = [name for name, tensor in weights(policy).items() if not torch.equal(tensor, before[name])]
    assert len(changed) == len(low_rank(policy).targets)


def test_the_draws_of_a_depend_on_seed_update_layer_and_matrix(make_policy: MakePolicy) -> None:
    first, again = (make_policy("qwen2", lora=LORA) for _ in range(2))
    assert_equal(factors(first), factors(again))
    drawn = [target.a.detach().clone().flatten() for target in low_rank(first).targets]
    first.num_updates = 7
    first.adopt_as_reference()
    drawn += [target.a.detach().clone().flatten() for target in low_rank(first).targets]
    assert len({tuple(values[:8].tolist()) for values in drawn}) == len(drawn)
    assert torch.cat(drawn).std() == pytest.approx(RANK**-0.5, rel=0.05)


def test_a_resume_continues_bit_for_bit_across_a_reset(make_policy: MakePolicy, tmp_path: Path) -> None:
    batch = train_batch(token_batch())
    policy = make_policy("qwen3", lora=LORA)
    for step in range(3):
        policy.update(batch, loss_function)
        if step == 1:
            policy.adopt_as_reference()
            policy.reset_optimizer()
    save(policy, tmp_path / "saved")
    again = make_policy("qwen3", lora=LORA)
    again.load(tmp_path / "saved")
    assert_equal(factors(again), factors(policy))
    assert again.reference_hash() == policy.reference_hash()
    for continued in (policy, again):
        continued.update(batch, loss_function)
    assert_equal(factors(again), factors(policy))
    assert_equal(weights(again), weights(policy))


@pytest.mark.parametrize("other", [LoraConfig(), replace(LORA, rank=2), replace(LORA, alpha=1.0)])
def test_what_is_trained_may_change_where_the_policy_is_reset(
    other: LoraConfig, make_policy: MakePolicy, tmp_path: Path
) -> None:
    batch = train_batch(token_batch())
    for before, after in ((LORA, other), (other, LORA)):
        policy = make_policy("qwen2", lora=before)
        policy.update(batch, loss_function)
        save(policy, folder := tmp_path / f"rank {before.rank} alpha {before.alpha:g}")
        child = make_policy("qwen2", lora=after)
        child.load(folder)
        child.adopt_as_reference()
        child.reset_optimizer()
        assert_equal(weights(child), weights(policy))
        assert optimizer_state.get_step(child.optimizer) == 0
        child.update(batch, loss_function)
        assert not torch.equal(
            child.model.decoder.layers[0].mlp.linear_fc1.weight,
            policy.model.decoder.layers[0].mlp.linear_fc1.weight,
        )


TWO: dict[str, dict[str, Any]] = {
    "tp2": TP,
    "tp2-sp": SP,
    "tp2-sp-recomputed": SP | {"recompute": Recompute.full},
    "pp2": PP,
    "pp2-recomputed": PP | {"recompute": Recompute.full},
    "dp2": {},
    "dp2-unsharded": {"distributed_optimizer": False},
}
FOUR: dict[str, dict[str, Any]] = {"tp2-pp2-sp": SP | PP, "tp2-dp2": TP, "pp2-dp2": PP}


def measure(
    cases: dict[str, dict[str, Any]], path: Path, saved: Path, *, loads: bool
) -> dict[str, dict[str, Any]]:
    """Returns what each layout computes in three updates with a reset before the last. Continues from, or else writes,
    a checkpoint after the first."""
    measured = {}
    for name, changes in cases.items():
        config = run_config(path, lora=LORA, **changes)
        ranks = distributed.initialise(config.trainer.tensor_parallel, config.trainer.pipeline_parallel)
        policy = MegatronPolicy(config, ranks)
        layout, whole = ranks.layout, train_batch(token_batch())
        batch = whole.select(list(range(layout.replica, len(whole), layout.data_parallel)))
        reports = [policy.update(batch, loss_function)]
        if loads:
            policy.load(saved)
        else:
            save(policy, saved)
        reports.append(policy.update(batch, loss_function))
        policy.adopt_as_reference()
        reports.append(policy.update(batch, loss_function))
        replicated = [t.b if t.split.name == "columns" else t.a for t in low_rank(policy).targets]
        measured[name] = {
            "norms": [report.grad_norm for report in reports],
            "changes": [report.relative_change for report in reports],
            "after": as_numpy(dict(policy.named_weights())),
            "replicated": [tensor.detach().numpy().tobytes() for tensor in replicated],
            "layout": (layout.rank // (layout.world_size // config.trainer.pipeline_parallel)),
        }
    return measured


@pytest.mark.slow
@pytest.mark.parametrize(("num_ranks", "cases"), [(2, TWO), (4, FOUR)], ids=["two", "four"])
def test_every_layout_equals_one_rank(
    num_ranks: int,
    cases: dict[str, Any],
    hf_models: dict[str, Path],
    ranks: distributed.Ranks,
    tmp_path: Path,
) -> None:
    saved = tmp_path / "saved"
    alone = measure({"alone": {}}, hf_models["qwen3_tied"], saved, loads=False)["alone"]
    results = run_ranks(
        measure, num_ranks, cases=cases, path=hf_models["qwen3_tied"], saved=saved, loads=True
    )
    for case in cases:
        for result in results:
            got = result[case]
            np.testing.assert_allclose(got["norms"], alone["norms"], rtol=1e-4, err_msg=case)
            for mine, wanted in zip(got["changes"], alone["changes"], strict=True):
                assert mine == pytest.approx(wanted, rel=1e-4), case
            for name, wanted in alone["after"].items():
                np.testing.assert_allclose(
                    got["after"][name], wanted, atol=2e-5, rtol=0, err_msg=f"{case} {name}"
                )
        by_stage: dict[int, set[bytes]] = {}
        for result in results:
            by_stage.setdefault(result[case]["layout"], set()).add(b"".join(result[case]["replicated"]))
        assert all(len(copies) == 1 for copies in by_stage.values()), case
