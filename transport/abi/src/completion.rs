//! Completions, of [`LEN`] bytes.
//!
//! ```text
//!  0  wr_id           u64
//!  8  status, opcode, flags, reserved 0    u8 each: the values of verbs
//! 12  bytes           u32
//! 16  QP              u32
//! 20  immediate       4 bytes
//! 24  source QP       u32
//! 28  reserved        u32, 0
//! ```

use xroce_proto::wc::{Completion, WcFlags, WcOpcode, WcStatus};
use xroce_wire::newtypes::Qpn;

use crate::BadEntry;
use crate::field::{byte, bytes, put, word32, word64, zero};

/// Bytes of a completion.
pub const LEN: usize = 32;

const STATUSES: [WcStatus; 15] = [
    WcStatus::Success,
    WcStatus::LocLenErr,
    WcStatus::LocQpOpErr,
    WcStatus::LocProtErr,
    WcStatus::WrFlushErr,
    WcStatus::MwBindErr,
    WcStatus::BadRespErr,
    WcStatus::LocAccessErr,
    WcStatus::RemInvReqErr,
    WcStatus::RemAccessErr,
    WcStatus::RemOpErr,
    WcStatus::RetryExcErr,
    WcStatus::RnrRetryExcErr,
    WcStatus::FatalErr,
    WcStatus::GeneralErr,
];
const OPCODES: [WcOpcode; 11] = [
    WcOpcode::Send,
    WcOpcode::RdmaWrite,
    WcOpcode::RdmaRead,
    WcOpcode::CompSwap,
    WcOpcode::FetchAdd,
    WcOpcode::BindMw,
    WcOpcode::LocalInv,
    WcOpcode::Flush,
    WcOpcode::AtomicWrite,
    WcOpcode::Recv,
    WcOpcode::RecvRdmaWithImm,
];

/// As it stands in the ring.
#[must_use]
pub fn encode(wc: &Completion) -> [u8; LEN] {
    let mut to = [0; LEN];
    put(&mut to, 0, &wc.wr_id.to_ne_bytes());
    put(
        &mut to,
        8,
        &[wc.status as u8, wc.opcode as u8, wc.flags.bits()],
    );
    put(&mut to, 12, &wc.byte_len.to_ne_bytes());
    put(&mut to, 16, &wc.qpn.value().to_ne_bytes());
    put(&mut to, 20, &wc.imm);
    put(&mut to, 24, &wc.src_qp.value().to_ne_bytes());
    to
}

/// # Errors
/// [`BadEntry::Code`], [`BadEntry::Reserved`].
pub fn decode(from: &[u8; LEN]) -> Result<Completion, BadEntry> {
    let code = |what, at| BadEntry::Code {
        what,
        value: byte(from, at).into(),
    };
    let status = STATUSES.into_iter().find(|&s| s as u8 == byte(from, 8));
    let opcode = OPCODES.into_iter().find(|&o| o as u8 == byte(from, 9));
    let flags = WcFlags::from_bits(byte(from, 10));
    zero("byte 11 of a completion", byte(from, 11).into())?;
    zero("bytes 28 to 31 of a completion", word32(from, 28).into())?;
    Ok(Completion {
        wr_id: word64(from, 0),
        status: status.ok_or_else(|| code("status", 8))?,
        opcode: opcode.ok_or_else(|| code("opcode", 9))?,
        flags: flags.ok_or_else(|| code("flags", 10))?,
        byte_len: word32(from, 12),
        qpn: number(from, "QP", 16)?,
        imm: bytes(from, 20),
        src_qp: number(from, "source QP", 24)?,
    })
}

/// A number of 24 bits.
fn number(from: &[u8], what: &'static str, at: usize) -> Result<Qpn, BadEntry> {
    let value = word32(from, at);
    if value > 0x00ff_ffff {
        return Err(BadEntry::Code { what, value });
    }
    Ok(Qpn::new(value))
}
