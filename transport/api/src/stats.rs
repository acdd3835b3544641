//! Counters of an engine and of its port, for what belongs to no queue pair.

use serde::{Deserialize, Serialize};
use xroce_proto::counters;
use xroce_proto::counters::CounterInfo;

counters! {
    /// What an engine has seen since it was made. Every frame received is either delivered to a
    /// QP or counted in exactly one of the four that follow it, or in `wrong_vlan`.
    pub struct EngineStats {
        /// Frames received.
        pub rx_frames: packets,
        /// Frames handed to a QP.
        pub delivered: packets,
        /// Frames whose Ethernet, IP or UDP headers are not those of RoCEv2.
        pub bad_frames: packets,
        /// RoCE packets with an unknown opcode, a bad length or a wrong version.
        pub bad_packets: packets,
        /// Packets whose ICRC does not match their content.
        pub icrc_errors: packets mlx5 "rx_icrc_encapsulated",
        /// Packets for a QP that does not exist (any more).
        pub unknown_qp: packets,
        /// Datagrams to one of the port's addresses in a VLAN it is not in.
        pub wrong_vlan: packets,
        /// ICMP errors about packets of this engine.
        pub icmp_errors: packets,
        /// Addresses of the port that came or went.
        pub gid_changes: events,
        /// Times the link went down.
        pub link_downed: events rxe "link_downed",
        /// Completions that found their CQ full.
        pub cq_overflows: events,
        /// Asynchronous events that found their queue full.
        pub events_lost: events,
    }
}

/// Counters of a port since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortStats {
    /// Frames handed to the engine.
    pub rx_frames: u64,
    /// Bytes handed to the engine.
    pub rx_bytes: u64,
    /// Frames committed.
    pub tx_frames: u64,
    /// Bytes committed.
    pub tx_bytes: u64,
    /// Frames the kernel or the ring dropped on receipt, as far as it tells.
    pub rx_dropped: u64,
    /// Frames that could not be sent (the kernel refused them).
    pub tx_dropped: u64,
    /// Times `tx_begin` had no free frame.
    pub tx_full: u64,
    /// System calls made by `rx_burst`, `tx_flush` and `wait`.
    pub syscalls: u64,
    /// RoCE datagrams to this host that came in IP fragments. AF_XDP leaves them to the kernel, so
    /// that the port never has them; counted for all ports of the interface together. The UDP
    /// backend gets them reassembled and cannot count them here: over IPv6 they are packets like
    /// any other, over IPv4 they fail the ICRC check, which covers the DF bit that they lack.
    pub rx_fragmented: u64,
    /// RoCE frames to this host on a queue of the interface that has no port: AF_XDP leaves them
    /// to the kernel; counted for all ports of the interface together.
    pub rx_other_queue: u64,
}

macro_rules! port_table {
    ($($field:ident: $unit:ident $meaning:literal,)+) => {
        /// The counters of a port, as a table like those of QP and engine.
        pub const PORT_TABLE: &[CounterInfo<PortStats>] = {
            // Does not compile if one is missing.
            let PortStats { $($field: _,)+ } = PortStats {
                rx_frames: 0,
                rx_bytes: 0,
                tx_frames: 0,
                tx_bytes: 0,
                rx_dropped: 0,
                tx_dropped: 0,
                tx_full: 0,
                syscalls: 0,
                rx_fragmented: 0,
                rx_other_queue: 0,
            };
            &[$(CounterInfo {
                name: stringify!($field),
                unit: stringify!($unit),
                mlx5: None,
                rxe: None,
                meaning: $meaning,
                get: |stats| stats.$field,
            },)+]
        };
    };
}

port_table! {
    rx_frames: packets "Frames handed to the engine.",
    rx_bytes: bytes "Bytes handed to the engine.",
    tx_frames: packets "Frames sent.",
    tx_bytes: bytes "Bytes sent.",
    rx_dropped: packets "Frames the kernel or the ring dropped on receipt, as far as it tells.",
    tx_dropped: packets "Frames that could not be sent: the kernel refused them.",
    tx_full: events "Times there was no free frame to send.",
    syscalls: calls "System calls for receiving, sending and waiting.",
    rx_fragmented: packets "RoCE datagrams that came in IP fragments: AF_XDP leaves them to the kernel.",
    rx_other_queue: packets "RoCE frames on a queue without a port: AF_XDP leaves them to the kernel.",
}

/// What one poll did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Work {
    /// Frames received.
    pub rx: usize,
    /// Frames sent.
    pub tx: usize,
    /// Timers that fired.
    pub timers: usize,
}

impl Work {
    /// Nothing came, nothing went.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.rx == 0 && self.tx == 0 && self.timers == 0
    }
}
