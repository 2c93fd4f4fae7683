#!/bin/sh
# Sees to a g++ that can compile CUDA kernels for the emulator of the tests, 12 or newer; as root it installs one.
#
# Where there is none it says so and succeeds: the tests of kernels then skip, with the reason.
set -eu

say() { echo "find_gxx: $*" >&2; }

usable() {
    version=$(g++ -dumpversion 2>/dev/null) || return 1
    [ "${version%%.*}" -ge 12 ] && command -v nm >/dev/null && command -v addr2line >/dev/null
}

if usable; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "no g++ 12 or newer found; installing one with apt-get"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends g++; } >/dev/null || true
    if usable; then
        exit 0
    fi
fi
say "the tests of CUDA kernels will skip, since they need g++ 12 or newer. Run: sudo apt-get install g++"
