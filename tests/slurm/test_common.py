"""slurm/common.sh without Slurm: its functions with a shell function for srun."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.slurm.cluster import ROOT

FAKE = 'source slurm/common.sh; STAGE=run1; srun() { printf "%s\\n" "$@"; }; '


def bash(script: str, **environment: str) -> list[str]:
    """Lines that the script prints after sourcing common.sh."""
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


def test_a_container_sees_the_checkout_and_the_mounts_of_the_site() -> None:
    words = bash('step "$CONTAINER" true', CONTAINER="/images/a b.sqsh", MOUNTS="/data:/data")
    assert "--container-image=/images/a b.sqsh" in words
    assert f"--container-mounts={ROOT}:{ROOT},/tmp:/tmp,/data:/data" in words
    assert f"--container-workdir={ROOT}" in words
    assert bash('step "$CONTAINER" true', CONTAINER="x")[3] == f"--container-mounts={ROOT}:{ROOT},/tmp:/tmp"


def test_a_container_may_be_written_to_and_keeps_the_users_id() -> None:
    words = bash('step "$CONTAINER" true', CONTAINER="x")
    assert {"--container-writable", "--no-container-remap-root", "--no-container-entrypoint"} < {*words}


def test_what_the_engines_compile_lies_on_the_node() -> None:
    caches = "$XDG_CACHE_HOME $VLLM_CACHE_ROOT $TRITON_CACHE_DIR $TORCHINDUCTOR_CACHE_DIR"
    script = f'use_local_caches; bash -c "echo {caches}" | tr " " "\\n"'.replace("$", "\\$")
    assert bash(script, CACHE_DIR="/local") == ["/local", "/local/vllm", "/local/triton", "/local/inductor"]
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
