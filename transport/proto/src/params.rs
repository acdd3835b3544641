//! Limits and defaults of the core: name, unit, source.

use xroce_wire::newtypes::PathMtu;

use crate::time::Duration;

/// Longest message, bytes (RETH.dmalen, W18).
pub const MESSAGE_LEN_MAX: u32 = 1 << 31;

/// Most PSNs that may be outstanding: half the serial space less one (W15).
pub const OUTSTANDING_PSNS_MAX: u32 = (1 << 23) - 1;

/// Longest message that every queue pair sends, bytes: what devices report. At a path MTU of 256
/// the PSNs end before [`MESSAGE_LEN_MAX`]; larger ones reach it.
pub const MESSAGE_LEN_ANY_MTU: u32 = OUTSTANDING_PSNS_MAX << PathMtu::Mtu256.shift();

/// Request packets in flight per QP unless configured: enough for 1 MB of path MTU 4096, and what
/// the socket buffers of the UDP backend take. rxe uses 128.
pub const WINDOW_PSNS_DEFAULT: u32 = 256;

/// A request packet asks for an ACK at least this often inside a train (rxe: 64).
pub const ACK_REQ_INTERVAL: u16 = 32;

/// SGEs per work request, at most (rxe: 32).
pub const SGE_MAX: u8 = 32;

/// Bytes of inline data per work request, at most (rxe: 512).
pub const INLINE_MAX: u32 = 512;

/// Work requests per queue, at most (rxe: 2^20).
pub const QUEUE_DEPTH_MAX: u32 = 1 << 20;

/// READs and atomics in progress per direction, at most (rxe: 128).
pub const RD_ATOMIC_MAX: u8 = 128;

/// `rnr_retry` value that means "for ever" (R13).
pub const RNR_RETRY_INFINITE: u8 = 7;

/// A timeout that follows another is twice as long, this many times: 4 T at most (R12).
pub const TIMEOUT_DOUBLINGS: u8 = 2;

/// Shortest wait for the answer to what a NAK asked for, before it is sent once more: what a peer
/// that polls may take to handle a burst.
pub const REPAIR_FLOOR: Duration = Duration::from_micros(100);

/// Such waits per ACK timeout before a round trip is measured.
pub const REPAIRS_PER_TIMEOUT: u64 = 16;

/// Local ACK timeout `4.096 µs · 2^code`, `None` for code 0, which means "no timeout" (R12).
#[must_use]
pub const fn ack_timeout(code: u8) -> Option<Duration> {
    if code == 0 {
        None
    } else {
        Some(Duration::from_nanos(4096 << (code & 31)))
    }
}

const _: () = assert!(WINDOW_PSNS_DEFAULT <= OUTSTANDING_PSNS_MAX);
const _: () = assert!((ACK_REQ_INTERVAL as u32) < WINDOW_PSNS_DEFAULT);
