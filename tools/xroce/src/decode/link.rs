//! From the bytes of a captured packet to a RoCE frame, whatever the link type.

use xroce_wire::eth::ethertype;
use xroce_wire::frame::{Frame, FrameError};

/// Link types read here (LINKTYPE_ numbers of the capture formats).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// 1: Ethernet.
    Ethernet,
    /// 12, 14, 101, 228, 229: IP without anything in front.
    RawIp,
    /// 0, 108: BSD loopback, four bytes of address family.
    Loopback,
    /// 113: Linux cooked, as of `-i any`.
    Cooked,
    /// 276: Linux cooked, version 2.
    Cooked2,
}

impl Link {
    pub(super) const fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::Ethernet,
            12 | 14 | 101 | 228 | 229 => Self::RawIp,
            0 | 108 => Self::Loopback,
            113 => Self::Cooked,
            276 => Self::Cooked2,
            _ => return None,
        })
    }

    /// The frame in `data`.
    pub(super) fn dissect(self, data: &[u8]) -> Result<Frame<'_>, FrameError> {
        match self {
            Self::Ethernet => Frame::dissect_ethernet(data),
            Self::RawIp => ip(data),
            Self::Loopback => ip(data.get(4..).ok_or(FrameError::Short)?),
            // The protocol is the last field of version 1 and the first of version 2.
            Self::Cooked => behind(data, 14, 16),
            Self::Cooked2 => behind(data, 0, 20),
        }
    }
}

/// IP of the version its first nibble says.
fn ip(data: &[u8]) -> Result<Frame<'_>, FrameError> {
    match data.first().ok_or(FrameError::Short)? >> 4 {
        4 => Frame::dissect(ethertype::IPV4, data),
        6 => Frame::dissect(ethertype::IPV6, data),
        _ => Err(FrameError::NotRoce),
    }
}

/// What is behind a header of `len` bytes with the ethertype at `at`.
fn behind(data: &[u8], at: usize, len: usize) -> Result<Frame<'_>, FrameError> {
    let (Some(kind), Some(l3)) = (data.get(at..at + 2), data.get(len..)) else {
        return Err(FrameError::Short);
    };
    let kind = kind
        .try_into()
        .map(u16::from_be_bytes)
        .map_err(|_| FrameError::Short)?;
    Frame::dissect(kind, l3)
}
