"""Tests of `submit` with scripts in place of sbatch and squeue; tests/slurm uses the real ones."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_prorl import __main__ as cli
from nemo_prorl.cluster import slurm_queue, submit
from nemo_prorl.run_folder.lock import alone_in

ROOT = Path(__file__).resolve().parents[2]
LAUNCHERS = sorted((ROOT / "launchers").glob("run*.sh"))
HYPER_PARAMETERS = ("algorithm.", "trainer.", "sampler.", "data.", "shaping.", "controller.", "model.")

SBATCH = """#!/bin/sh
printf '%s\\n' "$*" >> {log}
[ ! -e {folder}/refuses ] || {{ echo "sbatch: error: Invalid account" >&2; exit 1; }}
id=$((100 + $(wc -l < {log})))
echo "job|$id|PENDING|$(cat {folder}/reason 2>/dev/null || echo Priority)" >> {folder}/queue
cat {folder}/banner 2>&-
[ -e {folder}/silent ] || echo $id
"""
TOOLS = {
    "sbatch": SBATCH,
    "squeue": "#!/bin/sh\n[ ! -e {folder}/squeue.sh ] || . {folder}/squeue.sh\ncat {folder}/queue 2>&- || true\n",
    "scontrol": "#!/bin/sh\necho ClusterName = eos\n",
}


class Slurm:
    """A Slurm that records submissions, whose jobs wait until they are ended."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._log = folder, folder / "submitted"
        self.queue = folder / "queue"
        """Its lines are squeue's."""
        for name, text in TOOLS.items():
            (folder / name).write_text(text.format(log=self._log, folder=folder))
            (folder / name).chmod(0o755)

    @property
    def submitted(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []

    def set_state(self, state: str, job: str = "", reason: str = "Priority") -> None:
        """Changes what squeue says of a job, or of all; Slurm shows jobs for some minutes after their end."""
        rows = [line.split("|") for line in self.queue.read_text().splitlines()]
        rows = [[*row[:2], state, reason] if job in ("", row[1]) else row for row in rows]
        self.queue.write_text("".join("|".join(row) + "\n" for row in rows))

    def squeue_runs_first(self, script: str) -> None:
        (self.folder / "squeue.sh").write_text(script)

    def refuse(self) -> None:
        (self.folder / "refuses").touch()


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("SITE_ENV", "/dev/null")
    monkeypatch.setattr(submit, "LOOK_S", 0.0)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    folder = tmp_path / "slurm"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return Slurm(folder)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    from tests.test_cli import inputs_for_submit

    return [*inputs_for_submit(tmp_path), f"exp_manager.explicit_log_dir={tmp_path}/run"]


def mark_done(tmp_path: Path, *stages: str) -> None:
    (tmp_path / "run" / "stages").mkdir(parents=True, exist_ok=True)
    for stage in stages:
        (tmp_path / "run" / "stages" / f"{stage}.done").write_text("{}")


@pytest.mark.parametrize("path", LAUNCHERS, ids=lambda path: path.stem)
def test_launchers_say_which_resources_and_which_stage_and_nothing_else(path: Path) -> None:
    text = path.read_text()
    code = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(text.splitlines()) <= 30
    assert not [word for word in HYPER_PARAMETERS if word in "\n".join(code)]
    assert code[-1] == f'run_stage {path.stem.partition("_")[0]} "$@"'
    for header in ("--nodes=4", "--gpus-per-node=8", "--requeue", "--open-mode=append", "--signal=USR1@"):
        assert f"#SBATCH {header}" in text
    assert os.access(path, os.X_OK)


@pytest.mark.medium
def test_each_stage_waits_for_the_one_before(slurm: Slurm, files: list[str], tmp_path: Path) -> None:
    assert cli.main(["submit", *files, "algorithm.kl_beta=0"]) == 0
    lines = slurm.submitted
    names = [re.findall(r"launchers/(\S+)", line) for line in lines]
    assert names == [*([f"run{number}_8k.sh"] for number in range(1, 8)), ["run8_16k.sh"]]
    assert "--dependency" not in lines[0]
    for number, line in enumerate(lines[1:], start=1):
        assert line.startswith(f"--dependency=afterok:{100 + number} --kill-on-invalid-dep=yes ")
    for line in lines:
        assert f"--output={tmp_path}/run/slurm/%x-%j.out" in line
        assert line.endswith(" ".join([*files[:-1], "algorithm.kl_beta=0", files[-1]]))
    assert (tmp_path / "run" / "slurm").is_dir(), "sbatch would lose the log without a word"
    assert json.loads((tmp_path / "run" / "slurm" / "jobs.json").read_text())["run8"] == {
        "job": "108", "options": [], "overrides": [*files[:-1], "algorithm.kl_beta=0", files[-1]],
    }  # fmt: skip


def test_done_stages_are_left_out(slurm: Slurm, files: list[str], tmp_path: Path) -> None:
    mark_done(tmp_path, "run1", "run2")
    assert cli.main(["submit", "stage=run4", *files]) == 0
    first, second = slurm.submitted
    assert "launchers/run3_8k.sh" in first
    assert "--dependency" not in first
    assert "--dependency=afterok:101" in second


def test_a_second_submission_goes_on_with_the_jobs_of_the_first(
    slurm: Slurm, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["submit", "stage=run2", *files]) == 0
    assert cli.main(["submit", "stage=run3", *files]) == 0
    assert capsys.readouterr().out.count("in the queue already") == 2
    assert len(slurm.submitted) == 3
    assert slurm.submitted[-1].startswith("--dependency=afterok:102 ")


def test_the_site_says_which_account_and_which_folder(
    slurm: Slurm, files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site.env"
    site.write_text(f"echo welcome\nBASE={tmp_path}\nRUN_DIR=$BASE/else=where\nSBATCH_ACCOUNT='my project'\n")
    monkeypatch.setenv("SITE_ENV", str(site))
    seen = submit.site_environment(ROOT)
    assert seen["SBATCH_ACCOUNT"] == "my project"
    assert not any("welcome" in name for name in seen), "what the file prints is no variable"
    assert cli.main(["submit", "stage=run1", *files[:-1]]) == 0
    assert slurm.submitted[0].endswith(f"exp_manager.explicit_log_dir={tmp_path}/else=where")


@pytest.mark.parametrize(
    ("arguments", "must_say"),
    [
        (["stage=demo1"], "stage demo1 has no launcher: copy launchers/run1_8k.sh"),
        (["--sbatch=--gpus-per-node=2", "trainer.tensor_parallel=4"], "does not divide the 2 GPUs of a node"),
        (["model.path=/no/such"], "stage run1 needs /no/such, which does not exist yet"),
        (["--sbatch=-N 2-4"], "--nodes=2-4 is no certain number"),
        (
            ["exp_manager.explicit_log_dir=/proc/run"],
            "exp_manager.explicit_log_dir=/proc/run cannot be written",
        ),
    ],
)
def test_what_cannot_work_is_not_submitted(
    slurm: Slurm, files: list[str], arguments: list[str], must_say: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["submit", "stage=run1", *files, *arguments]) == 2
    assert must_say in capsys.readouterr().err
    assert slurm.submitted == []


def test_a_dry_run_shows_a_script_that_submits_the_same(
    slurm: Slurm, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs it and compares it with what `submit` itself gives to sbatch."""
    assert cli.main(["submit", "--dry-run", "stage=run2", "--sbatch=--time=1:00:00", *files]) == 0
    shown = capsys.readouterr().out
    assert slurm.submitted == []
    assert not (tmp_path / "run").exists()
    assert shown.startswith("mkdir -p "), "nothing is missing"
    subprocess.run(["bash", "-ec", shown], check=True)
    by_hand = slurm.submitted
    slurm.set_state("CANCELLED")
    assert cli.main(["submit", "stage=run2", "--sbatch=--time=1:00:00", *files]) == 0
    renumbered = [line.replace("afterok:103", "afterok:101") for line in slurm.submitted]
    assert renumbered == [*by_hand, *by_hand]


def test_a_dry_run_names_first_what_is_missing(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["submit", "--dry-run", "stage=run2", *files[1:]]
    assert cli.main(arguments) == 0
    short = capsys.readouterr().out
    model = "models/DeepSeek-R1-Distill-Qwen-1.5B"
    missing, commands = short.split("\n\n")
    assert f"#   {model}\n#       hf download deepseek-ai/DeepSeek" in missing
    assert "sbatch" not in missing.replace("sbatch does", "")
    assert [line.split("=")[0] for line in commands.splitlines() if "=$(" in line] == ["job_run1", "job_run2"]


def test_another_parent_is_for_the_last_stage_alone(slurm: Slurm, files: list[str]) -> None:
    """`stage.parent=run1` for run 1 itself would make it its own parent."""
    assert cli.main(["submit", "stage=run3", "stage.parent=run1", *files]) == 0
    given = {line.split("launchers/")[1].split("_")[0]: "stage.parent=" in line for line in slurm.submitted}
    assert given == {"run1": False, "run3": True}


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_queue, "PAUSE_S", 0.01)


def test_without_slurm_or_elsewhere_it_says_so(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(submit.shutil, "which", lambda _name: None)
    assert cli.main(["submit", "stage=run1", *files]) == 2
    assert "sbatch is not on this machine's path" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert cli.main(["submit", "--dry-run"]) == 2


def test_a_process_that_trains_outside_of_slurm_is_seen(
    slurm: Slurm, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with alone_in(tmp_path / "run", lambda _holder: False):
        assert cli.main(["submit", "stage=run1", *files]) == 2
        assert "error: a process on " in capsys.readouterr().err
    assert cli.main(["submit", "stage=run1", *files]) == 0


def hold(tmp_path: Path, **fields: object) -> None:
    """Writes what the launcher of a job writes."""
    given = {
        "job_id": "35", "stage": "run1", "start": 2, "cluster": "eos", "user": "", "host": "node1", "state": "training",
        "reason": "", "updated": "2026-11-26T18:20:00Z",
    }  # fmt: skip
    (tmp_path / "run" / "slurm").mkdir(parents=True)
    (tmp_path / "run" / "slurm" / "job.json").write_text(json.dumps(given | fields))


@pytest.mark.parametrize(
    ("fields", "code", "must_say"),
    [
        ({"job_id": "35"}, 2, "job 35 (run3) trains in"),
        ({"job_id": "36"}, 0, ""),
        ({"cluster": "other"}, 1, "job 35 of  on the cluster other holds"),
        ({"user": "nobody-else"}, 1, "job 35 of nobody-else on the cluster eos holds"),
        ({"cluster": "other", "state": "ended"}, 0, ""),
    ],
)
def test_the_job_that_holds_the_folder_is_seen(
    slurm: Slurm,
    files: list[str],
    fields: dict[str, object],
    code: int,
    must_say: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Somebody has called sbatch."""
    hold(tmp_path, stage="run3", **fields)
    if "cluster" not in fields:
        slurm.queue.write_text("job|35|RUNNING|None\n")
    assert cli.main(["submit", "stage=run1", *files]) == code
    assert must_say in capsys.readouterr().err
    assert len(slurm.submitted) == (code == 0)


def test_the_same_submission_with_other_overrides_is_refused_with_the_difference(
    slurm: Slurm, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["submit", "stage=run2", *files, "trainer.learning_rate=1e-6"]) == 0
    capsys.readouterr()
    for more in ([], ["--dry-run"]):
        assert cli.main(["submit", "stage=run3", *files, "trainer.learning_rate=5e-5", *more]) == 2
        assert "stage run1 is in the queue as job 101 with other overrides" in capsys.readouterr().err
    assert len(slurm.submitted) == 2
    again = ["submit", "stage=run2", "trainer.learning_rate=1e-6", *files, "--sbatch=--time=1:00:00"]
    assert cli.main(again) == 0, "the order does not matter"
    assert (
        "run1     job 101 (in the queue already, with other options of sbatch: none)"
        in capsys.readouterr().out
    )


def test_a_dry_run_says_what_is_in_the_queue(
    slurm: Slurm, files: list[str], tmp_path: Path, no_pause: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["submit", "stage=run1", *files]) == 0
    capsys.readouterr()
    assert cli.main(["submit", "--dry-run", "stage=run2", *files]) == 0
    shown = capsys.readouterr().out
    assert "job_run1=101  # in the queue already\n" in shown
    subprocess.run(["bash", "-ec", shown], check=True)
    assert [line.partition(" ")[0] for line in slurm.submitted] == ["--parsable", "--dependency=afterok:101"]
    slurm.squeue_runs_first("exit 1")
    assert cli.main(["submit", "--dry-run", "stage=run2", *files]) == 0
    assert capsys.readouterr().out.startswith(
        "# squeue does not answer (squeue ended with code 1), so whether a job"
    )


@pytest.mark.medium
def test_two_submissions_at_the_same_moment_are_one(slurm: Slurm, files: list[str], tmp_path: Path) -> None:
    slurm.squeue_runs_first("sleep 0.3")  # long enough for both to ask before either submits
    command = [sys.executable, "-m", "nemo_prorl", "submit", "stage=run1", *files]
    both = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert len(slurm.submitted) == 1
    assert sorted("in the queue already" in text for text in said) == [False, True]


@pytest.mark.parametrize(
    ("folder", "passed"),
    [
        ('exp_manager.explicit_log_dir="{0}/run"', "{0}/run"),
        ("exp_manager.explicit_log_dir='{0}/a run'", "{0}/a run"),
        ("+exp_manager.explicit_log_dir={0}/run", "{0}/run"),
        ("exp_manager.explicit_log_dir=${{oc.env:BASE}}/run", "{0}/run"),
        ('exp_manager.explicit_log_dir="{0}/lr=1e-6, [b]"', "{0}/lr=1e-6, [b]"),
        ("exp_manager.explicit_log_dir='{0}/100%/x'", "{0}/100%/x"),
        ("exp_manager.explicit_log_dir='{0}/it\\'s'", ""),
        ("exp_manager.explicit_log_dir='{0}/a '", ""),
    ],
)
def test_the_folder_reaches_the_launcher_as_it_was_read_or_not_at_all(
    slurm: Slurm,
    files: list[str],
    folder: str,
    passed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("BASE", str(tmp_path))
    code = cli.main(["submit", "stage=run1", *files[:-1], folder.format(tmp_path), "algorithm.kl_beta=0"])
    assert code == (0 if passed else 2), capsys.readouterr().err
    if passed:
        assert f"--output={passed.format(tmp_path).replace('%', '%%')}/slurm/%x-%j.out" in slurm.submitted[0]
        own = [line.count("explicit_log_dir") for line in slurm.submitted]
        assert own == [1]
        assert slurm.submitted[0].endswith(
            f"algorithm.kl_beta=0 exp_manager.explicit_log_dir={passed.format(tmp_path)}"
        )
        assert (Path(passed.format(tmp_path)) / "slurm" / "jobs.json").is_file()
    else:
        assert "cannot be the folder of a job" in capsys.readouterr().err
        assert slurm.submitted == []


def test_a_submission_that_failed_or_is_no_longer_in_the_queue_is_made_again(
    slurm: Slurm, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    submit_run1 = ["submit", "stage=run1", *files]
    slurm.refuse()
    assert cli.main(submit_run1) == 2
    assert capsys.readouterr().err.endswith(
        "sbatch refuses launchers/run1_8k.sh: sbatch: error: Invalid account\n"
    )
    (slurm.folder / "refuses").unlink()
    (slurm.folder / "banner").write_text("Welcome to eos, user 7\n")
    (slurm.folder / "reason").write_text("PartitionTimeLimit")
    assert cli.main(submit_run1) == 0
    said = capsys.readouterr().out
    assert said.startswith("run1     job 102\n"), "the number is found below a banner"
    assert "job 102 does not start: PartitionTimeLimit." in said
    slurm.set_state("CANCELLED")
    (slurm.folder / "reason").write_text("JobHeldAdmin")
    assert cli.main(submit_run1) == 0
    assert "JobHeldAdmin. `scontrol release 103` lets it start" in capsys.readouterr().out
    (slurm.folder / "reason").write_text("Priority")
    slurm.set_state("COMPLETING")
    assert cli.main(submit_run1) == 1
    assert "is leaving its nodes: repeat the command in a minute" in capsys.readouterr().err
    slurm.set_state("CANCELLED")
    assert cli.main(submit_run1) == 0
    slurm.set_state("PENDING", reason="DependencyNeverSatisfied")
    assert cli.main(submit_run1) == 0, "Slurm cancels it"
    assert len(slurm.submitted) == 5
    slurm.set_state("CANCELLED")
    (slurm.folder / "silent").touch()
    assert cli.main(submit_run1) == 2
    assert "sbatch gives no number for launchers/run1_8k.sh: Welcome to eos" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "code", "must_say"),
    [
        ("SBATCH_GPUS_PER_NODE=1\nfalse\n", 2, "does not divide the 1 GPUs of a node"),
        ('BAR=2\n[ -n "${FOO:-}" ] && BAR=1\n', 0, ""),
        ("echo seen >&2\n", 0, "seen\n"),
        ("exit 0\n", 2, "ends the shell that reads it: leave out exit"),
        (": ${NEEDED:?is not set}\n", 2, "NEEDED: is not set"),
        ("if\n", 2, "site.env cannot be read: "),
        (None, 2, "site.env does not exist"),
    ],
)
def test_the_site_is_read_as_launchers_read_it(
    slurm: Slurm,
    files: list[str],
    text: str | None,
    code: int,
    must_say: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if text is not None:
        (tmp_path / "site.env").write_text(text)
    monkeypatch.setenv("SITE_ENV", str(tmp_path / "site.env"))
    assert cli.main(["submit", "stage=run1", *files, "trainer.tensor_parallel=2"]) == code
    assert must_say in capsys.readouterr().err
    assert len(slurm.submitted) == (code == 0)


def test_a_stage_is_not_submitted_beside_a_later_one(
    slurm: Slurm, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["submit", "stage=run3", *files]) == 0
    slurm.set_state("CANCELLED", "102")
    capsys.readouterr()
    assert cli.main(["submit", "stage=run3", *files]) == 2
    assert "job 103 (run3) trains in" in (said := capsys.readouterr().err)
    assert "a job of stage run2 would meet it there" in said
    assert cli.main(["submit", "stage=run1", *files]) == 0, "nothing of it is missing"
    assert len(slurm.submitted) == 3


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (["a=1", "b=2"], ["b=2", "exp_manager.explicit_log_dir=x", "a=1"], ""),
        ([], ["a=1"], "it has nothing where this command has a=1"),
        (["a=1", "a=1"], ["a=1"], "it has a=1 where this command has nothing"),
    ],
)
def test_the_difference_of_two_jobs(old: list[str], new: list[str], said: str) -> None:
    assert submit.difference(old, new) == said


def test_a_squeue_that_does_not_answer_ends_the_command(
    slurm: Slurm, files: list[str], no_pause: None, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.squeue_runs_first("exit 1")
    assert cli.main(["submit", "stage=run1", *files]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("error: squeue does not answer (")
    assert said.err.endswith("Nothing was submitted.\n")
    assert (said.out, slurm.submitted) == ("", [])
