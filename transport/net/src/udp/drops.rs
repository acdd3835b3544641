//! Datagrams the kernel dropped because the socket's buffer was full: only `/proc/net/udp`
//! tells, without privileges and without a control message on every receive.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek};
use std::net::{IpAddr, SocketAddr};

/// The table, open since the port was bound: it is that of the network namespace of the thread
/// that opened it.
#[derive(Debug)]
pub(super) struct Drops {
    table: Option<BufReader<File>>,
    /// The local address as the table writes it.
    local: String,
    line: String,
    last: u64,
}

impl Drops {
    pub(super) fn new(addr: SocketAddr) -> Self {
        let name = if addr.is_ipv4() { "udp" } else { "udp6" };
        let table = File::open(format!("/proc/thread-self/net/{name}")).ok();
        Self {
            table: table.map(BufReader::new),
            local: table_address(addr),
            line: String::with_capacity(256),
            last: 0,
        }
    }

    /// Drops so far; the last known number if the table cannot be read.
    pub(super) fn read(&mut self) -> u64 {
        if let Some(table) = &mut self.table
            && table.rewind().is_ok()
        {
            loop {
                self.line.clear();
                match table.read_line(&mut self.line) {
                    Ok(n) if n > 0 => {}
                    _ => break,
                }
                if let Some(drops) = drops_in(&self.line, &self.local) {
                    self.last = drops;
                    break;
                }
            }
        }
        self.last
    }
}

/// Address words as hexadecimal numbers in host order, as `net/ipv4/udp.c` prints them.
fn table_address(addr: SocketAddr) -> String {
    let octets = match addr.ip() {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let word = |w: &[u8]| w.try_into().map_or(0, u32::from_ne_bytes);
    let words: String = octets
        .chunks(4)
        .map(|w| format!("{:08X}", word(w)))
        .collect();
    format!("{words}:{:04X}", addr.port())
}

/// `sl local_address rem_address st … ref pointer drops`.
fn drops_in(line: &str, local: &str) -> Option<u64> {
    let mut fields = line.split_ascii_whitespace();
    fields.nth(1).filter(|&l| l == local)?;
    fields.last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn table_line() {
        let line = " 5083: 0200007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  \
                    0        0 12345 2 00000000abcdef01 17\n";
        let local = table_address("127.0.0.2:4791".parse().unwrap());
        assert_eq!(drops_in(line, &local), Some(17));
        assert_eq!(drops_in(line, "0300007F:12B7"), None);
        assert_eq!(drops_in("", &local), None);
        assert_eq!(
            table_address("[::1]:4791".parse().unwrap()),
            "00000000000000000000000001000000:12B7"
        );
    }
}
