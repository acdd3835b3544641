//! Membership in multicast groups for backends that read frames below the network stack: the
//! kernel programs the interface's address filter and speaks IGMP and MLD for its sockets only.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use socket2::{Domain, InterfaceIndexOrAddress, Socket, Type};
use xroce_wire::newtypes::Gid;

/// The groups an interface is a member of on behalf of a port; left on drop.
///
/// Each has a socket of its own, because the kernel limits the groups of a socket (to 20 by
/// default). Nothing is read from them: they are not bound. As the port itself they live in the
/// network namespace of the thread that asks.
#[derive(Debug)]
pub(crate) struct Memberships {
    ifindex: u32,
    sockets: BTreeMap<[u8; 16], Socket>,
}

impl Memberships {
    pub(crate) fn new(ifindex: u32) -> Self {
        Self {
            ifindex,
            sockets: BTreeMap::new(),
        }
    }

    /// # Errors
    /// The kernel refused: no such interface, or no group's address.
    pub(crate) fn join(&mut self, group: Gid) -> io::Result<()> {
        let socket = match group.ip() {
            IpAddr::V4(v4) => {
                let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
                socket.join_multicast_v4_n(&v4, &InterfaceIndexOrAddress::Index(self.ifindex))?;
                socket
            }
            IpAddr::V6(v6) => {
                let socket = Socket::new(Domain::IPV6, Type::DGRAM, None)?;
                socket.join_multicast_v6(&v6, self.ifindex)?;
                socket
            }
        };
        self.sockets.insert(group.bytes(), socket);
        Ok(())
    }

    pub(crate) fn leave(&mut self, group: Gid) {
        self.sockets.remove(&group.bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups of the loopback interface, as the kernel tells.
    fn kernel_knows(hex: &str, file: &str) -> bool {
        std::fs::read_to_string(file).is_ok_and(|text| text.contains(hex))
    }

    #[test]
    fn the_kernel_keeps_the_membership_as_long_as_it_lasts() {
        let lo = crate::neigh::interface("lo").unwrap();
        let mut all = Memberships::new(lo.index);
        for (group, hex, file) in [
            ("224.77.3.9", "09034DE0", "/proc/net/igmp"),
            (
                "ff0e::7739",
                "ff0e0000000000000000000000007739",
                "/proc/net/igmp6",
            ),
        ] {
            let group = Gid::from(group.parse::<IpAddr>().unwrap());
            if let Err(e) = all.join(group) {
                // A machine without IPv6.
                assert!(group.v4().is_none(), "{e}");
                continue;
            }
            assert!(kernel_knows(hex, file), "{group}");
            all.leave(group);
            assert!(!kernel_knows(hex, file), "{group}");
        }
        let unicast = Gid::from_v4([192, 0, 2, 1]);
        assert!(all.join(unicast).is_err());
    }
}
