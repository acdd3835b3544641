//! One capture: what it wants, where it goes, what it has counted.

use rustix::time::{ClockId, clock_gettime};
use xroce_api::clock;
use xroce_api::message::Capacity;
use xroce_api::message::{CaptureSpec, CaptureStats, Direction};
use xroce_control::capture::{self, ENTRY, HEADER, Header};
use xroce_net::datapath::{Rx, TxMeta};
use xroce_proto::time::{Duration, Instant};
use xroce_shm::{PARK_AT, ParkWord, Producer, Region, RingError};
use xroce_wire::frame::UdpMeta;
use xroce_wire::newtypes::{Gid, Qpn};

use super::filter::{Connection, Filter, Passing};
use crate::bell::Bell;

/// The reader is rung for at most so often: whatever it does to its memory, it cannot make the
/// engine do a system call for every burst.
const RING_EVERY: Duration = Duration::from_millis(1);
/// Bytes of the frame in the first entry of a record.
const FIRST: usize = ENTRY - HEADER;

/// Who captures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Who {
    pub(crate) session: u32,
    pub(crate) pid: u32,
}

/// What a port of a UDP socket sends from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Own {
    pub(crate) gid: Gid,
    pub(crate) src_port: u16,
}

/// A capture of one port.
#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) who: Who,
    ring: Producer,
    park: ParkWord,
    bell: Bell,
    rang: Instant,
    /// Published since the reader was last looked after.
    news: bool,
    filter: Filter,
    sample: u32,
    /// Frames to leave out before the next one is taken.
    skip: u32,
    snaplen: usize,
    own: Option<Own>,
    /// What the engine's clock lacks to the time since the epoch, ns.
    epoch: u64,
    /// Lent instead of the port's frames.
    frame: Box<[u8]>,
    has_lent: bool,
    /// Dropped since the last record.
    lost: u32,
    seen: u64,
    filtered: u64,
    unsampled: u64,
    captured: u64,
    dropped: u64,
    broken: Option<RingError>,
}

/// The memory of a capture could not be laid out: never, but for the types.
pub(crate) type Unlaid = Box<dyn std::error::Error + Send + Sync>;

impl Capture {
    /// For a port that lends frames of `max_frame` bytes, to the ring in `memory`; `own` is of one
    /// whose frames lack the headers in front.
    pub(crate) fn new(
        who: Who,
        spec: &CaptureSpec,
        (memory, capacity): (&Region, Capacity),
        bell: Bell,
        own: Option<Own>,
        max_frame: usize,
    ) -> Result<Self, Unlaid> {
        Ok(Self {
            who,
            ring: Producer::new(memory, 0, capture::ring(capacity)?)?,
            park: ParkWord::new(memory, PARK_AT)?,
            bell,
            rang: Instant::default(),
            news: false,
            filter: Filter::new(spec),
            sample: spec.sample.max(1),
            skip: 0,
            snaplen: spec.snaplen as usize,
            own,
            epoch: since_epoch().saturating_sub(clock::now().as_nanos()),
            frame: vec![0; max_frame].into(),
            has_lent: false,
            lost: 0,
            seen: 0,
            filtered: 0,
            unsampled: 0,
            captured: 0,
            dropped: 0,
            broken: None,
        })
    }

    pub(crate) fn stats(&self) -> CaptureStats {
        CaptureStats {
            seen: self.seen,
            filtered: self.filtered,
            unsampled: self.unsampled,
            captured: self.captured,
            dropped: self.dropped,
            broken: self.broken.map(|error| error.to_string()),
        }
    }

    /// Whether it matters what queue pairs are connected to.
    pub(super) const fn follows(&self) -> bool {
        self.filter.follows()
    }

    pub(super) fn connected(&mut self, local: Qpn, to: Option<Connection>) {
        self.filter.connected(local, to);
    }

    pub(super) fn lend(&mut self) -> &mut [u8] {
        self.has_lent = true;
        &mut self.frame
    }

    pub(super) const fn has_lent(&self) -> bool {
        self.has_lent
    }

    /// What was written into the frame that was lent.
    pub(super) fn lent(&mut self, len: usize) -> &[u8] {
        self.has_lent = false;
        self.frame.get(..len).unwrap_or(&self.frame)
    }

    /// The first `len` bytes of the frame that was lent are on their way.
    pub(super) fn sent(&mut self, meta: &TxMeta, len: usize) {
        let frame = std::mem::take(&mut self.frame);
        let udp = self.own.map(|own| UdpMeta {
            src: own.gid,
            dst: meta.dst,
            src_port: own.src_port,
            tos: meta.tos,
            hop_limit: None,
        });
        self.take(&Passing {
            direction: Direction::Out,
            bytes: frame.get(..len).unwrap_or(&frame),
            udp,
        });
        self.frame = frame;
    }

    pub(super) fn received(&mut self, rx: &Rx<'_>) {
        let (bytes, udp) = match *rx {
            Rx::Ethernet(bytes) => (bytes, None),
            Rx::Udp(meta, bytes) => (bytes, Some(meta)),
        };
        let direction = Direction::In;
        self.take(&Passing {
            direction,
            bytes,
            udp,
        });
    }

    fn take(&mut self, passing: &Passing<'_>) {
        self.seen += 1;
        if !self.filter.wants(passing) {
            self.filtered += 1;
            return;
        }
        if self.skip != 0 {
            self.skip -= 1;
            self.unsampled += 1;
            return;
        }
        self.skip = self.sample - 1;
        if self.broken.is_none() {
            match self.write(passing) {
                Ok(true) => {
                    self.captured += 1;
                    return;
                }
                Ok(false) => {}
                Err(error) => self.broken = Some(error),
            }
        }
        self.dropped += 1;
        self.lost = self.lost.saturating_add(1);
    }

    /// Writes a record; whether there was room.
    fn write(&mut self, passing: &Passing<'_>) -> Result<bool, RingError> {
        let kept = passing.bytes.get(..self.snaplen).unwrap_or(passing.bytes);
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let header = Header {
            direction: passing.direction,
            ts_ns: self.epoch.saturating_add(clock::now().as_nanos()),
            len: length(passing.bytes),
            kept: length(kept),
            lost: self.lost,
            udp: passing.udp,
        };
        if self.ring.room(header.entries())? < header.entries() {
            return Ok(false);
        }
        let (first, rest) = kept.split_at_checked(FIRST).unwrap_or((kept, &[]));
        let mut entry = [0; ENTRY];
        let head = header.encode();
        let bytes = head.iter().chain(first);
        entry
            .iter_mut()
            .zip(bytes)
            .for_each(|(to, from)| *to = *from);
        self.ring.stage(&entry)?;
        let (whole, last) = rest.as_chunks::<ENTRY>();
        for bytes in whole {
            self.ring.stage(bytes)?;
        }
        if !last.is_empty() {
            entry
                .iter_mut()
                .zip(last)
                .for_each(|(to, from)| *to = *from);
            self.ring.stage(&entry)?;
        }
        self.lost = 0;
        Ok(true)
    }

    /// Shows the reader what was written, and wakes it if it sleeps.
    pub(super) fn show(&mut self) {
        self.news |= self.ring.publish() != 0;
        if !self.news {
            return;
        }
        let now = clock::now();
        if now.since(self.rang) < RING_EVERY {
            return;
        }
        self.news = false;
        if self.park.must_kick() {
            self.rang = now;
            self.bell.ring();
        }
    }
}

/// Nanoseconds since the epoch.
fn since_epoch() -> u64 {
    let time = clock_gettime(ClockId::Realtime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000) + u64::try_from(time.tv_nsec).unwrap_or(0)
}
