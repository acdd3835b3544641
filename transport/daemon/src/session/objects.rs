//! What belongs to a process, and how much it may have.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use xroce_api::message::{Limits, Reason, Refusal};
use xroce_api::{Ah, MwId};
use xroce_proto::memory::Pd;
use xroce_proto::wc::{Cq, Srq};
use xroce_shm::Region;
use xroce_wire::newtypes::{LKey, Qpn};

use crate::bell::Bell;

/// Protection domains of a process, at most: they cost nothing but are counted for ever.
const PDS_MAX: usize = 1 << 16;
/// Completion channels of a process, at most: each is a descriptor of the daemon.
const CHANNELS_MAX: usize = 4096;

/// A queue pair or shared receive queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued {
    /// What it is called among the queues with news.
    pub(super) number: u32,
    /// Bytes it takes.
    pub(super) bytes: u64,
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct Completes {
    pub(super) channel: u32,
    pub(super) bytes: u64,
}

/// A memory region. Holds the memory, so that it is unmapped by this thread and not the engine's.
#[derive(Debug)]
pub(super) struct Registered {
    #[allow(dead_code, reason = "kept alive")]
    pub(super) region: Region,
    pub(super) len: u64,
}

/// All objects of a process.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(super) limits: Limits,
    pub(super) pds: HashSet<Pd>,
    pub(super) mrs: HashMap<LKey, Registered>,
    /// Regions given up while windows are bound to them.
    pub(super) orphans: Vec<LKey>,
    pub(super) mws: HashSet<MwId>,
    pub(super) channels: HashMap<u32, Arc<Bell>>,
    pub(super) next_channel: u32,
    pub(super) cqs: HashMap<Cq, Completes>,
    pub(super) srqs: HashMap<Srq, Queued>,
    pub(super) qps: HashMap<Qpn, Queued>,
    pub(super) ahs: HashSet<Ah>,
    bytes: u64,
    queue_bytes: u64,
}

/// No more of a kind.
fn limit(what: &str, limit: impl std::fmt::Display) -> Refusal {
    Refusal::new(
        Reason::Limit,
        format!("this process has {limit} {what}, the limit the daemon sets"),
    )
}

/// Not one of this process.
fn none(what: &str, which: impl std::fmt::Display) -> Refusal {
    Refusal::new(
        Reason::NotFound,
        format!("this process has no {what} {which}"),
    )
}

fn found<K: Eq + Hash, V>(
    among: &HashMap<K, V>,
    key: &K,
    what: &str,
    which: impl std::fmt::Display,
) -> Result<(), Refusal> {
    if among.contains_key(key) {
        Ok(())
    } else {
        Err(none(what, which))
    }
}

impl Objects {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            pds: HashSet::new(),
            mrs: HashMap::new(),
            orphans: Vec::new(),
            mws: HashSet::new(),
            channels: HashMap::new(),
            next_channel: 0,
            cqs: HashMap::new(),
            srqs: HashMap::new(),
            qps: HashMap::new(),
            ahs: HashSet::new(),
            bytes: 0,
            queue_bytes: 0,
        }
    }

    /// Queue pairs, completion queues, shared receive queues, regions, windows, address handles.
    pub(super) fn counts(&self) -> [u32; 6] {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        [
            count(self.qps.len()),
            count(self.cqs.len()),
            count(self.srqs.len()),
            count(self.mrs.len()),
            count(self.mws.len()),
            count(self.ahs.len()),
        ]
    }

    /// Bytes registered.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn check_pd(&self, pd: Pd) -> Result<(), Refusal> {
        if self.pds.contains(&pd) {
            Ok(())
        } else {
            Err(none("protection domain", pd.0))
        }
    }

    pub(super) fn check_mr(&self, lkey: LKey) -> Result<(), Refusal> {
        let which = format!("with L_Key {:#010x}", lkey.value());
        found(&self.mrs, &lkey, "memory region", which)
    }

    pub(super) fn check_mw(&self, mw: MwId) -> Result<(), Refusal> {
        if self.mws.contains(&mw) {
            Ok(())
        } else {
            Err(none("memory window", format!("{mw:?}")))
        }
    }

    pub(super) fn check_cq(&self, cq: Cq) -> Result<(), Refusal> {
        found(&self.cqs, &cq, "completion queue", cq.0)
    }

    pub(super) fn check_srq(&self, srq: Srq) -> Result<(), Refusal> {
        found(&self.srqs, &srq, "shared receive queue", srq.0)
    }

    pub(super) fn check_qp(&self, qpn: Qpn) -> Result<(), Refusal> {
        let which = format!("{:#x}", qpn.value());
        found(&self.qps, &qpn, "queue pair", which)
    }

    pub(super) fn check_ah(&self, ah: Ah) -> Result<(), Refusal> {
        if self.ahs.contains(&ah) {
            Ok(())
        } else {
            Err(none("address handle", ah.value()))
        }
    }

    /// Whether there may be one more of each.
    pub(super) fn room_for_pd(&self) -> Result<(), Refusal> {
        room(self.pds.len(), PDS_MAX, "protection domains")
    }

    pub(super) fn room_for_channel(&self) -> Result<(), Refusal> {
        room(self.channels.len(), CHANNELS_MAX, "completion channels")
    }

    pub(super) fn room_for_mr(&self, len: u64) -> Result<(), Refusal> {
        room(self.mrs.len(), self.limits.mrs as usize, "memory regions")?;
        let most = self.limits.bytes;
        match self.bytes.checked_add(len) {
            Some(all) if all <= most => Ok(()),
            _ => Err(Refusal::new(
                Reason::Limit,
                format!(
                    "{len} bytes beside {} registered, the daemon sets a limit of {most}",
                    self.bytes
                ),
            )),
        }
    }

    pub(super) fn room_for_mw(&self) -> Result<(), Refusal> {
        room(self.mws.len(), self.limits.mws as usize, "memory windows")
    }

    pub(super) fn room_for_ah(&self) -> Result<(), Refusal> {
        room(self.ahs.len(), self.limits.ahs as usize, "address handles")
    }

    pub(super) fn room_for_cq(&self, bytes: u64) -> Result<(), Refusal> {
        room(
            self.cqs.len(),
            self.limits.cqs as usize,
            "completion queues",
        )?;
        self.room_for_queue(bytes)
    }

    pub(super) fn room_for_srq(&self, bytes: u64) -> Result<(), Refusal> {
        let most = self.limits.srqs as usize;
        room(self.srqs.len(), most, "shared receive queues")?;
        self.room_for_queue(bytes)
    }

    pub(super) fn room_for_qp(&self, bytes: u64) -> Result<(), Refusal> {
        room(self.qps.len(), self.limits.qps as usize, "queue pairs")?;
        self.room_for_queue(bytes)
    }

    pub(super) fn room_for_queue(&self, bytes: u64) -> Result<(), Refusal> {
        let most = self.limits.queue_bytes;
        match self.queue_bytes.checked_add(bytes) {
            Some(all) if all <= most => Ok(()),
            _ => Err(limit("bytes of queues", most)),
        }
    }

    pub(super) fn take_bytes(&mut self, len: u64) {
        self.bytes = self.bytes.saturating_add(len);
    }

    pub(super) fn give_bytes(&mut self, len: u64) {
        self.bytes = self.bytes.saturating_sub(len);
    }

    pub(super) fn take_queue_bytes(&mut self, len: u64) {
        self.queue_bytes = self.queue_bytes.saturating_add(len);
    }

    pub(super) fn give_queue_bytes(&mut self, len: u64) {
        self.queue_bytes = self.queue_bytes.saturating_sub(len);
    }
}

fn room(have: usize, most: usize, what: &str) -> Result<(), Refusal> {
    if have < most {
        Ok(())
    } else {
        Err(limit(what, most))
    }
}
