//! Control messages of one `sendmsg`, as bytes: what socket2 takes and quinn-udp keeps to itself.
//!
//! quinn-udp's own send is not used: it sends the ECN bits as the whole TOS byte, which erases
//! the DSCP, and after one EINVAL it stops sending ECN over IPv4 for ever.

/// `IPPROTO_IP` / `IP_TOS`, `IPPROTO_IPV6` / `IPV6_TCLASS`, `SOL_UDP` / `UDP_SEGMENT`
/// (linux/in.h, linux/in6.h, linux/udp.h); the same on every Linux architecture.
const IP_TOS: (i32, i32) = (0, 1);
const IPV6_TCLASS: (i32, i32) = (41, 67);
const UDP_SEGMENT: (i32, i32) = (17, 103);

/// Bytes of `struct cmsghdr`: a length of the size of a pointer, level, type.
const HEADER: usize = size_of::<usize>() + 8;
/// Each message starts on a multiple of this.
const ALIGN: usize = size_of::<usize>();

/// Up to two control messages.
#[derive(Debug)]
pub(super) struct Control {
    bytes: [u8; 64],
    len: usize,
}

impl Control {
    /// For `tos` (none if 0, the socket's default) and, if `segment` is given, a send that the
    /// kernel cuts into pieces of so many bytes.
    pub(super) fn new(v4: bool, tos: u8, segment: Option<u16>) -> Self {
        let mut control = Self {
            bytes: [0; 64],
            len: 0,
        };
        if tos != 0 {
            let kind = if v4 { IP_TOS } else { IPV6_TCLASS };
            control.push(kind, &i32::from(tos).to_ne_bytes());
        }
        if let Some(size) = segment {
            control.push(UDP_SEGMENT, &size.to_ne_bytes());
        }
        control
    }

    fn push(&mut self, (level, kind): (i32, i32), data: &[u8]) {
        let mut put = |at: usize, bytes: &[u8]| {
            if let Some(room) = self.bytes.get_mut(at..at + bytes.len()) {
                room.copy_from_slice(bytes);
            }
        };
        let at = self.len;
        put(at, &(HEADER + data.len()).to_ne_bytes());
        put(at + ALIGN, &level.to_ne_bytes());
        put(at + ALIGN + 4, &kind.to_ne_bytes());
        put(at + HEADER, data);
        self.len += HEADER + data.len().next_multiple_of(ALIGN);
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(all(target_pointer_width = "64", target_endian = "little"))]
    fn layout_is_the_kernels() {
        assert!(Control::new(true, 0, None).bytes().is_empty());
        let both = Control::new(true, 0x6a, Some(1040));
        #[rustfmt::skip]
        assert_eq!(both.bytes(), [
            20, 0, 0, 0, 0, 0, 0, 0,  0, 0, 0, 0,  1, 0, 0, 0,  0x6a, 0, 0, 0, 0, 0, 0, 0,
            18, 0, 0, 0, 0, 0, 0, 0,  17, 0, 0, 0,  103, 0, 0, 0,  0x10, 4, 0, 0, 0, 0, 0, 0,
        ]);
        assert_eq!(
            Control::new(false, 2, None).bytes()[8..16],
            [41, 0, 0, 0, 67, 0, 0, 0]
        );
    }
}
