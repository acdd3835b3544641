//! The paths that are watched, each as a unit of work that can be repeated.

use xroce_net::datapath::{Datapath, Link};
use xroce_net::udp::{UdpConfig, UdpPort};
use xroce_proto::cc::{CongestionControl, Rate};
use xroce_proto::qp::{QpAttr, QpState};
use xroce_proto::recovery::{Reliability, SelectiveParams};
use xroce_wire::newtypes::{MacAddr, PathMtu};

use super::support::{DEPTH, Op, Pair, Place};

/// A path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) name: &'static str,
    op: Op,
    /// Bytes of a message.
    size: u32,
    mtu: PathMtu,
    qps: usize,
    tune: fn(QpAttr) -> QpAttr,
    /// Packets of a message that carry data: what costs are given for.
    pub(crate) packets: u32,
}

const PLAIN: Path = Path {
    name: "",
    op: Op::Send,
    size: 64,
    mtu: PathMtu::Mtu4096,
    qps: 1,
    tune: |attr| attr,
    packets: 1,
};

/// All paths whose instructions and allocations are counted, in memory.
pub(crate) const PATHS: [Path; 9] = [
    Path {
        name: "send-64",
        ..PLAIN
    },
    Path {
        name: "write-64",
        op: Op::Write,
        ..PLAIN
    },
    Path {
        name: "read-64",
        op: Op::Read,
        ..PLAIN
    },
    Path {
        name: "write-64k-packet",
        op: Op::Write,
        size: 65_536,
        packets: 16,
        ..PLAIN
    },
    Path {
        name: "read-64k-packet",
        op: Op::Read,
        size: 65_536,
        packets: 16,
        ..PLAIN
    },
    Path {
        name: "send-64-of-100-qps",
        qps: 100,
        ..PLAIN
    },
    Path {
        name: "send-64-paced",
        tune: paced,
        ..PLAIN
    },
    Path {
        name: "send-64-selective",
        tune: selective,
        ..PLAIN
    },
    Path {
        name: "write-64k-packet-selective",
        op: Op::Write,
        size: 65_536,
        packets: 16,
        tune: selective,
        ..PLAIN
    },
];

/// Paths whose system calls are counted, over the kernel.
pub(crate) const KERNEL_PATHS: [&str; 3] = ["send-64", "write-64k-packet", "read-64k-packet"];

/// Ways through the kernel.
pub(crate) const BACKENDS: &[&str] = if cfg!(feature = "xdp") {
    &["udp", "xdp"]
} else {
    &["udp"]
};

/// DCQCN, and a pacer that never waits: 100 Gb/s is not reached here.
fn paced(attr: QpAttr) -> QpAttr {
    if attr.state != Some(QpState::Rts) {
        return attr;
    }
    let line = Rate::bits_per_second(400_000_000_000);
    QpAttr {
        congestion: CongestionControl::by_name("dcqcn", line, &[]).ok(),
        rate_limit: Some(Rate::bits_per_second(100_000_000_000)),
        ..attr
    }
}

fn selective(attr: QpAttr) -> QpAttr {
    if attr.state != Some(QpState::Rtr) {
        return attr;
    }
    QpAttr {
        reliability: Some(Reliability::Selective(SelectiveParams::default())),
        ..attr
    }
}

impl Path {
    /// The one of this name.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        PATHS.iter().find(|p| p.name == name)
    }

    /// Connected queue pairs in memory, some messages sent already.
    pub(crate) fn pair(&self) -> Pair {
        let mut pair = Pair::in_memory(Link::Ethernet, self.mtu, 0);
        self.connect(&mut pair);
        pair
    }

    fn connect<D: Datapath>(&self, pair: &mut Pair<D>) {
        for _ in 0..self.qps {
            pair.connect_tuned(self.mtu, [DEPTH, 2 * DEPTH], &self.tune);
        }
    }

    /// Sends so many messages.
    pub(crate) fn send<D: Datapath>(&self, pair: &mut Pair<D>, count: u32) {
        pair.stream(self.op, self.size, count as usize);
    }

    /// Sends so many messages over UDP sockets on loopback ("udp") or over a veth pair ("xdp"), both
    /// ends in one thread.
    pub(crate) fn over_kernel(&self, backend: &str, count: u32) -> Result<(), String> {
        match backend {
            "udp" => {
                let ends = [1, 2].map(|n| {
                    let port = UdpPort::bind([127, 0, 94, n].into(), &UdpConfig::default());
                    port.map(|port| {
                        let place = Place {
                            gid: port.gid(),
                            mac: MacAddr::default(),
                            src_port: port.src_port(),
                        };
                        (port, place)
                    })
                });
                let [a, b] = ends;
                let a = a.map_err(|e| e.to_string())?;
                let b = b.map_err(|e| e.to_string())?;
                let mut pair = Pair::new([a, b]);
                self.connect(&mut pair);
                self.send(&mut pair, count);
                Ok(())
            }
            #[cfg(feature = "xdp")]
            "xdp" => {
                let net = xroce_testnet::NetnsPair::new(4200, 1).map_err(|e| e.to_string())?;
                let open = |ns| super::support::xdp::open(ns, 1024).map_err(|e| e.to_string());
                let mut pair = Pair::new([open(&net.a)?, open(&net.b)?]);
                self.connect(&mut pair);
                self.send(&mut pair, count);
                Ok(())
            }
            other => Err(format!("no backend {other}")),
        }
    }
}
