#!/usr/bin/env bash
# The first process in the namespaces that scripts/in-debian.sh makes: mounts what a command needs, makes the
# chroot its file system, and runs it in /turnpike.
#
#   scripts/enter-debian.sh ROOT RUST CRATES WHEELS COMMAND...
set -euo pipefail
root=$1 rust=$2 crates=$3 wheels=$4
shift 4
tree=$PWD

# read_only FROM AT
read_only() {
    mkdir -p "$2"
    mount --bind "$1" "$2"
    mount -o remount,bind,ro "$2"
}

. scripts/mount-chroot.sh "$root"
mount -t tmpfs tmpfs tmp

read_only "$rust" opt/rust
read_only "$crates" opt/cargo/registry
read_only "$wheels" opt/wheels

# The tree is new at each call, with the files' own times; what is built from it stays.
mkdir -p turnpike var/lib/turnpike/target var/lib/turnpike/venv
mount -t tmpfs tmpfs turnpike
git -C "$tree" ls-files -z --cached --others --exclude-standard --deduplicate |
    tar -C "$tree" --create --null --no-recursion --files-from=- --ignore-failed-read --warning=no-failed-read |
    tar -C turnpike --extract
mkdir turnpike/target turnpike/.venv
mount --bind var/lib/turnpike/target turnpike/target
mount --bind var/lib/turnpike/venv turnpike/.venv

pivot_root . mnt
umount --lazy /mnt
cd /turnpike
! command -v ip >/dev/null || ip link set lo up
# A shell stays process 1: it reaps daemons whose parents have ended.
env -i HOME=/root TERM="${TERM:-dumb}" LANG=C.UTF-8 \
    PATH=/opt/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    CARGO_HOME=/opt/cargo CARGO_NET_OFFLINE=true PIP_NO_INDEX=1 PIP_FIND_LINKS=/opt/wheels "$@"
