"""What a policy promises the loop, on one rank: no effect of batching, temperature, updates, reference, optimizer."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nemo_prorl.config import Decay, Fp8Recipe, Optimizer, Precision, Recompute, RunConfig, TrainerConfig
from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.interface import NonFiniteUpdate
from nemo_prorl.engines.megatron import build, optimizer_state
from nemo_prorl.engines.megatron.architecture import read_architecture
from nemo_prorl.engines.megatron.policy import MegatronPolicy, learning_rate
from nemo_prorl.training.timing import host_memory
from nemo_prorl.types import TokenBatch, Totals, TrainBatch
from tests.engines.megatron.helpers import (
    MakePolicy,
    captured_gradients,
    loss_function,
    plain_logprobs,
    reference_logprobs,
    run_config,
    save,
    token_batch,
    train_batch,
)
from tests.waits import Waits


def snapshot(policy: MegatronPolicy) -> dict[str, torch.Tensor]:
    return dict(policy.named_weights())


def moments(policy: MegatronPolicy) -> dict[str, list[torch.Tensor]]:
    slots = optimizer_state.slots(policy.optimizer, policy.model)
    return {
        name: [slot.state[moment].clone() for moment in optimizer_state.MOMENTS]
        for name, slot in slots.items()
    }


def assert_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def pad(batch: TokenBatch, width: int) -> TokenBatch:
    """Padded with tokens that are not 0, to show that they do not matter."""
    old = batch.token_ids_BT.shape[1]
    tokens = np.pad(batch.token_ids_BT, ((0, 0), (0, width - old)))
    positions = np.arange(width)
    return TokenBatch(
        token_ids_BT=np.where(positions < batch.lengths_B[:, None], tokens, 17),
        response_mask_BT=np.pad(batch.response_mask_BT, ((0, 0), (0, width - old))),
        lengths_B=batch.lengths_B,
    )


def test_micro_batches_chunks_and_padding_do_not_matter(make_policy: MakePolicy) -> None:
    batch = train_batch(token_batch())
    wide = dataclasses.replace(
        train_batch(batch.tokens.select(range(10))),
        tokens=pad(batch.tokens, 64),
        **{
            name: np.pad(getattr(batch, name), ((0, 0), (0, 24)))
            for name in ("sampler_logprobs_BT", "old_logprobs_BT", "reference_logprobs_BT")
        },
    )
    shuffled = np.random.default_rng(3).permutation(10)
    variants = {
        "one pass": ({"micro_batch_tokens": 10_000, "chunk": 10_000}, batch),
        "row by row": ({"micro_batch_tokens": 1, "chunk": 7}, batch),
        "padded": ({}, wide),
        "shuffled": ({}, batch.select(shuffled)),
        "recomputed": ({"recompute": Recompute.full}, batch),
        "attention recomputed": ({"recompute": Recompute.selective}, batch),
    }
    base = make_policy("qwen3")
    wanted_logprobs = base.logprobs(batch.tokens)
    with captured_gradients(base) as wanted:
        base_report = base.update(batch, loss_function)
    for name, (changes, given) in variants.items():
        policy = make_policy("qwen3", **changes)
        logprobs = policy.logprobs(given.tokens)
        with captured_gradients(policy) as gradients:
            report = policy.update(given, loss_function)
        order = shuffled if name == "shuffled" else np.arange(10)
        np.testing.assert_allclose(logprobs[:, :40], wanted_logprobs[order], atol=1e-5, rtol=0, err_msg=name)
        np.testing.assert_allclose(
            report.entropy_BT[:, :40], base_report.entropy_BT[order], atol=1e-5, rtol=0, err_msg=name
        )
        assert report.loss == pytest.approx(base_report.loss, abs=1e-5), name
        for key, tensor in wanted.items():
            torch.testing.assert_close(
                gradients[key],
                tensor,
                atol=1e-5,
                rtol=1e-4,
                msg=lambda text, name=name, key=key: f"{name} {key} {text}",
            )


def test_the_report_tells_of_the_weights_before_the_update(make_policy: MakePolicy) -> None:
    batch = train_batch(token_batch())
    policy = make_policy()
    before = policy.logprobs(batch.tokens)
    report = policy.update(batch, loss_function)
    np.testing.assert_array_equal(report.current_logprobs_BT, before)
    assert (report.entropy_BT[batch.tokens.response_mask_BT] > 0).all()
    assert not report.entropy_BT[~batch.tokens.response_mask_BT].any()
    assert np.abs(policy.logprobs(batch.tokens) - before).max() > 1e-3
    assert isinstance(report.loss, float)
    assert isinstance(report.grad_norm, float)


def test_the_loss_function_sees_the_totals_and_its_own_rows(make_policy: MakePolicy) -> None:
    batch = train_batch(token_batch())
    seen: list[int] = []

    def loss(current: torch.Tensor, entropy: torch.Tensor, part: TrainBatch, totals: Totals) -> torch.Tensor:
        assert totals == Totals(num_tokens=batch.num_tokens, num_rollouts=len(batch))
        assert current.shape == entropy.shape == part.tokens.token_ids_BT.shape
        mask = torch.from_numpy(part.tokens.response_mask_BT)
        assert not current[~mask].any()
        assert not entropy[~mask].any()
        seen.append(part.num_tokens)
        return current.sum() / totals.num_tokens

    report = make_policy().update(batch, loss)
    assert sum(seen) == batch.num_tokens
    assert len(seen) > 1
    assert report.loss == pytest.approx(report.current_logprobs_BT.sum() / batch.num_tokens, rel=1e-5)


def test_gradients_are_clipped_to_the_norm(make_policy: MakePolicy) -> None:
    """Adam forgets the scale of a gradient, so clipping is seen in its first moment: (1 - beta1) x clipped gradient."""
    batch = train_batch(token_batch())
    policy = make_policy(clip_grad=0.125)
    report = policy.update(batch, loss_function)
    assert report.grad_norm > 0.2
    first = math.sqrt(sum(float(values[0].square().sum()) for values in moments(policy).values()))
    assert first == pytest.approx(0.1 * 0.125, rel=1e-4)


def test_sgd_moves_the_weights_against_the_clipped_gradient_alone(make_policy: MakePolicy) -> None:
    batch = train_batch(token_batch())
    policy = make_policy(optimizer=Optimizer.sgd, learning_rate=0.5, warmup_updates=0, clip_grad=0.125)
    for _ in range(2):  # the second knows nothing of the first
        before = {name: weight.clone() for name, weight in snapshot(policy).items()}
        with captured_gradients(policy) as gradients:
            report = policy.update(batch, loss_function)
        assert report.grad_norm > 0.2
        for name, weight in snapshot(policy).items():
            wanted = before[name] - 0.5 * 0.125 / report.grad_norm * gradients[name]
            torch.testing.assert_close(weight, wanted, atol=1e-7, rtol=1e-5, msg=name)
    slots = optimizer_state.slots(policy.optimizer, policy.model).values()
    assert not any(slot.state for slot in slots)
    policy.reset_optimizer()


def test_the_feed_forward_block_as_cuda_runs_it(make_policy: MakePolicy) -> None:
    """SwiGLU as one function, there compiled, with a backward pass of its own."""
    batch = train_batch(token_batch())
    seen = []
    for fused in (False, True):
        policy = make_policy("qwen2")
        policy.model.config.bias_activation_fusion = fused
        with captured_gradients(policy) as gradients:
            report = policy.update(batch, loss_function)
        seen.append((report, gradients))
    (plain, expected), (fused_report, got) = seen
    np.testing.assert_allclose(fused_report.current_logprobs_BT, plain.current_logprobs_BT, atol=1e-6)
    assert any((got[name] != expected[name]).any() for name in expected), "the same function ran twice"
    for name in expected:
        torch.testing.assert_close(got[name], expected[name], atol=1e-6, rtol=1e-4, msg=name)


def test_delayed_scaling_is_shared_by_ranks_with_equally_many_passes_only(
    hf_models: dict[str, Path],
) -> None:
    """Replicas have as many as their rollouts take: an exchange among all ranks, Megatron's default, would not end."""
    config = RunConfig()
    config.model.fp8 = Fp8Recipe.delayed
    assert build.transformer_config(read_architecture(hf_models["qwen2"]), config).tp_only_amax_red


def test_the_reference_does_not_alias_the_weights(make_policy: MakePolicy) -> None:
    """On CPU, `tensor.to("cpu")` would be no copy: the reference would then follow the policy, and the KL be 0."""
    batch = train_batch(token_batch())
    policy = make_policy()
    policy.update(batch, loss_function)
    policy.adopt_as_reference()
    adopted = policy.logprobs(batch.tokens)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.01)
    np.testing.assert_array_equal(reference_logprobs(policy, batch.tokens), adopted)
    assert np.abs(policy.logprobs(batch.tokens) - adopted).max() > 1e-3


def test_looking_at_the_reference_leaves_the_weights_exactly(make_policy: MakePolicy) -> None:
    batch = train_batch(token_batch())
    policy, undisturbed = make_policy(), make_policy()
    for each in (policy, undisturbed):
        each.update(batch, loss_function)
    before = snapshot(policy)
    reference_logprobs(policy, batch.tokens)
    with pytest.raises(RuntimeError), policy.reference():
        raise RuntimeError
    assert_same(snapshot(policy), before)
    for each in (policy, undisturbed):
        each.update(batch, loss_function)
    assert_same(snapshot(policy), snapshot(undisturbed))


class TestResetOptimizer:
    def test_the_next_update_is_that_of_a_fresh_optimizer(
        self, make_policy: MakePolicy, tmp_path: Path
    ) -> None:
        batch = train_batch(token_batch())
        policy = make_policy(warmup_updates=0)
        for _ in range(3):
            policy.update(batch, loss_function)
        policy.reset_optimizer()
        assert not any(tensor.any() for pair in moments(policy).values() for tensor in pair)
        fresh = make_policy(warmup_updates=0)
        with torch.no_grad():
            for mine, theirs in zip(fresh.model.parameters(), policy.model.parameters(), strict=True):
                mine.copy_(theirs)
        for each in (policy, fresh):
            each.update(batch, loss_function)
        assert_same(snapshot(policy), snapshot(fresh))

    def test_weights_and_learning_rate_stay(self, make_policy: MakePolicy) -> None:
        batch = train_batch(token_batch())
        policy = make_policy()
        rates = [policy.update(batch, loss_function).learning_rate for _ in range(2)]
        before = snapshot(policy)
        policy.reset_optimizer()
        assert_same(snapshot(policy), before)
        rates.append(policy.update(batch, loss_function).learning_rate)
        assert rates == pytest.approx([2.5e-3, 5e-3, 7.5e-3])


class TestNonFiniteUpdate:
    @pytest.mark.parametrize("poison", ["loss", "gradient"])
    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_nothing_has_happened(self, poison: str, value: float, make_policy: MakePolicy) -> None:
        batch = train_batch(token_batch())
        policy, spared = make_policy(), make_policy()
        for each in (policy, spared):
            each.update(batch, loss_function)

        def poisoned(
            current: torch.Tensor, entropy: torch.Tensor, part: TrainBatch, totals: Totals
        ) -> torch.Tensor:
            loss = loss_function(current, entropy, part, totals)
            if poison == "loss":
                return loss + value
            current.register_hook(lambda gradient: gradient * value)
            return loss

        weights, state = snapshot(policy), moments(policy)
        with pytest.raises(NonFiniteUpdate, match="the weights were left as they were"):
            policy.update(batch, poisoned)
        assert_same(snapshot(policy), weights)
        assert all(
            torch.equal(a, b)
            for name in state
            for a, b in zip(state[name], moments(policy)[name], strict=True)
        )
        reports = [each.update(batch, loss_function) for each in (policy, spared)]
        assert reports[0].learning_rate == reports[1].learning_rate
        assert_same(snapshot(policy), snapshot(spared))


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        ({}, [1, 1, 1, 1, 1, 1, 1]),
        ({"warmup_updates": 4}, [0.25, 0.5, 0.75, 1, 1, 1, 1]),
        ({"decay": Decay.linear, "decay_updates": 4}, [1, 0.75, 0.5, 0.25, 0, 0, 0]),
        (
            {"warmup_updates": 2, "decay": Decay.linear, "decay_updates": 6},
            [0.5, 1, 1, 0.75, 0.5, 0.25, 0],
        ),
        ({"decay": Decay.cosine, "decay_updates": 4}, [1, 0.5 + 8**-0.5, 0.5, 0.5 - 8**-0.5, 0, 0, 0]),
    ],
)
def test_learning_rate(settings: dict[str, object], rates: list[float]) -> None:
    config = TrainerConfig(learning_rate=1.0, **settings)
    assert [learning_rate(config, n) for n in range(7)] == pytest.approx(rates)


def test_each_update_has_the_rate_that_it_reports(make_policy: MakePolicy) -> None:
    """Without memory of earlier gradients Adam moves each weight by the rate itself."""
    policy, batch = (
        make_policy(adam_beta1=0.0, adam_beta2=0.0, adam_epsilon=1e-12),
        train_batch(token_batch()),
    )
    rates = []
    for _ in range(3):
        before = {name: weight.clone() for name, weight in snapshot(policy).items()}
        rates.append(policy.update(batch, loss_function).learning_rate)
        moved = max(float((weight - before[name]).abs().max()) for name, weight in snapshot(policy).items())
        assert moved == pytest.approx(rates[-1], rel=1e-3)
    assert rates == pytest.approx([2.5e-3, 5e-3, 7.5e-3])


def test_an_update_without_tokens_is_refused(make_policy: MakePolicy) -> None:
    with pytest.raises(ValueError, match="nothing to learn from"):
        make_policy().update(train_batch(token_batch()).select([]), loss_function)


def test_sixteen_bits_learn_through_fp32_copies(
    ranks: object, hf_models: dict[str, Path], tmp_path: Path
) -> None:
    """bf16 on CPU: updates far smaller than a weight's rounding add up in the fp32 copies, which checkpoints keep."""
    config = run_config(hf_models["qwen2"], learning_rate=1e-5, warmup_updates=0)
    config.model.precision = Precision.bf16
    batch = train_batch(token_batch())
    policy, other = (MegatronPolicy(config, ranks) for _ in range(2))  # type: ignore[arg-type]
    plain = plain_logprobs(hf_models["qwen2"], batch.tokens, 1.2)
    assert np.abs(policy.logprobs(batch.tokens) - plain).max() < 0.5
    for _ in range(3):
        policy.update(batch, loss_function)
    save(policy, tmp_path / "saved")
    other.load(tmp_path / "saved")
    for name, slot in optimizer_state.slots(policy.optimizer, policy.model).items():
        copy = optimizer_state.slots(other.optimizer, other.model)[name].main
        assert copy.dtype is torch.float32
        assert torch.equal(slot.main, copy)
    for each in (policy, other):
        each.update(batch, loss_function)
    assert_same(snapshot(policy), snapshot(other))


def test_what_is_free_after_the_updates_goes_back_to_the_system(make_policy: MakePolicy) -> None:
    """glibc would keep the holes between blocks that are still in use."""
    policy = make_policy()
    blocks = [bytearray(b"1" * 100_000) for _ in range(3000)]
    kept = blocks[::50]
    del blocks
    before = host_memory()["host_memory/rank_gib"]
    policy.finish_training()
    assert before - host_memory()["host_memory/rank_gib"] > 0.15
    assert len(kept) == 60


def test_the_norm_of_gradients_is_that_of_the_update_that_follows(make_policy: MakePolicy) -> None:
    """Asking for it, also for other gradients, changes nothing."""
    asked, still = make_policy(), make_policy()
    batch = train_batch(token_batch())
    norms = [asked.gradient_norm(batch, loss_function) for _ in range(2)]
    assert asked.gradient_norm(batch, lambda *given: 3.0 * loss_function(*given)) == pytest.approx(
        3 * norms[0]
    )
    reports = [policy.update(batch, loss_function) for policy in (asked, still)]
    assert {*norms, *(report.grad_norm for report in reports)} == {norms[0]}
    assert_same(snapshot(asked), snapshot(still))


def test_weight_decay_spares_norms_and_biases(make_policy: MakePolicy) -> None:
    """Megatron marks them with a multiplier, which only its own scheduler would apply."""
    policy = make_policy(weight_decay=0.1)
    policy.update(train_batch(token_batch()), loss_function)
    decays = {}
    for group in policy.optimizer.param_groups:
        for parameter in group["params"]:
            decays.setdefault(parameter.ndim == 1, set()).add(group["weight_decay"])
    assert decays == {True: {0.0}, False: {0.1}}


def test_passes_use_the_threads_that_they_are_given_and_nothing_else_does(make_policy: MakePolicy) -> None:
    policy = make_policy(cpu_threads=2)
    outside, inside = torch.get_num_threads(), set()
    policy.model.register_forward_pre_hook(lambda *_: inside.add(torch.get_num_threads()))
    policy.logprobs(token_batch(2))
    assert inside == {2}
    assert torch.get_num_threads() == outside


def test_the_results_of_all_passes_are_copied_at_once(
    make_policy: MakePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU a copy to the host waits for all work that was launched before."""
    policy, copies = make_policy(micro_batch_tokens=1), []
    policy.logprobs(token_batch(5, 20))  # the first pass of a process tries the CPU's products
    cpu = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: copies.append(tensor) or cpu(tensor))
    with Waits() as waits:
        policy.logprobs(token_batch(5, 20))
    assert len([tensor for tensor in copies if tensor.numel()]) == 2, (
        "of the passes, and between pipeline stages"
    )
    assert waits.count == 0


class OfGradients(TorchDispatchMode):
    """Counts the bytes that are read and written where gradients of `numel` elements are cleared, added or cast."""

    count = 0

    def __init__(self, numel: int) -> None:
        super().__init__()
        self._numel = numel

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        is_cast = name == "_to_copy" and args[0].dtype is torch.float32  # else it is of a weight
        is_sum = name in ("zeros_like", "add", "add_", "addmm_")
        if (is_cast or is_sum) and result.numel() == self._numel:
            inputs = [x for x in args if torch.is_tensor(x) and x.numel() == self._numel]
            self.count += sum(x.numel() * x.element_size() for x in (result, *inputs))
        return result


@pytest.mark.parametrize("model", ["qwen2", "qwen3_tied"])
def test_a_pass_adds_the_gradients_of_head_and_embedding_once(
    hf_models: dict[str, Path], ranks: Ranks, model: str
) -> None:
    """In bf16, into the fp32 buffer: 4 bytes are read and 4 written for each of the two, and the embedding's 2 beside.
    What comes out is what fp32 gives, but for rounding."""
    batch, gradients = train_batch(token_batch()), {}
    for precision in (Precision.fp32, Precision.bf16):
        config = run_config(hf_models[model], chunk=10_000)
        config.model.precision = precision
        policy = MegatronPolicy(config, ranks)
        numel = policy.model.embedding.word_embeddings.weight.numel()
        with OfGradients(numel) as touched:
            policy._accumulate_gradients(batch, loss_function)
        named = policy.model.named_parameters()
        gradients[precision] = {name: p.main_grad for name, p in named if p.numel() == numel}
    num_passes = len(policy._plan(batch.tokens))
    assert num_passes > 1
    assert touched.count == numel * (8 + 10) * num_passes
    for name, wanted in gradients[Precision.fp32].items():
        assert (gradients[Precision.bf16][name] - wanted).norm() < 0.05 * wanted.norm(), name
