"""What the parts of a step cost by themselves, a reference beside each.

    .venv/bin/python benchmarks/bench_micro.py [--quick] [--only head batch selection engines reward] [--out FOLDER]

* head: log-probability and entropy of N tokens over 151,936 entries, with and without the backward pass; beside plain
  log_softmax, and beside the logits in one piece that are worked through in chunks, as the peers have it.
* batch: 8,192 rollouts of up to 8,096 tokens into one batch, its micro-batches and what the model is fed; beside
  torch's pad_sequence and a plain copy of as many bytes, rows in their order, and padded rows.
* selection: dynamic sampling and advantages of 512 groups of 16; beside the same in whole arrays.
* engines: refit of the sampler and checkpoints (micro_engines.py): what each costs however small the model, and what
  each GiB costs besides; beside copies of the same tensors, torch.save, torch.load and a read of the files.
* reward: 1,000 rollouts through the reward service; beside its graders called in a loop, without isolation or limits.

CPU seconds are of this process, on one thread, the least of --repeats (reward: once, the service's included); peak is
what the process grew by. Each part runs in a process of its own. Prints a table and writes micro.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from measuring import Figure, measure, print_table  # noqa: E402
from random_model import VOCAB  # noqa: E402

from nemo_prorl.engines import environment  # noqa: E402

environment.prepare()  # before torch and vLLM are imported

import numpy as np  # noqa: E402
import torch  # noqa: E402

GIB = 1 << 30


def main() -> None:
    """Every part in a process of its own, then the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, once: a look")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument(
        "--repeats", type=int, default=0, help="of each measurement (default 3; 1 with --quick)"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/bench_micro"))
    parser.add_argument("--child", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    scale = Scale(quick=options.quick, repeats=options.repeats or (1 if options.quick else 3))
    if options.child:
        torch.set_num_threads(1)
        figures = [dataclasses.asdict(figure) for figure in PARTS[options.child](scale)]
        options.out.write_text(json.dumps(figures), encoding="utf-8")
        return
    figures = [figure for part in options.only for figure in in_own_process(part, options)]
    print_table(figures)
    options.out.mkdir(parents=True, exist_ok=True)
    content = {"quick": options.quick, "repeats": scale.repeats, "cores": os.cpu_count(), "figures": figures}
    path = options.out / "micro.json"
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"\n{path}")


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    quick: bool
    repeats: int


def in_own_process(part: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The figures of one part."""
    print(f"{part} …", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        command = [sys.executable, __file__, "--child", part, "--out", str(out)]
        command += ["--quick"] * options.quick + ["--repeats", str(options.repeats)]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        figures: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))
        return figures


# ------------------------------------------------------------------------------------- head
def ours_head(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, chunk_tokens: int) -> Any:
    """The logits of one chunk at a time, in both passes."""
    from nemo_prorl.engines.megatron.vocab_parallel import logprob_and_entropy

    return logprob_and_entropy(
        hidden, weight, labels, vocab_size=VOCAB, temperature=1.2, chunk_tokens=chunk_tokens
    )


def plain_head(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, chunk_tokens: int) -> Any:
    """All logits, and all their log-probabilities."""
    return _of_logits(hidden @ weight.t() / 1.2, labels)


def peers_head(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, chunk_tokens: int) -> Any:
    """The model yields all logits; their softmax is taken, and again for the gradient, chunk by chunk."""
    from torch.utils.checkpoint import checkpoint

    logits = (hidden @ weight.t()).div_(1.2)
    parts = [
        checkpoint(_of_logits, chunk, some, use_reentrant=False)
        for chunk, some in zip(logits.split(chunk_tokens), labels.split(chunk_tokens), strict=True)
    ]
    return [torch.cat(values) for values in zip(*parts, strict=True)]


def _of_logits(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    log_p = logits.log_softmax(-1)
    return log_p.gather(1, labels[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


HEADS = {"ours": ours_head, "plain log_softmax": plain_head, "all logits, softmax in chunks": peers_head}


def head(scale: Scale) -> Iterator[Figure]:
    """Values of the forms are compared first: a fast wrong one is not worth a line."""
    features, count, chunk = (64, 1024, 256) if scale.quick else (256, 2048, 1024)
    torch.manual_seed(0)
    weight = (0.05 * torch.randn(VOCAB, features)).requires_grad_()
    hidden = torch.randn(count, features).requires_grad_()
    labels = torch.randint(0, VOCAB, (count,))
    values = [
        torch.stack(list(form(hidden[:64], weight, labels[:64], 24))).detach() for form in HEADS.values()
    ]
    for other in values[1:]:
        torch.testing.assert_close(other, values[0], rtol=0, atol=1e-4)

    chunks = f"{features} features, chunks of {chunk:,} tokens"

    def forward(form: Callable[..., Any], count: int) -> None:
        with torch.no_grad():
            form(hidden[:count], weight, labels[:count], chunk)

    def backward(form: Callable[..., Any], count: int) -> Any:
        logprobs, entropy = form(hidden[:count], weight, labels[:count], chunk)
        return torch.autograd.grad(logprobs.sum() + 0.01 * entropy.sum(), (hidden, weight))

    for name, passes in (("forward", forward), ("forward and backward", backward)):
        for form, function in HEADS.items():
            run = lambda passes=passes, function=function: passes(function, count)  # noqa: E731
            yield measure("head", f"{count:,} tokens, {name}", form, run, scale.repeats, chunks)
    if not scale.quick:
        many = 16_384
        hidden, labels = torch.randn(many, features).requires_grad_(), torch.randint(0, VOCAB, (many,))
        whole = f"logits in one piece: {many * VOCAB * 4 / 2**20:,.0f} MiB"
        run = lambda: backward(ours_head, many)  # noqa: E731
        yield measure("head", f"{many:,} tokens, forward and backward", "ours", run, 1, whole)


# ------------------------------------------------------------------------------------- batch
def training_rows(count: int) -> list[Any]:
    """Lengths as reasoning models have them: a median of 3,000 tokens, and one in ten at the limit of 8,096."""
    from nemo_prorl.data.batch import TrainingRow
    from nemo_prorl.types import PreparedRollout, Prompt

    rng = np.random.default_rng(0)
    prompt = Prompt(uid="p", domain="math", source="bench", text="", token_ids=tuple(range(128)), task={})
    rows = []
    for length in np.clip(rng.lognormal(8.0, 0.77, count), 16, 8096 - 128).astype(int):
        values = rng.standard_normal(length, dtype=np.float32)
        rollout = PreparedRollout(
            prompt=prompt, token_ids=rng.integers(0, VOCAB, length), sampler_logprobs=values,
            old_logprobs=values, reference_logprobs=values,
        )  # fmt: skip
        rows.append(TrainingRow(rollout=rollout, advantage=0.5))
    return rows


def by_pad_sequence(rows: list[Any]) -> list[torch.Tensor]:
    """The same five arrays, each row made whole first: torch pads rows, it does not place them."""
    from torch.nn.utils.rnn import pad_sequence

    def padded(make: Callable[[Any], np.ndarray]) -> torch.Tensor:
        return pad_sequence([torch.from_numpy(make(row)) for row in rows], batch_first=True)

    def response(values: Callable[[Any], np.ndarray]) -> Callable[[Any], np.ndarray]:
        return lambda row: np.concatenate(
            [np.zeros(len(row.rollout.prompt.token_ids), np.float32), values(row)]
        )

    return [
        padded(lambda row: np.concatenate([row.rollout.prompt.token_ids, row.rollout.token_ids])),
        padded(response(lambda row: np.ones(len(row.rollout.token_ids), np.float32))).bool(),
        padded(response(lambda row: row.rollout.sampler_logprobs)),
        padded(response(lambda row: row.rollout.old_logprobs)),
        padded(response(lambda row: row.rollout.reference_logprobs)),
    ]


def batch(scale: Scale) -> Iterator[Figure]:
    """Building, planning, feeding."""
    from nemo_prorl.data.batch import balance, train_batch
    from nemo_prorl.engines.megatron.microbatch import packed_feed, padded_feed, plan_micro_batches

    count = 256 if scale.quick else 8192
    rows = training_rows(count)
    built = train_batch(rows)
    tokens, lengths = built.tokens, built.tokens.lengths_B
    arrays = [tokens.token_ids_BT, tokens.response_mask_BT, built.sampler_logprobs_BT]
    arrays += [built.old_logprobs_BT, built.reference_logprobs_BT]
    size = f"{sum(array.nbytes for array in arrays) / GIB:.2f} GiB, {lengths.sum() / 1e6:.1f} M tokens"
    work = f"build, {count:,} rollouts"
    for form, build in (
        ("ours", lambda: train_batch(rows)),
        ("pad_sequence", lambda: by_pad_sequence(rows)),
        ("copy of the arrays", lambda: [array.copy() for array in arrays]),
    ):
        yield measure("batch", work, form, build, scale.repeats, size)

    def filled(plan: list[list[int]]) -> str:
        padded = sum(int(lengths[part].max()) * len(part) for part in plan)
        return f"{len(plan):,} passes, {lengths.sum() / padded:.1%} of what is computed are tokens"

    budget = 32_768
    work = f"plan micro-batches of {budget:,} tokens"
    for form, order in (("ours", plan_micro_batches), ("rows in their order", plan_in_order)):
        note = filled(order(lengths, budget))
        yield measure("batch", work, form, lambda order=order: order(lengths, budget), scale.repeats, note)
    yield measure(
        "batch", "share over 32 replicas", "ours", lambda: balance(lengths.tolist(), 32), scale.repeats
    )
    plan, device = plan_micro_batches(lengths, budget), torch.device("cpu")
    for form, feed in (("ours, packed", packed_feed), ("padded", padded_feed)):
        run = lambda feed=feed: [feed(tokens.select(part), 1, device) for part in plan] and None  # noqa: E731
        yield measure("batch", f"feeds of {count:,} rollouts", form, run, scale.repeats)


def plan_in_order(lengths: np.ndarray, budget: int) -> list[list[int]]:
    """As the rows come."""
    plan: list[list[int]] = [[]]
    for row in range(len(lengths)):
        if plan[-1] and int(lengths[[*plan[-1], row]].max()) * (len(plan[-1]) + 1) > budget:
            plan.append([])
        plan[-1].append(row)
    return plan


# ------------------------------------------------------------------------------------- selection
def selection(scale: Scale) -> Iterator[Figure]:
    """512 groups of 16 rewards."""
    from nemo_prorl.algorithm.advantage import STD_EPSILON, group_advantages
    from nemo_prorl.algorithm.selection import classify, keep_first
    from nemo_prorl.config import Advantage, InformativeBy
    from nemo_prorl.types import Finish, Prompt, RolloutGroup, RolloutOutline, ScoredRollout
    from reward.protocol import ScoreResult, Status

    rewards = (np.random.default_rng(0).random((512, 16)) < 0.3).astype(float)
    prompt = Prompt(uid="p", domain="math", source="bench", text="", token_ids=(1,), task={})
    groups = [
        RolloutGroup(
            prompt=prompt,
            members=tuple(
                ScoredRollout(
                    rollout=RolloutOutline(prompt=prompt, sibling=sibling, num_tokens=0, finish=Finish.stop,
                                           policy_version=0, has_malformed_thought=False),
                    verdict=ScoreResult(request_id="r", status=Status.graded, score=score, verdict=""),
                    reward=float(score),
                )
                for sibling, score in enumerate(of_group)
            ),
        )
        for of_group in rewards
    ]  # fmt: skip

    def ours() -> Any:
        kept = keep_first([classify(group, InformativeBy.score) for group in groups], 256)
        return [group_advantages(groups[i].rewards, Advantage.group_std) for i in kept.indices]

    def whole_arrays() -> Any:
        kept = rewards[rewards.max(1) != rewards.min(1)][:256]
        return (kept - kept.mean(1, keepdims=True)) / (kept.std(1, ddof=1, keepdims=True) + STD_EPSILON)

    np.testing.assert_allclose(np.stack(ours()), whole_arrays(), atol=1e-5)
    for form, run in (("ours", ours), ("whole arrays", whole_arrays)):
        yield measure("selection", "512 groups of 16, 256 kept", form, run, max(3, scale.repeats))


# ------------------------------------------------------------------------------------- reward
IN_A_LOOP = """
import json, sys, time
from reward.graders import grade
requests = json.load(sys.stdin)
grade(*requests[0])
cpu, start = time.process_time(), time.perf_counter()
for request in requests:
    grade(*request)
print(json.dumps([time.process_time() - cpu, time.perf_counter() - start]))
"""


def reward(scale: Scale) -> Iterator[Figure]:
    """1,000 rollouts of a domain, as the loop submits them; the service's processes count, too."""
    from nemo_prorl.config import RewardConfig
    from nemo_prorl.reward_service import ready_client, running_service
    from reward.protocol import ScoreRequest, Status

    cases = (ROOT / "tests/reward/data/math_cases.jsonl").read_text(encoding="utf-8").splitlines()
    math = [("math", c["response"], {"answer": c["gold"]}) for c in map(json.loads, cases)]
    no_comma = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    text = "<think>so</think>" + "A sentence of seven words it is. " * 100
    count = 100 if scale.quick else 1000
    config, numbers = RewardConfig(ready_timeout_s=600.0), itertools.count()

    def submit_all(client: Any, asked: list[Any]) -> None:
        futures = [
            client.submit(
                ScoreRequest(request_id=f"{next(numbers)}", domain=domain, response=response, task=task)
            )
            for domain, response, task in asked
        ]
        assert all(future.result().status is Status.graded for future in futures)

    with tempfile.TemporaryDirectory() as folder, running_service(config, Path(folder)) as service:
        for domain, all_cases in (("math", math), ("instruction", [("instruction", text, no_comma)])):
            asked = list(itertools.islice(itertools.cycle(all_cases), count))
            work = f"{count:,} rollouts, {domain}"
            with ready_client(config, [service.url]) as client:
                before = cpu_of_family(service.process.pid)
                ours = measure("reward", work, "ours", lambda c=client, a=asked: submit_all(c, a), 1)  # type: ignore[misc]
                graders_s = cpu_of_family(service.process.pid) - before
            note = f"{ours.cpu_s:.3f} s of it in the trainer's process"
            yield dataclasses.replace(ours, cpu_s=ours.cpu_s + graders_s, note=note)
            command = [config.python, "-c", IN_A_LOOP]
            done = subprocess.run(
                command, input=json.dumps(asked), capture_output=True, text=True, check=True, cwd=ROOT
            )
            cpu_s, wall_s = json.loads(done.stdout)
            yield Figure(
                part="reward", work=work, form="graders in a loop", cpu_s=cpu_s, wall_s=wall_s, peak_mib=0.0
            )


def cpu_of_family(pid: int) -> float:
    """CPU seconds of a process and all that it has started, ended ones included."""
    import psutil

    root = psutil.Process(pid)
    return sum(sum(process.cpu_times()[:4]) for process in [root, *root.children(recursive=True)])


def engine_parts(scale: Scale) -> Iterator[Figure]:
    """In a file of its own, which imports vLLM."""
    from micro_engines import fixed_and_per_gib

    yield from fixed_and_per_gib(quick=scale.quick, repeats=scale.repeats)


PARTS: dict[str, Callable[[Scale], Iterator[Figure]]] = {
    "head": head,
    "batch": batch,
    "selection": selection,
    "engines": engine_parts,
    "reward": reward,
}

if __name__ == "__main__":
    main()
