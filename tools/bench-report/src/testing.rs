//! A run for tests.

use crate::{
    Axis, Bar, Curve, Fact, Goal, Machine, Part, Plot, Row, Run, SCHEMA, Sample, Scale, Ticks, Unit,
};

/// A row of a rate with these figures of ours and of the peer.
pub(crate) fn row(key: &str, goal: Goal, samples: &[(f64, f64)]) -> Row {
    let sample = |&(ours, peer)| Sample {
        ours,
        peer: Some(peer),
    };
    Row {
        key: key.to_owned(),
        id: key.split('-').next().unwrap_or(key).to_owned(),
        measure: format!("SEND of {key}"),
        against: String::from("raw frames"),
        unit: Unit::PacketsPerSecond,
        goal,
        samples: samples.iter().map(sample).collect(),
        packets_sent_again: 0,
        notes: Vec::new(),
    }
}

/// A row that met its goal, one that missed, one that was not measured; a plot, a bar.
pub(crate) fn run() -> Run {
    let goal = Goal::RatioAtLeast(0.9);
    let axis = |name: &str, scale, ticks| Axis {
        name: name.to_owned(),
        scale,
        ticks,
    };
    let mut absent = row("D8-send", Goal::RatioAtLeast(3.0), &[]);
    absent.notes.push(String::from("needs root"));
    let fact = |name: &str, value: &str| Fact {
        name: name.to_owned(),
        value: value.to_owned(),
    };
    let part = |name: &str, share| Part {
        name: name.to_owned(),
        share,
    };
    Run {
        schema: SCHEMA,
        started: String::from("2026-03-01T12:30:00Z"),
        commit: String::from("0123abc"),
        complete: true,
        rounds: 3,
        seconds: 1.0,
        took: 61.5,
        machine: Machine {
            facts: vec![fact("kernel", "6.18 <smp> | \"x\""), fact("CPU", "some")],
            cores: 2,
            threads: 2,
            others: vec![0.01, 0.02, 0.01],
            stolen: vec![0.0; 3],
        },
        rows: vec![
            row("D1", goal, &[(90e3, 100e3), (91e3, 100e3), (90e3, 100e3)]),
            row(
                "D2-4096",
                goal,
                &[(80e3, 100e3), (84e3, 100e3), (82e3, 100e3)],
            ),
            absent,
        ],
        plots: vec![Plot {
            key: String::from("rate"),
            title: String::from("Rate & size"),
            note: String::from("<both ends>"),
            x: axis("size", Scale::Log, Ticks::Bytes),
            y: axis("messages/s", Scale::Linear, Ticks::Count),
            curves: vec![
                Curve {
                    name: String::from("SEND <1>"),
                    is_peer: false,
                    points: vec![(2.0, 5e5), (4096.0, 2e5), (1048576.0, 844.0)],
                },
                Curve {
                    name: String::from("raw"),
                    is_peer: true,
                    points: vec![(2.0, 6e5), (4096.0, 3e5)],
                },
            ],
        }],
        bars: vec![Bar {
            name: String::from("WRITE of 64 KB over AF_XDP"),
            of: String::from("CPU time"),
            rows: vec![String::from("D2-4096")],
            parts: vec![part("kernel", 0.88), part("xroce", 0.12)],
        }],
    }
}
