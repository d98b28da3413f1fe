"""Tests of the sandbox at each level of this machine: nothing gets out, nothing remains, honest programs are not
affected."""

import os
import platform
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reward.graders.code import code_tests
from reward.graders.code.grader import grade, grade_outputs, run_tests
from reward.graders.grade import Grade
from reward.sandbox import landlock, launch
from reward.sandbox.cell import Level
from reward.sandbox.execution import Execution, Sandbox
from reward.sandbox.kernel import NUMBERS
from reward.sandbox.launch import ZygoteError
from reward.sandbox.limits import ProgramLimits
from reward.sandbox.probe import failure_of
from tests.reward.serving import SPENDS_ALL_ITS_TIME, children, rows, wait_until

DOUBLE = {"inputs": [f"{n}\n" for n in range(5)], "outputs": [f"{2 * n}\n" for n in range(5)]}
OTHER_KERNEL = str(Path(__file__).with_name("other_kernel.py"))
RECURSION_THROUGH_C = """
@cache
def cached(n): return 0 if n == 0 else cached(n - 1) + 1
def summed(n): return 0 if n == 0 else sum(summed(k) for k in [n - 1]) + 1
def run(): print(cached(20000), summed(20000))
"""
"""Such calls have a limit of their own since Python 3.12; see reward/sandbox/recursion.py."""
HASHES = subprocess.run(
    [sys.executable, "-c", "print(hash('a'), hash(b'b'))"],
    capture_output=True,
    check=True,
    env={"PYTHONHASHSEED": "0"},
    text=True,
).stdout
"""A program that iterates over a set of strings must not be right on one server and wrong on another."""
OWN_CLOCK = """
import threading, time
begun = time.time()
while time.time() - begun < 0.1: pass
assert time.process_time() >= 0.1
time.sleep(0.1)
assert 0.2 <= time.time() - begun < 0.35 and time.time_ns() // 10**9 - time.time() < 1
locked = threading.Lock()
locked.acquire()
locked.acquire(timeout=0.5)
print(time.perf_counter() < 0.5 and time.monotonic() < 0.5)
"""
"""Waiting, here for a lock, does not count, so a search with a time limit does the same at any load."""
LEAKS = (
    "CANARY-CONTENT",
    "EXPECTED-SECRET",
    "s3cr3t-token",
    "PLANTED-BY-69",
    "CONNECTED",
    "root:",
    "OPENED MEM",
    "uid=0",
)


isolated = launch._start_isolated


class OnLinux418(Sandbox):
    """A sandbox whose programs run without system calls newer than Linux 4.18."""

    def run(self, *arguments: Any, **options: Any) -> Execution:
        def older(python: list[str], *rest: Any) -> subprocess.Popen[bytes]:
            return isolated([sys.executable, "-S", OTHER_KERNEL, "linux-4.18", *python], *rest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(launch, "_start_isolated", older)
            return super().run(*arguments, **options)


def doubling(mode: str) -> code_tests.Tests:
    return code_tests.tests_of(DOUBLE if mode == "stdin" else {**DOUBLE, "fn_name": "double"})


def graded(
    sandbox: Sandbox, source: str, tests: code_tests.Tests, limits: ProgramLimits | None = None
) -> Grade:
    return grade_outputs(run_tests(sandbox, source, tests, limits or ProgramLimits()), tests)


@pytest.fixture(scope="module", params=[Level.namespaces, Level.landlock, Level.namespaces_only])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    if failure := failure_of(request.param):
        pytest.skip(f"this machine has no level {request.param.value}: {failure}")
    sandbox = (OnLinux418 if request.param is Level.namespaces_only else Sandbox)(request.param)
    yield sandbox
    sandbox.close()


def test_the_levels_that_this_kernel_offers_hold() -> None:
    """The tests of a level that does not hold are skipped, also where a fault of ours is the reason."""
    if landlock.abi() >= 1:
        assert failure_of(Level.landlock) is None
    mounting = "unshare --map-root-user --net --pid --mount --fork mount -t tmpfs none /sys"
    if subprocess.run(mounting.split(), capture_output=True).returncode == 0:
        assert failure_of(Level.namespaces_only) is None


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The targets of attacks: a host file, a listener, an abstract socket, a secret in the environment."""
    folder = Path(f"/var/hostile_canary_{os.getpid()}")
    try:
        folder.mkdir(exist_ok=True)
        (folder / "file.txt").write_text("CANARY-CONTENT")
        (folder / "expected.json").write_text('{"expected": "EXPECTED-SECRET"}')
    except OSError as error:
        pytest.skip(f"the canary cannot be laid at {folder}: {error.strerror}")
    os.environ["HOSTILE_SECRET"] = "s3cr3t-token"
    yield folder
    del os.environ["HOSTILE_SECRET"]
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


@dataclass(frozen=True)
class Connections:
    """Listeners of this process only, so that two test runs on one machine do not interfere, and their visitors."""

    port: int
    abstract: str
    seen: list[str]


@pytest.fixture(scope="module")
def connections() -> Iterator[Connections]:
    seen: list[str] = []
    name = f"hostile_canary_{os.getpid()}"
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0{name}")
    abstract.listen()
    listeners = {"tcp": socket.create_server(("127.0.0.1", 0)), "unix": abstract}

    def accept(name: str, listener: socket.socket) -> None:
        while True:
            try:
                listener.accept()[0].close()
            except OSError:
                return
            seen.append(name)

    for item in listeners.items():
        threading.Thread(target=accept, args=item, daemon=True).start()
    yield Connections(listeners["tcp"].getsockname()[1], name, seen)
    for listener in listeners.values():
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@pytest.mark.parametrize(
    "row",
    [row for row in rows("hostile.jsonl") if row["name"] not in SPENDS_ALL_ITS_TIME],
    ids=lambda row: row["name"],
)
def test_hostile_submission(
    row: dict[str, str], sandbox: Sandbox, canary: Path, connections: Connections
) -> None:
    """Attacks that end quickly, at every level; the others are tested once, through HTTP (test_server.py)."""
    tests = doubling(row["mode"])
    source = row["source"].replace("48123", str(connections.port))
    source = source.replace("/var/hostile_canary", str(canary)).replace(
        "0hostile_canary", "0" + connections.abstract
    )
    execution = run_tests(sandbox, source, tests)
    score = grade_outputs(execution, tests).score
    assert row["reward"] == "any" or score == {"0": 0.0, "1": 1.0, "frac": 0.8}[row["reward"]]
    output = b"".join(execution.outputs).decode(errors="replace")
    assert not [leak for leak in LEAKS if leak in output]
    assert sorted(path.name for path in canary.iterdir()) == ["expected.json", "file.txt"]
    assert (canary / "file.txt").read_text() == "CANARY-CONTENT"
    assert connections.seen == []
    for path in (
        "/x",
        "/etc/x",
        "/dev/shm/hostile_x",
        "/var/tmp/hostile_x",
        "/dev/shm/hostile_leak",
        "/var/tmp/planted.txt",
    ):
        assert not Path(path).exists()
    assert graded(sandbox, "print(2 * int(input()))", doubling("stdin")).score == 1


@pytest.mark.parametrize("row", rows("refused_programs.jsonl"), ids=lambda row: row["what"])
def test_refused(row: dict[str, str], sandbox: Sandbox) -> None:
    """Single attempts that a program must not make, each with an exception."""
    assert sandbox.run(row["source"], [""]).ends == ["error"]


@pytest.mark.parametrize(
    ("what", "source", "expected"),
    [
        ("threads", "import threading\nt = threading.Thread(target=print, args=(4,))\nt.start()\nt.join()", "4"),
        ("exit", "print(4)\nexit()", "4"),
        ("recursion in a big thread", "import sys, threading\nsys.setrecursionlimit(10**6)\n"
         "threading.stack_size(1 << 27)\ndef f(n):\n    return 0 if n == 0 else f(n - 1) + 1\n"
         "t = threading.Thread(target=lambda: print(f(20000)))\nt.start()", "20000"),
        ("recursion through C", RECURSION_THROUGH_C + "run()", "20000 20000"),
        ("recursion through C in a big thread", "import threading\nthreading.stack_size(1 << 27)\n"
         f"{RECURSION_THROUGH_C}t = threading.Thread(target=run)\nt.start()", "20000 20000"),
        ("late imports", "import decimal, fractions, colorsys, ipaddress\nprint(fractions.Fraction(1, 3))", "1/3"),
        ("not root", "import os\nprint(os.getuid() != 0 and os.geteuid() != 0)", "True"),
        ("no secrets", "import os\nprint([k for k in os.environ if 'SECRET' in k])", "[]"),
        ("the order of sets", "print(hash('a'), hash(b'b'))", HASHES),
        ("a clock of its own", OWN_CLOCK, "True"),
    ],
)  # fmt: skip
def test_allowed(what: str, source: str, expected: str, sandbox: Sandbox) -> None:
    tests = code_tests.Tests(inputs=("",), expected=(expected,), fn_name=None)
    execution = run_tests(sandbox, source, tests)
    assert execution.ends == ["exit"], what
    assert tests.passes(0, execution.outputs[0]), (what, execution.outputs)


def test_warnings_of_the_compiler_stay_out_of_the_services_log(capfd: pytest.CaptureFixture[str]) -> None:
    """Python 3.12 warns of both lines, 3.11 of the first. There are more than a stream's buffer holds."""
    if failure_of(Level.landlock):
        pytest.skip("this machine has no Landlock")
    sandbox = Sandbox(Level.landlock)
    assert sandbox.run("int() is 0\n'\\d'\n" * 200, [""]).ends == ["exit"]
    sandbox.close()
    assert capfd.readouterr().err == ""


def test_a_program_has_a_directory_of_its_own_to_write_in() -> None:
    if failure_of(Level.namespaces):
        pytest.skip("this machine has no namespaces")
    sandbox = Sandbox(Level.namespaces)
    tests = code_tests.Tests(inputs=("",), expected=("ok",), fn_name=None)
    assert tests.passes(
        0, sandbox.run("open('f', 'w').write('ok')\nprint(open('/tmp/f').read())", [""]).outputs[0]
    )
    assert sandbox.run("print(open('/tmp/f').read())", [""]).ends == ["error"]
    sandbox.close()


READS = (
    "import sys\nprint(sys.stdin.read())",
    "print(open(0).read())",
    "with open('/dev/stdin') as f: print(f.read())",
    "import sys\nsys.stdin = open('/dev/stdin')\nprint(input())",
    "import sys\nsys.stdout = open('/dev/stdout', 'w')\nprint(input())",
    "import os\nprint(os.read(0, os.fstat(0).st_size).decode())",
    "import io, os\nprint(io.BytesIO(os.read(0, os.fstat(0).st_size)).readline().decode())",
    "import mmap\nprint(mmap.mmap(0, 0, access=mmap.ACCESS_READ)[:].decode())",
    "import sys\ninput()\nsys.stdin.seek(0)\nprint(sys.stdin.readline())",
)
"""Ways in which contest code reads its input."""


@pytest.mark.parametrize("size", [1, 500_000, 20 << 20])
def test_standard_input_is_a_file_of_any_size(size: int, sandbox: Sandbox) -> None:
    text = "7" * size
    tests = code_tests.Tests(inputs=(text, "x"), expected=(text, "x"), fn_name=None)
    for source in READS if size < 1 << 20 else READS[:1]:
        assert graded(sandbox, source, tests).score == 1, source
    assert sandbox.run("print(1)", [text]).ends == ["exit"], "who does not read it may end"


BUSY = """
import time
t = time.process_time()
while time.process_time() - t < 0.2: pass
print(int(input()) * 2)
"""


@pytest.mark.parametrize(
    ("limits", "outcomes"),
    [
        ({"cpu_s": 20}, ["passed", "passed"]),
        ({"cpu_s": 0.3}, ["passed", "timeout"]),
        ({"cpu_s": 20, "test_cpu_s": 0.1}, ["timeout"]),
        ({"test_cpu_s": 0.35}, ["passed", "passed"]),
    ],
    ids=["enough", "too little for all", "too little for one", "enough for each, not for both"],
)
def test_a_task_sets_the_time_of_all_tests_and_of_each(
    limits: dict[str, float], outcomes: list[str], sandbox: Sandbox
) -> None:
    task = {"inputs": ["1\n", "2\n"], "outputs": ["2\n", "4\n"], **limits}
    found = grade(sandbox, f"```python\n{BUSY}\n```", task)
    assert found.details["outcomes"] == outcomes
    is_right = outcomes[-1] == "passed"
    assert (found.score, found.verdict) == ((1.0, "correct") if is_right else (0.0, "timeout"))


def test_sleep_is_counted_over_all_tests(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test ends before the next sample of sleep would be taken."""
    monkeypatch.setattr("reward.sandbox.execution.SLEEP_S", 0.5)
    tests = code_tests.Tests(inputs=("",) * 100, expected=("",) * 100, fn_name=None)
    execution = run_tests(sandbox, "import time; time.sleep(0.2)", tests)
    assert execution.cut == "asleep"
    assert grade_outputs(execution, tests).verdict == "timeout"
    assert sandbox._zygote is not None
    assert children(sandbox._zygote.pid) == []  # nor a zombie


def test_what_solutions_of_the_data_lean_on_is_there(sandbox: Sandbox) -> None:
    """Programs get the imports and the recursion limit of the judges for which the data was made."""
    source = """
from typing import TypedDict
class Solution:
    @cache
    def depth(self, n: int) -> int:
        return n and 1 + self.depth(n - 1)
    def double(self, n: Optional[int]) -> List[int]:
        def sink(k):
            return 0 if k == 0 else 1 + sink(k - 1)
        assert sink(20_000) == 20_000 and self.depth(2_000) == 2_000
        assert inf > 0 and gcd(4, 6) == math.gcd(4, 6) == 2 and pow(3, 4, 5) == 1 and isqrt(10) == 3
        assert type(Counter("aab")) is Counter and deque([1]).pop() == 1
        assert defaultdict(list)[0] == [] and heapq.nlargest(1, [1, 2]) == [2] and nsmallest(1, [2, 1]) == [1]
        heappush(queue := [], 1)
        assert bisect.bisect([1], 0) == bisect_left([1], 0) == 0 and list(pairwise([1, 2])) == [(1, 2)]
        assert list(accumulate([1, 2], add)) == [1, 3] and reduce(or_, [1, 2]) == 3 and ascii_lowercase[0] == "a"
        assert SortedList([2, 1])[0] == 1 and datetime.date(2024, 1, 1).day == 1 and randint(1, 1) == 1
        assert max(map(itemgetter(0), [(1,)])) == 1 and cmp_to_key and comb(4, 2) == 6 and zip_longest
        return 2 * n
"""
    assert graded(sandbox, source, doubling("fn")).score == 1


def test_compiling_counts_as_computing(sandbox: Sandbox) -> None:
    """An f-string of 600 KB takes CPython 3.11 minutes to compile, and 3.12 a large part of a second."""
    found = graded(sandbox, "f'" + "{1}" * 200_000 + "'", doubling("stdin"), ProgramLimits(cpu_s=0.1))
    assert (found.score, found.verdict) == (0.0, "timeout")


def test_a_runner_that_is_killed_from_outside_is_no_verdict(sandbox: Sandbox) -> None:
    tests = doubling("stdin")
    with ThreadPoolExecutor(1) as thread:
        sandbox.run("", tests.inputs)
        assert sandbox._zygote is not None
        zygote = sandbox._zygote.pid
        running = thread.submit(sandbox.run, "import time; time.sleep(4)", tests.inputs)
        assert wait_until(lambda: children(zygote))
        (runner,) = children(zygote)
        os.kill(runner, signal.SIGKILL)
        with pytest.raises(ZygoteError, match="killed"):
            running.result(60)
    assert graded(sandbox, "print(2 * int(input()))", tests).score == 1


@pytest.mark.parametrize(
    ("column", "header", "prefix"),
    [(0, "x86_64-linux-gnu/asm/unistd_64.h", "__NR_"), (1, "asm-generic/unistd.h", "__NR(?:3264)?_")],
)
def test_numbers_are_the_kernels(column: int, header: str, prefix: str) -> None:
    path = Path("/usr/include") / header
    if not path.exists():
        pytest.skip(f"{path} is not installed")
    official: dict[str, int] = {}
    for name, number in re.findall(rf"#define {prefix}(\w+)\s+(\d+)", path.read_text()):
        official.setdefault(name, int(number))
    official |= {"newfstatat": 79, "fstat": 80} if column else {}  # behind a macro there
    known = {
        name: numbers[column]
        for name, numbers in NUMBERS.items()
        if name in official and numbers[column] is not None
    }
    assert len(known) > 80
    assert known == {name: official[name] for name in known}


@pytest.mark.skipif(platform.system() != "Linux", reason="the sandbox is Linux's")
def test_no_process_is_left_when_the_sandbox_closes() -> None:
    if failure_of(Level.namespaces):
        pytest.skip("this machine has no namespaces")
    sandbox = Sandbox(Level.namespaces)
    sandbox.run("print(1)", ["1", "2"])
    assert sandbox._zygote is not None
    zygote = sandbox._zygote.pid
    sandbox.close()
    assert not Path(f"/proc/{zygote}").exists()
    assert "/sys" not in [
        line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if "size=4m" in line
    ]
    assert subprocess.run(["true"]).returncode == 0
