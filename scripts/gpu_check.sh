#!/bin/sh
# Runs everything that needs a GPU, in three commands of at most ten minutes each, and writes reports and results.
#
#   scripts/gpu_check.sh [kernels] [table] [engine] [pytest arguments ...]
#
#   PYTHON             an environment's Python to use as it is, gpujoin's GPU extra and pytest installed; by default the
#                      python3 on PATH if it has them, else one is made in .venv-gpu, with the extra that fits the driver
#   GPU_CHECK_OUT      folder of gpu-check-NAME.md and gpu-check-NAME.tar.gz, by default benchmarks/results
#   GPU_CHECK_SECONDS  seconds of each command, if fewer than ten minutes
#   GPU_CHECK_TPCH     folder with the tables of TPC-H at scale 1, where tpchgen-cli is not installed
#
# Exit status 0 if there is a GPU and all passed, 1 if anything failed, 2 if there is no GPU.
set -eu
cd "$(dirname "$0")/.."

say() { echo "gpu-check: $*" >&2; }

if ! gpus=$(nvidia-smi --query-gpu=index,name --format=csv,noheader 2>/dev/null); then
    say "no GPU is usable here: nvidia-smi is missing or failed. Run this on a machine with an NVIDIA GPU and driver."
    exit 2
fi
say "found GPU $gpus"

needed='import cupy, duckdb, numpy, polars, pyarrow, pylibcudf, pytest, rmm'
if [ -z "${PYTHON:-}" ] && python3 -c "$needed" 2>/dev/null; then
    PYTHON=python3
fi
if [ -z "${PYTHON:-}" ]; then
    # "CUDA Version: 13.0" in the head of nvidia-smi is the newest that the driver runs.
    if nvidia-smi | grep -Eq 'CUDA Version: *12\.'; then
        extra=cu12 CONSTRAINTS=constraints-cu12.txt
    else
        extra=cu13 CONSTRAINTS=constraints.txt
    fi
    export CONSTRAINTS
    # The caller's own variable of this name is about another environment.
    unset PYTHON
    VENV=.venv-gpu scripts/setup_env.sh test bench "$extra"
    PYTHON=.venv-gpu/bin/python
fi

if java_home=$(scripts/java_home.sh); then
    JAVA_HOME=$java_home
    export JAVA_HOME
else
    say "going on without Java: tests that need Spark will skip or fail"
fi

exec "$PYTHON" scripts/gpu_check.py "$@"
