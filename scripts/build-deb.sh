#!/usr/bin/env bash
# Builds the Debian package of this tree in target/deb/:
#
#   scripts/build-deb.sh                          compiles the release
#   TURNPIKE_BINARY=PATH scripts/build-deb.sh     packages an existing binary (CI; tests of the package)
#   DEB_DIR=DIRECTORY scripts/build-deb.sh        builds there instead
#
# The package is made from a copy of the tree's files (committed or not; without those that git ignores), so that
# nothing is written into the tree, and what lies about in it does not get into the package.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    echo "build-deb: $*" >&2
    exit 1
}

# An environment for programs that others start: paths must not depend on where they are started.
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
out=$(realpath -m "${DEB_DIR:-$target/deb}")
binary=${TURNPIKE_BINARY:+$(realpath "$TURNPIKE_BINARY")}
[ -z "$binary" ] || [ -x "$binary" ] || fail "TURNPIKE_BINARY=$TURNPIKE_BINARY is no program"

scripts/install-deb-deps.sh
# Only what this script makes: the directory may have other things.
mkdir -p "$out"
rm -rf "$out/turnpike" "$out/build.log"
rm -f -- "$out"/turnpike_* "$out"/turnpike-dbgsym_*
mkdir "$out/turnpike"
if git rev-parse --git-dir >/dev/null 2>&1; then
    git ls-files -z --cached --others --exclude-standard --deduplicate |
        tar --create --null --no-recursion --files-from=- --ignore-failed-read --warning=no-failed-read
else
    # A copy, as scripts/in-debian.sh makes it.
    tar --create --exclude=./target --exclude=./.venv .
fi | tar --extract --directory="$out/turnpike"

cd "$out/turnpike"
# The umask of whoever builds does not get into the package.
umask 022
log=$out/build.log
echo "== building the package in $out; log: $log"
# Variables of the make that called this are not those of the package's rules.
unset MAKEFLAGS MFLAGS MAKEOVERRIDES
CARGO_TARGET_DIR=$target TURNPIKE_BINARY=$binary dpkg-buildpackage --build=binary --no-sign --no-check-builddeps \
    >"$log" 2>&1 || fail "$(tail -n 20 "$log")"
cd "$out"
rm -rf turnpike
ls -- *.deb
