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

/// One flow over two links of 2.5 µs each at 100 Gb/s, packets of 4 KB; its data suffers.
fn one_flow(recovery: Recovery, window: u32, impairment: Impairment) -> Report {
    let speed = Speed {
        rate: BitRate::from_gbps(100),
        delay: Time::from_ns(2500),
    };
    let mut setup = Setup::new(Topology::star(2, speed));
    setup.transport.path_mtu = PathMtu::Mtu4096;
    setup.transport.message_bytes = 1 << 20;
    setup.transport.recovery = recovery;
    setup.transport.timeout = 6;
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
    setup.flows = vec![Flow::write(0, 1, 1 << 30)];
    setup.end = Time::from_ms(20);
    setup.warmup = Time::from_ms(1);
    setup.sample = Time::from_us(100);
    run(setup)
}

fn goodput(report: &Report) -> f64 {
    report.series.rates(Time::from_ms(1), Time::from_ms(20))[0]
}

/// L1 and L2.
pub(crate) fn repair() -> Table {
    let mut table = Table::new(
        "L1, L2  goodput of one flow, of lossless: 100 Gb/s, 10 µs round trip, 4 KB packets",
        "loss      selective   go-back-N   (1-p)/(1-p+pW)   target: selective >= 0.90 at 1 %, go-back-N within 10 % of theory",
    );
    let lossless = [
        goodput(&one_flow(
            Recovery::Selective,
            2 * BDP,
            Impairment::default(),
        )),
        goodput(&one_flow(Recovery::GoBackN, 2 * BDP, Impairment::default())),
    ];
    for loss_ppm in [100, 1_000, 10_000, 50_000] {
        let impairment = Impairment {
            loss_ppm,
            ..Impairment::default()
        };
        let selective = goodput(&one_flow(Recovery::Selective, 2 * BDP, impairment));
        let back = goodput(&one_flow(Recovery::GoBackN, 2 * BDP, impairment));
        let p = f64::from(loss_ppm) / 1e6;
        let theory = (1.0 - p) / (1.0 - p + p * f64::from(BDP));
        table.row(format!(
            "{:5.2} %   {:.3}       {:.3}       {theory:.3}",
            p * 100.0,
            selective / lossless[0],
            back / lossless[1],
        ));
    }
    table.row(format!(
        "lossless: selective {:.1} Gb/s, go-back-N {:.1} Gb/s of payload (98.0 possible)",
        lossless[0] / 1e9,
        lossless[1] / 1e9
    ));
    table
}

/// L3.
pub(crate) fn reordering() -> Table {
    let mut table = Table::new(
        "L3  5 % of the packets overtaken by up to N others, no loss: goodput and packets sent again",
        "N     selective             go-back-N            target: none sent again in selective mode",
    );
    for positions in [4, 16, 64] {
        let impairment = Impairment {
            reorder_ppm: 50_000,
            reorder_positions: positions,
            ..Impairment::default()
        };
        let of = |recovery, window| {
            let report = one_flow(recovery, window, impairment);
            (goodput(&report) / 1e9, report.summary.retransmissions)
        };
        let (selective, again) = of(Recovery::Selective, 4 * BDP);
        let (back, back_again) = of(Recovery::GoBackN, 2 * BDP);
        table.row(format!(
            "{positions:2}    {selective:5.1} Gb/s  {again:6}    {back:5.1} Gb/s  {back_again:6}"
        ));
    }
    table
}

/// L7 and L8.
pub(crate) fn irn() -> Table {
    let mut table = Table::new(
        "L7  54 hosts, three-tier fat tree, 40 Gb/s, load 70 % (IRN, SIGCOMM 2018)",
        "                                    mean FCT µs   mean slowdown   p99 FCT µs   dropped   sent again   pauses",
    );
    let mut means = Vec::new();
    let rows = [
        ("selective, no PFC", Recovery::Selective, false, false),
        ("go-back-N, PFC", Recovery::GoBackN, true, false),
        ("go-back-N, no PFC", Recovery::GoBackN, false, false),
        ("selective, no PFC, DCQCN", Recovery::Selective, false, true),
        ("go-back-N, PFC, DCQCN", Recovery::GoBackN, true, true),
    ];
    let started = clock::now();
    let mut events = 0;
    for (label, recovery, pfc, dcqcn) in rows {
        let report = scenario("fat-tree-irn.toml", |setup| {
            setup.transport.recovery = recovery;
            if !pfc {
                setup.switch.buffer.lossless = 0;
            }
            if dcqcn {
                setup.switch.red = Some(Red {
                    kmin: 5_000,
                    kmax: 200_000,
                    pmax_ppm: 10_000,
                    at: MarkAt::Dequeue,
                    priorities: 0xff,
                });
                let line = Rate::bits_per_second(40_000_000_000);
                let params = [("window", 120)];
                setup.transport.congestion =
                    CongestionControl::by_name("dcqcn", line, &params).unwrap();
            }
        });
        events += report.packet_events;
        let s = &report.summary;
        means.push((s.fct_us.mean, s.slowdown.mean));
        table.row(format!(
            "{label:32}    {:11.1}   {:13.2}   {:10.1}   {:7}   {:10}   {:6}",
            s.fct_us.mean, s.slowdown.mean, s.fct_us.p99, s.drops, s.retransmissions, s.pauses
        ));
    }
    for (what, better, worse) in [("without", 0, 1), ("with DCQCN", 3, 4)] {
        let gain = |a: f64, b: f64| (1.0 - a / b) * 100.0;
        table.row(format!(
            "selective without PFC against go-back-N with PFC, {what}: FCT {:+.1} %, slowdown {:+.1} % (target: better by 6 to 83 %, as in the paper)",
            gain(means[better].0, means[worse].0),
            gain(means[better].1, means[worse].1),
        ));
    }
    let seconds = clock::now().since(started).as_nanos() as f64 / 1e9;
    let rate = events as f64 / seconds / 1e6;
    println!("L8  {events} packet events, {rate:.2} M/s on one core (target 1 M/s)");
    table
}
