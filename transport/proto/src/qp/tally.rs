//! The counters of a queue pair, kept small: an idle one of ten thousand has no room for sixty
//! numbers that are all zero.

use alloc::boxed::Box;

use crate::counters::Counters;

/// What counts for every packet or message, and the rest from the first time it counts.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) tx_packets: u64,
    pub(super) rx_packets: u64,
    pub(super) tx_bytes: u64,
    pub(super) rx_bytes: u64,
    pub(super) sends_completed: u64,
    pub(super) recvs_completed: u64,
    pub(super) writes_in: u64,
    pub(super) reads_in: u64,
    pub(super) acks_out: u64,
    pub(super) ce_marked: u64,
    rare: Option<Box<Counters>>,
}

impl Tally {
    /// Where everything else counts.
    #[inline]
    pub(super) fn rare(&mut self) -> &mut Counters {
        self.rare.get_or_insert_default()
    }

    /// All of them.
    pub(super) fn all(&self) -> Counters {
        Counters {
            tx_packets: self.tx_packets,
            rx_packets: self.rx_packets,
            tx_bytes: self.tx_bytes,
            rx_bytes: self.rx_bytes,
            sends_completed: self.sends_completed,
            recvs_completed: self.recvs_completed,
            writes_in: self.writes_in,
            reads_in: self.reads_in,
            acks_out: self.acks_out,
            ce_marked: self.ce_marked,
            ..self.rare.as_deref().copied().unwrap_or_default()
        }
    }
}
