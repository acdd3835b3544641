//! Counters of one QP. Names follow the mlx5 and rxe `hw_counters` where one exists.

/// What happened on a QP since it was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Packets sent, all kinds.
    pub tx_packets: u64,
    /// Packets accepted for this QP, all kinds.
    pub rx_packets: u64,
    /// Payload bytes sent, retransmissions included.
    pub tx_bytes: u64,
    /// Payload bytes received, duplicates included.
    pub rx_bytes: u64,
    /// Request packets sent again.
    pub retransmits: u64,
    /// ACK timeouts that started a retry (`local_ack_timeout_err`).
    pub timeouts: u64,
    /// Sequence NAKs received (`packet_seq_err`).
    pub seq_naks_in: u64,
    /// Sequence NAKs sent.
    pub seq_naks_out: u64,
    /// Lost responses inferred from later ones (`implied_nak_seq_err`).
    pub implied_naks: u64,
    /// RNR NAKs received (`rcvd_rnr_err`).
    pub rnr_naks_in: u64,
    /// RNR NAKs sent (`send_rnr_err`).
    pub rnr_naks_out: u64,
    /// Fatal NAKs received.
    pub fatal_naks_in: u64,
    /// Fatal NAKs sent.
    pub fatal_naks_out: u64,
    /// Request packets received again (`duplicate_request`).
    pub duplicates: u64,
    /// Request packets ahead of the expected PSN (`out_of_sequence`).
    pub out_of_sequence: u64,
    /// ACKs sent.
    pub acks_out: u64,
    /// Responses nobody waits for, dropped.
    pub ghost_responses: u64,
    /// Packets dropped for state, service, peer, P_Key or support.
    pub discards: u64,
    /// Those of them that came from another address than the peer's, to another than the own, or in
    /// another VLAN.
    pub wrong_path: u64,
    /// Packets that arrived marked Congestion Experienced (`np_ecn_marked_roce_packets`).
    pub ce_marked: u64,
    /// Datagrams with another Q_Key (`bad_qkey`), dropped (UD4).
    pub qkey_violations: u64,
    /// UC and UD packets dropped because no receive was posted (UC2).
    pub no_receive: u64,
    /// UC and UD packets dropped for their length, key or rights (UC2, UD5).
    pub invalid_requests: u64,
    /// Send work requests completed successfully.
    pub sends_completed: u64,
    /// Receive work requests completed successfully.
    pub recvs_completed: u64,
}
