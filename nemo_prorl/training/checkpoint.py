"""Saves a run's checkpoints in the background, loads and verifies them, and deletes old ones.

A checkpoint is written under a temporary name and renamed when it is complete on every rank.
run_folder/checkpoints.py says which files it has.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path
from time import monotonic, perf_counter, time_ns
from typing import Any

from nemo_prorl.config import CheckpointCallbackParams, ConfigError
from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.interface import PendingSave, Policy
from nemo_prorl.run_folder import storage
from nemo_prorl.run_folder.checkpoints import (
    CHECKPOINTS_FOLDER,
    CORRUPT,
    MODEL_FOLDER,
    POLICY_FOLDER,
    REPLACED,
    STATE_FILE,
    Checkpoint,
    by_score,
    checkpoint_name,
    find_checkpoints,
    read_checkpoint,
)
from nemo_prorl.run_folder.terminal import say_once
from nemo_prorl.types import RunState

REMOVING = ".removing-"
"""Prefix of a checkpoint that is being deleted."""


class CheckpointNotSaved(RuntimeError):
    """A save failed, for example on a full disk. It left nothing behind, and earlier checkpoints are unchanged."""


def is_intact(checkpoint: Checkpoint, ranks: Ranks) -> bool:
    """Returns whether the checkpoint's files have the content that was written. Collective: each rank reads a part of
    them. Renames a corrupt checkpoint, so that no run uses it, and says so in one line."""
    layout = ranks.layout
    mine = storage.changed_content(checkpoint.path, share=layout.rank, num_shares=layout.world_size)
    damage = next((text for text in ranks.gather(mine) if text), "")
    if damage and layout.is_main:
        aside = checkpoint.path.with_name(CORRUPT + checkpoint.path.name)
        shutil.rmtree(aside, ignore_errors=True)
        os.replace(checkpoint.path, aside)
        say_once(f"skipped {checkpoint.path}, which is corrupt: {damage}; it is now called {aside.name}")
    ranks.barrier()
    return not damage


def load_policy(policy: Policy, checkpoint: Checkpoint, *, num_updates: int | None = None) -> None:
    """Loads everything that the policy had when it was saved. Collective. The learning-rate schedule continues after
    `num_updates` updates, if given. Raises ConfigError if the reference is not the one that was saved."""
    policy.load(checkpoint.policy, num_updates=num_updates)
    found = policy.reference_hash()
    if found != checkpoint.reference_hash:
        raise ConfigError(
            f"the reference policy in {checkpoint.path} is not the one it was saved with (hash {found}, expected "
            f"{checkpoint.reference_hash}): the KL penalty would pull towards other weights; use an older checkpoint."
        )


@dataclass(eq=False)
class CheckpointWriter:
    """Saves the run. Its methods are collective: every rank calls them at the same step boundaries."""

    run_dir: Path
    _: KW_ONLY
    model_dir: Path
    params: CheckpointCallbackParams
    ranks: Ranks
    provenance: dict[str, Any]
    longest_s: float = field(default=0.0, init=False)
    """Seconds of the longest save so far, from copying the weights to writing the last file."""
    _saving: _Saving | None = field(default=None, init=False)
    _waited_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._folder = self.run_dir / CHECKPOINTS_FOLDER
        if not self.ranks.layout.is_main:
            return
        # A killed run has left unfinished saves, deletions and replacements behind.
        for path in [*self._folder.glob(f"{storage.ASIDE}*"), *self._folder.glob(f"{REMOVING}*")]:
            shutil.rmtree(path, ignore_errors=True)
        for replaced in self._folder.glob(f"step-*{REPLACED}"):
            final = replaced.with_suffix("")
            if final.exists():
                _remove(replaced)
            else:
                os.replace(replaced, final)

    def save(
        self, policy: Policy, state: RunState, *, score: float | None = None, is_requested: bool = False
    ) -> Path:
        """Begins to save policy and state; both may change afterwards. Waits for an unfinished save first. Returns the
        folder in which the checkpoint will appear with a later `poll` or `finish`.

        score: value of the monitored metric for these weights. is_requested: whether to keep it for good. Raises
        CheckpointNotSaved. A crash at any moment leaves earlier checkpoints unchanged.
        """
        self.finish()
        began = perf_counter()
        final = self._folder / checkpoint_name(state)
        aside = self._folder / f"{storage.ASIDE}{final.name}"
        with suppress(ValueError):  # one of the same step that this one replaces
            is_requested |= read_checkpoint(final).is_requested

        def make_anew() -> None:
            shutil.rmtree(aside, ignore_errors=True)
            (aside / POLICY_FOLDER).mkdir(parents=True)

        with self._waiting():
            record = {
                "state": asdict(state),
                "score": score,
                "monitor": self.params.monitor,
                "is_requested": is_requested,
                "reference_hash": policy.reference_hash(),
                "provenance": self.provenance,
            }
            self._attempt(aside, make_anew, main_only=True)
            self._saving = _Saving(
                final=final,
                aside=aside,
                text=json.dumps(record, indent=1),
                stage=state.stage,
                pending=policy.begin_save(aside / POLICY_FOLDER),
                model_dir=self.model_dir if self.ranks.layout.is_main else None,
                began=began,
            )
            self._saving.thread.start()
        if not self.params.async_save:
            self.finish()
        return final

    def poll(self) -> None:
        """Completes the unfinished save if every rank has written its part. Raises CheckpointNotSaved."""
        if self._saving is not None:
            with self._waiting():
                if not self.ranks.any(self._saving.thread.is_alive()):
                    self._complete(self._saving)

    def finish(self) -> None:
        """Waits for the unfinished save and completes it. Raises CheckpointNotSaved."""
        if self._saving is not None:
            with self._waiting():
                self._saving.thread.join()
                self._complete(self._saving)

    def take_waited_s(self) -> float:
        """Returns the seconds that training has waited for saves since the last call."""
        waited, self._waited_s = self._waited_s, 0.0
        return waited

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        finally:
            self._waited_s += perf_counter() - start

    def _complete(self, saving: _Saving) -> None:
        """Makes a checkpoint of the files that all ranks have written."""
        self._saving = None
        self.longest_s = max(self.longest_s, saving.seconds)
        self._agree(saving.aside, saving.failure)
        known = {name: found for files in self.ranks.gather(saving.files) for name, found in files.items()}
        self._attempt(saving.aside, saving.pending.finish)

        def publish() -> None:
            storage.write_text(saving.aside / STATE_FILE, saving.text)
            storage.write_manifest(saving.aside, known)
            # A stage that ends as saturated saves the same step again. The old one is deleted last, so that there is
            # always one on disk.
            replaced = saving.final.with_name(saving.final.name + REPLACED)
            if saving.final.exists():
                if replaced.exists():
                    _remove(replaced)
                os.replace(saving.final, replaced)
            os.replace(saving.aside, saving.final)
            storage.sync(self._folder)
            if replaced.exists():
                _remove(replaced)
            checkpoints = find_checkpoints(self.run_dir)
            whole = checkpoints if self.params.keep_moments else checkpoints[-self.params.save_last_k :]
            kept = {one.path for one in worth_keeping(checkpoints, saving.stage, self.params)}
            for checkpoint in checkpoints:
                if checkpoint.path not in kept:
                    _remove(checkpoint.path)
                elif checkpoint not in whole:
                    checkpoint.remove_moments()
            for left in self._folder.glob(f"{REMOVING}*"):
                shutil.rmtree(left, ignore_errors=True)

        self._attempt(saving.aside, publish, main_only=True)

    def _attempt(self, aside: Path, action: Callable[[], None], *, main_only: bool = False) -> None:
        """Runs `action`. If it fails on any rank, every rank raises CheckpointNotSaved."""
        failure: OSError | None = None
        try:
            if self.ranks.layout.is_main or not main_only:
                action()
        except OSError as error:
            failure = error
        self._agree(aside, failure)

    def _agree(self, aside: Path, failure: Exception | None) -> None:
        """Raises CheckpointNotSaved on every rank if any of them has failed. Collective."""
        cause: BaseException | None = failure
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        # The operating system's error says more than torch's, which only says that a write has failed.
        mine = "" if failure is None else f"{cause or repr(failure)}"
        reason = next((text for text in self.ranks.gather(mine) if text), "")
        if not reason:
            return
        if self.ranks.layout.is_main:
            shutil.rmtree(aside, ignore_errors=True)
        self.ranks.barrier()
        try:
            checkpoints = find_checkpoints(self.run_dir)
            left = f"{checkpoints[-1].path} is whole" if checkpoints else "there is none before it"
        except ConfigError as error:
            left = str(error).removesuffix(".")
        name = aside.name.removeprefix(storage.ASIDE)
        raise CheckpointNotSaved(
            f"checkpoint {name} could not be saved in {self._folder}: {reason}; {left}."
        ) from failure


class SaveSchedule:
    """Decides after which steps a run saves a checkpoint: by their number, and by the clock.

    The main rank's clock decides for all ranks, and one step early, because a checkpoint drops rollouts that were
    sampled ahead."""

    def __init__(self, params: CheckpointCallbackParams) -> None:
        self._every_n, self._every_s = params.every_n_train_steps, 60 * params.every_minutes
        self._saved_s = monotonic()
        self.by_clock = 0
        """Step of the stage after which the clock asks for a checkpoint; 0: none."""

    def is_due(self, stage_step: int) -> bool:
        """Returns whether to save after this step of the stage, as is known when it begins."""
        return (self._every_n > 0 and stage_step % self._every_n == 0) or stage_step == self.by_clock

    def next_by_clock(self, stage_step: int, step_s: float) -> int:
        """Returns the main rank's new `by_clock` at the end of this step: the next step, if every_minutes will have
        passed since the last save once it has taken `step_s` seconds."""
        saved_ago_s = 0.0 if self.is_due(stage_step) else monotonic() - self._saved_s
        return stage_step + 1 if saved_ago_s + step_s >= self._every_s > 0 else 0

    def note_save(self) -> None:
        """Restarts the clock, when a save begins for any reason."""
        self._saved_s = monotonic()


def worth_keeping(
    checkpoints: Sequence[Checkpoint], stage: str, params: CheckpointCallbackParams
) -> list[Checkpoint]:
    """Returns the newest checkpoints of this stage, the last one of every other (a later stage may begin from it), the
    best ones of the run, the best ones of this stage (a reset or the next stage may go back to them), and all that a
    user has asked for."""
    last_of_each = {checkpoint.state.stage: checkpoint for checkpoint in checkpoints}  # the last one wins
    of_stage = [checkpoint for checkpoint in checkpoints if checkpoint.state.stage == stage]
    best = [
        checkpoint
        for kind in sorted({checkpoint.kind for checkpoint in checkpoints})
        for limited_to in ("", stage)
        for checkpoint in by_score(checkpoints, kind, params.mode, stage=limited_to)[: params.save_top_k]
    ]
    requested = [checkpoint for checkpoint in checkpoints if checkpoint.is_requested]
    return [*last_of_each.values(), *of_stage[-params.save_last_k :], *best, *requested]


@dataclass(slots=True, kw_only=True)
class _Saving:
    """An unfinished save on this rank."""

    final: Path
    """Final path of the checkpoint."""
    aside: Path
    """Path at which it is written until it is complete."""
    text: str
    """Content of state.json."""
    stage: str
    pending: PendingSave
    model_dir: Path | None
    """Folder of the Hugging Face model, whose config and tokenizer the main rank copies; None on the other ranks."""
    began: float
    thread: threading.Thread = field(init=False)
    """A daemon thread: a run that fails meanwhile must not wait for a checkpoint that will never be completed."""
    files: dict[str, storage.Fingerprint] = field(default_factory=dict)
    """The files that the thread has written."""
    failure: Exception | None = None
    seconds: float = 0.0
    """Duration from `began` to the last file."""

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._write, name="checkpoint", daemon=True)

    def _write(self) -> None:
        try:
            if self.model_dir is not None:
                storage.copy_model_files(self.model_dir, self.aside / MODEL_FOLDER)
            self.files = storage.fingerprints(self.aside, self.pending.write())
        except Exception as error:  # raised at the next step boundary, on every rank
            self.failure = error
        self.seconds = perf_counter() - self.began


def _remove(path: Path) -> None:
    """Deletes a checkpoint. Renames it first, so that no incomplete one ever has a valid name.

    A folder that cannot be deleted, because somebody reads its files on NFS, is deleted with the next checkpoint."""
    removing = path.with_name(f"{REMOVING}{path.name}.{time_ns()}")  # the same step may be left from before
    os.replace(path, removing)
    shutil.rmtree(removing, ignore_errors=True)
