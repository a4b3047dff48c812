#!/usr/bin/env bash
# Builds DPDK's example router l3fwd, to compare with (`turnpike bench forward --l3fwd`), in target/l3fwd/:
# from the source package of the installed libdpdk-dev, which apt-get fetches. Debian's dpdk-doc has the
# examples only as web pages. Does nothing when it is there already.
#
#   scripts/build-l3fwd.sh          prints the programs' paths: l3fwd as it is, and with transmit bursts of 32
#
# Four things are changed in both, none of them in the loop: the processors it is compiled for; room for a
# full table; no second table of that size for IPv6; no checksum offload, which DPDK's null driver lacks.
# Beside them is the source of packets that they receive from, as a library.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(dpkg-query -W -f '${source:Version}' libdpdk-dev)
out=$(realpath -m "${CARGO_TARGET_DIR:-target}")/l3fwd/$version
programs=("$out/l3fwd" "$out/l3fwd-tx32")

mkdir -p "$out"
scripts/build-source.sh "$out/source.so"
if [ -x "${programs[0]}" ] && [ -x "${programs[1]}" ]; then
    printf '%s\n' "${programs[@]}"
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

unpacked=$(scripts/dpdk-source.sh "$work" '*/examples/l3fwd/*' '*/examples/common/*')
cd "$unpacked/examples/l3fwd"
# change FILE SCRIPT: fails if there is nothing to change, as in another version of l3fwd.
change() {
    cp "$1" "$1.before"
    sed -i "$2" "$1"
    if cmp -s "$1" "$1.before"; then
        echo "l3fwd $version: $1 is not what this script knows: $2" >&2
        exit 1
    fi
}
change main.c 's/\.offloads = RTE_ETH_RX_OFFLOAD_CHECKSUM,/.offloads = 0,/'
change l3fwd_fib.c 's/max_routes = (1 << 16);/max_routes = 1000000;/'
change l3fwd_fib.c 's/trie.num_tbl8 = (1 << 15);/trie.num_tbl8 = (1 << 8);/'
# For the processors that Turnpike is compiled for (.cargo/config.toml): DPDK's own flags name older ones.
change Makefile 's/^CFLAGS += -O3 .*/& -march=x86-64-v3/'
# build PROGRAM
build() {
    make clean &>/dev/null
    make >&2
    mv build/l3fwd-shared "$1"
}
build "${programs[0]}"
change l3fwd.h 's/^#define[[:space:]]*MAX_TX_BURST.*/#define MAX_TX_BURST MAX_PKT_BURST/'
build "${programs[1]}"
printf '%s\n' "${programs[@]}"
