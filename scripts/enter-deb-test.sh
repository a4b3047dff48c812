#!/usr/bin/env bash
# The first process in the namespaces that scripts/test-deb.sh makes: mounts what a package's programs need, and runs a
# command in the chroot.
#
#   scripts/enter-deb-test.sh ROOT ARCHIVES COMMAND...
set -euo pipefail
root=$1 archives=$2
shift 2
. scripts/mount-chroot.sh "$root"
mount --bind "$archives" var/cache/apt/archives
mkdir -p mnt
pivot_root . mnt
umount --lazy /mnt
env -i HOME=/root TERM=dumb LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
