#!/usr/bin/env bash
# Builds FastClick, to compare with (`bench/fastclick.py`), in target/fastclick/, from its sources at the commit below.
# Does nothing when it is there already.
#
#   scripts/build-fastclick.sh          prints the program's path
#   FASTCLICK=DIRECTORY scripts/…       takes the sources from a clone on this machine
#
# The options are those that its README gives for the best performance ("light"), and the processors those that
# Turnpike is compiled for (.cargo/config.toml).
set -euo pipefail
cd "$(dirname "$0")/.."

commit=93ca5a6d037bf30925efea2ae3637081b7f0bf03
out=$(realpath -m "${CARGO_TARGET_DIR:-target}")/fastclick
program=$out/click-${commit:0:12}
if [ -x "$program" ]; then
    echo "$program"
    exit 0
fi
scripts/install-packages.sh g++ libelf-dev zlib1g-dev libnuma-dev libpcap-dev libsystemd-dev >&2
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

git -C "$work" init -q
git -C "$work" fetch -q --depth 1 "${FASTCLICK:-https://github.com/tbarbette/fastclick}" "$commit"
git -C "$work" checkout -q FETCH_HEAD
cd "$work"
flags="-O3 -march=x86-64-v3"
./configure CFLAGS="$flags" CXXFLAGS="-std=c++11 $flags" --enable-dpdk --enable-intel-cpu --disable-dynamic-linking \
    --enable-bound-port-transfer --enable-flow --disable-task-stats --disable-cpu-load --enable-dpdk-packet \
    --disable-clone --disable-dpdk-softqueue --disable-linuxmodule --enable-local >&2
make -j "$(nproc)" -C userlevel click >&2
mv userlevel/click "$program"
cp conf/router/router.click "$out/router.click"
echo "$program"
