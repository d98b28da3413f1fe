"""Tests of an update's statistics, against loops over Python floats and for any partition."""

from __future__ import annotations

import dataclasses
import math
import pickle
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_prorl.algorithm.metrics import (
    MAX_QUANTILE_SAMPLE,
    UpdateStatistics,
    kl_at_sampling,
    merge_statistics,
    sampler_agreement,
    token_limits,
    update_statistics,
)
from nemo_prorl.config import AlgorithmConfig, CorrectionLevel, CorrectionMode, KlEstimator, RatioLevel
from nemo_prorl.types import TOKEN_LIMITS, TrainBatch, UpdateReport

CONFIG = AlgorithmConfig(
    dual_clip=1.5,
    correction_level=CorrectionLevel.token,
    correction_high=1.1,
    kl_estimator=KlEstimator.k2,
)


def report_on(batch: TrainBatch, seed: int, outside: float = 0.0) -> UpdateReport:
    random = np.random.default_rng(seed)
    mask = batch.tokens.response_mask_BT
    current = np.full(mask.shape, outside, dtype=np.float32)
    entropy = np.full(mask.shape, outside, dtype=np.float32)
    current[mask] = batch.old_logprobs_BT[mask] + random.normal(0, 0.5, mask.sum())
    entropy[mask] = random.uniform(0, 2, mask.sum())
    return UpdateReport(
        loss=0.0, grad_norm=0.0, learning_rate=0.0, current_logprobs_BT=current, entropy_BT=entropy
    )


def rows_of(report: UpdateReport, rows: list[int], width: int) -> UpdateReport:
    current, entropy = report.current_logprobs_BT[rows, :width], report.entropy_BT[rows, :width]
    return dataclasses.replace(report, current_logprobs_BT=current, entropy_BT=entropy)


def empirical_quantile(values: list[float], share: float) -> float:
    """Returns the smallest value such that at least this share of all values is not larger."""
    ordered = sorted(values)
    return next(v for i, v in enumerate(ordered, 1) if i >= share * len(ordered) - 1e-9)


def effective_share(logs: list[float]) -> float:
    weights = [math.exp(log) for log in logs]
    return sum(weights) ** 2 / (len(weights) * sum(w * w for w in weights))


def oracle(report: UpdateReport, batch: TrainBatch, config: AlgorithmConfig) -> dict[str, float]:
    rows = []
    for b in range(len(batch)):
        for t, is_response in enumerate(batch.tokens.response_mask_BT[b]):
            if is_response:
                names = ("old_logprobs_BT", "sampler_logprobs_BT", "reference_logprobs_BT")
                old, sampler, reference = (float(getattr(batch, name)[b, t]) for name in names)
                current = float(report.current_logprobs_BT[b, t])
                entropy, advantage = float(report.entropy_BT[b, t]), float(batch.advantages_B[b])
                rows.append((current, old, sampler, reference, entropy, advantage))
    ratios = [math.exp(current - old) for current, old, *_ in rows]
    advantages = [a for *_, a in rows]
    weights = [math.exp(old - sampler) for _, old, sampler, *_ in rows]
    kl = [(current - reference) ** 2 / 2 for current, _, _, reference, *_ in rows]
    pairs = list(zip(ratios, advantages, strict=True))
    per_rollout = [float(a) for a in batch.advantages_B]
    return {
        "objective/kl_to_reference": statistics.mean(kl),
        "objective/kl_to_reference_max": max(kl),
        "objective/entropy": statistics.mean(entropy for *_, entropy, _ in rows),
        "objective/ratio_mean": statistics.mean(ratios),
        "objective/ratio_min": min(ratios),
        "objective/ratio_max": max(ratios),
        "objective/ratio_p01": empirical_quantile(ratios, 0.01),
        "objective/ratio_p99": empirical_quantile(ratios, 0.99),
        "objective/clip_low_fraction": statistics.mean(a < 0 and r < 1 - config.clip_low for r, a in pairs),
        "objective/clip_high_fraction": statistics.mean(a > 0 and r > 1 + config.clip_high for r, a in pairs),
        "objective/dual_clip_fraction": statistics.mean(a < 0 and r > config.dual_clip for r, a in pairs),
        "objective/approx_kl_to_old": statistics.mean(r - 1 - math.log(r) for r in ratios),
        "objective/importance_weight_mean": statistics.mean(min(w, config.correction_high) for w in weights),
        "objective/importance_limited_fraction": statistics.mean(w > config.correction_high for w in weights),
        "objective/importance_limited_rollout_fraction": statistics.mean(
            any(
                math.exp(float(batch.old_logprobs_BT[b, t]) - float(batch.sampler_logprobs_BT[b, t]))
                > config.correction_high
                for t in np.flatnonzero(batch.tokens.response_mask_BT[b])
            )
            for b in range(len(batch))
        ),
        "objective/kl_clamped_fraction": 0.0,
        "objective/effective_sample_share": effective_share([row[0] - row[2] for row in rows]),
        "objective/advantage_std": statistics.pstdev(per_rollout),
        "objective/advantage_min": min(per_rollout),
        "objective/advantage_max": max(per_rollout),
    }


@given(seed=st.integers(0, 500), lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8), data=st.data())
@settings(max_examples=60, deadline=None)
def test_equal_the_loop_however_the_rows_are_split(seed, lengths, data, random_batch):
    """The replicas are uneven, some without rows, and come in any order. Quantiles are exact because no part is
    large."""
    batch = random_batch(seed, lengths)
    report = report_on(batch, seed)
    replica_of = data.draw(st.lists(st.integers(0, 3), min_size=len(lengths), max_size=len(lengths)))
    parts = []
    for replica in range(4):
        rows = [row for row, owner in enumerate(replica_of) if owner == replica]
        part = batch.select(rows)
        parts.append(
            update_statistics(rows_of(report, rows, part.tokens.token_ids_BT.shape[1]), part, CONFIG)
        )
    merged = merge_statistics(parts)
    expected = oracle(report, batch, CONFIG)
    assert merged.keys() == expected.keys()
    for name, value in expected.items():
        assert merged[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name


def test_sequence_importance_counts_each_token_of_a_capped_rollout(make_batch):
    """The ratio of rollout 1, exp(3 * 0.1) = 1.35, is cut to 1.2, though none of its tokens is; that of rollout 2,
    exp(-0.4), is not."""
    batch = make_batch(
        advantages=[1.0, -1.0], old=[[-1.0, -1.0, -1.0], [-2.0]], sampler=[[-1.1, -1.1, -1.1], [-1.6]]
    )
    config = AlgorithmConfig(correction_level=CorrectionLevel.sequence, correction_high=1.2)
    merged = merge_statistics([update_statistics(report_on(batch, 0), batch, config)])
    assert merged["objective/importance_limited_fraction"] == 0.75
    assert merged["objective/importance_weight_mean"] == pytest.approx(
        (3 * 1.2 + math.exp(-0.4)) / 4, rel=1e-6
    )


def test_what_is_dropped_or_clamped_is_counted(make_batch):
    """One token of rollout 1 is out of bounds, so three of four tokens and one of two rollouts are dropped. k3 of d = 3
    is clamped."""
    batch = make_batch(
        advantages=[1.0, -1.0],
        old=[[-1.0, -1.0, -1.0], [-2.0]],
        sampler=[[-1.0, -2.5, -1.0], [-2.0]],
        reference=[[-1.0, -1.0, -1.0], [1.0]],
    )
    config = AlgorithmConfig(
        correction_level=CorrectionLevel.token, correction_mode=CorrectionMode.drop, correction_high=2.0
    )
    statistics = update_statistics(report_on(batch, 0), batch, config, is_first=True)
    merged = merge_statistics([statistics, statistics])
    assert merged["objective/importance_limited_fraction"] == 0.75
    assert merged["objective/importance_limited_rollout_fraction"] == 0.5
    assert merged["objective/importance_weight_mean"] == 0.25
    assert merged["objective/kl_clamped_fraction"] == 0.25
    assert merged["objective/kl_to_reference_max"] == 10.0
    uncharged = update_statistics(
        report_on(batch, 0), batch, dataclasses.replace(config, kl_beta=0.0), is_first=True
    )
    assert "objective/kl_clamped_fraction" not in merge_statistics([uncharged])


def test_the_sequence_ratio_is_told_and_its_clip_counted_token_by_token(make_batch):
    """Ratios of 1.5 and 0.5 make 0.87 for their rollout, the only one of two that is clipped below 0.9."""
    batch = make_batch(advantages=[-1.0, -1.0], old=[[-1.0, -1.0], [-2.0]])
    report = report_on(batch, 0)
    report.current_logprobs_BT[0, 2:4] = -1.0 + math.log(1.5), -1.0 + math.log(0.5)
    report.current_logprobs_BT[1, 2] = -2.0
    config = AlgorithmConfig(ratio_level=RatioLevel.sequence, clip_low=0.1, clip_high=0.1)
    merged = merge_statistics([update_statistics(report, batch, config)])
    assert merged["objective/ratio_min"] == pytest.approx(math.sqrt(0.75), rel=1e-6)
    assert merged["objective/ratio_max"] == 1.0
    assert merged["objective/clip_low_fraction"] == pytest.approx(2 / 3)
    assert merged["objective/clip_high_fraction"] == 0.0


def test_the_largest_ratio_is_told_even_if_it_overflows(make_batch):
    """JSON has no infinity, and a record without the number would raise no alarm."""
    batch = make_batch(advantages=[0.0, -1.0], old=[[-500.0, -1.0], [-500.0, -1.0]])
    report = report_on(batch, 0)
    report.current_logprobs_BT[:] = -1.0
    merged = merge_statistics([update_statistics(report, batch, AlgorithmConfig())])
    assert merged["objective/ratio_max"] == merged["objective/ratio_p99"] == 1e30
    assert merged["objective/ratio_min"] == 1.0
    assert merged["objective/dual_clip_fraction"] == 0.25, "a token of advantage 0 has no gradient to stop"


@pytest.mark.parametrize("junk", [math.nan, math.inf, -50.0])
@pytest.mark.parametrize("correction", CorrectionLevel)
def test_nothing_outside_the_response_counts(junk, correction, random_batch):
    """SkyRL tests/train/algorithms/test_losses.py, ..._ratio_min_max_ignore_masked_tokens: padding gave a minimum of 0.
    Also tests the product over the response in the sequence weight."""
    config = AlgorithmConfig(correction_level=correction)
    clean, dirty = random_batch(3, [4, 1]), random_batch(3, [4, 1], padding=3, outside=junk)
    dirty.sampler_logprobs_BT[~dirty.tokens.response_mask_BT] = 1.0
    expected = merge_statistics([update_statistics(report_on(clean, 3), clean, config)])
    merged = merge_statistics([update_statistics(report_on(dirty, 3, junk), dirty, config)])
    assert merged == pytest.approx(expected, rel=1e-12)


def test_a_row_without_response_is_no_rollout(make_batch):
    rows = {"advantages": [0.5, -1.5], "old": [[-1.0], [-2.0]]}
    padded = make_batch(advantages=[*rows["advantages"], 99.0], old=[*rows["old"], []])
    merged = merge_statistics([update_statistics(report_on(padded, 0), padded, CONFIG)])
    assert merged["objective/advantage_max"] == 0.5
    assert merged["objective/advantage_std"] == 1.0


@pytest.mark.parametrize("estimator", KlEstimator)
def test_right_after_a_reset_the_kl_is_exactly_0(estimator, random_batch):
    """A second pass over the same weights differs in the last bits, which must not show in the KL; all other values are
    reported as measured."""
    batch = random_batch(seed=3, lengths=[5, 9, 2])
    batch = dataclasses.replace(batch, reference_logprobs_BT=batch.old_logprobs_BT)
    report = report_on(batch, seed=3)
    config = AlgorithmConfig(kl_estimator=estimator)
    first = merge_statistics([update_statistics(report, batch, config, is_first=True)])
    later = merge_statistics([update_statistics(report, batch, config)])
    assert first["objective/kl_to_reference"] == first["objective/kl_to_reference_max"] == 0.0
    assert later["objective/kl_to_reference"] != 0.0
    told = {key: value for key, value in first.items() if not key.startswith("objective/kl_to_reference")}
    assert told == {key: later[key] for key in told}


def test_a_kl_that_is_not_measured_is_absent_and_everything_else_is_told(random_batch):
    batch = random_batch(1, [3, 2])
    config = AlgorithmConfig(kl_beta=0.0)
    told = merge_statistics([update_statistics(report_on(batch, 0), batch, config)])
    rest = merge_statistics([update_statistics(report_on(batch, 0), batch, config, with_kl=False)])
    assert told.keys() - rest.keys() == {"objective/kl_to_reference", "objective/kl_to_reference_max"}
    assert rest == {key: told[key] for key in rest}


def test_the_kl_at_sampling_is_the_mean_over_tokens():
    old = [np.array([-1.0, -2.0], dtype=np.float32), np.array([-0.5], dtype=np.float32)]
    reference = [np.array([-1.5, -2.0], dtype=np.float32), np.array([-0.25], dtype=np.float32)]
    logs = [-0.5, 0.0, 0.25]  # reference minus old
    expected = statistics.mean(math.exp(x) - x - 1 for x in logs)
    config = AlgorithmConfig(kl_estimator=KlEstimator.k3)
    merged = merge_statistics([kl_at_sampling(old, reference, config)])
    assert merged == {"objective/kl_at_sampling": pytest.approx(expected, rel=1e-12)}
    assert merge_statistics([kl_at_sampling(old, old, config)]) == {"objective/kl_at_sampling": 0.0}
    assert merge_statistics([kl_at_sampling([], [], config)]) == {}


def test_the_effective_sample_size_is_split_by_the_age_of_the_rollouts(random_batch):
    """Over two replicas with different ages; without a response a row has no age."""
    batches = [random_batch(1, [3, 2, 4]), random_batch(2, [2, 0])]
    ages, reports = [[0, 4, 0], [4, 1]], [report_on(batch, i) for i, batch in enumerate(batches)]
    logs: dict[int, list[float]] = {}
    parts = []
    for batch, report, of_rows in zip(batches, reports, ages, strict=True):
        parts.append(update_statistics(report, batch, CONFIG, ages_B=of_rows))
        for row, t in np.argwhere(batch.tokens.response_mask_BT):
            log = float(report.current_logprobs_BT[row, t]) - float(batch.sampler_logprobs_BT[row, t])
            logs.setdefault(of_rows[row], []).append(log)
    merged = merge_statistics(parts)
    found = {name: value for name, value in merged.items() if "effective_sample_share_age" in name}
    assert found == {
        f"objective/effective_sample_share_age_{age}": pytest.approx(effective_share(of_age), rel=1e-9)
        for age, of_age in logs.items()
    }


@pytest.mark.parametrize("mode", list(CorrectionMode))
def test_the_limits_of_each_token_equal_the_loop(mode, random_batch):
    config = dataclasses.replace(CONFIG, correction_mode=mode, correction_low=0.9)
    batch = random_batch(0, [1, 7, 30, 12])
    report = report_on(batch, 3, outside=9.0)
    found, seen = token_limits(report, batch, config), set()
    assert found.dtype == np.uint8
    for b in range(len(batch)):
        mask = batch.tokens.response_mask_BT[b]
        own = {
            t: math.exp(batch.old_logprobs_BT[b, t] - batch.sampler_logprobs_BT[b, t])
            for t in np.flatnonzero(mask)
        }
        dropped = mode is CorrectionMode.drop and any(not 0.9 <= weight <= 1.1 for weight in own.values())
        for t in range(mask.size):
            wanted, advantage = set(), float(batch.advantages_B[b])
            if t in own:
                ratio = math.exp(report.current_logprobs_BT[b, t] - batch.old_logprobs_BT[b, t])
                is_outside = not 0.9 <= own[t] <= 1.1
                if advantage < 0 and ratio < 1 - config.clip_low:
                    wanted.add("clipped_low")
                if advantage > 0 and ratio > 1 + config.clip_high:
                    wanted.add("clipped_high")
                if advantage < 0 and ratio > 1.5:
                    wanted.add("clipped_dual")
                if dropped or (mode is CorrectionMode.mask and is_outside):
                    wanted.add("masked")
                if mode is CorrectionMode.truncate and is_outside:
                    wanted.add("weight_truncated")
            assert {name for bit, name in enumerate(TOKEN_LIMITS) if found[b, t] >> bit & 1} == wanted
            seen.add(frozenset(wanted))
    assert len(seen) > 3


RATIOS = ("ratio_mean", "ratio_min", "ratio_max", "ratio_p99")


def test_a_nan_is_shown_not_hidden(random_batch):
    """In whichever token and replica it is."""
    for position in range(3):
        batches = [random_batch(i, [3]) for i in range(2)]
        reports = [report_on(batch, 0) for batch in batches]
        reports[1].current_logprobs_BT[0, 2 + position] = math.nan
        parts = [update_statistics(*pair, CONFIG) for pair in zip(reports, batches, strict=True)]
        for order in (parts, parts[::-1]):
            merged = merge_statistics(order)
            for name in ("kl_to_reference", *RATIOS, "effective_sample_share"):
                assert math.isnan(merged[f"objective/{name}"]), name
            assert not math.isnan(merged["objective/entropy"])


def test_parts_without_tokens_say_nothing(make_batch, random_batch):
    empty = make_batch(advantages=[], old=[])
    nothing = update_statistics(report_on(empty, 0), empty, CONFIG)
    assert nothing == UpdateStatistics() == sampler_agreement([], [])
    assert merge_statistics([nothing, nothing]) == {}
    batch = random_batch(1, [2])
    something = update_statistics(report_on(batch, 0), batch, CONFIG)
    assert merge_statistics([nothing, something]) == merge_statistics([something])


def test_a_report_on_other_rows_is_refused(random_batch):
    batch = random_batch(1, [2, 3])
    with pytest.raises(ValueError, match="report"):
        update_statistics(report_on(random_batch(1, [2, 4]), 0), batch, CONFIG)


def test_large_parts_stay_small_and_their_quantiles_close(random_batch):
    """Three replicas have 20,000 tokens and one has 100; quantiles are off by at most 1 in 4096 of the ranks."""
    batches = [
        random_batch(i, lengths) for i, lengths in enumerate(([20_000], [19_000, 1_000], [20_000], [100]))
    ]
    reports = [report_on(batch, i) for i, batch in enumerate(batches)]
    parts = [update_statistics(*pair, CONFIG) for pair in zip(reports, batches, strict=True)]
    assert len(pickle.dumps(parts[0])) < 20_000
    assert pickle.loads(pickle.dumps(parts[3])).means == parts[3].means
    assert len(parts[0].samples["objective/ratio"].values) <= MAX_QUANTILE_SAMPLE
    merged = merge_statistics(parts)
    ratios = np.concatenate(
        [
            np.exp(r.current_logprobs_BT.astype(float) - b.old_logprobs_BT)[b.tokens.response_mask_BT]
            for r, b in zip(reports, batches, strict=True)
        ]
    )
    for share in (0.01, 0.99):
        rank = (ratios <= merged[f"objective/ratio_p{round(100 * share):02d}"]).mean()
        assert abs(rank - share) <= 1 / 4096 + 1 / 2048 * 0.01 + 1e-9
    assert merged["objective/ratio_max"] == pytest.approx(ratios.max(), rel=1e-12)


def test_advantage_spread_far_from_zero_does_not_cancel(make_batch):
    """In float64, E[x^2] - E[x]^2 keeps only one or two digits here."""
    values = [1e6, 1e6 + 0.0625]
    parts = []
    for value in values:
        batch = make_batch(advantages=[value], old=[[-1.0]])
        parts.append(update_statistics(report_on(batch, 0), batch, CONFIG))
    assert merge_statistics(parts)["objective/advantage_std"] == pytest.approx(0.03125, rel=1e-6)


def test_sampler_agreement_over_replicas():
    random = np.random.default_rng(0)
    sampler = [random.uniform(-3, 0, n).astype(np.float32) for n in (5, 1, 9, 30)]
    old = [row + random.normal(0, 1e-2, len(row)).astype(np.float32) for row in sampler]
    differences = [
        abs(float(a) - float(b)) for s, o in zip(sampler, old, strict=True) for a, b in zip(s, o, strict=True)
    ]
    merged = merge_statistics(
        [sampler_agreement(sampler[:3], old[:3]), sampler_agreement(sampler[3:], old[3:])]
    )
    assert merged == pytest.approx(
        {
            "sampler/logprob_abs_diff_mean": statistics.mean(differences),
            "sampler/logprob_abs_diff_max": max(differences),
            "sampler/logprob_abs_diff_p99": empirical_quantile(differences, 0.99),
        }
    )


def test_sampler_agreement_of_other_tokens_is_refused():
    with pytest.raises(ValueError, match="3 log-probabilities of the sampler, 2 of the trainer"):
        sampler_agreement([np.zeros(3, dtype=np.float32)], [np.zeros(2, dtype=np.float32)])
