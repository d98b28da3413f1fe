# The functions of the launchers, which source this file. run_stage, at the end, is what a job does.
#
# Ranks are tasks of srun, one per GPU, without torchrun: Slurm starts and labels them, ends all when one fails, and
# sends SIGUSR1 (#SBATCH --signal) to each of them, which would kill torchrun before its ranks have saved. What happens
# next is decided by files in $RUN_DIR/stages (STAGE.done, STAGE.failed), not by exit codes (docs/cluster.md). Nothing is
# read from conf/ here, because an override may change it: `doctor` and `train` compose the same configuration.
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
    # shellcheck disable=SC2086 # unquoted, because MODULES may name several modules
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

mark_failed() { # REASON: ends the job without a requeue; a new sbatch tries again
    say "failed: $1"
    printf '{"reason": "%s"}\n' "$1" >"$MARKER.writing"
    mv "$MARKER.writing" "$MARKER.failed"
    exit 1
}

newest_step() { # prints the step of the newest complete checkpoint, or 0 (names: nemo_prorl/run_folder/checkpoints.py)
    local folders=("$RUN_DIR"/checkpoints/step-*)
    [[ ${folders[-1]} =~ /step-0*([0-9]+)- ]] && echo "${BASH_REMATCH[1]}" || echo 0
}

# ------------------------------------------------------------------------------------------------ the allocation
read_allocation() {
    mapfile -t NODES < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    RANKS_PER_NODE=${SLURM_GPUS_ON_NODE:-1}
    RANKS_PER_NODE=${RANKS_PER_NODE##*:} # SLURM_GPUS_ON_NODE may be "gpu:h100:8"
    CPUS_PER_RANK=$((SLURM_CPUS_ON_NODE / RANKS_PER_NODE))
    MASTER_ADDR=$(node_address "${NODES[0]}")
    MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000)) # below the range of ephemeral ports
    WORLD_SIZE=$((${#NODES[@]} * RANKS_PER_NODE))
    # When the job ends, in seconds since 1970, so that the trainer pauses in time. Slurm sets it from 23.02 on.
    : "${SLURM_JOB_END_TIME:=$(date --date "$(squeue --noheader --job "$SLURM_JOB_ID" --format %e)" +%s 2>/dev/null || true)}"
    : "${OMP_NUM_THREADS:=1}"
    export MASTER_ADDR MASTER_PORT WORLD_SIZE SLURM_JOB_END_TIME OMP_NUM_THREADS
    # NCCL logs the network that it chooses only in debug mode; the trainer copies the choice into the run's log.
    if [ -z "${NCCL_DEBUG:-}" ]; then
        rm -rf "$RUN_DIR/nccl.before"
        [ ! -d "$RUN_DIR/nccl" ] || mv "$RUN_DIR/nccl" "$RUN_DIR/nccl.before" # the previous job's, which may have failed
        mkdir -p "$RUN_DIR/nccl"
        export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET NCCL_DEBUG_FILE
        NCCL_DEBUG_FILE=$(realpath "$RUN_DIR")/nccl/%h.%p
    fi
}

use_local_caches() { # vLLM, Triton and Inductor keep what they compile on the node's own disk, not in HOME
    export CACHE_DIR=${CACHE_DIR:-/tmp/nemo_prorl-$(id -u)}
    export VLLM_CACHE_ROOT=$CACHE_DIR/vllm TRITON_CACHE_DIR=$CACHE_DIR/triton CUDA_CACHE_PATH=$CACHE_DIR/cuda
    export TORCHINDUCTOR_CACHE_DIR=$CACHE_DIR/inductor FLASHINFER_WORKSPACE_BASE=$CACHE_DIR
}

node_address() { # NODE: prints the name or address by which Slurm reaches it
    scontrol show node "$1" | sed -nE 's/.*NodeAddr=([^ ]+).*/\1/p'
}

step() { # IMAGE SRUN-OPTIONS... COMMAND...: runs a job step, in a container unless IMAGE is empty
    local image=$1 options=(--overlap --mem=0) inside=()
    shift
    while [[ $1 == -* ]]; do
        options+=("$1")
        shift
    done
    # Writable, because some packages write into their own folders; without the image's entry point, which is for
    # `docker run`; with the user's own id, because the graders' sandbox cannot change ids if enroot maps the user to
    # root.
    case ${image:+$CONTAINER_RUNTIME} in
        pyxis) options+=(--container-image="$image" --container-mounts="$PWD:$PWD,/tmp:/tmp${MOUNTS:+,$MOUNTS}"
            --container-workdir="$PWD" --no-container-mount-home --container-writable --no-container-entrypoint
            --no-container-remap-root) ;;
        apptainer) inside=(apptainer exec ${SLURM_GPUS_ON_NODE:+--nv} --bind "$PWD,/tmp${MOUNTS:+,$MOUNTS}" --pwd "$PWD"
            --no-home --writable-tmpfs "$image") ;;
    esac
    srun "${options[@]}" ${inside[@]+"${inside[@]}"} "$@"
}

# ------------------------------------------------------------------------------------------------------- the nodes
check_nodes() { # STEP-AT-START OVERRIDE...: runs `doctor` on every node; returns only if all of them suit this run
    local code=0 node sentence silent=0 first='' patience=30 first_step=$1 each allowed=()
    shift
    for check in ${DOCTOR_ALLOW:-}; do
        allowed+=(--allow "$check")
    done
    rm -rf "$DOCTOR_DIR" && mkdir -p "$DOCTOR_DIR"
    each=(--nodes="${#NODES[@]}" --ntasks="${#NODES[@]}" --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_ON_NODE"
        --kill-on-bad-exit=0 --mpi=none --time=10)
    # The graders may have a container of their own, so their check is a step of its own beside doctor.
    # shellcheck disable=SC2016
    step "${REWARD_CONTAINER:-}" --job-name=sandbox "${each[@]}" bash -c '
        trap "" USR1
        answer=$0/$SLURMD_NODENAME.reward
        "${REWARD_PYTHON:-.venv-reward/bin/python}" -m reward check --json >"$answer.writing" 2>"$answer.log" ||
            tail -n 1 "$answer.log" >"$answer.writing"
        mv "$answer.writing" "$answer"' "$DOCTOR_DIR" &
    trainer doctor "${each[@]}" -- --folder "$DOCTOR_DIR" --nodes "$(joined "${NODES[@]}")" --reward-elsewhere \
        ${allowed[@]+"${allowed[@]}"} "$@" || code=$?
    wait
    if [ "$code" -eq 2 ]; then
        sentence=$(sentence_of "${NODES[0]}")
        mark_failed "${sentence:-the configuration is refused, for the reason given above}"
    fi
    for node in "${NODES[@]}"; do
        until grep -qs '"is_complete": true' "$DOCTOR_DIR/$node.json" || [ "$((patience--))" -le 0 ]; do
            sleep 1 # a shared file system may show late what another node has written
        done
        if ! grep -qs '"is_complete": true' "$DOCTOR_DIR/$node.json"; then
            say "$node did not answer"
            silent=$((silent + 1))
            BAD_NODES+=("$node")
        elif ! grep -q '"verdict": "ok"' "$DOCTOR_DIR/$node.json"; then
            sentence=$(sentence_of "$node")
            say "$node: $sentence"
            first=${first:-$sentence}
            BAD_NODES+=("$node")
        fi
    done
    if [ "$silent" -eq ${#NODES[@]} ]; then
        BAD_NODES=()
        go_on_later "doctor ended with code $code and without an answer" "$first_step"
    fi
    # A fault of most nodes is the configuration's or the cluster's: other nodes would have it too.
    [ $((2 * ${#BAD_NODES[@]})) -le ${#NODES[@]} ] ||
        mark_failed "${#BAD_NODES[@]} of ${#NODES[@]} nodes cannot run this: ${first:-they did not answer}"
    [ ${#BAD_NODES[@]} -eq 0 ] || go_on_later "doctor found fault with ${BAD_NODES[*]}" "$first_step"
}

sentence_of() { # NODE: prints the first failure that its `doctor` found, as JSON text without its quotation marks
    [ ! -e "$DOCTOR_DIR/$1.json" ] || sed -n 's/^ "sentence": "\(.*\)",$/\1/p' "$DOCTOR_DIR/$1.json"
}

joined() { # WORD...: prints the words with commas between them
    local IFS=,
    echo "$*"
}

leave_out() { # NODE...: excludes these nodes from the next start of this job, which is in the queue again
    printf '%s\n' "$@" >>"$MARKER.excluded"
    local known
    known=$(scontrol show job "$SLURM_JOB_ID" | sed -nE 's/.*ExcNodeList=([^ ]+).*/\1/p')
    [ "$known" != "(null)" ] || known=
    scontrol update "JobId=$SLURM_JOB_ID" "ExcNodeList=${known:+$known,}$(joined "$@")" ||
        say "Slurm does not exclude $*: submit the launcher again with --exclude=$(joined "$@")"
}

# --------------------------------------------------------------------------------------------- the reward service
start_reward_service() { # starts one server per node, beside the trainer; fails if none is ready in time
    local node ready
    rm -f "$REWARD_DIR"/*.json "$REWARD_DIR/over"
    HAS_SERVERS=yes
    trap end_reward_service EXIT # for example when scancel ends this script
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
    say "the reward service is ready on $ready of ${#NODES[@]} nodes; the last lines of each server's log:"
    tail -n 3 "$REWARD_DIR"/*.log
    [ "$ready" -gt 0 ]
}

end_reward_service() { # servers that end from now on, for example by Slurm's SIGTERM, are not started again
    # Only the job that started them may do this: another job may train in the same folder.
    [ -z "${HAS_SERVERS:-}" ] || touch "$REWARD_DIR/over" || true
}

needs_reward_service() { # false if the user's own reward functions grade all domains
    [ ! -e "$DOCTOR_DIR/domains" ] || [ -s "$DOCTOR_DIR/domains" ]
}

can_grade() { # false if the data has code and no server has a sandbox for it
    ! grep -qsx code "$DOCTOR_DIR/domains" || grep -qsv '"sandbox": "none"' "$REWARD_DIR"/*.json
}

# ---------------------------------------------------------------------------------------------------- the trainer
trainer() { # COMMAND SRUN-OPTIONS... -- ARGUMENTS...: runs `python -m nemo_prorl COMMAND` as the tasks of a step
    local options=() command=$1 choice="stage=$STAGE"
    shift
    while [ "$1" != -- ]; do
        options+=("$1")
        shift
    done
    shift
    # The file of a fork's arm (nemo_prorl/fork/arms.py) has all options of its stage, which is not in conf/stage/.
    [[ " $* " != *"/arm.yaml "* ]] || choice="stage.name=$STAGE"
    # Ignores SIGUSR1, which would kill the rank until the trainer has its own handler.
    # shellcheck disable=SC2016
    step "${CONTAINER:-}" --job-name="$command" --mpi=none "${options[@]}" bash -c '
        trap "" USR1
        # Compiled code is loaded from this folder, so it must not belong to another user.
        mkdir -p -m 700 "$CACHE_DIR" && [ -O "$CACHE_DIR" ] || {
            echo "error: CACHE_DIR=$CACHE_DIR on $(hostname) belongs to somebody else: name another folder in site.env." >&2
            exit 1
        }
        export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE=$((WORLD_SIZE / SLURM_JOB_NUM_NODES))
        exec "${PYTHON:-.venv/bin/python}" -m nemo_prorl "$0" "$@"' "$command" "$choice" \
        "exp_manager.explicit_log_dir=$RUN_DIR" "reward.discovery_dir=$REWARD_DIR" "reward.token_file=$REWARD_DIR/token" "$@"
}

# -------------------------------------------------------------------------------------------------------- the end
go_on_later() { # WHAT-HAPPENED STEP-AT-START: requeues the job, unless too many starts in a row made no progress
    local idle=0
    if [ "$(newest_step)" -le "$2" ]; then
        idle=$(($(cat "$MARKER.restarts" 2>/dev/null || echo 0) + 1))
    fi
    echo "$idle" >"$MARKER.restarts"
    [ "$idle" -le "${MAX_RESTARTS:=3}" ] ||
        mark_failed "$1 at step $(newest_step), and MAX_RESTARTS=$MAX_RESTARTS restarts in a row had brought no new checkpoint"
    say "$1 at step $(newest_step); the job goes back to the queue and continues from there"
    end_reward_service
    trap "" TERM # the requeue's SIGTERM would end this script before leave_out
    scontrol requeue "$SLURM_JOB_ID" || { say "Slurm refuses that: submit the launcher again" && exit 1; }
    [ ${#BAD_NODES[@]} -eq 0 ] || leave_out "${BAD_NODES[@]}"
    exit 0
}

run_stage() { # STAGE [OVERRIDE...]: starts or continues a stage and trains it as long as the job's time allows
    STAGE=$1
    shift
    for override in "$@"; do
        case $override in
            exp_manager.explicit_log_dir=[\'\"]*) say "$override: write a folder that needs no quotation marks" && exit 1 ;;
            exp_manager.explicit_log_dir=*) RUN_DIR=${override#*=} ;;
            stage=* | stage.name=*) say "$override: a launcher trains its own stage; submit another one" && exit 1 ;;
        esac
    done
    if [ -z "${RUN_DIR:-}" ] && [[ " $* " == *" --config-name"* ]]; then
        say "--config-name may name another run folder than runs/prorl: write exp_manager.explicit_log_dir=FOLDER too"
        exit 1
    fi
    : "${RUN_DIR:=runs/prorl}"
    MARKER=$RUN_DIR/stages/$STAGE REWARD_DIR=$RUN_DIR/reward DOCTOR_DIR=$RUN_DIR/doctor BAD_NODES=()
    mkdir -p "$RUN_DIR/stages" "$REWARD_DIR"
    [ -s "$REWARD_DIR/token" ] || (umask 077 && head -c 32 /dev/urandom | base64 >"$REWARD_DIR/token")
    [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || rm -f "$MARKER.failed" "$MARKER.restarts" "$MARKER.excluded"
    [ ! -e "$MARKER.done" ] || { say "is done already" && exit 0; }
    local code=0 first_step
    first_step=$(newest_step)
    read_allocation
    use_local_caches
    say "job $SLURM_JOB_ID, start $((${SLURM_RESTART_COUNT:-0} + 1)): ${#NODES[@]} nodes x $RANKS_PER_NODE ranks, from step $first_step"
    check_nodes "$first_step" "$@"
    ! needs_reward_service || start_reward_service || go_on_later "no reward service" "$first_step"
    can_grade || mark_failed "the data has code, and no reward server has a sandbox for it ($REWARD_DIR/NODE.log says why)"
    # block:block puts neighbouring ranks, and so neighbouring GPUs, on one socket. Each rank sees all GPUs of the job
    # on its node. --gpu-bind=none would also show those of other jobs on clusters without cgroups for devices.
    trainer train --nodes="${#NODES[@]}" --ntasks="$WORLD_SIZE" --ntasks-per-node="$RANKS_PER_NODE" --label \
        --cpus-per-task="$CPUS_PER_RANK" --kill-on-bad-exit=1 --distribution=block:block -- "$@" || code=$?
    [ ! -e "$MARKER.done" ] || { say "done" && exit 0; }
    [ ! -e "$MARKER.failed" ] || { say "failed: $(cat "$MARKER.failed")" && exit 1; }
    [ "$code" -eq 0 ] || go_on_later "ended with code $code" "$first_step"
    go_on_later "paused" "$first_step"
}
