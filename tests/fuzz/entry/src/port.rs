//! A port whose frames wait in a queue for whoever holds the other handle.

use std::cell::{Ref, RefCell, RefMut};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use xroce_api::PortStats;
use xroce_net::datapath::{Caps, Datapath, Link, Rx, TxMeta};

/// Bytes of Ethernet headers with a tag.
const L2: usize = 18;

/// Frames of one direction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue(Rc<RefCell<VecDeque<Vec<u8>>>>);

impl Queue {
    pub(crate) fn borrow(&self) -> Ref<'_, VecDeque<Vec<u8>>> {
        self.0.borrow()
    }

    pub(crate) fn borrow_mut(&self) -> RefMut<'_, VecDeque<Vec<u8>>> {
        self.0.borrow_mut()
    }
}

/// The port.
#[derive(Debug)]
pub(crate) struct Port {
    caps: Caps,
    frame: Vec<u8>,
    /// What it sends goes here.
    out: Queue,
    /// What it receives waits here.
    inn: Queue,
    /// Frames in `out` at which it is full.
    room: usize,
    stats: PortStats,
}

impl Port {
    pub(crate) fn new(mtu: usize, room: usize, out: &Queue, inn: &Queue) -> Self {
        let max_frame = mtu + L2;
        Self {
            caps: Caps {
                link: Link::Ethernet,
                mtu,
                max_frame,
                name: String::from("fuzz"),
            },
            frame: vec![0; max_frame],
            out: out.clone(),
            inn: inn.clone(),
            room,
            stats: PortStats::default(),
        }
    }
}

impl Datapath for Port {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn rx_burst(&mut self, budget: usize, each: &mut impl FnMut(Rx<'_>)) -> io::Result<usize> {
        for n in 0..budget {
            let Some(frame) = self.inn.borrow_mut().pop_front() else {
                return Ok(n);
            };
            self.stats.rx_frames += 1;
            each(Rx::Ethernet(&frame));
        }
        Ok(budget)
    }

    fn tx_begin(&mut self) -> Option<&mut [u8]> {
        (self.out.borrow().len() < self.room).then_some(&mut self.frame[..])
    }

    fn tx_commit(&mut self, _meta: &TxMeta, len: usize) {
        self.stats.tx_frames += 1;
        self.out.borrow_mut().push_back(self.frame[..len].to_vec());
    }

    fn tx_flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn wait(&mut self, _timeout: Option<Duration>) -> io::Result<()> {
        Ok(())
    }

    fn join(&mut self, _group: xroce_wire::newtypes::Gid) -> io::Result<()> {
        Ok(())
    }

    fn stats(&mut self) -> PortStats {
        self.stats
    }
}
