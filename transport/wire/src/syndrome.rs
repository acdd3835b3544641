//! AETH syndrome: ACK credits, RNR NAK timers and NAK codes.
//!
//! Bit 7 is zero, bits 6:5 the kind (0 ACK, 1 RNR NAK, 3 NAK), bits 4:0 the code.

use serde::{Deserialize, Serialize};

const CODE: u8 = 0x1f;

/// Credit code "no end-to-end credits": what this stack sends and all it needs to understand.
pub const CREDIT_UNLIMITED: u8 = 31;

/// What a responder says in an AETH.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Syndrome {
    /// Positive acknowledgement.
    Ack {
        /// Credit code 0 ..= 31, see [`credit_count`]; higher bits are cut on emission.
        credit: u8,
    },
    /// Receiver not ready: try again after the timer.
    RnrNak {
        /// Minimal wait.
        timer: RnrTimer,
    },
    /// Negative acknowledgement.
    Nak(NakCode),
    /// A byte without meaning, kept as it was.
    Reserved(u8),
}

/// Why a request was refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum NakCode {
    /// A packet is missing: go back to the PSN named.
    PsnSequence = 0,
    /// Request not allowed or malformed; fatal.
    InvalidRequest = 1,
    /// R_Key, range or rights do not fit; fatal.
    RemoteAccess = 2,
    /// The responder failed by its own fault; fatal.
    RemoteOperational = 3,
    /// RD service only.
    InvalidRdRequest = 4,
}

impl Syndrome {
    /// ACK without end-to-end credits, 0x1f on the wire.
    pub const ACK: Self = Self::Ack {
        credit: CREDIT_UNLIMITED,
    };

    /// From the byte on the wire; each byte has exactly one value.
    #[inline]
    #[must_use]
    pub const fn from_u8(byte: u8) -> Self {
        let code = byte & CODE;
        match byte >> 5 {
            0 => Self::Ack { credit: code },
            1 => Self::RnrNak {
                timer: RnrTimer(code),
            },
            3 => match code {
                0 => Self::Nak(NakCode::PsnSequence),
                1 => Self::Nak(NakCode::InvalidRequest),
                2 => Self::Nak(NakCode::RemoteAccess),
                3 => Self::Nak(NakCode::RemoteOperational),
                4 => Self::Nak(NakCode::InvalidRdRequest),
                _ => Self::Reserved(byte),
            },
            _ => Self::Reserved(byte),
        }
    }

    /// The byte on the wire.
    #[inline]
    #[must_use]
    pub const fn to_u8(self) -> u8 {
        match self {
            Self::Ack { credit } => credit & CODE,
            Self::RnrNak { timer } => 0x20 | timer.0,
            Self::Nak(code) => 0x60 | code as u8,
            Self::Reserved(byte) => byte,
        }
    }
}

/// RNR timer code, 0 ..= 31.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RnrTimer(u8);

/// Wait per code in units of 10 µs; code 0 is the longest.
const RNR_UNITS: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024,
    1_536, 2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
];
/// The unit of [`RNR_UNITS`] in nanoseconds.
const RNR_UNIT_NS: u64 = 10_000;

impl RnrTimer {
    /// From its code; `None` above 31.
    #[must_use]
    pub const fn new(code: u8) -> Option<Self> {
        if code > CODE { None } else { Some(Self(code)) }
    }

    /// The code, 0 ..= 31.
    #[inline]
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The wait in nanoseconds, 10 µs to 655.36 ms.
    #[inline]
    #[must_use]
    pub const fn nanos(self) -> u64 {
        // The mask restates what the constructor guarantees, so that no bounds check remains.
        RNR_UNITS[(self.0 & CODE) as usize] as u64 * RNR_UNIT_NS
    }

    /// The shortest wait that is at least `nanos`; the longest there is if none is.
    #[must_use]
    pub fn at_least(nanos: u64) -> Self {
        // Code 0 is the longest, the others ascend.
        (1..=CODE)
            .map(Self)
            .find(|t| t.nanos() >= nanos)
            .unwrap_or(Self(0))
    }
}

/// Receive WQEs per credit code 0 ..= 30.
const CREDITS: [u16; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536,
    2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768,
];

/// Receive WQEs a credit code stands for; `None` for "unlimited" (31) and above.
#[must_use]
pub fn credit_count(code: u8) -> Option<u16> {
    CREDITS.get(usize::from(code)).copied()
}

/// The largest credit code that promises no more than `count` receive WQEs.
#[must_use]
#[allow(
    clippy::cast_possible_truncation,
    reason = "at most 31 entries; code 0 promises nothing"
)]
pub fn credit_code(count: u32) -> u8 {
    CREDITS
        .partition_point(|&c| u32::from(c) <= count)
        .saturating_sub(1) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule W12.
    #[test]
    fn every_byte_survives() {
        for byte in 0..=u8::MAX {
            assert_eq!(Syndrome::from_u8(byte).to_u8(), byte);
        }
        assert_eq!(Syndrome::from_u8(0x1f), Syndrome::ACK);
        assert_eq!(
            Syndrome::from_u8(0x62),
            Syndrome::Nak(NakCode::RemoteAccess)
        );
        assert_eq!(Syndrome::from_u8(0x65), Syndrome::Reserved(0x65));
        assert_eq!(Syndrome::from_u8(0x40), Syndrome::Reserved(0x40));
        assert_eq!(Syndrome::from_u8(0x9f), Syndrome::Reserved(0x9f));
    }

    /// Rule W13.
    #[test]
    fn rnr_timers() {
        let ms = |code| RnrTimer::new(code).unwrap().nanos() as f64 / 1e6;
        assert_eq!(ms(0), 655.36);
        assert_eq!(ms(1), 0.01);
        assert_eq!(ms(12), 0.64);
        assert_eq!(ms(25), 61.44);
        assert_eq!(ms(31), 491.52);
        assert_eq!(RnrTimer::new(32), None);
        assert_eq!(RnrTimer::at_least(0).code(), 1);
        assert_eq!(RnrTimer::at_least(640_000).code(), 12);
        assert_eq!(RnrTimer::at_least(640_001).code(), 13);
        assert_eq!(RnrTimer::at_least(500_000_000).code(), 0);
        assert_eq!(RnrTimer::at_least(u64::MAX).code(), 0);
    }

    /// Rule W14.
    #[test]
    fn credits() {
        assert_eq!(credit_count(0), Some(0));
        assert_eq!(credit_count(10), Some(32));
        assert_eq!(credit_count(30), Some(32_768));
        assert_eq!(credit_count(31), None);
        assert_eq!(credit_code(0), 0);
        assert_eq!(credit_code(5), 4);
        assert_eq!(credit_code(6), 5);
        assert_eq!(credit_code(u32::MAX), 30);
        for code in 0..=30 {
            assert_eq!(credit_code(u32::from(credit_count(code).unwrap())), code);
        }
    }
}
