//! All operations over a network that loses nothing: sizes, path MTUs, networks, pieces, several
//! queue pairs, both ends at once.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::traffic::{self, Batch, Plan};
use super::{Direction, Outcome, Scenario, Seen, Stage, in_order, mtu, rate};
use crate::ends::{Op, Service, Tuning};
use crate::fabric::Route;

/// Sizes around all boundaries of path MTU `mtu`.
fn sizes(mtu: u32) -> Vec<u32> {
    vec![
        0,
        1,
        2,
        3,
        4,
        33,
        mtu - 1,
        mtu,
        mtu + 1,
        2 * mtu,
        3 * mtu + 1,
    ]
}

/// Every operation in every size, once, in an order that mixes them.
fn mixed(mtu: u32) -> Vec<Batch> {
    let mut batches: Vec<Batch> = sizes(mtu)
        .into_iter()
        .flat_map(|size| Op::ALL.map(|op| Batch::one(op, size)))
        .collect();
    // Three and four pieces, that do not end where packets do.
    for op in Op::ALL {
        for pieces in [3, 4] {
            batches.push(Batch {
                pieces,
                ..Batch::one(op, 2 * mtu + 5)
            });
        }
    }
    batches
}

/// The same, with messages of more than 1 MB.
fn large() -> Vec<Batch> {
    [Op::Send, Op::Write, Op::Read]
        .map(|op| Batch::one(op, (1 << 20) + 1))
        .to_vec()
}

fn run(stage: &mut Stage, scenario: &Scenario, qps: u32, batches: Vec<Batch>) -> Result<Outcome> {
    let plan = Plan {
        route: scenario.route,
        mtu: scenario.mtu,
        qps,
        batches,
        tuning: Tuning::default(),
        both: scenario.direction == Direction::Both,
        service: Service::Rc,
        window: u32::MAX,
    };
    let (seen, took) = play(stage, scenario, &plan)?;
    ensure!(
        seen.xroce.retransmitted == 0,
        "xroce sent {} packets again although nothing was lost",
        seen.xroce.retransmitted
    );
    Ok(seen.outcome(rate(plan.bytes(), took)))
}

/// Runs a plan without faults: what was on the cable, and how long it took.
pub(super) fn play(
    stage: &mut Stage,
    scenario: &Scenario,
    plan: &Plan,
) -> Result<(Seen, Duration)> {
    stage.start(&[]);
    let took = in_order(stage, scenario.direction, |a, b| traffic::run(a, b, plan));
    let record = stage.finish()?;
    let took = took?;
    let seen = Seen::of(record, scenario.mtu);
    seen.no_overflow()?;
    Ok((seen, took))
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let mut list = Vec::new();
    let mut push = |name: &str, direction, route, bytes: usize, smoke, qps, batches: Vec<Batch>| {
        list.push(Scenario {
            name: name.to_owned(),
            direction,
            route,
            mtu: mtu(bytes),
            smoke,
            run: Box::new(move |stage, scenario| run(stage, scenario, qps, batches.clone())),
        });
    };
    let routes = [false, true].map(|v6| [false, true].map(|vlan| Route { v6, vlan }));
    for route in routes.into_iter().flatten() {
        for bytes in [256, 512, 1024, 2048, 4096] {
            let batches = mixed(u32::try_from(bytes).unwrap_or(0));
            for direction in Direction::EACH {
                let smoke = route == Route::V4 && bytes == 1024;
                push(
                    "verbs: all operations and sizes",
                    direction,
                    route,
                    bytes,
                    smoke,
                    1,
                    batches.clone(),
                );
            }
        }
    }
    for route in [Route::V4, Route::V6] {
        let both = Direction::Both;
        push(
            "verbs: both ends at once",
            both,
            route,
            1024,
            route.v6,
            1,
            mixed(1024),
        );
        for direction in Direction::EACH {
            push(
                "verbs: 8 queue pairs",
                direction,
                route,
                1024,
                false,
                8,
                mixed(1024),
            );
        }
    }
    for bytes in [1024, 4096] {
        for direction in Direction::EACH {
            push(
                "verbs: 1 MB and one byte",
                direction,
                Route::V4,
                bytes,
                false,
                1,
                large(),
            );
        }
    }
    list
}
