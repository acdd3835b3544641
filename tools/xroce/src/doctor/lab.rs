//! One side at work: its port, the way to the other side, and the side channel.
//!
//! Probes go through the port itself; the engine on it is not polled meanwhile, so nothing else is
//! sent. A side that has nothing to receive sleeps: it must not take the processor from whoever
//! carries the packets.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::time::Duration as StdDuration;

use anyhow::{Context, Result, anyhow, bail};
use xroce_engine::clock;
use xroce_net::addressing::PathEvent;
use xroce_net::datapath::{Datapath, Link, TxMeta};
use xroce_net::neigh;
use xroce_proto::time::{Duration, Instant};
use xroce_wire::newtypes::{Gid, Qpn};
use xroce_wire::path::AddressVector;

use super::message::{ADDRESSES_MAX, End, Heard, ICMP_MAX, Message, Sent, Way};
use super::probe::{self, Arrival, Stamp, Writer};
use super::train::{Carrier, Tally, Train};
use crate::perf::device::Device;
use crate::perf::device::node::Node;
use crate::perf::peer::channel::Channel;
use crate::perf::peer::conversation::unexpected;
use crate::perf::peer::message::one_line;
use crate::stop;

/// Packets sent at once: a small part of any receive ring.
const BURST: u32 = 16;
/// Frames taken at once.
const TAKE: usize = 64;
/// The side channel is looked at this often.
const LOOK: Duration = Duration::from_millis(1);
/// Sleep while there is nothing to do.
const NAP: StdDuration = StdDuration::from_millis(1);
/// A train is over when nothing has come for so long since all of it was sent.
const QUIET: Duration = Duration::from_millis(250);
/// Sending a train is given up after this time: a machine that is too slow for it sends less.
const SENDING: Duration = Duration::from_millis(4_000);
/// So long after a train routers may still complain about it.
const COMPLAINTS: StdDuration = StdDuration::from_millis(20);
/// The other side has this long to send a train.
const COMING: Duration = Duration::from_millis(12_000);
/// Times in a row that a port without a free frame is given a [`NAP`].
const FULL_MAX: u32 = 200;

/// One side.
pub(crate) struct Lab<'a, D: Datapath> {
    /// Its engine and port.
    pub node: &'a mut Node<D>,
    /// The way to talk.
    pub channel: &'a mut Channel<Message>,
    /// Number of the run.
    pub run: u64,
    /// The other side, once it has said hello.
    pub peer: Option<End>,
    /// Datagrams beside RoCE.
    other: UdpSocket,
    own: End,
    path: Option<AddressVector>,
    icmp: Vec<String>,
    looked: Instant,
    inbox: Option<Message>,
}

impl<'a, D: Datapath> Lab<'a, D> {
    /// At a port that is open.
    ///
    /// # Errors
    /// There is no socket for ordinary datagrams.
    pub(crate) fn new(
        node: &'a mut Node<D>,
        channel: &'a mut Channel<Message>,
        run: u64,
    ) -> Result<Self> {
        let local = node.local();
        let scope = node.entry().map_or(0, |e| e.ifindex);
        let other = UdpSocket::bind(socket_addr(local, 0, scope))
            .with_context(|| format!("a UDP socket at {local}"))?;
        other.set_nonblocking(true)?;
        let addresses = node.addressing().gids().iter();
        let addresses = addresses.map(|(_, e)| e.gid.ip().to_canonical());
        let addresses = addresses.take(ADDRESSES_MAX).collect();
        // Any number does: nobody but this side looks at it, the engine is not polled meanwhile.
        let qpn = 0x00f0_0000 | u32::try_from(run & 0xffff).unwrap_or(0);
        let ethernet = node.port().caps().link == Link::Ethernet;
        let own = End {
            gid: local,
            addresses,
            port: one_line(node.port_name()),
            ethernet,
            up: node.addressing().is_up(),
            link_mtu: u32::try_from(node.link_mtu()).unwrap_or(u32::MAX),
            queues: if ethernet { queues(scope) } else { 0 },
            qpn,
            other_port: other.local_addr()?.port(),
            trouble: None,
        };
        Ok(Self {
            node,
            channel,
            run,
            peer: None,
            other,
            own,
            path: None,
            icmp: Vec::new(),
            looked: Instant::from_nanos(0),
            inbox: None,
        })
    }

    /// This side as the other is told of it.
    pub(crate) const fn own(&self) -> &End {
        &self.own
    }

    fn peer(&self) -> Result<&End> {
        let nobody = || anyhow!("the other side has not said hello");
        self.peer.as_ref().ok_or_else(nobody)
    }

    /// A look at signals and the side channel, if it is time.
    fn turn(&mut self) -> Result<Instant> {
        let now = clock::now();
        if now.since(self.looked) >= LOOK {
            self.looked = now;
            stop::check()?;
            if self.inbox.is_none() {
                self.inbox = self.channel.poll(now)?;
            }
        }
        Ok(now)
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The conversation is over.
    pub(crate) fn say(&mut self, message: &Message) -> Result<()> {
        Ok(self.channel.send(message, clock::now())?)
    }

    /// The next message, whenever it comes. What arrives at the port meanwhile is thrown away, so
    /// that its ring stays empty.
    ///
    /// # Errors
    /// The conversation is over, or the port failed.
    pub(crate) fn listen(&mut self) -> Result<Message> {
        loop {
            self.turn()?;
            if let Some(message) = self.inbox.take() {
                return Ok(message);
            }
            self.drain()?;
            std::thread::sleep(NAP);
        }
    }

    fn drain(&mut self) -> Result<()> {
        let mut buffer = [0; 64];
        for _ in 0..TAKE {
            if self.node.port().rx_burst(TAKE, &mut |_| {})? == 0 {
                break;
            }
        }
        for _ in 0..TAKE {
            if self.other.recv_from(&mut buffer).is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Finds the way to the other side, sent with this traffic class from now on.
    ///
    /// # Errors
    /// There is no other side yet.
    pub(crate) fn resolve(&mut self) -> Result<Way> {
        let gid = self.peer()?.as_gid();
        match self.node.path(gid) {
            Ok(path) => {
                self.path = Some(path);
                Ok(if self.own.ethernet {
                    Way::Neighbour(path.dst_mac.to_string())
                } else {
                    Way::Kernel {}
                })
            }
            Err(e) => Ok(Way::None(one_line(&format!("{e:#}")))),
        }
    }

    /// Sends a train.
    ///
    /// # Errors
    /// The port failed, or the conversation is over.
    pub(crate) fn send(&mut self, train: &Train) -> Result<Sent> {
        self.complaints()?;
        self.icmp.clear();
        let mut sent = match (train.carrier, self.path) {
            (Carrier::OtherUdp, _) => self.send_datagrams(train)?,
            (Carrier::Roce, Some(path)) => self.send_probes(train, path)?,
            // Without a way nothing is sent, and the other side is told so.
            (Carrier::Roce, None) => Sent::default(),
        };
        std::thread::sleep(COMPLAINTS);
        self.complaints()?;
        sent.icmp = std::mem::take(&mut self.icmp);
        Ok(sent)
    }

    /// Hears what routers say about packets to the other side.
    fn complaints(&mut self) -> Result<()> {
        let to = self.peer()?.gid;
        let icmp = &mut self.icmp;
        self.node.events(&mut |event| {
            if let PathEvent::Icmp(error) = event
                && error.dst.to_canonical() == to
            {
                let text = error.to_string();
                if icmp.len() < ICMP_MAX && !icmp.contains(&text) {
                    icmp.push(text);
                }
            }
        })
    }

    fn send_probes(&mut self, train: &Train, path: AddressVector) -> Result<Sent> {
        let peer = self.peer()?;
        let (dst, qpn) = (peer.as_gid(), Qpn::new(peer.qpn));
        let path = AddressVector {
            traffic_class: train.class,
            ..path
        };
        let writer = Writer::new(self.node.port().caps().link, &path, qpn)?;
        let refused_before = self.node.port().stats().tx_dropped;
        let mut pace = Pace::new(train.rate);
        let mut packets = 0;
        for (number, payload) in train.payloads() {
            if number % BURST == 0 && !self.pause(&mut pace)? {
                break;
            }
            let stamp = Stamp {
                run: self.run,
                train: train.number,
                number,
            };
            let meta = TxMeta {
                dst,
                tos: train.class,
            };
            self.send_one(&writer, stamp, payload, &meta)?;
            packets = number + 1;
        }
        self.node.port().tx_flush()?;
        let refused = self.node.port().stats().tx_dropped;
        Ok(Sent {
            packets,
            refused: refused.saturating_sub(refused_before),
            src_port: path.src_port,
            hop_limit: self.own.ethernet.then_some(path.hop_limit),
            icmp: Vec::new(),
        })
    }

    fn send_one(
        &mut self,
        writer: &Writer,
        stamp: Stamp,
        payload: u32,
        meta: &TxMeta,
    ) -> Result<()> {
        for _ in 0..FULL_MAX {
            let port = self.node.port();
            if let Some(frame) = port.tx_begin() {
                let len = writer.write(frame, stamp, payload);
                let len =
                    len.ok_or_else(|| anyhow!("no frame for a payload of {payload} bytes"))?;
                port.tx_commit(meta, len);
                return Ok(());
            }
            port.tx_flush()?;
            std::thread::sleep(NAP);
        }
        bail!("{}: frames do not leave", self.node.port_name())
    }

    /// Lets go what is written and waits for the next burst; whether there is time for it.
    fn pause(&mut self, pace: &mut Pace) -> Result<bool> {
        self.node.port().tx_flush()?;
        let wait = pace.wait(clock::now());
        if wait > 0 {
            std::thread::sleep(StdDuration::from_nanos(wait));
        }
        let now = self.turn()?;
        if let Some(message) = self.inbox.take() {
            return Err(unexpected(&message, "nothing while a train is sent"));
        }
        pace.start(now);
        Ok(now.since(pace.began) < SENDING)
    }

    fn send_datagrams(&mut self, train: &Train) -> Result<Sent> {
        let scope = self.node.entry().map_or(0, |e| e.ifindex);
        let peer = self.peer()?;
        let to = socket_addr(peer.gid, peer.other_port, scope);
        let mut refused = 0;
        for (number, payload) in train.payloads() {
            let stamp = Stamp {
                run: self.run,
                train: train.number,
                number,
            };
            let mut bytes = vec![0; payload as usize];
            stamp.write(&mut bytes);
            refused += u64::from(self.other.send_to(&bytes, to).is_err());
            std::thread::sleep(NAP);
            self.turn()?;
        }
        Ok(Sent {
            packets: train.packets(),
            refused,
            src_port: self.own.other_port,
            hop_limit: None,
            icmp: Vec::new(),
        })
    }

    /// Counts what comes of a train, which the other side is told to send or has announced.
    ///
    /// # Errors
    /// The port failed, the other side does not send it, or the conversation is over.
    pub(crate) fn receive(&mut self, train: &Train, begin: &Message) -> Result<(Sent, Heard)> {
        self.drain()?;
        let dropped_before = self.node.port().stats().rx_dropped;
        self.say(begin)?;
        let mut tally = Tally::new(train, self.own.ethernet);
        let start = clock::now();
        let (mut sent, mut last): (Option<Sent>, _) = (None, start);
        loop {
            let now = self.turn()?;
            if self.take(train, &mut tally)? > 0 {
                last = now;
                continue;
            }
            match self.inbox.take() {
                Some(Message::Sent { sent: said }) if sent.is_none() => {
                    sent = Some(said.check(train)?);
                    last = now;
                }
                Some(message) => return Err(unexpected(&message, "sent")),
                None => {}
            }
            if let Some(sent) = &sent
                && (tally.packets() >= sent.packets || now.since(last) >= QUIET)
            {
                let dropped = self.node.port().stats().rx_dropped;
                let dropped = dropped.saturating_sub(dropped_before);
                return Ok((sent.clone(), tally.finish(sent, dropped)));
            }
            if now.since(start) >= COMING {
                bail!("the other side has not sent a train of probes in time");
            }
            self.node.port().wait(Some(NAP))?;
        }
    }

    /// Takes what is there; how many frames.
    fn take(&mut self, train: &Train, tally: &mut Tally) -> Result<usize> {
        let (run, number) = (self.run, train.number);
        let mut note = |stamp: Stamp, arrival: &Arrival| {
            if (stamp.run, stamp.train) == (run, number) {
                tally.note(stamp.number, arrival);
            }
        };
        match train.carrier {
            Carrier::Roce => Ok(self.node.port().rx_burst(TAKE, &mut |rx| {
                if let Some((stamp, arrival)) = probe::read(rx) {
                    note(stamp, &arrival);
                }
            })?),
            Carrier::OtherUdp => {
                let mut buffer = [0; 64];
                let (len, from) = match self.other.recv_from(&mut buffer) {
                    Ok(got) => got,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(0),
                    // An ICMP error about a datagram of this side.
                    Err(_) => return Ok(0),
                };
                let arrival = Arrival {
                    src: Gid::from(from.ip().to_canonical()),
                    src_port: from.port(),
                    class: 0,
                    hop_limit: None,
                    icrc_ok: true,
                };
                if let Some(stamp) = buffer.get(..len).and_then(Stamp::read) {
                    note(stamp, &arrival);
                }
                Ok(1)
            }
        }
    }
}

/// When bursts leave. One that is late does not make the next ones come faster.
#[derive(Debug)]
struct Pace {
    began: Instant,
    gap: Duration,
    next: Instant,
}

impl Pace {
    fn new(rate: u32) -> Self {
        let now = clock::now();
        let gap = u64::from(BURST) * 1_000_000_000 / u64::from(rate.max(1));
        Self {
            began: now,
            gap: Duration::from_nanos(gap),
            next: now,
        }
    }

    /// Nanoseconds to the next burst.
    fn wait(&self, now: Instant) -> u64 {
        self.next.since(now).as_nanos()
    }

    /// A burst begins.
    fn start(&mut self, now: Instant) {
        self.next = now + self.gap;
    }
}

/// Receive queues of an interface.
fn queues(index: u32) -> u32 {
    neigh::interface_by_index(index).map_or(0, |i| i.rx_queues)
}

/// An address of a socket; a link-local one is on the interface `scope`.
fn socket_addr(ip: IpAddr, port: u16, scope: u32) -> SocketAddr {
    let on_link = |ip: Ipv6Addr| ip.is_unicast_link_local();
    match ip {
        IpAddr::V6(v6) if on_link(v6) => SocketAddrV6::new(v6, port, 0, scope).into(),
        ip => SocketAddr::new(ip, port),
    }
}
