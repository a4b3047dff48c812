#!/usr/bin/env bash
# Runs every fuzz target of fuzz/ for the given number of seconds.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}

if ! compgen -G 'fuzz/fuzz_targets/*.rs' >/dev/null; then
    echo "no fuzz targets in fuzz/fuzz_targets/" >&2
    exit 1
fi
if ! command -v cargo-fuzz >/dev/null; then
    echo "== installing cargo-fuzz"
    cargo install --locked cargo-fuzz
fi
if ! cargo +nightly --version >/dev/null 2>&1; then
    echo "== installing the nightly compiler, which cargo-fuzz needs"
    rustup toolchain install nightly --profile minimal
fi
failed=()
# What DPDK keeps for the process's life is no leak; see there.
export LSAN_OPTIONS="suppressions=$PWD/scripts/asan.supp:print_suppressions=0"
for target in fuzz/fuzz_targets/*.rs; do
    name=$(basename "$target" .rs)
    echo "== $name"
    # The first corpus, then what has been found.
    case $name in
        click*) seeds=(examples/click crates/click/tests/flatten) ;;
        *) seeds=() ;;
    esac
    mkdir -p "fuzz/corpus/$name"
    cargo +nightly fuzz run "$name" "fuzz/corpus/$name" "${seeds[@]}" -- -max_total_time="$seconds" || failed+=("$name")
done
if [ ${#failed[@]} -gt 0 ]; then
    echo "failed: ${failed[*]}; see fuzz/artifacts/" >&2
    exit 1
fi
