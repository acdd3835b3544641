//! A stream of messages over a wire that loses and reorders: all arrive, and what it costs.

use std::fmt;

use xroce_net::sim::Impairment;
use xroce_proto::cc::{CongestionControl, Fixed, Rate};
use xroce_proto::counters::Counters;
use xroce_proto::qp::QpState;
use xroce_proto::recovery::{Reliability, SelectiveParams};
use xroce_proto::wc::WcStatus;
use xroce_proto::wr::SendOp;
use xroce_wire::newtypes::{PathMtu, Qpn};

use crate::common::{Setup, World, pattern};

/// What is streamed, and over what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    pub(crate) kind: Kind,
    /// Bytes of a message.
    pub(crate) len: u32,
    pub(crate) messages: u64,
    /// Messages posted at once.
    pub(crate) depth: u64,
    pub(crate) there: Impairment,
    pub(crate) back: Impairment,
    pub(crate) window: u32,
    pub(crate) reliability: Reliability,
    pub(crate) timeout: u8,
    pub(crate) seed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Send,
    Write,
    Read,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Send => "SEND",
            Self::Write => "WRITE",
            Self::Read => "READ",
        })
    }
}

/// How it went.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    /// Virtual time it took, ns.
    pub(crate) ns: u64,
    pub(crate) requester: Counters,
    pub(crate) responder: Counters,
}

impl Outcome {
    /// Payload bits per second.
    pub(crate) fn goodput(&self, stream: &Stream) -> f64 {
        let bits = stream.messages * u64::from(stream.len) * 8;
        bits as f64 * 1e9 / self.ns as f64
    }
}

pub(crate) const MTU: PathMtu = PathMtu::Mtu4096;

impl Stream {
    pub(crate) fn connect(&self, world: &mut World) -> [Qpn; 2] {
        let qpns = [0, 1].map(|host| {
            world.create_qp(host, |init| {
                init.max_send_wr = 512;
                init.max_recv_wr = 512;
            })
        });
        world.bring_up(qpns, MTU, [0xff_ff00, 0x12_3456], |_, attr| {
            if attr.state == Some(QpState::Rtr) {
                attr.reliability = Some(self.reliability);
            }
            if attr.state == Some(QpState::Rts) {
                attr.timeout = Some(self.timeout);
                let fixed = Fixed::new(Rate::UNLIMITED, self.window);
                attr.congestion = Some(CongestionControl::Fixed(fixed));
            }
        });
        qpns
    }

    fn post(&self, world: &mut World, qpns: [Qpn; 2], n: u64) {
        let slot = n % self.depth * u64::from(self.len);
        let half = world.hosts[0].region.len() as u64 / 2;
        let (va, rkey) = (world.hosts[1].va(half + slot), world.hosts[1].mr.rkey);
        let op = match self.kind {
            Kind::Send => {
                let inbox = world.hosts[1].sge(half + slot, self.len);
                world.hosts[1].post_recv(qpns[1], n, &[inbox]);
                SendOp::Send
            }
            Kind::Write => SendOp::Write { va, rkey },
            Kind::Read => SendOp::Read { va, rkey },
        };
        let at = if self.kind == Kind::Read { half } else { 0 };
        let sge = world.hosts[0].sge(at + slot, self.len);
        world.hosts[0].post_send(qpns[0], n, op, &[sge]);
    }

    /// Streams all of it and checks that the last of every place arrived whole.
    pub(crate) fn run(&self) -> Outcome {
        let memory = 2 * self.depth as usize * self.len as usize;
        let setup = Setup {
            seed: self.seed,
            wires: [self.there, self.back],
            memory: memory.next_multiple_of(4096),
            tx_ring: 4096,
            ..Setup::default()
        };
        let mut world = setup.build();
        for (i, host) in world.hosts.iter().enumerate() {
            let bytes = pattern(self.seed ^ i as u64, host.region.len());
            host.region.write_at(0, &bytes).unwrap();
        }
        let qpns = self.connect(&mut world);
        let (mut posted, mut done) = (0, 0);
        let begun = world.net.now();
        let finished = world.run(60_000_000_000, |world| {
            for host in [0, 1] {
                for wc in world.hosts[host].completions() {
                    assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
                    if host == 0 {
                        assert_eq!(wc.wr_id, done, "out of order");
                        done += 1;
                    }
                }
            }
            let room = posted < self.messages && posted - done < self.depth;
            while posted < self.messages && posted - done < self.depth {
                self.post(world, qpns, posted);
                posted += 1;
            }
            if room {
                world.settle();
            }
            done == self.messages
        });
        let counters = [0, 1].map(|i| world.hosts[i].engine.qp_counters(qpns[i]).unwrap());
        assert!(finished, "{done} of {} done, {counters:#?}", self.messages);
        self.check_memory(&world);
        Outcome {
            ns: world.net.now() - begun,
            requester: counters[0],
            responder: counters[1],
        }
    }

    fn check_memory(&self, world: &World) {
        let half = world.hosts[0].region.len() as u64 / 2;
        let len = self.depth as usize * self.len as usize;
        let (source, target) = match self.kind {
            Kind::Read => (
                world.hosts[1].bytes(half, len),
                world.hosts[0].bytes(half, len),
            ),
            _ => (
                world.hosts[0].bytes(0, len),
                world.hosts[1].bytes(half, len),
            ),
        };
        assert!(source == target, "the memory differs");
    }
}

/// 100 Gb/s, 10 µs there and back.
pub(crate) fn wire(loss_ppm: u32) -> Impairment {
    Impairment {
        rate_bps: 100_000_000_000,
        loss_ppm,
        ..Impairment::delay(5_000)
    }
}

pub(crate) fn stream(kind: Kind, reliability: Reliability) -> Stream {
    Stream {
        kind,
        len: 64 << 10,
        messages: 400,
        depth: 64,
        there: wire(0),
        back: wire(0),
        window: 64,
        reliability,
        timeout: 14,
        seed: 1,
    }
}

pub(crate) fn selective() -> Reliability {
    Reliability::Selective(SelectiveParams::default())
}

#[test]
fn all_arrives_over_a_lossy_wire() {
    for kind in [Kind::Send, Kind::Write, Kind::Read] {
        for loss in [0, 1_000, 10_000, 50_000, 200_000] {
            let (there, back) = (wire(loss), wire(loss));
            let s = Stream {
                there,
                back,
                ..stream(kind, selective())
            };
            let out = s.run();
            assert!(loss < 10_000 || out.requester.retransmits_selective > 0);
        }
    }
}
