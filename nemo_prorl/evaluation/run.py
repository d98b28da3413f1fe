"""`evaluate`: runs `measure` with real engines, benchmark by benchmark, and writes the results after each."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

from nemo_prorl.config import SERVICE, ConfigError, RewardConfig, RunConfig
from nemo_prorl.data.inputs import held_out, left_out, prompt_lengths, with_prompt_files
from nemo_prorl.data.mix import Tokenizer, render
from nemo_prorl.data.rows import domains_of
from nemo_prorl.distributed import Ranks, initialise
from nemo_prorl.engines.limits import with_limits
from nemo_prorl.engines.tokenizer import load_tokenizer, remarks
from nemo_prorl.evaluation import journal, results
from nemo_prorl.evaluation.benchmark import Benchmark
from nemo_prorl.evaluation.measure import Machinery, measure
from nemo_prorl.evaluation.prompts import Loaded, rendered
from nemo_prorl.evaluation.tables import as_markdown, as_text, details, tables
from nemo_prorl.run import build_sampler, graders
from nemo_prorl.run_folder import terminal
from nemo_prorl.run_folder.origin import provenance
from nemo_prorl.run_folder.samples import as_record, gather_samples
from nemo_prorl.training.evaluation import evaluate, measurement, summarise, validation_settings
from nemo_prorl.training.sampling.fleet import SamplerFleet
from nemo_prorl.types import Prompt


def evaluate_suite(config: RunConfig, loaded: Sequence[Loaded], missing: Sequence[Benchmark]) -> list[str]:
    """Measures what the journal in the output folder still lacks, writes results.json and results.md there, and returns
    the tables as lines. Must be called on every rank."""
    model = Path(config.model.path)
    out = Path(config.evaluation.out or Path("evaluations") / model.resolve().name)
    rows = [row for one in loaded for row in one.rows]
    ranks, tokenizer = _begin(config)
    lengths = (len(render(row, tokenizer).token_ids) for row in rows)
    config, limits = ranks.together(lambda: with_limits(config, lengths))
    _say(ranks, [limits, *remarks(config, tokenizer)])
    settings = validation_settings(config)
    with _machinery(config, ranks, tokenizer, out, {row.domain for row in rows}) as machinery:
        done = dict[str, results.BenchmarkResult]()
        # What determines a sample besides the model and its prompt; not the number of samples.
        of_a_sample = {name: value for name, value in asdict(settings).items() if name != "num_rollouts"}
        of_a_sample["precision"] = config.model.precision.value
        key = ranks.on_main(lambda: journal.key_of(model, of_a_sample))
        header: dict[str, Any] = {
            "model": str(model),
            "key": key,
            "settings": asdict(settings),
            "provenance": provenance(),
            "grader_version": machinery.grader_version,
            "graded_by": graded_by(config.reward),
            "missing": {benchmark.name: benchmark.where for benchmark in missing},
            "measured": {},
        }
        for one in loaded:
            prompts, num_too_long = rendered(one, tokenizer, config.sampler.max_prompt_tokens)
            num_samples = config.validation.num_rollouts
            name, total = one.benchmark.name, len(prompts) * num_samples
            what, mine = f"{name}, rank {ranks.layout.rank}", -(-total // ranks.layout.world_size)
            with tqdm(desc=what, total=mine, unit=" replies", disable=None, dynamic_ncols=True) as shown:
                known = measure(
                    name,
                    prompts,
                    num_samples,
                    settings,
                    folder=out / "samples",
                    key=key,
                    machinery=machinery,
                    tick=shown.update,
                )
            if not prompts:
                continue
            header["measured"] |= measured(config, name, prompts, machinery.grader_version)
            done[name] = results.summarise(
                one,
                known,
                {prompt.uid: prompt.source for prompt in prompts},
                num_samples=num_samples,
                num_too_long=num_too_long,
            )
            if ranks.layout.is_main:
                _write(out, header, done, model.name)
        ranks.barrier()
    if not done:
        raise ConfigError(
            f"every prompt is longer than sampler.max_prompt_tokens={config.sampler.max_prompt_tokens}: raise it."
        )
    lines = [line for table in tables(done, model.name) for line in (*as_text(table), "")]
    return [*lines, *filter(None, [header["graded_by"]]), f"in {out}"]


def measured(
    config: RunConfig, benchmark: str, prompts: Sequence[Prompt], grader_version: str
) -> dict[str, str]:
    """Returns the `measurement` of one benchmark, without the number of samples: pass@k is unbiased for any."""
    named = measurement(config, prompts, grader_version)
    del named["validation.num_rollouts"]
    named[f"{results.PROMPTS_OF}{benchmark}"] = named.pop("held-out prompts")
    return named


def graded_by(reward: RewardConfig) -> str:
    """Returns a note for readers of the results, if not only the reward service has graded; else empty."""
    if not reward.function:
        return ""
    by = ", ".join(
        f"{text} with weight {reward.weight(reward.function_name(text)):g}" for text in reward.function
    )
    if reward.asks_service:
        by += f", and the reward service with weight {reward.weight(SERVICE):g}"
    return (
        f"Graded by {by} (reward.function): these are not the scores by which the benchmarks are "
        "published, and they do not compare with the paper's."
    )


def evaluate_files(
    config: RunConfig, ks: Sequence[int], aside: Path, samples: Path | None = None
) -> dict[str, float]:
    """Samples and grades data.validation with the model in model.path, as a validation of training does. Returns the
    summary; writes the samples as JSONL.

    aside: this rank's folder for converted data and logs, which nobody needs later."""
    config, recognised = with_prompt_files(config, into=aside)
    ranks, tokenizer = _begin(config)
    lengths = ranks.together(lambda: prompt_lengths(config, tokenizer))
    each = (length for file in lengths for length in file.lengths)
    config, limits = ranks.together(lambda: with_limits(config, each))
    losses = left_out(lengths, config.sampler.max_prompt_tokens)
    prompts = ranks.together(lambda: held_out(config, tokenizer))
    _say(ranks, [*recognised, limits, *remarks(config, tokenizer), losses])
    domains = domains_of(config.data.validation)
    with _machinery(config, ranks, tokenizer, aside, domains) as machinery:
        groups, share = evaluate(
            prompts,
            validation_settings(config),
            fleet=machinery.fleet,
            grader=machinery.grader,
            ranks=ranks,
            max_failed_share=machinery.max_failed_share,
        )
        if samples is not None:
            found = gather_samples(groups, share, ranks)
            if ranks.layout.is_main:
                samples.parent.mkdir(parents=True, exist_ok=True)
                with samples.open("w", encoding="utf-8") as file:
                    file.writelines(json.dumps(as_record(one), ensure_ascii=False) + "\n" for one in found)
    return summarise(groups, ks)


def _begin(config: RunConfig) -> tuple[Ranks, Tokenizer]:
    trainer = config.trainer
    terminal.wait_for("reading tokenizer and prompts")
    ranks = initialise(
        trainer.tensor_parallel, trainer.pipeline_parallel, start_timeout_s=trainer.start_timeout_s
    )
    return ranks, ranks.together(lambda: load_tokenizer(config))


def _say(ranks: Ranks, sentences: Sequence[str]) -> None:
    if ranks.layout.is_main:
        for sentence in filter(None, sentences):
            terminal.say(sentence)


@contextmanager
def _machinery(
    config: RunConfig, ranks: Ranks, tokenizer: Tokenizer, log_dir: Path, domains: Collection[str]
) -> Iterator[Machinery]:
    """Yields sampler, graders of `domains`, and ranks."""
    with ExitStack() as stack:
        grader = stack.enter_context(graders(config.reward, ranks, log_dir, terminal.say, domains))
        sampler = stack.enter_context(build_sampler(config, ranks, tokenizer))
        terminal.wait_for("sampling and grading")
        yield Machinery(
            fleet=SamplerFleet(sampler, ranks, tensor_parallel=config.sampler.tensor_parallel),
            grader=grader,
            grader_version=ranks.from_main(grader.version),
            ranks=ranks,
            max_failed_share=config.reward.max_failed_share,
            chunk_samples=config.evaluation.chunk_samples,
            say=terminal.say,
        )


def _write(
    out: Path, header: Mapping[str, Any], done: Mapping[str, results.BenchmarkResult], model: str
) -> None:
    """Writes results.json, whose summary a run's report shows, and results.md."""
    summary = details(done)
    shown = {
        "title": f"Evaluation of {model}",
        "columns": summary.columns,
        "rows": summary.rows,
        "note": "; ".join([*summary.notes, *filter(None, [header["graded_by"]])]),
    }
    results.write(out / results.RESULTS, {**shown, **header}, list(done.values()))
    sections = [line for table in tables(done, model) for line in (*as_markdown(table), "")]
    title = [f"# Evaluation of {model}", "", *([header["graded_by"], ""] if header["graded_by"] else [])]
    (out / "results.md").write_text("\n".join([*title, *sections]), encoding="utf-8")
