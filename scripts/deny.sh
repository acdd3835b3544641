#!/usr/bin/env bash
# cargo-deny on the dependency tree, without a download of advisories. Installs cargo-deny if it
# is missing: unoptimised, since it runs for a second and would be built for minutes.
set -euo pipefail

if ! cargo deny --version >/dev/null 2>&1; then
    echo "xroce: installing cargo-deny"
    cargo install --locked --quiet --debug cargo-deny --version '^0.20' </dev/null
fi
cargo deny --log-level error check bans licenses sources

# The fuzz targets are a workspace of their own with their own lock file, which nothing else reads.
if ! cargo metadata --locked --format-version 1 --manifest-path tests/fuzz/Cargo.toml >/dev/null; then
    echo "deny: tests/fuzz/Cargo.lock is older than the manifests; 'cargo metadata' in tests/fuzz" \
        "without --locked brings it up to date" >&2
    exit 1
fi
