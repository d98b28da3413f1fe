"""Tests of the code's structure, read from its source: sizes, documentation, imports."""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from nemo_prorl.config.help import entries

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(path for name in ("nemo_prorl", "reward", "slurm") for path in (ROOT / name).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80
ROOM_LINES = {
    "nemo_prorl": 1_300,
    "nemo_prorl/algorithm": 1_520,
    "nemo_prorl/cluster": 2_370,
    "nemo_prorl/commands": 2_470,
    "nemo_prorl/config": 1_910,
    "nemo_prorl/data": 3_180,
    "nemo_prorl/demo": 1_250,
    "nemo_prorl/doctor": 960,
    "nemo_prorl/engines": 5_390,
    "nemo_prorl/evaluation": 2_290,
    "nemo_prorl/questions": 960,
    "nemo_prorl/report": 1_830,
    "nemo_prorl/reward_sources": 1_130,
    "nemo_prorl/run_folder": 2_790,
    "nemo_prorl/training": 4_930,
    "reward": 3_320,
    "reward/adapters": 420,
    "reward/graders": 2_340,
    "reward/graders/math": 4_400,
    "reward/sandbox": 1_720,
    "slurm": 1_300,
}
"""The most lines that a package may have, without the packages below it that have a limit of their own. Who raises one
says in the commit message why the lines are worth it and what they made superfluous; who has made a package smaller
lowers it."""

ENGINES_ONLY = {"megatron", "transformer_engine", "vllm"}
NOT_PURE = {"torch.distributed", "os", "io", "pathlib", "socket", "subprocess", "time", "datetime", "random"}
"""Modules for ranks, files, clocks and hidden state, which algorithm/ must not import."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Structure:
    """What a file imports, functions included, by full names; its classes; (name, lines) of its functions."""

    imports: tuple[str, ...]
    classes: tuple[str, ...]
    functions: tuple[tuple[str, int], ...]


@cache
def structure(path: Path) -> Structure:
    imports: list[str] = []
    classes: list[str] = []
    functions: list[tuple[str, int]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imports += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)} imports relatively: write the full name"
            imports += (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append((node.name, (node.end_lineno or 0) - node.lineno + 1))
        elif isinstance(node, ast.ClassDef):
            classes.append(node.name)
    return Structure(tuple(imports), tuple(classes), tuple(functions))


def starts_with_any(imported: str, names: set[str]) -> bool:
    return any(imported == name or imported.startswith(name + ".") for name in names)


def assert_no_imports(paths: Iterable[Path], is_forbidden: Callable[[str], bool]) -> None:
    """Asserts that no file imports what is forbidden. There has to be a file."""
    found = {
        name_of(path): [name for name in structure(path).imports if is_forbidden(name)] for path in paths
    }
    assert found
    assert {name: forbidden for name, forbidden in found.items() if forbidden} == {}


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Returns the groups of modules that lead to each other (Tarjan's strongly connected components)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        path.append(module)
        for imported in sorted(imports[module]):
            if imported not in number:
                visit(imported)
            if imported in path:
                lowest[module] = min(lowest[module], lowest[imported])
        if lowest[module] == number[module]:
            group = path[path.index(module) :]
            del path[path.index(module) :]
            if len(group) > 1 or module in imports[module]:
                found.append(sorted(group))

    for module in imports:
        if module not in number:
            visit(module)
    return found


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def room_of(path: Path) -> str:
    """Returns the package with a limit that a file belongs to: the innermost."""
    return next(
        parent.relative_to(ROOT).as_posix()
        for parent in path.parents
        if parent.relative_to(ROOT).as_posix() in ROOM_LINES
    )


def test_files_are_about_one_thing() -> None:
    long = {name_of(path): lines_of(path) for path in [*SOURCES, *TESTS] if lines_of(path) > MAX_FILE_LINES}
    assert long == {}


def test_rooms_do_not_grow() -> None:
    lines: Counter[str] = Counter()
    for path in SOURCES:
        lines[room_of(path)] += lines_of(path)
    assert {room: number for room, number in lines.items() if number > ROOM_LINES[room]} == {}


@pytest.mark.medium
def test_class_names_stand_once() -> None:
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        for name in structure(path).classes:
            places.setdefault(name, []).append(name_of(path))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


@pytest.mark.medium
def test_functions_fit_a_screen() -> None:
    long = [
        f"{name_of(path)}:{name} has {lines} lines"
        for path in SOURCES
        for name, lines in structure(path).functions
        if lines > MAX_FUNCTION_LINES
    ]
    assert long == []


def test_every_option_and_section_is_documented() -> None:
    undocumented = [entry.key for entry in entries() if len(entry.doc) < 5]
    assert undocumented == []


@pytest.mark.medium
def test_only_the_engines_import_megatron_transformer_engine_or_vllm() -> None:
    others = [path for path in SOURCES if "nemo_prorl/engines/" not in name_of(path)]
    assert_no_imports(others, lambda name: starts_with_any(name, ENGINES_ONLY))


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": set()}) == [["a", "b", "c"]]


@pytest.mark.medium
def test_no_file_leads_back_to_itself() -> None:
    """Neither at the top nor inside functions, for type checkers alone or not."""
    modules = {module_of(path): path for path in SOURCES}

    def imported(path: Path) -> set[str]:
        # `from package import name`: name is a module, or it stands in the package.
        names = [{name, name.rpartition(".")[0]} & modules.keys() for name in structure(path).imports]
        return {max(found, key=len) for found in names if found}

    assert circles({module: imported(path) for module, path in modules.items()}) == []


def test_the_algorithm_is_pure() -> None:
    algorithm = (ROOT / "nemo_prorl" / "algorithm").glob("*.py")
    assert_no_imports(algorithm, lambda name: starts_with_any(name, NOT_PURE))


def test_the_loop_sees_protocols_only() -> None:
    def is_forbidden(name: str) -> bool:
        if name.startswith("nemo_prorl.engines"):
            return not name.startswith("nemo_prorl.engines.interface")
        return name.startswith("reward.") and "reward.protocol" not in name

    assert_no_imports((ROOT / "nemo_prorl" / "training").rglob("*.py"), is_forbidden)


def test_the_reward_service_knows_neither_the_trainer_nor_torch() -> None:
    service = (ROOT / "reward").rglob("*.py")
    assert_no_imports(service, lambda name: starts_with_any(name, {"nemo_prorl", "torch"}))


def test_product_benchmarks_experiments_and_tests_import_downwards() -> None:
    """Benchmarks measure the product, experiments use benchmarks, and tests may use all of them."""
    experiments, benchmarks = (list((ROOT / name).rglob("*.py")) for name in ("experiments", "benchmarks"))
    assert_no_imports(SOURCES, lambda name: starts_with_any(name, {"benchmarks", "experiments", "tests"}))
    assert_no_imports(benchmarks, lambda name: starts_with_any(name, {"experiments", "tests"}))
    assert_no_imports(experiments, lambda name: starts_with_any(name, {"tests"}))


def test_the_protocol_is_standard_library_only() -> None:
    roots = {name.partition(".")[0] for name in structure(ROOT / "reward" / "protocol.py").imports}
    assert roots <= sys.stdlib_module_names


def test_a_job_is_managed_by_any_python_of_a_node() -> None:
    """Python 3.9 or newer, without packages: the syntax, and what is imported."""
    paths = sorted((ROOT / "slurm" / "job").glob("*.py"))
    assert_no_imports(paths, lambda name: name.partition(".")[0] not in {*sys.stdlib_module_names, "slurm"})
    for path in paths:
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))


def test_layers() -> None:
    """Checks the import contracts of pyproject.toml, which cover the rest."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
