#!/usr/bin/env bash
# Builds the package twice, in two directories of different names, and compares the packages byte for byte:
#
#   scripts/reproducible.sh                         compiles twice, from nothing
#   TURNPIKE_BINARY=PATH scripts/reproducible.sh    only packages twice
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(realpath -m "${CARGO_TARGET_DIR:-target}")/reproducible
rm -rf "$work"

# build NAME UMASK
build() {
    mkdir -p "$work/$1"
    # The tree as it is in git or not, below another path, with a target folder of its own.
    (umask "$2" && CARGO_TARGET_DIR=$work/$1/target DEB_DIR=$work/$1/deb scripts/build-deb.sh)
}

build first 022
build a-second-one-below-a-longer-path 077
for deb in "$work"/first/deb/*.deb; do
    cmp "$deb" "$work/a-second-one-below-a-longer-path/deb/${deb##*/}" || {
        echo "reproducible: ${deb##*/} differs; diffoscope shows where" >&2
        exit 1
    }
done
(cd "$work/first/deb" && sha256sum -- *.deb)
rm -rf "$work"
echo "both builds are the same"
