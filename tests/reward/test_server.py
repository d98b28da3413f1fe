"""Tests of the service over HTTP: its protocol, its guards, and attacks mixed with honest requests."""

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import threading
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from reward.__main__ import main
from reward.server import write_atomically
from tests.reward.serving import (
    DATA,
    PYTHON,
    ROOT,
    SPENDS_ALL_ITS_TIME,
    Address,
    Server,
    alive,
    boxed,
    children,
    descendants,
    json_lines,
    program,
    request,
    rows,
    wait_until,
)

DOUBLE = {"inputs": [f"{n}\n" for n in range(5)], "outputs": [f"{2 * n}\n" for n in range(5)]}
DOUBLE_FN = {
    "inputs": [f"{n}" for n in range(5)],
    "outputs": [f"{2 * n}" for n in range(5)],
    "fn_name": "double",
}
LOGIC = {"task": "chain_sum", "entry": {"question": "4 + 3", "answer": "7", "metadata": {}}}
RULES = {"instruction_id_list": ["punctuation:no_comma", "startend:quotation"], "kwargs": [{}, {}]}
HONEST = [
    (boxed("\\frac{1}{2}", "0.5"), 1.0),
    (boxed("3", "5"), 0.0),
    (request("stem", "\\boxed{B}", {"answer": "B"}), 1.0),
    (request("code", program("print(2 * int(input()))"), DOUBLE), 1.0),
    (request("code", program("n = int(input())\nprint(2 * n if n else 1)"), DOUBLE), 0.8),
    (request("code", program("def double(n):\n    return 2 * n"), DOUBLE_FN), 1.0),
    (request("logic", "<answer>7</answer>", LOGIC), 1.0),
    (request("instruction", "a, b", RULES), 0.0),
    (request("instruction", "a b", RULES), 0.5),
]


def test_a_batch_answers_in_order_and_item_by_item(server: Server) -> None:
    items = [{**body, "request_id": str(number)} for number, (body, _) in enumerate(HONEST)]
    items.insert(3, {**boxed("5", "5"), "domain": "poetry"})
    results = server.batch(items)
    assert [result["request_id"] for result in results] == [item["request_id"] for item in items]
    assert results.pop(3)["status"] == "invalid_request"
    assert [(result["status"], result["score"]) for result in results] == [
        ("graded", score) for _, score in HONEST
    ]
    assert {result["version"] for result in results} == {server.ready["version"]}


def test_a_response_that_is_too_long_is_a_0_and_not_a_missing_verdict(server: Server) -> None:
    """The policy is responsible for the length. If it were not graded, the policy could bring that about."""
    tasks = {"math": {"answer": "5"}, "logic": LOGIC, "instruction": RULES, "code": DOUBLE}
    long = (" " * (400 * 1024 + 1), "ä" * (200 * 1024 + 1), "\\boxed{5}" * 100_000)
    results = server.batch([request(name, text, task) for name, task in tasks.items() for text in long])
    assert {(result["status"], result["score"], result["verdict"]) for result in results} == {
        ("graded", 0.0, "too_long")
    }
    short = server.batch([request(name, "", task) for name, task in tasks.items()])
    assert "too_long" not in {result["verdict"] for result in short}


def test_whole_numbers_of_any_size_and_odd_text_reach_the_grader_as_they_are(server: Server) -> None:
    task = {"inputs": [[2**70]], "outputs": [2**70 + 1], "fn_name": "successor"}
    for step, score in ((1, 1.0), (2, 0.0)):  # the two are the same float
        response = program(f"def successor(n):\n    return n + {step}")
        assert server.score(request("code", response, task, f"big-{step}"))["score"] == score
    lone_surrogate = (
        b'"request_id": "odd", "domain": "math", "response": "\\\\boxed{\\ud800}", "task": {"answer": "5"}'
    )
    code, _, answer = server.call("/v1/score", b"{" + lone_surrogate + b"}")
    assert (code, json.loads(answer)["score"]) == (200, 0.0)


def test_a_line_that_is_no_request_costs_its_batch_nothing(server: Server) -> None:
    bad = [b"{", b"null", b"\xff", b"NaN", b"[" * 100_000, b'{"items": 5}']
    good = [json.dumps(boxed("4", "4", f"beside-{number}")).encode() for number in range(len(bad))]
    lines = [line for pair in zip(bad, good, strict=True) for line in pair]
    code, _, answer = server.call("/v1/score_batch", b"\n".join(lines))
    results = json.loads(answer)["items"]
    assert code == 200
    assert [(result["status"], result["score"]) for result in results] == [
        ("invalid_request", None),
        ("graded", 1.0),
    ] * len(bad)
    assert {server.call("/v1/score", body)[0] for body in (*bad, {**boxed("5", "5"), "task": {}})} == {400}


def test_a_caller_that_hangs_up_in_mid_request_leaves_no_traceback(server: Server) -> None:
    address = urllib.parse.urlparse(server.url)
    with socket.create_connection((address.hostname or "", address.port or 0)) as connection:
        connection.sendall(b"POST /v1/score HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf a body")
    assert server.score(boxed("5", "5", "after-the-hang-up"))["score"] == 1.0
    assert "Traceback" not in server.log.read_text()


def test_too_large_a_batch_is_refused(server: Server) -> None:
    assert server.call("/v1/score_batch", json_lines([boxed("5", "5")] * 257))[0] == 400
    assert len(server.batch([boxed("5", "5")] * 256)) == 256


def test_health_readiness_and_metrics(server: Server) -> None:
    server.score(boxed("5", "5", "for-metrics"))
    assert server.call("/healthz")[0] == 200
    report = json.loads(server.call("/readyz")[2])
    assert report["version"] == server.ready["version"]
    assert report["sandbox"] == server.ready["sandbox"]
    assert set(server.ready) == {"url", "protocol", "sandbox", "version"}
    assert all(state["ready"] and state["age_s"] <= 30 for state in report["domains"].values())
    text = server.call("/metrics")[2].decode()
    for name in (
        "reward_queue_depth",
        "reward_workers",
        "reward_worker_deaths_total",
        "reward_verdicts_total",
    ):
        assert name in text
    assert 'reward_request_seconds_total{domain="math"} 0.' in text


def test_a_repeated_id_is_answered_from_memory_unless_its_content_differs(server: Server) -> None:
    first = server.score(boxed("5", "5", "same"))
    assert server.score(boxed("5", "5", "same")) == first
    assert server.score(boxed("6", "5", "same"))["score"] == 0.0
    draft = request("math", "\\boxed{5}", {"answer": "5"}, "draft")
    scores = [server.score({**draft, "in_thought": flag})["score"] for flag in (False, True, False)]
    assert scores == [1.0, 0.0, 1.0], "what is a draft in a thought is another content"


def test_a_deadline_that_has_passed_is_429(server: Server) -> None:
    slow = request("code", program("while True: pass"), {**DOUBLE, "cpu_s": 0.5})
    with ThreadPoolExecutor(1) as other:
        # One for each worker.
        busy = other.submit(server.batch, [{**slow, "request_id": f"slow-{n}"} for n in range(4)])
        time.sleep(0.2)
        late = {**request("code", program("print(1)"), DOUBLE, "late"), "deadline_ms": 1}
        code, headers, answer = server.call("/v1/score", late)
        assert {result["verdict"] for result in busy.result()} == {"timeout"}
    assert (code, headers["retry-after"], json.loads(answer)["score"]) == (429, "1", None)


@pytest.mark.medium
def test_half_sent_requests_leave_the_others_alone() -> None:
    """2,000 of them, although a process may usually have 1,024 files open before it asks for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip(f"this machine allows {hard} open files per process")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        server = Server("--workers", "1")
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, hard))
        address = urllib.parse.urlsplit(server.url)
        with contextlib.ExitStack() as held:
            for number in range(2000):
                connection = socket.create_connection((address.hostname, address.port), timeout=60)
                held.enter_context(connection)
                head = b"POST /v1/score HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{"
                connection.sendall(head[: number % len(head)])
            assert server.score(boxed("4", "4"))["score"] == 1.0
        assert server.stop() == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
def test_hostile_submissions_mixed_with_honest_ones(server: Server) -> None:
    if server.ready["sandbox"] == "none":
        pytest.skip("this machine has no sandbox")
    hostile = []
    for row in rows("hostile.jsonl"):
        task: dict[str, object] = DOUBLE_FN if row["mode"] == "fn" else DOUBLE
        if row["name"] in SPENDS_ALL_ITS_TIME:
            task = {**task, "cpu_s": 1.0}
        hostile.append((request("code", program(row["source"]), task, row["name"]), row))
    wrong: list[object] = []
    stop = threading.Event()

    def honest(thread: int) -> int:
        done = 0
        while not stop.is_set():
            body, score = HONEST[done % len(HONEST)]
            result = server.score({**body, "request_id": f"mixed-{thread}-{done}"})
            if result["score"] != score:
                wrong.append(result)
            done += 1
        return done

    def attack(item: tuple[dict[str, object], dict[str, str]]) -> None:
        result = server.score(item[0])
        expected = {"0": 0.0, "1": 1.0, "frac": 0.8, "any": result["score"]}[item[1]["reward"]]
        if result["status"] != "graded" or result["score"] != expected:
            wrong.append((item[1]["name"], result))

    cores = os.cpu_count() or 2
    with ThreadPoolExecutor(2) as honest_threads, ThreadPoolExecutor(2 * cores) as attackers:
        running = [honest_threads.submit(honest, number) for number in range(2)]
        try:
            list(attackers.map(attack, hostile))
        finally:
            stop.set()
        assert all(future.result() > 0 for future in running)
    assert wrong == []
    assert "s3cr3t-token" not in server.log.read_text()


def test_a_server_that_ends_with_its_parent_leaves_signals_to_a_group_to_it(tmp_path: Path) -> None:
    """A batch system sends SIGTERM, and a terminal SIGINT, to every process: the parent has still to save."""
    ready = tmp_path / "ready.json"
    script = (
        "import os, subprocess, time\n"
        f"subprocess.Popen([{PYTHON!r}, '-m', 'reward', 'serve', '--workers', '1', '--exit-with-parent',"
        f" str(os.getpid()), '--ready-file', {str(ready)!r}], stdout=subprocess.DEVNULL)\ntime.sleep(600)\n"
    )
    parent = subprocess.Popen([PYTHON, "-c", script], cwd=ROOT)
    try:
        assert wait_until(ready.exists, 180)
        (server,) = children(parent.pid)
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(server, number)
        time.sleep(1.0)
        assert Address(json.loads(ready.read_text())["url"]).score(boxed("4", "4"))["score"] == 1.0
        below = descendants(parent.pid)
    finally:
        parent.kill()
        parent.wait()
    assert server in below
    assert wait_until(lambda: not alive(below))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["serve", "--host", "0.0.0.0"], "--token-file"),
        (["serve", "--token-file", "/no/such/file"], "cannot be read"),
        (["serve", "--token-file", str(DATA / "hostile.jsonl")], "chmod 600"),
        (["serve", "--host", "203.0.113.7", "--token-file", "TOKEN"], "cannot serve"),
        (["serve", "--workers", "-1"], "--workers"),
        (["serve", "--exit-with-parent", "4194305"], "process 4194305"),  # beyond the largest process id
        (["score", "/no/such/file"], "cannot be read"),
        (["explain", "EMPTY"], "no request"),
    ],
)
def test_a_users_mistake_is_one_sentence(
    arguments: list[str],
    word: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Said before the sandbox is tried, which takes seconds."""
    monkeypatch.setattr("reward.sandbox.probe.strongest", None)
    token = tmp_path / "TOKEN"
    token.write_text("x" * 32)
    token.chmod(0o600)
    (tmp_path / "EMPTY").write_text("\n")
    arguments = [str(tmp_path / word) if word in ("TOKEN", "EMPTY") else word for word in arguments]
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert word in said
    assert said.count("\n") == 1


def test_score_and_explain(tmp_path: Path) -> None:
    requests = tmp_path / "requests.jsonl"
    requests.write_text("".join(json.dumps(body) + "\n" for body, _ in HONEST))
    results = tmp_path / "results.jsonl"
    both = [
        subprocess.Popen(
            [PYTHON, "-m", "reward", *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for arguments in (
            ["score", str(requests), "--output", str(results)],
            ["explain", str(requests), "--line", "2"],
        )
    ]
    (_, summary), (explanation, mistakes) = (process.communicate(timeout=300) for process in both)
    assert [process.returncode for process in both] == [0, 0], summary + mistakes
    scores = [json.loads(line)["score"] for line in results.read_text().splitlines()]
    assert scores == [score for _, score in HONEST]
    assert "math" in summary
    for words in ("extracted  (last box) 3", "compared   5", "score      0", "wrong"):
        assert words in explanation


def test_whoever_may_read_the_folder_may_read_where_the_service_is(tmp_path: Path) -> None:
    write_atomically(tmp_path / "ready.json", "old")
    write_atomically(tmp_path / "ready.json", "new")
    (tmp_path / "other").touch()
    assert (tmp_path / "ready.json").read_text() == "new"
    assert (tmp_path / "ready.json").stat().st_mode == (tmp_path / "other").stat().st_mode
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.slow
def test_soak_leaves_processes_descriptors_and_memory_flat(server: Server) -> None:
    soak(server, 1_000)  # caches fill, lazy imports happen
    before = server.footprint()
    soak(server, 9_000)
    after = server.footprint()
    assert abs(after[0] - before[0]) <= 2, "processes"
    assert after[1] - before[1] <= 16, "descriptors"
    assert after[2] - before[2] <= 150 << 10, "KiB of memory"


def soak(server: Server, count: int) -> None:
    cheap = [item for item in HONEST if item[0]["domain"] != "code"]
    for start in range(0, count, 200):
        chosen = [(HONEST if n % 20 == 0 else cheap)[n % (9 if n % 20 == 0 else 6)] for n in range(200)]
        items = [{**body, "request_id": f"{count}-{start}-{n}"} for n, (body, _) in enumerate(chosen)]
        assert [result["score"] for result in server.batch(items)] == [score for _, score in chosen]
