# What the launchers share, sourced by the batch script of a job. Begin at the bottom: run_stage is what a job does.
#
# Ranks are tasks of srun, one a GPU, without torchrun between: Slurm starts and labels them, ends all when one fails,
# and its SIGUSR1 (#SBATCH --signal) reaches each of them, where torchrun would die of it before its ranks have saved.
# Exit codes do not decide what happens next, files in $RUN_DIR/stages do: STAGE.done, STAGE.failed (docs/cluster.md).
# shellcheck shell=bash

if [ -n "${SITE_ENV:-}" ] && [ ! -e "$SITE_ENV" ]; then
    echo "error: SITE_ENV=$SITE_ENV does not exist: write the path of a file such as slurm/site.env." >&2
    exit 1
elif [ -e "${SITE_ENV:=slurm/site.env}" ]; then
    set -o allexport
    # shellcheck source=slurm/site.env.example
    source "$SITE_ENV"
    set +o allexport
fi
if [ -n "${MODULES:-}" ]; then
    if ! type module >/dev/null 2>&1; then
        echo "error: MODULES=$MODULES, but this shell has no command \`module\`: source the file that defines it, such as" \
            "/etc/profile.d/modules.sh, in $SITE_ENV." >&2
        exit 1
    fi
    # shellcheck disable=SC2086 # words on purpose: several modules
    module load $MODULES || { echo "error: \`module load $MODULES\` failed: correct MODULES in $SITE_ENV." >&2 && exit 1; }
fi
case ${CONTAINER_RUNTIME:=pyxis} in
    pyxis | apptainer) ;;
    *) echo "error: CONTAINER_RUNTIME=$CONTAINER_RUNTIME is not known: write pyxis or apptainer in $SITE_ENV." >&2 && exit 1 ;;
esac
set -euo pipefail

say() {
    echo "$(date --utc +%FT%TZ) $STAGE: $*"
}

mark_failed() { # REASON: nothing goes on by itself from here; a new sbatch begins again
    say "failed: $1"
    printf '{"reason": "%s"}\n' "$1" >"$MARKER.writing"
    mv "$MARKER.writing" "$MARKER.failed"
    exit 1
}

newest_step() { # of the whole checkpoints; 0 when there is none
    local folders=("$RUN_DIR"/checkpoints/step-*)
    [[ ${folders[-1]} =~ /step-0*([0-9]+)- ]] && echo "${BASH_REMATCH[1]}" || echo 0
}

# ------------------------------------------------------------------------------------------------ the allocation
read_allocation() {
    mapfile -t NODES < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    RANKS_PER_NODE=${SLURM_GPUS_ON_NODE:-1}
    CPUS_PER_RANK=$((SLURM_CPUS_ON_NODE / RANKS_PER_NODE))
    MASTER_ADDR=$(node_address "${NODES[0]}")
    MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000)) # below the ports that systems hand out by themselves
    WORLD_SIZE=$((${#NODES[@]} * RANKS_PER_NODE))
    # When the job ends, in seconds since 1970; from 23.02 on Slurm says so itself. The trainer pauses in time.
    : "${SLURM_JOB_END_TIME:=$(date --date "$(squeue --noheader --job "$SLURM_JOB_ID" --format %e)" +%s 2>/dev/null || true)}"
    : "${OMP_NUM_THREADS:=1}"
    export MASTER_ADDR MASTER_PORT WORLD_SIZE SLURM_JOB_END_TIME OMP_NUM_THREADS
    # What NCCL says of the network, which it chooses without a word; the trainer repeats the choice in the run's log.
    if [ -z "${NCCL_DEBUG:-}" ]; then
        rm -rf "$RUN_DIR/nccl.before"
        [ ! -d "$RUN_DIR/nccl" ] || mv "$RUN_DIR/nccl" "$RUN_DIR/nccl.before" # of the life that may have failed
        mkdir -p "$RUN_DIR/nccl"
        export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET NCCL_DEBUG_FILE
        NCCL_DEBUG_FILE=$(realpath "$RUN_DIR")/nccl/%h.%p
    fi
}

use_local_caches() { # what vLLM, Triton and Inductor compile: on the node's own disk, container or not, HOME or not
    export CACHE_DIR=${CACHE_DIR:-/tmp/nemo_prorl-$(id -u)}
    export VLLM_CACHE_ROOT=$CACHE_DIR/vllm TRITON_CACHE_DIR=$CACHE_DIR/triton CUDA_CACHE_PATH=$CACHE_DIR/cuda
    export TORCHINDUCTOR_CACHE_DIR=$CACHE_DIR/inductor FLASHINFER_WORKSPACE_BASE=$CACHE_DIR
}

node_address() { # NODE: the name or address by which Slurm reaches it
    scontrol show node "$1" | sed -nE 's/.*NodeAddr=([^ ]+).*/\1/p'
}

step() { # IMAGE SRUN-OPTIONS... COMMAND...: a job step, in a container when IMAGE (CONTAINER in site.env) is not empty
    local image=$1 options=(--overlap --mem=0) inside=()
    shift
    while [[ $1 == -* ]]; do
        options+=("$1")
        shift
    done
    # Writable, for programs that write where their packages are; without the image's entry point, which is for docker
    # run; and with the user's own id, because the sandbox of the graders cannot change ids where enroot fakes it.
    case ${image:+$CONTAINER_RUNTIME} in
        pyxis) options+=(--container-image="$image" --container-mounts="$PWD:$PWD,/tmp:/tmp${MOUNTS:+,$MOUNTS}"
            --container-workdir="$PWD" --no-container-mount-home --container-writable --no-container-entrypoint
            --no-container-remap-root) ;;
        apptainer) inside=(apptainer exec ${SLURM_GPUS_ON_NODE:+--nv} --bind "$PWD,/tmp${MOUNTS:+,$MOUNTS}" --pwd "$PWD"
            --no-home --writable-tmpfs "$image") ;;
    esac
    srun "${options[@]}" ${inside[@]+"${inside[@]}"} "$@"
}

# --------------------------------------------------------------------------------- before anything else: the nodes
check_nodes() { # STEP-AT-START OVERRIDE...: `doctor` on every node; returns if all of them can do what this run needs
    local code=0 node sentence silent=0 first='' patience=30 first_step=$1 each allowed=()
    shift
    for check in ${DOCTOR_ALLOW:-}; do
        allowed+=(--allow "$check")
    done
    rm -rf "$DOCTOR_DIR" && mkdir -p "$DOCTOR_DIR"
    each=(--nodes="${#NODES[@]}" --ntasks="${#NODES[@]}" --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_ON_NODE"
        --kill-on-bad-exit=0 --mpi=none --time=10)
    # The graders may have a container of their own: what they can do on a node is found out beside doctor.
    # shellcheck disable=SC2016
    step "${REWARD_CONTAINER:-}" --job-name=sandbox "${each[@]}" bash -c '
        trap "" USR1
        answer=$0/$SLURMD_NODENAME.reward
        "${REWARD_PYTHON:-.venv-reward/bin/python}" -m reward check >"$answer.writing" 2>"$answer.log" ||
            tail -n 1 "$answer.log" >"$answer.writing"
        mv "$answer.writing" "$answer"' "$DOCTOR_DIR" &
    trainer doctor "${each[@]}" -- --folder "$DOCTOR_DIR" --nodes "$(joined "${NODES[@]}")" --reward-elsewhere \
        ${allowed[@]+"${allowed[@]}"} "$@" || code=$?
    wait
    [ "$code" -ne 2 ] || mark_failed "the configuration is refused, for the reason that stands above"
    for node in "${NODES[@]}"; do
        until grep -qs '"is_complete": true' "$DOCTOR_DIR/$node.json" || [ "$((patience--))" -le 0 ]; do
            sleep 1 # a shared file system may show late what another node has written
        done
        if ! grep -qs '"is_complete": true' "$DOCTOR_DIR/$node.json"; then
            say "$node did not answer"
            silent=$((silent + 1))
            BAD_NODES+=("$node")
        elif ! grep -q '"verdict": "ok"' "$DOCTOR_DIR/$node.json"; then
            sentence=$(sed -n 's/^ "sentence": "\(.*\)",$/\1/p' "$DOCTOR_DIR/$node.json")
            say "$node: $sentence"
            first=${first:-$sentence}
            BAD_NODES+=("$node")
        fi
    done
    if [ "$silent" -eq ${#NODES[@]} ]; then
        BAD_NODES=()
        go_on_later "doctor ended with code $code and without an answer" "$first_step"
    fi
    # What most nodes have is no fault of a node.
    [ $((2 * ${#BAD_NODES[@]})) -le ${#NODES[@]} ] ||
        mark_failed "${#BAD_NODES[@]} of ${#NODES[@]} nodes cannot run this: ${first:-they did not answer}"
    [ ${#BAD_NODES[@]} -eq 0 ] || go_on_later "doctor found fault with ${BAD_NODES[*]}" "$first_step"
}

joined() { # WORD...: with commas
    local IFS=,
    echo "$*"
}

leave_out() { # NODE...: the next life of this job, which is back in the queue, does without them
    printf '%s\n' "$@" >>"$MARKER.excluded"
    local known
    known=$(scontrol show job "$SLURM_JOB_ID" | sed -nE 's/.*ExcNodeList=([^ ]+).*/\1/p')
    [ "$known" != "(null)" ] || known=
    scontrol update "JobId=$SLURM_JOB_ID" "ExcNodeList=${known:+$known,}$(joined "$@")" ||
        say "Slurm does not exclude $*: submit the launcher again with --exclude=$(joined "$@")"
}

# --------------------------------------------------------------------------------------------- the reward service
start_reward_service() { # one server a node, beside the trainer; they end with the job
    local node ready
    rm -f "$REWARD_DIR"/*.json "$REWARD_DIR/over"
    HAS_SERVERS=yes
    trap end_reward_service EXIT # also when scancel ends this script
    for node in "${NODES[@]}"; do
        step "${REWARD_CONTAINER:-}" --job-name=reward --nodes=1 --ntasks=1 --nodelist="$node" \
            --cpus-per-task="$SLURM_CPUS_ON_NODE" --open-mode=append --output="$REWARD_DIR/$node.log" \
            bash slurm/reward.sh "$REWARD_DIR" "$(node_address "$node")" 2>>"$REWARD_DIR/$node.log" &
    done
    for ((second = 0; second < ${REWARD_READY_S:-180}; second++)); do
        ready=$(find "$REWARD_DIR" -name '*.json' | wc -l)
        [ "$ready" -lt ${#NODES[@]} ] || return 0
        [ -n "$(jobs -rp)" ] || break
        sleep 1
    done
    say "the reward service is ready on $ready of ${#NODES[@]} nodes; what it said last:"
    tail -n 3 "$REWARD_DIR"/*.log
    [ "$ready" -gt 0 ]
}

end_reward_service() { # a server that ends from now on, by Slurm's SIGTERM for example, is not started again
    # Only by the job that started them: another one may train in the same folder.
    [ -z "${HAS_SERVERS:-}" ] || touch "$REWARD_DIR/over" || true
}

needs_reward_service() { # false if the run's own functions grade everything
    [ ! -e "$DOCTOR_DIR/domains" ] || [ -s "$DOCTOR_DIR/domains" ]
}

can_grade() { # false if the data has code, and no server a sandbox for it
    ! grep -qsx code "$DOCTOR_DIR/domains" || grep -qsv '"sandbox": "none"' "$REWARD_DIR"/*.json
}

# ---------------------------------------------------------------------------------------------------- the trainer
trainer() { # COMMAND SRUN-OPTIONS... -- ARGUMENTS...: `python -m nemo_prorl COMMAND` as the tasks of a step
    local options=() command=$1
    shift
    while [ "$1" != -- ]; do
        options+=("$1")
        shift
    done
    shift
    # A SIGUSR1 that comes before the trainer handles it would end the rank.
    # shellcheck disable=SC2016
    step "${CONTAINER:-}" --job-name="$command" --mpi=none "${options[@]}" bash -c '
        trap "" USR1
        # Code is loaded from there: nobody else may have put it there.
        mkdir -p -m 700 "$CACHE_DIR" && [ -O "$CACHE_DIR" ] || {
            echo "error: CACHE_DIR=$CACHE_DIR on $(hostname) belongs to somebody else: name another folder in site.env." >&2
            exit 1
        }
        export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE=$((WORLD_SIZE / SLURM_JOB_NUM_NODES))
        exec "${PYTHON:-.venv/bin/python}" -m nemo_prorl "$0" "$@"' "$command" "stage=$STAGE" \
        "exp_manager.explicit_log_dir=$RUN_DIR" "reward.discovery_dir=$REWARD_DIR" "reward.token_file=$REWARD_DIR/token" "$@"
}

# -------------------------------------------------------------------------------------------------------- the end
go_on_later() { # WHAT-HAPPENED STEP-AT-START: requeues the job, unless too many lives in a row brought no progress
    local idle=0
    if [ "$(newest_step)" -le "$2" ]; then
        idle=$(($(cat "$MARKER.restarts" 2>/dev/null || echo 0) + 1))
    fi
    echo "$idle" >"$MARKER.restarts"
    [ "$idle" -le "${MAX_RESTARTS:=3}" ] ||
        mark_failed "$1 at step $(newest_step), and MAX_RESTARTS=$MAX_RESTARTS restarts in a row had brought no new checkpoint"
    say "$1 at step $(newest_step); the job goes back to the queue and continues from there"
    end_reward_service
    trap "" TERM # with which the requeue ends this script, and not before Slurm knows what to leave out
    scontrol requeue "$SLURM_JOB_ID" || { say "Slurm refuses that: submit the launcher again" && exit 1; }
    [ ${#BAD_NODES[@]} -eq 0 ] || leave_out "${BAD_NODES[@]}"
    exit 0
}

run_stage() { # STAGE [OVERRIDE...]: trains a stage from where it stands, as far as this job's time allows
    STAGE=$1 RUN_DIR=${RUN_DIR:-runs/prorl}
    shift
    for override in "$@"; do
        case $override in
            exp_manager.explicit_log_dir=*) RUN_DIR=${override#*=} ;;
            stage=* | stage.name=*) say "$override: a launcher trains its own stage; submit another one" && exit 1 ;;
        esac
    done
    MARKER=$RUN_DIR/stages/$STAGE REWARD_DIR=$RUN_DIR/reward DOCTOR_DIR=$RUN_DIR/doctor BAD_NODES=()
    mkdir -p "$RUN_DIR/stages" "$REWARD_DIR"
    [ -s "$REWARD_DIR/token" ] || (umask 077 && head -c 32 /dev/urandom | base64 >"$REWARD_DIR/token")
    [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || rm -f "$MARKER.failed" "$MARKER.restarts" "$MARKER.excluded"
    [ ! -e "$MARKER.done" ] || { say "is done already" && exit 0; }
    # Slurm forgets jobs after a while, and then takes every afterok for fulfilled.
    local code=0 parent first_step
    parent=$(sed -n 's/^  parent: //p' "conf/stage/$STAGE.yaml")
    [ -z "$parent" ] || [ -e "$RUN_DIR/stages/$parent.done" ] || mark_failed "stage $parent, which it continues, is not done"
    first_step=$(newest_step)
    read_allocation
    use_local_caches
    say "job $SLURM_JOB_ID, life $((${SLURM_RESTART_COUNT:-0} + 1)): ${#NODES[@]} nodes x $RANKS_PER_NODE ranks, from step $first_step"
    check_nodes "$first_step" "$@"
    ! needs_reward_service || start_reward_service || go_on_later "no reward service" "$first_step"
    can_grade || mark_failed "the data has code, and no reward server has a sandbox for it ($REWARD_DIR/NODE.log says why)"
    # block:block: neighbouring ranks, and so neighbouring GPUs, share a socket. Each rank sees all GPUs that the job has
    # on its node; with --gpu-bind=none it would see those of other jobs as well, where no cgroup hides them.
    trainer train --nodes="${#NODES[@]}" --ntasks="$WORLD_SIZE" --ntasks-per-node="$RANKS_PER_NODE" --label \
        --cpus-per-task="$CPUS_PER_RANK" --kill-on-bad-exit=1 --distribution=block:block -- "$@" || code=$?
    [ ! -e "$MARKER.done" ] || { say "done" && exit 0; }
    [ ! -e "$MARKER.failed" ] || { say "failed: $(cat "$MARKER.failed")" && exit 1; }
    [ "$code" -eq 0 ] || go_on_later "ended with code $code" "$first_step"
    go_on_later "paused" "$first_step"
}
