//! Path MTUs.

use xroce_wire::newtypes::PathMtu;

use super::super::facts::Facts;
use super::super::report::{Check, Fault, Finding, State};
use super::path::said;
use super::{BOTH, OneWay, Why, fine, wrong};

fn of_link(mtu: u32) -> Option<usize> {
    PathMtu::for_link_mtu(mtu as usize).map(PathMtu::bytes)
}

/// The links at both ends.
pub(super) fn links(facts: &Facts, out: &mut Vec<Finding>) {
    let check = Check::PathMtu;
    let (near, far) = (&facts.near, &facts.far);
    let links = format!("IP MTU {} and {}", near.link_mtu, far.link_mtu);
    let needs = 4096 + PathMtu::OVERHEAD;
    let (state, measured, why) = match (of_link(near.link_mtu), of_link(far.link_mtu)) {
        (Some(a), Some(b)) if a == b => {
            let measured = format!("{links}: the links carry path MTU {a}");
            out.push(fine(check, BOTH, measured));
            return;
        }
        (Some(a), Some(b)) => {
            let (lower, by) = if a < b { (near, a) } else { (far, b) };
            let why = Why {
                fault: Fault::LinkMtuDiffers,
                cause: format!(
                    "the link of {} is the smaller one: path MTU {by} is all that can be used",
                    lower.gid
                ),
                remedy: format!(
                    "give both interfaces and their switch ports the same MTU, {needs} or more \
                     for path MTU 4096"
                ),
            };
            (State::Warning, links, why)
        }
        _ => {
            let why = Why {
                fault: Fault::LinkMtuTooSmall,
                cause: "an interface is too small for the smallest path MTU, 256".to_owned(),
                remedy: format!("raise its MTU, to {needs} or more for path MTU 4096"),
            };
            (State::Problem, links, why)
        }
    };
    out.push(wrong(check, BOTH, state, measured, why));
}

impl OneWay<'_> {
    /// Which of the path MTUs that the links carry pass.
    pub(super) fn path_mtu(&self, out: &mut Vec<Finding>) {
        let check = Check::PathMtu;
        let Some(trial) = &self.d.sizes else {
            let why = "the links carry none";
            out.push(super::unchecked(check, &self.place, why));
            return;
        };
        let passes = self.d.path_mtu();
        let tried = trial.train.groups.iter().map(|g| g.payload).max();
        let tried = tried.map_or(0, |p| p - super::super::probe::SHORTER_BY);
        if let Some(passes) = passes.filter(|&p| p == tried) {
            let measured = format!("packets of path MTU {passes} and less arrive");
            out.push(self.fine(check, measured));
            return;
        }
        let mut measured = match passes {
            Some(p) => format!("path MTU {p} passes, larger ones up to {tried} vanish"),
            None => format!("packets of no path MTU arrive, {tried} and less were tried"),
        };
        let edge = self.d.edge;
        if let Some(edge) = edge {
            measured += &format!(
                ": IP packets of {} bytes arrive, of {} bytes do not",
                edge.passes, edge.vanishes
            );
        }
        let least = edge.map_or(0, |e| e.passes);
        let silent = if trial.sent.icmp.is_empty() {
            " and drops what is longer silently (a switch port; or ICMP is filtered)".to_owned()
        } else {
            said(trial)
        };
        let instead = match passes {
            Some(p) => format!(", or use path MTU {p} at both ends"),
            None => String::new(),
        };
        let why = Why {
            fault: Fault::MtuInTheMiddle,
            cause: format!(
                "the links at both ends carry more (IP MTU {} and {}): something between them \
                 carries IP packets of about {least} bytes only{silent}",
                self.from.link_mtu, self.to.link_mtu
            ),
            remedy: format!(
                "raise the MTU of every switch port, router interface and tunnel on the way to an \
                 IP MTU of {} or more (usual: 9000){instead}",
                tried as usize + PathMtu::OVERHEAD
            ),
        };
        out.push(self.wrong(check, State::Problem, measured, why));
    }
}
