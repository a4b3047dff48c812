#!/usr/bin/env bash
# Installs, with apt-get, what `make deb`, `make deb-test` and `make image` need beside scripts/install-deps.sh. Says
# what it installs; does nothing, quickly, when nothing is missing.
#
#   scripts/install-deb-deps.sh              what builds a package
#   scripts/install-deb-deps.sh --test       and what tests it
#   scripts/install-deb-deps.sh --image      and what makes an image
set -euo pipefail

commands=(dpkg-buildpackage dh fakeroot)
packages=(dpkg-dev debhelper fakeroot)
case ${1:-} in
    "") ;;
    --test)
        commands+=(lintian mmdebstrap man zsh fish systemd-analyze)
        packages+=(lintian mmdebstrap man-db zsh fish systemd)
        ;;
    --image)
        commands+=(buildah mmdebstrap)
        packages+=(buildah mmdebstrap)
        ;;
    *)
        echo "install-deb-deps: $1: unknown; known: --test, --image" >&2
        exit 1
        ;;
esac

missing=()
for i in "${!commands[@]}"; do
    command -v "${commands[i]}" >/dev/null || missing+=("${packages[i]}")
done
[ ${#missing[@]} -eq 0 ] && exit 0
exec "$(dirname "$0")/install-packages.sh" "${missing[@]}"
