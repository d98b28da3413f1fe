"""SandboxFusion's /run_code over HTTP: the name of each way to end."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("fastapi")

from tests.reward.serving import Server


def run(server: Server, code: str, **fields: Any) -> dict[str, Any]:
    body = {"code": code, "language": "python", "run_timeout": 5, "compile_timeout": 5, **fields}
    status, _, answer = server.call("/run_code", body)
    assert status == 200, answer
    return json.loads(answer)


def test_the_answer_has_sandbox_fusions_form(server: Server) -> None:
    answer = run(
        server, "print(2 * int(input()))", stdin="21\n", memory_limit_MB=1024, files={}, fetch_files=[]
    )
    seconds = answer["run_result"].pop("execution_time")
    assert 0 <= seconds < 5
    assert answer == {
        "status": "Success",
        "message": "",
        "compile_result": None,
        "run_result": {"status": "Finished", "return_code": 0, "stdout": "42\n", "stderr": ""},
        "executor_pod_name": None,
        "files": {},
    }


@pytest.mark.parametrize(
    ("code", "status", "run_status", "return_code", "stdout", "word"),
    [
        ("print(1)\n1 / 0", "Failed", "Finished", 1, "1\n", "ZeroDivisionError"),
        ("print(1", "Failed", "Finished", 1, "", "SyntaxError"),
        ("import sys\nsys.exit(2)", "Failed", "Finished", 2, "", ""),
        ("while True:\n    pass", "Failed", "TimeLimitExceeded", None, "", ""),
        ("import time\ntime.sleep(30)", "Failed", "TimeLimitExceeded", None, "", ""),
    ],
)
def test_how_programs_fail(
    server: Server, code: str, status: str, run_status: str, return_code: Any, stdout: str, word: str
) -> None:
    answer = run(server, code, run_timeout=0.5)
    result = answer["run_result"]
    assert (answer["status"], result["status"]) == (status, run_status)
    assert (result["return_code"], result["stdout"]) == (return_code, stdout)
    assert word in result["stderr"]


def test_an_endless_output_is_a_failure_that_says_so(server: Server) -> None:
    answer = run(server, "while True:\n    print('x' * 1000)")
    assert (answer["status"], answer["run_result"]["return_code"]) == ("Failed", 1)
    assert "more than" in answer["run_result"]["stderr"]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"language": "cpp"}, "cpp"),
        ({"language": None}, "None"),
        ({"code": None}, "code"),
        ({"code": "x" * (1 << 21)}, "code"),
        ({"stdin": 5}, "stdin"),
        ({"files": {"a.txt": "YQ=="}}, "files"),
        ({"fetch_files": ["a.txt"]}, "fetch_files"),
        ({"run_timeout": "soon"}, "run_timeout"),
        ({"run_timeout": -1}, "run_timeout"),
        ({"compile_timeout": True}, "compile_timeout"),
        ({"memory_limit_MB": "much"}, "memory_limit_MB"),
    ],
)
def test_what_cannot_be_run_here_is_refused_in_a_sentence(
    server: Server, change: dict[str, Any], word: str
) -> None:
    status, _, answer = server.call("/run_code", {"code": "print(1)", "language": "python", **change})
    assert status == 400
    assert word in json.loads(answer)["detail"]


def test_a_program_finds_nothing_of_the_service(server: Server) -> None:
    answer = run(
        server, "import os\nprint(dict(os.environ), os.listdir('/proc') if os.path.exists('/proc') else [])"
    )
    assert "HOSTILE_SECRET" not in json.dumps(answer)
