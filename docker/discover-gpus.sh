#!/bin/sh
# A discovery script for Spark's GPU scheduling that needs no Python: the indices of nvidia-smi, as Spark's JSON.
#   spark.worker.resource.gpu.discoveryScript    /opt/gpujoin/discover-gpus.sh
#   spark.executor.resource.gpu.discoveryScript  /opt/gpujoin/discover-gpus.sh
# Where gpujoin is installed, gpujoin-discover-gpus prints the same.
set -eu

fail() { echo "discover-gpus.sh: $*" >&2; exit 1; }

command -v nvidia-smi >/dev/null || fail "nvidia-smi is not on PATH. Install the NVIDIA driver, or start the container with GPU access."
indices=$(nvidia-smi --query-gpu=index --format=csv,noheader) || fail "nvidia-smi failed: $indices"
[ -n "$indices" ] || fail "nvidia-smi lists no GPU."
printf '{"name": "gpu", "addresses": [%s]}\n' "$(echo "$indices" | sed 's/.*/"&"/' | paste -sd, - | sed 's/,/, /g')"
