//! In-memory network under a virtual clock, deterministic by seed.
//!
//! Production engines run over a [`SimPort`] as over any other [`Datapath`]; nothing here reads
//! a clock or a random source of the system. A driver owns a [`SimNet`] and turns the crank:
//!
//! ```
//! use xroce_net::datapath::{Datapath, Rx, TxMeta};
//! use xroce_net::sim::{Impairment, SimNet};
//! # use xroce_wire::newtypes::Gid;
//! let net = SimNet::new(42);
//! let (mut a, mut b) = net.pair(Impairment::delay(5_000), Impairment::delay(5_000));
//! let frame = a.tx_begin().unwrap();
//! frame[..60].fill(7);
//! a.tx_commit(&TxMeta { dst: Gid::default(), tos: 0 }, 60);
//! a.tx_flush().unwrap();
//! while let Some(at) = net.next_event() {
//!     net.advance_to(at); // then poll every engine with now = at, then their timers
//! }
//! let mut got = 0;
//! b.rx_burst(32, &mut |rx| if let Rx::Ethernet(f) = rx { got += f.len() }).unwrap();
//! assert_eq!((got, net.now()), (60, 5_000));
//! ```
//!
//! Two ports on one wire ([`SimNet::pair`], [`SimNet::connect`]), or many on switches
//! ([`SimNet::switch`], [`SimNet::attach`]). Each direction of a link has its own
//! [`Impairment`], filter and counters, all changeable while running. Wires without impairment
//! hand frames over at once, by moving a pointer. For a benchmark that wants nothing but two
//! ports there is the smaller [`LoopPort`].
//!
//! [`Datapath`]: crate::datapath::Datapath

use std::cell::{Cell, RefCell};
use std::rc::Rc;

mod frame;
mod impair;
mod net;
mod pair;
mod port;
mod rng;
mod switch;
#[cfg(test)]
mod tests;
mod wire;

pub use impair::{
    Impairment, Red, TRUNCATE_ONE_IN, WIRE_OVERHEAD_ETHERNET, WIRE_OVERHEAD_UDP, mark_ethernet_ce,
};
pub use pair::{LoopConfig, LoopPort, loop_pair};
pub use port::{PortConfig, SimPort};
pub use rng::Rng;
pub use wire::{Fate, Verdict, WireStats};

use frame::L2_BYTES;
use net::{Net, Nic};
use switch::{Switch, mac_key};
use wire::{End, Wire};
use xroce_wire::newtypes::{Gid, MacAddr};

use crate::datapath::Link;

/// Links a frame may cross; a loop of switches ends here.
pub const MAX_HOPS: u8 = 32;

/// One direction of a link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct WireId(usize);

/// A link: two directions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LinkId {
    /// From the first end to the second; to the switch for an attached port.
    pub there: WireId,
    /// From the second end to the first; from the switch for an attached port.
    pub back: WireId,
}

/// A switch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SwitchId(usize);

/// What a tap sees of a frame.
#[derive(Clone, Copy, Debug)]
pub struct TapEvent<'a> {
    /// Virtual time, ns.
    pub now: u64,
    /// On which wire.
    pub wire: WireId,
    /// What happened.
    pub fate: Fate,
    /// TOS byte beside the frame on a [`Link::Udp`] network.
    pub tos: u8,
    /// The bytes: for [`Fate::Sent`] as sent, for [`Fate::Delivered`] as they arrive.
    pub frame: &'a [u8],
}

/// The clock stands beside the network: closures run while the network is busy and may read it.
#[derive(Debug)]
struct Shared {
    clock: Rc<Cell<u64>>,
    net: RefCell<Net>,
}

/// A handle to one simulated network; clones are the same network. Single-threaded.
#[derive(Clone, Debug)]
pub struct SimNet {
    shared: Rc<Shared>,
    seed: u64,
}

impl SimNet {
    /// An Ethernet network. All chance comes from `seed`: print it, and the same calls replay.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_link(seed, Link::Ethernet)
    }

    /// A network whose frames start with what `link` says.
    #[must_use]
    pub fn with_link(seed: u64, link: Link) -> Self {
        let clock = Rc::new(Cell::new(0));
        let net = RefCell::new(Net::new(seed, link, Rc::clone(&clock)));
        Self {
            shared: Rc::new(Shared { clock, net }),
            seed,
        }
    }

    /// Two Ethernet ports and no delay: what is flushed on one side can be received on the
    /// other at once.
    #[must_use]
    pub fn direct() -> (SimPort, SimPort) {
        Self::new(0).pair(Impairment::default(), Impairment::default())
    }

    /// The seed it was made with.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Virtual time in nanoseconds since the start. May be called from filters and taps.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.shared.clock.get()
    }

    /// When something happens next, not earlier than now: a frame arrives somewhere, or a port
    /// whose `tx_begin` was refused has room again. Frames that wait in a port's receive ring
    /// have arrived and are no event.
    #[must_use]
    pub fn next_event(&self) -> Option<u64> {
        let now = self.now();
        self.shared
            .net
            .borrow_mut()
            .next_event()
            .map(|at| at.max(now))
    }

    /// Moves the clock to `t`, and every frame that arrives by then. A `t` in the past moves
    /// nothing.
    pub fn advance_to(&self, t: u64) {
        self.shared.net.borrow_mut().advance_to(t);
    }

    /// Frame arrivals simulated so far, the measure of the simulator's own speed.
    #[must_use]
    pub fn events_processed(&self) -> u64 {
        self.shared.net.borrow().processed()
    }

    /// Frame buffers made so far: constant after warm-up.
    #[must_use]
    pub fn buffers_made(&self) -> usize {
        self.shared.net.borrow().pool.made()
    }

    /// Has `frames` idle frame buffers ready; call it after the ports are made.
    pub fn reserve(&self, frames: usize) {
        self.shared.net.borrow_mut().pool.reserve(frames);
    }

    /// Draws from the network's generator, for a test that wants one source of chance.
    #[must_use]
    pub fn fork_rng(&self) -> Rng {
        self.shared.net.borrow_mut().rng.fork()
    }

    /// A port that is not connected yet.
    #[must_use]
    pub fn port(&self, cfg: &PortConfig) -> SimPort {
        let mut net = self.shared.net.borrow_mut();
        let max_frame = cfg.mtu + L2_BYTES;
        net.pool.require(max_frame);
        net.nics.push(Nic::new(max_frame, cfg.rx_ring));
        SimPort::new(
            Rc::clone(&self.shared),
            net.nics.len() - 1,
            net.pool.link(),
            cfg,
        )
    }

    /// Two ports (default configuration, names "sim 0", "sim 1", addresses 10.0.0.1 and .2)
    /// with a link between them.
    #[must_use]
    pub fn pair(&self, there: Impairment, back: Impairment) -> (SimPort, SimPort) {
        let a = self.port(&PortConfig::numbered(0));
        let b = self.port(&PortConfig::numbered(1));
        self.connect(&a, &b, there, back);
        (a, b)
    }

    /// A link between two ports. A port has one link; a second call moves it.
    pub fn connect(&self, a: &SimPort, b: &SimPort, there: Impairment, back: Impairment) -> LinkId {
        let mut net = self.shared.net.borrow_mut();
        let link = add_link(&mut net, End::Port(a.id()), End::Port(b.id()), there, back);
        set_uplink(&mut net, a.id(), link.there);
        set_uplink(&mut net, b.id(), link.back);
        link
    }

    /// A switch without ports. It learns where addresses are and floods unknown ones; several
    /// switches must form a tree, unless [`SimNet::set_route`] decides.
    #[must_use]
    pub fn switch(&self) -> SwitchId {
        let mut net = self.shared.net.borrow_mut();
        net.switches.push(Switch::default());
        SwitchId(net.switches.len() - 1)
    }

    /// A link from a port to a new port of a switch (`there` up, `back` down).
    pub fn attach(
        &self,
        port: &SimPort,
        to: SwitchId,
        there: Impairment,
        back: Impairment,
    ) -> LinkId {
        let mut net = self.shared.net.borrow_mut();
        let n = net.switches.get(to.0).map_or(0, |s| s.outs.len());
        let end = End::Switch {
            switch: to.0,
            port: n,
        };
        let link = add_link(&mut net, End::Port(port.id()), end, there, back);
        set_uplink(&mut net, port.id(), link.there);
        add_out(&mut net, to, link.back);
        link
    }

    /// A link between two switches.
    pub fn trunk(&self, a: SwitchId, b: SwitchId, there: Impairment, back: Impairment) -> LinkId {
        let mut net = self.shared.net.borrow_mut();
        let port_of = |net: &Net, s: SwitchId| net.switches.get(s.0).map_or(0, |s| s.outs.len());
        let end_a = End::Switch {
            switch: a.0,
            port: port_of(&net, a),
        };
        let end_b = End::Switch {
            switch: b.0,
            port: port_of(&net, b),
        };
        let link = add_link(&mut net, end_a, end_b, there, back);
        add_out(&mut net, a, link.there);
        add_out(&mut net, b, link.back);
        link
    }

    /// Tells a switch where a MAC address is: behind `out`, one of the wires that leave it.
    pub fn set_station(&self, switch: SwitchId, mac: MacAddr, out: WireId) {
        self.set_key(switch, mac_key(mac.bytes()), out);
    }

    /// The same for an address of a [`Link::Udp`] network.
    pub fn set_station_gid(&self, switch: SwitchId, gid: Gid, out: WireId) {
        self.set_key(switch, gid.bytes(), out);
    }

    fn set_key(&self, switch: SwitchId, key: switch::Key, out: WireId) {
        let mut net = self.shared.net.borrow_mut();
        if let Some(s) = net.switches.get_mut(switch.0)
            && let Some(port) = s.outs.iter().position(|&w| w == out.0)
        {
            s.set(key, port);
        }
    }

    /// Lets `route` choose the way at a switch: given the number of the incoming port (ports
    /// count from 0 in the order of attachment) and the frame, it returns the outgoing port, or
    /// `None` to leave it to the table. For topologies with several paths.
    pub fn set_route(
        &self,
        switch: SwitchId,
        route: impl FnMut(usize, &[u8]) -> Option<usize> + 'static,
    ) {
        if let Some(s) = self.shared.net.borrow_mut().switches.get_mut(switch.0) {
            s.route = Some(Box::new(route));
        }
    }

    /// The impairment of a wire.
    #[must_use]
    pub fn impairment(&self, wire: WireId) -> Impairment {
        self.shared
            .net
            .borrow()
            .wires
            .get(wire.0)
            .map(Wire::imp)
            .unwrap_or_default()
    }

    /// Changes the impairment of a wire, for frames sent from now on.
    pub fn set_impairment(&self, wire: WireId, imp: Impairment) {
        self.with_wire(wire, |w| w.set_imp(imp));
    }

    /// Loses every frame sent on `wire` at a time in `from .. to`. Several windows add up.
    pub fn add_blackhole(&self, wire: WireId, from: u64, to: u64) {
        self.with_wire(wire, |w| w.add_blackhole(from, to));
    }

    /// Lets `filter` decide about each frame sent on `wire`, before anything else happens to
    /// it; it may change the bytes. It may call [`SimNet::now`] and nothing else of the network.
    pub fn set_filter(&self, wire: WireId, filter: impl FnMut(&mut [u8]) -> Verdict + 'static) {
        self.with_wire(wire, |w| w.set_filter(Some(Box::new(filter))));
    }

    /// Removes the filter.
    pub fn clear_filter(&self, wire: WireId) {
        self.with_wire(wire, |w| w.set_filter(None));
    }

    /// Shows `tap` everything that happens to every frame on every wire. The same rule as for
    /// filters. One tap; a second call replaces the first.
    pub fn set_tap(&self, tap: impl FnMut(&TapEvent<'_>) + 'static) {
        self.shared.net.borrow_mut().tap = Some(Box::new(tap));
    }

    /// Removes the tap.
    pub fn clear_tap(&self) {
        self.shared.net.borrow_mut().tap = None;
    }

    /// Counters of a wire.
    #[must_use]
    pub fn wire_stats(&self, wire: WireId) -> WireStats {
        self.shared
            .net
            .borrow()
            .wires
            .get(wire.0)
            .map(|w| w.stats)
            .unwrap_or_default()
    }

    /// Bytes that wait for the serialiser of a wire now.
    #[must_use]
    pub fn queue_bytes(&self, wire: WireId) -> u64 {
        let now = self.now();
        let mut net = self.shared.net.borrow_mut();
        net.wires.get_mut(wire.0).map_or(0, |w| w.queued_bytes(now))
    }

    fn with_wire(&self, wire: WireId, f: impl FnOnce(&mut Wire)) {
        if let Some(w) = self.shared.net.borrow_mut().wires.get_mut(wire.0) {
            f(w);
        }
    }
}

fn add_link(net: &mut Net, a: End, b: End, there: Impairment, back: Impairment) -> LinkId {
    net.wires.push(Wire::new(b, there));
    net.wires.push(Wire::new(a, back));
    LinkId {
        there: WireId(net.wires.len() - 2),
        back: WireId(net.wires.len() - 1),
    }
}

fn set_uplink(net: &mut Net, port: usize, wire: WireId) {
    if let Some(nic) = net.nics.get_mut(port) {
        nic.uplink = Some(wire.0);
    }
}

fn add_out(net: &mut Net, switch: SwitchId, wire: WireId) {
    if let Some(s) = net.switches.get_mut(switch.0) {
        s.outs.push(wire.0);
    }
}
