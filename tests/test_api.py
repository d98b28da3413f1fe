"""The Python API: what `train` hands to the command, what `Run` reads, and both for real on the tiny policy.
docs/first_run.md's program is run by tests/docs/test_tutorials.py."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import nemo_prorl
from nemo_prorl import api
from nemo_prorl.config import ConfigError
from nemo_prorl.config.compose import compose
from tests.conftest import ROOT
from tests.report.made_up_runs import write_run
from tests.training.tiny import rows, write_case


def brief(responses: list[str], **columns: Any) -> list[float]:
    """A reward function by reference."""
    return [-len(response) / 100 for response in responses]


def test_options_reach_the_command_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nested, dotted or a whole mapping; texts with quotes; rows as a file; a function by its file."""
    started: list[tuple[str, ...]] = []
    monkeypatch.setattr(
        api, "_command", lambda *arguments, num_ranks: started.append((*arguments, str(num_ranks)))
    )
    problems = [{"question": "2 + 2 = ¿?", "answer": "4"}]
    run = nemo_prorl.train(
        tmp_path / "it's mine",
        "laptop",
        num_ranks=2,
        **{"trainer.num_steps": 3},
        algorithm={"clip_high": 0.3, "kl_beta": 0},
        data={"train": problems, "validation": ["b's, or {c}.jsonl"]},
        reward={"function": [brief], "weights": {"brief": 0.5}},
        validation={"early": True},
        exp_manager={"create_tensorboard_logger": True},
    )
    assert run.folder == tmp_path / "it's mine"
    ((command, switch, name, *overrides, num_ranks),) = started
    assert (command, switch, name, num_ranks) == ("train", "--config-name", "laptop", "2")
    config = compose("laptop", overrides, conf_dir=ROOT / "conf")
    file = run.folder / "data" / "train.jsonl"
    assert (config.data.train, config.data.validation) == ({str(file): 1.0}, ["b's, or {c}.jsonl"])
    assert [json.loads(line) for line in file.read_text().splitlines()] == problems
    assert (config.trainer.num_steps, config.algorithm.clip_high, config.algorithm.kl_beta) == (3, 0.3, 0.0)
    assert (config.reward.function, config.reward.weights) == ([f"{__file__}:brief"], {"brief": 0.5})
    assert (config.validation.early, config.exp_manager.create_tensorboard_logger) == (True, True)
    assert config.exp_manager.explicit_log_dir == str(run.folder)


def test_a_function_that_no_other_process_can_import_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not at the top of a Python file"):
        nemo_prorl.train(tmp_path, reward={"function": lambda responses: responses})


def test_a_command_that_fails_is_an_error_and_what_it_said_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RuntimeError, match="train ended with exit code 2"):
        nemo_prorl.train(tmp_path, "laptop", algorithm={"clip_hihg": 0.3})
    assert "algorithm.clip_hihg" in capsys.readouterr().out


def test_a_run_is_read_anew_by_every_call(tmp_path: Path) -> None:
    run = nemo_prorl.Run(str(tmp_path / "run"))
    with pytest.raises(ConfigError, match=r"holds no metrics\.jsonl"):
        run.metrics()
    assert run.status().state == "no run"
    write_run(run.folder, num_steps=4, num_stages=1)
    assert [record["step"] for record in run.metrics()] == [0, 1, 2, 3, 4]
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "stage": "run1", "reward/mean": 0.5}\n')
    assert run.metrics()[-1] == {"step": 5, "stage": "run1", "reward/mean": 0.5}
    assert (run.status().state, run.status().step) == ("done", 5)
    assert "done after step 5 of run1" in str(run.status())
    assert run.report(with_pictures=False) == run.folder / "report.html"
    assert "run1" in (run.folder / "report.html").read_text()


def test_the_import_is_light() -> None:
    program = (
        "import sys, nemo_prorl; nemo_prorl.train, nemo_prorl.Run('x'); "
        "assert not {'torch', 'numpy', 'yaml', 'hydra', 'lightning'} & sys.modules.keys(), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


@pytest.mark.slow
def test_two_steps_of_the_tiny_policy_from_a_list_of_rows_and_a_function(tmp_path: Path) -> None:
    write_case(tmp_path)
    letters = [{"messages": list(row.messages), "answer": "x"} for row in rows("train", 24)]
    run = nemo_prorl.train(
        tmp_path / "run",
        str(tmp_path / "tiny.yaml"),
        data={"train": letters, "validation": letters[:2]},
        reward={"function": brief},
    )
    trained = [record for record in run.metrics() if "reward/mean" in record]
    assert [record["step"] for record in trained] == [1, 2]
    assert all(math.isclose(record["reward/mean"], record["reward/part_brief"]) for record in trained)
    assert (run.status().state, run.status().wrote) == ("done", "ended (all its steps)")
    exported = run.export(tmp_path / "exported")
    assert (exported / "model.safetensors").is_file()
