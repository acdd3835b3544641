//! Receive work requests.
//!
//! ```text
//!  0  SGEs            u8
//!  1  entries         u8
//!  2  reserved        6 bytes, 0
//!  8  wr_id           u64
//! 16  SGEs, 16 bytes each: address u64, length u32, L_Key u32
//! ```

use xroce_proto::wr::{RecvWr, Sge};
use xroce_wire::newtypes::{LKey, Va};

use crate::field::{SGE, byte, bytes, put, put_sge, sge, word64, zero};
use crate::{BadEntry, ENTRY, SGES_MAX};

const HEADER: usize = 16;
/// Entries of a receive, at most.
pub const ENTRIES_MAX: usize = (HEADER + SGES_MAX * SGE).div_ceil(ENTRY);

/// Entries that a receive of so many SGEs takes.
#[must_use]
pub const fn entries(sges: usize) -> usize {
    (HEADER + sges * SGE).div_ceil(ENTRY)
}

/// A receive, copied out of a ring.
#[derive(Clone, Debug)]
pub struct Received {
    wr_id: u64,
    sges: [Sge; SGES_MAX],
    count: usize,
}

impl Received {
    /// As it is posted.
    #[must_use]
    pub fn wr(&self) -> RecvWr<'_> {
        RecvWr {
            wr_id: self.wr_id,
            sges: self.sges.get(..self.count).unwrap_or(&[]),
        }
    }
}

/// Writes `wr` to the start of `to`; the entries it takes.
///
/// # Errors
/// [`BadEntry::Limit`]: too many SGEs. [`BadEntry::Short`]: `to` is too short.
pub fn encode(wr: &RecvWr<'_>, to: &mut [u8]) -> Result<usize, BadEntry> {
    let count = wr.sges.len();
    let limited = u8::try_from(count).ok().filter(|_| count <= SGES_MAX);
    let sges = limited.ok_or(BadEntry::Limit {
        what: "SGEs",
        given: count,
        limit: SGES_MAX,
    })?;
    let entries = entries(count);
    let given = to.len();
    let needed = entries * ENTRY;
    let Some(to) = to.get_mut(..needed) else {
        return Err(BadEntry::Short { given, needed });
    };
    to.fill(0);
    // At most 9.
    put(to, 0, &[sges, u8::try_from(entries).unwrap_or(u8::MAX)]);
    put(to, 8, &wr.wr_id.to_ne_bytes());
    for (i, sge) in wr.sges.iter().enumerate() {
        put_sge(to, HEADER + i * SGE, sge);
    }
    Ok(entries)
}

/// Entries of the receive whose first entry this is.
///
/// # Errors
/// It cannot be the first.
pub fn announced(first: &[u8; ENTRY]) -> Result<usize, BadEntry> {
    let sges = usize::from(byte(first, 0));
    if sges > SGES_MAX {
        return Err(BadEntry::Limit {
            what: "SGEs",
            given: sges,
            limit: SGES_MAX,
        });
    }
    let given = usize::from(byte(first, 1));
    let needed = entries(sges);
    if given != needed {
        return Err(BadEntry::Entries { given, needed });
    }
    Ok(given)
}

/// Reads a receive of as many entries as [`announced`] says.
///
/// # Errors
/// See [`BadEntry`].
pub fn decode(from: &[u8]) -> Result<Received, BadEntry> {
    let first: [u8; ENTRY] = bytes(from, 0);
    let needed = announced(&first)? * ENTRY;
    if from.len() < needed {
        let given = from.len();
        return Err(BadEntry::Short { given, needed });
    }
    zero("bytes 2 to 7 of a receive", word64(from, 0) & RESERVED)?;
    let count = usize::from(byte(from, 0));
    let mut sges = [NO_SGE; SGES_MAX];
    for (i, place) in sges.iter_mut().take(count).enumerate() {
        *place = sge(from, HEADER + i * SGE);
    }
    Ok(Received {
        wr_id: word64(from, 8),
        sges,
        count,
    })
}

/// All but the first two bytes, in this machine's order.
const RESERVED: u64 = u64::from_ne_bytes([0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
/// Filler.
pub(crate) const NO_SGE: Sge = Sge {
    lkey: LKey::new(0),
    va: Va::new(0),
    len: 0,
};
