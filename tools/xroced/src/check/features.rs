//! What the driver of an interface says it can do with XDP: the kernel's `netdev` family of generic
//! netlink, from Linux 6.3 on.

use std::io;

use netlink_sys::protocols::NETLINK_GENERIC;
use netlink_sys::{Socket, SocketAddr};

/// Number of the family that knows the numbers of the others (`GENL_ID_CTRL`).
const CONTROL: u16 = 0x10;
/// `CTRL_CMD_GETFAMILY`, `CTRL_ATTR_FAMILY_ID`, `CTRL_ATTR_FAMILY_NAME`.
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// `NETDEV_CMD_DEV_GET`, `NETDEV_A_DEV_IFINDEX`, `NETDEV_A_DEV_XDP_FEATURES`.
const DEV_GET: u8 = 1;
const IFINDEX: u16 = 1;
const XDP_FEATURES: u16 = 3;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// `NLMSG_ERROR`.
const ERROR: u16 = 2;
/// Bytes of a message's header, and of that of generic netlink behind it.
const HEADER: usize = 16;
const GENERIC: usize = 4;

/// What a driver can.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Features(u64);

impl Features {
    /// XDP before the kernel makes a packet buffer (`NETDEV_XDP_ACT_BASIC` and `_REDIRECT`).
    pub(super) const fn native(self) -> bool {
        self.0 & 3 == 3
    }

    /// AF_XDP without a copy (`NETDEV_XDP_ACT_XSK_ZEROCOPY`).
    pub(super) const fn zero_copy(self) -> bool {
        self.0 & 8 != 0
    }

    /// Frames larger than a page (`NETDEV_XDP_ACT_RX_SG`).
    pub(super) const fn large_frames(self) -> bool {
        self.0 & 32 != 0
    }
}

/// What the driver of an interface can.
///
/// # Errors
/// The kernel does not tell.
pub(super) fn of(ifindex: u32) -> io::Result<Features> {
    let mut socket = Socket::new(NETLINK_GENERIC)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let named = ask(&socket, CONTROL, GET_FAMILY, FAMILY_NAME, b"netdev\0")?;
    let family = attribute(&named, FAMILY_ID).and_then(|v| v.first_chunk());
    let family = u16::from_ne_bytes(*family.ok_or_else(nonsense)?);
    let told = ask(&socket, family, DEV_GET, IFINDEX, &ifindex.to_ne_bytes())?;
    let bits = attribute(&told, XDP_FEATURES).and_then(|v| v.first_chunk());
    Ok(Features(u64::from_ne_bytes(*bits.ok_or_else(nonsense)?)))
}

fn nonsense() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the answer lacks what was asked",
    )
}

/// One request with one attribute; the attributes of its answer.
fn ask(socket: &Socket, family: u16, command: u8, kind: u16, value: &[u8]) -> io::Result<Vec<u8>> {
    let request = message(family, command, kind, value);
    socket.send(&request, 0)?;
    let (answer, _) = socket.recv_from_full()?;
    let field = |at: usize| answer.get(at..).and_then(|rest| rest.first_chunk::<4>());
    let kind = field(4).map_or(ERROR, |&[low, high, _, _]| u16::from_ne_bytes([low, high]));
    if kind == ERROR {
        let errno = field(HEADER).map_or(0, |b| i32::from_ne_bytes(*b));
        return Err(io::Error::from_raw_os_error(errno.saturating_neg()));
    }
    Ok(answer.get(HEADER + GENERIC..).unwrap_or_default().to_vec())
}

fn message(family: u16, command: u8, kind: u16, value: &[u8]) -> Vec<u8> {
    let attribute = 4 + value.len();
    let padded = attribute.next_multiple_of(4);
    let len = u32::try_from(HEADER + GENERIC + padded).unwrap_or(u32::MAX);
    let mut bytes = Vec::new();
    bytes.extend(len.to_ne_bytes());
    bytes.extend(family.to_ne_bytes());
    bytes.extend(REQUEST.to_ne_bytes());
    // Sequence number and port: one request at a time, and the kernel knows the port.
    bytes.extend([0; 8]);
    bytes.extend([command, 1, 0, 0]);
    bytes.extend(u16::try_from(attribute).unwrap_or(u16::MAX).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(HEADER + GENERIC + padded, 0);
    bytes
}

/// The value of the attribute of a kind.
fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let &[l0, l1, k0, k1] = bytes.first_chunk()?;
        let len = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = bytes.get(4..len)?;
        if u16::from_ne_bytes([k0, k1]) == wanted {
            return Some(value);
        }
        bytes = bytes.get(len.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_and_nonsense_is_not() {
        let bytes = message(CONTROL, 1, FAMILY_NAME, b"abc");
        assert_eq!(bytes.len(), HEADER + GENERIC + 8);
        let attributes = &bytes[HEADER + GENERIC..];
        assert_eq!(attribute(attributes, FAMILY_NAME), Some(&b"abc"[..]));
        assert_eq!(attribute(attributes, FAMILY_ID), None);
        for broken in [&[][..], &[0, 0, 2, 0], &[200, 0, 2, 0], &[3, 0, 2, 0]] {
            assert_eq!(attribute(broken, FAMILY_NAME), None, "{broken:?}");
        }
    }

    #[test]
    fn the_kernel_tells_about_lo_or_that_it_does_not_know() {
        match of(1) {
            Ok(features) => assert!(!features.zero_copy(), "{features:?}"),
            Err(error) => println!("this kernel does not tell: {error}"),
        }
    }
}
