#!/usr/bin/env bash
# Makes a minimal chroot of a release of Debian, with debootstrap, from the archive that this machine's apt uses.
#
#   scripts/make-chroot.sh RELEASE DIRECTORY
set -euo pipefail

release=$1 root=$2 log=$2.log

fail() {
    echo "make-chroot: $*" >&2
    exit 1
}

# The address of the Debian archive in this machine's apt lists.
archive() {
    apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(REPO_URI)' 'Created-By: Packages' |
        sed -n 's/^Debian|Debian|main|//p' | head -n 1
}

[ "$(id -u)" -eq 0 ] || fail "debootstrap needs root: run it as root"
command -v debootstrap >/dev/null || "$(dirname "$0")/install-packages.sh" debootstrap
archive=$(archive)
[ -n "$archive" ] || fail "apt's lists name no Debian archive; run apt-get update on a Debian machine"
# debootstrap knows the releases that were planned when it was made; later ones are made like unstable.
recipe=/usr/share/debootstrap/scripts/$release
[ -e "$recipe" ] || recipe=/usr/share/debootstrap/scripts/sid
rm -rf "$root"
mkdir -p "$root"
echo "== making Debian $release in ${root%.part}; log: $log"
debootstrap --variant=minbase "$release" "$root" "$archive" "$recipe" >"$log" 2>&1 ||
    fail "debootstrap failed: $(tail -n 1 "$log")"
# It is discarded if the machine loses power; no package starts a daemon in it.
echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/turnpike"
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod +x "$root/usr/sbin/policy-rc.d"
# How this machine's apt reaches its archive, and its setting for outdated copies.
apt-config dump | grep -E '^Acquire::(Check-|[a-z]+::[Pp]roxy)' >"$root/etc/apt/apt.conf.d/90host" || true
