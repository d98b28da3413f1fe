"""Tests of the client: against a live service once, and against servers that misbehave on purpose."""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp")

from reward.client import CannotGrade, RewardClient, RewardServiceError
from reward.protocol import MAX_RESPONSE_BYTES, GradeStatus, ScoreRequest, ScoreResult
from reward.servers import Servers
from tests.reward.fake_server import HANG_UP, FakeServer, Items, fake_servers, graded
from tests.reward.serving import Server

Make = Callable[..., FakeServer]
pytestmark = pytest.mark.medium  # clients wait before they try again


@pytest.fixture
def fakes() -> Iterator[Make]:
    with fake_servers() as make:
        yield make


def ask(number: int = 0, **changes: Any) -> ScoreRequest:
    fields: dict[str, Any] = {"domain": "math", "response": "\\boxed{5}", "task": {"answer": "5"}, **changes}
    return ScoreRequest(request_id=f"r{number}", **fields)


def results(futures: list[Future[ScoreResult]]) -> list[ScoreResult]:
    return [future.result(timeout=120) for future in futures]


def score_with(urls: list[str], *requests: ScoreRequest, **options: Any) -> list[ScoreResult]:
    """Returns the results of requests that are submitted together as soon as all servers are ready."""
    with RewardClient(urls=urls, **options) as client:
        client.wait_until_ready(30)
        return results([client.submit(request) for request in requests])


def overloaded(items: Items) -> tuple[int, Any]:
    return 200, graded(items, status="overloaded", score=None)


def after(
    num_failures: int, failure: Callable[[Items], tuple[int, Any]]
) -> Callable[[Items], tuple[int, Any]]:
    """Returns an answer that fails so often, and then grades."""
    left = iter([True] * num_failures)
    return lambda items: failure(items) if next(left, False) else (200, graded(items))


def test_a_live_service_grades_what_is_submitted_from_many_threads(server: Server) -> None:
    with RewardClient(urls=[server.url]) as client:
        client.wait_until_ready(60, domains=["math", "logic"])

        def submit(number: int) -> Future[ScoreResult]:
            return client.submit(ask(number, response=f"\\boxed{{{5 + number % 2}}}"))

        with ThreadPoolExecutor(4) as threads:
            futures = list(threads.map(submit, range(200)))
        assert [result.score for result in results(futures)] == [1.0, 0.0] * 100
        assert client.submit(ask(domain="poetry")).result(60).status is GradeStatus.invalid_request


# ------------------------------------------------------------------------------------- which server gets a request
def test_requests_are_batched_and_spread_over_all_servers(fakes: Make) -> None:
    def slowly(items: Items) -> tuple[int, Any]:
        time.sleep(0.2)
        return 200, graded(items)

    servers = [fakes(slowly) for _ in range(6)]
    found = score_with([fake.url for fake in servers], *map(ask, range(96)), batch_items=8)
    assert [result.request_id for result in found] == [f"r{n}" for n in range(96)]
    assert {result.score for result in found} == {1.0}
    assert sorted(item["request_id"] for fake in servers for item in fake.asked) == sorted(
        f"r{n}" for n in range(96)
    ), "each was graded once"
    assert max(len(batch) for fake in servers for batch in fake.batches) == 8
    assert min(len(fake.asked) for fake in servers) >= 8


def test_a_request_goes_to_a_server_that_grades_its_domain(fakes: Make) -> None:
    able = fakes(domains={"math": {"ready": True}, "code": {"ready": True}})
    refusing = fakes(domains={"math": {"ready": True}, "code": {"ready": False, "is_refused": True}})
    requests = [ask(number, domain=("math", "code")[number % 2]) for number in range(40)]
    assert {r.score for r in score_with([refusing.url, able.url], *requests, batch_items=4)} == {1.0}
    assert {item["domain"] for item in refusing.asked} == {"math"}


def test_what_one_server_fails_on_another_grades(fakes: Make) -> None:
    bad, worse = (fakes(lambda items: (500, b"broken")) for _ in range(2))
    full, good = fakes(overloaded), fakes()
    found = score_with([bad.url, worse.url, full.url, good.url], *map(ask, range(30)), max_attempts=3)
    assert {result.score for result in found} == {1.0}


def test_a_server_that_is_gone_is_not_asked_any_more_and_its_successor_is_found(
    tmp_path: Path, fakes: Make
) -> None:
    """Requests wait for the successor, which announces itself in the same file; none is lost."""
    first, stays = fakes(), fakes()
    (tmp_path / "a.json").write_text(json.dumps({"url": first.url}))
    with RewardClient(discovery_dir=tmp_path, max_attempts=2) as client:
        client.wait_until_ready(30)
        assert client.submit(ask()).result(30).score == 1
        first.answer = lambda items: (HANG_UP, None)
        first.close()
        waiting = [client.submit(ask(n)) for n in range(1, 9)]
        time.sleep(0.3)
        assert not any(future.done() for future in waiting)
        with pytest.raises(RewardServiceError, match=r"is gone|does not answer"):
            client.wait_until_ready(0.1)
        (tmp_path / "a.json").write_text(json.dumps({"url": stays.url}))
        assert {result.score for result in results(waiting)} == {1.0}
        assert client.num_missing == 0


# ------------------------------------------------------------------------------------- what is not graded
@pytest.mark.parametrize(
    "answer",
    [
        lambda items: (HANG_UP, None),
        lambda items: (404, b"no"),
        lambda items: (500, b"broken"),
        lambda items: (200, b"not json"),
        lambda items: (200, graded(items)[1:]),
        lambda items: (200, graded([*items, items[0]])),
        lambda items: (200, graded(items, request_id="another")),
        lambda items: (200, graded(items, score=None)),
        lambda items: (200, graded(items, score=7)),
        lambda items: (200, graded(items, score=10**400)),
        lambda items: (200, graded(items, score=float("nan"))),
        lambda items: (200, graded(items, status="fine")),
        lambda items: (200, graded(items, status="infra_error", score=0.0)),
        lambda items: (200, graded(items, score="1")),
        lambda items: (200, b'{"items": ' + b"[" * 100_000),
        lambda items: (200, b"null"),
        lambda items: (200, graded(items, version="v2")),
        lambda items: (200, graded(items, status="infra_error", score=None)),
    ],
)
def test_a_failing_server_is_a_missing_verdict_never_a_0(answer: Any, fakes: Make) -> None:
    fake = fakes(answer)
    (result,) = score_with([fake.url], ask(), max_attempts=2, request_timeout_s=5)
    assert (result.status, result.score, result.verdict) == (GradeStatus.infra_error, None, "missing")
    assert result.details["reason"]
    assert len(fake.batches) == 2


@pytest.mark.parametrize(
    "busy", [overloaded, lambda items: (429, b"busy"), lambda items: (503, b"too many connections")]
)
def test_being_busy_uses_up_time_and_no_attempts(busy: Any, fakes: Make) -> None:
    (result,) = score_with([fakes(after(4, busy)).url], ask(), max_attempts=1)
    assert result.score == 1


def test_a_deadline_is_respected_and_sent(fakes: Make) -> None:
    fake = fakes(overloaded)
    begun = time.monotonic()
    (result,) = score_with([fake.url], ask(deadline_ms=400))
    assert result.status is GradeStatus.infra_error
    assert time.monotonic() - begun < 10
    assert all(0 <= item["deadline_ms"] <= 400 for item in fake.asked)


def test_a_request_that_json_cannot_carry_is_invalid_and_costs_its_batch_nothing(fakes: Make) -> None:
    endless: list[object] = []
    endless.append(endless)
    poisons = [float("nan"), float("inf"), object(), b"bytes", endless, 10**5_000, {1, 2}]
    bad = [ask(n, task={"answer": poison}) for n, poison in enumerate(poisons)]
    found = score_with([fakes().url], *bad, *(ask(100 + n, deadline_ms=10**400) for n in range(10)))
    for result in found[: len(bad)]:
        assert (result.status, result.score) == (GradeStatus.invalid_request, None)
        assert "JSON" in result.details["reason"]
    assert {result.score for result in found[len(bad) :]} == {1.0}


def test_a_response_that_is_too_long_is_sent_as_far_as_it_shows_that(fakes: Make) -> None:
    fake = fakes()
    lengths = (MAX_RESPONSE_BYTES, MAX_RESPONSE_BYTES + 1, 3 * MAX_RESPONSE_BYTES)
    score_with([fake.url], *(ask(n, response=" " * length) for n, length in enumerate(lengths)))
    assert [len(item["response"]) for item in fake.asked] == [lengths[0], lengths[1], lengths[1]]


def test_code_that_no_server_can_run_is_given_up_at_once(fakes: Make) -> None:
    fake = fakes(lambda items: (200, graded(items, status="infra_error", score=None, verdict="no_sandbox")))
    (result,) = score_with([fake.url], ask(domain="code"))
    assert (result.status, len(fake.batches)) == (GradeStatus.infra_error, 1)


# ------------------------------------------------------------------------------------- waiting for the service
@pytest.mark.parametrize(
    ("report", "words"),
    [
        ({"protocol": 2}, "speaks version 2 .*this client 1"),
        ({"protocol": "1"}, "speaks version 1 .*this client 1"),
        ({"version": "v2"}, "has v2, others v1|has v1, others v2"),
    ],
)
def test_a_server_of_another_protocol_or_version_is_refused(
    fakes: Make, report: dict[str, Any], words: str
) -> None:
    one, other = fakes(), fakes(**report)
    with RewardClient(urls=[one.url, other.url]) as client, pytest.raises(RewardServiceError, match=words):
        client.wait_until_ready(30)


@pytest.mark.parametrize(
    "report",
    [
        b'"bad gateway"',
        b"null",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"error": {"code": 502}}',
        b'{"protocol": 1, "version": "v1", "workers": 1, "domains": []}',
        b'{"protocol": 1, "version": "v1", "workers": 1, "domains": {"math": 1}}',
        b'{"protocol": 1, "version": "v1", "workers": "many", "domains": {}}',
    ],
)
def test_a_server_may_answer_nonsense_and_come_back(report: bytes, fakes: Make) -> None:
    """A gateway answers in place of a server that restarts."""
    fake = fakes()
    fake.report, well = report, fake.report
    with RewardClient(urls=[fake.url]) as client:
        with pytest.raises(RewardServiceError, match="does not answer"):
            client.wait_until_ready(0.3)
        future = client.submit(ask())
        fake.report = well
        client.wait_until_ready(30)
        assert future.result(30).score == 1


def test_a_service_that_is_not_ready_is_one_clear_sentence(tmp_path: Path, fakes: Make) -> None:
    late = fakes(domains={"math": {"ready": False}, "code": {"ready": False, "is_refused": True}})
    for options, words in (
        ({"urls": ["http://127.0.0.1:9"]}, r"127\.0\.0\.1:9 does not answer"),
        ({"discovery_dir": tmp_path}, "no reward server announced itself"),
        ({"urls": [late.url]}, r"not ready: its known answers are not graded yet \(math\)"),
    ):
        said: list[str] = []
        with RewardClient(**options) as client, pytest.raises(RewardServiceError, match=words):  # type: ignore[arg-type]
            client.wait_until_ready(1.0, said.append)
        assert said
    for mistake in (
        {},
        {"urls": ["http://a"], "discovery_dir": tmp_path},
        {"urls": ["http://a"], "batch_items": 0},
    ):
        with pytest.raises(RewardServiceError):
            RewardClient(**mistake)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("domain", "why"),
    [("code", r"refuses code \(no sandbox\)"), ("music", "does not know the domain music")],
)
def test_a_domain_that_no_ready_server_grades_is_not_waited_for(fakes: Make, domain: str, why: str) -> None:
    refused = {"ready": False, "is_refused": True, "reason": "no sandbox"}
    fake = fakes(domains={"math": {"ready": True}, "code": refused})
    with RewardClient(urls=[fake.url]) as client:
        client.wait_until_ready(30, domains=["math"])
        with pytest.raises(CannotGrade, match=why):
            client.wait_until_ready(3600, domains=["math", domain])


def test_a_server_that_announces_itself_later_is_waited_for_where_the_first_cannot_grade_all(
    tmp_path: Path, fakes: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reward.servers.PERIOD_S", 0.5)
    able = fakes(domains={"math": {"ready": True}, "code": {"ready": True}})
    (tmp_path / "0.json").write_text(json.dumps({"url": fakes().url}))
    (tmp_path / "token").write_text("no server")
    said: list[str] = []

    def announce_the_other(why: str) -> None:
        if "code" in why and not said:
            said.append(why)
            (tmp_path / "1.json").write_text(json.dumps({"url": able.url}))

    with RewardClient(discovery_dir=tmp_path) as client:
        client.wait_until_ready(60, announce_the_other, domains=["code"])
        assert client.domains == {"math", "code"}
    assert said


def test_the_token_travels_in_a_header(tmp_path: Path, fakes: Make) -> None:
    (tmp_path / "token").write_text("secret-secret-secret\n")
    fake = fakes()
    score_with([fake.url], ask(), token_file=tmp_path / "token")
    assert fake.tokens[0] == "Bearer secret-secret-secret"


# ------------------------------------------------------------------------------------- the end
def test_closing_resolves_what_is_open() -> None:
    client = RewardClient(urls=["http://127.0.0.1:9"])
    future = client.submit(ask())
    client.close()
    client.close()
    assert future.result(10).status is GradeStatus.infra_error
    assert client.submit(ask()).result(10).status is GradeStatus.infra_error
    with RewardClient(urls=["http://127.0.0.1:9"]) as unused:
        pass
    assert unused.submit(ask()).result(10).status is GradeStatus.infra_error


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
    for _ in range(2):
        assert client.submit(ask()).result(10).status is GradeStatus.infra_error
    client.close()
