//! Where the instructions go: two engines in one thread under callgrind, functions by what they
//! are for.
//!
//! Each figure is the difference of a long and a short run of this program, so that set-up does
//! not count.

use std::collections::BTreeMap;

use xroce_bench_report::{Bar, Part};

use super::rows::{D6, D6_INSTRUCTIONS, D7, D9_MEMORY, Kind};
use super::support::Op;
use super::support::callgrind::{self, Costs};
use super::support::core::messages;

/// Work that callgrind counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    /// SEND of 64 bytes.
    Send64,
    /// WRITE of 4 KB, one packet.
    Write4k,
}

impl Work {
    /// "send64:4000".
    pub(crate) fn parse(text: &str) -> Option<(Self, usize)> {
        let (name, count) = text.split_once(':')?;
        let work = [Self::Send64, Self::Write4k];
        let work = work.into_iter().find(|w| w.name() == name)?;
        Some((work, count.parse().ok()?))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Send64 => "send64",
            Self::Write4k => "write4k",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Send64 => "SEND of 64 B in memory, both ends",
            Self::Write4k => "WRITE of 4 KB in memory, both ends",
        }
    }

    /// Rows that it explains.
    fn rows(self) -> [&'static Kind; 2] {
        match self {
            Self::Send64 => [&D6_INSTRUCTIONS, &D6],
            Self::Write4k => [&D9_MEMORY, &D7],
        }
    }

    /// What this program does when it is the one that is counted.
    pub(crate) fn run(self, count: usize) {
        match self {
            Self::Send64 => messages(Op::Send, 64, count),
            Self::Write4k => messages(Op::Write, 4096, count),
        }
    }
}

/// Of the groups that functions are put into, what is asked for by name.
pub(crate) const ICRC: &str = "ICRC";

/// The one place that says which function belongs where: the first line that fits the source file
/// (of inlined code: that it was written in) or the function. `*` is any.
const GROUPS: [(&str, &str); 28] = [
    // By function: whatever the standard library inlines into it is of it.
    ("*clock_gettime*", "clock"),
    ("*clock::now*", "clock"),
    ("*Timespec*", "clock"),
    ("*xroce_crc::*", ICRC),
    ("*memcpy*", "copy"),
    ("*memmove*", "copy"),
    ("*memset*", "copy"),
    ("*xroce_shm::*", "copy"),
    // By file.
    ("*transport/crc/*", ICRC),
    ("*wire/src/icrc*", ICRC),
    ("*engine/src/icrc*", ICRC),
    ("*transport/shm/*", "copy"),
    ("*transport/wire/*", "parse and emit"),
    ("*proto/src/qp/responder*", "responder"),
    ("*proto/src/qp/rq.rs", "responder"),
    ("*proto/src/qp/replay*", "responder"),
    ("*proto/src/qp/*", "requester"),
    ("*transport/proto/*", "requester"),
    ("*transport/net/*", "port"),
    ("*transport/engine/*", "engine and poll"),
    ("*benches/*", "the bench itself"),
    // What is left is the standard library inlined into ours: by function again.
    ("*xroce_wire::*", "parse and emit"),
    ("*responder*", "responder"),
    ("*xroce_proto::*", "requester"),
    ("*xroce_net::*", "port"),
    ("*xroce_engine::*", "engine and poll"),
    ("*support::*", "the bench itself"),
    ("*", "rest"),
];

fn fits(pattern: &str, text: &str) -> bool {
    let (head, middle, tail) = match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(_), Some(_)) => return text.contains(pattern.trim_matches('*')),
        (Some(tail), None) => ("", "", tail),
        (None, Some(head)) => (head, "", ""),
        (None, None) => ("", pattern, ""),
    };
    text.starts_with(head) && text.ends_with(tail) && (middle.is_empty() || text == middle)
}

fn group(file: &str, function: &str) -> &'static str {
    let is = |p: &&(&str, &str)| fits(p.0, function) || fits(p.0, file);
    GROUPS.iter().find(is).map_or("rest", |g| g.1)
}

/// Instructions by group.
type Groups = BTreeMap<&'static str, f64>;

/// What one message costs.
#[derive(Debug)]
pub(crate) struct Profile {
    work: Work,
    groups: Groups,
}

impl Profile {
    /// Instructions of a message, both ends together.
    pub(crate) fn total(&self) -> f64 {
        self.groups.values().sum()
    }

    /// Those of a group.
    pub(crate) fn of(&self, group: &str) -> f64 {
        self.groups.get(group).copied().unwrap_or_default()
    }

    /// Largest part first.
    pub(crate) fn bar(&self) -> Bar {
        let total = self.total().max(1.0);
        let mut parts: Vec<Part> = self
            .groups
            .iter()
            .map(|(name, n)| Part {
                name: (*name).to_owned(),
                share: (n / total).clamp(0.0, 1.0),
            })
            .collect();
        parts.sort_by(|a, b| b.share.total_cmp(&a.share));
        Bar {
            name: self.work.title().to_owned(),
            of: String::from("instructions"),
            rows: self.work.rows().map(|kind| kind.key.to_owned()).into(),
            parts,
        }
    }
}

/// Counts.
///
/// # Errors
/// There is no valgrind, or it did not do.
pub(crate) fn take(work: Work) -> Result<Profile, String> {
    const SHORT: u32 = 4_000;
    const LONG: u32 = 24_000;
    let args = |n: u32| [String::from("--work"), format!("{}:{n}", work.name())].to_vec();
    let groups = grouped(&callgrind::per_unit(args, SHORT, LONG)?);
    Ok(Profile { work, groups })
}

fn grouped(costs: &Costs) -> Groups {
    let mut groups = Groups::new();
    for (place, n) in costs {
        *groups
            .entry(group(&place.file, &place.function))
            .or_default() += n;
    }
    groups.values_mut().for_each(|n| *n = n.max(0.0));
    groups
}

#[cfg(test)]
mod tests {
    #![allow(
        dead_code,
        unused_imports,
        reason = "the bench itself is compiled as a test, but without its tests"
    )]
    use super::*;

    #[test]
    fn the_file_of_callgrind() {
        let text = "events: Ir\n\
            fl=(1) a/transport/engine/src/rx.rs\nfn=(1) xroce_engine::rx::receive\n\
            10 100\n+3 5\n\
            fi=(2) a/transport/wire/src/bth.rs\n12 7\nfe=(1)\n\
            cfl=(3) x.S\ncfn=(2) __memcpy_avx\ncalls=4 20\n11 900\n13 1\n\
            fl=(3)\nfn=(2)\n0 900\n\
            fn=(3) xroce_crc::clmul::update\n* 50\n\
            totals: 1063\n";
        let groups = grouped(&callgrind::parse(text));
        let expected = [
            ("ICRC", 50.0),
            ("copy", 900.0),
            ("engine and poll", 106.0),
            ("parse and emit", 7.0),
        ];
        assert_eq!(groups, expected.into());
    }

    #[test]
    fn functions_have_their_place() {
        for (file, function, is) in [
            (
                "",
                "<xroce_net::sim::pair::LoopPort as Datapath>::tx_begin",
                "port",
            ),
            (
                "/rustc/library/core/src/slice.rs",
                "xroce_engine::rx::receive",
                "engine and poll",
            ),
            (
                "a/transport/proto/src/qp/responder.rs",
                "xroce_engine::rx::receive",
                "responder",
            ),
            ("a/transport/proto/src/qp/sq.rs", "post_send", "requester"),
            (
                "a/transport/wire/src/icrc/lower.rs",
                "xroce_engine::rx::receive",
                ICRC,
            ),
            (
                "a/benches/support/mod.rs",
                "suite::support::Pair::stream",
                "the bench itself",
            ),
            ("malloc.c", "_int_free", "rest"),
        ] {
            assert_eq!(group(file, function), is, "{file} {function}");
        }
        assert_eq!(Work::parse("write4k:7"), Some((Work::Write4k, 7)));
        assert_eq!(Work::parse("write4k"), None);
        assert_eq!(Work::parse("fly:7"), None);
    }
}
