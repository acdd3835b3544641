//! Two ports back to back and nothing between them: the cheapest way to run two engines in one
//! thread. No clock, no impairment; a frame changes hands by moving its buffer, so there is no
//! copy at all.

use core::cell::RefCell;
use core::time::Duration;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use xroce_api::PortStats;
use xroce_wire::newtypes::Gid;

use super::frame::{Frame, L2_BYTES, Meta, Pool};
use crate::datapath::{Caps, Datapath, Link, Rx, TxMeta};

/// How a [`loop_pair`] is set up.
#[derive(Clone, Debug)]
pub struct LoopConfig {
    /// What frames start with.
    pub link: Link,
    /// IP MTU, bytes.
    pub mtu: usize,
    /// Frames in one direction, in flight or lent; beyond, `tx_begin` gives none.
    pub depth: usize,
    /// Source addresses of the two ports on [`Link::Udp`].
    pub addrs: [Gid; 2],
}

impl Default for LoopConfig {
    /// Ethernet, MTU 4200, 256 frames each way, 10.0.0.1 and 10.0.0.2.
    fn default() -> Self {
        let addrs = [Gid::from_v4([10, 0, 0, 1]), Gid::from_v4([10, 0, 0, 2])];
        Self {
            link: Link::Ethernet,
            mtu: 4200,
            depth: 256,
            addrs,
        }
    }
}

/// The frames of one direction: a ring of full ones and a stack of free ones, all made at the
/// start.
#[derive(Debug)]
struct Pipe {
    full: VecDeque<Frame>,
    free: Pool,
}

/// One end of a [`loop_pair`].
#[derive(Debug)]
pub struct LoopPort {
    caps: Caps,
    meta: Meta,
    out: Rc<RefCell<Pipe>>,
    inn: Rc<RefCell<Pipe>>,
    lent: Option<Frame>,
    /// Frames out of the pool: in the ring, or lent.
    depth: usize,
    stats: PortStats,
}

/// Two ports connected to each other; what is committed on one can be received on the other.
#[must_use]
pub fn loop_pair(cfg: &LoopConfig) -> (LoopPort, LoopPort) {
    let pipe = || {
        let mut free = Pool::new(cfg.link);
        free.require(cfg.mtu + L2_BYTES);
        free.reserve(cfg.depth);
        Rc::new(RefCell::new(Pipe {
            full: VecDeque::with_capacity(cfg.depth),
            free,
        }))
    };
    let (ab, ba) = (pipe(), pipe());
    let [a, b] = cfg.addrs;
    (
        LoopPort::new(cfg, "loop 0", a, Rc::clone(&ab), Rc::clone(&ba)),
        LoopPort::new(cfg, "loop 1", b, ba, ab),
    )
}

impl LoopPort {
    fn new(
        cfg: &LoopConfig,
        name: &str,
        addr: Gid,
        out: Rc<RefCell<Pipe>>,
        inn: Rc<RefCell<Pipe>>,
    ) -> Self {
        let caps = Caps {
            link: cfg.link,
            mtu: cfg.mtu,
            max_frame: cfg.mtu + L2_BYTES,
            name: String::from(name),
        };
        let meta = Meta {
            src: addr,
            src_port: 4791,
            ..Meta::default()
        };
        let stats = PortStats::default();
        Self {
            caps,
            meta,
            out,
            inn,
            lent: None,
            depth: cfg.depth,
            stats,
        }
    }
}

impl Datapath for LoopPort {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn rx_burst(&mut self, budget: usize, each: &mut impl FnMut(Rx<'_>)) -> io::Result<usize> {
        let mut count = 0;
        while count < budget {
            let next = self.inn.borrow_mut().full.pop_front();
            let Some(frame) = next else { break };
            count += 1;
            self.stats.rx_frames += 1;
            self.stats.rx_bytes += frame.len() as u64;
            each(frame.as_rx(self.caps.link));
            self.inn.borrow_mut().free.give(frame);
        }
        Ok(count)
    }

    fn tx_begin(&mut self) -> Option<&mut [u8]> {
        if self.lent.is_none() {
            let mut out = self.out.borrow_mut();
            if out.full.len() >= self.depth {
                self.stats.tx_full += 1;
                return None;
            }
            self.lent = Some(out.free.take());
        }
        let max_frame = self.caps.max_frame;
        self.lent.as_mut().map(|f| f.room(max_frame))
    }

    fn tx_commit(&mut self, meta: &TxMeta, len: usize) {
        let Some(mut frame) = self.lent.take() else {
            debug_assert!(false, "tx_commit without tx_begin");
            return;
        };
        debug_assert!(
            len <= self.caps.max_frame,
            "{len} bytes in a frame of {}",
            self.caps.max_frame
        );
        frame.set_len(len.min(self.caps.max_frame));
        if self.caps.link == Link::Udp {
            frame.meta = Meta {
                dst: meta.dst,
                tos: meta.tos,
                ..self.meta
            };
        }
        self.stats.tx_frames += 1;
        self.stats.tx_bytes += len as u64;
        self.out.borrow_mut().full.push_back(frame);
    }

    fn tx_flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Everything arrives anyway.
    fn join(&mut self, _group: Gid) -> io::Result<()> {
        Ok(())
    }

    /// Returns at once: what could arrive comes from the same thread.
    fn wait(&mut self, _timeout: Option<Duration>) -> io::Result<()> {
        Ok(())
    }

    fn stats(&mut self) -> PortStats {
        self.stats
    }
}
