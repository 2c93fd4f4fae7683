#!/usr/bin/env bash
# Builds docker/Dockerfile as it is and tries what is in the image: doctor, the demo, an unchanged program under
# spark-submit, and a job on a master and a worker, each in a container of its own.
#
#   scripts/image_test.sh [DOCKERFILE ARGUMENT=VALUE ...]      for example PYTHON=3.12 JAVA=21 EXTRA=
#
#   TOOL           docker, podman or buildah (default: the first that works)
#   BUILD_OPTIONS  further options of its build, such as --volume=/etc/pip.conf:/etc/pip.conf:ro
#   SUITES         what debootstrap makes the base image of where its registry is not reached: the first that it can
#                  (default: "noble bookworm trixie", from their usual mirrors)
#   BUILT          1: try the image gpujoin-image-test that is here already
#
# Exit status: 0 all tried, 77 skipped (a reason is printed), anything else failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

IMAGE=gpujoin-image-test
SUITES=${SUITES:-noble bookworm trixie}
MASTER_PORT=${MASTER_PORT:-17077}
MASTER=spark://127.0.0.1:$MASTER_PORT
work=$(mktemp -d)
started=()

say() { echo "image-test: $*" >&2; }
skip() {
    say "skipped: $*"
    exit 77
}

works() {
    command -v "$1" >/dev/null || return 1
    case $1 in
    buildah) buildah --version >/dev/null 2>&1 ;;
    *) "$1" info >/dev/null 2>&1 ;;
    esac
}

find_tool() {
    for name in ${TOOL:-docker podman buildah}; do
        if works "$name"; then
            echo "$name"
            return
        fi
    done
    return 1
}

descendants() {
    for child in $(pgrep -P "$1"); do
        descendants "$child"
        echo "$child"
    done
}

clean_up() {
    # Signals to buildah do not reach what runs in its containers.
    for process in "${started[@]}"; do
        # shellcheck disable=SC2046  # numbers
        kill -TERM $(descendants "$process") "$process" 2>/dev/null || true
    done
    if [ -f "$work/containers" ]; then
        xargs --no-run-if-empty buildah rm <"$work/containers" >/dev/null 2>&1 || true
    fi
    rm -rf "$work"
}

# The value of an argument of the build that was given, else its default.
argument() {
    name=$1
    shift
    for given in "$@"; do
        case $given in "$name="*)
            echo "${given#*=}"
            return
            ;;
        esac
    done
    sed -n "s/^ARG $name=//p" docker/Dockerfile
}

# Sets the base image, and what it has instead of the Dockerfile's default versions: given, pulled, or made by
# debootstrap of a distribution's own packages.
find_base() {
    base=$(argument BASE "$@")
    versions=()
    if "$tool" inspect "$base" >/dev/null 2>&1 || "$tool" pull "$base" >&2; then
        return
    fi
    say "$base cannot be pulled: debootstrap makes a base image"
    command -v debootstrap >/dev/null && [ "$(id -u)" = 0 ] || return 1
    for suite in $SUITES; do
        if debootstrap --variant=minbase "$suite" "$work/base" >&2; then
            case $suite in
            bookworm) versions=(PYTHON=3.11 JAVA=17) ;;
            trixie) versions=(PYTHON=3.13 JAVA=21) ;;
            noble) sed -i 's/ main$/ main universe/' "$work/base/etc/apt/sources.list" ;;
            esac
            import_base
            base=$IMAGE-base
            return
        fi
        rm -rf "$work/base"
    done
    return 1
}

import_base() {
    if [ "$tool" = buildah ]; then
        container=$(buildah from scratch)
        buildah add --quiet "$container" "$work/base" / >&2
        buildah commit --quiet "$container" "$IMAGE-base" >&2
        buildah rm "$container" >&2
    else
        tar --create --directory "$work/base" . | "$tool" import - "$IMAGE-base" >&2
    fi
    rm -rf "$work/base"
}

build() {
    options=(--file docker/Dockerfile --tag "$IMAGE")
    # The last value of an argument counts.
    for given in "${versions[@]}" "$@" "BASE=$base"; do
        options+=(--build-arg "$given")
    done
    # shellcheck disable=SC2206  # options are words
    options+=(${BUILD_OPTIONS:-})
    case $tool in
    buildah) buildah bud --isolation chroot --format docker --ignorefile docker/Dockerfile.dockerignore "${options[@]}" . ;;
    *) "$tool" build "${options[@]}" . ;;
    esac
}

# Runs the entrypoint with arguments in a container of its own; /app is a folder of this machine.
run() {
    case $tool in
    buildah)
        container=$(buildah from "$IMAGE")
        echo "$container" >>"$work/containers"
        # buildah runs no entrypoint, and knows no address of the container's name.
        buildah run --isolation chroot --hostname localhost --volume "$work/app:/app" "$container" -- \
            /opt/gpujoin/entrypoint.sh "$@" || return
        buildah rm "$container" >/dev/null
        ;;
    *) "$tool" run --rm --network host --volume "$work/app:/app" "$IMAGE" "$@" ;;
    esac
}

# The same in the background, until the script ends.
start() {
    name=$1
    shift
    run "$@" >"$work/$name.log" 2>&1 &
    started+=($!)
}

wait_for() {
    for _ in $(seq 120); do
        grep -q "$2" "$work/$1.log" && return
        sleep 1
    done
    cat "$work/$1.log" >&2
    say "failed: the $1 does not say '$2'"
    exit 1
}

step() {
    say "$1"
    shift
    begun=$SECONDS
    "$@" || {
        say "failed: $*"
        exit 1
    }
    say "done in $((SECONDS - begun)) s"
}

tool=$(find_tool) || skip "${TOOL:-docker, podman or buildah} is not here, or does not work; as root: apt-get install buildah debootstrap"
trap clean_up EXIT
mkdir -m 777 "$work/app"
cp docker/image_test_app.py "$work/app/app.py"
chmod -R a+rX "$work/app"

if [ -z "${BUILT:-}" ]; then
    find_base "$@" || skip "neither is the registry of the base image reached, nor does debootstrap make one of $SUITES"
    step "building with $tool on $base" build "$@"
fi
case $tool in
buildah) buildah images "$IMAGE" ;;
*) "$tool" images "$IMAGE" ;;
esac

step "doctor" run doctor
step "demo" run demo --sf 0.01
step "a program under spark-submit" run spark-submit --conf spark.gpujoin.enabled=true /app/app.py /app/local
start master bash -c "SPARK_MASTER_HOST=127.0.0.1 exec /opt/gpujoin/entrypoint.sh master --port $MASTER_PORT --webui-port 0"
wait_for master "I have been elected leader"
start worker worker --host 127.0.0.1 --webui-port 0 --cores 1 --memory 1500m "$MASTER"
wait_for worker "Successfully registered with master"
step "a job on a master and a worker" run spark-submit --master "$MASTER" --conf spark.driver.host=127.0.0.1 \
    --conf spark.executor.memory=1g --conf spark.gpujoin.enabled=true /app/app.py /app/cluster
say "passed"
