//! DCQCN: L4, L5, L6.

use xroce_fabric::{
    BitRate, Change, Fault, Flow, Impairment, Red, Report, Setup, Speed, Time, Topology, jain,
};
use xroce_proto::cc::{CongestionControl, Rate};

use crate::{Table, run, scenario};

const LINE: Rate = Rate::bits_per_second(40_000_000_000);
/// Payload of a packet of path MTU 1024 on the wire, of 1024 + headers 58 + 24 around it, and the
/// RETH of the first packet of each message.
const PAYLOAD: f64 = 1024.0 / 1106.0;

fn dcqcn(name: &str, params: &[(&str, u64)]) -> Option<CongestionControl> {
    Some(CongestionControl::by_name(name, LINE, params).unwrap())
}

/// When all flows are within 10 % of an equal share, and stay so for 5 ms.
fn fair_at(report: &Report, from_ms: u64, end_ms: u64) -> Option<u64> {
    (from_ms..end_ms - 5).find(|&ms| {
        let rates = report
            .series
            .rates(Time::from_ms(ms), Time::from_ms(ms + 5));
        let share = rates.iter().sum::<f64>() / rates.len() as f64;
        rates.iter().all(|r| (r - share).abs() <= share * 0.1)
    })
}

/// L4, and the parameters the paper begins with.
pub(crate) fn two_flows() -> Table {
    let mut table = Table::new(
        "L4  DCQCN, two flows from 40 Gb/s and 5 Gb/s over a port of 40 Gb/s, 120 ms",
        "parameters                 fair (10 %)   last third: rates Gb/s of the wire   Jain     target / reference",
    );
    type Thresholds = Option<(u64, u64, u32)>;
    let rows: [(&str, &str, Thresholds, &str); 4] = [
        ("paper", "dcqcn", None, "60 ms, 0.99 / model 40 ms, 0.9999"),
        ("mlx5 defaults", "dcqcn-mlx5", None, "-"),
        (
            "paper, byte counter 150 KB",
            "dcqcn",
            None,
            "- / model 10.6 and 28.7, 0.83",
        ),
        (
            "strawman",
            "dcqcn-strawman",
            Some((40_000, 40_000, 1_000_000)),
            "never / model and paper: never",
        ),
    ];
    for (label, name, red, reference) in rows {
        let bytes: &[(&str, u64)] = if label.contains("150 KB") {
            &[("rpg_byte_reset", 150_000)]
        } else {
            &[]
        };
        let report = scenario("dcqcn-two-flows.toml", |setup| {
            setup.sample = Time::from_us(1000);
            if let Some((kmin, kmax, pmax_ppm)) = red {
                let old = setup.switch.red.unwrap();
                setup.switch.red = Some(Red {
                    kmin,
                    kmax,
                    pmax_ppm,
                    ..old
                });
            }
            setup.flows[1].start = Time::ZERO;
            setup.flows[0].congestion = dcqcn(name, bytes);
            let mut slow = bytes.to_vec();
            slow.push(("rate_to_set_on_first_cnp", 5000));
            setup.flows[1].congestion = dcqcn(name, &slow);
        });
        let rates = report.series.rates(Time::from_ms(80), Time::from_ms(120));
        let wire: Vec<f64> = rates.iter().map(|r| r / PAYLOAD / 1e9).collect();
        let fair =
            fair_at(&report, 0, 120).map_or_else(|| "never".to_owned(), |ms| format!("{ms} ms"));
        table.row(format!(
            "{label:26} {fair:>11}   {:5.2} + {:5.2} = {:5.2}                {:.4}   {reference}",
            wire[0],
            wire[1],
            wire[0] + wire[1],
            jain(&rates),
        ));
    }
    table
}

/// L5.
pub(crate) fn incast() -> Table {
    let mut table = Table::new(
        "L5  DCQCN, N:1 at 40 Gb/s, 1 MB of buffer, no PFC; 100 ms, of which 80 are measured",
        "N    sum of line   Jain     queue p50    p95       dropped   target",
    );
    for senders in [2_u32, 8, 20] {
        let report = scenario("dcqcn-incast.toml", |setup| {
            setup.sample = Time::from_us(1000);
            setup.flows.truncate(senders as usize);
            // All together as much as 20 have.
            let window = (640 / u64::from(senders)).min(256);
            setup.transport.congestion = dcqcn("dcqcn", &[("window", window)]).unwrap();
        });
        let rates = report.series.rates(Time::from_ms(20), Time::from_ms(100));
        let sum: f64 = rates.iter().sum();
        let queue = &report.summary.queue;
        table.row(format!(
            "{senders:2}   {:6.2} %      {:.4}   {:6.1} KB   {:6.1} KB   {:5}   95 %, 0.95, p95 <= 200 KB, 0",
            sum / PAYLOAD / 40e9 * 100.0,
            jain(&rates),
            queue.p50 as f64 / 1e3,
            queue.p95 as f64 / 1e3,
            report.summary.drops,
        ));
    }
    table.row(
        "reference, 20:1: paper > 39 Gb/s (97.5 %), queue p95 77 KB; model Jain 0.998, p95 200 KB"
            .to_owned(),
    );
    table
}

/// L6.
pub(crate) fn cnp_train() -> Table {
    let mut table = Table::new(
        "L6  1000 marked packets in 1 ms, notifications 50 µs apart",
        "marked   notified   suppressed   target",
    );
    let speed = Speed {
        rate: BitRate::from_gbps(40),
        delay: Time::from_us(1),
    };
    let mut setup = Setup::new(Topology::star(2, speed));
    // The way to the receiver is a little slower than the flow, so that there is always a queue;
    // and every queue is marked.
    setup.faults = vec![Fault {
        at: Time::ZERO,
        link: 1,
        change: Change::Wire {
            there: true,
            back: true,
            rate: Some(BitRate::from_bps(8_500_000_000)),
            impairment: Impairment::default(),
        },
    }];
    setup.switch.red = Some(Red {
        kmin: 0,
        kmax: 0,
        pmax_ppm: 1_000_000,
        at: xroce_fabric::MarkAt::Enqueue,
        priorities: 0xff,
    });
    let mut flow = Flow::write(0, 1, 1_024_000);
    // A packet of 1106 bytes on the wire every µs; no algorithm that would slow down.
    flow.rate_limit = Some(Rate::bits_per_second(1106 * 8 * 1_000_000));
    setup.flows = vec![flow];
    let report = run(setup);
    let get = |name: &str| report.counters[name];
    table.row(format!(
        "{:6}   {:8}   {:10}   20 or 21 notified, the sum is what was marked",
        get("ce_marked"),
        get("cnps_out"),
        get("cnps_suppressed")
    ));
    assert_eq!(get("ce_marked"), get("cnps_out") + get("cnps_suppressed"));
    table
}
