//! Work requests from the rings of a process into the engine.
//!
//! An entry is copied out, judged, and only then used; the process may write over it meanwhile. A
//! process that follows the library never posts what the engine refuses, so whatever is refused
//! here ends the session with the reason.

use xroce_abi::{ENTRY, recv, send};
use xroce_api::{Ah, EngineError, UdDest};
use xroce_engine::{Engine, Receives};
use xroce_net::datapath::Datapath;
use xroce_proto::wr::PostError;
use xroce_shm::Consumer;

use super::client::{Queue, Target};

/// Bytes of the longest work request.
const LONGEST: usize = if send::LEN_MAX > recv::ENTRIES_MAX * ENTRY {
    send::LEN_MAX
} else {
    recv::ENTRIES_MAX * ENTRY
};

/// Room for one work request.
pub(crate) type Scratch = [u8; LONGEST];

pub(crate) const SCRATCH: Scratch = [0; LONGEST];

/// Work requests taken, and whether there are more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) count: u32,
    /// Of which so many are sends.
    pub(crate) sends: u32,
    pub(crate) more: bool,
}

/// What is wrong with a work request, for the process.
pub(super) type Wrong = String;

/// Takes up to `budget` work requests out of a queue. Receives first: a send posted after them may
/// be answered at once.
pub(crate) fn take<D: Datapath>(
    engine: &mut Engine<D>,
    queue: &mut Queue,
    budget: u32,
    scratch: &mut Scratch,
) -> Result<Taken, Wrong> {
    let mut taken = Taken {
        count: 0,
        sends: 0,
        more: false,
    };
    let target = queue.target;
    if let Some(ring) = &mut queue.recv {
        let (count, more) = take_receives(&mut engine.receives(), ring, target, budget, scratch)?;
        taken.count += count;
        taken.more |= more;
    }
    if let (Some(ring), Target::Qp(qpn)) = (&mut queue.send, target) {
        let left = budget.saturating_sub(taken.count);
        let count = drain(ring, left, scratch, send::announced, |bytes| {
            let sent = send::decode(bytes).map_err(|e| e.to_string())?;
            let wr = sent.wr();
            let posted = match sent.to {
                None => engine.post_send(qpn, &wr),
                Some(to) => {
                    let to = UdDest {
                        ah: Ah::new(to.ah),
                        qpn: to.qpn,
                        qkey: to.qkey,
                    };
                    engine.post_datagram(qpn, &wr, &to)
                }
            };
            judge(posted, wr.wr_id)
        });
        let (count, more) = count.map_err(|e| format!("sends of {target}: {e}"))?;
        taken.count += count;
        taken.sends += count;
        taken.more |= more;
    }
    Ok(taken)
}

/// Takes up to `budget` receives out of a ring; how many, and whether there are more.
pub(super) fn take_receives(
    posts: &mut Receives<'_>,
    ring: &mut Consumer,
    target: Target,
    budget: u32,
    scratch: &mut Scratch,
) -> Result<(u32, bool), Wrong> {
    let count = drain(ring, budget, scratch, recv::announced, |bytes| {
        let received = recv::decode(bytes).map_err(|e| e.to_string())?;
        let wr = received.wr();
        let posted = match target {
            Target::Qp(qpn) => posts.post_recv(qpn, &wr),
            Target::Srq(srq) => posts.post_srq_recv(srq, &wr),
        };
        judge(posted, wr.wr_id)
    });
    count.map_err(|e| format!("receives of {target}: {e}"))
}

/// What the engine said to a work request.
fn judge(posted: Result<(), EngineError>, wr_id: u64) -> Result<(), Wrong> {
    match posted {
        // Posted by one thread while another resets the queue pair: it vanishes with the rest.
        Ok(()) | Err(EngineError::Post(PostError::State(_))) => Ok(()),
        Err(error) => Err(format!("work request {wr_id:#x}: {error}")),
    }
}

/// Hands work requests to `each`; how many, and whether there are more.
#[inline]
fn drain(
    ring: &mut Consumer,
    budget: u32,
    scratch: &mut Scratch,
    announced: impl Fn(&[u8; ENTRY]) -> Result<usize, xroce_abi::BadEntry>,
    mut each: impl FnMut(&[u8]) -> Result<(), Wrong>,
) -> Result<(u32, bool), Wrong> {
    let mut entries = ring.available().map_err(|e| e.to_string())? as usize;
    let mut count = 0;
    while entries != 0 && count < budget {
        let mut first = [0; ENTRY];
        fetch(ring, &mut first)?;
        let needed = announced(&first).map_err(|e| e.to_string())?;
        if needed > entries {
            return Err(format!("{entries} entries of a work request of {needed}"));
        }
        let len = needed * ENTRY;
        let given = scratch.len();
        let Some(bytes) = scratch.get_mut(..len) else {
            return Err(format!(
                "a work request of {len} bytes, at most {given} can be"
            ));
        };
        let (places, _) = bytes.as_chunks_mut::<ENTRY>();
        for (n, place) in places.iter_mut().enumerate() {
            if n == 0 {
                *place = first;
            } else {
                fetch(ring, place)?;
            }
        }
        each(bytes)?;
        entries -= needed;
        count += 1;
    }
    ring.release();
    Ok((count, entries != 0))
}

#[inline]
fn fetch(ring: &mut Consumer, entry: &mut [u8; ENTRY]) -> Result<(), Wrong> {
    match ring.fetch(entry) {
        Ok(true) => Ok(()),
        Ok(false) => Err("an entry that was announced is not there".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Qp(qpn) => write!(f, "queue pair {:#x}", qpn.value()),
            Self::Srq(srq) => write!(f, "shared receive queue {}", srq.0),
        }
    }
}
