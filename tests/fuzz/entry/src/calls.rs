//! A script of calls on one engine, whose frames come back to it: all commands, on handles that
//! live, are gone or never were, with any values.
//!
//! What must hold: no panic; a handle that does not live is refused by name, one that lives never
//! so; a refused modify changes nothing; what is in use is not destroyed and what is not can be;
//! memory outside all regions is untouched; every frame is in exactly one counter.

mod objects;
mod work;

use std::collections::BTreeMap;

use xroce_api::{Ah, EngineError, Mr, MwId, ObjectError};
use xroce_engine::{Engine, EngineConfig};
use xroce_proto::memory::Pd;
use xroce_proto::qp::{QpInit, QpType};
use xroce_proto::time::Instant;
use xroce_proto::wc::{Cq, Srq};
use xroce_shm::Region;
use xroce_wire::newtypes::{Gid, MacAddr, Qpn};
use xroce_wire::path::AddressVector;

use crate::bytes::Bytes;
use crate::engines::count;
use crate::port::{Port, Queue};

const MEMORY: usize = 4096;
const SCRIPT_MAX: usize = 1024;
/// Objects of a kind, at most: more find nothing new and take time.
const OBJECTS: usize = 12;

thread_local! {
    static REGION: Region = Region::anonymous(MEMORY).unwrap();
    static FILL: Vec<u8> = (0..MEMORY).map(filler).collect();
}

/// What a byte of memory is before anything happens.
fn filler(at: usize) -> u8 {
    (at ^ at >> 7).wrapping_mul(0x35) as u8
}

/// Handles made so far, and whether each lives.
struct Known<T> {
    all: Vec<(T, bool)>,
}

impl<T: Copy + PartialEq> Known<T> {
    const fn new() -> Self {
        Self { all: Vec::new() }
    }

    fn add(&mut self, it: T) {
        // A number may come back when it is long gone.
        self.all.retain(|&(old, _)| old != it);
        self.all.push((it, true));
    }

    fn has_room(&self) -> bool {
        self.all.iter().filter(|(_, lives)| *lives).count() < OBJECTS && self.all.len() < 200
    }

    /// One that lives or has lived, if there is any.
    fn pick(&self, bytes: &mut Bytes<'_>) -> Option<T> {
        let n = usize::from(bytes.u8()).checked_rem(self.all.len())?;
        Some(self.all[self.all.len() - 1 - n].0)
    }

    fn lives(&self, it: T) -> bool {
        self.all.contains(&(it, true))
    }

    fn gone(&mut self, it: T) {
        for (known, lives) in &mut self.all {
            *lives &= *known != it;
        }
    }

    fn living(&self) -> Vec<T> {
        let living = self.all.iter().filter(|(_, lives)| *lives);
        living.map(|&(it, _)| it).collect()
    }
}

struct Caller {
    engine: Engine<Port>,
    region: Region,
    now: u64,
    pds: Vec<Pd>,
    cqs: Known<Cq>,
    srqs: Known<Srq>,
    qps: Known<Qpn>,
    inits: BTreeMap<u32, QpInit>,
    ahs: Known<Ah>,
    mrs: Known<Mr>,
    mws: Known<MwId>,
    window_keys: Vec<xroce_wire::newtypes::RKey>,
    /// Offset and length of all that was a region at some time.
    covered: Vec<(usize, usize)>,
    wire: Queue,
}

/// Plays one script.
pub fn calls(data: &[u8]) {
    let data = data.get(..SCRIPT_MAX).unwrap_or(data);
    let mut bytes = Bytes::new(data);
    let mut caller = Caller::new(bytes.u8());
    while !bytes.is_empty() {
        caller.act(&mut bytes);
    }
    caller.finish();
}

impl Caller {
    fn new(how: u8) -> Self {
        let wire = Queue::default();
        let region = REGION.with(Clone::clone);
        FILL.with(|fill| region.write_at(0, fill)).unwrap();
        let room = if how & 1 == 0 { 64 } else { 2 };
        let config = EngineConfig {
            rx_budget: 8,
            tx_budget: 8,
            quantum: if how & 2 == 0 { 16 } else { 1 },
            ..EngineConfig::default()
        };
        let mut engine = Engine::new(Port::new(1024, room, &wire, &wire), config);
        // The bare minimum, so that not every script has to find it.
        let pd = engine.alloc_pd();
        let cq = engine.create_cq(16).unwrap();
        let mut cqs = Known::new();
        cqs.add(cq);
        Self {
            engine,
            region,
            now: 1_000_000,
            pds: vec![pd],
            cqs,
            srqs: Known::new(),
            qps: Known::new(),
            inits: BTreeMap::new(),
            ahs: Known::new(),
            mrs: Known::new(),
            mws: Known::new(),
            window_keys: Vec::new(),
            covered: Vec::new(),
            wire,
        }
    }

    fn act(&mut self, bytes: &mut Bytes<'_>) {
        match bytes.u8() & 0x1f {
            0 => self.create_cq(bytes),
            1 => self.change_cq(bytes),
            2 => self.create_srq(bytes),
            3 => self.change_srq(bytes),
            4 | 5 => self.create_qp(bytes),
            6 => self.destroy_qp(bytes),
            7 | 8 => self.connect(bytes),
            9 | 10 => self.modify_qp(bytes),
            11 => self.register(bytes),
            12 => self.reregister(bytes),
            13 => self.deregister(bytes),
            14 => self.window(bytes),
            15 => self.address(bytes),
            16 => self.group(bytes),
            17 => self.partition(bytes),
            18..=21 => self.post_send(bytes),
            22..=24 => self.post_recv(bytes),
            25 => self.now += 1 << bytes.below(25),
            26 => self.lose(bytes),
            27 => self.take(bytes),
            _ => self.poll(),
        }
    }

    fn poll(&mut self) {
        let now = Instant::from_nanos(self.now);
        self.engine.poll_once(now).unwrap();
    }

    fn lose(&self, bytes: &mut Bytes<'_>) {
        let (n, mask) = (bytes.u8(), bytes.u8());
        let mut wire = self.wire.borrow_mut();
        if mask == 0 {
            wire.pop_front();
        } else if let Some(frame) = wire.front_mut() {
            let n = usize::from(n) % frame.len();
            frame[n] ^= mask;
        }
    }

    fn pd(&self, bytes: &mut Bytes<'_>) -> Pd {
        match bytes.u8() {
            255 => Pd(bytes.u32()),
            n => self.pds[usize::from(n) % self.pds.len()],
        }
    }

    fn path() -> AddressVector {
        let gid = Gid::from_v4([192, 0, 2, 1]);
        let mac = MacAddr::new([2, 0, 0, 0, 0, 1]);
        AddressVector {
            src: gid,
            dst: gid,
            src_mac: mac,
            dst_mac: mac,
            vlan: None,
            traffic_class: 2,
            hop_limit: 64,
            flow_label: 0,
            src_port: 0xc001,
        }
    }

    /// How often living QPs use a CQ or an SRQ.
    fn users(&self, uses: impl Fn(&QpInit) -> u32) -> u32 {
        let living = self.qps.living();
        living.iter().map(|q| uses(&self.inits[&q.value()])).sum()
    }

    fn kind(&self, qpn: Qpn) -> Option<QpType> {
        let init = self.inits.get(&qpn.value());
        init.filter(|_| self.qps.lives(qpn)).map(|i| i.qp_type)
    }

    /// Ends everything: whatever is left can be destroyed, in this order.
    fn finish(mut self) {
        for _ in 0..50 {
            self.poll();
        }
        count(&self.engine.stats(), self.engine_frames());
        for qpn in self.qps.living() {
            self.engine.destroy_qp(qpn).unwrap();
        }
        for srq in self.srqs.living() {
            self.engine.destroy_srq(srq).unwrap();
        }
        for cq in self.cqs.living() {
            self.engine.destroy_cq(cq).unwrap();
        }
        for mw in self.mws.living() {
            self.engine.dealloc_mw(mw).unwrap();
        }
        for mr in self.mrs.living() {
            self.engine.dereg_mr(mr.lkey).unwrap();
        }
        for ah in self.ahs.living() {
            self.engine.destroy_ah(ah).unwrap();
        }
        assert_eq!(self.engine.next_deadline(), None, "nobody is left to wait");
        assert!(!self.engine.has_notification());
        assert_eq!(self.engine.poll_event(), None, "an event of nobody");
        let mut memory = vec![0; MEMORY];
        self.region.read_at(0, &mut memory).unwrap();
        FILL.with(|fill| {
            for &(at, len) in &self.covered {
                memory[at..at + len].copy_from_slice(&fill[at..at + len]);
            }
            assert!(memory == *fill, "written outside all regions");
        });
    }

    fn engine_frames(&mut self) -> u64 {
        self.engine.port_stats().rx_frames
    }
}

/// An error says something, and says that the handle is unknown if and only if it is.
fn refused<T>(result: Result<T, EngineError>, lives: bool, unknown: &EngineError) -> Option<T> {
    match result {
        Ok(done) => {
            assert!(lives, "done to what does not exist: {unknown}");
            Some(done)
        }
        Err(error) => {
            assert_eq!(error == *unknown, !lives, "{error} for {unknown}");
            assert!(error.to_string().len() > 10);
            None
        }
    }
}

fn no_srq(srq: Srq) -> EngineError {
    ObjectError::NoSrq(srq).into()
}
