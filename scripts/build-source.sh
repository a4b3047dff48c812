#!/usr/bin/env bash
# Compiles the source of packets that other programs receive from (crates/dpdk-sys/source.c) to a library, with the flags
# that Turnpike's own is compiled with.
#
#   scripts/build-source.sh FILE
set -euo pipefail

# A program may load DPDK later than this library, as a plugin: it names those that it stands in front of.
# shellcheck disable=SC2046
cc -O3 -shared -fPIC -DSHIM_SOURCE_PRELOAD $(pkg-config --cflags libdpdk) -o "$1" \
    "$(dirname "$0")/../crates/dpdk-sys/source.c" -lrte_ethdev -lrte_eal -ldl
