#!/usr/bin/env bash
# Builds everything with AddressSanitizer, and runs the unit tests and the scenarios that send frames.
# Leaks are looked for too; scripts/asan.supp says which are none.
#
#   scripts/asan.sh [unit|frames]      one half by itself
set -euo pipefail
cd "$(dirname "$0")/.."

if ! cargo +nightly --version >/dev/null 2>&1; then
    echo "== installing the nightly compiler, which the sanitizer needs"
    rustup toolchain install nightly --profile minimal
fi
# With --target the flags are for the code under test and not for what builds it.
target=$(rustc -vV | sed -n 's/^host: //p')
directory=${CARGO_TARGET_DIR:-target}/asan
export CARGO_TARGET_DIR=$directory
export RUSTFLAGS="${RUSTFLAGS:-} -Zsanitizer=address"
# The first report ends a program, with a status that tests do not take for success.
export ASAN_OPTIONS="detect_leaks=1:exitcode=99:detect_stack_use_after_return=1"
export LSAN_OPTIONS="suppressions=$PWD/scripts/asan.supp:print_suppressions=0"

unit() {
    cargo +nightly test --locked --workspace --target "$target" --lib --bins --tests --no-fail-fast
}

# Each router of these scenarios has to end with status 0, which a report prevents.
frames() {
    cargo +nightly build --locked -p turnpike --target "$target"
    TURNPIKE=$(realpath "$directory")/$target/debug/turnpike .venv/bin/python -m pytest -q \
        tests/test_forwarding.py tests/test_drops.py tests/test_slowpath.py tests/test_rfc.py \
        tests/test_scapy.py tests/test_jumbo.py tests/test_against_linux.py
}

case ${1:-all} in
    unit) unit ;;
    frames) frames ;;
    all) unit && frames ;;
    *) echo "usage: scripts/asan.sh [unit|frames]" >&2; exit 2 ;;
esac
