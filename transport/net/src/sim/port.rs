//! A host's port on a simulated network.

use core::time::Duration;
use std::io;
use std::rc::Rc;

use xroce_api::PortStats;
use xroce_wire::frame::UdpMeta;
use xroce_wire::newtypes::Gid;

use super::Shared;
use super::frame::{Frame, Inner, L2_BYTES, Meta};
use super::net::Net;
use crate::datapath::{Caps, Datapath, Link, Rx, TxMeta};

/// How a port is set up.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// IP MTU, bytes. Longer frames are refused on receipt.
    pub mtu: usize,
    /// Name in messages.
    pub name: String,
    /// Own address, the source of what is sent on a [`Link::Udp`] network; unused on Ethernet.
    pub addr: Gid,
    /// UDP source port on a [`Link::Udp`] network.
    pub src_port: u16,
    /// Frames that may be committed and not yet sent; beyond, `tx_begin` gives none. Bounds
    /// only on a wire with a rate, others send at once.
    pub tx_ring: usize,
    /// Frames that may wait to be received; beyond, they are dropped.
    pub rx_ring: usize,
}

impl PortConfig {
    /// The default with the name "sim `n`" and the address 10.0.0.(`n`+1).
    #[must_use]
    pub fn numbered(n: u8) -> Self {
        Self {
            name: format!("sim {n}"),
            addr: Gid::from_v4([10, 0, 0, n.wrapping_add(1)]),
            ..Self::default()
        }
    }
}

impl Default for PortConfig {
    /// MTU 4200, which carries path MTU 4096; rings as on AF_XDP.
    fn default() -> Self {
        Self {
            mtu: 4200,
            name: String::from("sim"),
            addr: Gid::default(),
            src_port: 4791,
            tx_ring: 256,
            rx_ring: 4096,
        }
    }
}

/// One port. Frames committed go out at `tx_flush`; what arrives waits for `rx_burst`.
#[derive(Debug)]
pub struct SimPort {
    shared: Rc<Shared>,
    id: usize,
    caps: Caps,
    meta: Meta,
    tx_ring: usize,
    lent: Option<Frame>,
    pending: Vec<Frame>,
    stats: PortStats,
}

impl SimPort {
    pub(super) fn new(shared: Rc<Shared>, id: usize, link: Link, cfg: &PortConfig) -> Self {
        let caps = Caps {
            link,
            mtu: cfg.mtu,
            max_frame: cfg.mtu + L2_BYTES,
            name: cfg.name.clone(),
        };
        let meta = Meta {
            src: cfg.addr,
            src_port: cfg.src_port,
            ..Meta::default()
        };
        let pending = Vec::with_capacity(cfg.tx_ring);
        Self {
            shared,
            id,
            caps,
            meta,
            tx_ring: cfg.tx_ring,
            lent: None,
            pending,
            stats: PortStats::default(),
        }
    }

    pub(super) fn id(&self) -> usize {
        self.id
    }

    /// Whether something waits to be received.
    #[must_use]
    pub fn has_rx(&self) -> bool {
        self.shared
            .net
            .borrow()
            .nics
            .get(self.id)
            .is_some_and(|n| !n.rx.is_empty())
    }

    /// Frames the uplink has not yet sent.
    fn unsent(&self, net: &mut Net) -> usize {
        let now = net.now();
        let uplink = net.nics.get(self.id).and_then(|n| n.uplink);
        uplink
            .and_then(|w| net.wires.get_mut(w))
            .map_or(0, |w| w.queued_frames(now))
    }
}

impl Datapath for SimPort {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn rx_burst(&mut self, budget: usize, each: &mut impl FnMut(Rx<'_>)) -> io::Result<usize> {
        let mut done: Option<Frame> = None;
        let mut count = 0;
        loop {
            // Not borrowed while `each` runs: it may hold a handle to the same network.
            let next = {
                let mut net = self.shared.net.borrow_mut();
                if let Some(frame) = done.take() {
                    net.pool.give(frame);
                }
                let nic = net.nics.get_mut(self.id).filter(|_| count < budget);
                nic.and_then(|n| n.rx.pop_front())
            };
            let Some(frame) = next else { break };
            count += 1;
            self.stats.rx_frames += 1;
            self.stats.rx_bytes += frame.len() as u64;
            each(frame.as_rx(self.caps.link));
            done = Some(frame);
        }
        Ok(count)
    }

    fn tx_begin(&mut self) -> Option<&mut [u8]> {
        if self.lent.is_none() {
            let mut net = self.shared.net.borrow_mut();
            let full = self.pending.len() + self.unsent(&mut net) >= self.tx_ring;
            if let Some(nic) = net.nics.get_mut(self.id) {
                nic.blocked = full;
            }
            if full {
                self.stats.tx_full += 1;
                return None;
            }
            self.lent = Some(net.pool.take());
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
        frame.meta = Meta {
            dst: meta.dst,
            tos: meta.tos,
            ..self.meta
        };
        self.stats.tx_frames += 1;
        self.stats.tx_bytes += len as u64;
        self.pending.push(frame);
    }

    fn tx_flush(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let mut net = self.shared.net.borrow_mut();
        let uplink = net.nics.get(self.id).and_then(|n| n.uplink);
        for frame in self.pending.drain(..) {
            match uplink {
                Some(wire) => net.transmit(wire, frame),
                None => {
                    self.stats.tx_dropped += 1;
                    net.pool.give(frame);
                }
            }
        }
        Ok(())
    }

    /// A simulated port hears everything its wire carries.
    fn join(&mut self, _group: Gid) -> io::Result<()> {
        Ok(())
    }

    /// Returns at once: only the driver moves the clock.
    fn wait(&mut self, _timeout: Option<Duration>) -> io::Result<()> {
        Ok(())
    }

    fn stats(&mut self) -> PortStats {
        let net = self.shared.net.borrow();
        self.stats.rx_dropped = net.nics.get(self.id).map_or(0, |n| n.rx_dropped);
        self.stats
    }
}

impl Drop for SimPort {
    fn drop(&mut self) {
        if let Some(nic) = self.shared.net.borrow_mut().nics.get_mut(self.id) {
            nic.close();
        }
    }
}

impl Inner {
    /// As the receiver sees it.
    pub(super) fn as_rx(&self, link: Link) -> Rx<'_> {
        let Meta {
            src,
            dst,
            src_port,
            tos,
        } = self.meta;
        match link {
            Link::Ethernet => Rx::Ethernet(self.bytes()),
            Link::Udp => Rx::Udp(
                UdpMeta {
                    src,
                    dst,
                    src_port,
                    tos,
                    hop_limit: None,
                },
                self.bytes(),
            ),
        }
    }
}
