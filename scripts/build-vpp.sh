#!/usr/bin/env bash
# Builds VPP, to compare with (`turnpike bench forward --vpp`, `bench/latency.py`), in target/vpp/, from its sources of
# the release below and with the installed DPDK. Does nothing when it is there already.
#
#   scripts/build-vpp.sh                    prints the program's path
#   VPP_SOURCE=DIRECTORY scripts/…          takes the sources from a git repository on this machine
#
# The build is that of VPP's own packages, with clang and link-time optimisation, but for one kind of processors, those
# that Turnpike is compiled for (.cargo/config.toml), in place of three to choose from at its start. Of its plugins there
# are only dpdk and memif. Beside the program are those, vppctl, and the source of packets that it receives from, as a
# library.
set -euo pipefail
cd "$(dirname "$0")/.."

release=v26.06
out=$(realpath -m "${CARGO_TARGET_DIR:-target}")/vpp/$release
program=$out/bin/vpp

if [ -x "$program" ]; then
    scripts/build-source.sh "$out/bin/source.so"
    echo "$program"
    exit 0
fi
mkdir -p "$out"
work=$(mktemp -d -p "$(dirname "$out")")
trap 'rm -rf "$work"' EXIT
git -c advice.detachedHead=false clone -q --depth 1 --branch "$release" \
    "${VPP_SOURCE:+file://}${VPP_SOURCE:-https://github.com/FDio/vpp}" "$work/vpp"
needs=(command:clang clang command:cmake cmake command:ninja ninja-build
    file:/usr/lib/python3/dist-packages/ply python3-ply)
missing=()
for ((i = 0; i < ${#needs[@]}; i += 2)); do
    case ${needs[i]} in
        command:*) command -v "${needs[i]#*:}" >/dev/null ;;
        file:*) [ -e "${needs[i]#*:}" ] ;;
    esac || missing+=("${needs[i + 1]}")
done
[ ${#missing[@]} -eq 0 ] || scripts/install-packages.sh "${missing[@]}" >&2

# The distribution's Python, whose package ply is.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
# Debian's package lacks the headers of DPDK's buses, which the plugin includes. Its part for cryptography, which it has
# with OpenSSL only, needs a newer DPDK.
mkdir "$work/dpdk" "$work/headers"
unpacked=$(scripts/dpdk-source.sh "$work/dpdk" '*/bus_*_driver.h' '*/lib/eal/include/*_driver.h')
find "$unpacked" -name '*.h' -exec cp -t "$work/headers" {} +
cmake -G Ninja -S "$work/vpp/src" -B "$work/build" -DCMAKE_BUILD_TYPE=release -DCMAKE_C_COMPILER=clang \
    -DCMAKE_C_FLAGS="-I$work/headers" -DCMAKE_DISABLE_FIND_PACKAGE_OpenSSL=ON \
    -DCMAKE_INSTALL_PREFIX="$out" -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_BUILD_RPATH_USE_ORIGIN=ON \
    -DVPP_BUILD_NATIVE_ONLY=ON -DVPP_BUILD_NATIVE_ARCH=x86-64-v3 -DVPP_USE_SYSTEM_DPDK=ON -DVPP_USE_CCACHE=OFF \
    -DVPP_PLUGINS=dpdk,memif -DVPP_DRIVERS=none -DVPP_TOOLS=vppctl -DVPP_TESTS=none >"$work/log" 2>&1 ||
    { tail -n 20 "$work/log" >&2; exit 1; }
ninja -C "$work/build" -j "${JOBS:-$(nproc)}" vpp vppctl dpdk_plugin memif_plugin >"$work/log" 2>&1 ||
    { tail -n 20 "$work/log" >&2; exit 1; }
# Only these are built, so that the install step of CMake, which asks for all, would fail.
mkdir -p "$out/bin" "$out/lib/vpp_plugins"
cp -P "$work"/build/lib/*.so* "$out/lib/"
cp "$work"/build/lib/vpp_plugins/{dpdk,memif}_plugin.so "$out/lib/vpp_plugins/"
cp "$work/build/bin/vppctl" "$out/bin/"
scripts/build-source.sh "$out/bin/source.so"
# Under its name it is complete.
cp "$work/build/bin/vpp" "$program"
echo "$program"
