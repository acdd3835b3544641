//! Random traffic, with losses, copies, repeats and overtaking, held against the plain definitions.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// Traffic between two ends to make a capture of.
#[derive(Clone, Debug)]
struct Traffic {
    start: u32,
    /// For each request the PSNs it takes (1 is a SEND, more a READ), and when it is seen: so many
    /// places after it was first sent. Not at all: lost in front of the capture.
    requests: Vec<(u32, Vec<usize>)>,
    /// For each response of a READ, or ACK, the same.
    responses: Vec<Vec<usize>>,
    /// Of the packets seen: those in front of which it is quiet for longer than copies take, and
    /// those in front of which the responder refuses something.
    quiet: BTreeSet<usize>,
    refusals: BTreeSet<usize>,
}

fn traffic() -> impl Strategy<Value = Traffic> {
    let start = prop_oneof![0..0x100_0000_u32, 0xff_ff80..0x100_0000_u32];
    let seen = || {
        prop_oneof![
            6 => Just(vec![0]),
            1 => Just(vec![]),
            3 => prop::collection::vec(prop_oneof![0..6_usize, 0..60_usize], 0..4),
        ]
    };
    let cost = prop_oneof![3 => Just(1_u32), 1 => 2..7_u32];
    let requests = prop::collection::vec((cost, seen()), 1..50);
    let responses = prop::collection::vec(seen(), 350);
    let some = || prop::collection::btree_set(0..150_usize, 0..20);
    (start, requests, responses, some(), some()).prop_map(
        |(start, mut requests, responses, quiet, refusals)| {
            // Something tells the path MTU: one of these is a First.
            requests.extend((0..4).map(|_| (1, vec![0])));
            Traffic {
                start,
                requests,
                responses,
                quiet,
                refusals,
            }
        },
    )
}

/// What is seen, in order: which of the packets sent.
fn order(seen: &[Vec<usize>]) -> Vec<usize> {
    let late = |(i, places): (usize, &Vec<usize>)| {
        let places = places.clone();
        places.into_iter().map(move |places| (i + places, i))
    };
    let mut order: Vec<(usize, usize)> = seen.iter().enumerate().flat_map(late).collect();
    order.sort_by_key(|(at, _)| *at);
    order.into_iter().map(|(_, i)| i).collect()
}

/// A packet seen: what it takes, unwrapped, and when.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    at: u64,
    cost: u64,
    us: u64,
    refused_us: Option<u64>,
}

/// The plain definitions, over all that was seen of one sequence. `wanted` is what can be missing.
fn truth(arrivals: &[Arrival], wanted: impl Fn(u64) -> bool) -> Figures {
    let (mut overtaken, mut by, mut duplicates, mut repeats) = (0, 0, 0, 0);
    let mut firsts: Vec<u64> = Vec::new();
    for (i, a) in arrivals.iter().enumerate() {
        if firsts.contains(&a.at) {
            let copy = arrivals[..i].iter().any(|b| {
                let refused = a.refused_us.is_some_and(|r| r >= b.us);
                b.at == a.at && a.us - b.us < 1000 && !refused
            });
            duplicates += u64::from(copy);
            repeats += u64::from(!copy);
            continue;
        }
        if let Some(passed) = firsts.iter().position(|f| *f > a.at) {
            overtaken += 1;
            by = by.max((firsts.len() - passed) as u64);
        }
        firsts.push(a.at);
    }
    let seen: BTreeSet<u64> = arrivals.iter().flat_map(|a| a.at..a.at + a.cost).collect();
    let from = arrivals.first().map_or(0, |a| a.at);
    let to = seen.last().copied().unwrap_or(0);
    let missing: Vec<u64> = (from..to)
        .filter(|psn| !seen.contains(psn) && wanted(*psn))
        .collect();
    // A run of PSNs not seen is one gap, if anything of it is missing.
    let gap = |psn: &u64| (from..*psn).rev().find(|p| seen.contains(p));
    let gaps: BTreeSet<Option<u64>> = missing.iter().map(gap).collect();
    let (gaps, missing) = (gaps.len() as u64, missing.len() as u64);
    [gaps, missing, overtaken, by, duplicates, repeats]
}

/// PSNs of each request, unwrapped: first, and how many.
fn places(traffic: &Traffic) -> Vec<(u64, u32)> {
    let mut next = (1 << 24) + u64::from(traffic.start);
    let place = |(cost, _): &(u32, Vec<usize>)| {
        let at = next;
        next += u64::from(*cost);
        (at, *cost)
    };
    traffic.requests.iter().map(place).collect()
}

fn request(at: u64, cost: u32) -> P {
    match cost {
        1 if !at.is_multiple_of(4) => send(at as u32),
        1 => first(at as u32),
        n => read(at as u32, at << 16, n * MTU),
    }
}

/// Puts pauses and refusals in between, and says when each packet is seen.
fn timed(traffic: &Traffic, seen: Vec<(P, u64, u64)>) -> (Vec<P>, Vec<Arrival>) {
    let (mut packets, mut arrivals, mut us, mut refused_us) = (vec![], vec![], 0, None);
    for (i, (packet, at, cost)) in seen.into_iter().enumerate() {
        if traffic.refusals.contains(&i) {
            us += 10;
            refused_us = Some(us);
            packets.push(nak(at as u32).at(us));
        }
        let quiet = traffic.quiet.contains(&i);
        us += if quiet { LATER_US } else { 10 };
        packets.push(packet.at(us));
        arrivals.push(Arrival {
            at,
            cost,
            us,
            refused_us,
        });
    }
    (packets, arrivals)
}

proptest! {
    #![proptest_config(ProptestConfig::default())]

    #[test]
    fn requests_count_as_the_plain_definitions_say(traffic in traffic()) {
        let places = places(&traffic);
        let seen: Vec<Vec<usize>> = traffic.requests.iter().map(|r| r.1.clone()).collect();
        let seen = order(&seen).into_iter().map(|i| {
            let (at, cost) = places[i];
            (request(at, cost), at, cost.into())
        });
        let (packets, arrivals) = timed(&traffic, seen.collect());
        let s = summary(&file(&packets));
        let connections = s["connections"].as_array().unwrap();
        let requester = connections.iter().find(|c| c["src"] == "10.0.0.1").unwrap();
        prop_assert_eq!(figures(requester), truth(&arrivals, |_| true));
    }

    #[test]
    fn responses_count_as_the_plain_definitions_say(traffic in traffic()) {
        let places = places(&traffic);
        let mut packets: Vec<P> = places.iter().map(|(at, cost)| request(*at, *cost)).collect();
        // What answers: an ACK for each SEND, all responses of each READ.
        let answers = places.iter().flat_map(|&(at, cost)| match cost {
            1 => vec![ack(at as u32)],
            n => responses(at as u32, n, 0..n),
        });
        let from = places[0].0;
        let answers: Vec<(P, u64)> = answers.zip(from..).collect();
        let mut acked = None;
        let mut useless = 0;
        let mut arrivals = Vec::new();
        let mut us = 1_000;
        for (i, which) in order(&traffic.responses[..answers.len()]).into_iter().enumerate() {
            let (packet, at) = answers[which];
            us += if traffic.quiet.contains(&i) { LATER_US } else { 10 };
            if traffic.refusals.contains(&i) {
                packets.push(nak(at as u32).at(us));
                acked = acked.max(Some(at - 1));
                continue;
            }
            packets.push(packet.at(us));
            if packet.opcode == Opcode::RcAcknowledge {
                useless += u64::from(acked >= Some(at));
            } else {
                arrivals.push(Arrival { at, cost: 1, us, refused_us: None });
            }
            acked = acked.max(Some(at));
        }
        let reads: BTreeSet<u64> = places
            .iter()
            .filter(|(_, cost)| *cost > 1)
            .flat_map(|(at, cost)| *at..*at + u64::from(*cost))
            .collect();
        let mut expected = truth(&arrivals, |psn| reads.contains(&psn));
        expected[4] += useless;
        let all = all(&packets);
        prop_assert_eq!(all[0], [0; 6]);
        prop_assert_eq!(all.get(1).copied().unwrap_or_default(), expected);
    }
}
