"""The adapters without their trainers (tests/clients has those): labels, responses, failures, forks."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from reward.adapters import trl, verl
from reward.adapters.connection import ServiceConnection, connection
from reward.adapters.trl import label_of, rows_of, text_of
from reward.adapters.verl import StopTraining
from reward.client import RewardServiceError
from reward.protocol import ScoreRequest
from reward.rows import BadLabel
from tests.reward.serving import Server

RIGHT, WRONG = "\\boxed{4}", "\\boxed{5}"


@pytest.fixture
def dead_url() -> Iterator[str]:
    """Returns a URL at which nothing answers."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


# ------------------------------------------------------------------------------------- columns
@pytest.mark.parametrize(
    ("row", "column", "label"),
    [
        ({"answer": "4", "problem": "2+2"}, None, "4"),
        ({"ground_truth": 4, "answer": None}, None, 4),
        ({"domain": "stem", "task": {"answer": "B"}, "answer": "B"}, None, {"domain": "stem", "task": {"answer": "B"}}),
        ({"domain": "stem", "task": '{"answer": "B"}'}, None, {"domain": "stem", "task": {"answer": "B"}}),
        ({"label": {"answer": "4", "inputs": None}}, None, {"answer": "4"}),
        ({"solution": "4", "answer": "5"}, "solution", "4"),
    ],
)  # fmt: skip
def test_the_label_of_a_row(row: dict[str, Any], column: str | None, label: object) -> None:
    assert label_of(row, column) == label


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ({}, None),
        ({"solution": "4"}, None),
        ({"label": "4", "answer": "5"}, None),
        ({"answer": "4"}, "label"),
        ({"domain": "code", "task": "not JSON"}, None),
    ],
)
def test_a_row_without_one_label_is_one_sentence(row: dict[str, Any], column: str | None) -> None:
    with pytest.raises(BadLabel) as caught:
        label_of(row, column)
    assert "\n" not in str(caught.value)


def test_columns_become_rows() -> None:
    columns = {
        "answer": ["1", "2"],
        "trainer_state": object(),
        "short": ["1"],
        "tags": [["a", "b"], ["c", "d"]],
    }
    assert rows_of(columns, 2) == [{"answer": "1", "tags": ["a", "b"]}, {"answer": "2", "tags": ["c", "d"]}]


@dataclass
class Message:
    role: str
    content: str


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        (RIGHT, RIGHT),
        ([{"role": "assistant", "content": RIGHT}], RIGHT),
        ([{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], "ab"),
        ([{"role": "assistant", "content": "first"}, {"role": "tool", "content": WRONG},
          {"role": "assistant", "content": RIGHT}], RIGHT),
        ([{"role": "assistant", "content": None}], ""),
        ([{"role": "user", "content": RIGHT}], ""),
        ([Message("assistant", RIGHT)], RIGHT),
        ([], ""),
    ],
)  # fmt: skip
def test_the_response_of_a_completion(completion: object, text: str) -> None:
    assert text_of(completion) == text


def test_a_completion_of_no_known_form_is_refused() -> None:
    with pytest.raises(TypeError, match="text or a list of messages"):
        text_of(None)


# ------------------------------------------------------------------------------------- connection
@pytest.mark.parametrize(
    ("servers", "patience_s", "words"),
    [
        ("", 1.0, r"URLs .* or one folder"),
        ([], 1.0, r"URLs .* or one folder"),
        (["http://a", "folder"], 1.0, r"URLs .* or one folder"),
        (["folder", "other"], 1.0, r"URLs .* or one folder"),
        ("http://a", 0.0, "patience_s"),
        ("http://a", float("nan"), "patience_s"),
    ],
)
def test_a_connection_that_cannot_be_used_is_one_sentence(
    servers: Any, patience_s: float, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        connection(servers, None, patience_s)


def test_all_threads_of_a_process_share_a_client(dead_url: str) -> None:
    where = connection(dead_url, None, 60)
    with ThreadPoolExecutor(8) as threads:
        clients = list(threads.map(lambda _: where.client(), range(8)))
    assert len(set(map(id, clients))) == 1


def test_a_forked_child_grades_with_a_client_of_its_own(server: Server) -> None:
    function = trl.reward_service(server.url)
    assert function([""], [RIGHT], answer=["4"]) == [1.0]
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = int(function(["", ""], [RIGHT, WRONG], answer=["4", "4"]) != [1.0, 0.0])
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert function([""], [WRONG], answer=["4"]) == [0.0]


def test_time_alone_ends_the_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit holds however quickly the service fails, and however often."""
    made: list[dict[str, Any]] = []
    submitted: list[ScoreRequest] = []

    class Client:
        def __init__(self, **options: Any) -> None:
            made.append(options)

        def submit(self, request: ScoreRequest) -> None:
            submitted.append(request)

        def close(self) -> None:
            pass

    monkeypatch.setattr("reward.adapters.connection.RewardClient", Client)
    request = ScoreRequest(request_id="1", domain="math", response=RIGHT, task={"answer": "4"})
    for patience_s in (0.0001, 30.0):
        connection("http://127.0.0.1:9", None, patience_s).submit(request)
    assert [request.deadline_ms for request in submitted] == [1, 30_000]
    pauses_s = 0.025  # the shortest pause between two attempts
    assert all(options["max_attempts"] * pauses_s > 24 * 3600 for options in made)


# ------------------------------------------------------------------------------------- TRL
def test_trl_gets_a_score_for_each_completion_whatever_its_domain(server: Server) -> None:
    function = trl.reward_service(server.url)
    code = {"inputs": ["1\n"], "outputs": ["2\n"]}
    scores = function(
        prompts=["p"] * 3,
        completions=[
            RIGHT,
            [{"role": "assistant", "content": WRONG}],
            "```python\nprint(int(input()) + 1)\n```",
        ],
        completion_ids=[[1], [2], [3]],
        label=["4", "4", code],
        trainer_state=object(),
        log_extra=print,
    )
    assert scores[:2] == [1.0, 0.0]
    assert scores[2] == (None if server.ready["sandbox"] == "none" else 1.0)


def test_trl_sees_a_name_and_may_pickle_the_function(server: Server) -> None:
    """Its servers are found in a folder."""
    function = pickle.loads(pickle.dumps(trl.reward_service(str(server.ready_file.parent))))
    assert function.__name__ == "reward_service"
    assert function([""], [RIGHT], answer=["4"]) == [1.0]


@pytest.mark.parametrize(
    ("prompt", "given", "column", "score"),
    [
        ("2+2?<think>\n", None, None, 0.0),
        ("2+2?", True, None, 0.0),
        ("2+2?<think>\n", False, None, 1.0),
        ([{"role": "user", "content": "<think>"}], None, None, 1.0),
        ([{"role": "user", "content": "2+2?"}], None, True, 0.0),
    ],
)
def test_trl_does_not_have_a_draft_in_an_open_thought_graded(
    server: Server, prompt: object, given: bool | None, column: bool | None, score: float
) -> None:
    columns = {} if column is None else {"in_thought": [column]}
    function = trl.reward_service(server.url, in_thought=given)
    assert function([prompt], [RIGHT], answer=["4"], **columns) == [score]


def test_trl_is_warned_once_when_the_template_seems_to_open_thoughts(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    trl._warn_of_thoughts.cache_clear()
    function = trl.reward_service(server.url)
    for _ in range(2):
        assert function([[]], [f"hm</think>{RIGHT}"], answer=["4"]) == [1.0]
    assert [record.message for record in caplog.records if "in_thought=True" in record.message].__len__() == 1


def test_trl_gets_none_for_what_was_not_graded(dead_url: str, caplog: pytest.LogCaptureFixture) -> None:
    function = trl.RewardFunction(connection=ServiceConnection(servers=(dead_url,), patience_s=0.5))
    shares: dict[str, float] = {}
    scores = function(["", ""], [RIGHT, WRONG], answer=["4", "4"], log_metric=shares.__setitem__)
    assert scores == [None, None]
    assert shares == {"reward_service/not_graded": 1.0}
    assert "2 of 2 responses were not graded" in caplog.text
    assert dead_url in caplog.text


def test_trl_is_told_at_the_start_that_no_server_answers(dead_url: str) -> None:
    with pytest.raises(RewardServiceError, match="was not ready within"):
        trl.reward_service(dead_url, ready_timeout_s=0.5)


# ------------------------------------------------------------------------------------- verl
@pytest.mark.parametrize("label", ["", [4], {"inputs": ["1"], "outputs": []}])
def test_a_label_that_says_no_task_is_not_a_0_even_where_exceptions_become_zeros(
    label: Any, server: Server
) -> None:
    """The service refuses the last label, the adapters the others."""
    with pytest.raises(BadLabel):
        trl.reward_service(server.url)([""], [RIGHT], answer=[label])
    with pytest.raises(StopTraining, match=r"^[^\n]+$"):
        verl.compute_score_blocking("math", RIGHT, label, servers=server.url)
    with pytest.raises(StopTraining, match=r"^[^\n]+$"):
        asyncio.run(verl.compute_score("math", RIGHT, label, servers=server.url))
    assert not issubclass(StopTraining, Exception)


def test_verl_gets_a_score_for_its_rows(server: Server) -> None:
    """A row may say its domain and that its prompt opens a thought."""

    async def both() -> list[float]:
        answers = [
            verl.compute_score("math_dapo", text, "4", {}, servers=[server.url]) for text in (RIGHT, WRONG)
        ]
        return list(await asyncio.gather(*answers))

    assert asyncio.run(both()) == [1.0, 0.0]
    ask = partial(verl.compute_score_blocking, servers=server.url, reward_model_tokenizer=None)
    assert ask("math_dapo", RIGHT, "4") == 1.0
    assert ask("gpqa", "\\boxed{(B) 5 cm}", "B", {"domain": "stem"}) == 1.0
    assert ask("math", RIGHT, "4", {"in_thought": True}) == ask("math", RIGHT, "4", in_thought=True) == 0.0


def test_verl_stops_when_there_is_no_verdict(dead_url: str) -> None:
    with pytest.raises(StopTraining, match="did not grade a response") as caught:
        asyncio.run(verl.compute_score("math", RIGHT, "4", servers=dead_url, patience_s=0.5))
    assert dead_url in str(caught.value)
    assert "\n" not in str(caught.value)


def test_verl_stops_when_its_own_time_limit_cancels_the_call(dead_url: str) -> None:
    async def as_the_rate_limited_manager() -> float:
        try:
            return await asyncio.wait_for(
                verl.compute_score("math", RIGHT, "4", servers=dead_url), timeout=0.2
            )
        except TimeoutError:
            return 0.0

    with pytest.raises(StopTraining, match=r"reward\.timeout"):
        asyncio.run(as_the_rate_limited_manager())
