"""Checkpoints: written aside in the background, renamed when whole on every rank, found again, checked, cleared away.

    RUN/checkpoints/step-00000040-STAGE/
        state.json      the run state, its score, the identity of the reference, and what wrote it
        policy/         weights, optimizer, reference, random states (Megatron's distributed checkpoint)
        huggingface/    config and tokenizer of the model, so that a checkpoint can be exported on its own
        manifest.json   size and hash of every other file, written last

docs/checkpoints.md says what is guaranteed.
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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nemo_prorl.config import BestMode, CheckpointCallbackParams, ConfigError
from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.interface import PendingSave, Policy
from nemo_prorl.layout import rank_from_environment
from nemo_prorl.storage import (
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
from nemo_prorl.training.held_out import PROMPT_MEAN
from nemo_prorl.types import RunState

STATE_FILE = "state.json"
POLICY_FOLDER = "policy"
MODEL_FOLDER = "huggingface"
REPLACED = ".replaced"
"""Suffix of a checkpoint while a newer one of the same step takes its place."""
REMOVING = ".removing-"
CORRUPT = "corrupt-"
"""Prefixes of what is a checkpoint no more."""


class CheckpointNotSaved(RuntimeError):
    """A save failed, on a full disk for example. The checkpoints before it are whole; nothing of it is left over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A whole checkpoint on disk."""

    path: Path
    state: RunState
    score: float | None
    """The monitored metric of these weights, where there was one."""
    monitor: str
    """Name of that metric: scores of two metrics are not compared."""
    reference_hash: str
    """Policy.reference_hash() when it was saved."""

    @property
    def policy(self) -> Path:
        return self.path / POLICY_FOLDER


def checkpoint_name(state: RunState) -> str:
    """Of its folder. The stage is in it: two stages may stand at the same step."""
    return f"step-{state.step:08d}-{state.stage}"


def find_checkpoints(run_dir: Path) -> list[Checkpoint]:
    """Whole checkpoints of a run, oldest first, judged by the names and sizes of their files. Another is named in one
    line on standard error and skipped.

    Raises ConfigError when there are checkpoints, but none is whole: the run must not begin anew in silence.
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
    # A stage that saturates at once leaves a checkpoint of the step that its parent ended with, and a record more.
    return sorted(found, key=lambda checkpoint: (checkpoint.state.step, checkpoint.state.num_records))


def read_checkpoint(path: Path) -> Checkpoint:
    """Raises ValueError, saying why, unless the folder holds a checkpoint whose files are all there in full size."""
    if damage := missing_or_torn(path):
        raise ValueError(damage)
    try:
        record = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
        return Checkpoint(
            path=path,
            state=RunState(**record["state"]),
            score=record["score"],
            monitor=record.get("monitor", PROMPT_MEAN),  # the default of those that do not say
            reference_hash=record["reference_hash"],
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{STATE_FILE} cannot be read: {error}") from error


def is_intact(checkpoint: Checkpoint, ranks: Ranks) -> bool:
    """Collective: reads the whole checkpoint, each rank a part of its files, and compares with what was written. A
    corrupt one is named in one line and renamed, so that neither this run nor a later one counts on it."""
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
    """Collective: everything a policy had when it was saved; its learning-rate schedule goes on after `num_updates`
    updates, if given. Raises ConfigError if the reference is another one."""
    policy.load(checkpoint.policy, num_updates=num_updates)
    found = policy.reference_hash()
    if found != checkpoint.reference_hash:
        raise ConfigError(
            f"the reference policy in {checkpoint.path} is not the one it was saved with (hash {found}, expected "
            f"{checkpoint.reference_hash}): the KL penalty would pull to other weights; use an older checkpoint."
        )


def last_of_stage(checkpoints: Sequence[Checkpoint], stage: str) -> Checkpoint | None:
    """The newest checkpoint that the stage wrote."""
    return next((checkpoint for checkpoint in reversed(checkpoints) if checkpoint.state.stage == stage), None)


class CheckpointWriter:
    """Saves the run; every rank calls the same methods at the same step boundaries."""

    def __init__(
        self,
        run_dir: Path,
        *,
        model_dir: Path,
        params: CheckpointCallbackParams,
        ranks: Ranks,
        provenance: dict[str, Any],
    ) -> None:
        self._folder = run_dir / "checkpoints"
        self._model_dir = model_dir
        self._params = params
        self._ranks = ranks
        self._provenance = provenance
        self._saving: _Saving | None = None
        self._waited_s = 0.0
        self.longest_s = 0.0
        """Of the saves so far, from the copy to the last file, in the background or not."""
        if ranks.layout.is_main:
            _clear_leftovers(self._folder)

    def save(self, policy: Policy, state: RunState, *, score: float | None = None) -> Path:
        """Collective: begins to save policy and state as they are now, both may change afterwards. The checkpoint
        appears in the folder returned with a later `poll`, or `finish`. A save under way is waited for first.

        `score`: the monitored metric at this step. Raises CheckpointNotSaved. A crash at any moment leaves the
        checkpoints before as they were.
        """
        self.finish()
        began = time.perf_counter()
        final = self._folder / checkpoint_name(state)
        aside = self._folder / f"{ASIDE}{final.name}"
        with self._waiting():
            record = {
                "state": asdict(state),
                "score": score,
                "monitor": self._params.monitor,
                "reference_hash": policy.reference_hash(),
                "provenance": self._provenance,
            }
            self._on_main(aside, lambda: _make_anew(aside))
            self._saving = _Saving(
                final=final,
                aside=aside,
                text=json.dumps(record, indent=1),
                stage=state.stage,
                pending=policy.begin_save(aside / POLICY_FOLDER),
                model_dir=self._model_dir if self._ranks.layout.is_main else None,
                began=began,
            )
            self._saving.thread.start()
        if not self._params.async_save:
            self.finish()
        return final

    def poll(self) -> None:
        """Collective: completes the save under way once every rank has written its part. Raises CheckpointNotSaved."""
        if self._saving is not None:
            with self._waiting():
                if not self._ranks.any(self._saving.thread.is_alive()):
                    self._complete(self._saving)

    def finish(self) -> None:
        """Collective: the save under way is complete on return. Raises CheckpointNotSaved."""
        if self._saving is not None:
            with self._waiting():
                self._saving.thread.join()
                self._complete(self._saving)

    def take_waited_s(self) -> float:
        """Seconds that the loop has spent in this object since it was last asked: what saving costs training."""
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
        """From files on every rank to a checkpoint under its name."""
        self._saving = None
        self.longest_s = max(self.longest_s, saving.seconds)
        self._agree(saving.aside, saving.failure)
        known = {name: found for files in self._ranks.gather(saving.files) for name, found in files.items()}
        failure: OSError | None = None
        try:
            saving.pending.finish()
        except OSError as error:
            failure = error
        self._agree(saving.aside, failure)

        def publish() -> None:
            write_text(saving.aside / STATE_FILE, saving.text)
            write_manifest(saving.aside, known)
            _replace(saving.aside, saving.final)
            self._clear_old(saving.stage)

        self._on_main(saving.aside, publish)

    def _on_main(self, aside: Path, action: Callable[[], None]) -> None:
        """Runs it on the main rank; every rank learns how it went."""
        failure: OSError | None = None
        if self._ranks.layout.is_main:
            try:
                action()
            except OSError as error:
                failure = error
        self._agree(aside, failure)

    def _agree(self, aside: Path, failure: Exception | None) -> None:
        """What fails on one rank fails on all: none goes on with a checkpoint that another has given up."""
        reason = next((text for text in self._ranks.gather(_reason(failure)) if text), "")
        if not reason:
            return
        if self._ranks.layout.is_main:
            shutil.rmtree(aside, ignore_errors=True)
        self._ranks.barrier()
        checkpoints = find_checkpoints(self._folder.parent)
        left = f"{checkpoints[-1].path} is whole" if checkpoints else "there is none before it"
        name = aside.name.removeprefix(ASIDE)
        raise CheckpointNotSaved(
            f"checkpoint {name} could not be saved in {self._folder}: {reason}; {left}."
        ) from failure

    def _clear_old(self, stage: str) -> None:
        checkpoints = find_checkpoints(self._folder.parent)
        kept = {checkpoint.path for checkpoint in worth_keeping(checkpoints, stage, self._params)}
        for checkpoint in checkpoints:
            if checkpoint.path not in kept:
                _remove(checkpoint.path)
        for left in self._folder.glob(f"{REMOVING}*"):
            shutil.rmtree(left, ignore_errors=True)


def worth_keeping(
    checkpoints: Sequence[Checkpoint], stage: str, params: CheckpointCallbackParams
) -> list[Checkpoint]:
    """The newest of this stage, the last of every other (a later stage may begin from it), the best of the run, and the
    best of this stage (a reset or the next stage may go back to it)."""
    others = {checkpoint.state.stage: checkpoint for checkpoint in checkpoints}  # the last one wins
    newest = [checkpoint for checkpoint in checkpoints if checkpoint.state.stage == stage][
        -params.save_last_k :
    ]
    best = [
        checkpoint
        for monitor in sorted({checkpoint.monitor for checkpoint in checkpoints})
        for of_stage in ("", stage)
        for checkpoint in by_score(checkpoints, monitor, params.mode, stage=of_stage)[: params.save_top_k]
    ]
    return [*others.values(), *newest, *best]


def by_score(
    checkpoints: Sequence[Checkpoint], monitor: str, mode: BestMode, *, stage: str = ""
) -> list[Checkpoint]:
    """Those that have a score by this metric, the best first, of one stage, or of all.

    Of equals the oldest comes first: after a reset to the best checkpoint, newer ones hold the same weights under the
    same score, and the one whose weights were measured must stay the best.
    """
    sign = _sign(mode)
    scored = [
        (-sign * checkpoint.score, checkpoint.state.step, checkpoint)
        for checkpoint in checkpoints
        if checkpoint.score is not None
        and checkpoint.monitor == monitor
        and stage in ("", checkpoint.state.stage)
    ]
    return [checkpoint for *_, checkpoint in sorted(scored, key=lambda entry: entry[:2])]


def is_better(score: float, than: float, mode: BestMode) -> bool:
    """Whether one value of the monitored metric is truly better than another."""
    return _sign(mode) * score > _sign(mode) * than


def _sign(mode: BestMode) -> float:
    return 1.0 if mode is BestMode.max else -1.0


@dataclass(slots=True, kw_only=True)
class _Saving:
    """A save under way on this rank."""

    final: Path
    aside: Path
    text: str
    """Of state.json."""
    stage: str
    pending: PendingSave
    model_dir: Path | None
    """On the main rank, which copies the model's other files."""
    began: float
    thread: threading.Thread = field(init=False)
    """A daemon: a run that fails meanwhile must not wait for a checkpoint that nobody will complete."""
    files: dict[str, Fingerprint] = field(default_factory=dict)
    """What the thread has written."""
    failure: Exception | None = None
    seconds: float = 0.0
    """From `began` to the last file."""

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._write, name="checkpoint", daemon=True)

    def _write(self) -> None:
        try:
            if self.model_dir is not None:
                copy_model_files(self.model_dir, self.aside / MODEL_FOLDER)
            self.files = fingerprints(self.aside, self.pending.write())
        except Exception as error:  # told at the next step boundary, on every rank
            self.failure = error
        self.seconds = time.perf_counter() - self.began


def _reason(failure: BaseException | None) -> str:
    """The operating system's, if one is behind it: torch says no more than that a write has failed."""
    cause = failure
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return "" if failure is None else f"{cause or repr(failure)}"


def _make_anew(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / POLICY_FOLDER).mkdir(parents=True)


def _replace(aside: Path, final: Path) -> None:
    """A stage that ends as saturated saves the step of its last checkpoint again: at no time is there neither."""
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
    """Loses its name first: at no moment is half a checkpoint under a valid one.

    NFS keeps a folder while somebody reads one of its files. No reason to stop a run: it goes with the next one."""
    removing = path.with_name(REMOVING + path.name)
    os.replace(path, removing)
    shutil.rmtree(removing, ignore_errors=True)


def _clear_leftovers(folder: Path) -> None:
    """What a run that was killed has left behind."""
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
    """On the main rank."""
    if rank_from_environment() == 0:
        print(line, file=sys.stderr, flush=True)
