//! A bottleneck in the kernel between two engines: each mark and each drop of the hop is seen by
//! those it concerns. Needs root and AF_XDP; prints why it is skipped otherwise.
#![cfg(feature = "xdp")]
#![allow(clippy::unwrap_used, reason = "a test: what fails, fails it")]

mod common;

use common::netns_end::{self, End, LIMIT, exchange, write, xdp};
use xroce_engine::clock;
use xroce_net::addressing::Addressing;
use xroce_net::datapath::Datapath;
use xroce_net::udp::{UdpConfig, UdpPort};
use xroce_net::xdp::hop::{Hop, PhantomQueue, QueueReport};
use xroce_net::xdp::{Mode, XdpConfig, XdpError, XdpPort};
use xroce_proto::cc::{CongestionControl, Rate};
use xroce_proto::counters::Counters;
use xroce_proto::qp::{QpAttr, QpState};
use xroce_proto::recovery::{Reliability, SelectiveParams};
use xroce_proto::wc::WcStatus;
use xroce_testnet::{IFNAME, Netns, Star};
use xroce_wire::newtypes::PathMtu;

const RATE: u64 = 1_000_000_000;
/// Messages of a test, and their bytes.
const MESSAGES: u64 = 100;
const LEN: u32 = 20_000;
/// Marks from the second packet of a burst on, drops none.
const MARKS: PhantomQueue = PhantomQueue {
    rate: RATE,
    limit: 10_000_000,
    kmin: 0,
    kmax: 4_000,
    pmax_ppm: 500_000,
    loss_ppm: 0,
};

fn hop(star: &Star) -> Hop {
    let ports: Vec<String> = (0..star.leaves.len()).map(Star::port).collect();
    star.middle.run(|| Hop::open(&ports, Mode::Auto).unwrap())
}

/// Connects the two with these attributes.
fn connect<D: Datapath, E: Datapath>(
    a: &mut End<'_, D>,
    b: &mut End<'_, E>,
    tune: &dyn Fn(QpAttr) -> QpAttr,
) {
    netns_end::connect(a, b, PathMtu::Mtu1024, |_, _| {}, tune);
}

fn dcqcn(attr: QpAttr) -> QpAttr {
    if attr.state != Some(QpState::Rts) {
        return attr;
    }
    let line = Rate::bits_per_second(2 * RATE);
    QpAttr {
        congestion: Some(CongestionControl::by_name("dcqcn", line, &[]).unwrap()),
        ..attr
    }
}

/// [`MESSAGES`] WRITEs, eight at a time, all good; what either end has counted.
fn stream<D: Datapath, E: Datapath>(from: &mut End<'_, D>, to: &mut End<'_, E>) -> [Counters; 2] {
    let end = clock::now() + LIMIT;
    let (mut posted, mut done) = (0, 0);
    while done < MESSAGES {
        assert!(clock::now() < end, "{done}: {:?}", to.host.engine.stats());
        while posted < MESSAGES && posted - done < 8 {
            write(from, to, posted, LEN);
            posted += 1;
        }
        from.turn();
        to.turn();
        for wc in from.host.completions() {
            let why = from.host.engine.failure(from.qpn).map(|f| f.to_string());
            assert_eq!(wc.status, WcStatus::Success, "{}", why.unwrap_or_default());
            done += 1;
        }
    }
    // CNPs still under way.
    while from.counters().cnps_in < to.counters().cnps_out {
        assert!(clock::now() < end);
        from.turn();
        to.turn();
    }
    [from.counters(), to.counters()]
}

/// What the hop has marked, the receiver has counted and told, the sender has heard.
fn told<D: Datapath, E: Datapath>(
    hop: &mut Hop,
    from: &mut End<'_, D>,
    to: &mut End<'_, E>,
) -> QueueReport {
    connect(from, to, &dcqcn);
    exchange(from, to, 64);
    hop.set_queue(1, &MARKS).unwrap();
    let before = to.counters();
    let [sender, receiver] = stream(from, to);
    let queue = hop.queue(1).unwrap();
    assert_eq!(queue.overflowed + queue.lost, 0);
    assert!(queue.marked > 50, "{queue:?}");
    assert_eq!(receiver.ce_marked - before.ce_marked, queue.marked);
    assert_eq!(
        receiver.cnps_out + receiver.cnps_suppressed,
        receiver.ce_marked
    );
    assert!(receiver.cnps_out > 0);
    assert_eq!(sender.cnps_handled, receiver.cnps_out);
    queue
}

#[test]
fn netns_marks_of_a_hop_are_counted_by_the_receiver_and_told_to_the_sender() {
    let Some(star) = Star::or_skip(2, 1500) else {
        return;
    };
    let mut hop = hop(&star);
    let [mut from, mut to] = [0, 1].map(|i| xdp(&star.leaves[i], IFNAME, None));
    let queue = told(&mut hop, &mut from, &mut to);
    assert!(queue.percentile(50) <= queue.percentile(95));
    assert!(queue.percentile(95) <= queue.deepest && queue.deepest <= MARKS.limit);
}

/// The addresses of one family, IPv6 unless `v4`, claimed by a port of AF_XDP.
fn claim(star: &Star, i: usize, v4: bool) -> XdpPort {
    let leaf = &star.leaves[i];
    let mut config = XdpConfig::new(IFNAME);
    config.addresses = vec![leaf.ip(!v4).into()];
    leaf.run(|| XdpPort::open(&config).unwrap())
}

/// The receiving kernel looks at the IPv4 checksum, which the mark has to keep right; IPv6 has none.
#[test]
fn netns_marked_packets_are_good_to_the_kernel() {
    for v6 in [false, true] {
        let Some(star) = Star::or_skip(2, 1500) else {
            return;
        };
        let mut hop = hop(&star);
        // So that the kernel can redirect to the veth; frames of the other family pass.
        let claimed = claim(&star, 1, v6);
        let leaf = &star.leaves[1];
        let (port, addressing) = leaf.run(|| {
            let port = UdpPort::bind(leaf.ip(v6), &UdpConfig::default()).unwrap();
            let gid = leaf.ip(v6).into();
            let addressing = Addressing::udp(gid, 0, port.src_port()).unwrap();
            (port, addressing)
        });
        let mut to = End::new(leaf, port, addressing);
        let mut from = xdp_of(&star.leaves[0], v6);
        told(&mut hop, &mut from, &mut to);
        drop(claimed);
    }
}

/// An end at AF_XDP with the address of this family.
fn xdp_of(leaf: &Netns, v6: bool) -> End<'_, XdpPort> {
    let (port, addressing) = netns_end::open_xdp(leaf, IFNAME, None);
    End::at(leaf, port, addressing, leaf.ip(v6).into())
}

#[test]
fn netns_losses_of_a_hop_are_repaired_either_way() {
    let Some(star) = Star::or_skip(2, 1500) else {
        return;
    };
    let mut hop = hop(&star);
    let kinds = [
        Reliability::GoBackN,
        Reliability::Selective(SelectiveParams::default()),
    ];
    for reliability in kinds {
        let [mut from, mut to] = [0, 1].map(|i| xdp(&star.leaves[i], IFNAME, None));
        let tune = |attr: QpAttr| QpAttr {
            reliability: (attr.state == Some(QpState::Rtr)).then_some(reliability),
            ..attr
        };
        connect(&mut from, &mut to, &tune);
        exchange(&mut from, &mut to, 64);
        let lossy = PhantomQueue {
            loss_ppm: 30_000,
            ..PhantomQueue::default()
        };
        hop.set_queue(1, &lossy).unwrap();
        let [sender, _] = stream(&mut from, &mut to);
        let queue = hop.queue(1).unwrap();
        assert!(queue.lost > 10, "{queue:?}");
        assert!(sender.retransmits >= queue.lost, "{sender:?}, {queue:?}");
        hop.set_queue(1, &PhantomQueue::default()).unwrap();
    }
}

#[test]
fn netns_what_does_not_fit_into_the_queue_is_dropped() {
    let Some(star) = Star::or_skip(2, 1500) else {
        return;
    };
    let mut hop = hop(&star);
    let [mut from, mut to] = [0, 1].map(|i| xdp(&star.leaves[i], IFNAME, None));
    connect(&mut from, &mut to, &|attr| attr);
    exchange(&mut from, &mut to, 64);
    let small = PhantomQueue {
        rate: RATE / 2,
        limit: 20_000,
        kmax: 20_000,
        ..PhantomQueue::default()
    };
    hop.set_queue(1, &small).unwrap();
    let [sender, _] = stream(&mut from, &mut to);
    let queue = hop.queue(1).unwrap();
    assert!(queue.overflowed > 0 && queue.lost == 0, "{queue:?}");
    assert!(queue.deepest <= small.limit, "{queue:?}");
    assert!(sender.retransmits >= queue.overflowed, "{sender:?}");
}

/// Neighbours are found by broadcasts through the hop, by the kernel too.
#[test]
fn netns_a_hop_floods_what_it_has_not_learned_and_three_hosts_reach_each_other() {
    let Some(star) = Star::or_skip(3, 1500) else {
        return;
    };
    let hop = hop(&star);
    let ports = [0, 1, 2].map(|i| claim(&star, i, true));
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        for v6 in [false, true] {
            star.leaves[from].ping(star.leaves[to].ip(v6)).unwrap();
        }
    }
    drop(ports);
    drop(hop);
    // Given back: the kernel's stack has the interfaces again, and nothing joins them.
    assert!(star.leaves[0].ping(star.leaves[1].ip(false)).is_err());
}

#[test]
fn netns_a_hop_refuses_what_it_cannot_join() {
    let Some(star) = Star::or_skip(2, 1500) else {
        return;
    };
    let ports: Vec<String> = (0..2).map(Star::port).collect();
    let open = |names: &[String]| star.middle.run(|| Hop::open(names, Mode::Auto).map(|_| ()));
    let why = open(&[ports[0].clone(), String::from("nosuch0")]).unwrap_err();
    assert!(why.to_string().contains("nosuch0"), "{why}");
    // The failed attempt has left the first free.
    let mut hop = hop(&star);
    assert_eq!(hop.ports(), 2);
    let why = open(&ports).unwrap_err();
    assert!(matches!(why, XdpError::Occupied { .. }), "{why}");
    let why = hop.set_queue(2, &MARKS).unwrap_err();
    assert!(why.to_string().contains("no port 2 of 2"), "{why}");
    star.middle.ip_cmd("link set port0 down").unwrap();
    drop(hop);
    let why = open(&ports).unwrap_err();
    assert!(why.to_string().contains("down"), "{why}");
}
