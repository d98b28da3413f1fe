"""Tests that an import which fails in a grading process is noticed, although its library does not say so."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from importlib import import_module, invalidate_caches
from pathlib import Path

import pytest

pytest.importorskip("langdetect", reason="needs the reward environment")

from reward import worker
from reward.answers import Retry
from reward.graders.grade import Grade
from reward.worker import ImportWatch

PACKAGE = "a_library_with_late_imports"
TEXT = {"domain": "math", "response": "\\boxed{1}", "task": {"answer": "1"}, "in_thought": False}


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package that is already loaded, with a module `late` that is not, and a module `broken` that raises."""
    folder = tmp_path / PACKAGE
    folder.mkdir()
    for name, text in {"__init__": "", "late": "", "broken": "import a_module_that_nobody_has"}.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    invalidate_caches()
    import_module(PACKAGE)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


@pytest.fixture
def watch(library: Path) -> Iterator[ImportWatch]:
    watch = ImportWatch()
    yield watch
    sys.meta_path.remove(watch)  # type: ignore[arg-type]


def tried(name: str) -> None:
    with contextlib.suppress(ImportError):
        import_module(name)


@pytest.mark.parametrize(
    ("name", "is_hidden", "fails"),
    [
        (f"{PACKAGE}.late", False, False),
        (f"{PACKAGE}.late", True, True),
        (PACKAGE, True, True),
        (f"{PACKAGE}.broken", False, True),
        # Libraries ask for optional ones, such as gmpy2.
        ("a_module_that_nobody_has", False, False),
        (f"{PACKAGE}.a_module_that_it_never_had", False, False),
    ],
)
def test_an_installed_module_that_cannot_be_imported_is_a_failure_once(
    name: str, is_hidden: bool, fails: bool, watch: ImportWatch, library: Path
) -> None:
    if is_hidden:
        sys.modules.pop(name, None)
        library.rename(library.with_name("hidden"))
        invalidate_caches()
    tried(name)
    assert watch.failed() == ([name] if fails else [])
    assert watch.failed() == []


def test_what_failed_before_may_fail_again(watch: ImportWatch) -> None:
    for _ in range(2):
        tried(f"{PACKAGE}.broken")
        watch.accept()
    tried(f"{PACKAGE}.broken")
    assert watch.failed() == []


def grader_that_imports(name: str, *, is_silent: bool) -> object:
    def grade(*_: object, **__: object) -> Grade:
        try:
            import_module(name)
        except ImportError:
            if not is_silent:
                raise
        return Grade(score=0.0, verdict="wrong")

    return grade


def test_a_message_that_takes_long_is_answered_in_part(
    watch: ImportWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        worker, "_watch", lambda: watch
    )  # that of the process knows of earlier tests' imports
    for seconds, count in ((-1.0, 1), (60.0, 3)):
        monkeypatch.setattr(worker, "_GROUP_S", seconds)
        scores = [answer.score for answer in worker._answers([TEXT] * 3) if isinstance(answer, Grade)]
        assert scores == [1.0] * count


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_score_without_an_import_is_none(
    is_silent: bool, watch: ImportWatch, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_watch", lambda: watch)
    monkeypatch.setattr("reward.graders.grade", grader_that_imports(f"{PACKAGE}.late", is_silent=is_silent))
    assert worker._answer(TEXT) == Grade(score=0.0, verdict="wrong")
    del sys.modules[f"{PACKAGE}.late"]
    library.rename(library.with_name("hidden"))
    invalidate_caches()
    answer = worker._answer(TEXT)
    assert isinstance(answer, Retry)
    assert f"{PACKAGE}.late" in answer.reason
