"""Tests of what of a job is bash, without Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.slurm.cluster import ROOT

SOURCED = "source slurm/common.sh; "


def bash(script: str, *arguments: str, **environment: str) -> list[str]:
    """Returns the lines that a script with these arguments prints after sourcing common.sh."""
    done = subprocess.run(
        ["bash", "-c", SOURCED + script, "launcher", *arguments],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "SITE_ENV": "/dev/null", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("site", "modules", "said"),
    [
        (
            "true",
            "cuda/13.0 gcc",
            "error: MODULES=cuda/13.0 gcc, but this shell has no command `module`: source",
        ),
        ('module() { [ "$2" != none ]; }', "none", "error: `module load none` failed"),
        (None, "", "site.env does not exist"),
        ("RUN_DIR=runs/a b", "", "RUN_DIR=runs/a b: no such command: write quotation marks around a value"),
        ("PYTHON=python\r", "", "line ends or a byte order mark of Windows: sed -i 's/\\r$//;"),
        ("\ufeffPYTHON=python", "", "line ends or a byte order mark of Windows: sed -i 's/\\r$//;"),
        ("RUN_DIR='runs/a", "", "site.env cannot be read: "),
        ("set -e\nfalse", "", "site.env ends the shell that reads it: leave out exit and set -e"),
        ("exit 0", "", "site.env ends the shell that reads it: leave out exit and set -e"),
    ],
)
def test_a_site_that_cannot_be_used_ends_the_job(
    tmp_path: Path, site: str | None, modules: str, said: str
) -> None:
    if site is not None:
        (tmp_path / "site.env").write_text(site + "\n")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        bash("echo still here", SITE_ENV=f"{tmp_path}/site.env", MODULES=modules)
    assert said in caught.value.stderr
    assert caught.value.stdout == ""


def test_the_site_has_the_last_word(tmp_path: Path) -> None:
    site = tmp_path / "site.env"
    site.write_text('PYTHON=/opt/python\nmodule() { echo "$@"; }\n')
    said = bash("bash -c 'echo $PYTHON'", SITE_ENV=str(site), PYTHON="mine", MODULES="cuda gcc")
    assert said == ["load cuda gcc", "/opt/python"]


def test_what_the_site_sources_has_neither_the_arguments_nor_the_folder_of_the_job(tmp_path: Path) -> None:
    """Scripts such as conda's `activate` would take the overrides for their own."""
    (tmp_path / "activate").write_text("echo $#; set -- theirs; cd /; A=1; no_such_command; true\n")
    (tmp_path / "site.env").write_text(f". {tmp_path}/activate\nno_such_command || true\n")
    said = bash("pwd; echo $A $1", "a b", SITE_ENV=f"{tmp_path}/site.env")
    assert said == ["0", str(ROOT), "1 a b"]


def test_what_salloc_has_left_behind_is_no_option_of_a_step(tmp_path: Path) -> None:
    """What the site sets stays."""
    (tmp_path / "site.env").write_text("SLURM_NETWORK=single_sn_all\n")
    inherited = {"SLURM_GPUS": "2", "SLURM_EXCLUSIVE": "1", "SRUN_CPUS_PER_TASK": "3", "SLURM_NETWORK": "x"}
    own = {"SLURM_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2", "SLURM_CONF": "/c", "SLURMD_NODENAME": "n1"}
    said = bash("env | grep ^S[LR]U", SITE_ENV=f"{tmp_path}/site.env", **inherited, **own)
    assert {*said} == {*(f"{name}={value}" for name, value in own.items()), "SLURM_NETWORK=single_sn_all"}


def test_the_example_of_a_site_sets_nothing_as_it_is() -> None:
    assert bash('echo "${SBATCH_ACCOUNT-unset}" "${CONTAINER-unset}"', SITE_ENV="slurm/site.env.example") == [
        "unset unset"
    ]


SERVER = """#!/bin/bash
# Fails FAILURES times, then serves until SIGTERM.
trap 'exit 0' TERM
echo start >>"$RUN/starts"
[ "$(wc -l <"$RUN/starts")" -gt "$FAILURES" ] || exit 1
touch "$RUN/node.json"
while :; do sleep 0.05; done
"""


@pytest.mark.parametrize(
    ("is_over", "num_failures", "num_starts"), [(False, 0, 2), (True, 0, 1), (False, 3, 5), (True, 1, 1)]
)
def test_a_reward_server_is_started_again_until_the_job_or_slurm_ends_it(
    tmp_path: Path, is_over: bool, num_failures: int, num_starts: int
) -> None:
    """The first SIGTERM may be a preemption's, after which a step has to be graded; the second ends it in any case."""
    for name, text in (("python", SERVER), ("sleep", "#!/bin/sh\nexec /bin/sleep 0.05\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "PYTHON": f"{tmp_path}/python",
        "RUN": str(tmp_path),
        "FAILURES": str(num_failures),
        "SLURMD_NODENAME": "node",
    }
    if is_over:
        (tmp_path / "over").touch()
    script = subprocess.Popen(
        ["bash", "slurm/reward.sh", str(tmp_path), "127.0.0.1"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        limit = time.monotonic() + 30
        while script.poll() is None:
            assert time.monotonic() < limit, "the server is started again for ever"
            if (tmp_path / "node.json").exists():
                (tmp_path / "node.json").unlink()
                os.killpg(script.pid, signal.SIGTERM)
            time.sleep(0.02)
    finally:
        if script.poll() is None:
            os.killpg(script.pid, signal.SIGKILL)
    assert script.wait() == 0
    assert (tmp_path / "starts").read_text().count("start") == num_starts


def test_a_job_takes_any_python_that_is_new_enough(tmp_path: Path) -> None:
    """`exec` gives the interpreter the shell's process, which is the one that Slurm signals."""
    old, new = tmp_path / "python3", tmp_path / "python3.13"
    old.write_text("#!/bin/sh\nexit 1\n")  # says that it is too old
    new.write_text('#!/bin/sh\n[ "$3" = -c ] || echo "$$ $*"\n')
    for file in (old, new):
        file.chmod(0o755)
    pid, said = bash("echo $$; run_stage run1 'a b'", PATH=f"{tmp_path}:/bin", PYTHON="/no/such")
    assert said == f"{pid} -E -s -m slurm.job run1 a b"


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1", "--host 127.0.0.1 "),
        ("::1", "--host ::1 "),
        ("two-families", "--host 10.0.0.5 "),
        ("six-only", "--host fd00::7 "),
        ("this-node", "--host 192.168.0.9 "),
        ("nosuchnode", "error: node has no address that other nodes could reach (nosuchnode)"),
    ],
)
def test_a_reward_server_listens_on_the_nodes_own_address_only(
    tmp_path: Path, address: str, said: str
) -> None:
    """An empty --host would listen on every interface."""
    getent = (
        'case $2 in two-families) printf "fd00::5 STREAM x\\n10.0.0.5 STREAM\\n10.0.0.5 DGRAM\\n" ;; '
        'six-only) echo "fd00::7 STREAM x" ;; this-node) echo "127.0.1.1 STREAM x" ;; nosuchnode) exit 2 ;; '
        '*) echo "$2 STREAM x" ;; esac'
    )
    fakes = {
        "python": 'echo "$*"; exit 2',
        "getent": getent,
        "hostname": 'echo "192.168.0.9 fd00::9"',
    }
    for name, text in fakes.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["bash", "slurm/reward.sh", str(tmp_path), address],
        cwd=ROOT,
        env={
            "PATH": f"{tmp_path}:/usr/bin:/bin",
            "PYTHON": f"{tmp_path}/python",
            "SLURMD_NODENAME": "node",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert said in done.stdout + done.stderr
    assert "--host  " not in done.stdout


@pytest.mark.parametrize("fault", ["of somebody else", "not to be made"])
def test_a_folder_of_caches_that_cannot_be_used_is_named_for_what_it_is(tmp_path: Path, fault: str) -> None:
    folder = tmp_path / "file" / "cache" if fault == "not to be made" else Path("/proc/1")
    if fault == "not to be made":
        (tmp_path / "file").touch()
    elif os.access("/proc/1/environ", os.R_OK):
        folder = tmp_path / "theirs"
        folder.mkdir()
        os.chown(folder, 12345, 12345)
    environment = {"PATH": "/usr/bin:/bin", "CACHE_DIR": str(folder), "PYTHON": "/bin/true"}
    given = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", **environment}
    done = subprocess.run(
        ["bash", "slurm/rank.sh", "train"], cwd=ROOT, env=given, capture_output=True, text=True, check=False
    )
    said = "cannot be made on" if fault == "not to be made" else "belongs to somebody else"
    assert done.returncode == 78
    assert said in done.stderr
