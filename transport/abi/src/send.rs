//! Send work requests.
//!
//! ```text
//!  0  operation       u8, see below
//!  1  flags           u8: 1 fence, 2 signaled, 4 solicited (verbs' values); 0x40 to an address
//!                         handle; 0x80 inline
//!  2  SGEs            u8, 0 if inline
//!  3  entries         u8
//!  4  inline bytes    u16, 0 if not
//!  6  reserved        u16, 0
//!  8  wr_id           u64
//! 16  address         u64: remote; of a window, its first byte; of a datagram, the address handle
//! 24  key             u32: R_Key; of a datagram, the Q_Key
//! 28  immediate       4 bytes; of a bind, the L_Key of the region
//! 32  first operand   u64: compare, add, bytes of a FLUSH or of a window; QP of a datagram
//! 40  second operand  u64: swap; rights of a window; of a FLUSH, placement and 0x100 for a whole
//!                         region
//! 48  SGEs, 16 bytes each: address u64, length u32, L_Key u32; or the inline bytes
//! ```
//!
//! Fields that an operation does not have are 0.

use xroce_proto::memory::{Access, Bind};
use xroce_proto::wr::{Data, Placement, SendFlags, SendOp, SendWr, Sge};
use xroce_wire::newtypes::{LKey, QKey, Qpn, RKey, Va};

use crate::field::{SGE, byte, bytes, put, put_sge, sge, word16, word32, word64, zero};
use crate::recv::NO_SGE;
use crate::{BadEntry, ENTRY, INLINE_MAX, SGES_MAX};

const HEADER: usize = 48;
const DATAGRAM: u8 = 0x40;
const INLINE: u8 = 0x80;
const WHOLE_REGION: u64 = 0x100;
/// Bytes of the longest work request, whole entries.
pub const LEN_MAX: usize = ENTRIES_MAX * ENTRY;
/// Entries of a send, at most.
pub const ENTRIES_MAX: usize = {
    let sges = entries(SGES_MAX * SGE);
    let inline = entries(INLINE_MAX);
    if sges > inline { sges } else { inline }
};

/// Entries that a send of so many bytes behind the header takes.
const fn entries(data: usize) -> usize {
    (HEADER + data).div_ceil(ENTRY)
}

/// Entries that a send of a queue pair may take: it has up to so many SGEs and inline bytes.
#[must_use]
pub const fn entries_of(sges: usize, inline: usize) -> usize {
    let data = if sges * SGE > inline {
        sges * SGE
    } else {
        inline
    };
    entries(data)
}

/// Where a datagram goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Destination {
    /// Address handle.
    pub ah: u32,
    /// Receiving queue pair.
    pub qpn: Qpn,
    /// Q_Key of the receiver.
    pub qkey: QKey,
}

/// A send, copied out of a ring. Inline bytes are borrowed from the copy.
#[derive(Clone, Debug)]
pub struct Posted<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// How.
    pub flags: SendFlags,
    /// Of a datagram.
    pub to: Option<Destination>,
    sges: [Sge; SGES_MAX],
    count: usize,
    inline: Option<[&'a [u8]; 1]>,
}

impl Posted<'_> {
    /// As it is posted.
    #[must_use]
    pub fn wr(&self) -> SendWr<'_> {
        SendWr {
            wr_id: self.wr_id,
            op: self.op,
            flags: self.flags,
            data: match &self.inline {
                Some(parts) => Data::Inline(parts),
                None => Data::Sges(self.sges.get(..self.count).unwrap_or(&[])),
            },
        }
    }
}

/// Operation and what belongs to it, at their places.
#[derive(Clone, Copy, Default)]
struct Fields {
    code: u8,
    address: u64,
    key: u32,
    imm: [u8; 4],
    first: u64,
    second: u64,
}

impl Fields {
    fn of(op: &SendOp) -> Option<Self> {
        let none = Self::default();
        let remote = |code, va: Va, rkey: RKey| Self {
            code,
            address: va.value(),
            key: rkey.value(),
            ..none
        };
        Some(match *op {
            SendOp::Send => none,
            SendOp::SendImm(imm) => Self {
                code: 1,
                imm,
                ..none
            },
            SendOp::Write { va, rkey } => remote(2, va, rkey),
            SendOp::WriteImm { va, rkey, imm } => Self {
                imm,
                ..remote(3, va, rkey)
            },
            SendOp::Read { va, rkey } => remote(4, va, rkey),
            SendOp::SendInv { rkey } => remote(5, Va::new(0), rkey),
            SendOp::CompareSwap {
                va,
                rkey,
                compare,
                swap,
            } => Self {
                first: compare,
                second: swap,
                ..remote(6, va, rkey)
            },
            SendOp::FetchAdd { va, rkey, add } => Self {
                first: add,
                ..remote(7, va, rkey)
            },
            SendOp::AtomicWrite { va, rkey } => remote(8, va, rkey),
            SendOp::Flush {
                va,
                rkey,
                len,
                placement,
                whole_region,
            } => Self {
                first: len.into(),
                second: u64::from(placement.bits()) | if whole_region { WHOLE_REGION } else { 0 },
                ..remote(9, va, rkey)
            },
            SendOp::BindMw { rkey, bind } => Self {
                imm: bind.lkey.value().to_ne_bytes(),
                first: bind.len,
                second: bind.access.bits().into(),
                ..remote(10, bind.va, rkey)
            },
            SendOp::LocalInv { rkey } => remote(11, Va::new(0), rkey),
            _ => return None,
        })
    }

    /// The operation; what it does not have must be 0.
    fn op(self) -> Result<SendOp, BadEntry> {
        let (va, rkey) = (Va::new(self.address), RKey::new(self.key));
        let (op, used) = match self.code {
            0 => (SendOp::Send, NOTHING),
            1 => (SendOp::SendImm(self.imm), IMM),
            2 => (SendOp::Write { va, rkey }, REMOTE),
            3 => {
                let imm = self.imm;
                (SendOp::WriteImm { va, rkey, imm }, REMOTE | IMM)
            }
            4 => (SendOp::Read { va, rkey }, REMOTE),
            5 => (SendOp::SendInv { rkey }, KEY),
            6 => {
                let (compare, swap) = (self.first, self.second);
                let op = SendOp::CompareSwap {
                    va,
                    rkey,
                    compare,
                    swap,
                };
                (op, REMOTE | FIRST | SECOND)
            }
            7 => {
                let add = self.first;
                (SendOp::FetchAdd { va, rkey, add }, REMOTE | FIRST)
            }
            8 => (SendOp::AtomicWrite { va, rkey }, REMOTE),
            9 => (self.flush(va, rkey)?, REMOTE | FIRST | SECOND),
            10 => (self.bind(va, rkey)?, REMOTE | IMM | FIRST | SECOND),
            11 => (SendOp::LocalInv { rkey }, KEY),
            code => {
                return Err(BadEntry::Code {
                    what: "operation",
                    value: code.into(),
                });
            }
        };
        self.unused(used)?;
        Ok(op)
    }

    fn unused(self, used: u8) -> Result<(), BadEntry> {
        for (field, what, value) in [
            (ADDRESS, "the address", self.address),
            (KEY, "the key", self.key.into()),
            (IMM, "the immediate", u32::from_ne_bytes(self.imm).into()),
            (FIRST, "the first operand", self.first),
            (SECOND, "the second operand", self.second),
        ] {
            if used & field == 0 {
                zero(what, value)?;
            }
        }
        Ok(())
    }

    fn flush(self, va: Va, rkey: RKey) -> Result<SendOp, BadEntry> {
        let limit = |_| BadEntry::Limit {
            what: "bytes of a FLUSH:",
            given: usize::try_from(self.first).unwrap_or(usize::MAX),
            limit: u32::MAX as usize,
        };
        zero(
            "reserved bits of a FLUSH",
            self.second & !(WHOLE_REGION | 0xff),
        )?;
        let [placement, ..] = self.second.to_le_bytes();
        let code = BadEntry::Code {
            what: "placement",
            value: placement.into(),
        };
        Ok(SendOp::Flush {
            va,
            rkey,
            len: u32::try_from(self.first).map_err(limit)?,
            placement: Placement::from_bits(placement).ok_or(code)?,
            whole_region: self.second & WHOLE_REGION != 0,
        })
    }

    fn bind(self, va: Va, rkey: RKey) -> Result<SendOp, BadEntry> {
        let unknown = BadEntry::Reserved {
            what: "unknown rights of a window",
            value: self.second,
        };
        let bits = self.second.try_into().ok();
        let access = bits.and_then(Access::from_bits).ok_or(unknown)?;
        let bind = Bind {
            lkey: LKey::new(u32::from_ne_bytes(self.imm)),
            va,
            len: self.first,
            access,
        };
        Ok(SendOp::BindMw { rkey, bind })
    }
}

const NOTHING: u8 = 0;
const ADDRESS: u8 = 1;
const KEY: u8 = 2;
const IMM: u8 = 4;
const FIRST: u8 = 8;
const SECOND: u8 = 16;
const REMOTE: u8 = ADDRESS | KEY;

/// Writes a work request to the start of `to`; the entries it takes.
///
/// # Errors
/// [`BadEntry::Limit`]: too many SGEs or inline bytes. [`BadEntry::Code`]: an operation that has no
/// place here, or a datagram that is no SEND. [`BadEntry::Short`]: `to` is too short.
pub fn encode(
    wr: &SendWr<'_>,
    destination: Option<&Destination>,
    to: &mut [u8],
) -> Result<usize, BadEntry> {
    let unknown = BadEntry::Code {
        what: "operation",
        value: u32::MAX,
    };
    let mut fields = Fields::of(&wr.op).ok_or(unknown)?;
    let mut flags = wr.flags.bits().to_le_bytes()[0];
    if let Some(destination) = destination {
        if fields.code > 1 {
            return Err(BadEntry::Code {
                what: "operation of a datagram",
                value: fields.code.into(),
            });
        }
        flags |= DATAGRAM;
        fields.address = destination.ah.into();
        fields.key = destination.qkey.value();
        fields.first = destination.qpn.value().into();
    }
    let (sges, inline) = match wr.data {
        Data::Sges(sges) => (limited("SGEs", sges.len(), SGES_MAX)?, 0),
        Data::Inline(parts) => {
            flags |= INLINE;
            let len = parts.iter().map(|p| p.len()).sum();
            (0, limited("inline bytes", len, INLINE_MAX)?)
        }
    };
    let entries = entries(usize::from(sges) * SGE + usize::from(inline));
    let (given, needed) = (to.len(), entries * ENTRY);
    let Some(to) = to.get_mut(..needed) else {
        return Err(BadEntry::Short { given, needed });
    };
    to.fill(0);
    let small = |n: u16| n.to_le_bytes()[0];
    // At most 9.
    let count = u8::try_from(entries).unwrap_or(u8::MAX);
    put(to, 0, &[fields.code, flags, small(sges), count]);
    put(to, 4, &inline.to_ne_bytes());
    put(to, 8, &wr.wr_id.to_ne_bytes());
    put(to, 16, &fields.address.to_ne_bytes());
    put(to, 24, &fields.key.to_ne_bytes());
    put(to, 28, &fields.imm);
    put(to, 32, &fields.first.to_ne_bytes());
    put(to, 40, &fields.second.to_ne_bytes());
    put_data(to, &wr.data);
    Ok(entries)
}

fn put_data(to: &mut [u8], data: &Data<'_>) {
    let mut at = HEADER;
    match data {
        Data::Sges(sges) => {
            for sge in *sges {
                put_sge(to, at, sge);
                at += SGE;
            }
        }
        Data::Inline(parts) => {
            for part in *parts {
                put(to, at, part);
                at += part.len();
            }
        }
    }
}

fn limited(what: &'static str, given: usize, limit: usize) -> Result<u16, BadEntry> {
    u16::try_from(given)
        .ok()
        .filter(|_| given <= limit)
        .ok_or(BadEntry::Limit { what, given, limit })
}

/// Entries of the work request whose first entry this is.
///
/// # Errors
/// It cannot be the first: its count of SGEs or inline bytes is beyond the limit, both are given, or
/// its number of entries is another than they take.
pub fn announced(first: &[u8; ENTRY]) -> Result<usize, BadEntry> {
    let sges = limited("SGEs", byte(first, 2).into(), SGES_MAX)?;
    let inline = limited("inline bytes", word16(first, 4).into(), INLINE_MAX)?;
    if byte(first, 1) & INLINE == 0 {
        zero(
            "inline bytes of a request that is not inline",
            inline.into(),
        )?;
    } else {
        zero("SGEs of an inline request", sges.into())?;
    }
    let given = usize::from(byte(first, 3));
    let needed = entries(usize::from(sges) * SGE + usize::from(inline));
    if given != needed {
        return Err(BadEntry::Entries { given, needed });
    }
    Ok(given)
}

/// Reads a work request of as many entries as [`announced`] says.
///
/// # Errors
/// See [`BadEntry`].
pub fn decode(from: &[u8]) -> Result<Posted<'_>, BadEntry> {
    let first: [u8; ENTRY] = bytes(from, 0);
    let (given, needed) = (from.len(), announced(&first)? * ENTRY);
    if given < needed {
        return Err(BadEntry::Short { given, needed });
    }
    zero("bytes 6 and 7 of a send", word16(from, 6).into())?;
    let flags = byte(from, 1);
    let mut fields = Fields {
        code: byte(from, 0),
        address: word64(from, 16),
        key: word32(from, 24),
        imm: bytes(from, 28),
        first: word64(from, 32),
        second: word64(from, 40),
    };
    let to = if flags & DATAGRAM == 0 {
        None
    } else {
        Some(destination(&mut fields)?)
    };
    let known = SendFlags::from_bits((flags & !(DATAGRAM | INLINE)).into());
    let code = BadEntry::Code {
        what: "flags",
        value: flags.into(),
    };
    let count = usize::from(byte(from, 2));
    let mut sges = [NO_SGE; SGES_MAX];
    for (i, place) in sges.iter_mut().take(count).enumerate() {
        *place = sge(from, HEADER + i * SGE);
    }
    let inline = (flags & INLINE != 0).then(|| {
        let len = usize::from(word16(from, 4));
        [from.get(HEADER..HEADER + len).unwrap_or(&[])]
    });
    Ok(Posted {
        wr_id: word64(from, 8),
        op: fields.op()?,
        flags: known.ok_or(code)?,
        to,
        sges,
        count,
        inline,
    })
}

/// Takes the destination out of the fields it shares with other operations.
fn destination(fields: &mut Fields) -> Result<Destination, BadEntry> {
    if fields.code > 1 {
        return Err(BadEntry::Code {
            what: "operation of a datagram",
            value: fields.code.into(),
        });
    }
    let Fields {
        address,
        key,
        first,
        ..
    } = *fields;
    let ah = u32::try_from(address).map_err(|_| BadEntry::Reserved {
        what: "the upper half of an address handle",
        value: address >> 32,
    })?;
    let qpn = u32::try_from(first).ok().filter(|&q| q <= 0x00ff_ffff);
    let qpn = qpn.ok_or(BadEntry::Reserved {
        what: "what is above 24 bits of a QP",
        value: first >> 24,
    })?;
    fields.address = 0;
    fields.key = 0;
    fields.first = 0;
    Ok(Destination {
        ah,
        qpn: Qpn::new(qpn),
        qkey: QKey::new(key),
    })
}
