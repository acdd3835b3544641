#!/usr/bin/env bash
# The Debian package: built, installed into a root of its own, run from there, reinstalled, removed
# and purged. Nothing may be left there, and nothing is ever installed on this machine. As root
# (dpkg runs the package's scripts by chroot).
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "deb-smoke: $*"; }
fail() {
    say "$*" >&2
    exit 1
}
if [ "$(id -u)" -ne 0 ]; then
    say "only root can change the root: skipped"
    exit 0
fi

work=$(mktemp -d)
daemon=
finish() {
    if [ -n "$daemon" ]; then
        kill "$daemon" 2>/dev/null || true
        wait "$daemon" 2>/dev/null || true
    fi
    rm -rf "$work"
}
trap finish EXIT

if command -v systemd-analyze >/dev/null; then
    # It looks for the program, which is not installed here.
    sed "s|^ExecStart=[^ ]*|ExecStart=/bin/true|; /^Documentation=/d" packaging/xroced.service \
        >"$work/xroced.service"
    complaints=$(systemd-analyze verify "$work/xroced.service" 2>&1 | grep xroced || true)
    [ -z "$complaints" ] || fail "systemd-analyze verify: $complaints"
    say "systemd-analyze verify has nothing to say about the unit"
else
    say "no systemd-analyze here: the unit is not checked"
fi

package=$(scripts/deb.sh "$work")
say "$(basename "$package"): $(stat -c %s "$package") bytes, needs" \
    "$(dpkg-deb --field "$package" Depends)"

# A root with what the package's scripts and programs need of the machine, and no more.
root=$work/root
mkdir -p "$root"/{dev,usr/bin,usr/sbin,usr/lib,usr/lib64,etc,run/xroce,var/lib/dpkg/{info,updates}}
for link in bin sbin lib lib64; do ln -s "usr/$link" "$root/$link"; done
: >"$root/var/lib/dpkg/status"
mknod -m 666 "$root/dev/null" c 1 3
echo root:x:0: >"$root/etc/group"
echo root:x:0:0::/:/bin/sh >"$root/etc/passwd"
bring() {
    local file=$1
    mkdir -p "$root$(dirname "$file")"
    cp -L --update=none "$file" "$root$file" 2>/dev/null || cp -Ln "$file" "$root$file"
}
libraries_of() { ldd "$@" | grep -o '/[^ ]*' | grep -v ':$' | sort -u; }
programs=$(for name in sh rm getent groupadd groupdel; do
    PATH=$PATH:/usr/sbin command -v "$name"
done)
dpkg-deb --fsys-tarfile "$package" | tar -xC "$work" ./usr/bin/xroce ./usr/sbin/xroced
for file in $programs $(libraries_of $programs "$work/usr/bin/xroce" "$work/usr/sbin/xroced"); do
    bring "$file"
done

# What the package leaves: compared by name, without dpkg's own notes and those of groupadd.
list() { (cd "$root" && find . -path ./var/lib/dpkg -prune -o -print | grep -v 'etc/g\?shadow\|etc/group-\|etc/.*lock' | sort); }
before=$(list)
# Its dependencies are here as files, not as packages.
install=(dpkg --root="$root" --force-depends --log=/dev/null)
quietly() { "$@" >"$work/log" 2>&1 || fail "$*: $(cat "$work/log")"; }
quietly "${install[@]}" --install "$package"
in_root() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin "$@"; }
bring "$(command -v env)"
grep -q '^xroce:' "$root/etc/group" || fail "there is no group xroce"
for file in usr/share/man/man8/xroced.8.gz usr/lib/systemd/system/xroced.service \
    usr/share/doc/xroce/operations.md; do
    [ -e "$root/$file" ] || fail "there is no $file"
done

# On an address that nobody else has.
address=127.$((160 + RANDOM % 16)).$((RANDOM % 256)).$((1 + RANDOM % 254))
checked=$(in_root xroced --check --config /etc/xroce/xroced.toml --udp "$address") || fail "xroced --check: $checked"
grep -q 'group xroce may attach' <<<"$checked" || fail "xroced --check: $checked"
say "xroced --check with the packaged configuration: $(tail -n1 <<<"$checked")"

chroot "$root" /usr/sbin/xroced --config /etc/xroce/xroced.toml --udp "$address" --drain 0 \
    2>"$work/daemon.log" &
daemon=$!
for _ in $(seq 200); do
    [ ! -S "$root/run/xroce/xroced.sock" ] || break
    sleep 0.1
done
stat=$(in_root xroce stat --interval 0) || fail "xroce stat: $(cat "$work/daemon.log")"
grep -q "udp:$address" <<<"$stat" || fail "xroce stat: $stat"
in_root xroce top --once --interval 0.1 >"$work/top" || fail "xroce top"
grep -q "udp:$address" "$work/top" || fail "xroce top: $(cat "$work/top")"
mode=$(stat -c '%a %g' "$root/run/xroce/xroced.sock")
[ "$mode" = "660 $(sed -n 's/^xroce:[^:]*:\([0-9]*\):.*/\1/p' "$root/etc/group")" ] ||
    fail "the socket has mode and group $mode"
kill "$daemon"
wait "$daemon" || fail "the daemon ended with $?: $(cat "$work/daemon.log")"
daemon=
say "xroced served $address, stat and top showed it, SIGTERM ended it"

# A configuration that the operator changed stays, also when the package is installed again.
echo '# mine' >>"$root/etc/xroce/xroced.toml"
quietly "${install[@]}" --install "$package"
quietly "${install[@]}" --remove xroce
grep -q '# mine' "$root/etc/xroce/xroced.toml" || fail "removing took the configuration along"
[ ! -e "$root/usr/sbin/xroced" ] || fail "removing left xroced"
quietly "${install[@]}" --purge xroce
rm -f "$root$(command -v env)"
left=$(diff <(echo "$before") <(list) || true)
# The folder of sockets was there before, and a purge takes it too.
left=$(grep '^>' <<<"$left" || true)
[ -z "$left" ] || fail "left after the purge: $left"
! grep -q '^xroce:' "$root/etc/group" || fail "the group xroce is left"
[ -z "$(dpkg-query --admindir="$root/var/lib/dpkg" -W 2>/dev/null)" ] || fail "dpkg remembers it"
say "removed and purged: nothing is left"
