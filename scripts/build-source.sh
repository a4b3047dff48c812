#!/usr/bin/env bash
# Compiles the source of packets that other programs receive from (crates/dpdk-sys/source.c) to a library, with the flags
# that Turnpike's own is compiled with.
#
#   scripts/build-source.sh FILE
set -euo pipefail

ethdev=$(readlink "$(pkg-config --variable=libdir libdpdk)/librte_ethdev.so")
# shellcheck disable=SC2046
cc -O3 -shared -fPIC -Wall -Wextra -DSHIM_SOURCE_PRELOAD -DSHIM_ETHDEV="\"$ethdev\"" $(pkg-config --cflags libdpdk) \
    -o "$1" "$(dirname "$0")/../crates/dpdk-sys/source.c"
