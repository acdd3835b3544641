#!/usr/bin/env bash
# Builds the Debian package from a release build, with dpkg-deb alone:
#
#   scripts/deb.sh [FOLDER]     into FOLDER, by default where cargo builds
#
# Prints the path of the package.
set -euo pipefail
cd "$(dirname "$0")/.."

built=${CARGO_TARGET_DIR:-target}
out=${1:-$built}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n1)
architecture=$(dpkg --print-architecture)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"

install -Dm755 "$built/release/xroce" "$root/usr/bin/xroce"
install -Dm755 "$built/release/xroced" "$root/usr/sbin/xroced"
strip --strip-unneeded "$root/usr/bin/xroce" "$root/usr/sbin/xroced"
install -Dm644 packaging/xroced.service "$root/usr/lib/systemd/system/xroced.service"
install -Dm644 packaging/xroced.toml "$root/etc/xroce/xroced.toml"
install -d "$root/usr/share/man/man8" "$root/usr/share/doc/xroce"
gzip -9n <packaging/xroced.8 >"$root/usr/share/man/man8/xroced.8.gz"
install -m644 LICENSE "$root/usr/share/doc/xroce/copyright"
install -m644 README.md docs/operations.md docs/counters.md "$root/usr/share/doc/xroce"

# The packages of the libraries that the two are linked to, and the libc they need at least.
libraries=$(ldd "$root/usr/bin/xroce" "$root/usr/sbin/xroced" | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p' | sort -u)
packages=$(for library in $libraries; do
    dpkg -S "$(realpath "$library")" 2>/dev/null || dpkg -S "$library"
done | cut -d: -f1 | sort -u | grep -v '^libc6$')
libc=$(objdump -T "$root/usr/bin/xroce" "$root/usr/sbin/xroced" |
    grep -o 'GLIBC_[0-9.]*' | cut -d_ -f2 | sort -uV | tail -n1)
depends="libc6 (>= $libc)"
for package in $packages; do depends+=", $package"; done

install -d "$root/DEBIAN"
for script in postinst prerm postrm; do
    install -m755 "packaging/debian/$script" "$root/DEBIAN/$script"
done
echo /etc/xroce/xroced.toml >"$root/DEBIAN/conffiles"
cat >"$root/DEBIAN/control" <<END
Package: xroce
Version: $version
Architecture: $architecture
Maintainer: xroce maintainers <xroce@localhost>
Section: net
Priority: optional
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Depends: $depends
Recommends: iproute2, ethtool
Description: software RDMA NIC: RoCEv2 over AF_XDP or UDP sockets
 xroced serves RoCEv2 to the processes of a machine that attach to it; xroce measures, decodes,
 simulates and shows what the daemon does. No kernel module and no RDMA hardware is needed.
END

package=$out/xroce_${version}_${architecture}.deb
dpkg-deb --root-owner-group --build "$root" "$package" >/dev/null
echo "$package"
