"""Prolonged RL of a small pretrained story-teller (conf/stories.yaml): with and without resets, or recipe by recipe.

    make stories MODEL=DIR [BENCH_ARGS="--arms controller --seeds 1"]
    make recipes MODEL=DIR [BENCH_ARGS="--arms prorl gspo --seeds 1"]

DIR is the folder of a Llama trained on TinyStories in Hugging Face format, such as karpathy/tinyllamas' stories260K.
Finished runs are not repeated. The folder of the comparison (runs/stories, runs/recipes) gets learning.png, text.png,
numbers.json and samples.md.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stories_prompts import write_prompts
from training_runs import UNCLAMPED, Records, charts, points, reset_steps, train

from nemo_prorl.config import RewardConfig
from nemo_prorl.reward_service import reward_service
from nemo_prorl.storage import replace_text
from nemo_prorl.training.samples import read_samples, sample_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One setting of the comparison; `overrides` say what differs from conf/stories.yaml."""

    title: str
    colour: str
    overrides: tuple[str, ...]


RECIPE_STEPS = "trainer.num_steps=24"
"""Equal for every recipe; the fastest of them are near the ceiling by then."""


def _recipe(name: str, colour: str, *overrides: str) -> Arm:
    return Arm(title=name, colour=colour, overrides=(f"recipe={name}", RECIPE_STEPS, *overrides))


COMPARISONS: Mapping[str, Mapping[str, Arm]] = {
    "stories": {  # conf/stories.yaml sets a KL weight of 0.1
        "kl_small": Arm(
            title="KL weight 1e-4", colour="#8a8a8a", overrides=(*UNCLAMPED, "algorithm.kl_beta=1e-4")
        ),
        "kl_large": Arm(title="KL weight 0.1", colour="#3f6fa3", overrides=UNCLAMPED),
        "interval": Arm(
            title="0.1, a reset every 12 steps",
            colour="#d99a3d",
            overrides=(*UNCLAMPED, "controller.mode=interval", "controller.interval=12"),
        ),
        "controller": Arm(
            title="0.1, resets by the controller",
            colour="#b0413e",
            overrides=(*UNCLAMPED, "controller.mode=automatic"),
        ),
    },
    "recipes": {
        "prorl": _recipe("prorl", "#b0413e", "controller.mode=automatic"),
        "prorl_v2": _recipe("prorl_v2", "#d99a3d", "controller.mode=automatic"),
        "dapo": _recipe("dapo", "#3f6fa3"),
        "gspo": _recipe("gspo", "#4f8a57"),
        "cispo": _recipe("cispo", "#7b5ea7"),
        "justrl": _recipe("justrl", "#8a8a8a"),
    },
}
LEARNING = (
    ("validation/reward", "held out: share of the six rules kept"),
    ("validation/pass_at_1", "held out: stories that keep all six"),
    ("objective/kl_to_reference", "KL to the current reference, nats a token"),
)
TEXT = (
    ("base/kl", "KL to the pretrained model, nats a token"),
    ("base/perplexity", "perplexity to the pretrained model"),
    ("text/distinct_3", "different 3-grams of a story, share"),
)
"""Metric -> title of its panel."""
LOGARITHMIC = ("objective/kl_to_reference", "base/perplexity")
NUM_SAMPLES = 1
"""Samples of each held-out prompt from each exported checkpoint."""
TEMPERATURE, RESPONSE_TOKENS = 1.2, 96
"""The values of conf/stories.yaml."""
PROMPTS = Path("runs/stories/data")
"""The prompts' folder that conf/stories.yaml names."""
HELD_OUT = PROMPTS / "openings.held_out.parquet"


def main() -> None:
    """Trains all arms of one seed before the next seed, so that an interrupted benchmark still compares them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("comparison", choices=list(COMPARISONS))
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("--arms", nargs="+", help="some of the comparison's arms; all by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, help="folder; runs/ and the comparison's name by default")
    options = parser.parse_args()
    arms = COMPARISONS[options.comparison]
    if unknown := [name for name in options.arms or () if name not in arms]:
        parser.error(f"{options.comparison} has no arm {unknown[0]}: write some of {', '.join(arms)}")
    if not (options.model / "config.json").is_file():
        sys.exit(
            f"error: MODEL={options.model} holds no config.json: write the folder of a model in Hugging Face format."
        )
    arms = {name: arm for name, arm in arms.items() if name in (options.arms or arms)}
    out = options.out or Path("runs") / options.comparison
    write_prompts(PROMPTS)
    out.mkdir(parents=True, exist_ok=True)
    runs: dict[str, dict[int, Records]] = {name: {} for name in arms}
    with reward_service(RewardConfig(), out) as url:
        for seed in options.seeds:
            for name, arm in arms.items():
                folder = out / f"{name}-{seed}"
                overrides = (f"model.path={options.model}", f"seed={seed}", *arm.overrides)
                records = train(folder, url, overrides, config_name="stories")
                runs[name][seed] = with_text_metrics(records, folder, options.model)
    draw(runs, arms, LEARNING, out / "learning.png")
    draw(runs, arms, TEXT, out / "text.png")
    numbers = {name: {seed: summary(records) for seed, records in of.items()} for name, of in runs.items()}
    replace_text(out / "numbers.json", json.dumps(numbers, indent=1) + "\n")
    replace_text(out / "samples.md", samples(out, arms, options.seeds[0]))
    report(numbers)


def with_text_metrics(records: Records, folder: Path, model: Path) -> Records:
    """The records, those of checkpoints with what `text_metrics` says of the exported policy. Kept in the folder."""
    kept = folder / "text_metrics.json"
    if not kept.is_file():
        replace_text(kept, json.dumps(measure_checkpoints(folder, model), indent=1) + "\n")
    found = json.loads(kept.read_text(encoding="utf-8"))
    return [{**record, **found.get(str(record["step"]), {})} for record in records]


def measure_checkpoints(folder: Path, model: Path) -> dict[str, dict[str, float]]:
    """By step, the pretrained model itself as step 0."""
    import tempfile

    from nemo_prorl import conversion
    from nemo_prorl.training.checkpoint import find_checkpoints

    found = {"0": text_metrics(model, model)}
    for checkpoint in find_checkpoints(folder):
        with tempfile.TemporaryDirectory() as aside:
            exported = Path(aside) / "policy"
            conversion.export_hf(checkpoint.path, exported)
            found[str(checkpoint.state.step)] = text_metrics(exported, model)
        print(f"{folder.name}: measured the policy of step {checkpoint.state.step}", file=sys.stderr)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Stories:
    """Sampled at the training temperature; B stories of T tokens, prompts included."""

    ids_BT: Any
    mask_BT: Any
    """True for the tokens of the response, its end-of-sequence token included."""
    attention_BT: Any


@functools.cache
def text_metrics(policy_dir: Path, base_dir: Path) -> dict[str, float]:
    """What transformers says of a policy's stories, independently of trainer and sampler.

    All are means over the tokens of stories that the policy tells at T = 1.2, as in training. base/perplexity: exp of
    the mean negative log-probability under the pretrained model at T = 1. base/kl, text/entropy: exact over the
    vocabulary at T = 1.2, nats a token. text/distinct_3: mean over the stories.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)  # its products are so small that a second thread costs more than it gives
    tokenizer = AutoTokenizer.from_pretrained(base_dir, padding_side="left")
    policy, base = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for folder in (policy_dir, base_dir)
    )
    with torch.inference_mode():
        stories = tell(policy, tokenizer)
        own, of_base = (logits_before_each_token(model, stories) for model in (policy, base))
        mask = stories.mask_BT[:, 1:]
        chosen = of_base.log_softmax(-1).gather(-1, stories.ids_BT[:, 1:, None])[..., 0]
        own, of_base = ((logits / TEMPERATURE).log_softmax(-1) for logits in (own, of_base))
        return {
            "base/perplexity": float(torch.exp(-chosen[mask].mean())),
            "base/kl": float((own.exp() * (own - of_base)).sum(-1)[mask].mean()),
            "text/entropy": float(-(own.exp() * own).sum(-1)[mask].mean()),
            "text/distinct_3": statistics.fmean(
                distinct(tokenizer.decode(ids[keep], skip_special_tokens=True), 3)
                for ids, keep in zip(stories.ids_BT, stories.mask_BT, strict=True)
            ),
        }


def tell(policy: Any, tokenizer: Any) -> Stories:
    """Samples a story for every held-out beginning, as the trainer renders it."""
    import torch

    from nemo_prorl.data.mix import render
    from nemo_prorl.data.rows import RowFile

    prompts = [list(render(row, tokenizer).token_ids) for row in RowFile(HELD_OUT)]
    padded = tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
    torch.manual_seed(1)
    ids = policy.generate(
        **padded, do_sample=True, temperature=TEMPERATURE, top_k=0, top_p=1.0, max_new_tokens=RESPONSE_TOKENS,
        num_return_sequences=NUM_SAMPLES, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    response = ids[:, padded.input_ids.shape[1] :]
    ends = (response == tokenizer.eos_token_id).long()
    is_story = ends.cumsum(1) - ends == 0
    prompt = padded.attention_mask.repeat_interleave(NUM_SAMPLES, 0)
    return Stories(
        ids_BT=ids,
        mask_BT=torch.cat([torch.zeros_like(prompt).bool(), is_story], 1),
        attention_BT=torch.cat([prompt, is_story.long()], 1),
    )


def logits_before_each_token(model: Any, stories: Stories) -> Any:
    """[B, T - 1, V]: position t holds what token t + 1 was drawn from."""
    positions = (stories.attention_BT.cumsum(1) - 1).clamp(min=0)
    return model(stories.ids_BT, attention_mask=stories.attention_BT, position_ids=positions).logits[:, :-1]


def distinct(text: str, n: int) -> float:
    """Different n-grams of words over all n-grams (Li et al., arXiv 1510.03055); 1 for a text with fewer words."""
    words = text.lower().split()
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0


def summary(records: Records) -> dict[str, Any]:
    """Every validation, what was last known of each panel, and every reset. A run that ends because it finds nothing to
    train on has no step at its end."""
    rewards = points(records, "validation/reward")
    metrics = [name for name, _ in (*LEARNING, *TEXT)] + ["text/entropy"]
    return {
        "rewards": rewards,
        "best": max(rewards.values()),
        "last": {name: list(points(records, name).values())[-1] for name in metrics},
        "last_step": records[-1]["step"],
        "resets": reset_steps(records),
        "decisions": [
            record["controller"] | {"step": record["step"]} for record in records if "controller" in record
        ],
    }


def report(numbers: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> None:
    """As a table."""
    print(f"\n{'arm':<12}{'seed':>5}{'reward':>8}{'best':>7}{'all six':>9}{'KL':>7}{'KL base':>9}"
          f"{'perplexity':>12}{'distinct-3':>12}{'entropy':>9}  resets after step")  # fmt: skip
    for arm, of in numbers.items():
        for seed, run in of.items():
            reward, all_six, kl, kl_base, perplexity, distinct_3, entropy = run["last"].values()
            print(f"{arm:<12}{seed:>5}{reward:>8.3f}{run['best']:>7.3f}{all_six:>9.3f}{kl:>7.3f}{kl_base:>9.3f}"
                  f"{perplexity:>12.2f}{distinct_3:>12.3f}{entropy:>9.3f}  "
                  f"{', '.join(map(str, run['resets'])) or 'none'}")  # fmt: skip


def samples(out: Path, arms: Mapping[str, Arm], seed: int) -> str:
    """The same three beginnings before, halfway and after, as Markdown."""
    parts = []
    for name, arm in arms.items():
        files = sample_files(out / f"{name}-{seed}").all()
        parts.append(f"## {arm.title}, seed {seed}\n")
        for step, path in (files[0], files[len(files) // 2], files[-1]):
            parts.append(f"After step {step}:\n")
            parts += [
                f"- **{record['prompt']}** {record['response']} *({record['score']:.2f})*\n"
                for record in read_samples(path)[:3]
            ]
    return "\n".join(parts)


def draw(
    runs: Mapping[str, Mapping[int, Records]],
    arms: Mapping[str, Arm],
    panels: Sequence[tuple[str, str]],
    path: Path,
) -> None:
    """Panels over steps: a thin line a run, the mean over seeds bold, a dot where a run was reset."""
    num_seeds = len(next(iter(runs.values())))
    title = (
        f"A pretrained 260K-parameter story-teller learns six rules: {num_seeds} seeds an arm, "
        "bold their mean, a dot is a hard reset"
    )
    with charts(path, title, [(of_panel, "step") for _, of_panel in panels]) as axes:
        for axis, (key, _) in zip(axes, panels, strict=True):
            for name, of in runs.items():
                colour = arms[name].colour
                lines = {seed: points(records, key) for seed, records in of.items()}
                for seed, line in lines.items():
                    axis.plot(line.keys(), line.values(), color=colour, linewidth=0.8, alpha=0.45)
                    marks = [step for step in reset_steps(of[seed]) if step in line]
                    axis.plot(marks, [line[step] for step in marks], "o", color=colour, markersize=4)
                steps = sorted(set.intersection(*map(set, lines.values())))
                means = [statistics.fmean(line[step] for line in lines.values()) for step in steps]
                axis.plot(steps, means, color=colour, linewidth=2.2, label=arms[name].title)
            if key in LOGARITHMIC:
                axis.set_yscale("log")


if __name__ == "__main__":
    main()
