#!/usr/bin/env bash
# Tests the container image target/turnpike-image.tar, as root: `make image-test`.
#
#   scripts/test-image.sh
#
# The image's own command runs with the capabilities that docs/install.md names, in a network namespace between two hosts;
# it forwards a ping and ends at its stop signal. buildah runs it in a chroot, which needs no runtime of containers and no
# control groups.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
archive=$target/turnpike-image.tar
work=$target/image-test
prefix=tpi$$-
CAPABILITIES=NET_ADMIN,NET_RAW,IPC_LOCK,SYS_ADMIN

fail() {
    echo "the image: $*" >&2
    exit 1
}

. scripts/test-deb-common.sh

# Storage of its own: the machine's images are not touched.
buildah() { command buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs "$@"; }

# inside COMMAND...: a process of the container, in the router's namespace. buildah's `--cap-drop all` drops those that
# are added as well, so the others are dropped inside.
inside() {
    local added=CAP_${CAPABILITIES//,/,CAP_} kept=+${CAPABILITIES//,/,+}
    ip netns exec "${prefix}router" buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs run \
        --isolation chroot --network host --cap-add "$added" --volume "$work/etc:/etc/turnpike:ro" "$container" -- \
        setpriv --bounding-set "-all,${kept,,}" "$@"
}

clean() {
    [ -z "${router:-}" ] || kill "$router" 2>/dev/null || true
    wait
    for name in router left right; do
        ip netns del "$prefix$name" 2>/dev/null || true
    done
    rm -rf "$work"
}

[ "$(id -u)" -eq 0 ] || fail "network namespaces need root: run it as root"
scripts/install-deb-deps.sh --image
[ -e "$archive" ] || fail "there is no $archive: make image"
documented=$(sed -n 's/.*--cap-add \([A-Z_,]*\).*/\1/p' docs/install.md)
[ "$documented" = $CAPABILITIES ] || fail "docs/install.md names the capabilities $documented"
trap clean EXIT
rm -rf "$work"
mkdir -p "$work/etc"
container=$(buildah from "oci-archive:$archive")
mapfile -t command < <(buildah inspect --format \
    '{{range .OCIv1.Config.Entrypoint}}{{println .}}{{end}}{{range .OCIv1.Config.Cmd}}{{println .}}{{end}}' "$container" | grep .)
stop_signal=$(buildah inspect --format '{{.OCIv1.Config.StopSignal}}' "$container")

ip netns add "${prefix}router"
two_networks router "$prefix"
two_ports "$work/etc/turnpike.lua"
echo "${command[*]}"
inside "${command[@]}" >"$work/log" 2>&1 &
router=$!
wait_for 60 grep -q " ready: " "$work/log" || fail "the router is not ready: $(cat "$work/log")"
ip netns exec "${prefix}left" ping -q -c 1 -W 5 10.0.2.2 || fail "no answer through the router: $(cat "$work/log")"
inside turnpike show ports | grep -q '^ left ' || fail "show ports: $(inside turnpike show ports 2>&1)"

# The container's first process, not buildah.
pid=$(ip netns pids "${prefix}router" | while read -r pid; do
    [ "$(readlink "/proc/$pid/root")" = / ] || [ "$(cat "/proc/$pid/comm")" != turnpike ] || echo "$pid"
done | head -n 1)
[ -n "$pid" ] || fail "no process in the container"
bounding=$(sed -n 's/^CapBnd:\t*//p' "/proc/$pid/status")
[ $((0x$bounding)) -eq $((1 << 12 | 1 << 13 | 1 << 14 | 1 << 21)) ] || fail "capabilities: $bounding"
kill -s "$stop_signal" "$pid"
wait "$router" || fail "it ended with $?: $(cat "$work/log")"
router=
echo "the image passes"
