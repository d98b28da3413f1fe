#!/usr/bin/env bash
# Builds the images of the Dockerfile and checks each as an ordinary user with a read-only root: `doctor` and, with
# ENVIRONMENT=cpu, the smoke demo; the reward service's `check`.
#   scripts/build_images.sh [train] [reward] [-- OPTIONS OF THE BUILDER]      without a target: both
#   scripts/build_images.sh train -- --build-arg ENVIRONMENT=cpu
#   NAME     registry.example/team/nemo-prorl, otherwise nemo-prorl; the second image is NAME-reward
#   TAG      otherwise latest
#   BUILDER  docker, podman or buildah; otherwise the first that works here. buildah may have its own options in it:
#            BUILDER="buildah --storage-driver vfs"
#   PUSH=yes pushes what was built and checked to the registry
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    echo "error: $*" >&2
    exit 1
}

targets=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $1 in
        train | reward) targets+=("$1") ;;
        *) fail "'$1' is no target: write train, reward, or nothing for both; the builder's options follow --." ;;
    esac
    shift
done
[ $# -eq 0 ] || shift
[ ${#targets[@]} -gt 0 ] || targets=(train reward)
NAME=${NAME:-nemo-prorl}
TAG=${TAG:-latest}

if [ -z "${BUILDER:-}" ]; then
    for BUILDER in docker podman buildah ""; do
        ! $BUILDER info >/dev/null 2>&1 || break
    done
fi
[ -n "$BUILDER" ] || fail "neither docker, podman nor buildah works here (tried: 'docker info' and so on)."
read -ra builder <<<"$BUILDER"

# Runs a command in an image as the user 1000; only /tmp can be written.
run_in() { # IMAGE COMMAND...
    local image=$1 container root status=0
    shift
    if [ "${builder[0]##*/}" != buildah ]; then
        "${builder[@]}" run --rm --read-only --tmpfs /tmp:exec --user 1000:1000 --env HOME=/tmp --entrypoint "" "$image" "$@"
        return
    fi
    # `buildah run` has no read-only root.
    container=$("${builder[@]}" from "$image")
    root=$("${builder[@]}" mount "$container")
    # shellcheck disable=SC2016 # the inner shell expands them
    unshare --mount --pid --fork bash -c 'set -e; root=$1; directory=$2; path=$3; shift 3
        mount --bind "$root" "$root" && mount -o remount,bind,ro "$root"
        mount -t tmpfs tmpfs "$root/tmp" && mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev" && mount --rbind /sys "$root/sys"
        exec env -i HOME=/tmp "PATH=$path" chroot --userspec=1000:1000 "$root" sh -c "cd \"$directory\" && exec \"\$@\"" - "$@"' \
        - "$root" "$("${builder[@]}" inspect --format '{{.OCIv1.Config.WorkingDir}}' "$container")" \
        "$("${builder[@]}" inspect --format '{{range .OCIv1.Config.Env}}{{println .}}{{end}}' "$container" |
            sed -n 's/^PATH=//p')" "$@" || status=$?
    "${builder[@]}" umount "$container" >/dev/null
    "${builder[@]}" rm "$container" >/dev/null
    return $status
}

for target in "${targets[@]}"; do
    image=$NAME:$TAG
    [ "$target" = train ] || image=$NAME-reward:$TAG
    echo "=== $image"
    "${builder[@]}" build --target "$target" --tag "$image" "$@" . || fail "$image was not built; the error stands above."
    if [ "$target" = train ]; then
        run_in "$image" python -m nemo_prorl doctor exp_manager.explicit_log_dir=/tmp/run &&
            case " $* " in
                *" ENVIRONMENT=cpu "* | *"=ENVIRONMENT=cpu "*) run_in "$image" sh -c 'cd /tmp && exec python -m nemo_prorl demo --smoke --out demo' ;;
                *) echo "The demo needs a GPU and was not run: docs/gpu.md has the first commands there." ;;
            esac
    else
        run_in "$image" prorl-reward check
    fi || fail "$image does not work as an ordinary user with a read-only root; its message stands above."
    [ "${PUSH:-}" != yes ] || "${builder[@]}" push "$image"
done
