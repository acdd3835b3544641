//! Plans of random requests, and what may be wrong with one.

use xroce_net::sim::Rng;
use xroce_proto::wc::WcStatus;
use xroce_proto::wr::SendFlags;
use xroce_wire::newtypes::PathMtu;

/// Start of the target area that WRITEs may write over each other.
pub const SCRIBBLE: u64 = 4096;

/// Limits of the QPs and of the work.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub mtu: PathMtu,
    pub ops: usize,
    pub max_len: u32,
    pub send_wr: u32,
    pub recv_wr: u32,
    pub send_sge: u8,
    pub recv_sge: u8,
    pub inline: u32,
    /// How often, and by how much at most, receives come late.
    pub late_ppm: u32,
    pub late_ns: u64,
    /// How often, and how long at most, the requester pauses.
    pub pause_ppm: u32,
    pub pause_ns: u64,
    pub writes: bool,
    pub reads: bool,
    pub atomics: bool,
    pub atomic_writes: bool,
    pub flushes: bool,
}

impl Limits {
    /// Leaves out all that takes more than an ACK: such answers wait for the pacer of the peer, as
    /// data does.
    pub fn leave_out_answers(&mut self) {
        self.reads = false;
        self.atomics = false;
        self.atomic_writes = false;
        self.flushes = false;
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Send,
    SendImm,
    Write,
    WriteImm,
    /// WRITE into the part that others write over as well.
    Scribble,
    Read,
    /// READ of what the WRITE just before wrote.
    ReadBack,
    /// Fenced SEND of what the READ just before read.
    Relay,
    /// Atomics on the one word of the lane.
    FetchAdd,
    CompareSwap,
    /// Stores eight bytes in that word.
    AtomicWrite,
    /// Waits until all before it is placed.
    Flush,
    /// SEND that takes back a region made for it.
    SendInv,
    /// Takes back a region of the own side, made for it.
    LocalInv,
}

impl Kind {
    pub fn is_read(self) -> bool {
        matches!(self, Self::Read | Self::ReadBack)
    }

    pub fn takes_receive(self) -> bool {
        matches!(
            self,
            Self::Send | Self::SendImm | Self::WriteImm | Self::Relay | Self::SendInv
        )
    }

    /// Whether it brings back what the word of the lane held.
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }

    /// Whether it has no data at all.
    pub fn is_bare(self) -> bool {
        matches!(self, Self::Flush | Self::LocalInv)
    }

    /// Whether it works on the word of the lane.
    pub fn is_of_word(self) -> bool {
        self.is_atomic() || self == Self::AtomicWrite
    }
}

/// A planned request.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub kind: Kind,
    pub len: u32,
    pub flags: SendFlags,
    pub inline: bool,
    pub imm: [u8; 4],
}

/// A request that cannot succeed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    WriteKey,
    WriteImmKey,
    ReadKey,
    WriteRange,
    ReadRange,
    /// The memory region does not grant it.
    WriteRight,
    ReadRight,
    /// The queue pair does not grant it.
    QpWrite,
    QpRead,
    QpAtomic,
    QpAtomicWrite,
    QpFlush,
    AtomicKey,
    AtomicRight,
    AtomicWriteKey,
    AtomicWriteRight,
    FlushKey,
    FlushRight,
    /// A key that is not there to be taken back, at the peer and here.
    InvalidateKey,
    LocalInvKey,
    SendLong,
    LocalKey,
    ReceiveKey,
}

impl Fault {
    pub const ALL: [Self; 23] = [
        Self::WriteKey,
        Self::WriteImmKey,
        Self::ReadKey,
        Self::WriteRange,
        Self::ReadRange,
        Self::WriteRight,
        Self::ReadRight,
        Self::QpWrite,
        Self::QpRead,
        Self::QpAtomic,
        Self::QpAtomicWrite,
        Self::QpFlush,
        Self::AtomicKey,
        Self::AtomicRight,
        Self::AtomicWriteKey,
        Self::AtomicWriteRight,
        Self::FlushKey,
        Self::FlushRight,
        Self::InvalidateKey,
        Self::LocalInvKey,
        Self::SendLong,
        Self::LocalKey,
        Self::ReceiveKey,
    ];

    /// Whether it is a right that the QP of the peer does not give.
    pub fn is_right_of_qp(self) -> bool {
        matches!(
            self,
            Self::QpWrite | Self::QpRead | Self::QpAtomic | Self::QpAtomicWrite | Self::QpFlush
        )
    }

    /// Whether it is found on the own side, so that the peer hears nothing of it.
    pub fn is_local(self) -> bool {
        matches!(self, Self::LocalKey | Self::LocalInvKey)
    }

    /// Status of the request.
    pub fn status(self) -> WcStatus {
        match self {
            Self::SendLong => WcStatus::RemInvReqErr,
            fault if fault.is_right_of_qp() => WcStatus::RemInvReqErr,
            Self::LocalKey => WcStatus::LocProtErr,
            Self::LocalInvKey => WcStatus::LocQpOpErr,
            Self::ReceiveKey => WcStatus::RemOpErr,
            _ => WcStatus::RemAccessErr,
        }
    }

    /// Status of the receive it takes with it, if it takes one.
    pub fn receive_status(self, single_packet: bool) -> Option<WcStatus> {
        match self {
            Self::SendLong => Some(WcStatus::LocLenErr),
            Self::InvalidateKey => Some(WcStatus::RemInvReqErr),
            Self::ReceiveKey => Some(WcStatus::LocProtErr),
            Self::WriteImmKey if single_packet => Some(WcStatus::LocAccessErr),
            _ => None,
        }
    }

    pub fn kind(self) -> Kind {
        match self {
            Self::WriteKey | Self::WriteRange | Self::WriteRight | Self::QpWrite => Kind::Write,
            Self::WriteImmKey => Kind::WriteImm,
            Self::ReadKey | Self::ReadRange | Self::ReadRight | Self::QpRead => Kind::Read,
            Self::QpAtomic | Self::AtomicKey | Self::AtomicRight => Kind::FetchAdd,
            Self::QpAtomicWrite | Self::AtomicWriteKey | Self::AtomicWriteRight => {
                Kind::AtomicWrite
            }
            Self::QpFlush | Self::FlushKey | Self::FlushRight => Kind::Flush,
            Self::InvalidateKey => Kind::SendInv,
            Self::LocalInvKey => Kind::LocalInv,
            Self::SendLong | Self::LocalKey | Self::ReceiveKey => Kind::Send,
        }
    }
}

/// What may go wrong in a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Nothing.
    Sound,
    /// Request number so fails, everything behind it is flushed.
    Faulty(usize, Fault),
    /// The other direction of the pair is faulty: at some point everything is flushed.
    Broken,
}

/// A plan of random requests.
pub fn script(limits: &Limits, fate: Fate, rng: &mut Rng) -> Vec<Op> {
    let mut ops: Vec<Op> = Vec::with_capacity(limits.ops);
    for i in 0..limits.ops {
        let mut kind = match rng.below(25) {
            0..=2 => Kind::Send,
            3..=4 => Kind::SendImm,
            5..=7 => Kind::Write,
            8..=9 => Kind::WriteImm,
            10 => Kind::Scribble,
            11..=13 => Kind::Read,
            14 => Kind::ReadBack,
            15 => Kind::Relay,
            16..=17 => Kind::FetchAdd,
            18 => Kind::CompareSwap,
            19..=20 => Kind::SendInv,
            21..=22 => Kind::AtomicWrite,
            23 => Kind::Flush,
            _ => Kind::LocalInv,
        };
        let mut len = size(limits, rng);
        if let Fate::Faulty(at, fault) = fate
            && at == i
        {
            kind = fault.kind();
            len = len.max(1);
        } else if kind.is_read() && !limits.reads {
            kind = Kind::Send;
        } else if matches!(
            kind,
            Kind::Write | Kind::WriteImm | Kind::Scribble | Kind::AtomicWrite
        ) && !limits.writes
            || kind == Kind::AtomicWrite && !limits.atomic_writes
        {
            kind = Kind::SendImm;
        } else if (kind.is_atomic() && !limits.atomics) || (kind == Kind::Flush && !limits.flushes)
        {
            kind = Kind::Send;
        }
        let faulty = matches!(fate, Fate::Faulty(at, _) if at == i);
        match (kind, ops.last()) {
            (Kind::FetchAdd | Kind::CompareSwap | Kind::AtomicWrite, _) => len = 8,
            (Kind::Flush | Kind::LocalInv, _) => len = 0,
            (Kind::Scribble, _) => len = len.min(SCRIBBLE as u32),
            (Kind::ReadBack, Some(last)) if last.kind == Kind::Write => len = last.len,
            (Kind::Relay, Some(last)) if last.kind.is_read() => len = last.len,
            _ => {}
        }
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, rng.below(10) < 7);
        flags.set(SendFlags::FENCE, kind == Kind::Relay || rng.below(10) == 0);
        flags.set(SendFlags::SOLICITED, !kind.is_read() && rng.below(5) == 0);
        let answered = kind.is_read() || kind.is_atomic() || kind.is_bare();
        let may_inline = !faulty && !answered && kind != Kind::Relay && len <= limits.inline;
        ops.push(Op {
            kind,
            len,
            flags,
            inline: may_inline && rng.below(2) == 0,
            imm: u32::try_from(i).unwrap().to_be_bytes(),
        });
    }
    ops
}

/// A length: mostly where packets begin and end, often small, sometimes anything.
fn size(limits: &Limits, rng: &mut Rng) -> u32 {
    let mtu = limits.mtu.bytes() as u64;
    let max = u64::from(limits.max_len);
    let len = match rng.below(10) {
        0..=4 => (rng.below(5) * mtu + rng.below(3)).saturating_sub(1),
        5 | 6 => rng.below(65),
        7 | 8 => rng.below(4 * mtu + 1),
        _ => rng.below(max + 1),
    };
    u32::try_from(len.min(max)).unwrap()
}
