"""The table of docs/cluster.md, event by event, against the pure functions of slurm/job."""

from __future__ import annotations

from typing import Any

import pytest

from slurm.job import allocation
from slurm.job import decisions as of
from slurm.job.decisions import (
    DONE,
    FAIL,
    GO_ON,
    REFUSE,
    REQUEUE,
    WAIT,
    Answer,
    Holder,
    JobDecision,
    Mistake,
    StepEnd,
)

ME = Holder(job="36", cluster="c", user="me", host="n1")
OK = Answer("ok")
BAD = Answer("failure", "caches: no room: make some")


# ------------------------------------------------------------------------------------------------- one folder, one job
def held_by(job: str = "35", **changes: Any) -> Holder:
    return Holder(**{"job": job, "cluster": "c", "user": "me", "host": "n9", **changes})


@pytest.mark.parametrize(
    ("holder", "state", "what", "said"),
    [
        (held_by(), "RUNNING", REFUSE, "job 35 trains in runs/two: wait"),
        (held_by(), "SUSPENDED", REFUSE, "job 35 trains in runs/two"),
        (held_by(), "CONFIGURING", REFUSE, "job 35 trains in runs/two"),
        (held_by(), "PENDING", REFUSE, "job 35 waits in the queue to go on in runs/two: wait"),
        (held_by(), "COMPLETING", WAIT, "job 35 is ending"),
        (held_by(), "", GO_ON, ""),
        (held_by(), None, REFUSE, "squeue does not answer, and job 35 may still train in runs/two"),
        (held_by("36"), "RUNNING", GO_ON, ""),
        (held_by("36", cluster="other"), "", REFUSE, "job 36 of me on other trains in runs/two"),
        (held_by(user="you"), "", REFUSE, "job 35 of you on c trains in runs/two"),
        (held_by(user="you"), "RUNNING", REFUSE, "job 35 of you on c trains in runs/two"),
        (held_by(is_alive=True), "", GO_ON, ""),  # the lock of a crashed node, which the trainer puts aside
        (held_by("", is_alive=True), "", REFUSE, "a process on n9 trains in runs/two: wait for its end"),
    ],
)
def test_a_second_job_finds_out_who_has_the_folder(
    holder: Holder, state: str | None, what: str, said: str
) -> None:
    decision = of.may_take_folder(ME, holder, state, "runs/two")
    assert decision.what == what
    assert said in decision.why


# --------------------------------------------------------------------------------------------------- the nodes' answers
@pytest.mark.parametrize(
    ("answers", "step", "expected"),
    [
        ("ok ok ok ok", StepEnd(0), JobDecision(GO_ON)),
        ("ok ok ok bad", StepEnd(1), JobDecision(REQUEUE, "doctor found fault with d", ["d"])),
        ("ok ok ok -", StepEnd(127), JobDecision(REQUEUE, "doctor found fault with d", ["d"])),
        ("ok ok ok -", StepEnd(2), JobDecision(REQUEUE, "doctor found fault with d", ["d"])),
        ("- ok ok ok", StepEnd(2), JobDecision(REQUEUE, "doctor found fault with a", ["a"])),
        ("ok ok ok mistake", StepEnd(2), JobDecision(REQUEUE, "doctor found fault with d", ["d"])),
        ("ok bad - ok", StepEnd(1), JobDecision(REQUEUE, "doctor found fault with b c", ["b", "c"])),
        ("ok bad bad -", StepEnd(1), JobDecision(FAIL, f"3 of 4 nodes cannot run this: {BAD.sentence}")),
        (
            "ok - - -",
            StepEnd(1, "x"),
            JobDecision(FAIL, "3 of 4 nodes cannot run this: they did not answer (x)"),
        ),
        ("mistake - - -", StepEnd(2), JobDecision(FAIL, "start: no model")),
        ("mistake ok ok ok", StepEnd(2), JobDecision(FAIL, "start: no model")),
        ("port bad bad bad", StepEnd(1), JobDecision(REQUEUE, "a: network: EADDRINUSE")),
    ],
)
def test_bad_nodes_are_left_out_and_what_most_have_is_no_fault_of_theirs(
    answers: str, step: StepEnd, expected: JobDecision
) -> None:
    """The exit code of the step says nothing as long as one node has answered."""
    known = {
        "ok": OK,
        "bad": BAD,
        "mistake": Answer("mistake", "start: no model"),
        "port": Answer("failure", "network: EADDRINUSE"),
    }
    nodes = ["a", "b", "c", "d"]
    given = {node: known[word] for node, word in zip(nodes, answers.split(), strict=True) if word != "-"}
    assert of.choose_nodes(nodes, given, step) == expected


@pytest.mark.parametrize(("bad", "said"), [({"c": BAD}, BAD.sentence), ({}, "did not answer")])
def test_a_bad_node_that_the_user_has_pinned_is_not_left_out(bad: dict[str, Answer], said: str) -> None:
    """Slurm would never start a job again that requires and excludes it."""
    decision = of.choose_nodes(["a", "b", "c"], {"a": OK, "b": OK, **bad}, StepEnd(1), pinned=["b", "c"])
    assert decision == JobDecision(FAIL, f"c: {said}; --nodelist asks for it: submit without it")


@pytest.mark.parametrize(
    ("answers", "what"),
    [({}, REFUSE), ({"a": OK}, REFUSE), ({"a": OK, "b": BAD}, REFUSE), ({"a": OK, "b": OK}, GO_ON)],
)
def test_a_full_disk_is_no_fault_of_a_node(answers: dict[str, Answer], what: str) -> None:
    bad = of.at_fault(["a", "b"], answers)
    assert bad == [node for node in ("a", "b") if answers.get(node) != OK]  # with none, nobody tries to write
    decision = of.choose_nodes(["a", "b"], answers, StepEnd(1, "x"), unwritable="the disk is full")
    assert (decision.what, decision.bad_nodes) == (what, ())
    assert decision.why == ("" if what == GO_ON else "the disk is full")


@pytest.mark.parametrize(
    ("code", "words", "what"),
    [
        (127, "/no/such/python: No such file or directory", FAIL),
        (126, "python: Permission denied", FAIL),
        (1, "ModuleNotFoundError: No module named 'hydra'", FAIL),
        (1, "srun: unrecognized option '--container-image=x'", FAIL),
        (2, "slurmstepd: error: execve(): apptainer: No such file or directory", FAIL),
        (255, "FATAL: could not open image /images/x.sif", FAIL),
        (78, "error: CACHE_DIR=/proc/nope cannot be made on n1", FAIL),
        (137, "", REQUEUE),
        (143, "", REQUEUE),
        (0, "", REQUEUE),
        (1, "srun: error: Unable to create step for job 7: Socket timed out on send/recv operation", REQUEUE),
        (
            1,
            "srun: error: Task launch for StepId=7.1 failed on node n1: Communication connection failure",
            REQUEUE,
        ),
        (1, "srun: error: Unable to create step for job 7: Requested nodes are busy", REQUEUE),
    ],
)
def test_what_ends_on_all_nodes_without_an_answer_is_tried_again_only_if_it_may_pass(
    code: int, words: str, what: str
) -> None:
    decision = of.choose_nodes(["a", "b"], {}, StepEnd(code, words))
    assert decision.what == what
    assert f"doctor ended with code {code}" in decision.why
    assert words in decision.why
    assert "configuration" not in decision.why
    assert decision.bad_nodes == ()


# ------------------------------------------------------------------------------------------------------ reward service
@pytest.mark.parametrize(
    ("num_ready", "codes", "what"),
    [
        (2, [None, None], GO_ON),
        (1, [None, 127], GO_ON),
        (0, [127, 127], FAIL),
        (0, [2, 126], FAIL),
        (0, [None, 127], REQUEUE),
        (0, [1, 1], REQUEUE),
    ],
)
def test_training_needs_one_reward_server(num_ready: int, codes: list[int | None], what: str) -> None:
    assert of.may_use_servers(num_ready, codes).what == what


@pytest.mark.parametrize(
    ("domains", "levels", "what"),
    [
        ("math", ["none"], GO_ON),
        ("code\nmath", ["none", "none"], FAIL),
        ("code\nmath", ["none", "landlock"], GO_ON),
        ("decode", ["none"], GO_ON),
        ("", ["none"], GO_ON),
    ],
)
def test_code_needs_a_server_with_a_sandbox(domains: str, levels: list[str], what: str) -> None:
    assert of.may_grade_code(domains, [{"sandbox": level} for level in levels]).what == what


# ----------------------------------------------------------------------------------------------------------------- time
@pytest.mark.parametrize(
    ("script", "variable", "lead_s"),
    [
        ("#SBATCH --signal=USR1@600\n", "", 600),
        ("#SBATCH --signal USR1@600\n#SBATCH --time=4", "", 600),
        ("#SBATCH --signal=USR1@600\n", "B:USR1@900", 900),
        ("#SBATCH --signal=USR1\n", "", 60),
        ("# --signal=USR1@600\n", "", 0),
    ],
)
def test_the_lead_time_is_that_of_the_launcher_or_of_the_site(
    script: str, variable: str, lead_s: float
) -> None:
    assert of.lead_time_s(script, variable) == lead_s


def test_a_signal_that_slurm_sends_at_the_start_is_not_heeded_and_one_of_the_user_is() -> None:
    short, long = (of.heeded_from(1000.0, 1000.0 + seconds, 600.0) for seconds in (240, 14400))
    assert (short, long) == (1000 + of.EARLY_S, 0.0)
    assert of.heeded_from(1000.0, None, 600.0) == 0.0, "a job without a limit gets no such signal"
    assert of.after_signal(None, 0.0).what == GO_ON
    assert of.after_signal(1006.0, short).what == GO_ON
    assert of.after_signal(1006.0, long).what == REQUEUE
    assert of.after_signal(1200.0, short).what == REQUEUE


# --------------------------------------------------------------------------------------------------------------- ends
@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ((True, "", 1, ""), JobDecision(DONE)),
        ((False, "saturated", 0, "paused"), JobDecision(FAIL, "saturated")),
        ((False, "", 0, "paused"), JobDecision(REQUEUE, "paused")),
        ((False, "", 137, ""), JobDecision(REQUEUE, "ended with code 137")),
        ((False, "", 2, "disk full"), JobDecision(REQUEUE, "ended with code 2 (disk full)")),
    ],
)
def test_markers_decide_and_exit_codes_do_not(
    seen: tuple[bool, str, int, str], expected: JobDecision
) -> None:
    is_done, failure, code, error = seen
    assert of.after_training(is_done=is_done, failure=failure, code=code, error=error) == expected


@pytest.mark.parametrize(
    ("end_s", "has_new_step", "is_short"),
    [(160.0, False, True), (160.0, True, False), (1000.0, False, False), (None, False, False)],
)
def test_only_a_job_whose_whole_time_brought_no_step_is_too_short(
    end_s: float | None, has_new_step: bool, is_short: bool
) -> None:
    why = of.why_stopped(now_s=165.0, began_s=100.0, end_s=end_s, has_new_step=has_new_step)
    assert why == ("no step was saved in the 60 s that the job had: raise --time" if is_short else "")


@pytest.mark.parametrize(
    ("step", "num_idle", "maximum", "what"),
    [(9, 0, 0, REQUEUE), (8, 1, 3, REQUEUE), (8, 3, 3, REQUEUE), (8, 4, 3, FAIL), (8, 1, 0, FAIL)],
)
def test_restarts_without_a_new_checkpoint_come_to_an_end(
    step: int, num_idle: int, maximum: int, what: str
) -> None:
    given = JobDecision(REQUEUE, "paused", ["n7"])
    decision = of.may_restart(given, step=step, first_step=8, num_idle=num_idle, max_restarts=maximum)
    assert decision.what == what
    assert decision.why.startswith(f"paused at step {step}")
    assert list(decision.bad_nodes) == (["n7"] if what == REQUEUE else [])


@pytest.mark.parametrize(
    ("state", "restarts", "what"),
    [("PENDING", 2, REQUEUE), ("COMPLETING", 1, REQUEUE), ("RUNNING", 2, REQUEUE), ("RUNNING", 1, REFUSE)],
)
def test_what_slurm_has_requeued_is_not_to_be_submitted_again(state: str, restarts: int, what: str) -> None:
    decision = of.after_refused_requeue(state, restarts, 1, "Requested operation is presently disabled")
    assert decision.what == what
    assert ("submit" in decision.why) == (what == REFUSE)


# ----------------------------------------------------------------------------------------------------------- arguments
KEY = of.FOLDER_KEY


@pytest.mark.parametrize(
    ("arguments", "run_dir", "others"),
    [
        (["a=1", f"{KEY}=runs/a b"], "runs/a b", ["a=1"]),
        ([f"{KEY}=runs/lr=1e-6"], "runs/lr=1e-6", []),
        ([f"{KEY}=one", f"{KEY}=two", "--config-name=x"], "two", ["--config-name=x"]),
        (
            ["stage.parent=", "x='$HOME `id` * ; ls'"],
            "runs/prorl",
            ["stage.parent=", "x='$HOME `id` * ; ls'"],
        ),
        (["exp_manager.explicit_log_dir_of=x"], "runs/prorl", ["exp_manager.explicit_log_dir_of=x"]),
    ],
)
def test_the_folder_is_that_of_the_last_override(
    arguments: list[str], run_dir: str, others: list[str]
) -> None:
    assert of.read_arguments(arguments, {}) == (run_dir, others)


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("stage=run3", "a launcher trains its own stage"),
        ("+stage=run3", "a launcher trains its own stage"),
        ("stage.name=mine", "a launcher trains its own stage"),
        (f'{KEY}="runs/a b"', "write a folder that needs no quotation marks"),
        (f"{KEY}=runs/${{stage.name}}", "write a folder that needs no quotation marks and no variables"),
        (f"{KEY}=", "write a folder"),
        (f"++{KEY}=runs/pp", f"only as {KEY}=FOLDER"),
        (f"+{KEY}=runs/pp", f"only as {KEY}=FOLDER"),
        (f"~{KEY}", f"only as {KEY}=FOLDER"),
        ("exp_manager={explicit_log_dir: x}", f"only as {KEY}=FOLDER"),
        ("--config-name=mine", f"write {KEY}=FOLDER too"),
    ],
)
def test_what_a_launcher_would_read_otherwise_than_the_trainer_is_refused(argument: str, said: str) -> None:
    with pytest.raises(Mistake) as caught:
        of.read_arguments([argument], {})
    assert said in str(caught.value)


def test_the_site_may_name_the_folder() -> None:
    assert of.read_arguments(["--config-name=mine"], {"RUN_DIR": "runs/site"})[0] == "runs/site"
    assert of.read_arguments([f"{KEY}=runs/mine"], {"RUN_DIR": "runs/site"})[0] == "runs/mine"


def test_numbers_of_the_site_are_numbers() -> None:
    assert of.read_number({}, "MAX_RESTARTS", 3) == 3
    assert of.read_number({"MAX_RESTARTS": "0"}, "MAX_RESTARTS", 3) == 0
    with pytest.raises(Mistake, match="MAX_RESTARTS=three is not a whole number: write MAX_RESTARTS=3,"):
        of.read_number({"MAX_RESTARTS": "three"}, "MAX_RESTARTS", 3)


# ---------------------------------------------------------------------------------------------------------- allocation
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "96(x2)", "SLURM_CPUS_ON_NODE": "96"}


@pytest.mark.parametrize(
    ("given", "ranks", "cpus"),
    [
        ("GRES=gpu:8(IDX:0-7)", 8, 12),
        ("GRES=nic:2,gpu:h100:8(IDX:0-3,4-7)", 8, 12),
        ("GRES= MinCPUsNode=1", 1, 96),
        ("GRES=gpu:8(IDX:0-7) Power= TresPerNode=gres:gpu:1", 1, 96),  # --exclusive gives all GPUs
        ("GRES=gpu:8(IDX:0-7) Nodes=n2 GRES=gpu:4(IDX:0-3) TresPerNode=gres/gpu:h100:3", 3, 32),
        ("GRES=gpu:8(IDX:0-7) TresPerNode=gres:gpu:1g.5gb:2,gres:gpu:a100:1,gres:nic:5", 3, 32),
        ("GRES=gpu:8(IDX:0-7) TresPerNode=gres:gpu", 1, 96),
        ("GRES=gpu:8(IDX:0-7) TresPerNode=gres/gpu:h100=3", 3, 32),
        ("", 6, 16),  # Slurm does not answer
    ],
)
def test_a_node_has_a_rank_for_each_gpu_that_was_asked_for(given: str, ranks: int, cpus: int) -> None:
    """Variables, which may be inherited, count only if there is nothing else."""
    inherited = {"SLURM_GPUS_ON_NODE": "gpu:h100:6", "SLURM_GPUS_PER_NODE": "5", "SLURM_GPUS": "2"}
    found = allocation.read_allocation({**JOB, **inherited}, ["n1", "n2"], f"JOB_GRES=gpu:16 {given}")
    assert (found.ranks_per_node, found.world_size, found.cpus_per_rank) == (ranks, 2 * ranks, cpus)
    assert found.gpu_options == ([] if "GRES= " in given else [f"--gpus-per-node={ranks}"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("GRES=gpu:3(IDX:0-2)", "n2 gives the job 1 CPU(s) for 3 ranks"),
        (
            "GRES=gpu:3(IDX:0-2) Nodes=n2 GRES=gpu:2(IDX:0-1) TresPerJob=gres:gpu:5",
            "the job 2 and 3 GPUs: write",
        ),
    ],
)
def test_an_allocation_without_room_for_equal_ranks_is_refused(given: str, said: str) -> None:
    with pytest.raises(Mistake) as caught:
        allocation.read_allocation({**JOB, "SLURM_JOB_CPUS_PER_NODE": "4,1"}, ["n1", "n2"], given)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("array", "name"), [({}, "7"), ({"SLURM_ARRAY_JOB_ID": "7"}, "7_2"), ({"SLURM_ARRAY_JOB_ID": "5"}, "7")]
)
def test_a_job_is_not_taken_for_its_array_and_its_starts_are_its_own(
    array: dict[str, str], name: str
) -> None:
    """Other tasks than the last have ids of their own. A shell may have the variables of another job."""
    given = {**JOB, "SLURM_RESTART_COUNT": "3", **array, **({"SLURM_ARRAY_TASK_ID": "2"} if array else {})}
    found = allocation.read_allocation(given, ["n1"], "Restarts=0 BatchFlag=1")
    assert (found.job, found.name, found.start) == ("7", name, 0)


def environment_of(**given: str) -> dict[str, str]:
    found = allocation.read_allocation(JOB, ["n1", "n2"], "GRES=gpu:8(IDX:0-7)")
    return allocation.rank_environment(
        given,
        found,
        address="10.0.0.1",
        port=20007,
        end_s=5.0,
        heeded_from_s=0.0,
        nccl_log="/r/nccl",
        user_id=5,
    )


def test_what_the_engines_compile_lies_on_the_node_and_the_site_has_the_last_word() -> None:
    made = environment_of()
    assert (made["WORLD_SIZE"], made["LOCAL_WORLD_SIZE"], made["SLURM_JOB_END_TIME"]) == ("16", "8", "5")
    assert made["CACHE_DIR"] == "/tmp/nemo_prorl-5"
    assert made["NCCL_DEBUG_FILE"] == "/r/nccl/%h.%p"
    made = environment_of(CACHE_DIR="/local", NCCL_DEBUG="WARN", OMP_NUM_THREADS="4")
    assert made["TRITON_CACHE_DIR"] == "/local/triton"
    assert made["OMP_NUM_THREADS"] == "4"
    assert "NCCL_DEBUG_FILE" not in made


def test_jobs_meet_at_ports_below_the_ephemeral_ones_and_neighbours_at_different_ones() -> None:
    assert allocation.ports("51")[0] == 20051
    assert len({*allocation.ports("7")}) == 50
    assert all(20000 <= port < 30000 for port in allocation.ports("123456789"))


def words_of(image: str, **environment: str) -> list[str]:
    return allocation.step_command(image, ["--nodes=1"], ["bash", "x y"], environment, "/checkout")


def test_a_step_has_the_jobs_environment_and_knows_nothing_of_containers_unless_there_is_one() -> None:
    expected = ["srun", "--overlap", "--mem=0", "--export=ALL", "--nodes=1", "bash", "x y"]
    assert words_of("") == expected
    assert words_of("", CONTAINER_RUNTIME="apptainer") == expected


def test_a_container_sees_the_checkout_and_the_mounts_of_the_site_and_keeps_the_users_id() -> None:
    words = words_of("/images/a b.sqsh", MOUNTS="/data:/data")
    assert "--container-image=/images/a b.sqsh" in words
    assert "--container-mounts=/checkout:/checkout,/tmp:/tmp,/data:/data" in words
    assert "--container-mounts=/checkout:/checkout,/tmp:/tmp" in words_of("x")
    wanted = {"--container-writable", "--no-container-remap-root", "--no-container-entrypoint"}
    assert {*wanted, "--container-workdir=/checkout"} < {*words}


def test_apptainer_stands_between_srun_and_the_command() -> None:
    site = {"CONTAINER_RUNTIME": "apptainer", "MOUNTS": "/data:/data"}
    words = words_of("/images/a b.sif", SLURM_GPUS_ON_NODE="8", **site)
    assert words[5] == "apptainer"
    assert words[-3:] == ["/images/a b.sif", "bash", "x y"]
    assert words[words.index("--bind") + 1] == "/checkout,/tmp,/data:/data"
    assert "--nv" in words
    assert "--nv" not in words_of("x.sif", **site)


@pytest.mark.parametrize(
    "folder", ["runs/a b", "runs/lr=1e-6", "runs/it's", "a,b", "runs/x", "x\\", "true", "{a}"]
)
def test_hydra_reads_the_folder_as_the_launcher_does(folder: str) -> None:
    from nemo_prorl.config.compose import quoted

    made = allocation.overrides("run1", folder, f"{folder}/reward/7", ["a=1"])
    assert made[0] == "stage=run1"
    assert made[1] == f"{KEY}={quoted(folder)}"
    assert made[-1] == "a=1"


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        ([], "stage=run1"),
        (["--config-name", "mine.yaml"], "stage=run1"),
        (["--config-name", "runs/forks/8/a-1/arm.yaml"], "stage.name=run1"),
    ],
)
def test_a_launcher_chooses_its_stage_and_an_arm_of_a_fork_has_its_own(given: list[str], choice: str) -> None:
    assert allocation.overrides("run1", "runs/a", "runs/a/reward/7", given)[0] == choice
