#!/usr/bin/env bash
# Builds grout, to compare with (`turnpike bench forward --grout`), in target/grout/, from its sources of the release
# below. It needs a newer DPDK than Debian 12 has, so it is built and runs in a chroot of the release of Debian below.
# Does nothing when it is there already.
#
#   scripts/build-grout.sh                  prints the path of a script that runs it in the chroot
#   GROUT_SOURCE=DIRECTORY scripts/…        takes the sources from a git repository on this machine
#
# It is compiled for the processors that Turnpike is compiled for (.cargo/config.toml), and linked with DPDK's shared
# libraries, in front of which the source of packets stands. Beside it are grcli, and the source as a library for this
# machine's programs; that for grout, of the chroot's DPDK, is loaded by the script.
set -euo pipefail
cd "$(dirname "$0")/.."

release=v0.17.1 debian=forky
all=$(realpath -m "${CARGO_TARGET_DIR:-target}")/grout
out=$all/$release root=$all/$debian
program=$out/grout

# inside COMMAND...: runs it in the chroot, where this tree's scripts and the results have the same paths.
inside() {
    scripts/enter-chroot.sh "$root" "$PWD/scripts:$PWD/crates/dpdk-sys:$out" "$@"
}

sources() {
    scripts/build-source.sh "$out/source.so"
    inside "$PWD/scripts/build-source.sh" "$out/bin/source.so"
}

if [ -x "$program" ]; then
    sources
    echo "$program"
    exit 0
fi
mkdir -p "$out"
rm -rf "$out/src"
git -c advice.detachedHead=false clone -q --depth 1 --branch "$release" \
    "${GROUT_SOURCE:+file://}${GROUT_SOURCE:-https://github.com/DPDK/grout}" "$out/src"
sed -i.before 's/^  static: true,$/  static: false,/' "$out/src/meson.build"
! cmp -s "$out/src/meson.build" "$out/src/meson.build.before" ||
    { echo "grout $release: meson.build is not what this script knows" >&2; exit 1; }
if ! [ -d "$root" ]; then
    scripts/make-chroot.sh "$debian" "$root.part" >&2
    cp --remove-destination "$(realpath /etc/resolv.conf)" "$root.part/etc/resolv.conf"
    # shellcheck disable=SC2016 # for the shell in the chroot
    root=$root.part inside sh -c 'export DEBIAN_FRONTEND=noninteractive; apt-get update -qq && apt-get install -y -qq \
        --no-install-recommends "$@" && apt-get clean' sh gcc libc6-dev meson pkg-config libdpdk-dev librte-meta-net \
        libecoli-dev libevent-dev libmnl-dev libnuma-dev >>"$root.part.log" 2>&1 ||
        { tail -n 5 "$root.part.log" >&2; exit 1; }
    # Under its name it is complete.
    mv "$root.part" "$root"
    mv "$root.part.log" "$root.log"
fi
# shellcheck disable=SC2016 # for the shell in the chroot
inside sh -c 'cd "$1/src" && GROUT_VERSION="$2" meson setup build --buildtype=release --wrap-mode=nofallback \
    -Dc_args=-march=x86-64-v3 -Ddocs=disabled -Dfrr=disabled -Dtests=disabled && ninja -C build -j "$3" grout grcli' \
    sh "$out" "$release" "${JOBS:-$(nproc)}" >"$out/log" 2>&1 || { tail -n 20 "$out/log" >&2; exit 1; }
mkdir -p "$out/bin"
cp "$out/src/build/grout" "$out/src/build/grcli" "$out/bin/"
rm -rf "$out/src"
sources
for name in grcli grout; do
    # /tmp has the benchmark's files, /run/dpdk DPDK's sockets.
    cat >"$out/$name.part" <<END
#!/bin/sh
mkdir -p /run/dpdk
unset LD_PRELOAD
exec unshare --net $PWD/scripts/enter-chroot.sh $root $out:/tmp:/run/dpdk env LD_PRELOAD=$out/bin/source.so $out/bin/$name "\$@"
END
    chmod +x "$out/$name.part"
    mv "$out/$name.part" "$out/$name"
done
echo "$program"
