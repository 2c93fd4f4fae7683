#!/bin/sh
# Makes or updates a virtual environment with gpujoin installed editable and the named extras.
#
#   scripts/setup_env.sh EXTRA...
#
#   PYTHON       the Python to make it with, 3.11 or newer (default: the first suitable one on PATH)
#   VENV         where it lies (default: .venv)
#   CONSTRAINTS  the constraints file to install with (default: constraints.txt)
#
# Does nothing, in well under a second, when the environment is as the project's files say.
set -eu
cd "$(dirname "$0")/.."

VENV=${VENV:-.venv}
CONSTRAINTS=${CONSTRAINTS:-constraints.txt}
EXTRAS=$(echo "${*:-test}" | tr ' ' ',')

say() { echo "setup_env: $*" >&2; }
fail() { say "$*"; exit 1; }

suitable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        suitable "$PYTHON" || fail "PYTHON=$PYTHON is not a working Python 3.11 or newer. Set PYTHON to one."
        echo "$PYTHON"
        return
    fi
    for name in python3 python3.13 python3.12 python3.11; do
        if suitable "$name"; then
            echo "$name"
            return
        fi
    done
    fail "no Python 3.11 or newer on PATH. Install one (apt-get install python3), or set PYTHON to its path."
}

make_venv() {
    python=$(find_python)
    rm -rf "$VENV"
    if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
            fail "$python has no venv module. Run: sudo apt-get install python$version-venv"
        fi
        say "installing python$version-venv with apt-get"
        apt-get update -qq >&2
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "python$version-venv" >/dev/null ||
            fail "apt-get could not install python$version-venv. Install it by hand, then run this again."
    fi
    say "making $VENV with $("$python" --version)"
    "$python" -m venv "$VENV" || fail "$python -m venv $VENV failed; see above."
}

# What the environment depends on. The path is in it because an editable install points back here.
fingerprint() {
    {
        echo "$(pwd) $EXTRAS $CONSTRAINTS"
        cat pyproject.toml "$CONSTRAINTS" scripts/setup_env.sh hatch_build.py startup/*.p*
    } | cksum
}

[ -f "$CONSTRAINTS" ] || fail "CONSTRAINTS=$CONSTRAINTS is not a file. Name one of: $(echo constraints*.txt)."

if command -v flock >/dev/null && [ -z "${GPUJOIN_SETUP_LOCKED:-}" ]; then
    # Two makes at once must not install into one environment.
    GPUJOIN_SETUP_LOCKED=1 exec flock "$VENV.lock" "$0" "$@"
fi

stamp=$VENV/.gpujoin-$(echo "$EXTRAS" | tr ',' '-')
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(fingerprint)" ] && suitable "$VENV/bin/python"; then
    exit 0
fi
if ! suitable "$VENV/bin/python" || ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    make_venv
fi
say "installing gpujoin[$EXTRAS] into $VENV (the first time takes some minutes)"
quiet=--quiet
[ ! -t 2 ] || quiet=
# shellcheck disable=SC2086  # no word at all when it is empty
"$VENV/bin/python" -m pip install $quiet --disable-pip-version-check --constraint "$CONSTRAINTS" --editable ".[$EXTRAS]" ||
    fail "pip could not install gpujoin[$EXTRAS]; see above. Delete $VENV to start afresh."
fingerprint >"$stamp"
