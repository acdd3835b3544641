#!/usr/bin/env bash
# `xroce decode` on every capture in the repository, text, JSON and summary: all must end well,
# and all JSON must be JSON.
set -euo pipefail

# The profile of the tests, so that nothing is built twice.
run=(cargo run --locked --quiet --profile test -p xroce "$@" -- decode)
count=0
while IFS= read -r file; do
    "${run[@]}" "$file" >/dev/null
    "${run[@]}" --summary "$file" >/dev/null
    "${run[@]}" --json "$file" | python3 -c 'import json, sys; [json.loads(l) for l in sys.stdin]'
    count=$((count + 1))
done < <(git ls-files '*.pcap' '*.pcapng' | grep -v -i -E 'bad|damaged|truncated')
echo "xroce: decode read $count captures"
