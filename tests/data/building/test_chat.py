"""Tests of requests to a chat endpoint over real HTTP: order, rate limits, retries, and that no question is asked
twice."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.config import DataBuildConfig
from nemo_prorl.data.building.chat import EndpointFailed, ask_all
from tests.data.building.chat_server import ChatServer, Failure, chat_server


def ask(server: ChatServer, cache: Path, questions: list[str], **options: Any) -> list[str | None]:
    settings = DataBuildConfig(endpoint=server.url, model="judge", **options)
    return ask_all(questions, settings, cache / "replies.sqlite", "asking")


def test_replies_come_in_the_order_of_the_questions(tmp_path: Path) -> None:
    def slow_when_early(question: str, before: int) -> str:
        time.sleep(0.05 if question < "5" else 0.0)
        return f"reply {question}"

    questions = [str(i) for i in range(10)]
    with chat_server(slow_when_early) as server:
        assert ask(server, tmp_path, questions, concurrency=4) == [f"reply {q}" for q in questions]
        assert server.most_at_once <= 4
        assert {body["model"] for body in server.bodies} == {"judge"}
        assert {body["temperature"] for body in server.bodies} == {0.0}


def test_nothing_is_asked_twice_though_the_build_is_started_again(tmp_path: Path) -> None:
    with chat_server(lambda question, _: question.upper()) as server:
        ask(server, tmp_path, ["a", "b"])
        assert ask(server, tmp_path, ["a", "b", "c"]) == ["A", "B", "C"]
        assert server.asked == {"a": 1, "b": 1, "c": 1}
        ask(server, tmp_path, ["a"], max_reply_tokens=7)  # another request, so another reply
        assert server.asked["a"] == 2


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_endpoint_is_asked_again(tmp_path: Path, status: int) -> None:
    with chat_server(lambda question, before: Failure(status, 0.01) if before < 2 else "yes") as server:
        assert ask(server, tmp_path, ["a", "b"]) == ["yes", "yes"]
        assert server.asked == {"a": 3, "b": 3}


def test_an_endpoint_that_goes_on_failing_ends_the_build_and_keeps_what_was_answered(tmp_path: Path) -> None:
    broken = True

    def script(question: str, before: int) -> str | Failure:
        return Failure(500, 0.01) if broken and question == "b" else question.upper()

    with chat_server(script) as server:
        with pytest.raises(EndpointFailed, match="answered 500"):
            ask(server, tmp_path, ["a", "b"], max_retries=1, concurrency=1)
        assert server.asked == {"a": 1, "b": 2}
        broken = False
        assert ask(server, tmp_path, ["a", "b"]) == ["A", "B"]
        assert server.asked["a"] == 1


@pytest.mark.parametrize("status", [401, 404])
def test_a_wrong_key_or_model_is_not_tried_again(tmp_path: Path, status: int) -> None:
    with chat_server(lambda *_: Failure(status)) as server:
        with pytest.raises(EndpointFailed, match=str(status)):
            ask(server, tmp_path, ["a"], max_retries=5)
        assert server.asked["a"] == 1


def test_a_refused_question_has_no_reply_and_is_asked_again_next_time(tmp_path: Path) -> None:
    with chat_server(lambda question, _: Failure(400) if question == "b" else "fine") as server:
        assert ask(server, tmp_path, ["a", "b", "c"]) == ["fine", None, "fine"]
        assert ask(server, tmp_path, ["b"]) == [None]
        assert server.asked == {"a": 1, "b": 2, "c": 1}


def test_an_endpoint_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with chat_server(lambda *_: "x") as server:
        pass
    with pytest.raises(EndpointFailed, match="cannot be reached") as caught:
        ask(server, tmp_path, ["a"], max_retries=0)
    assert "\n" not in str(caught.value)
