//! Counters of an engine, for what belongs to no queue pair.

/// What an engine has seen since it was made. Every frame received is either delivered to a QP or
/// counted in exactly one of the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EngineStats {
    /// Frames received.
    pub rx_frames: u64,
    /// Frames handed to a QP.
    pub delivered: u64,
    /// Frames whose Ethernet, IP or UDP headers are not those of RoCEv2.
    pub bad_frames: u64,
    /// RoCE packets with an unknown opcode, a bad length or a wrong version.
    pub bad_packets: u64,
    /// Packets whose ICRC does not match their content.
    pub icrc_errors: u64,
    /// Packets for a QP that does not exist (any more).
    pub unknown_qp: u64,
    /// Completions that found their CQ full.
    pub cq_overflows: u64,
    /// Datagrams to one of the port's addresses in a VLAN it is not in.
    pub wrong_vlan: u64,
    /// ICMP errors about packets of this engine.
    pub icmp_errors: u64,
    /// Addresses of the port that came or went.
    pub gid_changes: u64,
    /// Times the link went down (`link_downed`).
    pub link_downed: u64,
    /// Asynchronous events that found their queue full.
    pub events_lost: u64,
}
