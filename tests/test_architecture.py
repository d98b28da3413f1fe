"""The structure, held from source: sizes, documentation, who may import whom. Imports nothing it judges but options."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nemo_prorl.help import entries

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted([*(ROOT / "nemo_prorl").rglob("*.py"), *(ROOT / "reward").rglob("*.py")])
TESTS = sorted((ROOT / "tests").rglob("*.py"))

MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 80
LONG_FILES = {"nemo_prorl/config.py": "every option and its documentation, in one place"}
"""Files that may be longer, and why."""
LONG_FUNCTIONS: dict[str, str] = {}
"""path:function that may be longer, and why."""

ENGINES_ONLY = {"megatron", "transformer_engine", "vllm"}
NOT_PURE = {"torch.distributed", "os", "io", "pathlib", "socket", "subprocess", "time", "datetime", "random"}
"""Ranks, files, clocks and hidden state: none of an algorithm's business."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[str]:
    """Full names of everything imported anywhere in the file, functions included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)} imports relatively: write the full name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def starts_with_any(imported: str, names: set[str]) -> bool:
    return any(imported == name or imported.startswith(name + ".") for name in names)


@pytest.mark.parametrize("path", [*SOURCES, *TESTS], ids=name_of)
def test_files_fit_a_readers_patience(path: Path) -> None:
    num_lines = len(path.read_text(encoding="utf-8").splitlines())
    assert num_lines <= MAX_FILE_LINES or name_of(path) in LONG_FILES


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_functions_fit_a_screen(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            num_lines = (node.end_lineno or 0) - node.lineno + 1
            where = f"{name_of(path)}:{node.name}"
            assert num_lines <= MAX_FUNCTION_LINES or where in LONG_FUNCTIONS, where


def test_exceptions_from_the_budget_are_still_needed() -> None:
    for name in LONG_FILES:
        assert len((ROOT / name).read_text().splitlines()) > MAX_FILE_LINES, f"{name} fits again: remove it"
    for where in LONG_FUNCTIONS:
        assert (ROOT / where.partition(":")[0]).exists()


def test_every_option_and_section_is_documented() -> None:
    undocumented = [entry.key for entry in entries() if len(entry.doc) < 5]
    assert undocumented == []


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_only_the_engines_import_megatron_transformer_engine_or_vllm(path: Path) -> None:
    if "nemo_prorl/engines/" in name_of(path):
        return
    assert [name for name in imports(path) if starts_with_any(name, ENGINES_ONLY)] == []


@pytest.mark.parametrize("path", sorted((ROOT / "nemo_prorl" / "algorithm").glob("*.py")), ids=name_of)
def test_the_algorithm_is_pure(path: Path) -> None:
    assert [name for name in imports(path) if starts_with_any(name, NOT_PURE)] == []


@pytest.mark.parametrize("path", sorted((ROOT / "nemo_prorl" / "training").glob("*.py")), ids=name_of)
def test_the_loop_sees_protocols_only(path: Path) -> None:
    engines = [name for name in imports(path) if name.startswith("nemo_prorl.engines")]
    assert [name for name in engines if not name.startswith("nemo_prorl.engines.interface")] == []
    assert [
        name for name in imports(path) if name.startswith("reward.") and "reward.protocol" not in name
    ] == []


@pytest.mark.parametrize("path", sorted((ROOT / "reward").rglob("*.py")), ids=name_of)
def test_the_reward_service_knows_neither_the_trainer_nor_torch(path: Path) -> None:
    assert [name for name in imports(path) if starts_with_any(name, {"nemo_prorl", "torch"})] == []


def test_the_protocol_is_standard_library_only() -> None:
    roots = {name.partition(".")[0] for name in imports(ROOT / "reward" / "protocol.py")}
    assert roots <= sys.stdlib_module_names


def test_layers() -> None:
    """The contracts of pyproject.toml, which say the rest."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
