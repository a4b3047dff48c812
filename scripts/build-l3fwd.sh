#!/usr/bin/env bash
# Builds DPDK's example router l3fwd, to compare with (`turnpike bench forward --l3fwd`), in target/l3fwd/:
# from the source package of the installed libdpdk-dev, which apt-get fetches. Debian's dpdk-doc has the
# examples only as web pages. Does nothing when it is there already.
#
#   scripts/build-l3fwd.sh          prints the program's path
#
# Five things are changed in it, none of them in the loop: the processors it is compiled for; room for a
# full table and for the source's
# packets; no second table of that size for IPv6; no checksum offload, which DPDK's pcap driver lacks.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(dpkg-query -W -f '${source:Version}' libdpdk-dev)
out=${CARGO_TARGET_DIR:-target}/l3fwd
program=$out/l3fwd-$version-v3
if [ -x "$program" ]; then
    echo "$program"
    exit 0
fi
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A separate list of source packages, from the same place as apt's binary packages.
mkdir -p "$work/lists/partial" "$work/sources"
. /etc/os-release
apt-get indextargets --format '$(ORIGIN)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)' 'Created-By: Packages' |
    sort -u | while IFS='|' read -r origin uri release component; do
    [ "${origin,,}" = "$ID" ] || continue
    printf 'Types: deb-src\nURIs: %s\nSuites: %s\nComponents: %s\n\n' "$uri" "$release" "$component"
done >"$work/sources/source.sources"
apt=(apt-get -qq -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$work/sources"
    -o Dir::State::lists="$work/lists" -o APT::Sandbox::User=root)
"${apt[@]}" update >&2
(cd "$work" && "${apt[@]}" source --download-only "dpdk=$version" >&2)

tar -xf "$work"/dpdk_*.orig.tar.* -C "$work" --wildcards '*/examples/l3fwd/*' '*/examples/common/*'
cd "$work"/*/examples/l3fwd
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
change main.c 's/(unsigned)8192)/(unsigned)(8192 + 65536 + 8192))/'
change l3fwd_fib.c 's/max_routes = (1 << 16);/max_routes = 1000000;/'
change l3fwd_fib.c 's/trie.num_tbl8 = (1 << 15);/trie.num_tbl8 = (1 << 8);/'
# For the processors that Turnpike is compiled for (.cargo/config.toml): DPDK's own flags name older ones.
change Makefile 's/^CFLAGS += -O3 .*/& -march=x86-64-v3/'
make >&2
cd - >/dev/null
mv "$work"/*/examples/l3fwd/build/l3fwd-shared "$program"
echo "$program"
