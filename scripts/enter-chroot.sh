#!/usr/bin/env bash
# Runs a command in a chroot, in a mount namespace of its own. The command has the same process number and ends with
# its caller's signals; DIRECTORIES, of this machine and separated by colons, have the same paths there.
#
#   scripts/enter-chroot.sh ROOT DIRECTORIES COMMAND...
set -euo pipefail
cd "$(dirname "$0")/.."

if [ -z "${TURNPIKE_ENTERED-}" ]; then
    TURNPIKE_ENTERED=1 exec unshare --mount --propagation private "$PWD/scripts/enter-chroot.sh" "$@"
fi
unset TURNPIKE_ENTERED
root=$1
IFS=: read -ra directories <<<"$2"
shift 2
. scripts/mount-chroot.sh "$root"
for directory in "${directories[@]}"; do
    mkdir -p ".$directory"
    mount --bind "$directory" ".$directory"
done
exec chroot . "$@"
