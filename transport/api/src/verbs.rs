//! The verbs of a device, each declared once.
//!
//! [`verbs!`](crate::verbs!) hands the table to a macro of whoever needs it: the messages
//! ([`Request`]), the trait of a device, the client of the daemon, its dispatch. A new verb is a row
//! here; the compiler then names every place that has to carry it out.
//!
//! # Sections
//! * `calls`: a request and an answer, alike on every side.
//! * `ends`: the end of an object. If the daemon is gone, so is the object: that is no error.
//! * `carries`: memory or descriptors travel with the request or the answer, so that the message
//!   differs from the call of the program. The call comes first, the message behind `as`.
//! * `daemon`: what a process asks the daemon beside the verbs of a device.
//! * `session`: the first two requests of a process, in this order.

use serde::{Deserialize, Serialize};
use xroce_proto::memory::{Access, Bind, Pd};
use xroce_proto::qp::{QpAttr, QpInit};
use xroce_proto::srq::SrqAttr;
use xroce_proto::wc::{Cq, Srq};
use xroce_wire::newtypes::{Gid, LKey, PKey, Qpn};
use xroce_wire::path::AhAttr;

use crate::message::{CaptureSpec, Memory, Path};
use crate::object::{Ah, MwId, MwType};

/// Hands the table of verbs to the macro `$each`. A row is documentation, the name of the call, the
/// name of its [`Request`], the arguments and the answer.
#[macro_export]
macro_rules! verbs {
    ($each:ident) => {
        $each! {
            calls {
                /// Addresses of the port with their GID index (`ibv_query_gid`).
                gids Gids -> Vec<(u32, GidEntry)>;
                /// Whether the port can be used.
                is_up Up -> bool;
                /// An entry of the P_Key table (`ibv_query_pkey`), `None` if there is none at that
                /// index.
                pkey PKey(index: u16) -> Option<PKey>;
                /// Changes an entry of the P_Key table for all that use the device.
                set_pkey SetPKey(index: u16, pkey: PKey) -> ();
                /// Counters of engine and port.
                stats Stats -> (EngineStats, PortStats);
                /// Allocates a protection domain (`ibv_alloc_pd`).
                alloc_pd AllocPd -> Pd;
                /// Allocates a memory window (`ibv_alloc_mw`).
                alloc_mw AllocMw(pd: Pd, mw_type: MwType) -> Mw;
                /// Binds a window of type 1 (`ibv_bind_mw`), at once.
                bind_mw BindMw(mw: MwId, bind: Bind) -> RKey;
                /// Changes the size of a shared receive queue, or the number of receives below
                /// which an event comes (`ibv_modify_srq`).
                modify_srq ModifySrq(srq: Srq, max_wr: Option<u32>, limit: Option<u32>) -> ();
                /// Capacities of a shared receive queue, and receives posted (`ibv_query_srq`).
                query_srq QuerySrq(srq: Srq) -> (SrqAttr, u32);
                /// Changes state and attributes of a queue pair (`ibv_modify_qp`). With a path, the
                /// device resolves it to the address vector of `attr`.
                modify_qp ModifyQp(qpn: Qpn, attr: Box<QpAttr>, path: Option<Path>) -> ();
                /// State and attributes of a queue pair (`ibv_query_qp`).
                query_qp QueryQp(qpn: Qpn) -> QpInfo;
                /// What a queue pair has counted.
                counters Counters(qpn: Qpn) -> Counters;
                /// Why a queue pair failed by itself.
                failure Failure(qpn: Qpn) -> Option<Failure>;
                /// Joins a multicast group (`ibv_attach_mcast`).
                attach_mcast AttachMcast(qpn: Qpn, group: Gid) -> ();
                /// Leaves a multicast group (`ibv_detach_mcast`).
                detach_mcast DetachMcast(qpn: Qpn, group: Gid) -> ();
            }
            ends {
                /// Takes a memory region back (`ibv_dereg_mr`).
                dereg_mr DeregMr(lkey: LKey) -> ();
                /// Takes a memory region back as soon as no window is bound to it.
                abandon_mr AbandonMr(lkey: LKey) -> ();
                /// Frees a memory window (`ibv_dealloc_mw`).
                dealloc_mw DeallocMw(mw: MwId) -> ();
                /// Destroys a completion queue (`ibv_destroy_cq`).
                destroy_cq DestroyCq(cq: Cq) -> ();
                /// Destroys a shared receive queue (`ibv_destroy_srq`).
                destroy_srq DestroySrq(srq: Srq) -> ();
                /// Destroys a queue pair (`ibv_destroy_qp`).
                destroy_qp DestroyQp(qpn: Qpn) -> ();
                /// Destroys an address handle (`ibv_destroy_ah`).
                destroy_ah DestroyAh(ah: Ah) -> ();
            }
            carries {
                /// Registers memory (`ibv_reg_mr_iova`). The message names parts of memfds, whose
                /// descriptors come along.
                reg_mr(pd: Pd, range: &Range<'_>, access: Access) -> Mr
                    as RegMr(pd: Pd, access: Access, memory: Memory) -> Mr;
                /// Changes protection domain, rights or memory of a region (`ibv_rereg_mr`);
                /// descriptors come along with memory.
                rereg_mr(lkey: LKey, change: &Rereg<'_>) -> Mr
                    as ReregMr(
                        lkey: LKey,
                        pd: Option<Pd>,
                        access: Option<Access>,
                        memory: Option<Memory>,
                    ) -> Mr;
                /// Creates a completion channel (`ibv_create_comp_channel`). The answer is its
                /// number, and a descriptor that rings.
                create_channel() -> Channel
                    as CreateChannel -> u32;
                /// Creates a completion queue (`ibv_create_cq`). The answer brings the memory of
                /// its ring.
                create_cq(depth: u32, channel: &Channel) -> Cq
                    as CreateCq(depth: u32, channel: u32) -> CqMade;
                /// Changes the depth of a completion queue (`ibv_resize_cq`). The answer brings the
                /// memory of a new ring; what is in the old one stays there and comes first.
                resize_cq(cq: Cq, depth: u32) -> ()
                    as ResizeCq(cq: Cq, depth: u32) -> Capacity;
                /// Creates a shared receive queue (`ibv_create_srq`). The answer brings the memory
                /// of its ring.
                create_srq(pd: Pd, attr: &SrqAttr) -> Srq
                    as CreateSrq(pd: Pd, attr: SrqAttr) -> SrqMade;
                /// Creates a queue pair (`ibv_create_qp`). The answer brings the memory of its
                /// rings.
                create_qp(init: &QpInit) -> Qpn
                    as CreateQp(init: QpInit) -> QpMade;
                /// Creates an address handle (`ibv_create_ah`), resolved by the device. The client
                /// remembers its protection domain, to check posts without asking.
                create_ah(pd: Pd, attr: &AhAttr) -> Ah
                    as CreateAh(pd: Pd, attr: AhAttr) -> Ah;
            }
            daemon {
                /// Destroys a completion channel.
                destroy_channel DestroyChannel(channel: u32) -> ();
                /// Copies the frames of the device from now on, until `end_capture` or the end of
                /// the session. The answer brings the memory of its ring and the descriptor that
                /// rings. Only for root and the user of the daemon, one at a time.
                capture Capture(spec: CaptureSpec) -> CaptureMade;
                /// What the capture of this session has counted.
                capture_stats CaptureStats -> CaptureStats;
                /// The end of the capture, and its counts for the last time. What is in the ring
                /// stays there.
                end_capture EndCapture -> CaptureStats;
            }
            session {
                /// Who asks: the name of the program, for people.
                Hello(program: String) -> Welcome;
                /// Uses a device, by its name; `None`: the first. Once. The answer brings the memory
                /// of the session, the descriptor that rings for the daemon and the one that rings
                /// for events.
                Open(device: Option<String>) -> Opened;
                /// What the daemon has and does. This and the next two need no device. Who is
                /// neither root nor the user of the daemon sees only what is their own.
                Report -> Report;
                /// Processes by number, those behind this one.
                Sessions(after: Option<u32>) -> Page<SessionReport>;
                /// Queue pairs by session and number, those behind this one.
                Qps(after: Option<(u32, Qpn)>) -> Page<QpReport>;
            }
        }
    };
}

macro_rules! requests {
    (
        calls { $(
            $(#[$call_doc:meta])*
            $call:ident $Call:ident $(($($call_arg:ident: $call_type:ty),*))? -> $call_answer:ty;
        )* }
        ends { $(
            $(#[$end_doc:meta])*
            $end:ident $End:ident($($end_arg:ident: $end_type:ty),*) -> $end_answer:ty;
        )* }
        carries { $(
            $(#[$carry_doc:meta])*
            $carry:ident($($own_arg:ident: $own_type:ty),*) -> $own_answer:ty
                as $Carry:ident $(($($carry_arg:ident: $carry_type:ty),* $(,)?))? -> $carry_answer:ty;
        )* }
        daemon { $(
            $(#[$daemon_doc:meta])*
            $daemon:ident $Daemon:ident $(($($daemon_arg:ident: $daemon_type:ty),*))?
                -> $daemon_answer:ty;
        )* }
        session { $(
            $(#[$session_doc:meta])*
            $Session:ident $(($($session_arg:ident: $session_type:ty),*))? -> $session_answer:ty;
        )* }
    ) => {
        /// What a process asks of the daemon: one request for each row of the table of verbs.
        #[derive(Clone, Debug, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[allow(missing_docs, reason = "the fields are the arguments of the call")]
        #[non_exhaustive]
        pub enum Request {
            $($(#[$call_doc])* $Call $({ $($call_arg: $call_type),* })?,)*
            $($(#[$end_doc])* $End { $($end_arg: $end_type),* },)*
            $($(#[$carry_doc])* $Carry $({ $($carry_arg: $carry_type),* })?,)*
            $($(#[$daemon_doc])* $Daemon $({ $($daemon_arg: $daemon_type),* })?,)*
            $($(#[$session_doc])* $Session $({ $($session_arg: $session_type),* })?,)*
        }
    };
}

verbs!(requests);
