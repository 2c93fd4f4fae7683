#!/bin/sh
# Prints the home of a Java that Spark 4 can use, 17 or newer, as a value for JAVA_HOME.
#
# Looks at JAVA_HOME, at java on PATH, and at /usr/lib/jvm; then, as root, installs one with apt-get.
set -eu

say() { echo "java_home: $*" >&2; }

# The major version of a java command: 17 for "17.0.2", 8 for "1.8.0_392", nothing if it does not run.
major() {
    "$1" -version 2>&1 | sed -n 's/.* version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1
}

usable() {
    [ -x "$1" ] || return 1
    version=$(major "$1")
    [ -n "$version" ] && [ "$version" -ge 17 ]
}

# bin/java may be a chain of links into the real home.
home_of() { dirname "$(dirname "$(readlink -f "$1")")"; }

search() {
    on_path=$(command -v java || true)
    for java in "${JAVA_HOME:-/nonexistent}/bin/java" "${on_path:-/nonexistent}" /usr/lib/jvm/*/bin/java; do
        if usable "$java"; then
            home_of "$java"
            return 0
        fi
    done
    return 1
}

search && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "no Java 17 or newer found; installing one with apt-get"
    apt-get update -qq >&2
    for package in openjdk-17-jre-headless openjdk-21-jre-headless; do
        if DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null; then
            search && exit 0
        fi
    done
fi
say "Spark needs Java 17 or newer. Run: sudo apt-get install openjdk-17-jre-headless (or set JAVA_HOME to such a Java)"
exit 1
