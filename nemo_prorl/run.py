"""Builds the engines, graders and data of a run, and trains a stage."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nemo_prorl.cluster.nccl_log import network_of_this_process
from nemo_prorl.cluster.slurm_queue import is_gone
from nemo_prorl.config import ConfigError, ExpManagerConfig, RewardConfig, RunConfig
from nemo_prorl.config.compose import to_dict
from nemo_prorl.data.inputs import left_out, prompt_lengths, read_prompts, with_prompt_files
from nemo_prorl.data.mix import PromptMix, Tokenizer
from nemo_prorl.data.rows import domains_of, names_of_sources
from nemo_prorl.distributed import Ranks, RanksDidNotMeet, initialise, leave
from nemo_prorl.engines import device
from nemo_prorl.engines.environment import has_cuda
from nemo_prorl.engines.interface import NonFiniteUpdate, Policy, Sampler
from nemo_prorl.engines.limits import as_begun, with_learning_rate, with_limits
from nemo_prorl.engines.megatron.architecture import read_architecture
from nemo_prorl.engines.megatron.check import CHECKPOINT_MARK
from nemo_prorl.engines.tokenizer import load_tokenizer, remarks
from nemo_prorl.reward_sources.functions.check import agreed_digests, what_changed
from nemo_prorl.reward_sources.functions.grader import FunctionGrader, MixedGrader, RewardFunctionFailing
from nemo_prorl.reward_sources.service import (
    ServiceGrader,
    check_tasks,
    reward_client,
)
from nemo_prorl.run_folder import markers, terminal
from nemo_prorl.run_folder.checkpoints import checkpoint_name
from nemo_prorl.run_folder.lock import alone_in
from nemo_prorl.run_folder.loggers import FINISH_S
from nemo_prorl.run_folder.origin import flatten, provenance, write_resolved
from nemo_prorl.run_folder.records import write_tokenizer
from nemo_prorl.run_folder.starts import recorded_start
from nemo_prorl.run_folder.telemetry import RunLog, Telemetry
from nemo_prorl.training import evaluation, stages
from nemo_prorl.training.checkpoint import CheckpointNotSaved, CheckpointWriter
from nemo_prorl.training.context import StepContext
from nemo_prorl.training.control.health import Alarms
from nemo_prorl.training.deadline import SPARE_S, STARTED, Deadline, find_ends, pausing_on_interrupt
from nemo_prorl.training.sampling.grading import RewardServiceFailing
from nemo_prorl.training.sampling.refit import canary_prompt
from nemo_prorl.training.sampling.rounds import NothingToLearn
from nemo_prorl.training.timing import Stopwatch
from nemo_prorl.training.trainer import ProRLTrainer, StoppedByController
from nemo_prorl.training.watchdog import Watchdog
from nemo_prorl.types import Prompt, RunState
from reward.client import RewardServiceError

STOPS = (
    RanksDidNotMeet,
    RewardServiceFailing,
    RewardFunctionFailing,
    RewardServiceError,
    NonFiniteUpdate,
    CheckpointNotSaved,
    StoppedByController,
    NothingToLearn,
)
"""Errors that end a command with a sentence for the user instead of a traceback, because they are not bugs."""

POINTLESS_TO_REPEAT = (ConfigError, StoppedByController, NothingToLearn, NonFiniteUpdate)
"""Errors after which a launcher must not restart the stage; after the last one once, on GPUs."""


def train(config: RunConfig) -> int:
    """Starts or continues one stage, on every rank of the job. Returns the exit code 0.

    Raises ConfigError, or one of STOPS if the stage has to stop; the same command then continues from the last
    checkpoint.
    """
    run_dir, trainer = Path(config.exp_manager.explicit_log_dir), config.trainer
    terminal.wait_for("waiting for all ranks")
    ranks = initialise(
        trainer.tensor_parallel, trainer.pipeline_parallel, start_timeout_s=trainer.start_timeout_s
    )
    # Only the main rank reads the folder, because a shared file system may show other ranks an older state, and because
    # a thousand ranks that list one folder would overload the file system.
    if said := ranks.on_main(lambda: stages.done_message(run_dir, config.stage.name)):
        if ranks.layout.is_main:
            print(terminal.fitted(said, sys.stdout))
        leave(ranks)
        return 0
    with ExitStack() as lock:
        ranks.on_main(lambda: lock.enter_context(alone_in(run_dir, is_gone)))
        record_and_train(config, ranks)
    return 0


def record_and_train(config: RunConfig, ranks: Ranks) -> None:
    """Trains the stage, and records how this process began and ended. The caller has locked the folder and knows that
    the stage is not done."""
    run_dir, rank = Path(config.exp_manager.explicit_log_dir), ranks.layout.rank
    with (
        # Loggers are closed last. That may take longer than a launcher waits for the main rank once another has ended,
        # and every file that says how this process ended has to be written before.
        ExitStack() as at_the_end,
        recorded_start(
            run_dir,
            config.stage.name,
            began=STARTED,
            num_ranks=ranks.layout.world_size,
            on_gpus=has_cuda(),
            is_main=ranks.layout.is_main,
        ) as recorder,
        Watchdog(run_dir, rank=rank, timeout_s=config.trainer.hang_timeout_s, recorder=recorder) as watchdog,
    ):
        start = stages.find_intact_start(config, ranks.on_main(lambda: starting_point(config)), ranks)
        log = RunLog(run_dir, speaks=ranks.layout.is_main)
        if ranks.layout.is_main:
            stages.clear_marks(run_dir, config.stage, log.say)
            markers.save_request(run_dir).parent.mkdir(exist_ok=True)  # for a user's `touch`
        try:
            watchdog.beat()
            outcome, state = run_stage(config, start, ranks, log, watchdog, at_the_end)
            if ranks.layout.is_main and outcome is not stages.Outcome.paused:
                markers.mark_done(
                    run_dir, config.stage.name, outcome=outcome, checkpoint=checkpoint_name(state)
                )
            ranks.barrier()
            recorder.end(outcome)
        except BaseException as error:
            repeats = isinstance(error, NonFiniteUpdate) and recorder.may_repeat(error.step)
            with suppress(OSError):  # such as a full disk, which `error` reports already
                log.note(f"error: {error or type(error).__name__}")
                if repeats:
                    log.say("on a GPU this may not happen again: a restart tries the step once more")
            if ranks.layout.is_main and isinstance(error, POINTLESS_TO_REPEAT) and not repeats:
                markers.mark_failed(run_dir, config.stage.name, reason=str(error))
            raise


def starting_point(config: RunConfig) -> stages.StartingPoint:
    """Returns where `train` would start, judging by the run's folder. Raises ConfigError if it must not start."""
    run_dir = Path(config.exp_manager.explicit_log_dir)
    stages.check_not_failed(run_dir, config.stage.name)
    start = stages.find_starting_point(config)
    if start.is_resume:
        stages.check_same_run(config, run_dir)
        stages.check_not_beyond(config.trainer, start)
    stages.check_decay(config.trainer, config.stage.name, start)
    check_same_weights(config, start)
    return start


def run_stage(
    config: RunConfig,
    start: stages.StartingPoint,
    ranks: Ranks,
    log: RunLog,
    watchdog: Watchdog,
    at_the_end: ExitStack,
) -> tuple[stages.Outcome, RunState]:
    """Builds everything that the loop needs, the cheapest checks first, and runs it. Returns why the loop ended and the
    final state. The loggers stay open until the caller leaves `at_the_end`."""
    run_dir, is_main = Path(config.exp_manager.explicit_log_dir), ranks.layout.is_main
    if is_main and not start.is_resume:
        record_options(config, run_dir)
    with watchdog.trusting_main():
        inputs = load_inputs(config, ranks, is_resume=start.is_resume, beat=watchdog.beat)
    if is_main:
        record_options(inputs.written, run_dir, inputs.tokenizer)
    for sentence in inputs.sentences:
        log.say(sentence)
    config, tokenizer, prompts = inputs.config, inputs.tokenizer, inputs.prompts
    files = [*config.data.train, *config.data.validation]
    ranks.on_main(lambda: check_tasks(config.reward, files))
    with ExitStack() as stack:
        grader = stack.enter_context(graders(config.reward, ranks, run_dir, log.say, domains_of(files)))
        terminal.wait_for("building the policy")
        policy, state = build_policy(config, ranks, start)
        policy.finish_training()  # frees GPU memory that only updates need, before the sampler allocates its own
        if new := stages.restore_prompts(prompts, state, is_resume=start.is_resume):
            log.say(f"new in this run, or changed, and read from the beginning: {', '.join(new)}")
        measured = ranks.on_main(lambda: evaluation.measurement(config, inputs.held_out, grader.version))
        for change in update_measurement(state, grader.parts, measured, is_resume=start.is_resume):
            log.say(change)
        watchdog.beat()
        # The loop starts with a refit, so the sampler does not have to read weights.
        sampler = stack.enter_context(build_sampler(config, ranks, tokenizer, reads_weights=False))
        if is_main:
            device.note_engines(policy, sampler, run_dir, log.say)
        telemetry = open_telemetry(inputs, log, state, ranks, at_the_end) if is_main else None
        checkpoints = CheckpointWriter(
            run_dir,
            model_dir=Path(config.model.path),
            params=config.exp_manager.checkpoint_callback_params,
            ranks=ranks,
            provenance=provenance(),
        )
        if network := network_of_this_process():
            log.say(network.sentence)
        saves = config.exp_manager.create_checkpoint_callback
        begins = f"goes on after step {state.step}" if start.is_resume else f"begins with {start}"
        log.note(f"stage {state.stage} {begins}")
        context = StepContext(
            config=config,
            ranks=ranks,
            policy=policy,
            sampler=sampler,
            grader=grader,
            prompts=prompts,
            sources=names_of_sources([*config.data.train], config.data.validation),
            stopwatch=Stopwatch(watchdog.enter, lambda: policy.take_peak_gib() - sampler.released_gib),
            say=log.say,
            on_progress=watchdog.beat,
        )
        trainer = ProRLTrainer(
            context=context,
            held_out=inputs.held_out,
            canary=canary_prompt(tokenizer, config.sampler),
            checkpoints=checkpoints if saves else None,
            telemetry=telemetry,
            log=log,
            watchdog=watchdog,
            deadline=deadline_of(config.exp_manager, is_main=is_main),
            state=state,
            measured=start.measured(state),
        )
        with pausing_on_interrupt(speaks=is_main) if saves else nullcontext():
            outcome = trainer.fit()
        if telemetry is not None:
            telemetry.is_paused = outcome is stages.Outcome.paused
        return outcome, state


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a stage reads before its engines load."""

    config: RunConfig
    """With prompt files in `data`, and with the numbers that data and model give."""
    written: RunConfig
    """The same with `data` as the user wrote it, as the run's folder records it."""
    tokenizer: Tokenizer
    prompts: PromptMix
    held_out: list[Prompt]
    """What is validated on."""
    sentences: list[str]
    """What was recognised and found, for people."""


def load_inputs(
    config: RunConfig,
    ranks: Ranks,
    *,
    is_resume: bool,
    into: Path | None = None,
    beat: Callable[[], object] = lambda: None,
) -> Inputs:
    """Reads model and data, as `train`, `train --check` and `doctor` do. Collective. Raises ConfigError.

    into: a folder for data files that have to be converted; by default the run's. beat: is called for each of their
    rows."""
    terminal.wait_for("reading tokenizer and prompt files")
    if is_resume:
        config = ranks.on_main(lambda: as_begun(config))
    converted, recognised = ranks.on_main(lambda: with_prompt_files(config, beat, into=into))
    tokenizer = ranks.together(lambda: load_tokenizer(config))
    lengths = ranks.on_main(lambda: prompt_lengths(converted, tokenizer))
    each = (length for file in lengths for length in file.lengths)
    found, limits = ranks.on_main(lambda: with_limits(converted, each))
    found, rate = ranks.on_main(lambda: with_learning_rate(read_architecture(found.model.path), found))
    losses = ranks.on_main(lambda: left_out(lengths, found.sampler.max_prompt_tokens))
    prompts, held_out = read_prompts(found, tokenizer, ranks)
    rows = [file.num_rows for file in lengths[len(config.data.train) :]]
    part = f"Validations take {len(held_out):,} of {sum(rows):,} prompts (validation.max_prompts)."
    is_part = 0 < config.validation.max_prompts < max(rows, default=0)
    sentences = [*recognised, limits, *remarks(found, tokenizer), losses, part if is_part else "", rate]
    return Inputs(
        config=found,
        written=replace(found, data=config.data),
        tokenizer=tokenizer,
        prompts=prompts,
        held_out=held_out,
        sentences=[*filter(None, sentences)],
    )


def update_measurement(
    state: RunState, reward: dict[str, str], measured: dict[str, str], *, is_resume: bool
) -> list[str]:
    """Writes into `state` what the stage is rewarded by and what its validations measure. Returns a sentence on each
    that has changed; of the reward only since the stage's own last checkpoint, because stages may have different
    ones."""
    changes = [
        what_changed(state.reward, reward) if is_resume else "",
        evaluation.begin_measuring(state, measured),
    ]
    state.reward = reward
    return [change for change in changes if change]


def record_options(config: RunConfig, run_dir: Path, tokenizer: Tokenizer | None = None) -> None:
    """Writes every option of the stage into the run's folder, and the tokenizer if rollouts are recorded."""
    if config.exp_manager.record_rollouts and tokenizer is not None:
        write_tokenizer(run_dir, tokenizer)
    for path in (run_dir / "resolved.yaml", run_dir / "stages" / f"{config.stage.name}.yaml"):
        write_resolved(config, path)


def step_inputs(config: RunConfig, ranks: Ranks) -> dict[str, Any]:
    """Returns what a step's numbers depend on besides its checkpoint: the options as the user wrote them, the versions
    of packages, the number of ranks and the device."""
    return {
        "options": to_dict(config),
        "versions": provenance()["versions"],
        "ranks": ranks.layout.world_size,
        "device": device.in_use()["device"],
    }


def open_telemetry(
    inputs: Inputs, log: RunLog, state: RunState, ranks: Ranks, at_the_end: ExitStack
) -> Telemetry:
    """Returns what records the run, with its alarms. Leaving `at_the_end` closes it."""
    config = inputs.config
    folder = Path(config.exp_manager.explicit_log_dir)
    alarms = Alarms(config.stage.name, dict(flatten(to_dict(config))), folder)
    telemetry = at_the_end.enter_context(Telemetry(config, log=log, state=state, watch=alarms.observe))
    telemetry.digests.begin(state, step_inputs(inputs.written, ranks))
    return telemetry


def deadline_of(config: ExpManagerConfig, *, is_main: bool) -> Deadline:
    """Returns when to pause, which only the main rank decides. It leaves W&B's own process the time to end."""
    spare_s = SPARE_S + (FINISH_S if config.create_wandb_logger else 0.0)
    return Deadline(find_ends(config) if is_main else {}, spare_s=spare_s)


def check_same_weights(config: RunConfig, start: stages.StartingPoint) -> None:
    """Raises ConfigError if the stage would go on with a checkpoint in another precision, or with its low-rank factors
    where lora.* asks for others, or for none."""
    if start.checkpoint is None:
        return
    manifest = json.loads((start.checkpoint.policy / CHECKPOINT_MARK).read_text(encoding="utf-8"))
    if (precision := manifest["precision"]) != config.model.precision.name:
        raise ConfigError(
            f"stage {config.stage.name} goes on with {start}, which trained in {precision}: write "
            f"model.precision={precision}."
        )
    saved, asked = manifest.get("lora", {}), config.lora.recorded
    begins_anew = not start.is_resume and config.stage.reset_reference and config.stage.reset_optimizer
    if saved == asked or begins_anew:
        return
    what, wanted = (
        ", ".join(f"{key} {value}" for key, value in lora.items()) or "all weights" for lora in (saved, asked)
    )
    resets = "stage.reset_reference=true stage.reset_optimizer=true"
    hint = "the same lora.* options" if start.is_resume else resets
    raise ConfigError(
        f"stage {config.stage.name} goes on with {start}, which trained {what}, and lora.* asks for {wanted}: write "
        f"{hint}."
    )


def build_policy(config: RunConfig, ranks: Ranks, start: stages.StartingPoint) -> tuple[Policy, RunState]:
    """Returns the policy with which the stage starts or continues, after the resets at its start, and its state."""
    from nemo_prorl.engines.megatron.policy import MegatronPolicy

    policy = MegatronPolicy(config, ranks)
    return policy, stages.load_start(policy, start, config.stage)


@contextmanager
def build_sampler(
    config: RunConfig, ranks: Ranks, tokenizer: Tokenizer, *, reads_weights: bool = True
) -> Iterator[Sampler]:
    """Yields a vLLM sampler in the policy's process, on every rank. Closes it at the end, but not the process group.
    reads_weights: False saves time if a refit precedes the first sample."""
    from nemo_prorl.engines.vllm.sampler import VllmSampler

    terminal.wait_for("starting vLLM")
    sampler = VllmSampler(config, ranks, tokenizer, reads_weights=reads_weights)
    try:
        yield sampler
    finally:
        sampler.close()


@contextmanager
def graders(
    config: RewardConfig,
    ranks: Ranks,
    log_dir: Path,
    say: Callable[[str], None] = lambda text: None,
    domains: Collection[str] = (),
) -> Iterator[ServiceGrader | MixedGrader]:
    """Yields the configured grader: the reward service, the functions of reward.function, or both.

    Raises ConfigError if the service cannot grade one of `domains` and there are no functions, which would grade it."""
    digests = agreed_digests(config, ranks)
    with ExitStack() as stack:
        service = None
        if config.asks_service:
            needed = () if config.function else domains
            terminal.wait_for("reward service")
            service = stack.enter_context(reward_client(config, ranks, log_dir, needed))
        if service is not None and not config.function:
            yield service
            return
        functions = []
        for text in config.function:
            rank = f".rank{ranks.layout.rank}" if ranks.layout.rank else ""
            log = log_dir / f"reward_function.{config.function_name(text)}{rank}.log"
            functions.append(stack.enter_context(closing(FunctionGrader(text, config, log, digests[text]))))
        yield MixedGrader(functions, service, config, say if ranks.layout.is_main else lambda text: None)
