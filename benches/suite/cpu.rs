//! Who has the cores: what the two ends of a row do with their time, and what else runs on the
//! machine, by the account of the kernel (`/proc/stat`).

use std::fs;
use std::thread::sleep;
use std::time::Duration as StdDuration;

use xroce_bench_report::{Bar, Part};

use super::rows::Kind;
use super::support::threads::Used;

/// How long the benches sleep to see what others do.
const PAUSE: StdDuration = StdDuration::from_millis(200);

/// Ticks of all cores together.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Ticks {
    all: u64,
    idle: u64,
    stolen: u64,
}

impl Ticks {
    fn now() -> Self {
        Self::parse(&fs::read_to_string("/proc/stat").unwrap_or_default()).unwrap_or_default()
    }

    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|l| l.strip_prefix("cpu "))?;
        let ticks: Vec<u64> = line
            .split_whitespace()
            .map_while(|n| n.parse().ok())
            .collect();
        // What guests had, further on, is part of the user's time.
        let &[user, nice, system, idle, iowait, irq, softirq, stolen, ..] = &ticks[..] else {
            return None;
        };
        Some(Self {
            all: user + nice + system + idle + iowait + irq + softirq + stolen,
            idle: idle + iowait,
            stolen,
        })
    }

    /// Since `before`. The kernel's counters of idle time may go back a little.
    fn since(self, before: Self) -> Self {
        Self {
            all: self.all.saturating_sub(before.all),
            idle: self.idle.saturating_sub(before.idle),
            stolen: self.stolen.saturating_sub(before.stolen),
        }
    }
}

fn share(part: u64, all: u64) -> f64 {
    if all == 0 {
        0.0
    } else {
        (part as f64 / all as f64).clamp(0.0, 1.0)
    }
}

/// The share of all cores that is busy while this process sleeps.
pub(crate) fn others() -> f64 {
    let before = Ticks::now();
    sleep(PAUSE);
    let used = Ticks::now().since(before);
    share(used.all.saturating_sub(used.idle), used.all)
}

/// Watches what the host of a virtual machine keeps.
pub(crate) struct Host(Ticks);

impl Host {
    pub(crate) fn watch() -> Self {
        Self(Ticks::now())
    }

    /// The share of all cores since [`Host::watch`].
    pub(crate) fn kept(self) -> f64 {
        let used = Ticks::now().since(self.0);
        share(used.stolen, used.all)
    }
}

/// What the threads of each row did, all rounds together.
#[derive(Default, Debug)]
pub(crate) struct Accounts(Vec<(&'static Kind, [Used; 2])>);

impl Accounts {
    /// Books what the sending and the receiving thread of a row did.
    pub(crate) fn book(&mut self, kind: &'static Kind, used: [Used; 2]) {
        let at = self.0.iter().position(|r| r.0.key == kind.key);
        let at = at.unwrap_or_else(|| {
            self.0.push((kind, [Used::default(); 2]));
            self.0.len() - 1
        });
        for (sum, used) in self.0[at].1.iter_mut().zip(used) {
            sum.all_ns += used.all_ns;
            sum.user_ns += used.user_ns;
            sum.kernel_ns += used.kernel_ns;
        }
    }

    /// Two bars for each row, for its two ends.
    pub(crate) fn bars(&self) -> Vec<Bar> {
        let ends = |(kind, [sending, receiving]): &(&Kind, [Used; 2])| {
            [
                bar(kind, "sending end", *sending),
                bar(kind, "receiving end", *receiving),
            ]
        };
        self.0.iter().flat_map(ends).collect()
    }
}

fn bar(kind: &Kind, end: &str, used: Used) -> Bar {
    let part = |name: &str, ns| Part {
        name: name.to_owned(),
        share: share(ns, used.all_ns),
    };
    // The kernel counts in ticks: both together may be a little more than there was.
    let had = used.user_ns + used.kernel_ns;
    Bar {
        name: format!("{}, {end}", kind.key),
        of: String::from("time"),
        rows: vec![kind.key.to_owned()],
        parts: vec![
            part("kernel", used.kernel_ns),
            part("xroce, polling included", used.user_ns),
            part("others had the core", used.all_ns.saturating_sub(had)),
        ],
    }
}

#[cfg(test)]
mod tests {
    #![allow(
        dead_code,
        unused_imports,
        reason = "the bench itself is compiled as a test, but without its tests"
    )]
    use super::super::rows::D1;
    use super::*;

    #[test]
    fn the_account_of_the_kernel() {
        let text = "cpu  10 5 20 30 5 1 2 7 3 0\ncpu0 10 5 20 30 5 1 2 7 0 0\n";
        let ticks = Ticks::parse(text).unwrap();
        assert_eq!((ticks.all, ticks.idle, ticks.stolen), (80, 35, 7));
        assert_eq!(Ticks::parse("cpu  1 2 3\n"), None);
        assert_eq!(Ticks::parse(""), None);
        // Counters that went back are no eternity.
        assert_eq!(Ticks::default().since(ticks), Ticks::default());
        assert!((0.0..=1.0).contains(&others()));
        assert!((0.0..=1.0).contains(&Host::watch().kept()));
    }

    #[test]
    fn both_ends_of_a_row() {
        let mut accounts = Accounts::default();
        let used = |kernel_ns| Used {
            all_ns: 100,
            user_ns: 20,
            kernel_ns,
        };
        accounts.book(&D1, [used(70), used(90)]);
        accounts.book(&D1, [used(70), used(90)]);
        let bars = accounts.bars();
        let shares = |bar: &Bar| bar.parts.iter().map(|p| p.share).collect::<Vec<_>>();
        assert_eq!(bars[0].name, "D1, sending end");
        assert_eq!(shares(&bars[0]), [0.7, 0.2, 0.1]);
        assert_eq!(shares(&bars[1]), [0.9, 0.2, 0.0]);
    }
}
