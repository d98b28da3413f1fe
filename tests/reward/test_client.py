"""Tests of the client, in either environment: against a live service, and against servers that misbehave on purpose."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp")

from reward.client import CannotGrade, RewardClient, RewardServiceError
from reward.discovery import Servers
from reward.protocol import MAX_RESPONSE_BYTES, PROTOCOL_VERSION, GradeStatus, ScoreRequest, ScoreResult
from tests.background import serve_in_background
from tests.reward.serving import ROOT, Server

Answer = Callable[[list[dict[str, Any]]], tuple[int, Any]]


pytestmark = pytest.mark.medium  # clients wait before they try again


def ask(number: int = 0, **changes: Any) -> ScoreRequest:
    fields: dict[str, Any] = {
        "request_id": f"r{number}",
        "domain": "math",
        "response": "\\boxed{5}",
        "task": {"answer": "5"},
    }
    return ScoreRequest(**{**fields, **changes})


def graded(items: list[dict[str, Any]], version: str = "v1") -> list[dict[str, Any]]:
    return [
        {
            "request_id": i["request_id"],
            "status": "graded",
            "score": 1.0,
            "verdict": "v",
            "details": {},
            "version": version,
        }
        for i in items
    ]


class Fake:
    """A server that gives scripted answers and counts requests."""

    def __init__(self, answer: Answer, version: str = "v1", **report: Any) -> None:
        self.report: bytes | None = None
        """The body of /readyz; None: a report that the server is ready."""
        self.batches: list[list[dict[str, Any]]] = []
        self.headers: list[str] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                fake.headers.append(self.headers.get("Authorization", ""))
                domains = {"math": {"ready": True}, "code": {"ready": False}}
                if fake.report is not None:
                    self.reply(502, fake.report)
                    return
                self.reply(
                    200,
                    {
                        "ready": True,
                        "protocol": PROTOCOL_VERSION,
                        "version": version,
                        "workers": 2,
                        "sandbox": "none",
                        "domains": domains,
                        **report,
                    },
                )

            def do_POST(self) -> None:
                lines = self.rfile.read(int(self.headers["Content-Length"])).splitlines()
                items = [json.loads(line) for line in lines]
                fake.batches.append(items)
                status, body = answer(items)
                if status == 0:  # hang up
                    self.close_connection = True
                    self.connection.close()
                    return
                self.reply(status, body if isinstance(body, bytes | str) else {"items": body})

            def reply(self, status: int, body: Any) -> None:
                text = body if isinstance(body, bytes | str) else json.dumps(body)
                data = text.encode() if isinstance(text, str) else text
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        serve_in_background(self.server)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def fakes() -> Iterator[Callable[..., Fake]]:
    made: list[Fake] = []

    def make(answer: Answer, version: str = "v1", **report: Any) -> Fake:
        made.append(Fake(answer, version, **report))
        return made[-1]

    yield make
    for fake in made:
        fake.close()


def report(**domains: dict[str, Any]) -> bytes:
    """Returns the body of /readyz of a server that is not ready."""
    fields = {"ready": False, "protocol": PROTOCOL_VERSION, "version": "v1", "workers": 2, "sandbox": "none"}
    return json.dumps({**fields, "domains": domains}).encode()


def results(futures: list[Future[ScoreResult]]) -> list[ScoreResult]:
    return [future.result(timeout=120) for future in futures]


def test_a_live_service_grades_what_is_submitted_from_many_threads(server: Server) -> None:
    with RewardClient(urls=[server.url], domains=["math", "logic"]) as client:
        client.wait_until_ready(60)
        futures: list[Future[ScoreResult]] = []

        def submit(offset: int) -> None:
            for number in range(offset, offset + 50):
                futures.append(client.submit(ask(number, response=f"\\boxed{{{5 + number % 2}}}")))

        threads = [threading.Thread(target=submit, args=(50 * n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in results(futures):
            assert result.status is GradeStatus.graded
            assert result.score == (1.0 if int(result.request_id[1:]) % 2 == 0 else 0.0)
        assert client.submit(ask(domain="poetry")).result(60).status is GradeStatus.invalid_request


def test_results_are_batched_and_spread(fakes: Callable[..., Fake]) -> None:
    def slowly(items: list[dict[str, Any]]) -> tuple[int, Any]:
        time.sleep(0.2)
        return 200, graded(items)

    one, two = fakes(slowly), fakes(slowly)
    with RewardClient(urls=[one.url, two.url], batch_items=8) as client:
        client.wait_until_ready(30)
        assert all(result.score == 1 for result in results([client.submit(ask(n)) for n in range(64)]))
    assert all(1 <= len(batch) <= 8 for fake in (one, two) for batch in fake.batches)
    assert min(sum(map(len, fake.batches)) for fake in (one, two)) >= 16
    assert max(len(batch) for fake in (one, two) for batch in fake.batches) > 1


@pytest.mark.parametrize(
    "answer",
    [
        lambda items: (0, None),
        lambda items: (500, "broken"),
        lambda items: (200, "not json"),
        lambda items: (200, graded(items)[1:]),
        lambda items: (200, [{**item, "request_id": "another"} for item in graded(items)]),
        lambda items: (200, [{**item, "score": None} for item in graded(items)]),
        lambda items: (200, [{**item, "score": 7} for item in graded(items)]),
        lambda items: (200, [{**item, "score": 10**400} for item in graded(items)]),
        lambda items: (200, [{**item, "score": "1"} for item in graded(items)]),
        lambda items: (200, b'{"items": ' + b"[" * 100_000),
        lambda items: (200, b'"bad gateway"'),
        lambda items: (200, b"null"),
        lambda items: (200, [{**item, "version": "v2"} for item in graded(items)]),
        lambda items: (200, [{**item, "status": "infra_error", "score": None} for item in graded(items)]),
    ],
)
def test_a_failing_server_is_a_missing_verdict_never_a_0(answer: Answer, fakes: Callable[..., Fake]) -> None:
    with RewardClient(urls=[fakes(answer).url], max_attempts=2, request_timeout_s=5) as client:
        client.wait_until_ready(30)
        result = client.submit(ask()).result(60)
    assert (result.status, result.score, result.verdict) == (GradeStatus.infra_error, None, "missing")
    assert result.details["reason"]


def test_what_one_server_fails_on_another_grades(fakes: Callable[..., Fake]) -> None:
    bad = fakes(lambda items: (500, "broken"))
    full = fakes(lambda items: (200, [{**i, "status": "overloaded", "score": None} for i in graded(items)]))
    good = fakes(lambda items: (200, graded(items)))
    with RewardClient(urls=[bad.url, full.url, good.url]) as client:
        client.wait_until_ready(30)
        assert all(result.score == 1 for result in results([client.submit(ask(n)) for n in range(30)]))


def test_being_overloaded_uses_up_time_not_attempts(fakes: Callable[..., Fake]) -> None:
    answers = iter([False] * 4 + [True] * 100)

    def busy_at_first(items: list[dict[str, Any]]) -> tuple[int, Any]:
        if next(answers):
            return 200, graded(items)
        return 200, [{**item, "status": "overloaded", "score": None} for item in graded(items)]

    with RewardClient(urls=[fakes(busy_at_first).url], max_attempts=2) as client:
        client.wait_until_ready(30)
        assert client.submit(ask()).result(60).score == 1


@pytest.mark.parametrize("status", [429, 503])
def test_a_whole_batch_turned_away_uses_up_no_attempts(status: int, fakes: Callable[..., Fake]) -> None:
    answers = iter([False] * 4 + [True] * 100)
    fake = fakes(lambda items: (200, graded(items)) if next(answers) else (status, "too many connections"))
    with RewardClient(urls=[fake.url], max_attempts=2) as client:
        client.wait_until_ready(30)
        assert client.submit(ask()).result(60).score == 1


def test_a_request_that_json_cannot_carry_is_invalid_and_costs_its_batch_nothing(
    fakes: Callable[..., Fake],
) -> None:
    endless: list[object] = []
    endless.append(endless)
    poisons = [float("nan"), float("inf"), object(), b"bytes", endless, 10**5_000, {1, 2}]
    with RewardClient(urls=[fakes(lambda items: (200, graded(items))).url]) as client:
        client.wait_until_ready(30)
        bad = [client.submit(ask(n, task={"answer": poison})) for n, poison in enumerate(poisons)]
        good = [client.submit(ask(100 + n, deadline_ms=10**400)) for n in range(10)]
        for result in results(bad):
            assert (result.status, result.score) == (GradeStatus.invalid_request, None)
            assert "JSON" in result.details["reason"]
        assert all(result.score == 1 for result in results(good))


def test_a_deadline_is_respected_and_sent(fakes: Callable[..., Fake]) -> None:
    fake = fakes(lambda items: (200, [{**i, "status": "overloaded", "score": None} for i in graded(items)]))
    with RewardClient(urls=[fake.url]) as client:
        client.wait_until_ready(30)
        result = client.submit(ask(deadline_ms=400)).result(30)
    assert result.status is GradeStatus.infra_error
    assert all(0 <= item["deadline_ms"] <= 400 for batch in fake.batches for item in batch)


@pytest.mark.parametrize(
    ("protocol", "spoken"),
    [(0, "version 0"), (2, "version 2"), ("1", "version 1"), (True, "version True"), (None, "no numbered version")],
)  # fmt: skip
def test_a_server_of_another_protocol_is_refused(
    fakes: Callable[..., Fake], protocol: object, spoken: str
) -> None:
    """A server without a version number is refused too: it would ignore task fields that change the score."""
    fake = fakes(lambda items: (200, graded(items)), protocol=protocol)
    with (
        RewardClient(urls=[fake.url]) as client,
        pytest.raises(RewardServiceError, match=f"speaks {spoken} .*this client 1"),
    ):
        client.wait_until_ready(30)
    assert fake.batches == []


@pytest.mark.parametrize(
    "answer",
    [
        b'"bad gateway"',
        b"null",
        b"[]",
        b"5",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"error": {"code": 502}}',
        b'{"protocol": 1, "ready": true, "version": "v1", "sandbox": "none", "workers": 1, "domains": []}',
        b'{"protocol": 1, "ready": true, "version": "v1", "sandbox": "none", "workers": 1, "domains": {"math": 1}}',
        b'{"protocol": 1, "ready": true, "version": "v1", "sandbox": "none", "workers": "2", "domains": {}}',
    ],
)
def test_a_server_may_answer_nonsense_and_come_back(answer: bytes, fakes: Callable[..., Fake]) -> None:
    """A gateway answers in place of a server that restarts."""
    fake = fakes(lambda items: (200, graded(items)))
    fake.report = answer
    with RewardClient(urls=[fake.url]) as client:
        with pytest.raises(RewardServiceError, match="does not answer"):
            client.wait_until_ready(0.3)
        future = client.submit(ask())
        fake.report = None
        client.wait_until_ready(30)
        assert future.result(30).score == 1


def test_a_response_that_is_too_long_is_sent_as_far_as_it_shows_that(fakes: Callable[..., Fake]) -> None:
    fake = fakes(lambda items: (200, graded(items)))
    with RewardClient(urls=[fake.url]) as client:
        client.wait_until_ready(30)
        for length in (MAX_RESPONSE_BYTES, MAX_RESPONSE_BYTES + 1, 3 * MAX_RESPONSE_BYTES):
            assert client.submit(ask(response=" " * length)).result(60).score == 1
    lengths = [len(item["response"]) for batch in fake.batches for item in batch]
    assert lengths == [MAX_RESPONSE_BYTES, MAX_RESPONSE_BYTES + 1, MAX_RESPONSE_BYTES + 1]


def test_code_that_no_server_can_run_is_given_up_at_once(fakes: Callable[..., Fake]) -> None:
    refusal = {"status": "infra_error", "score": None, "verdict": "no_sandbox"}
    fake = fakes(lambda items: (200, [{**item, **refusal} for item in graded(items)]))
    with RewardClient(urls=[fake.url]) as client:
        client.wait_until_ready(30)
        result = client.submit(ask()).result(60)
    assert (result.status, len(fake.batches)) == (GradeStatus.infra_error, 1)
    assert "no server has a sandbox" in result.details["reason"]


def test_servers_of_different_versions_are_refused(fakes: Callable[..., Fake]) -> None:
    one, two = (
        fakes(lambda items: (200, graded(items))),
        fakes(lambda items: (200, graded(items, "v2")), "v2"),
    )
    with (
        RewardClient(urls=[one.url, two.url]) as client,
        pytest.raises(RewardServiceError, match="differ in version"),
    ):
        client.wait_until_ready(30)


def test_nobody_there_is_one_clear_sentence(tmp_path: Path, fakes: Callable[..., Fake]) -> None:
    with (
        RewardClient(urls=["http://127.0.0.1:9"]) as client,
        pytest.raises(RewardServiceError, match=r"127\.0\.0\.1:9 does not"),
    ):
        client.wait_until_ready(0.5)
    with (
        RewardClient(discovery_dir=tmp_path) as client,
        pytest.raises(RewardServiceError, match="announced itself"),
    ):
        client.wait_until_ready(0.5)
    fake = fakes(lambda items: (200, graded(items)), sandbox="landlock")
    with (
        RewardClient(urls=[fake.url], domains=["code"]) as client,
        pytest.raises(RewardServiceError, match=r"not ready: its known answers are not graded yet \(code\)"),
    ):
        client.wait_until_ready(3)  # long enough to reach it
    for arguments in (
        {},
        {"urls": ["http://a"], "discovery_dir": tmp_path},
        {"urls": ["http://a"], "batch_items": 0},
    ):
        with pytest.raises(RewardServiceError):
            RewardClient(**arguments)  # type: ignore[arg-type]


BROKEN = {"ready": False, "age_s": None, "is_broken": True, "reason": "no module named antlr4"}


@pytest.mark.parametrize(
    ("domain", "state", "why"),
    [
        ("code", {"ready": False, "reason": "no sandbox"}, r"refuses code \(no sandbox\)"),
        ("music", None, "does not know"),
        ("code", BROKEN, r"cannot grade code \(no module named antlr4\)"),
        ("math", BROKEN, r"cannot grade code \(no module named antlr4\)"),
    ],
)
def test_servers_that_will_never_grade_a_domain_are_not_waited_for(
    tmp_path: Path,
    fakes: Callable[..., Fake],
    monkeypatch: pytest.MonkeyPatch,
    domain: str,
    state: dict[str, Any] | None,
    why: str,
) -> None:
    """Nor one that lacks a module for a domain that nobody asks for: no service without one of its domains is ready."""
    monkeypatch.setattr("reward.client.STRAGGLERS_S", 0.5)
    fake = fakes(
        lambda items: (200, graded(items)),
        ready=False,
        domains={"math": {"ready": True}, **({"code": state} if state else {})},
    )
    with (
        RewardClient(urls=[fake.url], domains=["math", domain]) as client,
        pytest.raises(CannotGrade, match=why),
    ):
        client.wait_until_ready(3600)
    (tmp_path / "node.json").write_text(json.dumps({"url": fake.url}))
    with (
        RewardClient(discovery_dir=tmp_path, domains=["math", domain]) as client,
        pytest.raises(CannotGrade, match=why),
    ):
        client.wait_until_ready(3600)


def test_a_broken_server_that_announces_itself_first_ends_no_run(
    tmp_path: Path, fakes: Callable[..., Fake]
) -> None:
    broken = fakes(lambda items: (200, graded(items)), ready=False, domains={"math": BROKEN})
    able = fakes(lambda items: (200, graded(items)))
    (tmp_path / "0.json").write_text(json.dumps({"url": broken.url}))
    said: list[str] = []

    def announce_the_other(why: str) -> None:
        if "antlr4" in why and not said:
            said.append(why)
            threading.Timer(1.0, (tmp_path / "1.json").write_text, [json.dumps({"url": able.url})]).start()

    with RewardClient(discovery_dir=tmp_path, domains=["math"]) as client:
        client.wait_until_ready(60, announce_the_other)
        assert client.submit(ask()).result(60).score == 1
    assert said == ["cannot grade math (no module named antlr4)"]
    assert broken.batches == []


def test_a_broken_server_among_given_ones_is_left_out_and_a_late_one_waited_for(
    fakes: Callable[..., Fake], caplog: pytest.LogCaptureFixture
) -> None:
    able, broken, late = (fakes(lambda items: (200, graded(items))) for _ in range(3))
    able.report, broken.report, late.report = (
        None,
        report(math=BROKEN),
        report(math={"ready": False, "age_s": 1.0}),
    )
    said: list[str] = []

    def make_ready(why: str) -> None:
        said.append(why)
        if "not graded yet (math)" in why:
            late.report = None

    with RewardClient(urls=[able.url, broken.url, late.url], domains=["math"]) as client:
        client.wait_until_ready(60, make_ready)
        assert late.report is None
        assert client.submit(ask()).result(60).score == 1
    assert broken.batches == []
    assert f"{broken.url} is not used: it cannot grade math (no module named antlr4)" in caplog.text


def test_one_server_that_grades_everything_is_enough(tmp_path: Path, fakes: Callable[..., Fake]) -> None:
    lacking = fakes(lambda items: (200, graded(items)))
    able = fakes(lambda items: (200, graded(items)), sandbox="namespaces", domains={"code": {"ready": True}})
    for number, fake in enumerate((lacking, able)):
        (tmp_path / f"{number}.json").write_text(json.dumps({"url": fake.url}))
    with RewardClient(discovery_dir=tmp_path, domains=["code"]) as client:
        client.wait_until_ready(60)
        assert client.submit(ask()).result(60).score == 1
    assert lacking.batches == []


def test_a_discovered_server_joins_and_nonsense_files_do_not_matter(
    tmp_path: Path, fakes: Callable[..., Fake]
) -> None:
    (tmp_path / "broken.json").write_text("{")
    with RewardClient(discovery_dir=tmp_path) as client:
        future = client.submit(ask())
        fake = fakes(lambda items: (200, graded(items)))
        (tmp_path / "node.json").write_text(json.dumps({"url": fake.url}))
        client.wait_until_ready(30)
        assert future.result(30).score == 1


def test_the_token_travels_in_a_header(tmp_path: Path, fakes: Callable[..., Fake]) -> None:
    token = tmp_path / "token"
    token.write_text("secret-secret-secret\n")
    fake = fakes(lambda items: (200, graded(items)))
    with RewardClient(urls=[fake.url], token_file=token) as client:
        client.wait_until_ready(30)
    assert fake.headers[0] == "Bearer secret-secret-secret"


def test_closing_resolves_what_is_open(fakes: Callable[..., Fake]) -> None:
    client = RewardClient(urls=["http://127.0.0.1:9"])
    future = client.submit(ask())
    client.close()
    assert future.result(10).status is GradeStatus.infra_error
    assert client.submit(ask()).result(10).status is GradeStatus.infra_error


def test_a_request_that_a_closing_loop_never_takes_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    client = RewardClient(urls=["http://127.0.0.1:9"])
    with monkeypatch.context() as patched:
        patched.setattr(client._loop, "call_soon_threadsafe", lambda *args: None)
        future = client.submit(ask())
    client.close()
    assert future.result(10).status is GradeStatus.infra_error


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_client_whose_thread_has_a_fault_can_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def watch(*_: object) -> None:
        raise AssertionError("a fault")

    monkeypatch.setattr(Servers, "watch", watch)
    client = RewardClient(urls=["http://127.0.0.1:9"])
    client._thread.join(10)
    assert client.submit(ask()).result(10).status is GradeStatus.infra_error
    client.close()


def test_importing_the_client_is_light() -> None:
    program = (
        "import sys, reward.client;"
        "heavy = {'numpy', 'torch', 'sympy', 'fastapi', 'uvicorn', 'reasoning_gym'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
