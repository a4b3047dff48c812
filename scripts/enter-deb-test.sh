#!/usr/bin/env bash
# The first process in the namespaces that scripts/test-deb.sh makes: mounts what a package's programs need, and runs a
# command in the chroot.
#
#   scripts/enter-deb-test.sh ROOT ARCHIVES COMMAND...
set -euo pipefail
root=$1 archives=$2
shift 2
mount --bind "$root" "$root"
cd "$root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/net dev/pts dev/shm
for device in null zero full random urandom tty net/tun; do
    touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
mount -t tmpfs tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount --bind "$archives" var/cache/apt/archives
mkdir -p mnt
pivot_root . mnt
umount --lazy /mnt
env -i HOME=/root TERM=dumb LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
