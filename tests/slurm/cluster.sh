#!/usr/bin/env bash
# A real Slurm on this machine, from Debian's packages slurm-wlm and munge: several virtual nodes, each a slurmd of its
# own, with GPUs that are only files. Everything lies in one folder, nothing in /etc; needs neither root nor systemd.
#
#   tests/slurm/cluster.sh up FOLDER [NODES [GPUS]]      then export SLURM_CONF=FOLDER/slurm.conf, and use sbatch
#   tests/slurm/cluster.sh down FOLDER                   cancels every job and ends the daemons
#
# A job of the partition `urgent` preempts those of `batch`, which it sends SIGTERM and gives GRACE_S seconds.
# Not here: accounting (sacct, accounts, QOS), limits by cgroup, containers (pyxis).
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
GRACE_S=120

fail() {
    echo "error: $*" >&2
    exit 1
}

free_ports() { # COUNT: ports that nobody uses, below those that Linux gives to outgoing connections at any moment
    python3 -c '
import random, socket, sys
from contextlib import suppress
below = max(20_000, int(open("/proc/sys/net/ipv4/ip_local_port_range").read().split()[0]))
listeners = []
for port in random.sample(range(10_000, below), below - 10_000):
    if len(listeners) < int(sys.argv[1]):
        with suppress(OSError):
            listeners.append(socket.create_server(("127.0.0.1", port)))
print(*(listener.getsockname()[1] for listener in listeners), sep="\n")' "$1"
}

configure() { # NODES GPUS
    local ports node
    mapfile -t ports < <(free_ports $(($1 + 1)))
    cat <<EOT
ClusterName=test
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=${ports[0]}
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$FOLDER/munge.socket
CredType=cred/munge
StateSaveLocation=$FOLDER/state
SlurmdSpoolDir=$FOLDER/spool.%n
SlurmctldPidFile=$FOLDER/slurmctld.pid
SlurmdPidFile=$FOLDER/slurmd.%n.pid
SlurmctldLogFile=$FOLDER/slurmctld.log
SlurmdLogFile=$FOLDER/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
# jobacct_gather/linux of 22.05 makes slurmstepd crash on recent kernels, and the job is requeued for ever.
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=1,sched_min_interval=0
# The nodes' processors and memory are fiction: this machine may have fewer.
SlurmdParameters=config_overrides
GresTypes=gpu
ReturnToService=2
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=2
MinJobAge=3600
# A busy machine is no dead node.
SlurmdTimeout=300
MessageTimeout=60
BatchStartTimeout=60
NodeName=DEFAULT CPUs=16 Boards=1 SocketsPerBoard=1 CoresPerSocket=16 ThreadsPerCore=1 RealMemory=24000 Gres=gpu:$2
EOT
    for ((node = 1; node <= $1; node++)); do
        echo "NodeName=node$node NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=${ports[node]}"
    done
    echo "PartitionName=batch Nodes=ALL Default=YES MaxTime=INFINITE DefMemPerCPU=100 PriorityTier=1 GraceTime=$GRACE_S"
    echo "PartitionName=urgent Nodes=ALL MaxTime=INFINITE DefMemPerCPU=100 PriorityTier=2 PreemptMode=OFF"
}

is_up() {
    [ "$(sinfo --noheader --partition=batch --Node --states=idle,mixed,alloc,completing --format=%N 2>/dev/null | wc -l)" = "$1" ]
}

up() { # NODES GPUS
    local node gpu
    for tool in munged slurmctld slurmd sbatch; do
        command -v "$tool" >/dev/null || fail "$tool is missing: apt-get install slurm-wlm munge"
    done
    [ ! -e "$FOLDER/slurm.conf" ] || fail "$FOLDER holds a cluster already"
    mkdir -p "$FOLDER/state"
    FOLDER=$(cd "$FOLDER" && pwd)
    export SLURM_CONF=$FOLDER/slurm.conf
    (umask 077 && head -c 1024 /dev/urandom >"$FOLDER/munge.key")
    # --force: munge distrusts sockets in folders that others may write to, such as those below /tmp.
    munged --force --socket="$FOLDER/munge.socket" --key-file="$FOLDER/munge.key" --pid-file="$FOLDER/munged.pid" \
        --log-file="$FOLDER/munged.log" --seed-file="$FOLDER/munge.seed" --num-threads=2 2>/dev/null
    for ((gpu = 0; gpu < $2; gpu++)); do
        ln -s /dev/null "$FOLDER/gpu$gpu"
    done
    echo "Name=gpu File=$FOLDER/gpu[0-$(($2 - 1))]" >"$FOLDER/gres.conf"
    configure "$1" "$2" >"$SLURM_CONF"
    slurmctld -i
    for ((node = 1; node <= $1; node++)); do
        mkdir -p "$FOLDER/spool.node$node"
        slurmd -N "node$node" -d "$(readlink -f "$(command -v slurmstepd)")"
    done
    for _ in {1..500}; do
        is_up "$1" && return
        sleep 0.2
    done
    fail "the nodes did not come up: $(sinfo --Node) $(tail -qn 3 "$FOLDER"/*.log)"
}

ended() { # PID-FILE
    [ ! -s "$1" ] || ! kill -0 "$(cat "$1")" 2>/dev/null
}

down() {
    local file
    export SLURM_CONF=$FOLDER/slurm.conf
    squeue --noheader --format=%A 2>/dev/null | sort -u | xargs -r scancel || true
    for _ in {1..50}; do
        [ -n "$(squeue --noheader 2>/dev/null)" ] || break
        sleep 0.2
    done
    for file in "$FOLDER"/slurmd.*.pid "$FOLDER/slurmctld.pid" "$FOLDER/munged.pid"; do
        ended "$file" || kill "$(cat "$file")"
    done
    for file in "$FOLDER"/slurmd.*.pid "$FOLDER/slurmctld.pid" "$FOLDER/munged.pid"; do
        for _ in {1..50}; do
            ended "$file" && break
            sleep 0.1
        done
    done
}

FOLDER=${2:?"usage: cluster.sh up|down FOLDER [NODES [GPUS]]"}
case $1 in
    up) up "${3:-2}" "${4:-2}" ;;
    down) down ;;
    *) fail "usage: cluster.sh up|down FOLDER [NODES [GPUS]]" ;;
esac
