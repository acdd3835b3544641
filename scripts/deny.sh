#!/usr/bin/env bash
# cargo-deny on the dependency tree, without a download of advisories. Installs cargo-deny if it
# is missing, which takes some minutes once.
set -euo pipefail

if ! cargo deny --version >/dev/null 2>&1; then
    echo "xroce: installing cargo-deny"
    cargo install --locked --quiet cargo-deny --version '^0.20' </dev/null
fi
cargo deny --log-level error check bans licenses sources
