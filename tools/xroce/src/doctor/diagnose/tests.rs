//! Measurements and what is said about them.

use std::net::IpAddr;

use super::super::facts::{Connected, Direction, Edge, Facts, Rates, Trial};
use super::super::message::{ClassSeen, End, Heard, Sent, SourceSeen, Way};
use super::super::near::payload_of;
use super::super::probe::PAYLOAD_MIN;
use super::super::report::{Check, Fault, Report, State};
use super::super::train::{Carrier, Group, Train};
use super::report;
use xroce_wire::newtypes::PathMtu;

const CLASS: u8 = 26 << 2 | 2;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn end(gid: &str) -> End {
    End {
        gid: ip(gid),
        addresses: vec![ip(gid)],
        port: "AF_XDP eth0".to_owned(),
        ethernet: true,
        up: true,
        link_mtu: 4200,
        queues: 1,
        qpn: 77,
        other_port: 40_000,
        trouble: None,
    }
}

/// A train of which everything arrives.
fn trial(from: &str, groups: &[(u32, u32)]) -> Trial {
    let group = |&(payload, count)| Group { payload, count };
    let groups: Vec<Group> = groups.iter().map(group).collect();
    let packets = groups.iter().map(|g| g.count).sum();
    Trial {
        heard: Heard {
            groups: groups.iter().map(|g| g.count).collect(),
            sources: vec![SourceSeen {
                address: ip(from),
                port: 0xc000,
                packets,
                icrc_wrong: 0,
            }],
            classes: vec![ClassSeen {
                class: CLASS,
                packets,
            }],
            dscp_known: true,
            hop_limit: Some(64),
            ..Heard::default()
        },
        sent: Sent {
            packets,
            src_port: 0xc000,
            hop_limit: Some(64),
            ..Sent::default()
        },
        train: Train {
            number: 1,
            carrier: Carrier::Roce,
            groups,
            rate: 2_000,
            class: CLASS,
        },
    }
}

fn direction(from: &str) -> Direction {
    let sizes = PathMtu::ALL.map(|m| (payload_of(m), 20));
    let mut other = trial(from, &[(PAYLOAD_MIN, 20)]);
    other.sent.src_port = 40_000;
    other.heard.sources[0].port = 40_000;
    Direction {
        other: Some(other),
        reach: Some(trial(from, &[(PAYLOAD_MIN, 20)])),
        sizes: Some(trial(from, &sizes)),
        edge: None,
        many: vec![trial(from, &[(256, 10_000)])],
    }
}

const NEAR: &str = "10.0.0.1";
const FAR: &str = "10.0.0.2";

/// A path without faults.
fn facts() -> Facts {
    let mut facts = Facts::new(end(NEAR), end(FAR));
    facts.near_way = Some(Way::Neighbour("02:00:00:00:00:02".to_owned()));
    facts.far_way = Some(Way::Neighbour("02:00:00:00:00:01".to_owned()));
    facts.there = direction(NEAR);
    facts.back = direction(FAR);
    facts.connected = Connected::Measured(Rates {
        path_mtu: 4096,
        gbit_per_s: 9.0,
        packets: 50_000,
        round_trips: 5_000,
        ..Rates::default()
    });
    facts
}

fn silence(trial: &mut Option<Trial>) {
    let heard = &mut trial.as_mut().unwrap().heard;
    heard.groups.fill(0);
    heard.sources.clear();
    heard.classes.clear();
}

/// What is wrong, each with its check.
fn faults(report: &Report) -> Vec<(Check, State, Fault)> {
    let all = report.findings.iter();
    all.filter_map(|f| f.fault.map(|fault| (f.check, f.state, fault)))
        .collect()
}

#[track_caller]
fn says(facts: &Facts, faults_expected: &[(Check, State, Fault)], words: &[&str]) -> Report {
    let report = report(facts);
    assert_eq!(faults(&report), faults_expected, "{}", report.text());
    for word in words {
        assert!(report.text().contains(word), "{word}: {}", report.text());
    }
    report
}

#[test]
fn nothing_is_wrong_with_a_path_without_faults() {
    let report = says(&facts(), &[], &["Nothing is wrong", "through no router"]);
    assert_eq!(report.state, State::Ok);
    assert!(report.findings.iter().all(|f| f.state == State::Ok));
}

#[test]
fn ports_that_do_not_open_or_have_no_carrier() {
    let trouble = "interface eth0 is down; bring it up: ip link set dev eth0 up";
    let mut facts = Facts::new(end(NEAR), End::without_port(ip(FAR), trouble));
    let expected = [(Check::Port, State::Problem, Fault::PortUnusable)];
    let report = says(&facts, &expected, &[trouble, "not checked"]);
    let rest = report.findings.iter().filter(|f| f.check != Check::Port);
    assert!(rest.into_iter().all(|f| f.state == State::NotChecked));
    facts = self::facts();
    facts.far.up = false;
    says(
        &facts,
        &[(Check::Port, State::Problem, Fault::LinkDown)],
        &["carrier"],
    );
}

#[test]
fn gids_of_two_kinds_and_what_would_do_instead() {
    let mut facts = Facts::new(end(NEAR), end("fd00::2"));
    let family = [(Check::Gid, State::Problem, Fault::GidFamily)];
    says(
        &facts,
        &family,
        &["no common GID family", "addresses of one family"],
    );
    facts.far.addresses = vec![ip("fe80::2"), ip("fd00::2"), ip(FAR)];
    facts.near.addresses = vec![ip("fe80::1"), ip(NEAR)];
    says(&facts, &family, &["IPv4 addresses, 10.0.0.1 and 10.0.0.2"]);
    let facts = Facts::new(end("fe80::1"), end("fd00::2"));
    let scope = [(Check::Gid, State::Problem, Fault::GidScope)];
    says(
        &facts,
        &scope,
        &["fe80::1 (IPv6 link-local) and fd00::2 (IPv6)"],
    );
}

#[test]
fn a_neighbour_that_does_not_answer() {
    let mut facts = facts();
    facts.near_way = Some(Way::None("10.0.0.2 does not answer ARP on eth0".to_owned()));
    facts.there = Direction::default();
    facts.connected = Connected::NotTried("packets do not arrive intact");
    let expected = [(Check::Neighbour, State::Problem, Fault::Neighbour)];
    says(
        &facts,
        &expected,
        &["does not answer ARP", "there is no way"],
    );
}

#[test]
fn a_firewall_is_told_apart_from_no_way_at_all() {
    let mut facts = facts();
    silence(&mut facts.there.reach);
    facts.connected = Connected::NotTried("packets do not arrive intact");
    let blocked = [(Check::Reachability, State::Problem, Fault::Udp4791Blocked)];
    let words = [
        "0 of 20 packets to UDP port 4791",
        "20 of 20 to UDP port 40000",
    ];
    says(&facts, &blocked, &words);
    facts.far.queues = 8;
    says(&facts, &blocked, &["which has 8 queues"]);
    let icmp = "10.0.0.254 about packets to 10.0.0.2: forbidden by a filter";
    facts.there.reach.as_mut().unwrap().sent.icmp = vec![icmp.to_owned()];
    says(&facts, &blocked, &["forbidden by a filter"]);
    silence(&mut facts.there.other);
    let nothing = [(Check::Reachability, State::Problem, Fault::Unreachable)];
    says(&facts, &nothing, &["none to another UDP port"]);
    facts.tcp_passes = true;
    says(
        &facts,
        &blocked,
        &["none to another UDP port either, but TCP passes"],
    );
}

#[test]
fn a_translation_explains_wrong_icrcs_and_the_silence_behind_it() {
    let mut facts = facts();
    let there = &mut facts.there;
    let few = there.reach.iter_mut().chain(&mut there.sizes);
    for trial in few.chain(&mut there.many) {
        let seen = &mut trial.heard.sources[0];
        (seen.address, seen.port) = (ip("192.0.2.1"), 1024);
        seen.icrc_wrong = seen.packets;
    }
    facts.connected = Connected::NotTried("packets do not arrive intact");
    let translated = (Check::Addresses, State::Problem, Fault::AddressTranslation);
    let words = ["sent from 10.0.0.1 UDP port 49152, arrived from 192.0.2.1 UDP port 1024"];
    says(&facts, &[translated], &words);
    silence(&mut facts.back.reach);
    silence(&mut facts.back.other);
    let unreachable = (
        Check::Reachability,
        State::Problem,
        Fault::AddressTranslation,
    );
    says(
        &facts,
        &[translated, unreachable],
        &["behind a translation"],
    );
}

#[test]
fn wrong_icrcs_without_a_translation_are_corruption() {
    let mut facts = facts();
    facts.there.many[0].heard.sources[0].icrc_wrong = 1;
    says(
        &facts,
        &[(Check::Icrc, State::Warning, Fault::Corruption)],
        &[],
    );
    facts.there.many[0].heard.sources[0].icrc_wrong = 100;
    says(
        &facts,
        &[(Check::Icrc, State::Problem, Fault::Corruption)],
        &["0.98 %"],
    );
}

#[test]
fn an_mtu_in_the_middle_is_told_apart_from_one_at_an_end() {
    let mut facts = facts();
    facts.there.sizes.as_mut().unwrap().heard.groups = vec![20, 20, 20, 0, 0];
    facts.there.edge = Some(Edge {
        passes: 1500,
        vanishes: 1504,
    });
    let middle = [(Check::PathMtu, State::Problem, Fault::MtuInTheMiddle)];
    let words = [
        "path MTU 1024 passes",
        "1500 bytes arrive",
        "silently",
        "4192 or more",
    ];
    says(&facts, &middle, &words);
    let icmp = "10.0.0.254 about packets to 10.0.0.2: too long for a link with an IP MTU of 1500";
    facts.there.sizes.as_mut().unwrap().sent.icmp = vec![icmp.to_owned()];
    says(&facts, &middle, &["ICMP from 10.0.0.254"]);

    let mut facts = self::facts();
    facts.far.link_mtu = 1500;
    let sizes = [PathMtu::Mtu256, PathMtu::Mtu512, PathMtu::Mtu1024];
    let sizes = sizes.map(|m| (payload_of(m), 20));
    facts.there.sizes = Some(trial(NEAR, &sizes));
    facts.back.sizes = Some(trial(FAR, &sizes));
    let differs = [(Check::PathMtu, State::Warning, Fault::LinkMtuDiffers)];
    says(
        &facts,
        &differs,
        &["10.0.0.2 is the smaller one: path MTU 1024"],
    );
    facts.far.link_mtu = 300;
    (facts.there.sizes, facts.back.sizes) = (None, None);
    says(
        &facts,
        &[(Check::PathMtu, State::Problem, Fault::LinkMtuTooSmall)],
        &[],
    );
}

#[test]
fn a_few_lost_packets_of_a_size_do_not_make_an_mtu() {
    let mut facts = facts();
    facts.there.sizes.as_mut().unwrap().heard.groups = vec![20, 19, 18, 20, 17];
    says(&facts, &[], &[]);
}

fn classes(facts: &mut Facts, seen: &[(u8, u32)]) {
    let seen = seen
        .iter()
        .map(|&(class, packets)| ClassSeen { class, packets });
    facts.there.many[0].heard.classes = seen.collect();
}

#[test]
fn what_becomes_of_the_traffic_class() {
    let mut facts = facts();
    classes(&mut facts, &[(CLASS & !3, 10_000)]);
    let bleached = (Check::Ecn, State::Problem, Fault::EcnBleached);
    says(
        &facts,
        &[bleached],
        &["10000 of 10120 packets (98.81 %) arrived as Not-ECT"],
    );
    // One of many ways.
    classes(&mut facts, &[(CLASS & !3, 50), (CLASS, 9_950)]);
    says(
        &facts,
        &[(Check::Ecn, State::Warning, Fault::EcnBleached)],
        &[],
    );
    classes(&mut facts, &[(CLASS ^ 3, 50), (CLASS, 9_950)]);
    says(
        &facts,
        &[(Check::Ecn, State::Warning, Fault::EcnRewritten)],
        &["ECT(1)"],
    );
    // Marks are what it is for.
    classes(&mut facts, &[(CLASS | 3, 50), (CLASS, 9_950)]);
    says(&facts, &[], &["50 marked CE (0.49 %)"]);
    let rewritten = (Check::Dscp, State::Warning, Fault::DscpRewritten);
    classes(&mut facts, &[(2, 10_000)]);
    says(
        &facts,
        &[rewritten],
        &["sent DSCP 26, 10000 of 10120 packets arrived as 0"],
    );
    classes(&mut facts, &[(0, 10_000)]);
    says(&facts, &[bleached, rewritten], &[]);
}

#[test]
fn a_socket_tells_no_dscp_and_that_is_no_fault() {
    let mut facts = facts();
    for d in [&mut facts.there, &mut facts.back] {
        let few = d.reach.iter_mut().chain(&mut d.sizes);
        for trial in few.chain(&mut d.many) {
            trial.heard.dscp_known = false;
            trial.heard.classes[0].class &= 3;
        }
    }
    let report = says(&facts, &[], &["a UDP socket is told ECN only"]);
    assert_eq!(report.state, State::Ok);
    assert!(report.text().contains("2 checks were not possible"));
}

/// Three trains, each with so many of 10 000 lost.
fn losing(lost: &[u32], gap: u32) -> Facts {
    let mut facts = facts();
    facts.there.many = lost
        .iter()
        .map(|lost| {
            let mut trial = trial(NEAR, &[(256, 10_000)]);
            trial.heard.groups = vec![10_000 - lost];
            (trial.heard.gaps, trial.heard.longest_gap) = (*lost / gap, gap);
            trial
        })
        .collect();
    facts
}

#[test]
fn a_habit_is_told_apart_from_an_accident() {
    let loss = |state| [(Check::Loss, state, Fault::Loss)];
    let words = [
        "200 of 20000 packets lost (1.00 %, in 2 of 2 trains)",
        "one by one",
    ];
    says(&losing(&[100, 100], 1), &loss(State::Problem), &words);
    says(
        &losing(&[100, 100], 20),
        &loss(State::Problem),
        &["in bursts"],
    );
    says(&losing(&[1, 0, 1], 1), &loss(State::Warning), &[]);
    // Happened once: told, and no fault.
    says(&losing(&[3, 0, 0], 1), &[], &["3 of 30000 packets lost"]);
    // Happened once, to many.
    says(&losing(&[900, 0, 0], 900), &loss(State::Warning), &[]);
}

#[test]
fn what_a_receiving_host_drops_is_not_lost_on_the_way() {
    let mut facts = losing(&[100, 100], 20);
    for trial in &mut facts.there.many {
        trial.heard.dropped_here = 100;
    }
    let drops = [(Check::Loss, State::Warning, Fault::ReceiverDrops)];
    says(&facts, &drops, &["dropped by the receiving host"]);
    // Once: a busy machine.
    facts.there.many.truncate(1);
    says(&facts, &[], &[]);
    // What the sending kernel refused never left.
    let mut facts = losing(&[100, 100], 20);
    for trial in &mut facts.there.many {
        trial.sent.refused = 100;
    }
    says(&facts, &[], &[]);
}

#[test]
fn order_and_copies() {
    let mut facts = losing(&[0, 0], 1);
    for trial in &mut facts.there.many {
        (trial.heard.reordered, trial.heard.displacement) = (500, 8);
    }
    let order = (Check::Order, State::Problem, Fault::Reordering);
    says(&facts, &[order], &["5.00 %", "by 8 places at most"]);
    for trial in &mut facts.there.many {
        (trial.heard.reordered, trial.heard.duplicates) = (0, 5);
    }
    let twice = (Check::Duplicates, State::Warning, Fault::Duplication);
    says(&facts, &[twice], &["10 of 20000 packets came again"]);
}

#[test]
fn connections_that_fail_suffer_or_carry_wrong_data() {
    let mut facts = facts();
    facts.connected = Connected::Failed("retry counter exceeded".to_owned());
    let failed = [(Check::Connection, State::Problem, Fault::ConnectionFailed)];
    says(&facts, &failed, &["retry counter exceeded"]);
    let rates = Rates {
        packets: 10_000,
        sequence_naks: 10,
        retransmissions: 320,
        ..Rates::default()
    };
    facts.connected = Connected::Measured(rates);
    let load = [(Check::Connection, State::Warning, Fault::LossUnderLoad)];
    says(&facts, &load, &["320 retransmissions (3.20 %)"]);
    // Not when the probes have met the cause already.
    facts.there.many = losing(&[100, 100], 1).there.many;
    let known = [
        (Check::Loss, State::Problem, Fault::Loss),
        (Check::Connection, State::Warning, Fault::Loss),
    ];
    says(&facts, &known, &["mend the loss first"]);
    let mut facts = self::facts();
    // A busy host is late once; what overflows loses whole windows.
    for (timeouts, expected) in [(1, &[][..]), (5, &load)] {
        facts.connected = Connected::Measured(Rates {
            sequence_naks: 0,
            timeouts,
            ..rates
        });
        says(&facts, expected, &[]);
    }
    facts.connected = Connected::Measured(Rates { wrong: 1, ..rates });
    says(
        &facts,
        &[(Check::Connection, State::Problem, Fault::WrongData)],
        &[],
    );
}
