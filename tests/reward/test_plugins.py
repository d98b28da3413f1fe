"""Tests of graders from other distributions: found, loaded, guarded, and served beside the built-in ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reward import worker
from reward.graders import plugins
from reward.graders.grade import Grade, InvalidTask
from reward.graders.registry import BUILT_IN, PLUGIN_POOL, domains
from reward.version import version
from tests.reward.serving import PYTHON, ROOT, Server, request

EXAMPLE = ROOT / "examples/last_number_grader/last_number_grader.py"
GOOD = """
from reward.graders.grade import Grade, require
def check(task): require("word" in task, "no word")
def grade(text, task): return Grade(score=float(text == task["word"]), verdict="said")
"""


def install(
    folder: Path, name: str, source: str, entry_points: Mapping[str, str], release: str = "1.0"
) -> None:
    """Writes the files that pip installs for a distribution with one module."""
    information = folder / f"{name}-{release}.dist-info"
    information.mkdir(parents=True)
    (folder / f"{name}.py").write_text(source)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {release}\n")
    lines = [f"{domain} = {value}" for domain, value in entry_points.items()]
    (information / "entry_points.txt").write_text("\n".join(["[prorl_reward.graders]", *lines, ""]))


Install = Callable[..., None]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs distributions for this process, until the test ends."""
    caches: Any = (plugins.plugins, plugins.loaded, domains)
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)

    def add(name: str, source: str, entry_points: Mapping[str, str] | None = None, **options: Any) -> None:
        install(tmp_path, name, source, entry_points or {name: name}, **options)
        for cached in caches:
            cached.cache_clear()

    yield add
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    for cached in caches:
        cached.cache_clear()


def test_a_module_an_object_and_a_class_are_graders(installed: Install) -> None:
    assert domains() == BUILT_IN, "without plug-ins"
    source = GOOD + (
        "class Judge:\n"
        "    def check(self, task): ...\n"
        "    def grade(self, text, task): return Grade(score=0.5, verdict='judged')\n"
        "judge = Judge()\n"
    )
    installed("haiku", source, {"haiku": "haiku", "by_object": "haiku:judge", "by_class": "haiku:Judge"})
    names = {"haiku", "by_object", "by_class"}
    assert set(domains()) == {*BUILT_IN, *names}
    assert {domains()[name].pool for name in names} == {PLUGIN_POOL}
    assert plugins.loaded("haiku").grade("leaf", {"word": "leaf"}) == Grade(score=1.0, verdict="said")
    assert plugins.loaded("by_object").grade("", {}) == plugins.loaded("by_class").grade("", {})
    with pytest.raises(InvalidTask, match="no word"):
        plugins.loaded("haiku").check({})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise KeyError('gold')", r"raised KeyError: 'gold' \(haiku.py, line 5\)"),
        ("return grade(text, task)", "raised RecursionError"),
        ("return None", "returned a value of type NoneType, not a Grade"),
        ("return 1.0", "returned a value of type float, not a Grade"),
        ("return Grade(score=7, verdict='x')", "the score 7, which is no number from 0 to 1"),
        ("return Grade(score=float('nan'), verdict='x')", "the score nan"),
        ("return Grade(score=True, verdict='x')", "the score True"),
        ("return Grade(score='1', verdict='x')", "the score '1'"),
    ],
)
def test_a_grader_that_fails_gives_nobody_a_0(installed: Install, body: str, said: str) -> None:
    from reward.graders import grade

    installed(
        "haiku",
        f"from reward.graders.grade import Grade\ndef check(task): ...\n\ndef grade(text, task): \n    {body}\n",
    )
    with pytest.raises(plugins.PluginFailed, match=said) as caught:
        grade("haiku", "some text", {})
    assert str(caught.value).startswith("the grader plug-in haiku (haiku==1.0) ")


@pytest.mark.parametrize(
    ("source", "entry_points", "said"),
    [
        ("import nowhere", None, "cannot be loaded: ModuleNotFoundError: No module named 'nowhere'"),
        ("def grade(:", None, "cannot be loaded: SyntaxError"),
        ("raise SystemExit(3)", None, "cannot be loaded: SystemExit: 3"),
        (GOOD, {"haiku": "haiku:judge"}, "cannot be loaded: AttributeError"),
        (GOOD, {"haiku": "other"}, "cannot be loaded: ModuleNotFoundError"),
        ("def check(task): ...", None, "has no function grade, which every grader has"),
        ("class J:\n    def __init__(self, x): ...", {"haiku": "haiku:J"}, "cannot be loaded: TypeError"),
        (
            GOOD + "KNOWN_ANSWERS = [('text', {}, 1.0)]",
            None,
            "must be a list of reward.known_answers.KnownAnswer",
        ),
    ],
)
def test_a_broken_plug_in_is_one_sentence(
    installed: Install, source: str, entry_points: Mapping[str, str] | None, said: str
) -> None:
    installed("haiku", source, entry_points)
    with pytest.raises(plugins.PluginError, match=said) as caught:
        plugins.loaded("haiku")
    assert "haiku (haiku==1.0)" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_broken_plug_in_is_found_before_the_other_graders_are_loaded(
    installed: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading those takes seconds."""
    installed("haiku", "import nowhere")
    monkeypatch.delattr("reward.graders.import_module")
    with pytest.raises(plugins.PluginError, match="No module named 'nowhere'"):
        worker.preload(domains())


def test_a_failing_warm_up_is_one_sentence(installed: Install) -> None:
    installed("haiku", GOOD + "def warm_up(): raise OSError('no dictionary')\n")
    with pytest.raises(plugins.PluginError, match=r"cannot warm up: OSError: no dictionary"):
        plugins.loaded("haiku").warm_up()


@pytest.mark.parametrize("name", ["math", "code", "Haiku", "two words", "a-b", "1st", "ü"])
def test_names_that_clash_or_cannot_be_metrics_are_refused(installed: Install, name: str) -> None:
    installed("haiku", GOOD, {name: "haiku"})
    with pytest.raises(plugins.PluginError, match=r"haiku==1\.0.*must have a name|has the name of a domain"):
        plugins.plugins()


def test_two_plug_ins_of_one_name_are_refused(installed: Install) -> None:
    installed("haiku", GOOD)
    installed("rival", GOOD, {"haiku": "rival"})
    with pytest.raises(plugins.PluginError, match=r"rival==1.0.*haiku==1.0.*uninstall one"):
        plugins.plugins()


def test_the_version_knows_the_minor_version_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {version()}
    for known in ((3, 98, 1), (3, 98, 2), (3, 99, 1)):
        monkeypatch.setattr("reward.version.sys", SimpleNamespace(version_info=known))
        seen.add(version())
    assert len(seen) == 3


def test_the_version_knows_release_source_and_name(installed: Install, tmp_path: Path) -> None:
    seen = [version()]
    installed("haiku", GOOD)
    seen += [version(), version()]
    (tmp_path / "haiku.py").write_text(GOOD + "# another\n")
    seen.append(version())
    metadata = tmp_path / "haiku-1.0.dist-info/METADATA"
    metadata.write_text(metadata.read_text().replace("1.0", "1.1"))
    plugins.plugins.cache_clear()
    seen.append(version())
    assert seen[1] == seen[2]
    assert len(set(seen)) == 4
    assert "haiku" not in sys.modules, "it is not imported for that"


# Served


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("packages")
    install(folder, "last_number_grader", EXAMPLE.read_text(), {"last_number": "last_number_grader"})
    body = (
        "import ctypes\n"
        "from reward.graders.grade import Grade\n"
        "def check(task): ...\n"
        "def grade(text, task):\n"
        "    while 'spin' in text: pass\n"
        "    if 'open' in text: open('/etc/hostname')\n"
        "    if 'die' in text: ctypes.string_at(0)\n"
        "    return Grade(score=1 / (len(text) - 3), verdict='said')\n"
    )
    install(folder, "moody", body, {"moody": "moody"})
    server = Server("--workers", "2", env={"PYTHONPATH": str(folder)})
    yield server
    server.stop()


def test_the_example_is_served_like_any_domain(served: Server) -> None:
    task = {"number": 12}
    assert served.score(request("last_number", "<think>x</think>3 and 12", task))["score"] == 1
    assert served.score(request("last_number", "twelve", task))["verdict"] == "no_number"
    invalid = served.score(request("last_number", "12", {}))
    assert invalid["details"] == {"reason": 'the task needs a "number"'}
    unknown = served.score(request("lastnumber", "x", {}))
    assert unknown["details"]["reason"].endswith("instruction, last_number, moody")
    ready = json.loads(served.call("/readyz")[2])["domains"]
    assert ready["last_number"]["ready"]
    assert ready["moody"]["ready"], "without known answers it is ready when it imports"
    metrics = served.call("/metrics")[2].decode()
    assert 'reward_verdicts_total{domain="last_number",status="graded",verdict="no_number"} 1' in metrics
    assert 'pool="plugins"' in metrics


def test_a_moody_grader_harms_nobody(served: Server) -> None:
    texts = ["1234", "123", "open", "spin", "die", "12345"]
    items = [request("moody", text, {}, f"moody {text}") for text in texts]
    answer = served.batch(items)
    by_text = dict(zip(texts, answer, strict=True))
    assert by_text["1234"]["score"] == 1
    assert by_text["12345"]["score"] == 0.5
    for text in ("123", "open"):
        assert by_text[text]["status"] == "infra_error"
        assert by_text[text]["score"] is None
    assert "moody (moody==1.0) raised ZeroDivisionError" in by_text["123"]["details"]["reason"]
    assert "raised" in by_text["open"]["details"]["reason"], "there are no files in its sandbox"
    assert by_text["spin"]["verdict"] in ("timeout", "worker_failed"), (
        "the second where the machine is too loaded"
    )
    assert by_text["die"]["verdict"] == "crashed"
    assert "ZeroDivisionError" in served.log.read_text(), "its traceback is in the service's log"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import nowhere\n", "cannot be loaded: ModuleNotFoundError: No module named 'nowhere' (haiku.py, line 1)"),
        (
            GOOD + "from reward.known_answers import KnownAnswer\n"
            "KNOWN_ANSWERS = [KnownAnswer(response='a', task={'word': 'b'}, score=1.0)]\n",
            "a known answer got 0.0 (said), not 1.0",
        ),
    ],
)  # fmt: skip
def test_a_broken_plug_in_stops_the_service_with_a_sentence(tmp_path: Path, source: str, said: str) -> None:
    install(tmp_path, "haiku", source, {"haiku": "haiku"})
    done = subprocess.run(
        [PYTHON, "-m", "reward", "serve", "--workers", "1"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("reward: the grader plug-in haiku (haiku==1.0)")
    assert said in done.stderr.splitlines()[-1]
