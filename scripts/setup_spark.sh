#!/bin/sh
# Makes or updates an environment with a version of PySpark, and otherwise the libraries of constraints.txt.
#
#   scripts/setup_spark.sh VERSION EXTRA...        such as 4.1, of which the newest release is taken
#
#   VENV  where the environments lie, but for the version (default: .venv, so that 4.1 is in .venv-4.1)
set -eu
cd "$(dirname "$0")/.."

version=${1:?"setup_spark: name a version of PySpark, such as 4.1"}
shift
VENV=${VENV:-.venv}-$version
constraints=$VENV.txt
# py4j is PySpark's own: each version asks for one.
{
    sed -e '/^pyspark==/d' -e '/^py4j==/d' constraints.txt
    echo "pyspark==$version.*"
} >"$constraints.new"
# The stamp of the environment follows from the text.
if cmp -s "$constraints.new" "$constraints"; then rm "$constraints.new"; else mv "$constraints.new" "$constraints"; fi
VENV=$VENV CONSTRAINTS=$constraints scripts/setup_env.sh "$@"
