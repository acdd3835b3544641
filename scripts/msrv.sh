#!/usr/bin/env bash
# Checks that the oldest compiler that Cargo.toml promises (rust-version) builds libraries and programs.
#
#   scripts/msrv.sh           all members
#   scripts/msrv.sh client    what a client of the daemon builds: xroce-verbs with the feature daemon
#   scripts/msrv.sh install   installs that compiler, and does no more
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
if ! command -v rustup >/dev/null 2>&1; then
    echo "xroce: Rust $version is wanted beside the compiler in use, and there is no rustup to install" \
        "it: install rustup, or run 'cargo check --workspace' with Rust $version yourself" >&2
    exit 1
fi
# rustfmt: libbpf-cargo formats the skeletons of the XDP programs.
rustup toolchain install "$version" --profile minimal --component rustfmt --no-self-update >/dev/null 2>&1 || {
    echo "xroce: rustup could not install Rust $version; 'rustup toolchain install $version" \
        "--component rustfmt' says why" >&2
    exit 1
}
[ "${1:-}" != install ] || exit 0

what=(--workspace)
read -ra flags <<<"$(scripts/features.sh)"
if [ "${1:-}" = client ]; then
    what=(-p xroce-verbs --no-default-features --features daemon)
    flags=()
elif [ ${#flags[@]} -gt 0 ]; then
    what+=(--exclude xroce-xdp-prog --exclude xroce-interop)
fi
# A folder of its own: two compilers in one would build everything anew each time.
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/msrv \
    rustup run "$version" cargo check --locked --quiet "${what[@]}" "${flags[@]}"
echo "xroce: Rust $version builds ${1:-all} libraries and programs"
