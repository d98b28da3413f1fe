"""OpenRLHF's, slime's and NeMo Gym's protocols over HTTP: rewards, thoughts, end tokens, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("fastapi")

from tests.reward.serving import Server, program

R1_PROMPT = "<｜User｜>2 + 2?<｜Assistant｜><think>\n"
TESTS = {"inputs": ["1\n", "3\n"], "outputs": ["2\n", "6\n"]}
PUZZLE = {"task": "chain_sum", "entry": {"question": "4 + 3 =", "answer": "7", "metadata": {}}}
QUOTED = {"instruction_id_list": ["startend:quotation"], "kwargs": [{}]}


def slime(server: Server, response: Any, label: Any, prompt: Any = "2 + 2?", query: str = "") -> Any:
    status, _, body = server.call("/slime" + query, {"prompt": prompt, "response": response, "label": label})
    assert status == 200, body
    return json.loads(body)


def openrlhf(server: Server, *samples: tuple[str, str, Any], query: str = "") -> tuple[int, Any]:
    queries, prompts, labels = ([sample[n] for sample in samples] for n in range(3))
    body = {"query": queries, "prompts": prompts, "labels": labels}
    status, _, answer = server.call("/openrlhf" + query, body)
    return status, json.loads(answer)


LABELLED = [
    ("so \\boxed{4}", "4", 1.0),
    ("so \\boxed{5}", "4", 0.0),
    ("so \\boxed{4}", 4, 1.0),
    ("\\boxed{4}" + " " * 400 * 1024 + ".", "4", 0.0),
    (program("print(2 * int(input()))"), json.dumps(TESTS), 1.0),
    (program("print(2)"), TESTS, 0.5),
    ("<answer>7</answer>", json.dumps(PUZZLE), 1.0),
    ('"said"<|im_end|>\n', QUOTED, 1.0),
    ("\\boxed{B}", {"domain": "stem", "answer": "B"}, 1.0),
]


@pytest.mark.parametrize(("response", "label", "reward"), LABELLED)
def test_slime_gets_a_number(server: Server, response: str, label: Any, reward: float) -> None:
    assert slime(server, response, label) == reward


def test_openrlhf_gets_a_list_in_order(server: Server) -> None:
    samples = [("Q:" + response, "Q:", label) for response, label, _ in LABELLED]
    wanted = [reward for _, _, reward in LABELLED]
    status, answer = openrlhf(server, *samples)
    assert (status, answer) == (200, {"rewards": wanted, "scores": wanted, "extra_logs": {}})
    assert openrlhf(server) == (200, {"rewards": [], "scores": [], "extra_logs": {}})


def test_openrlhf_grades_what_follows_the_prompt(server: Server) -> None:
    prompt = "Write \\boxed{4} if you know it." + "?" * 500 + "<|assistant|>\n"
    cut = prompt[-450:]  # OpenRLHF cuts prompts that are too long on the left
    status, answer = openrlhf(
        server,
        (prompt + "I do not", prompt, "4"),
        (cut + "I do not", prompt, "4"),
        (cut + "\\boxed{4}<|im_end|><|endoftext|>", prompt, "4"),
        ("<s> " + prompt + "\\boxed{4}</s>", prompt, "4"),
        ("\\boxed{4}", "", "4"),
    )
    assert (status, answer["rewards"]) == (200, [0.0, 0.0, 1.0, 1.0, 1.0])
    periodic = "Answer in \\boxed{4}. " * 60
    status, answer = openrlhf(server, (periodic[-500:] + "so 4", periodic, "4"))
    assert (status, answer["rewards"]) == (200, [0.0])
    status, answer = openrlhf(server, ("\\boxed{4}", prompt, "4"))
    assert status == 400
    assert "prompt" in answer["detail"]


@pytest.mark.parametrize(
    ("prompt", "query", "reward"),
    [
        ("2 + 2?", "", 1.0),
        (R1_PROMPT, "", 0.0),
        (R1_PROMPT, "?in_thought=auto", 0.0),
        ("2 + 2?", "?in_thought=true", 0.0),
        (R1_PROMPT, "?in_thought=false", 1.0),
        ([{"role": "user", "content": "2 + 2?"}], "?in_thought=true", 0.0),
    ],
)
def test_a_draft_in_a_thought_that_the_prompt_opened_is_no_answer(
    server: Server, prompt: Any, query: str, reward: float
) -> None:
    draft = "perhaps \\boxed{4}"
    assert slime(server, draft, "4", prompt, query) == reward
    assert slime(server, f"{draft}</think>\\boxed{{4}}", "4", prompt, query) == 1.0
    if isinstance(prompt, str):
        assert openrlhf(server, (prompt + draft, prompt, "4"), query=query)[1]["rewards"] == [reward]


def test_the_url_says_the_domain_of_bare_labels(server: Server) -> None:
    assert slime(server, "\\boxed{(B) 5 cm}", "B", query="?domain=stem") == 1.0
    assert slime(server, program("print(2 * int(input()))"), TESTS, query="?domain=stem") == 1.0


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        ("/slime", [], "object"),
        ("/slime", {"prompt": "p", "label": "4"}, "response"),
        ("/slime", {"prompt": "p", "response": "r", "label": None}, "label"),
        ("/slime", {"prompt": "p", "response": "r", "label": {"domain": "code", "task": {}}}, "inputs"),
        ("/slime?domain=poetry", {"prompt": "p", "response": "r", "label": "4"}, "poetry"),
        ("/slime?in_thought=1", {"prompt": "p", "response": "r", "label": "4"}, "in_thought"),
        ("/slime?wait_s=nan", {"prompt": "p", "response": "r", "label": "4"}, "wait_s"),
        ("/slime?thought=true", {"prompt": "p", "response": "r", "label": "4"}, "thought"),
        ("/openrlhf", {"query": ["a"], "prompts": ["a"], "labels": []}, "equally"),
        ("/openrlhf", {"query": "a", "prompts": ["a"], "labels": ["4"]}, "lists"),
        ("/openrlhf", {"query": [3], "prompts": ["a"], "labels": ["4"]}, "text"),
        ("/verify", {"expected_answer": "4"}, "response"),
        ("/verify", {"response": {"output": []}}, "expected_answer"),
        ("/verify", {"response": {"output": []}, "expected_answer": None}, "label"),
        (
            "/verify",
            {
                "response": {"output": []},
                "answer": "7",
                "metadata": {"source_dataset": "chain_sum"},
                "credit": "half",
            },
            "credit",
        ),
    ],
)
def test_what_no_request_can_be_is_refused_in_a_sentence(
    server: Server, path: str, body: Any, word: str
) -> None:
    status, _, answer = server.call(path, body)
    assert status == 400
    assert word in json.loads(answer)["detail"]


def test_a_body_that_is_no_json_is_refused(server: Server) -> None:
    assert server.call("/slime", b"{")[0] == 400


# --------------------------------------------------------------------------------------------- NeMo Gym
def message(*texts: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {"type": "message", "role": "assistant", "id": "m", "status": "completed", "content": content}


REASONING = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "\\boxed{4}"}]}
SUM = {"question": "4 + 3 =", "answer": "7", "metadata": {"source_dataset": "chain_sum", "source_index": 0}}
ROWS = [
    ({"question": "2 + 2?", "expected_answer": "4"}, [REASONING, message("so \\box", "ed{4}")], 1.0),
    ({"question": "2 + 2?", "expected_answer": "4"}, [REASONING], 0.0),
    ({"options": [{"A": "3"}, {"B": "4"}], "expected_answer": "B"}, [message("\\boxed{B}")], 1.0),
    (
        {"verifier_metadata": {"unit_tests": {**TESTS, "fn_name": None}, "difficulty": "easy"}},
        [message(program("print(2)"))],
        0.5,
    ),
    (QUOTED, [message('"said"')], 1.0),
    (
        {
            "instruction_id_list": ["punctuation:no_comma"] * 2 + QUOTED["instruction_id_list"],
            "kwargs": [{}] * 3,
        },
        [message("said")],
        0.0,
    ),
    (
        {
            "instruction_id_list": ["punctuation:no_comma", "startend:quotation"],
            "kwargs": [{}, {}],
            "grading_mode": "fraction",
        },
        [message("said")],
        0.5,
    ),
    ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}, [message("a， b")], 1.0),
    (
        {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}], "strict": True},
        [message("a， b")],
        0.0,
    ),
    (SUM, [message("<answer>7</answer>")], 1.0),
    (SUM, [message("<answer>77</answer>")], 0.5),
    ({**SUM, "credit": "library"}, [message("<answer>77</answer>")], 0.5),
    ({**SUM, "credit": "training"}, [message("<answer>77</answer>")], 0.0),
    ({"domain": "logic", "task": PUZZLE}, [message("<answer>8</answer>")], 0.0),
    ({"expected_answer": "4", "in_thought": True}, [message("perhaps \\boxed{4}")], 0.0),
    ({"expected_answer": "4", "odd": "\ud800"}, [message("\\boxed{4}")], 1.0),
]


@pytest.mark.parametrize(("row", "output", "reward"), ROWS)
def test_nemo_gym_gets_its_row_back_with_a_reward(
    server: Server, row: dict[str, Any], output: list[Any], reward: float
) -> None:
    body = {"responses_create_params": {"input": "?"}, "response": {"id": "x", "output": output}, **row}
    status, _, answer = server.call("/verify", body)
    assert (status, json.loads(answer)) == (200, {**body, "reward": reward})


def test_nemo_gym_begins_a_session_and_asks_for_statistics(server: Server) -> None:
    status, _, answer = server.call("/seed_session", {"any": "row"})
    assert (status, json.loads(answer)) == (200, {})
    rows = [{"reward": 1.0}, {"reward": 0.0}, {"reward": 0.5}]
    status, _, answer = server.call("/aggregate_metrics", {"verify_responses": rows})
    assert (status, json.loads(answer)["agent_metrics"]) == (200, {"mean/reward": 0.5})
