"""Saves checkpoints in the background, finds and verifies them, and deletes old ones. A checkpoint is written under a
temporary name and renamed when it is complete on every rank.

    RUN/checkpoints/step-00000040-STAGE/
        state.json      state of the run, value of the monitored metric, hash of the reference, versions of the software
        policy/         weights, optimizer, reference, random states (Megatron's distributed checkpoint)
        huggingface/    config and tokenizer of the model, for exports
        manifest.json   size and hash of every other file, written last

docs/checkpoints.md lists the guarantees.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path
from typing import Any

from nemo_prorl.config import BestMode, CheckpointCallbackParams, ConfigError
from nemo_prorl.config.layout import rank_from_environment
from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.interface import PendingSave, Policy
from nemo_prorl.run_folder.storage import (
    ASIDE,
    Fingerprint,
    changed_content,
    copy_model_files,
    fingerprints,
    missing_or_torn,
    sync,
    write_manifest,
    write_text,
)
from nemo_prorl.run_folder.validation_metrics import PROMPT_MEAN
from nemo_prorl.training.measurement import score_kind
from nemo_prorl.types import RunState

STATE_FILE = "state.json"
POLICY_FOLDER = "policy"
MODEL_FOLDER = "huggingface"
REPLACED = ".replaced"
"""Suffix of a checkpoint while a newer one of the same step replaces it."""
REMOVING = ".removing-"
"""Prefix of a checkpoint that is being deleted."""
CORRUPT = "corrupt-"
"""Prefix of a checkpoint whose files are not what was written."""


class CheckpointNotSaved(RuntimeError):
    """A save failed, for example on a full disk. It left nothing behind, and earlier checkpoints are unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    state: RunState
    score: float | None
    """Value of the monitored metric for these weights; None if it was not measured."""
    monitor: str
    """Name of that metric."""
    reference_hash: str
    """`Policy.reference_hash` at the time of saving."""

    @property
    def policy(self) -> Path:
        return self.path / POLICY_FOLDER

    @property
    def kind(self) -> tuple[str, str]:
        """What its score measures. Scores of different kinds are never compared."""
        return score_kind(self.monitor, self.state)


def checkpoint_name(state: RunState) -> str:
    """Returns the folder's name. It contains the stage, because two stages may save the same step."""
    return f"step-{state.step:08d}-{state.stage}"


def find_checkpoints(run_dir: Path) -> list[Checkpoint]:
    """Returns a run's complete checkpoints, oldest first, judged by the names and sizes of their files. Prints a line
    on standard error about each checkpoint that it skips.

    Raises ConfigError if there are checkpoints, but none is complete: the run must not silently begin anew.
    """
    found, damaged = [], {}
    folder = run_dir / "checkpoints"
    for path in sorted(folder.glob("step-*")):
        if path.suffix == REPLACED and path.with_suffix("").exists():
            continue
        try:
            found.append(read_checkpoint(path))
        except ValueError as error:
            damaged[path] = str(error)
    corrupt = dict.fromkeys(sorted(folder.glob(f"{CORRUPT}*")), "its content has changed")
    if not found and (damaged or corrupt):
        raise ConfigError(
            f"no checkpoint in {folder} is whole: "
            f"{', '.join(f'{path.name} ({reason})' for path, reason in (damaged | corrupt).items())}; bring back a "
            "copy of one, or remove them to begin anew."
        )
    for path, reason in damaged.items():
        _say_once(f"skipped {path}, which is not whole: {reason}")
    # A stage that saturates at once saves the last step of its parent again, with one record more.
    return sorted(found, key=lambda checkpoint: (checkpoint.state.step, checkpoint.state.num_records))


def read_checkpoint(path: Path) -> Checkpoint:
    """Returns the folder's checkpoint. Raises ValueError with the reason if a file is missing, has another size than
    was written, or cannot be read."""
    if damage := missing_or_torn(path):
        raise ValueError(damage)
    try:
        record = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
        return Checkpoint(
            path=path,
            state=RunState(**record["state"]),
            score=record["score"],
            monitor=record.get("monitor", PROMPT_MEAN),  # older versions did not record it
            reference_hash=record["reference_hash"],
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{STATE_FILE} cannot be read: {error}") from error


def is_intact(checkpoint: Checkpoint, ranks: Ranks) -> bool:
    """Returns whether the checkpoint's files have the content that was written. Collective: each rank reads a part of
    them. Renames a corrupt checkpoint, so that no run uses it, and says so in one line."""
    layout = ranks.layout
    mine = changed_content(checkpoint.path, share=layout.rank, num_shares=layout.world_size)
    damage = next((text for text in ranks.gather(mine) if text), "")
    if damage and layout.is_main:
        aside = checkpoint.path.with_name(CORRUPT + checkpoint.path.name)
        shutil.rmtree(aside, ignore_errors=True)
        os.replace(checkpoint.path, aside)
        _say_once(f"skipped {checkpoint.path}, which is corrupt: {damage}; it is now called {aside.name}")
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


def last_of_stage(checkpoints: Sequence[Checkpoint], stage: str) -> Checkpoint | None:
    """Returns the newest checkpoint that the stage wrote, if there is one."""
    return next((checkpoint for checkpoint in reversed(checkpoints) if checkpoint.state.stage == stage), None)


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
        self._folder = self.run_dir / "checkpoints"
        if self.ranks.layout.is_main:
            _clear_leftovers(self._folder)

    def save(self, policy: Policy, state: RunState, *, score: float | None = None) -> Path:
        """Begins to save policy and state; both may change afterwards. Waits for an unfinished save first. Returns the
        folder in which the checkpoint will appear with a later `poll` or `finish`.

        score: value of the monitored metric for these weights. Raises CheckpointNotSaved. A crash at any moment leaves
        earlier checkpoints unchanged.
        """
        self.finish()
        began = time.perf_counter()
        final = self._folder / checkpoint_name(state)
        aside = self._folder / f"{ASIDE}{final.name}"
        with self._waiting():
            record = {
                "state": asdict(state),
                "score": score,
                "monitor": self.params.monitor,
                "reference_hash": policy.reference_hash(),
                "provenance": self.provenance,
            }
            self._attempt(aside, lambda: _make_anew(aside), main_only=True)
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
        start = time.perf_counter()
        try:
            yield
        finally:
            self._waited_s += time.perf_counter() - start

    def _complete(self, saving: _Saving) -> None:
        """Makes a checkpoint of the files that all ranks have written."""
        self._saving = None
        self.longest_s = max(self.longest_s, saving.seconds)
        self._agree(saving.aside, saving.failure)
        known = {name: found for files in self.ranks.gather(saving.files) for name, found in files.items()}
        self._attempt(saving.aside, saving.pending.finish)

        def publish() -> None:
            write_text(saving.aside / STATE_FILE, saving.text)
            write_manifest(saving.aside, known)
            _replace(saving.aside, saving.final)
            self._clear_old(saving.stage)

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
        reason = next((text for text in self.ranks.gather(_reason(failure)) if text), "")
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
        name = aside.name.removeprefix(ASIDE)
        raise CheckpointNotSaved(
            f"checkpoint {name} could not be saved in {self._folder}: {reason}; {left}."
        ) from failure

    def _clear_old(self, stage: str) -> None:
        checkpoints = find_checkpoints(self.run_dir)
        kept = {checkpoint.path for checkpoint in worth_keeping(checkpoints, stage, self.params)}
        for checkpoint in checkpoints:
            if checkpoint.path not in kept:
                _remove(checkpoint.path)
        for left in self._folder.glob(f"{REMOVING}*"):
            shutil.rmtree(left, ignore_errors=True)


def worth_keeping(
    checkpoints: Sequence[Checkpoint], stage: str, params: CheckpointCallbackParams
) -> list[Checkpoint]:
    """Returns the newest checkpoints of this stage, the last one of every other (a later stage may begin from it), the
    best ones of the run, and the best ones of this stage (a reset or the next stage may go back to them)."""
    last_of_each = {checkpoint.state.stage: checkpoint for checkpoint in checkpoints}  # the last one wins
    of_stage = [checkpoint for checkpoint in checkpoints if checkpoint.state.stage == stage]
    best = [
        checkpoint
        for kind in sorted({checkpoint.kind for checkpoint in checkpoints})
        for limited_to in ("", stage)
        for checkpoint in by_score(checkpoints, kind, params.mode, stage=limited_to)[: params.save_top_k]
    ]
    return [*last_of_each.values(), *of_stage[-params.save_last_k :], *best]


def by_score(
    checkpoints: Sequence[Checkpoint], kind: tuple[str, str], mode: BestMode, *, stage: str = ""
) -> list[Checkpoint]:
    """Returns the checkpoints that have a score of this kind, best first. stage: only this one's; empty: all stages'.

    Among equal scores the oldest comes first: after a reset to the best checkpoint, newer ones have the same weights
    and score, and the one whose weights were measured must remain the best.
    """
    sign = _sign(mode)
    scored = [
        (-sign * checkpoint.score, checkpoint.state.step, checkpoint)
        for checkpoint in checkpoints
        if checkpoint.score is not None and checkpoint.kind == kind and stage in ("", checkpoint.state.stage)
    ]
    return [checkpoint for *_, checkpoint in sorted(scored, key=lambda entry: entry[:2])]


def is_better(score: float, than: float, mode: BestMode) -> bool:
    """Whether `score` is better than `than`, and not equal to it."""
    return _sign(mode) * score > _sign(mode) * than


def _sign(mode: BestMode) -> float:
    return 1.0 if mode is BestMode.max else -1.0


@dataclass(slots=True, kw_only=True)
class _Saving:
    """An unfinished save on this rank."""

    final: Path
    """Where the checkpoint will appear."""
    aside: Path
    """Where it is written until then."""
    text: str
    """Content of state.json."""
    stage: str
    pending: PendingSave
    model_dir: Path | None
    """Folder of the Hugging Face model, whose config and tokenizer the main rank copies; None on the other ranks."""
    began: float
    thread: threading.Thread = field(init=False)
    """A daemon thread: a run that fails meanwhile must not wait for a checkpoint that will never be completed."""
    files: dict[str, Fingerprint] = field(default_factory=dict)
    """The files that the thread has written."""
    failure: Exception | None = None
    seconds: float = 0.0
    """Duration from `began` to the last file."""

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._write, name="checkpoint", daemon=True)

    def _write(self) -> None:
        try:
            if self.model_dir is not None:
                copy_model_files(self.model_dir, self.aside / MODEL_FOLDER)
            self.files = fingerprints(self.aside, self.pending.write())
        except Exception as error:  # raised at the next step boundary, on every rank
            self.failure = error
        self.seconds = time.perf_counter() - self.began


def _reason(failure: BaseException | None) -> str:
    """Returns why a save failed; empty if it did not. Prefers the operating system's error to torch's, which only says
    that a write has failed."""
    cause = failure
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return "" if failure is None else f"{cause or repr(failure)}"


def _make_anew(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / POLICY_FOLDER).mkdir(parents=True)


def _replace(aside: Path, final: Path) -> None:
    """Gives the new checkpoint its final name. If there is one of that name (a stage that ends as saturated saves the
    same step again), the old one is deleted last, so that there is always one on disk."""
    replaced = final.with_name(final.name + REPLACED)
    if final.exists():
        if replaced.exists():
            _remove(replaced)
        os.replace(final, replaced)
    os.replace(aside, final)
    sync(final.parent)
    if replaced.exists():
        _remove(replaced)


def _remove(path: Path) -> None:
    """Deletes a checkpoint. Renames it first, so that no incomplete one ever has a valid name.

    A folder that cannot be deleted, because somebody reads its files on NFS, is deleted with the next checkpoint."""
    removing = path.with_name(
        f"{REMOVING}{path.name}.{time.time_ns()}"
    )  # the same step may be left from before
    os.replace(path, removing)
    shutil.rmtree(removing, ignore_errors=True)


def _clear_leftovers(folder: Path) -> None:
    """Removes what a killed run has left behind: unfinished saves, deletions and replacements."""
    for path in [*folder.glob(f"{ASIDE}*"), *folder.glob(f"{REMOVING}*")]:
        shutil.rmtree(path, ignore_errors=True)
    for replaced in folder.glob(f"step-*{REPLACED}"):
        final = replaced.with_suffix("")
        if final.exists():
            _remove(replaced)
        else:
            os.replace(replaced, final)


@functools.cache
def _say_once(line: str) -> None:
    """Prints a line on the main rank, unless it has been printed before."""
    if rank_from_environment() == 0:
        print(line, file=sys.stderr, flush=True)
