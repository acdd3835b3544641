//! Repair of losses: L1, L2, L3, L7.

use xroce_engine::clock;

use xroce_fabric::{
    BitRate, Change, Fault, Flow, Impairment, MarkAt, Recovery, Red, Report, Setup, Speed, Time,
    Topology,
};
use xroce_proto::cc::{CongestionControl, Fixed, Rate};
use xroce_wire::newtypes::PathMtu;

use crate::{Table, run, scenario};

/// Packets of 4096 bytes that fill 100 Gb/s for 10 µs: 125 KB.
const BDP: u32 = 32;

/// ACK timeout of that flow: 4.096 µs · 2^6.
const TIMEOUT_CODE: u8 = 6;

/// One flow over two links of 2.5 µs each at 100 Gb/s, packets of 4 KB; its data suffers.
fn one_flow(recovery: Recovery, window: u32, impairment: Impairment, ms: u64) -> Report {
    let speed = Speed {
        rate: BitRate::from_gbps(100),
        delay: Time::from_ns(2500),
    };
    let mut setup = Setup::new(Topology::star(2, speed));
    setup.transport.path_mtu = PathMtu::Mtu4096;
    setup.transport.message_bytes = 1 << 20;
    setup.transport.recovery = recovery;
    setup.transport.timeout = TIMEOUT_CODE;
    setup.transport.congestion = CongestionControl::Fixed(Fixed::new(Rate::UNLIMITED, window));
    setup.host.nic.queue = 2;
    setup.faults = vec![Fault {
        at: Time::ZERO,
        link: 0,
        change: Change::Wire {
            there: true,
            back: false,
            rate: None,
            impairment,
        },
    }];
    setup.flows = vec![Flow::write(0, 1, 1 << 32)];
    setup.end = Time::from_ms(ms);
    setup.warmup = Time::from_ms(1);
    setup.sample = Time::from_us(100);
    run(setup)
}

/// Payload per second, but for the first millisecond.
fn goodput(report: &Report, ms: u64) -> f64 {
    report.series.rates(Time::from_ms(1), Time::from_ms(ms))[0]
}

/// Goodput of go-back-N as a part of the lossless one, if every loss is found after a round trip.
fn theory(p: f64) -> f64 {
    (1.0 - p) / (1.0 - p + p * f64::from(BDP))
}

/// The same with what the protocol makes of more losses than one: see docs/congestion.md. `packet`:
/// seconds a packet takes without loss.
fn theory_with_timeouts(p: f64, packet: f64) -> f64 {
    let timeout = 4.096e-6 * f64::from(1 << TIMEOUT_CODE) / packet;
    // The NAK is for the first packet that arrives behind the gap.
    let found = f64::from(BDP) + 1.0 / (1.0 - p);
    // The resent packet is lost as well, and again: T, 2 T, then 4 T each time.
    let waits = p * timeout * (1.0 + 2.0 * p + 4.0 * p * p / (1.0 - p));
    (1.0 - p) / (1.0 - p + p * (found + waits))
}

/// L1 and L2.
pub(crate) fn repair() -> Table {
    let mut table = Table::new(
        "L1, L2  goodput of one flow, of lossless: 100 Gb/s, 10 µs round trip, 4 KB packets, timeout 262 µs",
        "loss      selective   go-back-N   (1-p)/(1-p+pW)   with timeouts   ours to that   timeouts   target: selective >= 0.90 at 1 %, go-back-N within 10 % of theory",
    );
    let window = 2 * BDP;
    let run = |recovery, impairment, ms| {
        let report = one_flow(recovery, window, impairment, ms);
        (goodput(&report, ms), report.counters["timeouts"])
    };
    let none = Impairment::default();
    let (lossless, _) = run(Recovery::Selective, none, 20);
    let (lossless_back, _) = run(Recovery::GoBackN, none, 20);
    let packet = 4096.0 * 8.0 / lossless_back;
    for loss_ppm in [100, 1_000, 10_000, 50_000] {
        let impairment = Impairment { loss_ppm, ..none };
        let (selective, _) = run(Recovery::Selective, impairment, 20);
        // Long enough for some hundred timeouts, if there are any.
        let ms = if loss_ppm < 10_000 { 20 } else { 100 };
        let (back, timeouts) = run(Recovery::GoBackN, impairment, ms);
        let p = f64::from(loss_ppm) / 1e6;
        let expected = theory_with_timeouts(p, packet);
        let ours = back / lossless_back;
        table.row(format!(
            "{:5.2} %   {:.3}       {ours:.3}       {:.3}            {expected:.3}           {:+.1} %         {timeouts:4} in {ms} ms",
            p * 100.0,
            selective / lossless,
            theory(p),
            (ours / expected - 1.0) * 100.0,
        ));
        assert!(
            (ours / expected - 1.0).abs() < 0.1,
            "L2 at {p}: {ours}, {expected}"
        );
    }
    table.row(format!(
        "lossless: selective {:.1} Gb/s, go-back-N {:.1} Gb/s of payload (98.0 possible)",
        lossless / 1e9,
        lossless_back / 1e9
    ));
    table
}

/// L3.
pub(crate) fn reordering() -> Table {
    let mut table = Table::new(
        "L3  5 % of the packets displaced by up to N places, none by more, no loss: goodput and packets sent again",
        "N     selective, window 64   selective, window 128   go-back-N             target: none sent again in selective mode",
    );
    for positions in [4, 16, 64] {
        let impairment = Impairment {
            reorder_ppm: 50_000,
            reorder_positions: positions,
            ..Impairment::default()
        };
        let of = |recovery, window| {
            let report = one_flow(recovery, window, impairment, 20);
            let again = report.summary.retransmissions;
            format!("{:5.1} Gb/s  {again:6}", goodput(&report, 20) / 1e9)
        };
        table.row(format!(
            "{positions:2}    {}    {}    {}",
            of(Recovery::Selective, 2 * BDP),
            of(Recovery::Selective, 4 * BDP),
            of(Recovery::GoBackN, 2 * BDP),
        ));
    }
    table
}

/// One run of L7.
struct Irn {
    label: &'static str,
    recovery: Recovery,
    pfc: bool,
    /// Packets in flight at most: the bandwidth-delay product, or what never binds.
    window: u32,
    dcqcn: bool,
}

/// 120 KB on the longest way are 110 packets: a part of IRN, not of RoCE.
const BDP_IRN: u32 = 110;
/// More packets than a flow has.
const NO_WINDOW: u32 = 65_536;
/// RTO_high is 320 µs; the next ACK timeout there is.
const RTO_CODE: u8 = 7;

impl Irn {
    fn run(&self) -> Report {
        scenario("fat-tree-irn.toml", |setup| {
            setup.sample = Time::ZERO;
            setup.transport.recovery = self.recovery;
            if !self.pfc {
                setup.switch.buffer.lossless = 0;
                setup.transport.timeout = RTO_CODE;
            }
            let line = Rate::bits_per_second(40_000_000_000);
            setup.transport.congestion = if self.dcqcn {
                setup.switch.red = Some(Red {
                    kmin: 5_000,
                    kmax: 200_000,
                    pmax_ppm: 10_000,
                    at: MarkAt::Dequeue,
                    priorities: 0xff,
                });
                let params = [("window", self.window.into())];
                CongestionControl::by_name("dcqcn", line, &params).unwrap()
            } else {
                CongestionControl::Fixed(Fixed::new(Rate::UNLIMITED, self.window))
            };
        })
    }
}

fn irn_rows() -> Vec<Irn> {
    use Recovery::{GoBackN, Selective};
    let row = |label, recovery, pfc, window, dcqcn| Irn {
        label,
        recovery,
        pfc,
        window,
        dcqcn,
    };
    vec![
        row(
            "selective, no PFC, window 110 (IRN)",
            Selective,
            false,
            BDP_IRN,
            false,
        ),
        row(
            "go-back-N, PFC, no window (RoCE)",
            GoBackN,
            true,
            NO_WINDOW,
            false,
        ),
        row("go-back-N, PFC, window 110", GoBackN, true, BDP_IRN, false),
        row(
            "selective, PFC, window 110",
            Selective,
            true,
            BDP_IRN,
            false,
        ),
        row(
            "go-back-N, no PFC, window 110",
            GoBackN,
            false,
            BDP_IRN,
            false,
        ),
        row("the first with DCQCN", Selective, false, BDP_IRN, true),
        row("the second with DCQCN", GoBackN, true, NO_WINDOW, true),
        row("the third with DCQCN", GoBackN, true, BDP_IRN, true),
    ]
}

/// L7 and L8.
pub(crate) fn irn() -> Table {
    let mut table = Table::new(
        "L7  54 hosts, three-tier fat tree, 40 Gb/s, load 70 %, flows for 5 ms (IRN, SIGCOMM 2018)",
        "                                      mean FCT µs   mean slowdown   p99 FCT µs   dropped   sent again   pauses",
    );
    let mut results = Vec::new();
    let started = clock::now();
    let mut events = 0;
    for row in irn_rows() {
        let report = row.run();
        events += report.packet_events;
        let s = &report.summary;
        assert_eq!(s.failed, 0, "{}", row.label);
        assert_eq!(s.completed, report.flows.len(), "{}: all count", row.label);
        assert_eq!(report.census.dropped_lossless, 0, "{}", row.label);
        results.push([s.fct_us.mean, s.slowdown.mean, s.fct_us.p99]);
        table.row(format!(
            "{:36}  {:11.1}   {:13.2}   {:10.1}   {:7}   {:10}   {:6}",
            row.label,
            s.fct_us.mean,
            s.slowdown.mean,
            s.fct_us.p99,
            s.drops,
            s.retransmissions,
            s.pauses
        ));
    }
    table.row(
        "better than go-back-N with PFC, selective without:   FCT   slowdown   p99 FCT".to_owned(),
    );
    for (what, better, worse) in [
        ("no window, as in the paper", 0, 1),
        ("window 110", 0, 2),
        ("no window, both DCQCN", 5, 6),
        ("window 110, both DCQCN", 5, 7),
    ] {
        let gain = |i: usize| (1.0 - results[better][i] / results[worse][i]) * 100.0;
        table.row(format!(
            "  go-back-N has {what:29}   {:+7.1} %   {:+6.1} %   {:+6.1} %",
            gain(0),
            gain(1),
            gain(2)
        ));
    }
    table.row("target: better by 6 to 83 %, as in the paper".to_owned());
    let seconds = clock::now().since(started).as_nanos() as f64 / 1e9;
    let rate = events as f64 / seconds / 1e6;
    println!("L8  {events} packet events, {rate:.2} M/s on one core (target 1 M/s)");
    table
}
