#!/usr/bin/env bash
# Runs a command on this tree in another release of Debian, with that release's packages:
#
#   scripts/in-debian.sh trixie make unit
#
# The release is a chroot in target/debian/, which debootstrap makes at the first call from the archive that
# this machine's apt uses; `make clean` removes it. Rust and the crates are this machine's, mounted read-only,
# and so are the scenarios' Python packages: the command needs no network beyond its own loopback.
#
# The command has its own namespaces of mounts, processes, network and IPC, and a copy of the tree's files
# (committed or not; what git ignores stays behind). The kernel ends all of them, mounts included, with the
# command or with this script, even if that is killed.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    echo "in-debian: $*" >&2
    exit 1
}

[ $# -ge 2 ] || fail "usage: scripts/in-debian.sh RELEASE COMMAND..."
release=$1
shift
work=$(realpath -m "${CARGO_TARGET_DIR:-target}")/debian
root=$work/$release
wheels=$work/wheels

# enter ROOT NAMESPACES COMMAND...: runs a command in a chroot. It ends when this script ends.
enter() {
    local root=$1 namespaces=$2
    shift 2
    # shellcheck disable=SC2086 # several options
    setpriv --pdeathsig KILL \
        unshare --mount --propagation private --pid --ipc --fork --kill-child $namespaces \
        scripts/enter-debian.sh "$root" "$(rustc --print sysroot)" "${CARGO_HOME:-$HOME/.cargo}/registry" \
        "$wheels" "$@"
}

# make_root DIRECTORY: the release, with what scripts/install-deps.sh installs there.
make_root() {
    local root=$1 log=$1.log
    scripts/make-chroot.sh "$release" "$root"
    install_deps "$root" >>"$log" 2>&1 || fail "installing packages failed: $(tail -n 1 "$log")"
    enter "$root" "" apt-get clean
}

# install_deps ROOT: in this machine's network, which apt-get needs.
install_deps() {
    cp --remove-destination "$(realpath /etc/resolv.conf)" "$1/etc/resolv.conf"
    enter "$1" "" scripts/install-deps.sh
}

[ "$(id -u)" -eq 0 ] || fail "a chroot and mounts need root: run it as root"
[ "$(rustc --print sysroot)" != /usr ] ||
    fail "Rust is a Debian package here, which does not run in another release; install it with rustup"
mkdir -p "$work"
cargo fetch --quiet --locked
[ "$wheels" -nt tests/requirements.txt ] || {
    .venv/bin/python -m pip download --quiet --disable-pip-version-check --only-binary=:all: \
        --dest "$wheels" -r tests/requirements.txt
    touch "$wheels"
}
if [ -d "$root" ]; then
    install_deps "$root"
else
    # Under its name it is complete.
    make_root "$root.part"
    mv "$root.part" "$root"
    mv "$root.part.log" "$root.log"
fi
enter "$root" --net "$@"
