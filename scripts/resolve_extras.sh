#!/bin/sh
# Says whether each extra of pyproject.toml resolves by itself, to packages that have wheels, on Python 3.11, 3.12 and
# 3.13: as pip would in an empty environment of Linux on x86-64. Nothing is installed. Needs a package index.
#
#   scripts/resolve_extras.sh [EXTRA ...]      default: the package alone, and every extra
#
#   PYTHON    makes the environment of the resolver (default: python3)
#   VERSIONS  of Python (default: "3.11 3.12 3.13")
#   UV        the resolver (default: uv, installed for this run)
#
# Exit status: 0 if all resolve, 1 if any does not.
set -eu
cd "$(dirname "$0")/.."

tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
if [ -z "${UV:-}" ]; then
    "${PYTHON:-python3}" -m venv "$tools/venv"
    "$tools/venv/bin/python" -m pip install --quiet 'uv>=0.13'
    UV=$tools/venv/bin/uv
fi

every() {
    "${PYTHON:-python3}" - <<'CODE'
import tomllib
with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["project"]["optional-dependencies"])
CODE
}

# shellcheck disable=SC2046  # extras are words
[ $# -gt 0 ] || set -- none $(every)
failed=0
for version in ${VERSIONS:-3.11 3.12 3.13}; do
    for extra in "$@"; do
        [ "$extra" != none ] || extra=""
        # PySpark has no wheel.
        if "$UV" pip compile --quiet --no-header --no-annotate --python-version "$version" \
            --python-platform x86_64-manylinux_2_28 --only-binary :all: --no-binary pyspark \
            ${extra:+--extra "$extra"} pyproject.toml >"$tools/out" 2>"$tools/err"; then
            echo "Python $version, ${extra:-the package alone}: $(wc -l <"$tools/out") packages"
        else
            failed=1
            echo "Python $version, ${extra:-the package alone}: does not resolve"
            sed 's/^/    /' "$tools/err"
        fi
    done
done
exit "$failed"
