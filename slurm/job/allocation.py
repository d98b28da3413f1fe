"""The job's nodes, the place and the environment of its ranks, and the commands of its steps: pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm.job.decisions import FOLDER_KEY, Mistake


@dataclass(frozen=True)
class Allocation:
    """What Slurm has given to this start of the job."""

    job: str
    name: str
    """What Slurm's commands call the job. The id of an array's last task is that of the whole array."""
    start: int
    """Number of restarts before this one."""
    nodes: Sequence[str]
    cpus: Sequence[int]
    """CPUs of the job on each node."""
    gpus_per_node: int

    @property
    def ranks_per_node(self) -> int:
        return self.gpus_per_node or 1

    @property
    def gpu_options(self) -> Sequence[str]:
        """Returns srun's options for the GPUs of a step: by default it has none if only --exclusive gave them, and it
        asks one node for all those of the job if --gpus did."""
        return [f"--gpus-per-node={self.gpus_per_node}"] if self.gpus_per_node else []

    @property
    def world_size(self) -> int:
        return len(self.nodes) * self.ranks_per_node

    @property
    def cpus_per_rank(self) -> int:
        return min(self.cpus) // self.ranks_per_node

    def __str__(self) -> str:
        return (
            f"job {self.job}, start {self.start + 1}: {len(self.nodes)} nodes x {self.ranks_per_node} ranks"
        )


def name_of(environment: Mapping[str, str]) -> str:
    """Returns what Slurm's commands call this job, so that they do not mean other tasks of its array too."""
    job = environment["SLURM_JOB_ID"]
    is_last_task = environment.get("SLURM_ARRAY_JOB_ID") == job
    return f"{job}_{environment['SLURM_ARRAY_TASK_ID']}" if is_last_task else job


def read_allocation(environment: Mapping[str, str], nodes: Sequence[str], shown: str) -> Allocation:
    """Returns the allocation. shown: what `scontrol show --details job` says; variables about GPUs and restarts may be
    inherited from another job. A node has a rank for each GPU that sbatch was asked for, or one without GPUs: with
    --exclusive Slurm gives all GPUs of a node, but `submit` and the user have counted on those. Raises Mistake for an
    allocation on which equal nodes are impossible."""
    fields = dict(re.findall(r"(\S+?)=(\S*)", shown))
    gpus = _count_gpus(fields.get("TresPerNode", ""))
    given = {_count_gpus(text) for text in re.findall(r"\bGRES=(\S*)", shown)}
    if not gpus and len(given) > 1:
        numbers = " and ".join(map(str, sorted(given)))
        raise Mistake(f"the nodes give the job {numbers} GPUs: write --gpus-per-node, for as many on each")
    gpus = gpus or max(given, default=_count_gpus(f"gpu:{environment.get('SLURM_GPUS_ON_NODE') or 0}"))
    ranks = gpus or 1
    cpus = read_cpus(environment.get("SLURM_JOB_CPUS_PER_NODE") or environment["SLURM_CPUS_ON_NODE"])
    cpus = cpus if len(cpus) == len(nodes) else [min(cpus)] * len(nodes)
    if min(cpus) < ranks:
        few = nodes[cpus.index(min(cpus))]
        raise Mistake(
            f"{few} gives the job {min(cpus)} CPU(s) for {ranks} ranks: add --exclusive, or --cpus-per-gpu=N"
        )
    return Allocation(
        job=environment["SLURM_JOB_ID"],
        name=name_of(environment),
        start=int(fields.get("Restarts") or environment.get("SLURM_RESTART_COUNT") or 0),
        nodes=tuple(nodes),
        cpus=tuple(cpus),
        gpus_per_node=gpus,
    )


def _count_gpus(text: str) -> int:
    """Returns the GPUs of a text such as gres:gpu:h100:8, gres/gpu:h100=8 or gpu:2(IDX:0-1),nic:1."""
    last = [re.split("[:=]", found)[-1] for found in re.findall(r"\bgpu\b[:=]?([^,(]*)", text)]
    return sum(int(word) if word.isdigit() else 1 for word in last)


def read_cpus(text: str) -> list[int]:
    """Returns the CPUs of each node from a text such as 16(x2),8."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(number) for number, times in found for _ in range(int(times or 1))]


def ports(job: str) -> list[int]:
    """Returns ports on which the ranks may meet, the first choice first: below the range of ephemeral ports, and
    different for jobs with neighbouring ids."""
    return [20000 + (int(job) + 1009 * attempt) % 10000 for attempt in range(50)]


def rank_environment(
    environment: Mapping[str, str],
    allocation: Allocation,
    *,
    address: str,
    port: int,
    end_s: float | None,
    heeded_from_s: float,
    nccl_log: str,
    user_id: int,
) -> dict[str, str]:
    """Returns the variables that all steps get in addition to the job's. end_s: the job's end in seconds since 1970, so
    that the trainer pauses in time; Slurm sets it from 23.02 on."""
    cache = environment.get("CACHE_DIR") or f"/tmp/nemo_prorl-{user_id}"
    made = {
        "SLURM_RESTART_COUNT": str(allocation.start),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(allocation.world_size),
        "LOCAL_WORLD_SIZE": str(allocation.ranks_per_node),
        "OMP_NUM_THREADS": environment.get("OMP_NUM_THREADS") or "1",
        # vLLM, Triton and Inductor keep what they compile on the node's own disk, not in HOME.
        "CACHE_DIR": cache,
        "VLLM_CACHE_ROOT": f"{cache}/vllm",
        "TRITON_CACHE_DIR": f"{cache}/triton",
        "CUDA_CACHE_PATH": f"{cache}/cuda",
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
        "FLASHINFER_WORKSPACE_BASE": cache,
        "PRORL_HEED_USR1_FROM": f"{heeded_from_s:.0f}",
    }
    if end_s is not None:
        made["SLURM_JOB_END_TIME"] = f"{end_s:.0f}"
    if not environment.get("NCCL_DEBUG"):
        # NCCL logs the network that it chooses only in debug mode; the trainer copies the choice into the run's log.
        made.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET", NCCL_DEBUG_FILE=f"{nccl_log}/%h.%p")
    return made


def step_command(
    image: str, options: Sequence[str], command: Sequence[str], environment: Mapping[str, str], checkout: str
) -> list[str]:
    """Returns the command that runs a job step, in a container unless `image` is empty. Steps share the job's resources
    (--overlap), and all of its memory (--mem=0). A site may set --export=NONE for sbatch, which srun would inherit: the
    step would have no environment."""
    mounts, runtime = environment.get("MOUNTS", ""), environment.get("CONTAINER_RUNTIME") or "pyxis"
    all_options, inside = ["--overlap", "--mem=0", "--export=ALL", *options], []
    if image and runtime == "pyxis":
        # Writable, because some packages write into their own folders; without the image's entry point, which is for
        # `docker run`; with the user's own id, because the graders' sandbox cannot change ids if enroot maps the user
        # to root.
        all_options += [
            f"--container-image={image}",
            f"--container-mounts={checkout}:{checkout},/tmp:/tmp{mounts and ',' + mounts}",
            f"--container-workdir={checkout}",
            *("--no-container-mount-home", "--container-writable", "--no-container-entrypoint"),
            "--no-container-remap-root",
        ]
    elif image:
        nv = ["--nv"] if environment.get("SLURM_GPUS_ON_NODE") else []
        inside = ["apptainer", "exec", *nv, "--bind", f"{checkout},/tmp{mounts and ',' + mounts}"]
        inside += ["--pwd", checkout, "--no-home", "--writable-tmpfs", image]
    return ["srun", *all_options, *inside, *command]


def overrides(stage: str, run_dir: str, reward_dir: str, others: Sequence[str]) -> list[str]:
    """Returns the overrides of `doctor` and `train`, which compose the same configuration."""
    # The file of a fork's arm (nemo_prorl/questions/arms.py) has all options of its stage, which is not in conf/stage/.
    is_arm = any(word.endswith("/arm.yaml") for word in others)
    return [
        f"{'stage.name' if is_arm else 'stage'}={stage}",
        f"{FOLDER_KEY}={quoted(run_dir)}",
        f"reward.discovery_dir={quoted(reward_dir)}",
        f"reward.token_file={quoted(f'{reward_dir}/token')}",
        *others,
    ]


def quoted(value: str) -> str:
    """Returns a text as Hydra's grammar of overrides reads it, as quoted of nemo_prorl/config/compose.py does."""
    if re.fullmatch(r"[\w.-]*/[\w./-]*", value, re.ASCII):
        return value
    return "'" + re.sub(r"(\\*)('|$)", lambda end: 2 * end[1] + ("\\'" if end[2] else ""), value) + "'"
