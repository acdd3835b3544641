//! Objects of a device as its commands name and describe them.

use serde::{Deserialize, Serialize};
use xroce_proto::memory::{Access, Pd};
use xroce_shm::Region;
use xroce_wire::newtypes::{Gid, LKey, MacAddr, QKey, Qpn, RKey, Va};

/// An address that can be the source of packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GidEntry {
    /// The address.
    pub gid: Gid,
    /// Interface that has it: the port's or a VLAN device on it. The scope of a link-local one.
    pub ifindex: u32,
    /// Its name.
    pub ifname: String,
    /// Ethernet address that packets from it carry.
    pub mac: MacAddr,
    /// VLAN id of packets from it.
    pub vlan: Option<u16>,
    /// Valid on this link only: the peer must be on the same one.
    pub link_local: bool,
}

/// Memory regions and windows of a device, at most: their index has 24 bits of a key.
pub const REGIONS_MAX: usize = 1 << 24;

/// A registered memory region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mr {
    /// Key for own work requests.
    pub lkey: LKey,
    /// Key for the peer; 0 without remote rights.
    pub rkey: RKey,
    /// Address of the first byte, in the address space of both keys.
    pub va: Va,
    /// Bytes.
    pub len: u64,
}

/// Which memory a region is made of.
#[derive(Clone, Copy, Debug)]
pub struct Range<'a> {
    /// Memory.
    pub region: &'a Region,
    /// Where in it.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Address of the first byte under the keys (`ibv_reg_mr_iova`), as another process has it;
    /// `None`: the one it has here.
    pub iova: Option<Va>,
}

/// What a re-registration changes (`ibv_rereg_mr`); what is `None` stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rereg<'a> {
    /// Another protection domain.
    pub pd: Option<Pd>,
    /// Other rights.
    pub access: Option<Access>,
    /// Other memory.
    pub range: Option<Range<'a>>,
}

/// How a window is bound, with the values of `ibv_mw_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum MwType {
    /// By call, as often as one likes.
    Type1 = 1,
    /// By BIND_MW, usable through that QP, free again when invalidated (2B).
    Type2 = 2,
}

/// Handle of a window: it stays the same while the key changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct MwId {
    /// Slot of the window in its device.
    pub index: u32,
    /// Which of the windows that lived in that slot.
    pub life: u32,
}

/// A memory window as allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mw {
    /// Handle.
    pub id: MwId,
    /// Key, good for nothing until bound. A type 2 window is bound under this key with any other
    /// low byte.
    pub rkey: RKey,
}

/// Handle of an address, `ibv_ah`. Means nothing in another engine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Ah(u32);

impl Ah {
    /// From what stands in the work request of another process. A number of no handle is refused
    /// where it is used.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value)
    }

    /// The number.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub struct UdDest {
    /// Address handle.
    pub ah: Ah,
    /// Receiving queue pair; a group's datagrams go to [`Qpn::MULTICAST`] whatever is said here.
    pub qpn: Qpn,
    /// Q_Key of the receiver; with the highest bit set, the key of the sending queue pair is used.
    pub qkey: QKey,
}

/// Which completions a CQ that is armed notifies of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Notify {
    /// The next one.
    Any,
    /// The next that is solicited or an error.
    Solicited,
}
