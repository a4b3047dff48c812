#!/usr/bin/env bash
# Installs, with apt-get, what `make test-vm` needs beside scripts/install-deps.sh: QEMU, and what unpacks
# kernels and packs the virtual machine's first file system. Says what it installs; does nothing, quickly, when
# nothing is missing.
#
# Only QEMU 8 and later emulate an igb. Where the release has an older one, QEMU comes from the release's
# backports, found beside the Debian archive of the machine's own apt sources; where there are none, the older
# one does, and the scenarios with an igb are skipped. The machine's apt sources stay as they are.
set -euo pipefail

commands=(qemu-system-x86_64 cpio modprobe busybox zstd)
packages=(qemu-system-x86 cpio kmod busybox-static zstd)

has_igb() {
    qemu-system-x86_64 -device help 2>/dev/null | grep "^name \"igb\"" >/dev/null
}

# Makes the release's backports known to apt for this script only, as `sources`; fails if there are none.
find_backports() {
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    list=$(mktemp --suffix .list)
    trap 'rm -f "$list"' EXIT
    sources=(-o "Dir::Etc::sourcelist=$list")
    "$(dirname "$0")/backports.sh" "$list" &&
        apt-cache "${sources[@]}" show "qemu-system-x86/$codename-backports" >/dev/null 2>&1
}

missing=()
for i in "${!commands[@]}"; do
    command -v "${commands[i]}" >/dev/null || missing+=("${packages[i]}")
done
[ ${#missing[@]} -eq 0 ] && has_igb && exit 0

if ! command -v apt-get >/dev/null; then
    [ ${#missing[@]} -eq 0 ] && exit 0
    echo "missing, and there is no apt-get to install it with: ${missing[*]}" >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    [ ${#missing[@]} -eq 0 ] && exit 0
    echo "missing: ${missing[*]}; run as root: apt-get install ${missing[*]}" >&2
    exit 1
fi

export DEBIAN_FRONTEND=noninteractive
[ ${#missing[@]} -eq 0 ] || apt-get update -qq
if find_backports; then
    echo "== installing ${missing[*]} with QEMU of $codename-backports, which has an igb"
    # Those in use are upgraded with it.
    apt-get install -y -qq --no-install-recommends "${sources[@]}" "${missing[@]}" \
        "qemu-system-x86/$codename-backports" "qemu-system-common/$codename-backports" \
        "qemu-system-data/$codename-backports" "seabios/$codename-backports"
elif [ ${#missing[@]} -gt 0 ]; then
    echo "== installing ${missing[*]}"
    apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi
has_igb || echo "== this QEMU has no igb, and no backports have a newer one: its scenarios are skipped"
