#!/usr/bin/env bash
# Tests the package in target/deb/ in chroots of releases of Debian, as root: `make deb-test`.
#
#   scripts/test-deb.sh [RELEASE]          bookworm unless named; the package must have been built for it
#   scripts/test-deb.sh --boot [RELEASE]   as a service, in a virtual machine with systemd (some minutes)
#   scripts/test-deb.sh --upgrade [RELEASE]   an upgrade under traffic: packets lost, and for how long
#
# The first is with lintian. It installs the package with its dependencies from the archive, checks files and modes,
# starts the router as it is configured and with two ports, upgrades it beside an edited configuration, removes and
# purges it. The chroots are made by mmdebstrap, once, and kept in target/deb-test/ with the archive's packages; each
# test has a copy of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
out=$(realpath -m "${DEB_DIR:-$target/deb}")
work=$target/deb-test

fail() {
    echo "test-deb: $*" >&2
    exit 1
}

# The address of the Debian archive in this machine's apt lists.
archive() {
    apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(REPO_URI)' 'Created-By: Packages' |
        sed -n 's/^Debian|Debian|main|//p' | head -n 1
}

# make_base RELEASE: a minimal system, packed.
make_base() {
    local settings uri
    uri=$(archive)
    [ -n "$uri" ] || fail "apt's lists name no Debian archive; run apt-get update on a Debian machine"
    mapfile -t settings < <(apt-config dump | grep -E '^Acquire::(Check-|[a-z]+::[Pp]roxy)')
    echo "== making a minimal Debian $1; log: $work/$1.log"
    mmdebstrap --mode=root --variant=minbase "${settings[@]/#/--aptopt=}" "$1" "$work/$1.part.tar" "$uri" \
        >"$work/$1.log" 2>&1 || fail "mmdebstrap failed: $(tail -n 3 "$work/$1.log")"
    mv "$work/$1.part.tar" "$work/$1.tar"
}

# other_version DEB NAME SUFFIX: the package as another version, whose configuration differs, as NAME.deb.
other_version() {
    local tree=$work/$2
    rm -rf "$tree"
    dpkg-deb --raw-extract "$1" "$tree"
    sed -i "s/^Version: .*/&$3/" "$tree/DEBIAN/control"
    echo "-- The $2 version." >>"$tree/etc/turnpike/turnpike.lua"
    dpkg-deb --root-owner-group -Znone --build "$tree" "$root/packages/$2.deb" >/dev/null
    rm -rf "$tree"
}

# unpack RELEASE: the minimal system with the packages, in `root`.
unpack() {
    root=$work/$1
    rm -rf "$root"
    mkdir -p "$root" "$work/archives-$1"
    tar --extract --file "$work/$1.tar" --directory "$root"
    mkdir -p "$root/packages"
    cp "$deb" "$root/packages/turnpike.deb"
    other_version "$deb" next +next
    other_version "$deb" earlier '~earlier'
    cp scripts/test-deb-*.sh "$root/packages/"
    cp --remove-destination "$(realpath /etc/resolv.conf)" "$root/etc/resolv.conf"
    # No package starts a daemon in it.
    printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
    chmod +x "$root/usr/sbin/policy-rc.d"
}

# enter COMMAND...: in the unpacked system. Mounts and processes go with it.
enter() {
    setpriv --pdeathsig KILL unshare --mount --propagation private --pid --ipc --fork --kill-child \
        scripts/enter-deb-test.sh "$root" "$work/archives-$release" "$@"
}

mode=
case ${1:-} in
    --boot | --upgrade) mode=$1 && shift ;;
    --*) fail "$1: unknown; known: --boot, --upgrade" ;;
esac
release=${1:-bookworm}
[ "$(id -u)" -eq 0 ] || fail "a chroot and mounts need root: run it as root"
scripts/install-deb-deps.sh --test
deb=$(ls "$out"/turnpike_*.deb 2>/dev/null) || fail "there is no package in $out: make deb"
mkdir -p "$work"
[ -e "$work/$release.tar" ] || make_base "$release"

if [ -z "$mode" ]; then
    echo "== lintian"
    lintian --allow-root --fail-on error,warning "$out"/turnpike_*.changes
    echo "== the package in Debian $release"
    unpack "$release"
    enter bash /packages/test-deb-inside.sh
elif [ "$mode" = --upgrade ]; then
    echo "== an upgrade under traffic in Debian $release"
    unpack "$release"
    enter bash /packages/test-deb-upgrade.sh
else
    echo "== the service in a virtual machine with Debian $release"
    unpack "$release"
    enter sh -c 'apt-get update -qq && apt-get install -y -qq --no-install-recommends systemd-sysv dbus udev kmod \
        iproute2 iputils-ping procps /packages/turnpike.deb' >"$work/boot.log" 2>&1 ||
        fail "$(tail -n 5 "$work/boot.log")"
    rm "$root/usr/sbin/policy-rc.d"
    python3 scripts/boot-deb.py "$root" /packages/test-deb-booted.sh
fi
rm -rf "$root"
echo "the package passes"
