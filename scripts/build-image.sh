#!/usr/bin/env bash
# Makes a container image of the package in target/deb/, as root, by buildah: `make image`. The result is
# target/turnpike-image.tar, an OCI archive (podman load, docker load, skopeo).
#
#   scripts/build-image.sh [RELEASE]     bookworm unless named; the package must have been built for it
#
# It starts from a minimal Debian that mmdebstrap makes from this machine's archive, so that no registry is needed.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
out=$(realpath -m "${DEB_DIR:-$target/deb}")
release=${1:-bookworm}
work=$target/image
archive=$target/turnpike-image.tar

fail() {
    echo "build-image: $*" >&2
    exit 1
}

[ "$(id -u)" -eq 0 ] || fail "a file system with its owners needs root: run it as root"
scripts/install-deb-deps.sh --image
deb=$(ls "$out"/turnpike_*.deb 2>/dev/null) || fail "there is no package in $out: make deb"
version=$(dpkg-deb --field "$deb" Version)
uri=$(apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(REPO_URI)' 'Created-By: Packages' |
    sed -n 's/^Debian|Debian|main|//p' | head -n 1)
[ -n "$uri" ] || fail "apt's lists name no Debian archive; run apt-get update on a Debian machine"
mapfile -t settings < <(apt-config dump | grep -E '^Acquire::(Check-|[a-z]+::[Pp]roxy)')
rm -rf "$work"
mkdir -p "$work"
echo "== making Debian $release with the package; log: $work/log"
# Nothing starts services in a container: the smallest program that makes groups is enough.
mmdebstrap --mode=root --variant=minbase "${settings[@]/#/--aptopt=}" \
    --include=systemd-standalone-sysusers,iproute2 \
    --customize-hook="copy-in '$deb' /tmp" \
    --customize-hook="chroot \"\$1\" sh -c 'apt-get install -y --no-install-recommends /tmp/*.deb && rm /tmp/*.deb'" \
    "$release" "$work/root.tar" "$uri" >"$work/log" 2>&1 || fail "$(tail -n 5 "$work/log")"

# Storage of its own: the machine's images are not touched.
buildah() {
    command buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs "$@"
}
container=$(buildah from scratch)
buildah add --quiet "$container" "$work/root.tar" / >/dev/null
buildah config --entrypoint '["/usr/bin/turnpike"]' --cmd 'run /etc/turnpike/turnpike.lua' --stop-signal SIGTERM \
    --volume /etc/turnpike --label org.opencontainers.image.title=turnpike \
    --label "org.opencontainers.image.version=$version" --label org.opencontainers.image.licenses=Apache-2.0 "$container"
# In a chroot, which needs no runtime of containers.
buildah run --isolation chroot "$container" -- turnpike check /etc/turnpike/turnpike.lua
rm -f "$archive"
buildah commit --quiet --rm "$container" "oci-archive:$archive:turnpike:$version" >/dev/null
rm -rf "$work"
echo "== $archive"
