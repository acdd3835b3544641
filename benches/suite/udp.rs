//! D4, D5 and D9: two engines over UDP sockets, against what the kernel offers itself.
//!
//! As root on a veth pair of its own (without an XDP program, which would take segmentation from
//! TCP), else over loopback.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::process::Command;

use rustix::net::sockopt;
use xroce_net::udp::{UdpConfig, UdpPort};
use xroce_testnet::{IFNAME, Netns, NetnsPair};
use xroce_wire::newtypes::{MacAddr, PathMtu};

use super::rows::{D4, D4_PLAIN, D5, D9_UDP, Kind};
use super::support::core::icrc_alone;
use super::support::threads::{Load, flood, ping_pong};
use super::support::{Op, Pair, Place};
use super::{Lab, Outcome, counting, iperf, kernel, note_flow, plan, sizes};

/// Bytes of a message of D4.
const LARGE: u32 = 1 << 20;
/// Its load.
const WRITE: Load = Load {
    op: Op::Write,
    size: LARGE,
    mtu: PathMtu::Mtu4096,
    depth: 8,
};
/// Of the sockets of D5, as the UDP backend asks for.
const BUFFER: usize = 8 << 20;

/// One side of the link.
struct Side {
    ns: Option<Netns>,
    ip: IpAddr,
}

impl Side {
    fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        match &self.ns {
            Some(ns) => ns.run(body),
            None => body(),
        }
    }

    fn command(&self, program: &str) -> Command {
        match &self.ns {
            Some(ns) => ns.command(program),
            None => Command::new(program),
        }
    }

    fn port(&self) -> Outcome<(UdpPort, Place)> {
        let ip = self.ip;
        let port = self.run(|| UdpPort::bind(ip, &UdpConfig::default()))?;
        let place = Place {
            gid: port.gid(),
            mac: MacAddr::default(),
            src_port: port.src_port(),
        };
        Ok((port, place))
    }

    fn socket(&self) -> Outcome<UdpSocket> {
        let ip = self.ip;
        let socket = self.run(|| UdpSocket::bind((ip, 0)))?;
        for set in [
            sockopt::set_socket_recv_buffer_size_force,
            sockopt::set_socket_send_buffer_size_force,
        ] {
            // Without privileges the default has to do.
            let _ = set(&socket, BUFFER);
        }
        Ok(socket)
    }

    /// Segmentation and coalescing by the device on or off.
    fn offloads(&self, state: &str) {
        let args = ["-K", IFNAME, "tso", state, "gso", state, "gro", state];
        let _ = self.command("ethtool").args(args).output();
    }
}

pub(crate) struct UdpLink {
    pair: Pair<UdpPort>,
    sockets: [UdpSocket; 2],
    sides: [Side; 2],
    pub(crate) name: &'static str,
}

impl UdpLink {
    pub(crate) const ROWS: [&Kind; 4] = [&D4, &D4_PLAIN, &D5, &D9_UDP];

    pub(crate) fn open() -> Outcome<Self> {
        let (sides, name) = match NetnsPair::new(4200, 1) {
            Ok(NetnsPair { a, b }) => {
                let side = |ns: Netns| Side {
                    ip: ns.ip(false),
                    ns: Some(ns),
                };
                ([side(a), side(b)], "veth, MTU 4200")
            }
            Err(_) => {
                let side = |n| Side {
                    ns: None,
                    ip: Ipv4Addr::new(127, 0, 93, n).into(),
                };
                ([side(1), side(2)], "loopback")
            }
        };
        let [a, b] = &sides;
        let pair = Pair::new([a.port()?, b.port()?]);
        let sockets = [a.socket()?, b.socket()?];
        sockets[0].connect(sockets[1].local_addr()?)?;
        Ok(Self {
            pair,
            sockets,
            sides,
            name,
        })
    }

    pub(crate) fn round(&mut self, lab: &mut Lab) -> Outcome<()> {
        if lab.options.wants(D4.id) {
            lab.progress.says("D4");
            self.bandwidth(lab);
        }
        if lab.options.wants(D5.id) {
            lab.progress.says("D5");
            self.small(lab)?;
        }
        if lab.options.wants(D9_UDP.id) {
            lab.progress.says("D9, UDP");
            self.icrc(lab);
        }
        if lab.options.wants(plan::SIZES) {
            sizes::round(lab, "sizes-udp", &mut self.pair);
            let round_trips = ping_pong(&mut self.pair, 2, lab.options.part(0.5));
            lab.curves.latency("SEND of 2 B, UDP", false, &round_trips);
        }
        Ok(())
    }

    /// The ICRC of a packet beside all the time that it has.
    fn icrc(&mut self, lab: &mut Lab) {
        let time = lab.options.time();
        let (icrc, flow) = lab.measure(
            &mut self.pair,
            |_| icrc_alone() * 1e9,
            |pair| flood(pair, WRITE, time, counting::asked),
        );
        let packet = flow.map(|flow| {
            let packets = flow.messages_per_second() * f64::from(WRITE.mtu.packets(WRITE.size));
            1e9 / packets
        });
        lab.table.add(&D9_UDP, icrc, packet);
    }

    fn bandwidth(&mut self, lab: &mut Lab) {
        let seconds = lab.options.seconds;
        let time = lab.options.time();
        let sides = &self.sides;
        let (flow, tcp) = lab.measure(
            &mut self.pair,
            |pair| flood(pair, WRITE, time, counting::asked),
            |_| tcp(sides, seconds),
        );
        let ours = flow.messages_per_second() * f64::from(LARGE) * 8.0;
        note_flow(lab, &D4, "UDP", &flow);
        let peer = tcp.as_ref().and_then(|t| t.as_ref().ok().copied());
        lab.table.add(&D4, ours, peer);
        match tcp {
            None => return,
            Some(Err(why)) => return lab.table.note(&D4, why),
            Some(Ok(_)) => {}
        }
        if sides.iter().all(|s| s.ns.is_some()) {
            sides.iter().for_each(|s| s.offloads("off"));
            let plain = tcp_or_note(sides, lab);
            sides.iter().for_each(|s| s.offloads("on"));
            if let Some(plain) = plain {
                lab.table.add(&D4_PLAIN, ours, Some(plain));
            }
        }
    }

    fn small(&mut self, lab: &mut Lab) -> Outcome<()> {
        let load = Load {
            op: Op::Send,
            size: 64,
            mtu: PathMtu::Mtu1024,
            depth: 128,
        };
        let time = lab.options.time();
        let [from, to] = &self.sockets;
        let (flow, bare) = lab.measure(
            &mut self.pair,
            |pair| flood(pair, load, time, counting::asked),
            |_| kernel::flood(from, to, time),
        );
        note_flow(lab, &D5, "UDP", &flow);
        lab.table
            .add(&D5, flow.messages_per_second(), bare.transpose()?);
        Ok(())
    }
}

fn tcp([a, b]: &[Side; 2], seconds: f64) -> Result<f64, String> {
    let server = b.ip.to_string();
    iperf::tcp(|p| b.command(p), |p| a.command(p), &server, seconds)
}

fn tcp_or_note(sides: &[Side; 2], lab: &mut Lab) -> Option<f64> {
    tcp(sides, lab.options.seconds)
        .map_err(|why| lab.table.note(&D4_PLAIN, why))
        .ok()
}
