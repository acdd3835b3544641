//! Ports, addresses and neighbours.

use std::net::IpAddr;

use super::super::facts::Facts;
use super::super::is_link_local;
use super::super::message::{End, Way};
use super::super::report::{Check, Fault, Finding, State};
use super::{BOTH, Why, fine, wrong};

/// Whether each side has a port that works.
pub(super) fn ports(facts: &Facts, out: &mut Vec<Finding>) {
    for end in [&facts.near, &facts.far] {
        let place = end.gid.to_string();
        out.push(match &end.trouble {
            Some(trouble) => {
                let why = Why {
                    fault: Fault::PortUnusable,
                    cause: "this side cannot send and receive RoCE packets".to_owned(),
                    remedy: "do what the message says, and try again".to_owned(),
                };
                let state = State::Problem;
                wrong(Check::Port, &place, state, trouble.clone(), why)
            }
            None if !end.up => {
                let why = Why {
                    fault: Fault::LinkDown,
                    cause: "no carrier, or the interface is down".to_owned(),
                    remedy: "bring up the interface (ip link set dev IF up) and the switch port; \
                             check cable and optics"
                        .to_owned(),
                };
                let measured = format!("{}: the link is down", end.port);
                wrong(Check::Port, &place, State::Problem, measured, why)
            }
            None => {
                let measured = format!("{}: up, IP MTU {}", end.port, end.link_mtu);
                fine(Check::Port, &place, measured)
            }
        });
    }
}

fn kind(ip: IpAddr) -> &'static str {
    match (ip, is_link_local(ip)) {
        (IpAddr::V4(_), false) => "IPv4",
        (IpAddr::V4(_), true) => "IPv4 link-local",
        (IpAddr::V6(_), false) => "IPv6",
        (IpAddr::V6(_), true) => "IPv6 link-local",
    }
}

/// Whether both sides have addresses that can talk to each other.
pub(super) fn gids(facts: &Facts, out: &mut Vec<Finding>) {
    let (near, far) = (&facts.near, &facts.far);
    if near.trouble.is_some() || far.trouble.is_some() {
        let why = "a side has no port";
        out.push(super::unchecked(Check::Gid, BOTH, why));
        return;
    }
    let shown = |end: &End| format!("{} ({})", end.gid, kind(end.gid));
    let measured = format!("{} and {}", shown(near), shown(far));
    let fault = if near.gid.is_ipv4() != far.gid.is_ipv4() {
        Fault::GidFamily
    } else if facts.same_scope() {
        out.push(fine(Check::Gid, BOTH, measured));
        return;
    } else {
        Fault::GidScope
    };
    let cause = if fault == Fault::GidFamily {
        "no common GID family: RoCEv2 packets carry the GIDs as IP addresses, and these cannot be \
         in one packet"
    } else {
        "one GID is valid on its link only, the other is not: answers would leave from another \
         address or by another interface"
    };
    let why = Why {
        fault,
        cause: cause.to_owned(),
        remedy: common(near, far),
    };
    out.push(wrong(Check::Gid, BOTH, State::Problem, measured, why));
}

/// Which addresses would do.
fn common(near: &End, far: &End) -> String {
    let pairs = near
        .addresses
        .iter()
        .flat_map(|a| far.addresses.iter().map(move |b| (*a, *b)));
    let mut fitting: Vec<(IpAddr, IpAddr)> = pairs.filter(|(a, b)| kind(*a) == kind(*b)).collect();
    // Addresses that are valid everywhere first.
    fitting.sort_by_key(|(a, _)| (is_link_local(*a), a.is_ipv6()));
    match fitting.first() {
        Some((a, b)) => format!(
            "choose GIDs of one kind: both sides have {} addresses, {a} and {b} (--local, or the \
             GID index of the RDMA device: ibv_devinfo -v, show_gids)",
            kind(*a)
        ),
        None => format!(
            "give both interfaces addresses of one family, for example {} on both, and choose \
             their GIDs",
            kind(near.gid)
        ),
    }
}

/// Whether each side finds the other's Ethernet address.
pub(super) fn neighbours(facts: &Facts, out: &mut Vec<Finding>) {
    let sides = [
        (&facts.near, &facts.far, &facts.near_way),
        (&facts.far, &facts.near, &facts.far_way),
    ];
    for (from, to, way) in sides {
        let place = format!("{} to {}", from.gid, to.gid);
        out.push(match way {
            Some(Way::Neighbour(mac)) => fine(
                Check::Neighbour,
                &place,
                format!("by Ethernet address {mac}"),
            ),
            Some(Way::Kernel {}) => {
                let why = "below a UDP socket the kernel finds the neighbour (use --dev)";
                super::unchecked(Check::Neighbour, &place, why)
            }
            Some(Way::None(trouble)) => {
                let why = Why {
                    fault: Fault::Neighbour,
                    cause: "no route, or nobody answers ARP or neighbour discovery: another VLAN \
                            or subnet, a wrong address, a cable in another port"
                        .to_owned(),
                    remedy: "check addresses, prefix lengths, routes and VLANs of both sides (ip \
                             address, ip route get, ip neighbour) and of the switch ports"
                        .to_owned(),
                };
                let state = State::Problem;
                wrong(Check::Neighbour, &place, state, trouble.clone(), why)
            }
            None => super::unchecked(Check::Neighbour, &place, "the side was not asked"),
        });
    }
}
