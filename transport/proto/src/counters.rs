//! Counters of one QP, and the table of what every counter is called elsewhere.
//!
//! [`counters!`](crate::counters!) makes a struct of counters together with its table, from which
//! `xroce perf --stats`, its JSON, `docs/counters.md` and exporters are made: a counter cannot be
//! left out of one of them.

/// What is to be known about a counter of `T`.
#[derive(Debug)]
pub struct CounterInfo<T> {
    /// Name of the field.
    pub name: &'static str,
    /// What it counts.
    pub unit: &'static str,
    /// Name of the counter of mlx5's `hw_counters` that means the same.
    pub mlx5: Option<&'static str>,
    /// Name of the counter of rxe's `hw_counters` that means the same.
    pub rxe: Option<&'static str>,
    /// When it counts.
    pub meaning: &'static str,
    /// Its value.
    pub get: fn(&T) -> u64,
}

/// A struct of `u64` counters with a table of [`CounterInfo`] as its `TABLE`, and with `+=`.
///
/// A field is its documentation, `pub name: unit`, and optionally `mlx5 "name"` and `rxe "name"`.
#[macro_export]
macro_rules! counters {
    (
        $(#[$meta:meta])*
        pub struct $Name:ident {
            $(
                $(#[doc = $doc:literal])+
                pub $field:ident: $unit:ident $(mlx5 $mlx5:literal)? $(rxe $rxe:literal)?,
            )+
        }
    ) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, PartialEq, Eq, Debug, Default, ::serde::Serialize, ::serde::Deserialize,
        )]
        pub struct $Name {
            $(
                $(#[doc = $doc])+
                $(#[doc = concat!("\n\nmlx5: `", $mlx5, "`.")])?
                $(#[doc = concat!("\n\nrxe: `", $rxe, "`.")])?
                pub $field: u64,
            )+
        }

        impl $Name {
            /// Every counter, in the order of the fields.
            pub const TABLE: &'static [$crate::counters::CounterInfo<Self>] = &[$(
                $crate::counters::CounterInfo {
                    name: stringify!($field),
                    unit: stringify!($unit),
                    mlx5: $crate::counters!(@name $($mlx5)?),
                    rxe: $crate::counters!(@name $($rxe)?),
                    meaning: concat!($($doc),+),
                    get: |counters| counters.$field,
                },
            )+];
        }

        impl ::core::ops::AddAssign for $Name {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)+
            }
        }
    };
    (@name) => { None };
    (@name $name:literal) => { Some($name) };
}

counters! {
    /// What happened on a QP since it was created.
    pub struct Counters {
        /// Packets sent, all kinds.
        pub tx_packets: packets rxe "sent_pkts",
        /// Packets accepted for this QP, all kinds.
        pub rx_packets: packets rxe "rcvd_pkts",
        /// Payload bytes sent, retransmissions included.
        pub tx_bytes: bytes,
        /// Payload bytes received, duplicates included.
        pub rx_bytes: bytes,
        /// Send work requests completed successfully.
        pub sends_completed: messages,
        /// Receive work requests completed successfully.
        pub recvs_completed: messages,
        /// RDMA WRITEs begun by the peer.
        pub writes_in: messages mlx5 "rx_write_requests",
        /// RDMA READs asked for by the peer, repetitions not counted.
        pub reads_in: messages mlx5 "rx_read_requests",
        /// Atomics executed for the peer, with ATOMIC WRITE and FLUSH.
        pub atomics_in: messages mlx5 "rx_atomic_requests",
        /// ACKs sent.
        pub acks_out: packets,
        /// Losses acted upon: times the requester went back.
        pub retries: events rxe "completer_retry_err",
        /// Request packets sent again; the sum of the six that follow.
        pub retransmits: packets,
        /// Sent again after an ACK timeout.
        pub retransmits_timeout: packets,
        /// Sent again after a sequence NAK.
        pub retransmits_seq_nak: packets,
        /// Sent again after a later response.
        pub retransmits_implied_nak: packets,
        /// Sent again after an RNR NAK.
        pub retransmits_rnr: packets,
        /// Sent again only to ask for an ACK.
        pub retransmits_solicit: packets,
        /// Sent again because they alone were deemed lost.
        pub retransmits_selective: packets,
        /// Those of them whose first copy had arrived, as the peer says.
        pub spurious_retransmits: packets,
        /// SACKs received.
        pub sacks_in: packets,
        /// SACKs sent.
        pub sacks_out: packets,
        /// Times nothing came back for two round trips, so that a probe asked.
        pub tail_probes: events,
        /// Probes sent, for that or any other reason.
        pub probes_out: packets,
        /// Probes received.
        pub probes_in: packets,
        /// Packets ahead of the expected PSN whose payload was put in its place at once.
        pub placed_early: packets,
        /// Packets ahead of the expected PSN dropped because there was no room to keep them.
        pub reorder_store_full: packets,
        /// Packets further ahead of the expected PSN than agreed, dropped.
        pub beyond_range: packets,
        /// Times what a NAK had asked for was sent once more, because nothing came for some round
        /// trips.
        pub early_timeouts: events,
        /// ACK timeouts.
        pub timeouts: events mlx5 "local_ack_timeout_err",
        /// Losses of a response inferred from a later one.
        pub implied_naks: events mlx5 "implied_nak_seq_err",
        /// Sequence NAKs received.
        pub seq_naks_in: packets mlx5 "packet_seq_err" rxe "rcvd_seq_err",
        /// Sequence NAKs sent.
        pub seq_naks_out: packets,
        /// RNR NAKs received.
        pub rnr_naks_in: packets mlx5 "rnr_nak_retry_err" rxe "rcvd_rnr_err",
        /// RNR NAKs sent.
        pub rnr_naks_out: packets rxe "send_rnr_err",
        /// Fatal NAKs received; the sum of the three that follow.
        pub fatal_naks_in: packets,
        /// NAKs "invalid request" received.
        pub invalid_request_naks_in: packets mlx5 "req_remote_invalid_request",
        /// NAKs "remote access error" received.
        pub access_naks_in: packets mlx5 "req_remote_access_errors",
        /// NAKs "remote operational error" received.
        pub operational_naks_in: packets,
        /// Fatal NAKs sent; the sum of the three that follow.
        pub fatal_naks_out: packets,
        /// NAKs "invalid request" sent.
        pub invalid_request_naks_out: packets,
        /// NAKs "remote access error" sent.
        pub access_naks_out: packets mlx5 "resp_remote_access_errors",
        /// NAKs "remote operational error" sent.
        pub operational_naks_out: packets,
        /// Messages of the peer longer than the receive they fell on.
        pub length_errors: messages mlx5 "resp_local_length_error",
        /// Times the requester gave up because retry_cnt was used up.
        pub transport_retries_exceeded: events
            mlx5 "req_transport_retries_exceeded" rxe "retry_exceeded_err",
        /// Times the requester gave up because rnr_retry was used up.
        pub rnr_retries_exceeded: events
            mlx5 "req_rnr_retries_exceeded" rxe "retry_rnr_exceeded_err",
        /// Send work requests completed with an error, flushed ones not counted.
        pub send_errors: messages mlx5 "req_cqe_error",
        /// Receive work requests completed with an error, flushed ones not counted.
        pub recv_errors: messages mlx5 "resp_cqe_error",
        /// Send work requests flushed.
        pub sends_flushed: messages mlx5 "req_cqe_flush_error",
        /// Receive work requests flushed.
        pub recvs_flushed: messages mlx5 "resp_cqe_flush_error",
        /// Request packets received again.
        pub duplicates: packets mlx5 "duplicate_request" rxe "duplicate_request",
        /// Request packets ahead of the expected PSN.
        pub out_of_sequence: packets mlx5 "out_of_sequence" rxe "out_of_seq_request",
        /// Responses nobody waits for, dropped.
        pub ghost_responses: packets,
        /// Packets dropped for state, service, path, P_Key or support.
        pub discards: packets,
        /// Those of them that came from another address than the peer's, to another than the own,
        /// or in another VLAN.
        pub wrong_path: packets,
        /// Those of them that were extension packets, which this QP has not agreed to.
        pub unagreed_extensions: packets,
        /// Data packets that arrived marked Congestion Experienced; ACKs are none.
        pub ce_marked: packets mlx5 "np_ecn_marked_roce_packets",
        /// Congestion notifications sent for them.
        pub cnps_out: packets mlx5 "np_cnp_sent",
        /// Marked packets for which none was sent, because one had been sent shortly before.
        pub cnps_suppressed: packets,
        /// Congestion notifications received.
        pub cnps_in: packets mlx5 "cc_rx_cnp_pkts",
        /// Those of them that the congestion control of this QP acted upon.
        pub cnps_handled: packets mlx5 "rp_cnp_handled",
        /// Those of them that the congestion control of this QP does not react to.
        pub cnps_ignored: packets mlx5 "rp_cnp_ignored",
        /// Datagrams with another Q_Key, dropped (UD4).
        pub qkey_violations: packets,
        /// UC and UD packets dropped because no receive was posted (UC2).
        pub no_receive: packets mlx5 "out_of_buffer",
        /// UC and UD packets dropped for their length, key or rights (UC2, UD5).
        pub invalid_requests: packets,
    }
}
