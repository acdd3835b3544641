//! The only road from the protocol to payload bytes.
//!
//! [`Memory::check_local`] and [`Memory::check_remote`] turn an untrusted key, address and length
//! into a [`Grant`]; reads and writes consume a grant and an offset into it. A grant outlives a
//! deregistration only as a value: using it then gives [`Revoked`].

use bitflags::bitflags;
use serde::{Deserialize, Serialize};
use xroce_wire::icrc::Head;
use xroce_wire::newtypes::{LKey, Qpn, RKey, Va};

use crate::wr::Sge;

bitflags! {
    /// Access rights of a memory region or a QP, with the bits of `ibv_access_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Access: u32 {
        /// Receives and READ responses may be written here by the own side.
        const LOCAL_WRITE = 1;
        /// The peer may WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// The peer may READ.
        const REMOTE_READ = 1 << 2;
        /// The peer may do atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound.
        const MW_BIND = 1 << 4;
        /// Addresses count from zero instead of from the start address.
        const ZERO_BASED = 1 << 5;
        /// The peer may FLUSH to global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// The peer may FLUSH to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// LOCAL_INV and SEND with invalidate may take the keys back. A bit of our own: verbs know
        /// it as the kind of a region (fast registration), and a peer must not be able to take
        /// away a region that was not meant for it.
        const INVALIDATE = 1 << 30;
    }
}

/// Flags as a number in messages. Bits without a meaning are refused.
macro_rules! serialize_bits {
    ($Flags:ty, $what:literal) => {
        impl ::serde::Serialize for $Flags {
            fn serialize<S: ::serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                self.bits().serialize(to)
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $Flags {
            fn deserialize<D: ::serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let bits = <u32 as ::serde::Deserialize>::deserialize(from)?;
                Self::from_bits(bits).ok_or_else(|| {
                    ::serde::de::Error::custom(format_args!(
                        concat!("unknown bits in ", $what, " {:#x}; known are {:#x}"),
                        bits,
                        Self::all().bits()
                    ))
                })
            }
        }
    };
}
pub(crate) use serialize_bits;

serialize_bits!(Access, "access rights");

impl Access {
    /// Whether a region may be registered so: remote write and atomic need local write (K2).
    #[must_use]
    pub const fn is_registrable(self) -> bool {
        self.contains(Self::LOCAL_WRITE)
            || !self.intersects(Self::REMOTE_WRITE.union(Self::REMOTE_ATOMIC))
    }
}

/// Protection domain: keys and QPs work together only within one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct Pd(pub u32);

/// Proof of a passed check: `len` bytes at `offset` of one region of one generation.
///
/// Made by implementors of [`Memory`] only; the core stores it and hands it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    region: u32,
    generation: u32,
    offset: u64,
    len: u32,
}

impl Grant {
    /// For implementors of [`Memory`], after their check succeeded.
    #[must_use]
    pub const fn issue(region: u32, generation: u32, offset: u64, len: u32) -> Self {
        Self {
            region,
            generation,
            offset,
            len,
        }
    }

    /// A grant of nothing, for zero-length transfers, whose key is not looked at (K3).
    pub const EMPTY: Self = Self::issue(u32::MAX, 0, 0, 0);

    /// Index of the region in the implementor's table.
    #[must_use]
    pub const fn region(&self) -> u32 {
        self.region
    }

    /// Generation of the region at the time of the check.
    #[must_use]
    pub const fn generation(&self) -> u32 {
        self.generation
    }

    /// Byte offset in the region.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes granted.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether nothing is granted.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Why a key was refused, in the order of the checks (K4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum KeyError {
    /// No such key, or one that has been deregistered.
    #[error("no memory region has this key")]
    Unknown,
    /// The region belongs to another protection domain.
    #[error("the memory region is in another protection domain")]
    Pd,
    /// The region does not allow this.
    #[error("the memory region does not grant this access")]
    Rights,
    /// `va .. va + len` is not inside the region.
    #[error("the address range is not inside the memory region")]
    Range,
}

/// The region was deregistered after the check, or the offset left the grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the memory region is gone")]
pub struct Revoked;

/// What a memory window is bound to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Bind {
    /// Region behind the window.
    pub lkey: LKey,
    /// First byte, in the address space of the region.
    pub va: Va,
    /// Bytes.
    pub len: u64,
    /// Remote rights, and [`Access::ZERO_BASED`] for addresses that count from the start of the
    /// window.
    pub access: Access,
}

/// Why a memory window was not bound (K6); nothing changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum BindError {
    /// No such window (any more).
    #[error("the memory window does not exist")]
    NoWindow,
    /// Type 1 is bound by call, type 2 by work request.
    #[error("the memory window is not of the type that is bound so")]
    Type,
    /// Type 2 has to be invalidated before it is bound again.
    #[error("the memory window is bound already: invalidate it first")]
    Bound,
    /// Window, region and QP are not of one protection domain.
    #[error("window, region and queue pair are not in one protection domain")]
    Pd,
    /// No such region.
    #[error("no memory region has this key")]
    NoRegion,
    /// The region lacks [`Access::MW_BIND`], or [`Access::LOCAL_WRITE`] for a window that is
    /// written to.
    #[error("the memory region does not grant what the window would")]
    Rights,
    /// Rights that a window cannot have.
    #[error("a memory window cannot grant {0:?}")]
    Access(Access),
    /// The range is empty or not inside the region.
    #[error("the address range is empty or not inside the memory region")]
    Range,
}

/// What an atomic does to the eight bytes, an integer of this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicOp {
    /// Store `swap` if `compare` is there.
    CompareSwap {
        /// Value to compare with.
        compare: u64,
        /// Value to store.
        swap: u64,
    },
    /// Add, wrapping.
    FetchAdd(u64),
    /// Store.
    Store(u64),
}

impl AtomicOp {
    /// What replaces `old`; for memory that nobody else touches at the same time.
    #[must_use]
    pub const fn apply(self, old: u64) -> u64 {
        match self {
            Self::CompareSwap { compare, swap } if compare == old => swap,
            Self::CompareSwap { .. } => old,
            Self::FetchAdd(add) => old.wrapping_add(add),
            Self::Store(new) => new,
        }
    }
}

/// Why an atomic was not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AtomicError {
    /// See [`Revoked`].
    #[error(transparent)]
    Revoked(#[from] Revoked),
    /// The address is a multiple of eight, the memory behind it is not.
    #[error("the memory is not aligned to eight bytes")]
    Misaligned,
}

/// Registered memory, as the core sees it.
pub trait Memory {
    /// Checks a local key over the whole range.
    ///
    /// # Errors
    /// The first check that failed.
    fn check_local(
        &self,
        pd: Pd,
        key: LKey,
        va: Va,
        len: u32,
        need: Access,
    ) -> Result<Grant, KeyError>;

    /// Checks a remote key over the whole range, for requests that arrived at `qpn`.
    ///
    /// # Errors
    /// The first check that failed.
    fn check_remote(
        &self,
        pd: Pd,
        qpn: Qpn,
        key: RKey,
        va: Va,
        len: u32,
        need: Access,
    ) -> Result<Grant, KeyError>;

    /// Copies `dst.len()` bytes at `offset` of the grant out.
    ///
    /// # Errors
    /// [`Revoked`]; `dst` may then hold anything.
    fn read(&self, grant: &Grant, offset: u32, dst: &mut [u8]) -> Result<(), Revoked>;

    /// Copies `src` in at `offset` of the grant.
    ///
    /// # Errors
    /// [`Revoked`]; nothing was written then.
    fn write(&mut self, grant: &Grant, offset: u32, src: &[u8]) -> Result<(), Revoked>;

    /// [`Memory::check_local`] and [`Memory::read`] in one, for the payload of a packet: gives the
    /// CRC register after its headers and the bytes that are now in `dst`.
    ///
    /// # Errors
    /// Those of the two; `dst` may then hold anything.
    #[inline(always)]
    fn gather(
        &self,
        pd: Pd,
        sge: &Sge,
        offset: u32,
        dst: &mut [u8],
        head: &Head,
    ) -> Result<u32, KeyError> {
        let grant = self.check_local(pd, sge.lkey, sge.va, sge.len, Access::empty())?;
        self.read(&grant, offset, dst)
            .map_err(|_| KeyError::Unknown)?;
        Ok(head.joined_to(dst))
    }

    /// [`Memory::check_local`] and [`Memory::write`] in one, for what a receive takes.
    ///
    /// # Errors
    /// Those of the two; nothing was written then.
    #[inline(always)]
    fn scatter(&mut self, pd: Pd, sge: &Sge, offset: u32, src: &[u8]) -> Result<(), KeyError> {
        let grant = self.check_local(pd, sge.lkey, sge.va, sge.len, Access::LOCAL_WRITE)?;
        self.write(&grant, offset, src)
            .map_err(|_| KeyError::Unknown)
    }

    /// Binds a free window of type 2 under `rkey`, for use through `qpn` only (BIND_MW). The
    /// window is the one of the key's upper 24 bits; its lower 8 are the consumer's choice.
    ///
    /// # Errors
    /// The first rule broken; memory without windows has none.
    fn bind_window(&mut self, pd: Pd, qpn: Qpn, rkey: RKey, bind: &Bind) -> Result<(), BindError> {
        let _ = (pd, qpn, rkey, bind);
        Err(BindError::NoWindow)
    }

    /// Takes a key back for a request of or to `qpn` (LOCAL_INV, SEND with invalidate): checks
    /// and grants under it fail from now on.
    ///
    /// # Errors
    /// The first check that failed; [`KeyError::Rights`] for what cannot be invalidated.
    fn invalidate(&mut self, key: RKey, qpn: Qpn, pd: Pd) -> Result<(), KeyError> {
        let _ = (key, qpn, pd);
        Err(KeyError::Unknown)
    }

    /// Does `op` on the eight bytes of the grant at once, as all who share the memory see it, and
    /// returns what they held before.
    ///
    /// # Errors
    /// [`AtomicError`]; nothing was written then.
    fn atomic(&mut self, grant: &Grant, op: AtomicOp) -> Result<u64, AtomicError>;

    /// Checks a remote key for `need` (FLUSH rights) and flushes `len` bytes at the address, or
    /// the whole region without a range. `need` says how far.
    ///
    /// # Errors
    /// The first check that failed; a range that is not there fails as [`KeyError::Range`].
    fn flush(
        &mut self,
        pd: Pd,
        qpn: Qpn,
        key: RKey,
        range: Option<(Va, u32)>,
        need: Access,
    ) -> Result<(), KeyError>;
}
