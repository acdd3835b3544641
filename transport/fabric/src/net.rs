//! Switches and links: everything between the ports of two hosts.

use xroce_net::sim::{Rng, mark_ethernet_ce};

use crate::buffer::{Admission, Buffer, BufferConfig, PAUSE_FRAME, Sharing, beside_headroom};
use crate::egress::{Order, Weights};
use crate::events::EventQueue;
use crate::frame::{Frame, Pool, mix, serialise};
use crate::lane::{Ends, Impairment, Lane, Node};
use crate::red::{MarkAt, Red};
use crate::route::{self, Routes};
use crate::topology::Topology;
use crate::units::{BitRate, Time};

/// Links a frame may cross; one that goes in circles while routes change ends here.
pub const HOPS_MAX: u8 = 16;

/// How a switch chooses among equally short ways.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Balance {
    /// By a hash of addresses and ports, seeded per switch: packets of a flow stay in order.
    #[default]
    Flow,
    /// At random for each packet.
    Spray,
    /// The port with the fewest bytes waiting, for each packet.
    Adaptive,
}

/// What all switches have in common.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SwitchConfig {
    /// The buffer, and PFC.
    pub buffer: BufferConfig,
    /// ECN marking, if any.
    pub red: Option<Red>,
    /// Shares of the priorities.
    pub weights: Weights,
    /// Who is next within a priority.
    pub order: Order,
    /// Choice among equal ways.
    pub balance: Balance,
    /// Time from a change of a link to new routes.
    pub reroute: Time,
}

/// Something that happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// Frames come out of a lane.
    Arrive(u32),
    /// A lane has sent what it was sending.
    Free(u32),
    /// A pause or its end reaches the other end of a lane.
    Pause {
        lane: u32,
        priority: u8,
        on: bool,
        epoch: u8,
    },
    /// The engine of a host wants to be polled.
    Poll(u32),
    /// The next flow in the list is due.
    Start,
    /// The next fault in the list is due.
    Fault,
    /// Routes follow the links.
    Reroute,
    /// Time for a sample.
    Sample,
    /// Counters of links and queues start over.
    Warm,
    /// The run stops here.
    Stop,
}

/// Where all frames are, or what became of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Census {
    /// Sent by hosts.
    pub sent: u64,
    /// Handed to hosts.
    pub delivered: u64,
    /// Dropped for want of buffer.
    pub dropped_buffer: u64,
    /// Of those, frames of lossless priorities: headroom was too small.
    pub dropped_lossless: u64,
    /// Lost at random on a link.
    pub dropped_wire: u64,
    /// Lost because a link was down.
    pub dropped_link_down: u64,
    /// Dropped because no way was known, or the frame went in circles.
    pub dropped_no_route: u64,
    /// Dropped by a full receive ring.
    pub dropped_ring: u64,
    /// In queues and on links.
    pub in_flight: u64,
}

impl Census {
    /// All frames that were lost, whatever the reason.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.dropped_buffer
            + self.dropped_wire
            + self.dropped_link_down
            + self.dropped_no_route
            + self.dropped_ring
    }

    /// Nothing came from nowhere, nothing vanished.
    #[must_use]
    pub const fn is_conserved(&self) -> bool {
        self.sent == self.delivered + self.lost() + self.in_flight
    }
}

/// A switch.
#[derive(Debug)]
pub(crate) struct Switch {
    /// Lanes that leave it, by port.
    pub(crate) out: Vec<u32>,
    pub(crate) buffer: Buffer,
    routes: Routes,
    seed: u64,
    rng: Rng,
}

/// All links and switches.
#[derive(Debug)]
pub(crate) struct Net {
    pub(crate) now: Time,
    pub(crate) events: EventQueue<Event>,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) switches: Vec<Switch>,
    pub(crate) pool: Pool,
    pub(crate) census: Census,
    /// Frames enqueued, dequeued and arrived, at hops and hosts.
    pub(crate) packet_events: u64,
    hosts: usize,
    red: Option<Red>,
    balance: Balance,
}

/// Headroom leaves a switch, or a port of one, nothing to store frames in.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the buffer of {owner} is {total} bytes, headroom alone takes {headroom}: give it more buffer, \
     fewer lossless priorities or less headroom"
)]
pub struct NoBuffer {
    /// Whose it is.
    pub owner: String,
    /// Bytes it has.
    pub total: u64,
    /// Bytes that headroom takes.
    pub headroom: u64,
}

impl NoBuffer {
    fn of(config: &BufferConfig, switch: &str, headroom: u64) -> Self {
        let owner = match config.sharing {
            Sharing::Switch => format!("switch {switch}"),
            Sharing::Port => format!("a port of switch {switch}"),
        };
        Self {
            owner,
            total: config.total,
            headroom,
        }
    }
}

impl Net {
    pub(crate) fn new(
        topology: &Topology,
        config: &SwitchConfig,
        seed: u64,
        max_frame: usize,
    ) -> Result<Self, NoBuffer> {
        let mut rng = Rng::new(seed);
        let (lanes, out) = lanes(topology, (config.weights, config.order), &mut rng);
        let mut switches = Vec::with_capacity(out.len());
        for (out, name) in out.iter().zip(&topology.switches) {
            let speed = |&lane: &u32| {
                let lane = &lanes[lane as usize];
                (lane.rate, lane.delay)
            };
            let ports: Vec<(BitRate, Time)> = out.iter().map(speed).collect();
            let buffer = Buffer::new(&config.buffer, &ports)
                .map_err(|headroom| NoBuffer::of(&config.buffer, name, headroom))?;
            switches.push(Switch {
                out: out.clone(),
                buffer,
                routes: Routes::default(),
                seed: rng.next_u64(),
                rng: rng.fork(),
            });
        }
        let mut net = Self {
            now: Time::ZERO,
            events: EventQueue::new(),
            lanes,
            switches,
            pool: Pool::new(max_frame),
            census: Census::default(),
            packet_events: 0,
            hosts: topology.hosts.len(),
            red: config.red,
            balance: config.balance,
        };
        net.reroute();
        Ok(net)
    }

    /// Lets all switches know of all links.
    pub(crate) fn reroute(&mut self) {
        let out: Vec<Vec<u32>> = self.switches.iter().map(|s| s.out.clone()).collect();
        let routes = route::compute(&self.lanes, &out, self.hosts);
        for (switch, routes) in self.switches.iter_mut().zip(routes) {
            switch.routes = routes;
        }
    }

    /// The first of the ports of a switch that lead to a host.
    pub(crate) fn next_hop(&self, switch: u32, host: u32) -> Option<&Lane> {
        let switch = &self.switches[switch as usize];
        let port = switch.routes.ports(host).first()?;
        Some(&self.lanes[switch.out[usize::from(*port)] as usize])
    }

    #[inline]
    pub(crate) fn at(&mut self, at: Time, event: Event) {
        self.events.push(at.ps(), event);
    }

    /// A host sends a frame.
    pub(crate) fn send(&mut self, lane: u32, frame: Frame) {
        self.census.sent += 1;
        if !self.lanes[lane as usize].up {
            self.lose_to_outage(lane, frame);
            return;
        }
        self.packet_events += 1;
        self.lanes[lane as usize].enqueue(frame, self.now);
        self.transmit(lane);
    }

    /// Begins to send the next frame of a lane, if it is idle.
    pub(crate) fn transmit(&mut self, id: u32) {
        let now = self.now;
        let lane = &mut self.lanes[id as usize];
        if lane.busy || !lane.up {
            return;
        }
        if let Some((priority, on)) = lane.control.pop_front() {
            let end = now + serialise(lane.rate, PAUSE_FRAME);
            let there = end + lane.delay;
            lane.busy = true;
            lane.stats.busy += end - now;
            let epoch = lane.epoch;
            self.at(end, Event::Free(id));
            self.at(
                there,
                Event::Pause {
                    lane: id,
                    priority,
                    on,
                    epoch,
                },
            );
            return;
        }
        let Some(mut frame) = lane.dequeue(now) else {
            return;
        };
        self.packet_events += 1;
        let (tag, len) = (*frame.tag(), frame.len());
        let end = now + serialise(lane.rate, len);
        let there = (end + lane.delay).ps();
        lane.busy = true;
        lane.stats.busy += end - now;
        lane.stats.frames += 1;
        lane.stats.bytes += len;
        let from = lane.from;
        if let Node::Switch(_) = from {
            mark(&self.red, MarkAt::Dequeue, lane, &mut frame);
        }
        frame.tag_mut().hops = tag.hops + 1;
        self.events.push(end.ps(), Event::Free(id));
        let events = &mut self.events;
        let lost = lane.launch(frame, there, &mut |at| events.push(at, Event::Arrive(id)));
        if let Some(frame) = lost {
            self.census.dropped_wire += 1;
            self.pool.give(frame);
        }
        if let Node::Switch(s) = from {
            self.release(s, tag.ingress, tag.priority, len);
        }
    }

    fn release(&mut self, switch: u32, port: u16, priority: u8, len: u64) {
        let switch = &mut self.switches[switch as usize];
        if switch.buffer.release(port, priority, len) {
            let back = switch.out[usize::from(port)];
            self.signal(back, priority, false);
        }
    }

    /// Sends a pause, or its end, along a lane to the node at its end.
    pub(crate) fn signal(&mut self, lane: u32, priority: u8, on: bool) {
        let l = &mut self.lanes[lane as usize];
        if l.up {
            l.control.push_back((priority, on));
            self.transmit(lane);
        }
    }

    /// A pause, or its end, has crossed `lane`: it is about the opposite direction, which is
    /// returned.
    pub(crate) fn paused(&mut self, lane: u32, priority: u8, on: bool, epoch: u8) -> u32 {
        let opposite = lane ^ 1;
        let now = self.now;
        if self.lanes[lane as usize].epoch != epoch {
            // The link has been down since: lost with everything else.
            return opposite;
        }
        let l = &mut self.lanes[opposite as usize];
        if l.up {
            l.set_paused(priority, on, now);
            if !on {
                self.transmit(opposite);
            }
        }
        opposite
    }

    /// A frame has come into a switch.
    pub(crate) fn forward(&mut self, switch: u32, port: u16, mut frame: Frame) {
        self.packet_events += 1;
        let tag = *frame.tag();
        let s = &mut self.switches[switch as usize];
        let ports = s.routes.ports(tag.dst);
        if ports.is_empty() || tag.hops >= HOPS_MAX {
            self.census.dropped_no_route += 1;
            self.pool.give(frame);
            return;
        }
        let chosen = match (ports, self.balance) {
            ([only], _) => *only,
            (ports, Balance::Flow) => ports[scale(mix(tag.hash ^ s.seed), ports.len())],
            (ports, Balance::Spray) => ports[s.rng.index(ports.len())],
            (ports, Balance::Adaptive) => {
                let waiting =
                    |p: &&u16| self.lanes[s.out[usize::from(**p)] as usize].egress.bytes();
                ports.iter().min_by_key(waiting).map_or(ports[0], |p| *p)
            }
        };
        let out = s.out[usize::from(chosen)];
        if !self.lanes[out as usize].up {
            self.lose_to_outage(out, frame);
            return;
        }
        let queued = self.lanes[out as usize].egress.bytes_of(tag.priority);
        let admission = s.buffer.admit(port, tag.priority, frame.len(), queued);
        let back = s.out[usize::from(port)];
        let (Admission::Stored { pause } | Admission::Refused { pause }) = admission;
        if pause {
            self.signal(back, tag.priority, true);
        }
        if let Admission::Refused { .. } = admission {
            self.census.dropped_buffer += 1;
            let lossless = self.switches[switch as usize]
                .buffer
                .is_lossless(tag.priority);
            self.census.dropped_lossless += u64::from(lossless);
            self.lanes[out as usize].stats.dropped += 1;
            self.pool.give(frame);
            return;
        }
        frame.tag_mut().ingress = port;
        let lane = &mut self.lanes[out as usize];
        mark(&self.red, MarkAt::Enqueue, lane, &mut frame);
        lane.enqueue(frame, self.now);
        self.transmit(out);
    }

    fn lose_to_outage(&mut self, lane: u32, frame: Frame) {
        self.census.dropped_link_down += 1;
        self.lanes[lane as usize].stats.down += 1;
        self.pool.give(frame);
    }

    /// Takes a lane down or up. The caller does both directions.
    pub(crate) fn set_up(&mut self, id: u32, up: bool) {
        let now = self.now;
        let lane = &mut self.lanes[id as usize];
        if lane.up == up {
            return;
        }
        if up {
            lane.up = true;
            self.transmit(id);
            return;
        }
        for frame in lane.cut(now) {
            self.census.dropped_link_down += 1;
            self.pool.give(frame);
        }
        let (from, port) = (lane.from, lane.from_port);
        while let Some(frame) = self.lanes[id as usize].pop_any(now) {
            let (tag, len) = (*frame.tag(), frame.len());
            self.lose_to_outage(id, frame);
            if let Node::Switch(s) = from {
                self.release(s, tag.ingress, tag.priority, len);
            }
        }
        if let Node::Switch(s) = from {
            self.switches[s as usize].buffer.forget_pauses(port);
        }
    }

    /// Changes what a lane does to frames, and its rate.
    pub(crate) fn set_wire(&mut self, id: u32, rate: Option<BitRate>, impairment: Impairment) {
        let lane = &mut self.lanes[id as usize];
        lane.rate = rate.unwrap_or(lane.rate);
        lane.impairment = impairment;
    }

    /// Where all frames are now. Those in receive rings were delivered already.
    pub(crate) fn census(&self) -> Census {
        let inside = self
            .lanes
            .iter()
            .map(|l| l.egress.frames() + l.on_the_wire());
        Census {
            in_flight: inside.sum::<usize>() as u64,
            ..self.census
        }
    }
}

/// Marks a packet if the queue it leaves or enters says so.
fn mark(red: &Option<Red>, at: MarkAt, lane: &mut Lane, frame: &mut Frame) {
    let Some(red) = red.as_ref().filter(|r| r.at == at) else {
        return;
    };
    let priority = frame.tag().priority;
    let queued = lane.egress.bytes_of(priority);
    if red.marks(priority, queued, &mut lane.rng) && mark_ethernet_ce(frame.bytes_mut()) {
        lane.stats.marked += 1;
    }
}

/// Maps a hash to an index below `n`.
#[allow(
    clippy::cast_possible_truncation,
    reason = "the upper half of a product is below n"
)]
const fn scale(hash: u64, n: usize) -> usize {
    ((hash as u128 * n as u128) >> 64) as usize
}

/// Whether every switch has a buffer beside headroom.
///
/// # Errors
/// The first that has none.
pub(crate) fn check_buffers(topology: &Topology, config: &SwitchConfig) -> Result<(), NoBuffer> {
    let mut ports = vec![Vec::new(); topology.switches.len()];
    for link in &topology.links {
        for end in [link.a, link.b] {
            if let Node::Switch(s) = end {
                ports[s as usize].push((link.rate, link.delay));
            }
        }
    }
    for (ports, name) in ports.iter().zip(&topology.switches) {
        beside_headroom(&config.buffer, ports)
            .map_err(|headroom| NoBuffer::of(&config.buffer, name, headroom))?;
    }
    Ok(())
}

/// The lanes of all links, the two of a link next to each other, and those that leave each switch.
fn lanes(
    topology: &Topology,
    (weights, order): (Weights, Order),
    rng: &mut Rng,
) -> (Vec<Lane>, Vec<Vec<u32>>) {
    let mut out = vec![Vec::new(); topology.switches.len()];
    let mut lanes = Vec::with_capacity(topology.links.len() * 2);
    for link in &topology.links {
        let mut port = |node: Node, lane: usize| match node {
            Node::Host(_) => 0,
            Node::Switch(s) => {
                let out: &mut Vec<u32> = &mut out[s as usize];
                out.push(u32::try_from(lane).unwrap_or(u32::MAX));
                u16::try_from(out.len() - 1).unwrap_or(u16::MAX)
            }
        };
        let first = lanes.len();
        let ports = [port(link.a, first), port(link.b, first + 1)];
        for (from, to, from_port, to_port) in [
            (link.a, link.b, ports[0], ports[1]),
            (link.b, link.a, ports[1], ports[0]),
        ] {
            let ends = Ends {
                from,
                to,
                from_port,
                to_port,
            };
            // Whatever a host sends has come by no port.
            let order = match from {
                Node::Host(_) => Order::Arrival,
                Node::Switch(_) => order,
            };
            let queues = (weights, order);
            lanes.push(Lane::new(ends, link.rate, link.delay, queues, rng.fork()));
        }
    }
    (lanes, out)
}
