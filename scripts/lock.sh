#!/bin/sh
# Writes the constraints files anew from pyproject.toml, with the newest versions that fit together.
# Each file is a whole set for Linux and Python 3.11 to 3.13; use one of them at a time.
set -eu
cd "$(dirname "$0")/.."

tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
"${PYTHON:-python3}" -m venv "$tools/venv"
"$tools/venv/bin/python" -m pip install --quiet 'uv>=0.13'

lock() {
    output=$1 use=$2
    shift 2
    {
        echo "# Written by scripts/lock.sh; do not edit. For Linux, Python 3.11 to 3.13."
        echo "# $use"
        "$tools/venv/bin/uv" pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate \
            "$@" pyproject.toml
    } >"$tools/out"
    sed -e "s/ ; .*implementation_name.*//" -e "s/ and platform_machine == 'x86_64'.*//" -e "s/ ; python_full_version < '3.14'\$//" \
        "$tools/out" >"$output"
    echo "wrote $output"
}

printf '%s\n' 'pyspark==4.0.*' 'pandas==2.2.*' 'pyarrow==24.*' 'polars==2.1.*' 'numpy==2.0.*' >"$tools/oldest.txt"

lock constraints.txt "Everything but CUDA 12: pip install -c constraints.txt '.[spark,cu13]'" \
    --extra dev --extra docs --extra cu13
lock constraints-cu12.txt "CUDA 12: pip install -c constraints-cu12.txt '.[spark,cu12]'" \
    --extra test --extra cu12
# NumPy 2.0 has no wheels for Python 3.13.
lock constraints-oldest.txt "The oldest libraries that are tested: pip install -c constraints-oldest.txt '.[spark]'" \
    --extra test --constraint "$tools/oldest.txt"
