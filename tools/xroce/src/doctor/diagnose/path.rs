//! Whether packets arrive, and as what.

use super::super::facts::Trial;
use super::super::report::{Check, Fault, Finding, State};
use super::{OneWay, Why, percent};

impl OneWay<'_> {
    /// Whether packets to UDP port 4791 arrive; if not, why there is nothing behind it to see.
    pub(super) fn reachability(&self, out: &mut Vec<Finding>) -> Option<&'static str> {
        const NOTHING: &str = "no packet arrives";
        let check = Check::Reachability;
        let Some(reach) = self.d.reach.as_ref().filter(|t| t.sent.packets > 0) else {
            let why = "there is no way to the other side";
            out.push(super::unchecked(check, &self.place, why));
            return Some(why);
        };
        let (came, sent) = (reach.heard.packets(), reach.sent.packets);
        if came > 0 {
            let measured = format!("{came} of {sent} packets arrived");
            out.push(self.fine(check, measured));
            return None;
        }
        let nothing = format!("0 of {sent} packets to UDP port 4791 arrived");
        let others = self.d.other.as_ref();
        let others = others.filter(|t| t.heard.packets() > 0);
        let (measured, why) = if self.reverse.is_translated(self.to.gid) {
            (nothing, self.behind_translation())
        } else if let Some(other) = others {
            let (came, sent) = (other.heard.packets(), other.sent.packets);
            let port = self.to.other_port;
            let measured = format!("{nothing}, but {came} of {sent} to UDP port {port} did");
            (measured, self.blocked(reach))
        } else if self.tcp_passes {
            let measured = format!("{nothing}, none to another UDP port either, but TCP passes");
            (measured, self.blocked(reach))
        } else {
            let measured = format!("{nothing}, and none to another UDP port either");
            (measured, self.unreachable(reach))
        };
        out.push(self.wrong(check, State::Problem, measured, why));
        Some(NOTHING)
    }

    fn behind_translation(&self) -> Why {
        Why {
            fault: Fault::AddressTranslation,
            cause: format!(
                "{} is behind a translation of addresses, as its packets show, and cannot be \
                 reached by its own address",
                self.to.gid
            ),
            remedy: NO_TRANSLATION.to_owned(),
        }
    }

    fn blocked(&self, reach: &Trial) -> Why {
        let mut cause = format!(
            "a firewall or an access list drops UDP port 4791 from {} to {}{}",
            self.from.gid,
            self.to.gid,
            said(reach)
        );
        if self.to.queues > 1 {
            cause += &format!(
                "; or the receiving interface, which has {} queues, gives RoCE packets to another \
                 queue than the one the port is on (ethtool -L IF combined 1, or a flow rule)",
                self.to.queues
            );
        }
        let own = if self.to.ethernet {
            ""
        } else {
            " and of the receiving host (nft list ruleset)"
        };
        Why {
            fault: Fault::Udp4791Blocked,
            cause,
            remedy: format!(
                "permit UDP destination port 4791, any source port, in this direction in the \
                 access lists of the switches and routers on the way{own}"
            ),
        }
    }

    fn unreachable(&self, reach: &Trial) -> Why {
        Why {
            fault: Fault::Unreachable,
            cause: format!(
                "no UDP at all gets from {} to {}: no route or another VLAN on the way, or a \
                 firewall that drops UDP; the side channel may have taken another way{}",
                self.from.gid,
                self.to.gid,
                said(reach)
            ),
            remedy: "try ping between these two addresses (ping -I), check routes and VLANs on \
                     the way, and permit UDP port 4791"
                .to_owned(),
        }
    }

    /// Whether source addresses and ports arrive as they were sent.
    pub(super) fn addresses(&self, out: &mut Vec<Finding>) {
        let check = Check::Addresses;
        let gid = self.from.gid;
        let translated = self.trials().find(|t| t.is_translated(gid));
        let Some(trial) = translated else {
            let port = self.d.reach.as_ref().map_or(0, |t| t.sent.src_port);
            let routers = match self.routers() {
                Some(0) => ", through no router".to_owned(),
                Some(1) => ", through 1 router".to_owned(),
                Some(n) => format!(", through {n} routers"),
                None => String::new(),
            };
            let measured = format!("as sent: from {gid}, UDP source port {port}{routers}");
            out.push(self.fine(check, measured));
            return;
        };
        let sent = (gid, trial.sent.src_port);
        let sources = &trial.heard.sources;
        let other = sources.iter().find(|s| (s.address, s.port) != sent);
        let (seen, count, wrong) = other.map_or((sent, 0, 0), |s| {
            ((s.address, s.port), s.packets, s.icrc_wrong)
        });
        let measured = format!(
            "sent from {} UDP port {}, arrived from {} UDP port {} ({count} packets, {wrong} with \
             a wrong ICRC)",
            sent.0, sent.1, seen.0, seen.1
        );
        let why = Why {
            fault: Fault::AddressTranslation,
            cause: "a NAT on the way rewrites addresses or ports. The ICRC covers both, so a RoCE \
                    adapter drops the packets, and the queue pair's peer address would not match \
                    either"
                .to_owned(),
            remedy: NO_TRANSLATION.to_owned(),
        };
        out.push(self.wrong(check, State::Problem, measured, why));
    }

    /// Routers on the way, if both ends see the hop limit.
    fn routers(&self) -> Option<u8> {
        let trial = self.d.reach.as_ref()?;
        let (sent, came) = (trial.sent.hop_limit?, trial.heard.hop_limit?);
        sent.checked_sub(came)
    }

    /// Whether packets arrive unchanged.
    pub(super) fn icrc(&self, out: &mut Vec<Finding>) {
        let check = Check::Icrc;
        let (came, wrong) = self.trials().fold((0, 0), |(came, wrong), t| {
            (
                came + u64::from(t.heard.packets()),
                wrong + u64::from(t.heard.icrc_wrong()),
            )
        });
        if wrong == 0 {
            out.push(self.fine(check, format!("right in all of {came} packets")));
            return;
        }
        if self.d.is_translated(self.from.gid) {
            let why = "wrong, as it must be behind a translation of addresses";
            out.push(super::unchecked(check, &self.place, why));
            return;
        }
        let share = percent(wrong, came);
        let measured = format!("wrong in {wrong} of {came} packets ({share})");
        let why = Why {
            fault: Fault::Corruption,
            cause: "packets are changed on the way: a device rewrites headers that the ICRC \
                    covers, or memory or a link corrupts data and the frame checksum is made anew \
                    behind it"
                .to_owned(),
            remedy:
                "look for tunnels, load balancers and middleboxes on the way, and at the error \
                     counters of the switches"
                    .to_owned(),
        };
        let state = if wrong * 1000 >= came {
            State::Problem
        } else {
            State::Warning
        };
        out.push(self.wrong(check, state, measured, why));
    }

    /// Whether the ECN field arrives.
    pub(super) fn ecn(&self, out: &mut Vec<Finding>) {
        let check = Check::Ecn;
        let count = |ecn: u8| self.classes(|class| class & 3 == ecn);
        let (all, bleached) = (self.classes(|_| true), count(0));
        let (ect1, marked) = (count(1), count(3));
        if bleached > 0 {
            let share = percent(bleached, all);
            let measured =
                format!("sent ECT(0), {bleached} of {all} packets ({share}) arrived as Not-ECT");
            let why = Why {
                fault: Fault::EcnBleached,
                cause: "a device on the way clears the ECN field (ECN bleaching): switches cannot \
                        mark these packets behind it, marks made before it are lost, and DCQCN \
                        does not slow down until packets are dropped"
                    .to_owned(),
                remedy: "find the policy that rewrites TOS or the traffic class as a whole and \
                         have it set DSCP only; check that tunnels copy ECN (RFC 6040)"
                    .to_owned(),
            };
            let state = if bleached * 100 >= all {
                State::Problem
            } else {
                State::Warning
            };
            out.push(self.wrong(check, state, measured, why));
            return;
        }
        if ect1 > 0 {
            let measured = format!("sent ECT(0), {ect1} of {all} packets arrived as ECT(1)");
            let why = Why {
                fault: Fault::EcnRewritten,
                cause: "a device on the way rewrites the ECN field".to_owned(),
                remedy:
                    "find the policy that sets TOS or the traffic class as a whole and have it \
                         set DSCP only"
                        .to_owned(),
            };
            out.push(self.wrong(check, State::Warning, measured, why));
            return;
        }
        let marks = match marked {
            0 => "none marked".to_owned(),
            n => format!("{n} marked CE ({}): there is congestion", percent(n, all)),
        };
        let measured = format!("ECT(0) of all {all} packets arrived, {marks}");
        out.push(self.fine(check, measured));
    }

    /// Whether the DSCP arrives.
    pub(super) fn dscp(&self, out: &mut Vec<Finding>) {
        let check = Check::Dscp;
        let mut trials = self.trials();
        let Some(first) = trials.next().filter(|t| t.heard.dscp_known) else {
            let why = "a UDP socket is told ECN only (use --dev on the receiving side)";
            out.push(super::unchecked(check, &self.place, why));
            return;
        };
        let sent = first.train.class >> 2;
        let classes = first.heard.classes.iter();
        let classes = classes.chain(trials.flat_map(|t| &t.heard.classes));
        let Some(other) = classes.map(|c| c.class >> 2).find(|d| *d != sent) else {
            let measured = format!("DSCP {sent} of all packets arrived");
            out.push(self.fine(check, measured));
            return;
        };
        let (all, kept) = (
            self.classes(|_| true),
            self.classes(|class| class >> 2 == sent),
        );
        let changed = all - kept;
        let measured = format!("sent DSCP {sent}, {changed} of {all} packets arrived as {other}");
        let why = Why {
            fault: Fault::DscpRewritten,
            cause:
                "a port on the way does not trust DSCP, or a policy rewrites it: behind it RoCE \
                    traffic is not in the class that PFC and ECN are configured for"
                    .to_owned(),
            remedy: "have every port on the way trust DSCP (on Mellanox: mlnx_qos --trust dscp on \
                     the hosts) and map it to the same lossless class everywhere"
                .to_owned(),
        };
        out.push(self.wrong(check, State::Warning, measured, why));
    }

    /// Everything of RoCE that arrived.
    pub(super) fn trials(&self) -> impl Iterator<Item = &Trial> {
        let few = self.d.reach.iter().chain(&self.d.sizes);
        few.chain(&self.d.many)
    }

    /// How many packets came with a traffic class like this.
    fn classes(&self, like: impl Fn(u8) -> bool) -> u64 {
        let classes = self.trials().flat_map(|t| &t.heard.classes);
        let those = classes.filter(|c| like(c.class));
        those.map(|c| u64::from(c.packets)).sum()
    }
}

/// What to do about a NAT.
const NO_TRANSLATION: &str = "take the RoCE addresses out of the translation: route between them, \
                              or put both hosts into one network; RoCEv2 cannot pass a NAT";

/// What routers said, as a part of a sentence.
pub(super) fn said(trial: &Trial) -> String {
    match trial.sent.icmp.first() {
        Some(text) => format!(" (ICMP from {text})"),
        None => String::new(),
    }
}
