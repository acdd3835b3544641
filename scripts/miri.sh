#!/usr/bin/env bash
# Runs the tests of some crates under Miri, which finds undefined behaviour: wrong pointers, data
# races, misaligned or uninitialised memory.
#
#   scripts/miri.sh [CRATE...]
#
# Without names: those with unsafe code that runs there, and what decodes bytes of others. Miri is slow
# and has few system calls: tests that need others are left out and say why, property tests take
# PROPTEST_CASES (4), and the CRC goes by tables, since Miri has no processor features of its own.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
crates=("$@")
[ ${#crates[@]} -gt 0 ] || crates=(crc wire abi shm)

if ! cargo +nightly miri --version >/dev/null 2>&1; then
    if ! command -v rustup >/dev/null 2>&1 ||
        ! rustup toolchain install nightly --profile minimal --component miri --component rust-src \
            --no-self-update >/dev/null 2>&1; then
        echo "xroce: Miri is missing: 'rustup toolchain install nightly --component miri --component" \
            "rust-src' installs it" >&2
        exit 1
    fi
fi
# Isolation off: proptest looks for its folder. Leaks: some tests keep memory for ever.
export MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-ignore-leaks ${MIRIFLAGS:-}"
export PROPTEST_CASES=${PROPTEST_CASES:-4}
export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-20261129}
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/miri \
    cargo +nightly miri test --locked "${crates[@]/#/-pxroce-}" --lib --tests
