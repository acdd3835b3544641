//! The port between an engine and its link.
//!
//! The engine has one transmit queue, the link eight. A frame's priority is known only when it is
//! committed, and by then it cannot be refused: so the NIC lends a frame only while every priority
//! could take one. A priority that is not paused may hold [`NicConfig::queue`] frames, so that work
//! waits in the engine, where congestion control sees it. One that is paused may hold
//! [`NicConfig::paused_queue`], so that the others go on meanwhile; if that is full too, the
//! paused priority blocks the host, as it does in hardware with shared queues.

use core::time::Duration;
use std::collections::VecDeque;
use std::io;

use xroce_api::PortStats;
use xroce_net::datapath::{Caps, Datapath, Link, Rx, TxMeta};

use crate::frame::{DscpMap, Frame, L2_BYTES, classify};

/// Queues of every host's port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NicConfig {
    /// Frames of a priority that may wait for the link, 2 ..= 4096.
    pub queue: usize,
    /// Frames of a paused priority that may wait, `queue` ..= 65536.
    pub paused_queue: usize,
    /// Frames that may wait to be received; beyond, they are dropped.
    pub rx_ring: usize,
    /// IP MTU, bytes.
    pub mtu: usize,
}

impl Default for NicConfig {
    /// 8 frames, 512 while paused, a receive ring of 4096, MTU 4200 (path MTU 4096).
    fn default() -> Self {
        Self {
            queue: 8,
            paused_queue: 512,
            rx_ring: 4096,
            mtu: 4200,
        }
    }
}

impl NicConfig {
    pub(crate) const fn max_frame(&self) -> usize {
        self.mtu + L2_BYTES
    }
}

/// A host's port. The simulation moves frames in and out between polls of the engine.
#[derive(Debug)]
pub struct NicPort {
    caps: Caps,
    map: DscpMap,
    lent: Option<Frame>,
    /// Frames to write into.
    pub(crate) spare: Vec<Frame>,
    /// Committed in this poll.
    pub(crate) out: Vec<Frame>,
    /// Arrived and not received.
    pub(crate) rx: VecDeque<Frame>,
    rx_ring: usize,
    /// Frames that may still be committed.
    pub(crate) room: usize,
    /// The engine wanted more room.
    pub(crate) refused: bool,
    stats: PortStats,
}

impl NicPort {
    pub(crate) fn new(name: String, config: &NicConfig, map: DscpMap) -> Self {
        let caps = Caps {
            link: Link::Ethernet,
            mtu: config.mtu,
            max_frame: config.max_frame(),
            name,
        };
        Self {
            caps,
            map,
            lent: None,
            spare: Vec::new(),
            out: Vec::new(),
            rx: VecDeque::new(),
            rx_ring: config.rx_ring,
            room: 0,
            refused: false,
            stats: PortStats::default(),
        }
    }

    /// A frame arrives; given back if the ring is full.
    pub(crate) fn arrive(&mut self, frame: Frame) -> Result<(), Frame> {
        if self.rx.len() >= self.rx_ring {
            self.stats.rx_dropped += 1;
            return Err(frame);
        }
        self.rx.push_back(frame);
        Ok(())
    }
}

impl Datapath for NicPort {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn rx_burst(&mut self, budget: usize, each: &mut impl FnMut(Rx<'_>)) -> io::Result<usize> {
        let mut count = 0;
        while count < budget {
            let Some(frame) = self.rx.pop_front() else {
                break;
            };
            count += 1;
            self.stats.rx_frames += 1;
            self.stats.rx_bytes += frame.len();
            each(frame.as_rx());
            self.spare.push(frame);
        }
        Ok(count)
    }

    fn tx_begin(&mut self) -> Option<&mut [u8]> {
        if self.lent.is_none() {
            if self.room == 0 {
                self.refused = true;
                self.stats.tx_full += 1;
                return None;
            }
            self.lent = self.spare.pop();
        }
        let max_frame = self.caps.max_frame;
        self.lent.as_mut()?.room().get_mut(..max_frame)
    }

    fn tx_commit(&mut self, _meta: &TxMeta, len: usize) {
        let Some(mut frame) = self.lent.take() else {
            debug_assert!(false, "tx_commit without tx_begin");
            return;
        };
        frame.set_len(len);
        let Some(tag) = classify(frame.bytes(), &self.map) else {
            debug_assert!(false, "an engine sends RoCE frames to hosts of the fabric");
            self.stats.tx_dropped += 1;
            self.spare.push(frame);
            return;
        };
        *frame.tag_mut() = tag;
        self.room = self.room.saturating_sub(1);
        self.stats.tx_frames += 1;
        self.stats.tx_bytes += frame.len();
        self.out.push(frame);
    }

    /// The simulation takes what was committed after the poll.
    fn tx_flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Only the simulation moves the clock.
    fn wait(&mut self, _timeout: Option<Duration>) -> io::Result<()> {
        Ok(())
    }

    fn stats(&mut self) -> PortStats {
        self.stats
    }
}
