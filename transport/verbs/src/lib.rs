//! RDMA verbs with types: contexts, protection domains, memory regions and windows, completion
//! queues, queue pairs, shared receive queues, address handles.
//!
//! ```
//! use std::time::Duration;
//! use xroce_verbs::{Access, ConnectAttr, Context, Device, Drive, Rc, RecvBatch, SendBatch};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Two ends in one program: each has its own device, a UDP socket.
//! let near = Context::open(&Device::udp("127.0.0.31".parse()?), Drive::default())?;
//! let far = Context::open(&Device::udp("127.0.0.32".parse()?), Drive::default())?;
//!
//! let (pd, cq) = (near.alloc_pd()?, near.create_cq(16)?);
//! let mr = pd.alloc_mr(4096, Access::LOCAL_WRITE)?;
//! let qp = pd.qp::<Rc>(&cq, &cq).create()?.init(Access::empty())?;
//!
//! let (far_pd, far_cq) = (far.alloc_pd()?, far.create_cq(16)?);
//! let far_mr = far_pd.alloc_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//! let far_qp = far_pd.qp::<Rc>(&far_cq, &far_cq).create()?.init(Access::REMOTE_WRITE)?;
//!
//! // Endpoints travel to the other side; between two processes by `endpoint::SideChannel`.
//! let (ours, theirs) = (qp.endpoint()?, far_qp.endpoint()?);
//! let attr = ConnectAttr::default();
//! let (qp, far_qp) = (qp.connect(&theirs, &attr)?, far_qp.connect(&ours, &attr)?);
//! let mut receive = RecvBatch::new();
//! receive.recv(7);
//! far_qp.post_recv(&receive)?;
//!
//! mr.write(0, b"hello")?;
//! let there = far_mr.remote().ok_or("no remote rights")?;
//! let mut batch = SendBatch::new();
//! batch.write(1, there).sge(mr.slice(0..5)?);
//! batch.send_imm(2, [1, 2, 3, 4]).fence();
//! qp.post(&batch)?; // all of it, one doorbell
//!
//! let received = far_cq.next(Duration::from_secs(5))?.ok_or("nothing came")?;
//! assert_eq!((received.ok()?.wr_id, received.imm), (7, [1, 2, 3, 4]));
//! let mut bytes = [0; 5];
//! far_mr.read(0, &mut bytes)?;
//! assert_eq!(&bytes, b"hello");
//! # Ok(()) }
//! ```
//!
//! # Objects and their lives
//!
//! Every object keeps alive what it is made of: a queue pair its completion queues, its protection
//! domain and the context; a region its protection domain. They may be dropped in any order; the
//! object below is destroyed when the last one above is gone. To hear of what is still in use,
//! destroy explicitly ([`Cq::destroy`], [`Pd::dealloc`], [`Mr::dereg`] …): a refusal
//! ([`Refused`]) gives the object back and names its users.
//!
//! All objects may be used from several threads. What belongs to one device is behind one lock,
//! held for the length of a call or of one poll of the engine.
//!
//! # Memory
//!
//! A peer may write registered memory at any time, so there is no way to a Rust reference to it:
//! [`Mr::read`] and [`Mr::write`] copy.
//!
//! # What does not compile
//!
//! The service of a queue pair ([`Rc`], [`Uc`], [`Ud`]) and how far it is ([`Reset`], [`Init`],
//! [`Ready`]) are part of its type, and so is what a work request may still be given: no READ on
//! UC, no datagram without destination, no inline READ, no atomic on anything but eight aligned
//! bytes. `tests/compile_fail` has the list.
//!
//! # Under the types
//!
//! `backend::Backend` is everything a device does, as plain calls on handles. There are two: an
//! engine in this process (`xroce-engine`, feature `inproc`), which the program polls itself or a thread of the
//! context does ([`Drive`]); and a device of the daemon in another ([`Device::Daemon`], feature `daemon`), which many
//! processes share. Whatever is written for one runs on the other. [`raw`] has the plain calls for
//! programs that cannot have the types.
#![forbid(unsafe_code)]

#[cfg(not(any(feature = "inproc", feature = "daemon")))]
compile_error!("xroce-verbs needs the feature `inproc`, `daemon` or both");

mod ah;
mod backend;
mod batch;
mod channel;
mod context;
mod cq;
mod device;
pub mod endpoint;
mod error;
mod mr;
mod mw;
mod pd;
mod qp;
pub mod raw;
mod srq;
mod uses;
#[cfg(doctest)]
mod wrong;

pub use ah::{Ah, Destination};
pub use batch::{
    BadWr, Complete, Gathered, Gathers, Inlined, Kind, NoData, Outgoing, Reads, RecvBatch,
    RecvRequest, Request, SendBatch, Sends, WrError, Writes,
};
pub use channel::CompChannel;
pub use context::{AsyncEvent, Context, Drive, Source};
pub use cq::Cq;
pub use device::{Device, DeviceAttr, GRH_BYTES, LinkLayer, PortAttr, PortState, XdpOptions};
pub use endpoint::Endpoint;
pub use error::{Refused, VerbsError};
pub use mr::{Mr, MrSlice, MrWord, RemoteMr, RemoteWord, Rereg, SliceError};
pub use mw::{Mw, Type1, Type2, WindowType};
pub use pd::Pd;
pub use qp::{
    ConnectAttr, Connected, Init, Posts, Qp, QpBuilder, Rc, Ready, Reset, Service, State, Uc, Ud,
};
pub use srq::{Srq, SrqInfo};
pub use uses::InUse;

pub use xroce_api::message::Reason;
pub use xroce_api::{EngineError, EngineStats, Failure, GidEntry, Notify, PortStats, Work};
pub use xroce_api::{PollMode, clock};
#[cfg(feature = "inproc")]
pub use xroce_net::addressing::Addressing;
#[cfg(feature = "inproc")]
pub use xroce_net::datapath::Datapath;
pub use xroce_proto::cc::{CongestionControl, Rate};
pub use xroce_proto::counters::Counters;
pub use xroce_proto::memory::Access;
pub use xroce_proto::qp::{QpAttr, QpInfo, QpState, QpType};
pub use xroce_proto::recovery::{AdaptiveParams, Reliability, SelectiveParams};
pub use xroce_proto::time::Instant;
pub use xroce_proto::wc::{Completion, Event, WcError, WcFlags, WcOpcode, WcStatus};
pub use xroce_proto::wr::Placement;
pub use xroce_shm::Region;
pub use xroce_wire::newtypes::{Gid, LKey, PKey, PathMtu, Psn, QKey, Qpn, RKey, Va};
pub use xroce_wire::path::AhAttr;
pub use xroce_wire::syndrome::RnrTimer;

/// The example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
