#!/usr/bin/env bash
# Prints the cargo flags that fit this machine: nothing if AF_XDP can be built, else what leaves
# it out. Says so on standard error.
set -euo pipefail

lacking=()
for command in clang m4 pkg-config make gcc; do
    command -v "$command" >/dev/null 2>&1 || lacking+=("$command")
done
[ -e /usr/include/libelf.h ] || lacking+=(libelf)
[ -e /usr/include/zlib.h ] || lacking+=(zlib)

if [ ${#lacking[@]} -gt 0 ]; then
    echo "xroce: building without AF_XDP, which needs: ${lacking[*]}" >&2
    echo "--no-default-features"
fi
