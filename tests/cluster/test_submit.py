"""Tests of `submit` with scripts in place of sbatch and squeue; tests/slurm uses the real ones."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from nemo_prorl import __main__ as cli
from nemo_prorl.cluster import submit
from nemo_prorl.cluster.plan.chain import paper_stages

ROOT = Path(__file__).resolve().parents[2]
LAUNCHERS = sorted((ROOT / "launchers").glob("*.sh"))
HYPER_PARAMETERS = ("algorithm.", "trainer.", "sampler.", "data.", "shaping.", "controller.", "model.")

SBATCH = """#!/bin/sh
printf '%s\\n' "$*" >> {log}
[ ! -e {folder}/refuses ] || {{ echo "sbatch: error: Invalid account" >&2; exit 1; }}
echo $((100 + $(wc -l < {log})))
"""
SQUEUE = "#!/bin/sh\ncat {folder}/queue 2>/dev/null\n"


class Slurm:
    """A Slurm that records submissions. Its queue holds no job, or every job."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._log = folder, folder / "submitted"
        for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE)):
            (folder / name).write_text(text.format(log=self._log, folder=folder))
            (folder / name).chmod(0o755)

    @property
    def submitted(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []

    def keep_jobs(self) -> None:
        (self.folder / "queue").write_text("PENDING\n")

    def refuse(self) -> None:
        (self.folder / "refuses").touch()


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("SITE_ENV", "/dev/null")


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    folder = tmp_path / "slurm"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return Slurm(folder)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Returns overrides with a model and data that exist as far as `submit` checks."""
    from tests.test_cli import ARCHITECTURE

    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(ARCHITECTURE)
    (tmp_path / "rows.parquet").write_bytes(b"")
    data = [f"data.train={{{tmp_path}/rows.parquet: 1}}", f"data.validation=[{tmp_path}/rows.parquet]"]
    return [f"model.path={tmp_path}/model", *data, f"exp_manager.explicit_log_dir={tmp_path}/run"]


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


def test_every_run_of_the_recipe_has_its_launcher() -> None:
    assert [submit.find_launcher(stage, ROOT).name for stage in paper_stages(ROOT / "conf")] == [
        *(f"run{number}_8k.sh" for number in range(1, 8)),
        "run8_16k.sh",
    ]


@pytest.mark.medium
def test_each_stage_waits_for_the_one_before(slurm: Slurm, files: list[str], tmp_path: Path) -> None:
    assert cli.main(["submit", *files, "algorithm.kl_beta=0"]) == 0
    lines = slurm.submitted
    assert len(lines) == 8
    assert "--dependency" not in lines[0]
    for number, line in enumerate(lines[1:], start=1):
        assert line.startswith(f"--dependency=afterok:{100 + number} --kill-on-invalid-dep=yes ")
    for line in lines:
        assert f"--output={tmp_path}/run/slurm/%x-%j.out" in line
        assert line.endswith(" ".join([*files, "algorithm.kl_beta=0"]))
    assert (tmp_path / "run" / "slurm").is_dir(), "sbatch would lose the log without a word"
    assert json.loads((tmp_path / "run" / "slurm" / "jobs.json").read_text())["run8"] == "108"


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
    slurm.keep_jobs()
    assert cli.main(["submit", "stage=run3", *files]) == 0
    assert capsys.readouterr().out.count("in the queue already") == 2
    assert len(slurm.submitted) == 3
    assert slurm.submitted[-1].startswith("--dependency=afterok:102 ")


def test_jobs_that_are_no_longer_in_the_queue_are_submitted_again(slurm: Slurm, files: list[str]) -> None:
    assert cli.main(["submit", "stage=run1", *files]) == 0
    assert cli.main(["submit", "stage=run1", *files]) == 0
    assert len(slurm.submitted) == 2


def test_a_refusal_of_slurm_is_one_sentence(
    slurm: Slurm, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.refuse()
    assert cli.main(["submit", *files]) == 2
    assert (
        capsys.readouterr().err
        == "error: sbatch refuses launchers/run1_8k.sh: sbatch: error: Invalid account\n"
    )
    assert len(slurm.submitted) == 1


def test_the_site_says_which_account_and_which_folder(
    slurm: Slurm, files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site.env"
    site.write_text(f"echo welcome\nBASE={tmp_path}\nRUN_DIR=$BASE/elsewhere\nSBATCH_ACCOUNT='my project'\n")
    monkeypatch.setenv("SITE_ENV", str(site))
    seen = submit.site_environment(ROOT)
    assert seen["SBATCH_ACCOUNT"] == "my project"
    assert not any("welcome" in name for name in seen), "what the file prints is no variable"
    assert cli.main(["submit", "stage=run1", *files[:-1]]) == 0
    assert slurm.submitted[0].endswith(f"exp_manager.explicit_log_dir={tmp_path}/elsewhere")


def test_a_site_that_is_not_there_is_not_passed_over(
    slurm: Slurm, files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SITE_ENV", "/no/such/site.env")
    assert cli.main(["submit", "stage=run1", *files]) == 2
    assert "SITE_ENV=/no/such/site.env does not exist" in capsys.readouterr().err
    assert slurm.submitted == []


@pytest.mark.parametrize(
    ("arguments", "must_say"),
    [
        (["algorithm.clip_hihg=1"], "did you mean algorithm.clip_high?"),
        (["stage=run9"], "there is no conf/stage/run9.yaml"),
        (["stage=demo1"], "stage demo1 has no launcher: copy launchers/run1_8k.sh"),
        (["trainer.tensor_parallel=3"], "trainer.tensor_parallel=3 does not divide the 8 GPUs of a node"),
        (["--sbatch=--gpus-per-node=2", "trainer.tensor_parallel=4"], "does not divide the 2 GPUs of a node"),
        (["model.path=/no/such"], "stage run1 needs /no/such, which does not exist yet"),
    ],
)
def test_what_cannot_work_is_not_submitted(
    slurm: Slurm, files: list[str], arguments: list[str], must_say: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["submit", "stage=run1", *files, *arguments]) == 2
    assert must_say in capsys.readouterr().err
    assert slurm.submitted == []


def test_without_slurm_it_says_so(
    files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(submit.shutil, "which", lambda _name: None)
    assert cli.main(["submit", "stage=run1", *files]) == 2
    assert "sbatch is not on this machine's path" in capsys.readouterr().err


def test_it_is_given_from_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["submit", "--dry-run"]) == 2


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
    assert cli.main(["submit", "stage=run2", "--sbatch=--time=1:00:00", *files]) == 0
    renumbered = [line.replace("afterok:103", "afterok:101") for line in slurm.submitted]
    assert renumbered == [*by_hand, *by_hand]


def test_a_dry_run_names_first_what_is_missing_and_shows_scripts_only_in_full(
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
    assert cli.main([*arguments, "--full"]) == 0
    full = capsys.readouterr().out
    assert full.startswith(short)
    for script in ("launchers/run1_8k.sh", "launchers/run2_8k.sh", *submit.SHARED_SCRIPTS):
        assert (ROOT / script).read_text() in full + "\n"
        assert (ROOT / script).read_text() not in short
    assert cli.main(["submit", "--full", *files]) == 2
    assert "write --dry-run too" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stage", "parent", "submitted"),
    [("run8", "", {"run8": True}), ("run3", "run1", {"run1": False, "run3": True})],
)
def test_another_parent_is_for_the_last_stage_alone(
    slurm: Slurm, files: list[str], stage: str, parent: str, submitted: dict[str, bool]
) -> None:
    """`stage.parent=run1` for run 1 itself would make it its own parent."""
    assert cli.main(["submit", f"stage={stage}", f"stage.parent={parent}", *files]) == 0
    given = {line.split("launchers/")[1].split("_")[0]: "stage.parent=" in line for line in slurm.submitted}
    assert given == submitted
