//! Why a command was refused.

use serde::{Deserialize, Serialize};
use xroce_proto::memory::{Access, BindError, Pd};
use xroce_proto::qp::{CreateError, ModifyError, QpType};
use xroce_proto::srq::SrqError;
use xroce_proto::wc::{Cq, Srq};
use xroce_proto::wr::PostError;
use xroce_wire::newtypes::{Gid, LKey, PKey, Qpn, Va};

use crate::message::Reason;
use crate::object::{Ah, REGIONS_MAX};

/// Why a command was refused; nothing changed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EngineError {
    /// No such queue pair (any more).
    #[error("queue pair {:#x} does not exist", .0.value())]
    NoQp(Qpn),
    /// No such completion queue.
    #[error("completion queue {} does not exist", .0.0)]
    NoCq(Cq),
    /// No such protection domain.
    #[error("protection domain {} does not exist", .0.0)]
    NoPd(Pd),
    /// No such memory region (any more).
    #[error("no memory region has L_Key {:#010x}", .0.value())]
    NoMr(LKey),
    /// All queue pair numbers are in use.
    #[error("all queue pair numbers are in use")]
    QpsExhausted,
    /// The depth of a CQ is out of range.
    #[error("a completion queue of {given} entries, it must have 1 to {max}")]
    CqDepth {
        /// Depth given.
        given: u32,
        /// Largest allowed.
        max: u32,
    },
    /// The path MTU does not fit the link.
    #[error(
        "path MTU {path_mtu} needs an IP MTU of {needed}, {port} has {link_mtu}: \
         raise the MTU of the interface or lower the path MTU"
    )]
    PathMtu {
        /// Path MTU asked for, bytes.
        path_mtu: usize,
        /// IP MTU it needs.
        needed: usize,
        /// IP MTU of the port.
        link_mtu: usize,
        /// Name of the port.
        port: String,
    },
    /// No such address handle (any more).
    #[error("address handle {0:?} does not exist")]
    NoAh(Ah),
    /// All numbers of address handles are in use.
    #[error("all address handles are in use")]
    AhsExhausted,
    /// Not the address of a multicast group.
    #[error("{0} is not the address of a multicast group (224.0.0.0/4 or ff00::/8)")]
    NoGroup(Gid),
    /// Only UD queue pairs are members of groups.
    #[error("only Ud queue pairs can be attached to a group, this one is {0:?}")]
    NotUd(QpType),
    /// No more groups or members.
    #[error("a limit is reached: {groups} groups, {members} queue pairs in one")]
    GroupFull {
        /// Groups of an engine, at most.
        groups: usize,
        /// Queue pairs in a group, at most.
        members: usize,
    },
    /// Detached from a group it is not in.
    #[error("queue pair {:#x} is not attached to {group}", .qpn.value())]
    NotAttached {
        /// The queue pair.
        qpn: Qpn,
        /// The group.
        group: Gid,
    },
    /// The port cannot receive what is sent to a group.
    #[error("{port} cannot join {group}: {reason}")]
    Join {
        /// The group.
        group: Gid,
        /// Name of the port.
        port: String,
        /// What it said.
        reason: String,
    },
    /// See [`CreateError`].
    #[error(transparent)]
    Create(#[from] CreateError),
    /// See [`ModifyError`].
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// See [`PostError`].
    #[error(transparent)]
    Post(#[from] PostError),
    /// See [`RegError`].
    #[error(transparent)]
    Reg(#[from] RegError),
    /// See [`ObjectError`].
    #[error(transparent)]
    Object(#[from] ObjectError),
}

impl EngineError {
    /// Of what kind the refusal is; with it, its `errno`.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        match self {
            Self::NoQp(_)
            | Self::NoCq(_)
            | Self::NoPd(_)
            | Self::NoMr(_)
            | Self::NoAh(_)
            | Self::NotAttached { .. }
            | Self::Object(ObjectError::NoSrq(_)) => Reason::NotFound,
            Self::Object(ObjectError::Busy { .. } | ObjectError::Dereg(_)) => Reason::Busy,
            Self::QpsExhausted
            | Self::AhsExhausted
            | Self::GroupFull { .. }
            | Self::Object(ObjectError::Exhausted)
            | Self::Post(PostError::QueueFull { .. }) => Reason::Limit,
            _ => Reason::Invalid,
        }
    }
}

/// Why a command on an object around queue pairs was refused; nothing changed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ObjectError {
    /// No such shared receive queue.
    #[error("shared receive queue {} does not exist", .0.0)]
    NoSrq(Srq),
    /// Queue pairs use it.
    #[error("it is in use by queue pairs, {users} times: destroy them first")]
    Busy {
        /// How often: a queue pair that sends and receives to a CQ counts twice.
        users: u32,
    },
    /// All handles are taken.
    #[error("all handles of this kind are in use")]
    Exhausted,
    /// A CQ smaller than what is in it.
    #[error("{queued} completions are queued, they do not fit in {depth}: poll them first")]
    CqTooSmall {
        /// Completions queued.
        queued: u32,
        /// Depth asked for.
        depth: u32,
    },
    /// A QP whose receives would not have room for those of its SRQ.
    #[error("max_recv_sge is {given}, that of the shared receive queue {needed}")]
    SrqSge {
        /// Of the QP.
        given: u8,
        /// Of the SRQ.
        needed: u8,
    },
    /// The table has one entry.
    #[error("the P_Key table has no entry {0}, only 0")]
    PKeyIndex(u16),
    /// No partition has number 0.
    #[error("P_Key {:#06x} is of no partition", .0.value())]
    PKey(PKey),
    /// See [`SrqError`].
    #[error(transparent)]
    Srq(#[from] SrqError),
    /// See [`BindError`].
    #[error(transparent)]
    Bind(#[from] BindError),
    /// See [`DeregError`].
    #[error(transparent)]
    Dereg(#[from] DeregError),
}

impl From<DeregError> for EngineError {
    fn from(error: DeregError) -> Self {
        match error {
            DeregError::Unknown(key) => Self::NoMr(key),
            DeregError::Reg(error) => Self::Reg(error),
            error => Self::Object(error.into()),
        }
    }
}

impl From<SrqError> for EngineError {
    fn from(error: SrqError) -> Self {
        Self::Object(error.into())
    }
}

impl From<BindError> for EngineError {
    fn from(error: BindError) -> Self {
        Self::Object(error.into())
    }
}

/// Why a region cannot be registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RegError {
    /// The range is empty or not inside the region.
    #[error("{len} bytes at offset {offset} are not inside a region of {size} bytes")]
    Range {
        /// Offset given.
        offset: u64,
        /// Length given.
        len: u64,
        /// Size of the region.
        size: u64,
    },
    /// The addresses asked for would reach past the last one.
    #[error("{len} bytes from address {:#x} on reach past the last address", .iova.value())]
    Iova {
        /// First address.
        iova: Va,
        /// Length given.
        len: u64,
    },
    /// Remote write or atomic without local write (K2).
    #[error("access {0:?} is not possible: remote write and atomic need LOCAL_WRITE")]
    Access(Access),
    /// FLUSH to persistence: this memory is gone with the power.
    #[error("access {0:?} is not possible: the memory is not persistent")]
    Persistent(Access),
    /// All indices are taken.
    #[error("{REGIONS_MAX} memory regions are registered, the limit")]
    Full,
}

/// Why a region cannot be taken back or re-registered; it is as before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DeregError {
    /// No such region (any more).
    #[error("no memory region has L_Key {:#010x}", .0.value())]
    Unknown(LKey),
    /// Memory windows are bound to it.
    #[error("{0} memory windows are bound to the region: unbind them first")]
    Windows(u32),
    /// The new rights or range are not possible.
    #[error(transparent)]
    Reg(#[from] RegError),
}
