//! Results of made-up steps, in every form.

use xroce_proto::time::Duration;

use super::*;
use crate::perf::measure::pace::{End, Pacer, Schedule};
use crate::perf::measure::quantiles::histogram;
use crate::perf::measure::side::Checked;
use crate::perf::measure::traffic::Outcome;
use crate::perf::measure::usage::Events;
use crate::perf::plan::{Limit, Repair, Shape};
use crate::perf::report::show;
use xroce_proto::time::Instant;

fn plan() -> Plan {
    Plan {
        ops: vec![Op::Send],
        tests: vec![Test::Bw, Test::Lat],
        sizes: vec![64],
        qps: vec![1],
        depths: vec![64],
        rates: Vec::new(),
        arrivals: Arrivals::Poisson,
        seed: 42,
        warmup_millis: 10,
        bidirectional: false,
        bw_limit: Limit::Millis(1_000),
        lat_limit: Limit::Millis(1_000),
        verify: true,
        lat_max_size: 64,
        repair: Repair::GoBackN,
    }
}

fn usage(user_us: u64, events: bool) -> Usage {
    Usage {
        user_ns: user_us * 1_000,
        system_ns: 0,
        events: events.then_some(Events {
            instructions: user_us * 3_000,
            cycles: user_us * 1_000,
            cache_misses: user_us,
            with_kernel: true,
        }),
        refusal: (!events).then(|| "not offered: no PMU".to_owned()),
    }
}

/// A million messages in a second, or 1000 round trips of 5.25 µs.
fn step(step: Step) -> StepReport {
    let mut h = histogram().unwrap();
    h.record_n(5_250, 1_000).unwrap();
    let is_lat = step.test == Test::Lat;
    let retransmissions = |n| SideCounters {
        retransmissions: n,
        ..SideCounters::default()
    };
    StepReport {
        step,
        shape: Shape {
            qps: step.qps,
            depth: step.depth,
            receives: 64,
            slots: 64,
            stride: 64,
            round: Some(64),
        },
        outcome: Outcome {
            sent: Sent {
                messages: if is_lat { 1_000 } else { 1_000_000 },
                elapsed_ns: 1_000_000_000,
                peak_per_s: 1_250_000.0,
                paced: step.rate.map(paced_of),
            },
            reverse: None,
            round_trips: is_lat.then_some(h),
            checked: Checked {
                verified: 10,
                mismatches: 0,
                first: None,
            },
            counters: [retransmissions(2), retransmissions(1)],
            usage: [usage(500_000, true), usage(250_000, false)],
        },
    }
}

/// What an open loop finds whose messages take 10 µs each.
fn paced_of(rate: u64) -> Found {
    let start = Instant::from_nanos(5);
    let schedule = Schedule::new(rate, Arrivals::Fixed, 0, End::Messages(100));
    let mut pacer = Pacer::new(schedule, start, 1, 64).unwrap();
    let mut now = start;
    for n in 0..100 {
        now = now + pacer.until_due(now).unwrap();
        pacer.post(0, n, now);
        pacer.complete(0, n, now + Duration::from_micros(10));
    }
    pacer.found()
}

fn port(steps: Vec<StepReport>) -> PortReport {
    PortReport {
        client_port: "UDP".to_owned(),
        server_port: "UDP".to_owned(),
        client: "127.0.0.2".to_owned(),
        server: "127.0.0.1".to_owned(),
        path_mtu: 4096,
        steps,
        stats: None,
    }
}

fn port_of(plan: &Plan) -> PortReport {
    port(plan.steps().map(step).collect())
}

fn report() -> Report {
    Report::of(&plan(), &[port_of(&plan())])
}

fn both_ways(plan: &Plan) -> PortReport {
    let mut port = port_of(plan);
    for one in &mut port.steps {
        one.outcome.reverse = Some(SentData {
            round: vec![500_000],
            messages: 500_000,
            elapsed_ns: 1_000_000_000,
            peak_per_s: 600_000,
            paced: None,
        });
    }
    port
}

fn open_plan() -> Plan {
    Plan {
        tests: vec![Test::Open],
        rates: vec![1_000, 2_000],
        verify: false,
        ..plan()
    }
}

#[test]
fn both_tests_of_a_size_share_a_row() {
    let r = report();
    assert_eq!(r.results.len(), 1);
    let row = &r.results[0];
    assert!((row.bandwidth.unwrap().gbit_per_s - 0.512).abs() < 1e-9);
    assert_eq!(row.latency.unwrap().p50_ns / 10, 525);
    assert_eq!((row.total.retransmissions, row.verified), (6, 20));
    let table = show::table(&r, false);
    assert!(
        table.contains("1 000 000") && table.contains("5.25"),
        "{table}"
    );
    assert_eq!(
        row.line(Test::Bw),
        "SEND    64 B  1 000 000 messages/s, 0.512 Gb/s"
    );
    assert!(
        row.line(Test::Lat).contains("p50 5.25 µs"),
        "{}",
        row.line(Test::Lat)
    );
}

#[test]
fn rows_of_a_sweep_say_what_they_are() {
    let plan = Plan {
        qps: vec![1, 2],
        depths: vec![8, 16],
        ..plan()
    };
    let r = Report::of(&plan, &[port_of(&plan)]);
    let rows: Vec<_> = r
        .results
        .iter()
        .map(|r| (r.qps, r.depth, r.latency.is_some()))
        .collect();
    let want = [
        (1, 8, false),
        (1, 16, false),
        (2, 8, false),
        (2, 16, false),
        (1, 1, true),
    ];
    assert_eq!(rows, want);
    let table = show::table(&r, false);
    assert!(table.contains("QPs   depth"), "{table}");
    assert!(!show::table(&report(), false).contains("QPs"));
}

#[test]
fn json_names_are_stable() {
    let v = serde_json::to_value(report()).unwrap();
    let row = &v["results"][0];
    assert_eq!(v["schema"], 1);
    assert_eq!(row["op"], "send");
    assert_eq!(row["bandwidth"]["messages"], 1_000_000);
    assert_eq!(row["total"]["retransmissions"], 6);
    for name in [
        "samples", "min_ns", "p50_ns", "p90_ns", "p99_ns", "p999_ns", "p9999_ns", "max_ns",
        "mean_ns", "stdev_ns",
    ] {
        assert!(row["latency"][name].is_u64(), "{name}");
    }
    // A million messages for half a second of the client's time: 500 ns each.
    assert_eq!(row["cpu"]["client"]["ns_per_message"], 500.0);
    assert_eq!(row["cpu"]["client"]["instructions_per_message"], 1500.0);
    assert_eq!(row["cpu"]["client"]["cycles_per_message"], 500.0);
    assert_eq!(row["cpu"]["client"]["cache_misses_per_message"], 0.5);
    assert_eq!(
        row["cpu"]["server"]["instructions_per_message"],
        serde_json::Value::Null
    );
    assert_eq!(row["cpu"]["server"]["refusal"], "not offered: no PMU");
    // 1000 round trips.
    assert_eq!(row["latency_cpu"]["server"]["ns_per_message"], 250_000.0);

    let open = Report::of(&open_plan(), &[port_of(&open_plan())]);
    let v = serde_json::to_value(open).unwrap();
    assert_eq!(
        (&v["arrivals"]["kind"], &v["arrivals"]["seed"]),
        (&"poisson".into(), &42.into())
    );
    assert_eq!(v["results"].as_array().unwrap().len(), 2);
    let open = &v["results"][1]["open"];
    assert_eq!(
        (&open["offered_per_s"], &open["unsent"]),
        (&2_000.into(), &0.into())
    );
    assert_eq!(open["latency"]["samples"], 100);
    assert_eq!(open["behind"]["max_ns"], 0);
}

#[test]
fn both_directions_and_their_sum() {
    let plan = Plan {
        tests: vec![Test::Bw],
        bidirectional: true,
        ..plan()
    };
    let r = Report::of(&plan, &[both_ways(&plan)]);
    let row = &r.results[0];
    let there = row.bandwidth.unwrap().messages_per_s;
    let back = row.reverse.unwrap().bandwidth.messages_per_s;
    assert!((there - 1e6).abs() < 1e-3 && (back - 5e5).abs() < 1e-3);
    assert!((row.sum.unwrap().messages_per_s - 1.5e6).abs() < 1e-3);
    assert!((row.sum.unwrap().gbit_per_s - 0.768).abs() < 1e-9);
    // The cost is that of all messages.
    let cost = row.cpu.as_ref().unwrap().client.ns_per_message;
    assert!((cost - 333.333).abs() < 0.01, "{cost}");
    let table = show::table(&r, false);
    assert!(
        table.contains("0.256") && table.contains("0.768"),
        "{table}"
    );
    // perftest shows both together: 1.5 million messages of 64 B.
    let last = show::perftest(&r);
    let last = last.lines().last().unwrap();
    assert!(
        last.contains("91.55") && last.ends_with("1.500000"),
        "{last}"
    );
}

#[test]
fn ports_are_summed_and_shown_one_by_one() {
    let plan = Plan {
        tests: vec![Test::Bw],
        ..plan()
    };
    let (fast, mut slow) = (port_of(&plan), port_of(&plan));
    slow.steps[0].outcome.sent.elapsed_ns = 2_000_000_000;
    let r = Report::of(&plan, &[fast, slow]);
    assert_eq!(r.ports.len(), 2);
    let row = &r.results[0];
    let sum = row.bandwidth.unwrap();
    // As long as the slower one took, not the sum of two rates of different times.
    assert!((sum.messages_per_s - 1e6).abs() < 1e-3, "{sum:?}");
    assert!((sum.gbit_per_s - 0.512).abs() < 1e-9, "{sum:?}");
    assert_eq!((sum.messages, sum.qps), (2_000_000, 2));
    let each: Vec<f64> = row
        .ports
        .iter()
        .map(|p| p.bandwidth.unwrap().messages_per_s)
        .collect();
    assert_eq!(each, [1e6, 5e5]);
    assert_eq!(row.total.retransmissions, 6);
    // Both threads together, for all messages.
    assert_eq!(row.cpu.as_ref().unwrap().client.ns_per_message, 500.0);
    let table = show::table(&r, false);
    assert!(
        table.contains("port 1") && table.contains("500 000"),
        "{table}"
    );
    // Alone, a port is not told apart.
    assert!(report().ports.is_empty() && report().results[0].ports.is_empty());
}

#[test]
fn open_loops_of_several_ports_are_one_distribution() {
    let plan = open_plan();
    let r = Report::of(&plan, &[port_of(&plan), port_of(&plan)]);
    let open = r.results[0].open.unwrap();
    assert_eq!(
        (open.offered_per_s, open.found.latency.samples),
        (2_000, 200)
    );
}

/// A head, and rows below it: scripts cut these columns.
#[test]
fn the_columns_of_perftest() {
    let text = show::perftest(&report());
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[..2],
        [
            " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]",
            " 64         1000000          76.29              61.04  \t\t   1.000000",
        ]
    );
    assert_eq!(
        lines[2],
        " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
         t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] "
    );
    // Half of 5.25 µs.
    let cells: Vec<&str> = lines[3].split_whitespace().collect();
    assert_eq!(
        cells,
        [
            "64", "1000", "2.62", "2.63", "2.63", "2.62", "0.00", "2.63", "2.63"
        ]
    );
    // A READ is not halved.
    let plan = Plan {
        ops: vec![Op::Read],
        tests: vec![Test::Lat],
        ..plan()
    };
    let text = show::perftest(&Report::of(&plan, &[port_of(&plan)]));
    let last = text.lines().last().unwrap();
    assert!(last.contains("5.25"), "{last}");
}

#[test]
fn csv_has_a_cell_for_each_name() {
    let plan = Plan {
        tests: vec![Test::Bw],
        bidirectional: true,
        ..plan()
    };
    for r in [
        report(),
        Report::of(&plan, &[both_ways(&plan)]),
        Report::of(&open_plan(), &[port_of(&open_plan())]),
    ] {
        let text = show::csv(&r);
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split(',').collect()).collect();
        assert!(lines.len() > 1);
        for line in &lines {
            assert_eq!(line.len(), lines[0].len(), "{line:?}");
        }
    }
    let text = show::csv(&report());
    let lines: Vec<&str> = text.lines().collect();
    let head = "op,test,size,qps,depth,ports,path_mtu,offered_per_s,messages,seconds,";
    assert!(lines[0].starts_with(head), "{}", lines[0]);
    assert_eq!(
        lines[1],
        "send,bw,64,1,64,1,4096,,1000000,1.000000,1000000.000000,1250000.000000,0.512000,,,,,,,,,,,\
         ,,,,,,,,6,0,0,0,0,20,0,500.000000,250.000000,1500.000000,,500.000000,,0.500000,"
    );
    let names: Vec<&str> = lines[0].split(',').collect();
    let cell = |line: &str, name: &str| -> String {
        let at = names.iter().position(|n| *n == name).unwrap();
        line.split(',').nth(at).unwrap().to_owned()
    };
    assert_eq!(cell(lines[2], "test"), "lat");
    assert_eq!(cell(lines[2], "samples"), "1000");
    assert_eq!(cell(lines[2], "messages_per_s"), "");
    let text = show::csv(&Report::of(&open_plan(), &[port_of(&open_plan())]));
    let last = text.lines().last().unwrap();
    assert_eq!(
        (cell(last, "offered_per_s"), cell(last, "unsent")),
        ("2000".into(), "0".into())
    );
    assert_eq!(cell(last, "behind_max_ns"), "0");
}

#[test]
fn people_are_told_why_there_are_no_instructions() {
    let text = show::people(&report());
    assert!(
        text.ends_with("instructions, cycles, cache misses of the server: not offered: no PMU"),
        "{text}"
    );
    assert!(
        text.contains("instr. client") && text.contains("1 500"),
        "{text}"
    );
}

#[test]
fn people_are_told_of_a_ring_that_is_too_small() {
    let mut r = report();
    assert!(!show::people(&r).contains("--ring"));
    r.results[0].server.frames_dropped = 7;
    let text = show::people(&r);
    assert!(
        text.contains("7 frames found no room in the receive ring of the server"),
        "{text}"
    );
    assert!(!text.contains("ring of the client"), "{text}");
}

#[test]
fn histograms_of_all_steps_follow_each_other() {
    let plan = open_plan();
    let mut out = Vec::new();
    show::histograms(&[port_of(&plan), port_of(&plan)], &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert_eq!(text.matches("1/(1-Percentile)").count(), 2);
    assert_eq!(
        text.matches("Total count    =          200]").count(),
        2,
        "{text}"
    );
    assert!(
        text.contains("#[SEND open loop of 64 B, 1 queue pair, depth 64, 2 000 messages/s,"),
        "{text}"
    );
}

#[test]
fn a_failure_without_a_queue_pair_is_its_words() {
    let error = anyhow::anyhow!("no such thing").context("SEND bandwidth of 64 B");
    let v = serde_json::to_value(Failed::of(&error)).unwrap();
    assert_eq!(v["error"], "SEND bandwidth of 64 B: no such thing");
    assert_eq!(
        (&v["schema"], &v["failure"]),
        (&1.into(), &serde_json::Value::Null)
    );
}

#[test]
fn numbers_for_people() {
    assert_eq!(rate(0.0), "0");
    assert_eq!(rate(999.4), "999");
    assert_eq!(rate(1234.0), "1 234");
    assert_eq!(rate(12_345_678.0), "12 345 678");
    assert_eq!(micros(5_259), "5.25");
    assert_eq!(micros(99), "0.09");
}
