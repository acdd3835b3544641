//! D1 to D3 and D9: two engines over AF_XDP on a veth pair, against raw AF_XDP on the same rings.

use xroce_net::datapath::Datapath;
use xroce_net::xdp::XdpPort;
use xroce_testnet::{Netns, NetnsPair};
use xroce_wire::newtypes::PathMtu;

use super::rows::{D1, D1_CC, D2_1024, D2_4096, D2_CC, D3_P50, D3_P99, D9_XDP, Kind};
use super::support::core::icrc_alone;
use super::support::threads::{Flow, Load, flood, ping_pong};
use super::support::{Op, Pace, Pair, Place, xdp};
use super::{Lab, Outcome, counting, note_flow, plan, raw, sizes};

/// Receive chunks, as `xroce perf` has them: with fewer a receiver that loses its core for a
/// moment loses packets.
const RING: u32 = 1024;
/// Ethernet 14, IPv4 20, UDP 8, BTH 12 and ICRC 4 bytes around the payload of a packet.
const HEADERS: usize = 58;
/// Bytes of a message of D2.
const LARGE: u32 = 65_536;
/// The plot of the curves by size.
const SIZES: &str = "sizes-xdp";

pub(crate) struct XdpLink {
    // Dropped in this order: the ports go before their interfaces.
    pair: Pair<XdpPort>,
    _net: NetnsPair,
}

impl XdpLink {
    pub(crate) const ROWS: [&Kind; 8] = [
        &D1, &D2_1024, &D2_4096, &D3_P50, &D3_P99, &D1_CC, &D2_CC, &D9_XDP,
    ];

    pub(crate) fn open() -> Outcome<Self> {
        let net = NetnsPair::new(4200, 1)?;
        let pair = Pair::new([end(&net.a)?, end(&net.b)?]);
        Ok(Self { pair, _net: net })
    }

    /// "AF_XDP veth0 queue 0 (native, copy)".
    pub(crate) fn name(&self) -> &str {
        &self.pair.ends[0].engine.caps().name
    }

    pub(crate) fn round(&mut self, lab: &mut Lab) -> Outcome<()> {
        let send = Load {
            op: Op::Send,
            size: 64,
            mtu: PathMtu::Mtu1024,
            depth: 128,
        };
        let write = |mtu| Load {
            op: Op::Write,
            size: LARGE,
            mtu,
            depth: 16,
        };
        self.rate(lab, &D1, send)?;
        self.rate(lab, &D2_1024, write(PathMtu::Mtu1024))?;
        self.rate(lab, &D2_4096, write(PathMtu::Mtu4096))?;
        self.paced(lab, &D1_CC, send)?;
        self.paced(lab, &D2_CC, write(PathMtu::Mtu4096))?;
        self.round_trip(lab)?;
        self.icrc(lab, write(PathMtu::Mtu4096));
        if lab.options.wants(plan::SIZES) {
            sizes::round(lab, SIZES, &mut self.pair);
            self.frames(lab)?;
        }
        Ok(())
    }

    /// The ICRC of a packet beside all the time that it has.
    fn icrc(&mut self, lab: &mut Lab, load: Load) {
        if !lab.options.wants(D9_XDP.id) {
            return;
        }
        lab.progress.says(D9_XDP.key);
        let time = lab.options.time();
        let packets = f64::from(load.mtu.packets(load.size));
        let (icrc, flow) = lab.measure(
            &mut self.pair,
            |_| icrc_alone() * 1e9,
            |pair| flood(pair, load, time, counting::asked),
        );
        let packet = flow.map(|flow| 1e9 / (flow.messages_per_second() * packets));
        lab.table.add(&D9_XDP, icrc, packet);
    }

    /// The ceiling of the curves by size, as long as a message is one frame.
    fn frames(&mut self, lab: &mut Lab) -> Outcome<()> {
        let one_frame = |size: &u32| *size as usize <= PathMtu::Mtu4096.bytes();
        let mut all: Vec<u32> = sizes::swept().map(|s| s.1).filter(one_frame).collect();
        all.sort_unstable();
        all.dedup();
        for size in all {
            // The payload is padded to whole words.
            let frame = HEADERS + (size as usize).next_multiple_of(4);
            let rate = raw::flood(&mut self.pair, frame, lab.options.part(sizes::PART))?;
            lab.curves.add(SIZES, "raw AF_XDP", true, size, rate);
        }
        Ok(())
    }

    /// Packets a second with congestion control and pacing, against the same without.
    fn paced(&mut self, lab: &mut Lab, kind: &'static Kind, load: Load) -> Outcome<()> {
        if !lab.options.wants(kind.id) {
            return Ok(());
        }
        let time = lab.options.time();
        let packets = f64::from(load.mtu.packets(load.size));
        let with = |pace| {
            move |pair: &mut Pair<XdpPort>| {
                pair.pace = pace;
                let flow = flood(pair, load, time, counting::asked);
                pair.pace = Pace::Fixed;
                flow
            }
        };
        lab.progress.says(kind.key);
        let (paced, plain) = lab.measure(&mut self.pair, with(Pace::Dcqcn), with(Pace::Fixed));
        note_flow(lab, kind, "AF_XDP", &paced);
        let rate = |flow: &Flow| flow.messages_per_second() * packets;
        lab.table.add(kind, rate(&paced), plain.as_ref().map(rate));
        Ok(())
    }

    /// Packets a second against frames a second of the same size.
    fn rate(&mut self, lab: &mut Lab, kind: &'static Kind, load: Load) -> Outcome<()> {
        if !lab.options.wants(kind.id) {
            return Ok(());
        }
        let time = lab.options.time();
        let frame = HEADERS + load.mtu.bytes().min(load.size as usize);
        let packets = f64::from(load.mtu.packets(load.size));
        lab.progress.says(kind.key);
        let (flow, raw) = lab.measure(
            &mut self.pair,
            |pair| flood(pair, load, time, counting::asked),
            |pair| raw::flood(pair, frame, time),
        );
        note_flow(lab, kind, "AF_XDP", &flow);
        let ours = flow.messages_per_second() * packets;
        lab.table.add(kind, ours, raw.transpose()?);
        Ok(())
    }

    fn round_trip(&mut self, lab: &mut Lab) -> Outcome<()> {
        if !lab.options.wants(D3_P50.id) {
            return Ok(());
        }
        let time = lab.options.time();
        lab.progress.says("D3");
        let (ours, raw) = lab.measure(
            &mut self.pair,
            |pair| ping_pong(pair, 2, time),
            |pair| raw::ping_pong(pair, HEADERS + 4, time),
        );
        let raw = raw.transpose()?;
        lab.curves.latency("SEND of 2 B, AF_XDP", false, &ours);
        if let Some(raw) = &raw {
            lab.curves.latency("raw AF_XDP", true, raw);
        }
        for (kind, p) in [(&D3_P50, 50), (&D3_P99, 99)] {
            let peer = raw.as_ref().map(|raw| percentile(raw, p));
            lab.table.add(kind, percentile(&ours, p), peer);
        }
        Ok(())
    }
}

fn end(ns: &Netns) -> Outcome<(XdpPort, Place)> {
    let (port, place) = xdp::open(ns, RING)?;
    debug_assert!(port.caps().mtu >= 4180);
    Ok((port, place))
}

/// Percentile of sorted values; 0 if there are none.
fn percentile(sorted: &[u64], p: usize) -> f64 {
    sorted
        .get(sorted.len() * p / 100)
        .map_or(0.0, |&v| v as f64)
}
