"""Tests of slurm/common.sh without Slurm: a shell function stands in for srun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.slurm.cluster import ROOT

FAKE = 'source slurm/common.sh; STAGE=run1; srun() { printf "%s\\n" "$@"; }; '


def bash(script: str, **environment: str) -> list[str]:
    """Returns the lines that a script prints after sourcing common.sh."""
    done = subprocess.run(
        ["bash", "-c", FAKE + script],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "SITE_ENV": "/dev/null", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_a_step_knows_nothing_of_containers_unless_there_is_one() -> None:
    assert bash("step '' --nodes=1 python -m x") == ["--overlap", "--mem=0", "--nodes=1", "python", "-m", "x"]


@pytest.mark.parametrize(("gpus", "ranks"), [("8", "8"), ("gpu:h100:8", "8"), ("", "1")])
def test_a_node_has_a_rank_for_each_gpu_or_one_without_gpus(tmp_path: Path, gpus: str, ranks: str) -> None:
    slurm = {
        "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_CPUS_ON_NODE": "96", "SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1",
        "NCCL_DEBUG": "WARN",
    }  # fmt: skip
    told = {**slurm, "SLURM_GPUS_ON_NODE": gpus} if gpus else slurm
    fakes = "scontrol() { printf 'n1\\nn2\\n'; }; node_address() { echo 10.0.0.1; }; "
    lines = bash(fakes + 'read_allocation; echo "$RANKS_PER_NODE $CPUS_PER_RANK $WORLD_SIZE"', **told)
    assert lines == [f"{ranks} {96 // int(ranks)} {2 * int(ranks)}"]


def test_a_container_sees_the_checkout_and_the_mounts_of_the_site() -> None:
    words = bash('step "$CONTAINER" true', CONTAINER="/images/a b.sqsh", MOUNTS="/data:/data")
    assert "--container-image=/images/a b.sqsh" in words
    assert f"--container-mounts={ROOT}:{ROOT},/tmp:/tmp,/data:/data" in words
    assert f"--container-workdir={ROOT}" in words
    assert bash('step "$CONTAINER" true', CONTAINER="x")[3] == f"--container-mounts={ROOT}:{ROOT},/tmp:/tmp"


def test_a_container_may_be_written_to_and_keeps_the_users_id() -> None:
    words = bash('step "$CONTAINER" true', CONTAINER="x")
    assert {"--container-writable", "--no-container-remap-root", "--no-container-entrypoint"} < {*words}


def test_apptainer_stands_between_srun_and_the_command() -> None:
    site = {"CONTAINER_RUNTIME": "apptainer", "CONTAINER": "/images/a b.sif", "MOUNTS": "/data:/data"}
    words = bash('step "$CONTAINER" --nodes=1 bash -c true', SLURM_GPUS_ON_NODE="8", **site)
    assert words[: words.index("apptainer")] == ["--overlap", "--mem=0", "--nodes=1"]
    assert words[-4:] == ["/images/a b.sif", "bash", "-c", "true"]
    assert words[words.index("--bind") + 1] == f"{ROOT},/tmp,/data:/data"
    assert "--nv" in words
    assert "--nv" not in bash('step "$CONTAINER" true', **site)
    assert bash("step '' true", **site) == ["--overlap", "--mem=0", "true"]


@pytest.mark.parametrize(
    ("site", "sentence"),
    [
        ({"CONTAINER_RUNTIME": "docker"}, "CONTAINER_RUNTIME=docker is not known: write pyxis or apptainer"),
        (
            {"MODULES": "cuda/13.0 gcc"},
            "MODULES=cuda/13.0 gcc, but this shell has no command `module`: source",
        ),
    ],
)
def test_what_a_site_names_and_the_node_lacks_is_one_sentence(site: dict[str, str], sentence: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        bash("echo still here", **site)
    (line,) = caught.value.stderr.splitlines()
    assert line.startswith(f"error: {sentence}")
    assert caught.value.stdout == ""


def test_modules_are_loaded_or_the_job_ends(tmp_path: Path) -> None:
    site = tmp_path / "site.env"
    site.write_text('module() { echo "$@"; [ "$2" != none ]; }\n')
    assert bash("true", SITE_ENV=str(site), MODULES="cuda gcc") == ["load cuda gcc"]
    with pytest.raises(subprocess.CalledProcessError) as caught:
        bash("echo still here", SITE_ENV=str(site), MODULES="none")
    assert "still here" not in caught.value.stdout
    assert "`module load none` failed" in caught.value.stderr


def test_no_reward_service_starts_where_the_runs_own_functions_grade_everything(tmp_path: Path) -> None:
    script = "needs_reward_service && echo yes || echo no"
    assert bash(script, DOCTOR_DIR=str(tmp_path)) == ["yes"], "doctor has not said what the data needs"
    (tmp_path / "domains").write_text("math\n")
    assert bash(script, DOCTOR_DIR=str(tmp_path)) == ["yes"]
    (tmp_path / "domains").write_text("")
    assert bash(script, DOCTOR_DIR=str(tmp_path)) == ["no"]


def test_what_the_engines_compile_lies_on_the_node() -> None:
    caches = "$VLLM_CACHE_ROOT $TRITON_CACHE_DIR $TORCHINDUCTOR_CACHE_DIR"
    script = f'use_local_caches; bash -c "echo {caches}" | tr " " "\\n"'.replace("$", "\\$")
    assert bash(script, CACHE_DIR="/local") == ["/local/vllm", "/local/triton", "/local/inductor"]
    (folder,) = bash("use_local_caches; echo $CACHE_DIR")
    assert folder == f"/tmp/nemo_prorl-{os.getuid()}"


def test_the_site_has_the_last_word(tmp_path: Path) -> None:
    site = tmp_path / "site.env"
    site.write_text("PYTHON=/opt/python\n")
    assert bash("bash -c 'echo $PYTHON'", SITE_ENV=str(site), PYTHON="mine") == ["/opt/python"]


def test_a_site_that_is_not_there_is_not_passed_over() -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        bash("echo still here", SITE_ENV="/no/such/site.env")
    assert "error: SITE_ENV=/no/such/site.env does not exist" in caught.value.stderr
    assert caught.value.stdout == ""


def test_the_example_of_a_site_sets_nothing_as_it_is() -> None:
    assert bash('echo "${SBATCH_ACCOUNT-unset}" "${CONTAINER-unset}"', SITE_ENV="slurm/site.env.example") == [
        "unset unset"
    ]


def test_the_newest_step_is_that_of_a_whole_checkpoint(tmp_path: Path) -> None:
    assert bash("newest_step", RUN_DIR=str(tmp_path)) == ["0"]
    for name in ("step-00000008-run1", "step-00000010-run-1", ".writing-step-00000012-run1", "other"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert bash("newest_step", RUN_DIR=str(tmp_path)) == ["10"]


STARTED = """
    read_allocation() { NODES=(a) RANKS_PER_NODE=1 WORLD_SIZE=1 CPUS_PER_RANK=1; }
    use_local_caches() { :; }; check_nodes() { echo "doctor: $*"; }; needs_reward_service() { false; }
    can_grade() { true; }; trainer() { echo "train: ${@: -2}"; touch "$MARKER.done"; }
    SLURM_JOB_ID=7; run_stage run8 "$@"
"""


@pytest.mark.parametrize("parent", ["stage.parent=", "stage.parent=mine"])
def test_a_launcher_leaves_it_to_the_configuration_which_stage_comes_before(
    tmp_path: Path, parent: str
) -> None:
    """conf/stage/run8.yaml names a parent, but the overrides have the last word in all that the job runs."""
    given = f"{parent} exp_manager.explicit_log_dir={tmp_path}"
    lines = bash(f"set -- {given}; {STARTED}")
    assert f"doctor: 0 {given}" in lines
    assert f"train: {given}" in lines
    assert lines[-1].endswith("run8: done")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("stage=run3", "a launcher trains its own stage"),
        ("stage.name=mine", "a launcher trains its own stage"),
        ("\"exp_manager.explicit_log_dir='a b'\"", "write a folder that needs no quotation marks"),
        ("--config-name mine.yaml", "write exp_manager.explicit_log_dir=FOLDER too"),
        ("--config-name=mine.yaml algorithm.kl_beta=0", "write exp_manager.explicit_log_dir=FOLDER too"),
    ],
)
def test_what_a_launcher_would_read_otherwise_than_the_trainer_is_refused(
    tmp_path: Path, given: str, sentence: str
) -> None:
    script = f'set -- {given}; ({STARTED}) || echo "ended with $?"'
    *_, said, ended = bash(script)
    assert sentence in said
    assert ended == "ended with 1"


def test_a_named_configuration_trains_in_the_folder_that_is_named_too(tmp_path: Path) -> None:
    for given in ("", f"exp_manager.explicit_log_dir={tmp_path}/other"):
        lines = bash(f"set -- --config-name mine.yaml {given}; {STARTED}", RUN_DIR=f"{tmp_path}/run")
        assert lines[-1].endswith("run8: done")
    assert (tmp_path / "run" / "stages" / "run8.done").exists()
    assert (tmp_path / "other" / "stages" / "run8.done").exists()


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        ("", "stage=run1"),
        ("--config-name mine.yaml", "stage=run1"),
        ("--config-name runs/forks/8/a-1/arm.yaml", "stage.name=run1"),
    ],
)
def test_a_launcher_chooses_its_stage_and_an_arm_has_its_own(given: str, choice: str) -> None:
    lines = bash(
        f"RUN_DIR=r REWARD_DIR=r/w; trainer train --nodes=1 -- {given}",
        WORLD_SIZE="1",
        SLURM_JOB_NUM_NODES="1",
    )
    assert lines[lines.index("train") + 1] == choice


@pytest.mark.parametrize(
    ("domains", "levels", "answer"),
    [
        ("math", ["none"], "yes"),
        ("code\nmath", ["none", "none"], "no"),
        ("code\nmath", ["none", "landlock"], "yes"),
        ("decode", ["none"], "yes"),
        ("", ["none"], "yes"),
    ],
)
def test_code_needs_a_server_with_a_sandbox(
    tmp_path: Path, domains: str, levels: list[str], answer: str
) -> None:
    """The ready line is that of `reward serve`."""
    (tmp_path / "domains").write_text(f"{domains}\n")
    for number, level in enumerate(levels):
        line = json.dumps({"url": "http://x", "protocol": 2, "sandbox": level, "version": "v"})
        (tmp_path / f"node{number}.json").write_text(line + "\n")
    folders = {"DOCTOR_DIR": str(tmp_path), "REWARD_DIR": str(tmp_path)}
    assert bash("can_grade && echo yes || echo no", **folders) == [answer]


NODE = '{\n "node": "x",\n "verdict": "%s",\n "sentence": "%s",\n "is_complete": true,\n "findings": []\n}\n'
SENTENCES = {
    "ok": "",
    "failure": "caches: no room: make some",
    "mistake": "start: stage run1 continues stage x",
}
CHECK = """
    scontrol() { echo "scontrol $*" >>"$RUN/calls"; [ "$1" != show ] || echo "  ExcNodeList=$EXCLUDED"; }
    srun() { cp "$RUN"/answers/* "$DOCTOR_DIR" 2>/dev/null; return "$CODE"; }
    sleep() { :; }
    MARKER=$RUN/stages/run1 RUN_DIR=$RUN DOCTOR_DIR=$RUN/doctor REWARD_DIR=$RUN/reward BAD_NODES=()
    SLURM_JOB_ID=7 SLURM_CPUS_ON_NODE=4 NODES=(a b c d)
    check_nodes 0 x=1 && echo all is well
"""


@pytest.mark.parametrize(
    ("answers", "code", "said", "excluded"),
    [
        ({"a": "ok", "b": "ok", "c": "ok", "d": "ok"}, 0, "all is well", ""),
        ({"a": "ok", "b": "ok", "c": "ok", "d": "failure"}, 1, "run1: d: caches: no room", "d"),
        ({"a": "ok", "b": "ok", "c": "ok"}, 1, "run1: d did not answer", "d"),
        ({"a": "ok", "b": "failure", "c": "ok"}, 1, "found fault with b d", "b,d"),
        ({"a": "ok", "b": "failure"}, 1, "3 of 4 nodes cannot run this: caches: no room", ""),
        ({}, 1, "ended with code 1 and without an answer", ""),
        ({"a": "mistake"}, 2, "run1: failed: start: stage run1 continues", ""),
        ({}, 2, "run1: failed: the configuration is refused", ""),
    ],
)
def test_what_the_nodes_answer_decides_what_becomes_of_the_job(
    tmp_path: Path, answers: dict[str, str], code: int, said: str, excluded: str
) -> None:
    for folder in ("answers", "stages", "reward"):
        (tmp_path / folder).mkdir()
    for node, verdict in answers.items():
        (tmp_path / "answers" / f"{node}.json").write_text(NODE % (verdict, SENTENCES[verdict]))
    lines = bash(f"({CHECK}) || true", RUN=str(tmp_path), CODE=str(code), EXCLUDED="(null)")
    assert said in "\n".join(lines)
    calls = (tmp_path / "calls").read_text() if (tmp_path / "calls").exists() else ""
    assert f"ExcNodeList={excluded}\n" in calls if excluded else "ExcNodeList" not in calls
    assert ("scontrol requeue 7" in calls) == (code == 1 and (bool(excluded) or not answers))


def test_nodes_that_were_left_out_before_stay_left_out(tmp_path: Path) -> None:
    script = '''scontrol() { echo "$*" >&2; [ "$1" != show ] || echo "  ExcNodeList=n[1-3]"; }
        MARKER=$RUN/x SLURM_JOB_ID=7; leave_out a b 2>&1; cat "$MARKER.excluded"'''
    assert bash(script, RUN=str(tmp_path))[-3:] == ["update JobId=7 ExcNodeList=n[1-3],a,b", "a", "b"]


SERVED = """
    srun() { touch "$REWARD_DIR/a.json"; for _ in {1..60}; do [ -e "$REWARD_DIR/over" ] || command sleep 0.05; done; }
    sleep() { command sleep 0.05; }
    scontrol() { [ "$1" != requeue ] || echo "requeued, over: $([ ! -e "$REWARD_DIR/over" ] || echo yes)"; }
    REWARD_DIR=$RUN RUN_DIR=$RUN MARKER=$RUN/run1 BAD_NODES=() NODES=(a) SLURM_JOB_ID=7 SLURM_CPUS_ON_NODE=4
    $SERVICE
    $END
    echo still here
"""


@pytest.mark.parametrize(
    "end",
    [
        "mark_failed 'the data has code'",
        "go_on_later paused 0",
        "MAX_RESTARTS=0; go_on_later crashed 0",
        "kill -TERM $BASHPID",
        "exit 0",
    ],
)
def test_however_a_job_ends_its_reward_servers_stay_down(tmp_path: Path, end: str) -> None:
    """A job that has started no servers leaves those of another job in the same folder alone."""
    script = SERVED.replace("$END", end)
    lines = bash(f"({script.replace('$SERVICE', ':')}) || true", RUN=str(tmp_path))
    assert "still here" not in lines
    assert not (tmp_path / "over").exists()
    (tmp_path / "run1.restarts").unlink(missing_ok=True)
    lines = bash(f"({script.replace('$SERVICE', 'start_reward_service')}) || true", RUN=str(tmp_path))
    assert "still here" not in lines
    assert (tmp_path / "over").exists()
    assert ("requeued, over: yes" in lines) == (end == "go_on_later paused 0")


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
        "REWARD_PYTHON": f"{tmp_path}/python",
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
