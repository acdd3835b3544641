//! Findings as a table and as JSON.

use std::net::IpAddr;

use comfy_table::{Cell, ContentArrangement, Table, presets};
use serde::{Deserialize, Serialize};

use crate::perf::peer::message::{BadMessage, one_line};

/// Version of the JSON.
pub(crate) const SCHEMA: u32 = 1;
/// Findings of a report, at most.
const FINDINGS_MAX: usize = 64;
/// Width of the table where the terminal does not tell.
const WIDTH: u16 = 130;

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// As it should be.
    Ok,
    /// Could not be told, with the reason.
    NotChecked,
    /// RDMA works but suffers, or will under load.
    Warning,
    /// RDMA does not work, or hardly.
    Problem,
}

impl State {
    const fn words(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::NotChecked => "not checked",
            Self::Warning => "WARNING",
            Self::Problem => "PROBLEM",
        }
    }
}

/// What was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Check {
    /// The port opens, and its link is up.
    Port,
    /// Both sides have addresses of one kind.
    Gid,
    /// The neighbour is found.
    Neighbour,
    /// Packets to UDP port 4791 arrive.
    Reachability,
    /// Nobody rewrites addresses and ports.
    Addresses,
    /// ICRCs are right.
    Icrc,
    /// Sizes that pass.
    PathMtu,
    /// The ECN field arrives.
    Ecn,
    /// The DSCP arrives.
    Dscp,
    /// Losses.
    Loss,
    /// Order.
    Order,
    /// Duplicates.
    Duplicates,
    /// RC WRITE.
    Connection,
}

impl Check {
    const fn words(self) -> &'static str {
        match self {
            Self::Port => "port",
            Self::Gid => "GID",
            Self::Neighbour => "neighbour",
            Self::Reachability => "UDP port 4791",
            Self::Addresses => "address translation",
            Self::Icrc => "ICRC",
            Self::PathMtu => "path MTU",
            Self::Ecn => "ECN",
            Self::Dscp => "DSCP",
            Self::Loss => "loss",
            Self::Order => "reordering",
            Self::Duplicates => "duplicates",
            Self::Connection => "RC WRITE",
        }
    }
}

/// What is wrong, by a stable name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fault {
    /// The port cannot be opened.
    PortUnusable,
    /// No carrier.
    LinkDown,
    /// One address is IPv4, the other IPv6.
    GidFamily,
    /// One address is link-local, the other is not.
    GidScope,
    /// No route, or no answer to ARP or neighbour discovery.
    Neighbour,
    /// Everything but UDP port 4791 arrives.
    #[serde(rename = "udp_4791_blocked")]
    Udp4791Blocked,
    /// Nothing arrives.
    Unreachable,
    /// Addresses or ports are rewritten.
    AddressTranslation,
    /// Packets are changed on the way.
    Corruption,
    /// The links at both ends have different MTUs.
    LinkMtuDiffers,
    /// The links are too small for any path MTU.
    LinkMtuTooSmall,
    /// A link in the middle is smaller than those at the ends.
    MtuInTheMiddle,
    /// The ECN field arrives as not ECN-capable.
    EcnBleached,
    /// The ECN field arrives as another one.
    EcnRewritten,
    /// The DSCP arrives as another one.
    DscpRewritten,
    /// Packets are lost.
    Loss,
    /// A receiving host drops packets.
    ReceiverDrops,
    /// Packets overtake each other.
    Reordering,
    /// Packets come twice.
    Duplication,
    /// Reliable connections do not work.
    ConnectionFailed,
    /// Packets are lost under load only.
    LossUnderLoad,
    /// Data arrives changed with a right ICRC.
    WrongData,
}

/// One finding.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Finding {
    /// What was looked at.
    pub check: Check,
    /// How bad it is.
    pub state: State,
    /// Of which side, or from which side to which.
    pub place: String,
    /// What was measured, or why it was not.
    pub measured: String,
    /// What is wrong.
    pub fault: Option<Fault>,
    /// The likely cause.
    pub cause: Option<String>,
    /// What to do.
    pub remedy: Option<String>,
}

/// All findings of a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Report {
    /// Version of this format.
    pub schema: u32,
    /// Address of the side that connected.
    pub near: IpAddr,
    /// Address of the side that listened.
    pub far: IpAddr,
    /// Port of the side that connected.
    pub near_port: String,
    /// Port of the side that listened.
    pub far_port: String,
    /// The worst state of what was checked.
    pub state: State,
    /// One for each check and side or direction.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Checks what a peer found, and makes its texts fit a terminal.
    ///
    /// # Errors
    /// More findings than there are.
    pub(crate) fn check(mut self) -> Result<Self, BadMessage> {
        if self.findings.len() > FINDINGS_MAX {
            return Err(BadMessage::field("number of findings", self.findings.len()));
        }
        for text in [&mut self.near_port, &mut self.far_port] {
            *text = one_line(text);
        }
        for finding in &mut self.findings {
            let texts = [&mut finding.place, &mut finding.measured];
            let more = [&mut finding.cause, &mut finding.remedy];
            for text in texts.into_iter().chain(more.into_iter().flatten()) {
                *text = one_line(text);
            }
        }
        Ok(self)
    }

    /// For people: what is wrong in full, then everything as a table.
    pub(crate) fn text(&self) -> String {
        let mut out = format!(
            "{} ({}) - {} ({})\n",
            self.near, self.near_port, self.far, self.far_port
        );
        let mut table = Table::new();
        table
            .load_style(presets::UTF8_BORDERS_ONLY)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_header(["check", "where", "state", "measured"]);
        if table.width().is_none() {
            table.set_width(WIDTH);
        }
        for f in &self.findings {
            table.add_row([
                Cell::new(f.check.words()),
                Cell::new(&f.place),
                Cell::new(f.state.words()),
                Cell::new(&f.measured),
            ]);
        }
        out += &table.to_string();
        out.push('\n');
        let wrong: Vec<&Finding> = self
            .findings
            .iter()
            .filter(|f| matches!(f.state, State::Warning | State::Problem))
            .collect();
        let unchecked = self.findings.iter();
        let unchecked = unchecked.filter(|f| f.state == State::NotChecked).count();
        out += &match (wrong.len(), unchecked) {
            (0, 0) => "Nothing is wrong with the path.\n".to_owned(),
            (0, n) => format!("Nothing wrong was found; {n} checks were not possible.\n"),
            _ => String::new(),
        };
        for f in wrong {
            out += &format!(
                "{}: {}, {}: {}\n",
                f.state.words(),
                f.check.words(),
                f.place,
                f.measured
            );
            for (what, text) in [("cause", &f.cause), ("remedy", &f.remedy)] {
                if let Some(text) = text {
                    out += &format!("  {what}: {text}\n");
                }
            }
        }
        out
    }
}
