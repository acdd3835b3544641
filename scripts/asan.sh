#!/usr/bin/env bash
# Runs the tests of the unsafe code that Miri cannot run under AddressSanitizer: adoption of memory,
# memory between processes and the daemon (shm, verbs over a daemon), AF_XDP (net). As root also those
# that need network namespaces.
#
#   scripts/asan.sh [CARGO TEST ARGUMENTS]     without arguments: all of these
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

host=$(rustc -vV | sed -n 's/^host: //p')
if ! rustc +nightly --version >/dev/null 2>&1; then
    if ! command -v rustup >/dev/null 2>&1 ||
        ! rustup toolchain install nightly --profile minimal --component rustfmt --no-self-update \
            >/dev/null 2>&1; then
        echo "xroce: sanitizers need a nightly compiler: 'rustup toolchain install nightly' installs it" >&2
        exit 1
    fi
fi
# A target that is named: build scripts and macros stay without. Leaks: some tests keep memory for ever.
export RUSTFLAGS="-Zsanitizer=address ${RUSTFLAGS:-}"
export ASAN_OPTIONS="detect_leaks=0:suppressions=$PWD/scripts/asan.supp:${ASAN_OPTIONS:-}"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/asan
run() { cargo +nightly test --locked --target "$host" "$@"; }
if [ $# -gt 0 ]; then
    run "$@"
    exit
fi
read -ra flags <<<"$(scripts/features.sh 2>/dev/null)"
run -p xroce-shm --lib
run -p xroce-net "${flags[@]}" --lib --test xdp_veth -- --test-threads 1
run -p xroce-verbs "${flags[@]}" --test daemon -- --test-threads 1
